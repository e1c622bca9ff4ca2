"""The crew on Ray: actors that pull chunks; a dead one is replaced and costs no chunk."""

import copy
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayError

from distsummary.errors import DistSummaryError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.engines.chunks import Chunk, least_call
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.timing import plan_engine
from distsummary.landscapes.engines.worker import ChunkResult, EngineFacts, LandscapeWorker, Task
from distsummary.landscapes.run.actor_end import end_actors
from distsummary.landscapes.run.actor_errors import LOOK, Deaths, how_it_died, original_errors
from distsummary.landscapes.run.actor_silence import Silences
from distsummary.landscapes.run.actor_start import NO_GPU, NOT_STARTED, START_S, UNRESERVED, own_device, spawn
from distsummary.landscapes.run.failures import OPENING, ChunkFailedError, told
from distsummary.landscapes.run.runner import Keep
from distsummary.landscapes.run.scheduler import IN_FLIGHT, Scheduler, call_size

WAIT_S = 1.0
GROW_S = 10.0  # after which it is asked again what is free

_log = logging.getLogger(__name__)


class LandscapeActor:
    """LandscapeWorker in a process of its own; `begin` does what may fail."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._worker: LandscapeWorker | None = None

    def plan(self) -> EngineChoice:
        """The engine for the task on this worker's device."""
        return plan_engine(self._task, device=own_device(self._task.model)).choice

    def begin(self) -> EngineFacts:
        """Open the engine, on the GPU if Ray gave one."""
        task, device = self._task, own_device(self._task.model)
        if framework_of(task.model).name != "torch":  # arrays out of the object store are read-only
            task = replace(task, model=copy.deepcopy(task.model))
        self._worker = LandscapeWorker(task, device=device)
        return self._worker.facts

    def evaluate(self, chunks: Sequence[Chunk]) -> list[ChunkResult]:
        """The losses of the chunks, up to one that raises: that one raises when it is asked for first."""
        if self._worker is None:
            raise LandscapeError(
                "a landscape worker was asked before it began; this is a fault of distsummary"
            )
        results: list[ChunkResult] = []
        for chunk in chunks:
            try:
                results.append(self._worker.evaluate(chunk))
            except Exception:
                if not results:
                    raise
                break  # what is done is not lost with it
        return results


@dataclass(frozen=True, slots=True)
class _Call:
    """What a worker was asked for; no chunks and nobody's scheduler: to begin."""

    worker: str
    chunks: Sequence[Chunk] = ()
    scheduler: Scheduler | None = None
    asked_at: float = field(default_factory=time.monotonic)


