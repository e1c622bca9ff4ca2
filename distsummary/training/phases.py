"""Phases: divides each step of a training loop into phases, and measures what the loop's thread does in each.

The wall time of a phase has three parts: the thread ran (CPU), it was ready but the host ran something else
(run queue), or it was blocked: by the loader, a disk, the device or other ranks.
"""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from threading import get_ident, get_native_id
from typing import NamedTuple

from distsummary.format.records import PHASE_TAGS
from distsummary.training.callbacks import CallbackParams

DATA = "data"  # from requesting a batch until it is there
FORWARD = "forward"  # from then until the first gradient, with the loss
BACKWARD = "backward"  # until the last gradient
WAIT = "wait"  # until the call of backward returns: waiting for the gradients of other ranks
OPTIMIZER = "optimizer"
PYTHON = "python"  # pauses of the garbage collector, in whatever phase they fall
RECORDING = "recording"  # callbacks
CHECKPOINT = "checkpoint"
EVALUATION = "evaluation"
REST = "rest"  # everything else: of a loop without torch, its whole body
PHASES = (DATA, FORWARD, BACKWARD, WAIT, OPTIMIZER, PYTHON, RECORDING, CHECKPOINT, EVALUATION, REST)
MEASURES = ("cpu_ms", "blocked_ms", "queue_ms")
TAGS = {phase: tuple(f"{PHASE_TAGS}{phase}/{measure}" for measure in MEASURES) for phase in PHASES}
COMPUTING = (FORWARD, BACKWARD, OPTIMIZER, REST)
SHARED = {phase: f"{PHASE_TAGS}{phase}/wait_ms" for phase in COMPUTING}  # blocked, maybe by other ranks
OWN_MS = "perf/own_ms"  # what the thread did by itself: CPU and blocked time of all phases but WAIT
WAIT_MS = "perf/wait_ms"
STEP_PHASES = (*(tag for tags in TAGS.values() for tag in tags), *SHARED.values(), OWN_MS, WAIT_MS)


class Clocks(NamedTuple):
    """Readings of the thread's clocks, in seconds: wall time, CPU time, and time in the run queue."""

    wall: float
    cpu: float
    queue: float


class ThreadClocks:
    """Reads the clocks of the thread that made it; without Linux's schedstat, the run queue's time is 0."""

    def __init__(self) -> None:
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(f"/proc/self/task/{get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> Clocks:
        """Read them; takes about 3 us."""
        queue = 0.0
        if self._file >= 0:
            try:
                queue = 1e-9 * int(os.pread(self._file, 64, 0).split(b" ", 2)[1])
            except (OSError, IndexError, ValueError):  # the thread is gone, or the kernel keeps no statistics
                self.close()
        return Clocks(time.perf_counter(), time.thread_time(), queue)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Phases:
    """Measures the phases of one thread's steps; calls from other threads are ignored.

    Args:
        clocks: reads the thread's clocks.
    """

    def __init__(self, clocks: Callable[[], Clocks] | None = None) -> None:
        self._own = ThreadClocks() if clocks is None else None
        self._clocks: Callable[[], Clocks] = clocks or self._own  # type: ignore[assignment]
        self._thread = get_ident()
        self._pid = os.getpid()
        self.current = REST
        self._last = self._clocks()
        self._spent: dict[str, list[float]] = {}
        # Whether the thread may wait for other ranks, or for the device, while it computes: then blocked time
        # of these phases says nothing about the rank.
        self.is_computing_shared = False
        self._interrupted: str | None = None  # the phase in which garbage is being collected
        gc.callbacks.append(self._collect)

    def enter(self, phase: str) -> None:
        """The current phase ends, and `phase` begins."""
        if get_ident() != self._thread:
            return
        if self._interrupted is not None:  # a finalizer, called by the garbage collector
            self._interrupted = phase
            return
        if phase != self.current:
            self._account()
            self.current = phase

    @contextlib.contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """`phase`, and afterwards again the phase that it interrupts."""
        before = self.current
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def take(self) -> dict[str, float]:
        """The milliseconds since the last call, by tag: of each phase, OWN_MS, WAIT_MS. The phase goes on."""
        self._account()
        spent, self._spent = self._spent, {}
        found: dict[str, float] = {}
        own = waited = 0.0
        for phase, (wall, cpu, queue) in spent.items():
            cpu_tag, blocked_tag, queue_tag = TAGS[phase]
            blocked = max(wall - cpu - queue, 0.0)
            found[cpu_tag], found[blocked_tag], found[queue_tag] = 1e3 * cpu, 1e3 * blocked, 1e3 * queue
            if phase == WAIT:
                waited += wall
            elif self.is_computing_shared and phase in SHARED:
                del found[blocked_tag]
                found[SHARED[phase]] = 1e3 * blocked
                own += cpu
                waited += blocked
            else:
                own += cpu + blocked
        found[OWN_MS], found[WAIT_MS] = 1e3 * own, 1e3 * waited
        return found

    def close(self) -> None:
        """Stop measuring."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collect)
        if self._own is not None:
            self._own.close()

    def _account(self) -> None:
        """Add the time since the last call to the current phase."""
        last, now = self._last, self._clocks()
        self._last = now
        spent = self._spent.get(self.current)
        if spent is None:
            self._spent[self.current] = [now.wall - last.wall, now.cpu - last.cpu, now.queue - last.queue]
        else:
            spent[0] += now.wall - last.wall
            spent[1] += now.cpu - last.cpu
            spent[2] += now.queue - last.queue

    def _collect(self, moment: str, info: object) -> None:
        if get_ident() != self._thread or os.getpid() != self._pid:
            return
        if moment == "start":
            before = self.current
            self.enter(PYTHON)
            self._interrupted = before
        elif self._interrupted is not None:
            before, self._interrupted = self._interrupted, None
            self.enter(before)


def in_phase(params: CallbackParams, phase: str) -> contextlib.AbstractContextManager[None]:
    """A context manager for what a callback does in a phase of its own, if the run measures phases."""
    phases = params.get("phases")
    return contextlib.nullcontext() if phases is None else phases.within(phase)
