"""Phases: divides each step of a training loop into phases, and measures what the loop's thread does in each.

The wall time of a phase has three parts: the thread ran (CPU), it was ready but the host ran something else
(run queue), or it was blocked: by the loader, a disk, the device or other ranks. Of a model on a device,
whose work the thread only queues, the device's time decides how long the computing phases took.
"""

import contextlib
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident, get_native_id
from typing import TYPE_CHECKING, Any

from distsummary.base.guard import Counts, Guard, guarded
from distsummary.diagnosis.measured_steps import counted_in, is_measured
from distsummary.format.own_tags import EVERY, LOADER_IDLE, OWN_MS, PHASE_TAGS, WAIT_MS
from distsummary.training.timing.affordable import affordable_every
from distsummary.training.timing.loader_use import LoaderUse
from distsummary.training.timing.worker_queues import WorkerQueues

if TYPE_CHECKING:
    from distsummary.training.timing.device_times import DeviceTimes

DATA = "data"  # from requesting a batch until it is there
FORWARD = "forward"  # from then until the first gradient, with the loss
BACKWARD = "backward"  # until the last gradient
WAIT = "wait"  # for other ranks: in collectives, whatever phase they interrupt, and until backward returns
OPTIMIZER = "optimizer"
PYTHON = "python"  # pauses of the garbage collector, in whatever phase they fall
RECORDING = "recording"  # callbacks, and copies of arrays that are recorded
CHECKPOINT = "checkpoint"
EVALUATION = "evaluation"
REST = "rest"  # everything else: of a loop without torch, its whole body
PHASES = (DATA, FORWARD, BACKWARD, WAIT, OPTIMIZER, PYTHON, RECORDING, CHECKPOINT, EVALUATION, REST)
MEASURES = ("cpu_ms", "blocked_ms", "queue_ms")
TAGS = {phase: tuple(f"{PHASE_TAGS}{phase}/{measure}" for measure in MEASURES) for phase in PHASES}
SHORT_S = 20e-6  # a phase that has the thread wait for no longer than this is not looked at more closely
COMPUTING = (FORWARD, BACKWARD, OPTIMIZER, REST)
ON_DEVICE = (*COMPUTING, WAIT)
_NOTHING = (0.0, 0.0, 0.0)
STEP_PHASES = (
    *(tag for tags in TAGS.values() for tag in tags),
    *(OWN_MS, WAIT_MS, EVERY, LOADER_IDLE),
)
UNKNOWN = ""  # the phase of a step that is not marked, where only hooks of torch could report it
FIRST_MEASURED = 16  # the first steps, which are all marked, to know what it costs
MEASURED = 64  # marked steps after which it is looked again how long a step takes, and what marks cost
SKIPPED = 8  # the first of all; at the beginning caches are filled
SHARE = 0.01  # of the time, what marks may cost on average
AROUND_S = 90e-6  # what marks cost besides what is measured of them: torch's hooks, and to set them
IDLE_S = 6e-6  # what each step costs once not all are marked; mostly rows of other tags, see `Phases.take`
MAX_EVERY = 64
LOOP = 4  # a loop has at least so many marked steps for each one that is marked as it follows a loop
# It is looked at before that if all steps since so many marked ones took so many times as long on average.
EARLY, SLOWER = 8, 2.0
READINGS = 3  # of clocks that were not read together, at most
STARVED_KEPT = 0.9  # of what workers waited, after each step: batches are loaded ahead
STEADY = 1.25  # a step must be so many times longer than needed before more steps are marked again


