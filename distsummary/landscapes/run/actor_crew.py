"""A crew: Ray actors that share the chunks of a scheduler. It replaces those that die."""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError, UnserializableException

from distsummary.errors import DistSummaryError, LandscapeError
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.run.actor_resources import end_actors
from distsummary.landscapes.run.scheduler import IN_FLIGHT, CallPoints, Keep, Scheduler
from distsummary.landscapes.run.worker_failures import ChunkFailedError, raised

MAX_DEATHS = 8  # consecutive deaths without a result: twice the number that one bad chunk can cause
NOT_BEGUN = "it could not begin: "
READ_S = 1.0  # limit for reading the results of killed actors' calls, which fail within milliseconds
UNRESERVED = {"num_cpus": 0.0}
IN_CREATION = "error raised in its creation task"  # part of Ray's message, for example if an import failed
SHOWN = 120  # characters of Ray's message that are shown
LOOK = (
    "check that there is enough memory for them and that they can import the model's code "
    "(runtime_env of ray.init), or use workers=0"
)
# One thread per worker. The MALLOC variables make glibc keep the memory that one layer of a model frees, so
# that the next layer can use it, see docs/landscape.md, "Memory".
ENVIRONMENT = {
    "env_vars": {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the largest value that every glibc accepts
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    }
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewTimes:
    """How long a crew waits, in seconds.

    Attributes:
        wait_s: the longest wait for a result before all workers are checked for silence.
        start_s: if no worker has started after this time, one that reserves no resources is added.
        grow_s: the interval between two queries for free resources of the cluster.
        silent_s: a worker is reported after this silence, again after twice as long, and so on.
    """

    wait_s: float = 1.0
    start_s: float = 30.0
    grow_s: float = 10.0
    silent_s: float = 60.0


TIMES = CrewTimes()


@dataclass(slots=True)
class _Worker:
    actor: Any
    options: dict[str, float]
    place: Any  # a reference to the text "<process> on <address>", available once the worker has started
    has_started: bool = False
    last_seen: float = field(default_factory=time.monotonic)  # or last without a call


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a worker's method that has not been answered.

    `scheduler` is the one that the chunks belong to; None if the method is `begin`.
    """

    worker: str
    chunks: Sequence[Chunk] = ()
    scheduler: Scheduler | None = None


class ActorCrew:
    """Actors of the class `kind`, all created with `arguments`. A context manager that kills them on exit.

    Implements `runner.Crew`, except that `begun` holds whatever `kind.begin` returns. DistSummaryErrors of a
    worker are raised unchanged, and other errors in `begin` as LandscapeError.

    Its attributes are its arguments, the actors that live, and what a death has to be judged by.

    Args:
        kind: has `begin()` and `work(chunks, *sent)`, which returns the results of the chunks before the
            first that raises, and raises only if that is the first one. Its constructor also gets `gpus`, the
            actor's number of GPUs.
        resources: for each actor to start, its resources as Ray's actor options.
        name: the name of the crew in messages.
        beginning: the last words of messages about errors in `begin`, such as `worker_failures.OPENING`.
        more: given the number of waiting points, returns the resources of each actor that could be added
            now; None: no actors are added.
        forgo: called when the crew stops waiting for GPUs and continues without them.
        max_deaths: after this many successive deaths without a result, or earlier if all workers fail to
            begin in the same way, LandscapeError is raised, with `remedy` in its message.
        times: how long it waits; None: TIMES.
    """

    def __init__(
        self,
        kind: type,
        arguments: Sequence[Any],
        resources: Iterable[dict[str, float]],
        *,
        name: str,
        beginning: str,
        more: Callable[[int], list[dict[str, float]]] | None = None,
        forgo: Callable[[], None] = lambda: None,
        max_deaths: int = MAX_DEATHS,
        remedy: str = LOOK,
        times: CrewTimes | None = None,
    ) -> None:
        self._times = times = times or TIMES
        self._kind, self._arguments, self._name, self._beginning = kind, arguments, name, beginning
        self._more, self._forgo, self._max_deaths, self._remedy = more, forgo, max_deaths, remedy
        self.names: list[str] = []  # of all workers, dead ones included
        self.begun: dict[str, Any] = {}  # worker -> what its `begin` returned
        self._workers: dict[str, _Worker] = {}
        self._calls: dict[Any, _Call] = {}  # calls in progress, by reference
        self._has_results = False
        self._silent_s = times.silent_s
        now = time.monotonic()
        self._patience_ends, self._grows_at = now + times.start_s, now + times.grow_s
        for options in resources:
            self._start(options)
        self._count, self._deaths = len(self._workers), list[str]()  # how workers died since the last result

    def begin(self) -> Any:
        """Wait until a worker has begun; returns what its `begin` returned."""
        self.run(Scheduler([]), lambda _: 1, lambda *_: None)
        return next(iter(self.begun.values()))

    def run(self, scheduler: Scheduler, points: CallPoints, keep: Keep, *sent: Any) -> None:
        """See `runner.Crew`; `sent` are further arguments of `kind.work`."""
        self._scheduler, self._points, self._keep, self._sent = scheduler, points, keep, sent
        self._feed(list(self._workers))
        while not (scheduler.is_finished and self.begun):
            ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=self._times.wait_s)
            for reference in ready:
                self._take(reference)
            self._look_after_workers()
            self._grow()

    def _start(self, options: dict[str, float]) -> None:
        """Start an actor, ask for the place where it runs, and call its `begin`."""
        worker = f"worker-{len(self.names)}"
        self.names.append(worker)
        # "DEFAULT" keeps the actor out of a placement group that captures child actors: the group's bundles
        # were reserved for other work and may be full.
        started = ray.remote(self._kind).options(
            **options, max_restarts=0, scheduling_strategy="DEFAULT", runtime_env=ENVIRONMENT
        )
        actor = started.remote(*self._arguments, gpus=options.get("num_gpus", 0.0))
        place = actor.__ray_call__.remote(lambda _: f"{os.getpid()} on {ray.util.get_node_ip_address()}")
        self._workers[worker] = _Worker(actor, options, place)
        self._calls[actor.begin.remote()] = _Call(worker)

    def _feed(self, workers: Iterable[str]) -> None:
        """Give each worker that has begun up to IN_FLIGHT calls; all get a first call before a second one."""
        asked = Counter(call.worker for call in self._calls.values())
        for depth in range(1, IN_FLIGHT + 1):
            for worker in workers:
                if worker in self.begun and asked[worker] < depth:
                    points = self._points(len(self._workers))
                    if chunks := self._scheduler.next_chunks(worker, points):
                        self._ask(worker, chunks)

    def _ask(self, worker: str, chunks: Sequence[Chunk]) -> None:
        reference = self._workers[worker].actor.work.remote(chunks, *self._sent)
        self._calls[reference] = _Call(worker, chunks, self._scheduler)

    def _take(self, reference: Any) -> None:
        """Receive the result of a call; one of an earlier scheduler, which did not need it, is ignored."""
        call = self._calls.pop(reference)
        self._workers[call.worker].last_seen = time.monotonic()
        try:
            with original_errors():
                answer = ray.get(reference)
        except RayError as error:
            self._replace(call, error)
            return
        except DistSummaryError:
            raise
        except Exception as error:
            # Any error is possible, since it is the user's code.
            if call.scheduler is None:
                raise LandscapeError(f"{raised(error)} {self._beginning}") from error
            raise ChunkFailedError(call.chunks[0], error) from error
        if call.scheduler is None:
            self.begun[call.worker] = answer
        else:
            # Results show that workers can work, so earlier deaths no longer count.
            self._has_results = True
            self._deaths.clear()
        if call.scheduler is self._scheduler:
            # The answer may end before a chunk that raises an error. Asked for the rest, the worker raises
            # this error.
            for chunk, result in zip(call.chunks, answer, strict=False):
                self._keep(call.worker, chunk, result)
            if rest := call.chunks[len(answer) :]:
                self._ask(call.worker, rest)
        self._feed([call.worker])

    def _replace(self, call: _Call, error: RayError) -> None:
        """Return the chunks of a dead worker to the scheduler, and start another worker in its place."""
        worker, how = call.worker, how_it_died(error)
        calls = [call, *(other for other in self._calls.values() if other.worker == worker)]
        options = self._drop(worker)
        self._scheduler.lost(worker, was_at_it=all(one.scheduler is self._scheduler for one in calls))
        self._deaths.append(how)
        if are_too_many(self._deaths, self._count, self._max_deaths):
            count = len(self._deaths)
            many = f"{count} {self._name} workers died one after the other without a result"
            who = many if count > 1 else f"the {self._name} worker died"
            raise LandscapeError(f"{who} ({how}); {self._remedy}") from error
        _log.warning("%s %s died (%s); other workers do its work again", self._name, worker, how)
        self._start(options)
        self._feed(list(self._workers))

    def _drop(self, worker: str) -> dict[str, float]:
        """Kill a worker and forget its calls; returns the resources that it had."""
        self._calls = {ref: call for ref, call in self._calls.items() if call.worker != worker}
        dropped = self._workers.pop(worker)
        ray.kill(dropped.actor, no_restart=True)
        return dropped.options

    def _look_after_workers(self) -> None:
        """Report silent workers; if none finds enough resources to start, start one that reserves none."""
        now = time.monotonic()
        unknown = {one.place: one for one in self._workers.values() if not one.has_started}
        for place in ray.wait(list(unknown), num_returns=len(unknown), timeout=0)[0] if unknown else ():
            unknown[place].has_started = True
        self._report_silent(now)
        # If they all die, wait that long again: other programs may take their resources.
        if any(one.has_started for one in self._workers.values()):
            self._patience_ends = now + self._times.start_s
            return
        if now < self._patience_ends:
            return
        self._patience_ends = float("inf")
        # Start a worker that reserves no resources and computes on the CPU. But if GPUs computed the results
        # so far, wait for a GPU: all results of a crew must come from the same kind of hardware.
        on_gpus = [worker for worker, one in self._workers.items() if one.options.get("num_gpus")]
        if on_gpus and self._has_results:
            _log.warning(
                "no %s worker got its GPU in %g s; still waiting for a GPU, because GPUs computed the "
                "finished points and CPUs round differently; free a GPU, or stop this call: if it has "
                "run_dir=, repeating it later keeps the finished points",
                self._name,
                self._times.start_s,
            )
            return
        text = "no %s worker started in %g s; starting one on the CPU, for which Ray reserves no resources"
        _log.warning(text, self._name, self._times.start_s)
        for worker in on_gpus:
            self._drop(worker)
        if on_gpus:
            self._forgo()
        self._start(UNRESERVED)

    def _report_silent(self, now: float) -> None:
        """Report workers that have not answered a call for too long; the next report takes twice as long."""
        busy = {call.worker for call in self._calls.values()}
        for worker, one in self._workers.items():
            # Waiting for a call is not silence, nor is waiting for resources, perhaps for hours.
            if worker not in busy or not one.has_started:
                one.last_seen = now
        seconds = {worker: now - one.last_seen for worker, one in self._workers.items()}
        silent = {worker: s for worker, s in seconds.items() if s >= self._silent_s}
        then = ": another takes its place" if self._max_deaths > 1 else ""
        for worker, silent_s in silent.items():
            # If the worker has died, the results of its calls will show that.
            with suppress(RayError):
                place = ray.get(self._workers[worker].place)
                text = "%s %s (process %s) has not answered for %.0f s; if it hangs, kill that process%s"
                _log.warning(text, self._name, worker, place, silent_s, then)
        if silent:
            self._silent_s = 2 * max(silent.values())

    def _grow(self) -> None:
        """Add workers for resources that have become free, of the kinds (GPU, CPU) that the crew uses."""
        now = time.monotonic()
        is_starting = not self._workers.keys() <= self.begun.keys()
        if self._more is None or now < self._grows_at or is_starting:
            return
        self._grows_at = now + self._times.grow_s
        on_gpus = {"num_gpus" in worker.options for worker in self._workers.values()}
        for options in self._more(self._scheduler.waiting):
            if ("num_gpus" in options) in on_gpus:
                self._start(options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the actors; their state is not needed."""
        end_actors((worker.actor, worker.options) for worker in self._workers.values())
        calls = list(self._calls)
        self._workers.clear()
        self._calls.clear()
        # Ray would print the errors of the killed actors if they were not read.
        for call in ray.wait(calls, num_returns=len(calls), timeout=READ_S)[0] if calls else ():
            with suppress(RayError):
                ray.get(call)


@contextmanager
def original_errors() -> Iterator[None]:
    """Replace Ray's error in the block by the error that the worker raised; Ray's error becomes its cause.

    Ray's error has the worker's traceback. An error that cannot be unpickled becomes a RuntimeError that
    quotes it. A RayError that leaves the block means that the worker's process failed.
    """
    try:
        yield
    except UnserializableException as error:
        # The error's own line and its notes come after the traceback, whose lines are indented.
        lines = str(error).strip().splitlines()
        behind = 1 + max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1)
        line, *notes = lines[behind:] or lines[-1:]
        quoted = RuntimeError(line)
        for note in notes:
            quoted.add_note(note)
        raise quoted from error
    except RayTaskError as error:
        if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
            raise error.cause from error
        raise RuntimeError(str(error.cause)) from error


def are_too_many(deaths: Sequence[str], workers: int, limit: int = MAX_DEATHS) -> bool:
    """Whether there are `limit` deaths, or all workers failed to begin in the same way (at least two did).

    `deaths`: how workers died since the last result, in a few words that begin with NOT_BEGUN if the worker
    could not begin. `workers`: how many there are.
    """
    end_alike = len(set(deaths)) == 1 and deaths[0].startswith(NOT_BEGUN)
    return len(deaths) >= (min(max(2, workers), limit) if end_alike else limit)


def how_it_died(error: RayError) -> str:
    """How a worker died, in a few words; Ray's whole message is logged at level DEBUG."""
    _log.debug("a worker died: %s", error)
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    # A failed import, for example; the last line is its error.
    if lines and IN_CREATION in lines[0]:
        return f"{NOT_BEGUN}{lines[-1].strip()}"[:SHOWN]
    said = next((line for line in lines if line != ActorDiedError.BASE_ERROR_MSG), type(error).__name__)
    return said.rpartition("exit detail: ")[2].partition(". ")[0].rstrip(".")[:SHOWN]
