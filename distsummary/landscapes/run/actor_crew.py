"""A crew: Ray actors, one in each slot, that share the chunks of a scheduler. A dead one is made again."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import ray
from ray.exceptions import (
    ActorDiedError,
    RayError,
    RaySystemError,
    RayTaskError,
)

from distsummary.base.actor_calls import Beginnings, why_not_begun
from distsummary.base.actor_private import quoted_error
from distsummary.base.guard import guarded_log
from distsummary.errors import DistSummaryError, LandscapeError
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.run.actor_process import WorkerProcess
from distsummary.landscapes.run.scheduler import CallPoints, Keep, Scheduler
from distsummary.landscapes.run.worker_failures import ChunkFailedError, raised

MAX_DEATHS = 3  # of the actors of a slot, without a finished chunk between them
GROW_S = 10.0  # between two counts of the slots that have become free
SILENT_S = 60.0  # a worker is reported after this silence, again after twice as long, and so on
WAIT_S = 1.0  # the longest wait for an answer before these times are looked at
READ_S = 1.0  # limit for reading the results of killed actors' calls, which fail within milliseconds
RETURN_S = 5.0  # limit of the wait for killed actors' resources: other programs may have taken them
RETURN_POLL_S = 0.02
SHARE = 1e-3  # of a GPU or CPU: sums of shares such as 0.1 are not exact
SHOWN = 120  # characters of Ray's message that are shown
IN_CREATION = "error raised in its creation task"  # part of Ray's message, for example if an import failed
RESOURCES = {"num_cpus": "CPU", "num_gpus": "GPU"}  # actor option -> Ray's name of the resource
LOOK = (
    "check that there is enough memory for them and that they can import the model's code "
    "(runtime_env of ray.init), or use workers=0"
)

_log = guarded_log(__name__)


@dataclass(slots=True)
class _Slot:
    """A place for a worker and the actor that is in it now.

    `options`: its resources as Ray's actor options. `place`: a reference to the text of
    `WorkerProcess.place`. `deaths`: of its actors, since one finished a chunk.
    """

    options: dict[str, float]
    actor: Any
    place: Any
    deaths: int = 0
    has_process: bool = False
    has_begun: bool = False
    last_seen: float = field(default_factory=time.monotonic)  # or last without a call
    patience_s: float = field(default_factory=lambda: SILENT_S)  # the silence that is reported next


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a worker's method that has not been answered.

    `scheduler` is the one that the chunks belong to; None if the method is `begin`.
    """

    worker: str
    chunks: Sequence[Chunk] = ()
    scheduler: Scheduler | None = None