class ThreadClocks:
    """The clocks of the thread that made it, in seconds; without Linux's schedstat, its run queue has 0.

    A copy has a file of its own: the number of one that was closed may be that of a file of the user.
    """

    def __init__(self) -> None:
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(f"/proc/self/task/{get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self.wall, self.cpu = time.perf_counter, time.thread_time

    def queue(self) -> float:
        """How long the thread has been ready while the host ran something else; takes 2 us."""
        if self._file < 0:
            return 0.0
        try:
            return 1e-9 * int(os.pread(self._file, 64, 0).split(b" ", 2)[1])
        except (OSError, IndexError, ValueError):
            # The thread has ended, or the kernel keeps no statistics.
            self.close()
            return 0.0

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __reduce__(self) -> Any:
        return ThreadClocks, ()


class Phases:
    """Measures the phases of one thread's steps; calls from other threads are ignored.

    Marks of a step take about 160 us. Of short steps only one in `every`, a power of two, is marked, so that
    marks take SHARE of the time. At other steps `current` is still reported, as far as it costs nothing.

    What fails here is counted; the step in which it fails is not measured, the next one is.

    It has many attributes because every mark is a look-up in the loop's own time: in one object, without a
    call to another one.

    Args:
        clocks: those of the thread; by default the real ones.
        failures: returns what counts failures; by default they are logged.
        workers: the run queues of the processes that load its batches; by default the real ones.

    Attributes:
        on_marked: called when marked steps begin (True) and end (False), between two steps.
        on_backward: called at the end of each backward pass.
        on_failure: called with what cannot be measured, and why.
    """

    def __init__(
        self,
        clocks: ThreadClocks | None = None,
        failures: Callable[[], Counts] | None = None,
        workers: WorkerQueues | None = None,
    ) -> None:
        self.failures = failures
        self._own_guard = Guard(failures, self.drop_step)
        self._clocks = clocks or ThreadClocks()
        self._wall, self._cpu = self._clocks.wall, self._clocks.cpu
        self._thread = get_ident()
        self._pid = os.getpid()
        self.current = REST
        self.is_in_loop = False  # whether a loop over steps runs; outside of one, no step is late
        self._wall_s, self._cpu_s, self._queue_s = self._wall(), self._cpu(), self._clocks.queue()
        self._spent: dict[str, list[float]] = {}
        # Whether the thread may wait for other ranks, or for the device, while it computes, and nothing shows
        # when: then blocked time of these phases is waiting.
        self.is_computing_shared = False
        self._waits = 0  # pending calls, each within the other, which may wait for other ranks
        self._asked_s: tuple[float, float] | None = None  # wall and CPU when the outermost one began
        self._is_waiting = False  # what is accounted now was waiting in it
        self._on_device = ""  # the device's phase that it interrupts
        self.is_in_backward = False
        self.is_backward_shared = False  # DDP waits in the next backward pass, or in this one, as it proceeds
        self.shared_models: set[int] = set()  # that DDP has made ready for a backward pass
        self._before = REST  # the phase in which that one began
        self.on_backward: Callable[[], None] = lambda: None
        self.device: DeviceTimes | None = None  # then "blocked" is how much longer the device computed
        self._workers, self.loader = workers or WorkerQueues(), LoaderUse()
        self._starved_s: dict[int, float] = {}  # how long workers waited, as far as no batch was late for it
        self._interrupted: str | None = None  # the phase in which garbage is being collected
        self.every, self.is_marked = 1, True
        self._counted = 0  # what is added to the number of a step before it is chosen whether it is marked
        self._after_loop = 0  # the newest step that is marked as it is the first after a loop
        self.on_marked: Callable[[bool], None] = lambda is_marked: None
        self.on_failure: Callable[[str], None] = lambda reason: None
        self._is_weighed, self._cost_s = True, 0.0  # what it costs is measured; the CPU time in this step
        self._costs_s: list[float] = []
        # Since the last choice, from each marked step to the next one: how many steps, and how long they took
        # without the run queue. The next choice is after so many marked ones; the sums of those before.
        self._took: list[tuple[int, float]] = []
        self._marks, self._next_choice = 0, FIRST_MEASURED
        self._past_steps = self._past_s = 0.0
        self._newest = 0, 0.0  # the last marked step, and the time at its end
        self._chosen_s = self._mark_s = 0.0  # how long a step and a mark took when it was chosen
        gc.callbacks.append(self._collect)

    def drop_step(self) -> None:
        """After a failure: this step is not measured, the next one is."""
        self._interrupted, self._spent = None, {}
        self._waits, self._asked_s = 0, None
        self.is_marked, self.current = False, REST

    @guarded()
    def enter(self, phase: str) -> None:
        """The current phase ends, and `phase` begins."""
        if get_ident() != self._thread:
            return
        # A finalizer may call this while garbage is collected: its phase begins when the collection is over.
        if self._interrupted is not None:
            self._interrupted = phase
            return
        if not self.is_marked:
            self.current = UNKNOWN if phase == FORWARD else phase
        elif phase != self.current:
            self._account()
            # The phase is unknown if `within` began in a step that was not marked.
            self.current = phase = phase or REST
            if self.device is not None:
                self.device.enter(phase)

    @contextlib.contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """`phase`, and afterwards again the phase that it interrupts."""
        before = self.current
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def begin_wait(self) -> None:
        """The loop's thread calls what may wait for other ranks; `current` stays as it is."""
        self._waits += 1
        if self._waits > 1 or not self.is_marked:
            return
        wall, cpu = self._wall(), self._cpu()
        # Time for which the thread was blocked before this call belongs to the current phase.
        if wall - self._wall_s - (cpu - self._cpu_s) > SHORT_S:
            self._account()
            wall, cpu = self._wall_s, self._cpu_s
        self._asked_s = wall, cpu
        if self.device is not None:
            self._on_device = self.device.current
            self.device.enter(WAIT)

    def end_wait(self) -> None:
        """The call returns; one that took no longer than SHORT_S has not waited."""
        # The count is 0 already if the step was dropped during the call.
        self._waits = max(0, self._waits - 1)
        if self._waits or self._asked_s is None:
            return
        (wall, cpu), self._asked_s = self._asked_s, None
        if self.device is not None:
            self.device.enter(self._on_device)
        if self._wall() - wall <= SHORT_S:
            return
        # The time until the call began belongs to the current phase, and only the rest is waiting.
        self._add(wall - self._wall_s, cpu - self._cpu_s, 0.0)
        self._wall_s, self._cpu_s = wall, cpu
        self._is_waiting = True
        self._account()
        self._is_waiting = False

    def begin_backward(self) -> None:
        """A backward pass of any model begins; passes within it, as of checkpoints, are a part of it."""
        self._before, self.is_in_backward = self.current, True
        # Of several models, such as those of a GAN, one is ready before the backward pass of another ends.
        if len(self.shared_models) > 1:
            self.is_backward_shared = True
        self.enter(BACKWARD)

    @property
    def waits_after_gradients(self) -> bool:
        """Whether it is marked that this backward pass waits for other ranks at its end alone."""
        return (
            self.is_marked
            and self.is_backward_shared
            and not self.is_computing_shared
            and self.device is None
        )

    def begin_gradients(self) -> None:
        """Until `end_gradients`, the backward pass waits for no other rank."""
        self.is_backward_shared = False

    def end_gradients(self) -> None:
        """All gradients are there: from now on, blocked time of this backward pass is waiting."""
        if self.is_marked and self.is_in_backward and get_ident() == self._thread:
            self._account()
            self.is_backward_shared = True

    def end_backward(self) -> None:
        """It has ended, or failed."""
        before = self._before
        self.enter(REST if before in (FORWARD, BACKWARD, WAIT, UNKNOWN) else before)
        self.is_in_backward = self.is_backward_shared = False
        self.on_backward()

    @guarded()
    def begin_step(self, step: int) -> None:
        """A step begins, which is marked or not."""
        is_marked = is_measured(step + self._counted, self.every) or step == self._after_loop
        if is_marked and not self.is_marked:
            self._mark()
        elif self.is_marked and not is_marked:
            self.is_marked = False
            self.on_marked(False)

    def begin_epoch(self, number: int, step: int) -> None:
        """An epoch began with this step: the next ones are chosen by their place in it, see `counted_in`."""
        self._counted = counted_in(number, 1 - step)

    @guarded()
    def end_loop(self, step: int) -> None:
        """A loop ends with this step.

        What follows, such as an evaluation, is a part of the next step, which is marked, as it may be long:
        after loops of some steps only, so that marks take little more time.
        """
        if step >= self._after_loop + LOOP * self.every:
            self._after_loop = step + 1
            if not self.is_marked:
                self._mark()
        self.enter(REST)
        self.loader.end()
        self.is_in_loop = False

    def _mark(self) -> None:
        # Garbage may be collected at any point below: until the phase is a real one and its clocks have been
        # read, the step is not marked.
        self.on_marked(True)
        self.current = RECORDING
        self._wall_s, self._cpu_s, self._queue_s = self._wall(), self._cpu(), self._clocks.queue()
        if self.device is not None:
            self.device.begin(RECORDING)
        self.is_marked = True

    @guarded()
    def end_step(self, step: int) -> dict[str, float]:
        """A step ends; returns what `take` does, if it is marked. RECORDING begins, as a part of the next."""
        found: dict[str, float] = {}
        if self.is_marked:
            found = self.take(RECORDING)
            (last, then_s), now_s = self._newest, self._wall_s - self._queue_s
            self._newest = step, now_s
            # One that is marked whenever it follows a loop stands for itself alone.
            if step != self._after_loop:
                self._choose(max(0, step - last), now_s - then_s)
                if self.every > 1:
                    found[EVERY] = float(self.every)
        self.begin_step(step + 1)
        self.current = RECORDING
        return found

    def _choose(self, steps: int, took_s: float) -> None:
        """Choose which steps are marked from now on, at times: by how long a step takes on average.

        All count, marked or not: if a few take so long that they are a good part of the time, more can be
        marked, and the next ones of these are found.

        Args:
            steps: since the last marked one, with this one. took_s: these, without the run queue.
        """
        # The cost of marks is measured in the first steps after each choice.
        if self._is_weighed:
            self._costs_s.append(self._cost_s)
            self._cost_s = 0.0
            self._is_weighed = len(self._costs_s) < FIRST_MEASURED
        self._marks += 1
        if self._chosen_s or self._marks > SKIPPED:
            self._took.append((steps, took_s))
        newest = self._took[-EARLY:]
        newest_s = sum(took for _, took in newest) / max(1, sum(many for many, _ in newest))
        is_slower = self.every > 1 and len(newest) == EARLY and 0 < SLOWER * self._chosen_s < newest_s
        if self._marks < self._next_choice and not is_slower:
            return
        # What was rare before the last choice still counts, the less the older it is.
        self._past_steps = self._past_steps / 2 + sum(many for many, _ in self._took)
        self._past_s = self._past_s / 2 + sum(took for _, took in self._took)
        self._chosen_s = newest_s if is_slower else self._past_s / max(1, self._past_steps)
        # Other work can only add to what was measured, so that the lower quartile is the best estimate.
        if len(self._costs_s) >= FIRST_MEASURED:
            self._mark_s = statistics.quantiles(self._costs_s[SKIPPED:])[0]
        cost_s = self._mark_s + AROUND_S
        self._costs_s.clear()
        self._is_weighed, self._next_choice = True, MEASURED
        self._took.clear()
        self._marks = 0
        every = partial(
            affordable_every, step_s=self._chosen_s, share=SHARE, idle_s=IDLE_S, highest=MAX_EVERY
        )
        # More steps are marked only if there is a margin: otherwise the choice would change back and forth.
        if every(cost_s) > self.every or every(STEADY * cost_s) < self.every:
            self.every = every(cost_s)

    def take(self, then: str) -> dict[str, float]:
        """The milliseconds since the last call, by tag: of each phase, OWN_MS, WAIT_MS. Then `then` begins.

        There are numbers of all phases so far, if only zeros: rows of equal tags are written much quicker.
        The device's times are those of an earlier step, mostly the one before: it is not waited for.
        """
        weighed_s = self._cost_s
        self._account()
        self.current, self._waits, self._asked_s = then, 0, None
        self._excuse_loader()
        device_ms = {} if self.device is None else self.device.take(then)
        # The device may have a phase that this thread has not: torch may call hooks in a thread of its own.
        for phase in device_ms:
            if phase in ON_DEVICE:
                self._spent.setdefault(phase, [*_NOTHING])
        found: dict[str, float] = {}
        own = waited = 0.0
        for phase, spent in self._spent.items():
            wall, cpu, queue = spent
            spent[:] = _NOTHING
            cpu_tag, blocked_tag, queue_tag = TAGS[phase]
            blocked = wall - cpu - queue
            if blocked < 0:
                blocked = 0.0
            # The thread only queues the device's work: blocked is how much longer the device computed than it
            # ran.
            if self.device is not None and phase in ON_DEVICE:
                on_device = 1e-3 * device_ms.get(phase, 0.0)
                blocked = max(0.0, on_device - cpu)
                wall = max(wall, on_device)
            if phase == WAIT:
                waited += wall
            else:
                own += cpu + blocked
            found[cpu_tag], found[blocked_tag], found[queue_tag] = 1e3 * cpu, 1e3 * blocked, 1e3 * queue
        # Clocks are not read at the same moment, so that a time of waiting may come out negative.
        found[OWN_MS], found[WAIT_MS] = 1e3 * own, 1e3 * max(0.0, waited)
        if (idle := self.loader.idle) is not None:
            found[LOADER_IDLE] = idle * (found[OWN_MS] + found[WAIT_MS])
        if self._is_weighed:
            # All of this call is a cost, including what `_account` has already added.
            self._cost_s = weighed_s + self._cpu() - self._cpu_s
        return found

    def _excuse_loader(self) -> None:
        """A batch that came late because the loader's workers waited for a processor waited for it, too.

        Batches come in order, so that a rank waits for the worker that is the latest, maybe in marked steps
        only.
        """
        waited = self._workers.take()
        if not waited:
            return
        # What a worker waited may also delay later batches, which it loads ahead; the less, the older it is.
        kept = STARVED_KEPT**self.every
        starved = {pid: kept * self._starved_s.get(pid, 0.0) + seconds for pid, seconds in waited.items()}
        if (spent := self._spent.get(DATA)) is not None:
            wall, cpu, queue = spent
            excused = min(max(0.0, wall - cpu - queue), max(starved.values()))
            spent[2] += excused
            starved = {pid: max(0.0, seconds - excused) for pid, seconds in starved.items()}
        self._starved_s = starved

    def close(self) -> None:
        """Stop measuring."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collect)
        self._clocks.close()
        self._workers.close()
        self.is_in_loop, self.device = False, None

    def _account(self) -> None:
        """Add the time since the last call to the current phase."""
        wall, cpu = self._wall(), self._cpu()
        begun_s = cpu
        queue = self._queue_s
        # A thread that ran nearly all the time was not in the run queue for long: reading it is saved.
        if wall - self._wall_s - (cpu - self._cpu_s) > SHORT_S:
            queue = self._clocks.queue()
            # Reading takes system calls, after which the thread may wait for a processor: clocks that were
            # not read together would count that as blocked time of the next phase.
            for _ in range(READINGS):
                if (again := self._wall()) - wall <= SHORT_S:
                    break
                wall, cpu, queue = again, self._cpu(), self._clocks.queue()
        took, ran, queued = wall - self._wall_s, cpu - self._cpu_s, queue - self._queue_s
        self._wall_s, self._cpu_s, self._queue_s = wall, cpu, queue
        self._add(took, ran, queued)
        if self._is_weighed:
            self._cost_s += self._cpu() - begun_s

    def _add(self, took: float, ran: float, queued: float) -> None:
        """Add some time to the current phase, or to WAIT."""
        phase = self.current
        if self._is_waiting:
            self._spend(WAIT, took, ran, queued)
        # If nothing shows when the thread waits for other ranks, all blocked time of computing is waiting.
        elif (self.is_computing_shared and phase in COMPUTING) or (
            self.is_backward_shared and phase == BACKWARD
        ):
            self._spend(phase, ran + queued, ran, queued)
            self._spend(WAIT, took - ran - queued, 0.0, 0.0)
        else:
            self._spend(phase, took, ran, queued)

    def _spend(self, phase: str, wall_s: float, cpu_s: float, queue_s: float) -> None:
        spent = self._spent.get(phase)
        if spent is None:
            self._spent[phase] = [wall_s, cpu_s, queue_s]
        else:
            spent[0] += wall_s
            spent[1] += cpu_s
            spent[2] += queue_s

    @guarded()
    def _collect(self, moment: str, info: object) -> None:
        if get_ident() != self._thread or os.getpid() != self._pid:
            return
        if moment == "start":
            if not self.is_marked:
                return
            before = self.current
            self.enter(PYTHON)
            self._interrupted = before
        elif self._interrupted is not None:
            before, self._interrupted = self._interrupted, None
            self.enter(before)
