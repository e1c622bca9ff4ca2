"""The crew on Ray: actors that pull chunks; a dead one is replaced and costs no chunk."""

import copy
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from distsummary.errors import DistSummaryError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscape.engines.plan import Chunk
from distsummary.landscape.engines.planner import EngineChoice
from distsummary.landscape.engines.timing import plan_engine
from distsummary.landscape.engines.worker import ChunkResult, EngineFacts, LandscapeWorker, Task
from distsummary.landscape.workers.actor_end import end_actors
from distsummary.landscape.workers.actor_errors import original_errors
from distsummary.landscape.workers.actor_start import MAX_DEATHS, own_device, spawn
from distsummary.landscape.workers.failures import OPENING, ChunkFailedError, told
from distsummary.landscape.workers.runner import Keep
from distsummary.landscape.workers.scheduler import Scheduler

IN_FLIGHT = 2  # chunks per worker: the next one is there when it ends one
WAIT_S = 1.0
START_S = 30.0  # after which a worker without resources is added if none has started
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

    def evaluate(self, chunk: Chunk) -> ChunkResult:
        """The losses of the chunk."""
        if self._worker is None:
            raise LandscapeError(
                "a landscape worker was asked before it began; this is a fault of distsummary"
            )
        return self._worker.evaluate(chunk)


class RayCrew:
    """The actors and what each is at; see `runner.Crew`. `end` kills them: what they hold is not needed.

    Args:
        task: in the object store.
        resources: of each actor.
        more: the resources of actors that could be added now for so many chunks; None adds none.
    """

    def __init__(
        self,
        task: Any,
        resources: list[dict[str, float]],
        more: Callable[[int], list[dict[str, float]]] | None = None,
    ) -> None:
        self._task, self._more = task, more
        self._actors: dict[str, Any] = {}
        self._resources: dict[str, dict[str, float]] = {}
        # what each call that is under way is for: nobody's scheduler and no chunk while a worker begins
        self._pending: dict[Any, tuple[str, Chunk | None, Scheduler | None]] = {}
        self._facts: EngineFacts | None = None
        self._deaths = 0
        self._patience_ends, self._grows_at = time.monotonic() + START_S, time.monotonic() + GROW_S
        self._seconds: dict[str, float] = {}
        for options in resources:
            self._start(options)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Spent on chunks, by worker."""
        return self._seconds

    @property
    def facts(self) -> EngineFacts | None:
        """What the first worker that began said of its engine."""
        return self._facts

    def run(self, scheduler: Scheduler, keep: Keep) -> None:
        """See `runner.Crew`."""
        self._feed_all(scheduler)
        while not (scheduler.is_finished and self._facts is not None):
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=WAIT_S)
            for reference in ready:
                self._take(reference, scheduler, keep)
            self._lose_patience()
            self._grow(scheduler)

    def _lose_patience(self) -> None:
        if self._facts is None and time.monotonic() > self._patience_ends:
            _log.warning("no landscape worker started in %g s; starting one without a reservation", START_S)
            self._patience_ends = float("inf")
            self._start({"num_cpus": 0})

    def _grow(self, scheduler: Scheduler) -> None:
        """Take what has become free since."""
        now = time.monotonic()
        if self._more is None or now < self._grows_at or any(c is None for _, c, _ in self._pending.values()):
            return
        self._grows_at = now + GROW_S
        for options in self._more(scheduler.waiting):
            self._start(options)

    def _start(self, options: dict[str, float]) -> None:
        worker = f"worker-{len(self._seconds)}"
        self._actors[worker] = spawn(LandscapeActor, options, self._task)
        self._resources[worker] = options
        self._seconds[worker] = 0.0
        self._pending[self._actors[worker].begin.remote()] = (worker, None, None)

    def _take(self, reference: Any, scheduler: Scheduler, keep: Keep) -> None:
        worker, chunk, asker = self._pending.pop(reference)
        try:
            answer = _answer(reference, chunk)
        except RayError as error:
            self._replace(worker, error, scheduler)
            return
        if chunk is None:
            self._facts = answer
        else:
            self._seconds[worker] += answer.seconds
            if asker is scheduler:  # others have ended: their chunks are known
                keep(worker, chunk, answer)
            self._deaths = 0
        self._feed_all(scheduler)

    def _feed_all(self, scheduler: Scheduler) -> None:
        """Every worker that has begun gets up to IN_FLIGHT chunks."""
        starting = {worker for worker, chunk, _ in self._pending.values() if chunk is None}
        for depth in range(1, IN_FLIGHT + 1):  # one for each first
            for worker, actor in self._actors.items():
                held = sum(1 for other, *_ in self._pending.values() if other == worker)
                if worker in starting or held >= depth:
                    continue
                chunk = scheduler.next_chunk(worker)
                if chunk is None:
                    return
                self._pending[actor.evaluate.remote(chunk)] = (worker, chunk, scheduler)

    def _replace(self, worker: str, error: RayError, scheduler: Scheduler) -> None:
        """The worker is dead: its chunks go back, another one takes its place."""
        self._pending = {ref: at for ref, at in self._pending.items() if at[0] != worker}
        scheduler.lost(worker)
        _log.warning("landscape %s died (%s); its chunks are evaluated again by others", worker, error)
        ray.kill(self._actors.pop(worker), no_restart=True)
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            raise LandscapeError(
                f"{self._deaths} landscape workers died one after the other without a result ({error}); "
                "look into the memory they need, or use workers=0"
            )
        self._start(self._resources.pop(worker))
        self._feed_all(scheduler)

    def end(self) -> None:
        """Kill the actors."""
        end_actors((actor, self._resources[worker]) for worker, actor in self._actors.items())
        self._actors.clear()


def _answer(reference: Any, chunk: Chunk | None) -> Any:
    """What a worker gave for a chunk, or said when it began; a RayError means that it is dead."""
    if chunk is None:
        with told(OPENING, RayError), original_errors():
            return ray.get(reference)
    try:
        with original_errors():
            return ray.get(reference)
    except (DistSummaryError, RayError):
        raise
    except Exception as error:  # of any kind: it is the user's code
        raise ChunkFailedError(chunk, error) from error