class ActorCrew:
    """Workers of the class `kind` in actors. A context manager that kills them on exit.

    Implements `runner.Crew`, except that `begun` holds whatever `kind.begin` returns. A worker's name is that
    of its slot. DistSummaryErrors of a worker are raised unchanged, and other errors in `begin` as
    LandscapeError.

    An actor that dies is made again in its slot; the third death without a finished chunk ends the slot.
    LandscapeError, with `remedy`, is raised when the last slot has ended, and when no actor has a process
    for as long as `Beginnings` allows.

    Args:
        kind: see `WorkerProcess`. `work` returns the results of the chunks before the first that raises, and
            raises only if that is the first one.
        arguments: of `kind`, or references to them.
        resources: for each slot, its resources as Ray's actor options.
        name: the name of the crew in messages.
        beginning: the last words of messages about errors in `begin`, such as `worker_failures.OPENING`.
        more: given the number of waiting points, returns the resources of each slot that is free now; None:
            no slots are added.
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
        remedy: str = LOOK,
    ) -> None:
        self._kind, self._arguments, self._name, self._beginning = kind, arguments, name, beginning
        self._more, self._remedy = more, remedy
        self.names: list[str] = []  # of all slots, also those that have ended
        self.begun: dict[str, Any] = {}  # worker -> what its `begin` returned
        self._slots: dict[str, _Slot] = {}
        self._calls: dict[Any, _Call] = {}  # calls in progress, by reference
        self._beginnings, self._last_count = Beginnings(), time.monotonic()
        for options in resources:
            self._add_slot(options)

    def begin(self) -> Any:
        """Wait until a worker has begun; returns what its `begin` returned."""
        self.run(Scheduler([]), lambda _: 1, lambda *_: None)
        return next(iter(self.begun.values()))

    def run(self, scheduler: Scheduler, points: CallPoints, keep: Keep, *sent: Any) -> None:
        """See `runner.Crew`; `sent` are further arguments of `kind.work`."""
        self._scheduler, self._points, self._keep, self._sent = scheduler, points, keep, sent
        self._feed(list(self._slots))
        while not (scheduler.is_finished and self.begun):
            ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=WAIT_S)
            for reference in ready:
                self._take(reference)
            now = time.monotonic()
            self._check_processes()
            self._report_silent(now)
            self._grow(now)

    def _add_slot(self, options: dict[str, float]) -> None:
        self.names.append(f"worker-{len(self.names)}")
        self._fill(self.names[-1], options)

    def _fill(self, worker: str, options: dict[str, float], deaths: int = 0) -> None:
        """Put an actor into a slot, ask for the place where it runs, and call its `begin`."""
        # "DEFAULT" keeps the actor out of a placement group that captures child actors: the group's bundles
        # were reserved for other work and may be full.
        process = ray.remote(WorkerProcess).options(**options, max_restarts=0, scheduling_strategy="DEFAULT")
        actor = process.remote()
        self._slots[worker] = _Slot(options, actor, actor.place.remote(), deaths)
        began = actor.begin.remote(self._kind, *self._arguments, gpus=options.get("num_gpus", 0.0))
        self._calls[began] = _Call(worker)

    def _feed(self, workers: Iterable[str]) -> None:
        """Give each worker that has begun its calls; all get a first call before a second one."""
        asked = Counter(call.worker for call in self._calls.values())
        for depth in range(1, self._scheduler.in_flight + 1):
            for worker in workers:
                if self._slots[worker].has_begun and asked[worker] < depth:
                    points = self._points(len(self._slots))
                    if chunks := self._scheduler.next_chunks(worker, points):
                        self._ask(worker, chunks)

    def _ask(self, worker: str, chunks: Sequence[Chunk]) -> None:
        reference = self._slots[worker].actor.work.remote(chunks, *self._sent)
        self._calls[reference] = _Call(worker, chunks, self._scheduler)

    def _take(self, reference: Any) -> None:
        """Receive the result of a call; one of an earlier scheduler, which did not need it, is ignored."""
        call = self._calls.pop(reference)
        slot = self._slots[call.worker]
        slot.last_seen = time.monotonic()
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
            self.begun[call.worker], slot.has_begun = answer, True
        else:
            slot.deaths = 0
        if call.scheduler is self._scheduler:
            # The answer may end before a chunk that raises an error. Asked for the rest, the worker raises
            # this error.
            for chunk, result in zip(call.chunks, answer, strict=False):
                self._keep(call.worker, chunk, result)
            if rest := call.chunks[len(answer) :]:
                self._ask(call.worker, rest)
        self._feed([call.worker])

    def _replace(self, call: _Call, error: RayError) -> None:
        """Return the chunks of a dead worker to the scheduler, and fill its slot again or end it."""
        worker, slot = call.worker, self._slots.pop(call.worker)
        calls = [call, *(other for other in self._calls.values() if other.worker == worker)]
        self._calls = {ref: call for ref, call in self._calls.items() if call.worker != worker}
        ray.kill(slot.actor, no_restart=True)
        was_at_it = all(one.scheduler is self._scheduler for one in calls)
        # A death that shows which chunk kills workers counts against this chunk.
        slot.deaths += not self._scheduler.lost(worker, was_at_it=was_at_it)
        how = how_it_died(error)
        if slot.deaths < MAX_DEATHS:
            _log.warning("%s %s died (%s); its work is done again", self._name, worker, how)
            self._fill(worker, slot.options, slot.deaths)
        elif self._slots:
            text = "%s %s died %d times without a result (%s); the others do its work"
            _log.warning(text, self._name, worker, slot.deaths, how)
        else:
            who = f"the {self._name} worker" if len(self.names) == 1 else f"each of the {self._name} workers"
            raise LandscapeError(
                f"{who} died {slot.deaths} times without a result ({how}); {self._remedy}"
            ) from error
        self._feed(list(self._slots))

    def _check_processes(self) -> None:
        """Raise LandscapeError if no actor has had a process for so long that none may ever begin."""
        starting = {slot.place: slot for slot in self._slots.values() if not slot.has_process}
        for place in ray.wait(list(starting), num_returns=len(starting), timeout=0)[0] if starting else ():
            starting[place].has_process = True
        if any(slot.has_process for slot in self._slots.values()):
            self._beginnings.note()
            return
        if (limit_s := self._beginnings.limit_s()) is None:
            return
        options = next(iter(self._slots.values())).options
        why = why_not_begun({name: options.get(option, 0) for option, name in RESOURCES.items()})
        raise LandscapeError(f"no {self._name} worker began within {limit_s:g} s: {why}; {self._remedy}")

    def _report_silent(self, now: float) -> None:
        """Report workers that have not answered a call for too long; the next report takes twice as long."""
        busy = {call.worker for call in self._calls.values()}
        for worker, slot in self._slots.items():
            # Waiting for a call is not silence, nor is waiting for resources, perhaps for hours.
            if worker not in busy or not slot.has_process:
                slot.last_seen = now
            if now - slot.last_seen < slot.patience_s:
                continue
            slot.patience_s = 2 * (now - slot.last_seen)
            text = (
                "%s %s (process %s) has not answered for %.0f s; if it hangs, kill that process: another "
                "takes its place"
            )
            # If the worker has died, the results of its calls will show that.
            with suppress(RayError):
                _log.warning(text, self._name, worker, ray.get(slot.place), now - slot.last_seen)

    def _grow(self, now: float) -> None:
        """Add slots for resources that have become free, of the kinds (GPU, CPU) that the crew uses."""
        is_starting = not all(slot.has_begun for slot in self._slots.values())
        if self._more is None or now - self._last_count < GROW_S or is_starting:
            return
        self._last_count = now
        on_gpus = {"num_gpus" in slot.options for slot in self._slots.values()}
        found = [
            options for options in self._more(self._scheduler.waiting) if ("num_gpus" in options) in on_gpus
        ]
        # The resources of slots that have ended are free, too.
        for options in found[len(self.names) - len(self._slots) :]:
            self._add_slot(options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the actors, whose state is not needed, and wait until Ray counts their resources as free.

        The next crew of this process can then have them.
        """
        slots, calls = list(self._slots.values()), list(self._calls)
        self._slots.clear()
        self._calls.clear()
        try:
            free, whole = ray.available_resources(), ray.cluster_resources()
        finally:
            # Actors are killed even if another Ctrl-C interrupts the line above.
            for slot in slots:
                ray.kill(slot.actor, no_restart=True)
        # Ray would print the errors of the killed actors if they were not read.
        for call in ray.wait(calls, num_returns=len(calls), timeout=READ_S)[0] if calls else ():
            with suppress(RayError):
                ray.get(call)
        until, wanted = time.monotonic() + RETURN_S, dict[str, float]()
        for option, name in RESOURCES.items():
            # Not more than the cluster has: some actors may never have received their resources.
            if held := sum(slot.options.get(option, 0) for slot in slots):
                wanted[name] = min(free.get(name, 0) + held, whole.get(name, 0)) - SHARE
        while any(ray.available_resources().get(name, 0) < amount for name, amount in wanted.items()):
            if time.monotonic() > until:
                return
            time.sleep(RETURN_POLL_S)