class RayCrew:
    """The actors and what each is at; see `runner.Crew`. `end` kills them: what they hold is not needed.

    Args:
        task: in the object store.
        resources: of each actor.
        more: the resources of actors that could be added now for so many points; None adds none.
        forgo: called when GPUs were waited for in vain.
    """

    def __init__(
        self,
        task: Any,
        resources: list[dict[str, float]],
        more: Callable[[int], list[dict[str, float]]] | None = None,
        forgo: Callable[[], None] = lambda: None,
    ) -> None:
        self._task, self._more, self._forgo = task, more, forgo
        self._actors: dict[str, Any] = {}
        self._resources: dict[str, dict[str, float]] = {}
        self._pending: dict[Any, _Call] = {}  # under way
        self._facts: EngineFacts | None = None
        self._silences = Silences()
        self._deaths = Deaths(len(resources))
        self._patience_ends, self._grows_at = time.monotonic() + START_S, time.monotonic() + GROW_S
        self._seconds: dict[str, float] = {}
        self._ended = 0  # points
        for options in resources:
            self._start(options)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Spent on chunks, by worker."""
        return self._seconds

    @property
    def facts(self) -> EngineFacts | None:
        """What the worker that began last said of its engine."""
        return self._facts

    def run(self, scheduler: Scheduler, keep: Keep) -> None:
        """See `runner.Crew`."""
        self._feed(list(self._actors), scheduler)
        while not (scheduler.is_finished and self._facts is not None):
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=WAIT_S)
            for reference in ready:
                self._take(reference, scheduler, keep)
            self._silences.tell({call.worker: call.asked_at for call in reversed(self._pending.values())})
            self._lose_patience()
            self._grow(scheduler)

    def _lose_patience(self) -> None:
        now = time.monotonic()
        if self._actors.keys() - self._starting():  # where they die, their resources may be taken by others
            self._patience_ends = now + START_S
        elif now > self._patience_ends:
            self._patience_ends = float("inf")
            self._do_without()

    def _do_without(self) -> None:
        """Start one worker that needs nothing; not beside those of GPUs: all that is kept is of one kind."""
        on_gpus = [worker for worker, options in self._resources.items() if options.get("num_gpus")]
        if on_gpus and self._ended:
            _log.warning(NO_GPU, START_S)
            return
        _log.warning(NOT_STARTED, START_S)
        for worker in on_gpus:
            self._drop(worker)
        if on_gpus:
            self._forgo()
        self._start(UNRESERVED)

    def _grow(self, scheduler: Scheduler) -> None:
        """Take what has become free since."""
        now = time.monotonic()
        if self._more is None or now < self._grows_at or self._starting():
            return
        self._grows_at = now + GROW_S
        kinds = [options.keys() for options in self._resources.values()]
        for options in self._more(scheduler.waiting):
            if options.keys() in kinds:
                self._start(options)

    def _start(self, options: dict[str, float]) -> None:
        worker = f"worker-{len(self._seconds)}"
        self._actors[worker] = spawn(LandscapeActor, options, self._task)
        self._resources[worker] = options
        self._seconds[worker] = 0.0
        self._silences.add(worker, self._actors[worker])
        self._pending[self._actors[worker].begin.remote()] = _Call(worker)

    def _starting(self) -> set[str]:
        """The workers that have not begun."""
        return {call.worker for call in self._pending.values() if not call.chunks}

    def _take(self, reference: Any, scheduler: Scheduler, keep: Keep) -> None:
        call = self._pending.pop(reference)
        self._silences.end(call.worker)
        try:
            answer = _answer(reference, call)
        except RayError as error:
            self._replace(call, error, scheduler)
            return
        if isinstance(answer, EngineFacts):
            self._facts = answer
        else:
            self._keep(call, answer, keep if call.scheduler is scheduler else None)
        self._feed([call.worker], scheduler)

    def _keep(self, call: _Call, results: Sequence[ChunkResult], keep: Keep | None) -> None:
        """Take in what a call gave; `keep` None: others have ended what it was for, its chunks are known."""
        self._deaths.forget()
        for chunk, result in zip(call.chunks, results, strict=False):
            self._seconds[call.worker] += result.seconds
            self._ended += len(chunk)
            if keep is not None:
                keep(call.worker, chunk, result)
        rest = call.chunks[len(results) :]
        if rest and keep is not None:
            self._ask(replace(call, chunks=rest))

    def _ask(self, call: _Call) -> None:
        self._pending[self._actors[call.worker].evaluate.remote(call.chunks)] = call

    def _feed(self, workers: Iterable[str], scheduler: Scheduler) -> None:
        """Those that have begun get up to IN_FLIGHT calls, one for each first."""
        asked = Counter(call.worker for call in self._pending.values())
        starting = self._starting()
        point_s = sum(self._seconds.values()) / self._ended if self._ended else 0.0
        least = least_call(is_streamed=self._facts is not None and self._facts.is_streamed)
        for depth in range(1, IN_FLIGHT + 1):
            for worker in workers:
                if worker in starting or asked[worker] >= depth:
                    continue
                points = call_size(scheduler.waiting, len(self._actors), point_s, least)
                chunks = scheduler.next_chunks(worker, points)
                if chunks:
                    self._ask(_Call(worker, chunks, scheduler))

    def _replace(self, call: _Call, error: RayError, scheduler: Scheduler) -> None:
        """The worker is dead: its chunks go back, another one takes its place."""
        worker = call.worker
        asked = [call, *(one for one in self._pending.values() if one.worker == worker)]
        options = self._drop(worker)
        scheduler.lost(worker, was_at_it=all(one.scheduler is scheduler for one in asked))
        how = how_it_died(error)
        _log.warning("landscape %s died (%s); its chunks are evaluated again by others", worker, how)
        self._deaths.add(how)
        if self._deaths.are_too_many:
            raise LandscapeError(
                f"{len(self._deaths)} landscape workers died one after the other without a result ({how}); "
                f"{LOOK}; with run_dir= finished points are kept"
            )
        self._start(options)
        self._feed(list(self._actors), scheduler)

    def _drop(self, worker: str) -> dict[str, float]:
        """Kill a worker, and forget what it was at; the resources that it had."""
        self._pending = {ref: call for ref, call in self._pending.items() if call.worker != worker}
        ray.kill(self._actors.pop(worker), no_restart=True)
        return self._resources.pop(worker)

    def end(self) -> None:
        """Kill the actors."""
        end_actors(
            [(actor, self._resources[worker]) for worker, actor in self._actors.items()], self._pending
        )
        self._actors.clear()
        self._pending.clear()


def _answer(reference: Any, call: _Call) -> EngineFacts | Sequence[ChunkResult]:
    """What a worker gave for a call; a RayError means that it is dead."""
    if not call.chunks:
        with told(OPENING, RayError), original_errors():
            return ray.get(reference)  # type: ignore[no-any-return]
    try:
        with original_errors():
            return ray.get(reference)  # type: ignore[no-any-return]
    except (DistSummaryError, RayError):
        raise
    except Exception as error:  # of any kind: it is the user's code
        raise ChunkFailedError(call.chunks[0], error) from error