@contextmanager
def original_errors() -> Iterator[None]:
    """Replace Ray's error in the block by the error that the worker raised; Ray's error becomes its cause.

    Ray's error has the worker's traceback. An error that cannot be unpickled becomes a RuntimeError that
    quotes it. A RayError that leaves the block means that the worker's process failed.
    """
    try:
        yield
    except RayTaskError as error:
        # The process could not unpickle what it was sent.
        if isinstance(error.cause, RaySystemError):
            raise error.cause from error
        if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
            raise error.cause from error
        raise RuntimeError(str(error.cause)) from error
    except RayError as error:
        text = quoted_error(error)
        if text is None:
            raise
        # The error's own line and its notes come after the traceback, whose lines are indented.
        lines = text.strip().splitlines()
        behind = 1 + max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1)
        line, *notes = lines[behind:] or lines[-1:]
        quoted = RuntimeError(line)
        for note in notes:
            quoted.add_note(note)
        raise quoted from error


def how_it_died(error: RayError) -> str:
    """How a worker died, in a few words; Ray's whole message is logged at level DEBUG."""
    _log.debug("a worker died: %s", error)
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    # A failed import, for example; the last line is its error.
    if lines and IN_CREATION in lines[0]:
        return lines[-1].strip()[:SHOWN]
    said = next((line for line in lines if line != ActorDiedError.BASE_ERROR_MSG), type(error).__name__)
    return said.rpartition("exit detail: ")[2].partition(". ")[0].rstrip(".")[:SHOWN]
