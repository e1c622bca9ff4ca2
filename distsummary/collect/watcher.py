"""Watcher: writes into a rank's stuck.json where the training is when a step is long.

It is written although the loop's thread never returns. The files of all ranks show which one holds up the
others; see `diagnosis/stuck.py`.
"""

import atexit
import json
import os
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from distsummary.base.failures import Failures, frame_of
from distsummary.base.guard import Guard
from distsummary.base.publish import ensure_directory, replacing
from distsummary.collect.looks import Look, looks
from distsummary.diagnosis.source_lines import SourceLine, user_place
from distsummary.diagnosis.stuck import AFTER_RUN, COMPILE, START, ProcessGroup, RankReport
from distsummary.diagnosis.stuck_files import FORMAT
from distsummary.rundir.consequences import follows_from_another
from distsummary.rundir.deal import LongStep
from distsummary.rundir.run_dir import STUCK
from distsummary.training.timing.phases import BACKWARD, CHECKPOINT, DATA, EVALUATION, UNKNOWN, WAIT

if TYPE_CHECKING:
    from distsummary.collect.crash_log import CrashLog

REPORT_S = 1.0  # seconds between two reports, while it lasts
# At most so much of the time between two looks counts: a look that comes later has found no processor, and
# the thread that trains may have found none either.
MOST_S = 1.0
LEAST_S = 1.0  # no step is late before
REPORT_MEDIANS = 2  # of the recent steps: a rank whose step takes longer reports where it is
MEDIANS = 3  # a step is late after so many medians of the recent ones
UNKNOWN_S = 600.0  # the limit before the length of a step, or of a phase, is known: code is compiled, too
# The least limit of an evaluation or a checkpoint, and by what the longest one so far is multiplied for it.
PHASE_LEAST_S = 60.0
PHASE_FACTOR = 3
RECENT = 60  # looks at which the step had changed, whose steps are remembered
# So many looks are needed until the long steps count, and so many steps until their mean gives a limit.
ENOUGH = 20
BLOCKED_S = 2.0  # after so long, a thread that is blocked reports its collectives in any phase
LONG_FACTOR = 1.5  # a step is not late before so many times the length that one in twenty exceeds
# No other rank waits for the report of a rank that is alone, so it may come late. A start takes its time.
ALONE_REPORT_S = START_REPORT_S = 20.0
ALONE_FACTOR = 3  # so many times the longest time without progress is the limit of a rank that is alone
MOVING = 0.2  # of the wall time, spent on computing or in the run queue: the thread is not blocked
STACK_LINES = 40
SEEN = 16  # long steps of which the line is remembered
OUTSIDE = "outside"  # a phase: between two loops over steps
_LONG = (EVALUATION, CHECKPOINT, OUTSIDE)
# What a thread does by itself when its stack goes through a file of this name.
_BY_FILE = (
    ("torch/distributed/checkpoint/", CHECKPOINT),
    ("torch/serialization.py", CHECKPOINT),
    ("-packages/safetensors/", CHECKPOINT),
    ("torch/_dynamo/convert_frame.py", COMPILE),
    ("torch/_inductor/compile_fx.py", COMPILE),
    ("torch/distributed/distributed_c10d.py", WAIT),
)
ROOTS = {"broadcast": "src", "reduce": "dst", "gather": "dst", "scatter": "src"}  # of torch's collectives
_BACKWARD = "torch/autograd/graph.py"  # calls the engine that runs backward
_MEASURING = "distsummary/training/timing/torch_waits.py"  # around that, and around collectives


class LoopPlace(NamedTuple):
    """Where the loop is: the step that it makes, and its phase."""

    step: int
    phase: str


class LoopTimes:
    """How long steps and phases take, from looks at where the loop is; says when one is late.

    Args:
        place: where the loop is at first. now: seconds, by the clock of `look`.

    Attributes:
        since: when the last progress was seen: another step, or the begin or end of a phase of its own.
        late_s: the seconds that were looked at since; less than have passed if the looks came late.
        longest_s: the longest time without progress so far, the start included.
    """

    def __init__(self, place: LoopPlace, now: float) -> None:
        self.place = place
        self._begun = place.step, now
        self.since = self._looked_s = now
        self.late_s = self.longest_s = 0.0
        self._steps: deque[float] = deque(maxlen=RECENT)  # seconds a step, at each look that saw new ones
        self._longest: dict[str, float] = {}
        self._seen = 0

    def look(self, place: LoopPlace, now: float) -> bool:
        """Note where the loop is; returns whether it has advanced since the last look."""
        passed_s, self._looked_s = now - self._looked_s, now
        before, self.place = self.place, place
        made = place.step - before.step
        if made == 0 and (place.phase in _LONG) == (before.phase in _LONG):
            self.late_s += min(passed_s, MOST_S)
            return False
        took, self.since, self.late_s = now - self.since, now, 0.0
        self.longest_s = max(took, self.longest_s)
        if before.phase in _LONG:
            self._longest[before.phase] = max(took, self._longest.get(before.phase, 0.0))
        elif made > 0 and place.phase not in _LONG:
            self._seen += 1
            # The first time holds the start.
            if self._seen > 1:
                self._steps.append(took / made)
        return True

    def report_after_s(self) -> float:
        """After how many seconds without progress the rank reports where it is, in any phase.

        The others may wait for it: if it said nothing, they would take it for one that cannot.
        """
        return max(LEAST_S, REPORT_MEDIANS * statistics.median(self._steps)) if self._steps else LEAST_S

    def limit_s(self, phase: str) -> float:
        """After how many seconds without progress a phase is late."""
        if phase in _LONG:
            longest = self._longest.get(phase)
            return UNKNOWN_S if longest is None else max(PHASE_LEAST_S, PHASE_FACTOR * longest)
        if phase == COMPILE:
            return UNKNOWN_S
        # All that was seen so far held the start, or a phase of its own.
        if not self._steps:
            first, begun_s = self._begun
            made = self.place.step - first
            return max(LEAST_S, MEDIANS * (self.since - begun_s) / made) if made >= ENOUGH else UNKNOWN_S
        limit = max(LEAST_S, MEDIANS * statistics.median(self._steps))
        # Where steps have different lengths, the long ones count, too.
        if len(self._steps) >= ENOUGH:
            limit = max(limit, LONG_FACTOR * sorted(self._steps)[-1 - len(self._steps) // 20])
        return limit


class Watcher:
    """Watches a thread, from `await_begin` or `begin` until `stop`.

    Its attributes are where it writes and what it found at the looks so far: a report contains all of it.

    Args:
        directory: the rank's directory, which gets stuck.json. rank: see `Topology`.
        groups: reads the collectives, of which the newest may have raised; returns whether the flight
            recorder is "on" or "off", and the groups.
        failures: counts what raises.
        is_alone: whether there are no other ranks, so that a step that takes its time holds up no one. It is
            late then only if it takes ALONE_FACTOR times as long as anything before, and UNKNOWN_S if this
            process or a child of it computes meanwhile.

    Attributes:
        seen: where the thread was in its newest long steps.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rank: int,
        groups: Callable[[bool], tuple[str, tuple[ProcessGroup, ...]]],
        failures: Failures,
        is_alone: bool = False,
    ) -> None:
        self._is_alone = is_alone
        self._path, self._attempt, self._rank = directory / STUCK, 0, rank
        self._groups, self._failures = groups, failures
        self.seen: tuple[LongStep, ...] = ()
        self._is_reported = False  # whether stuck.json says that a step is late
        self._reported_s = 0.0
        self._looked: deque[int] = deque(maxlen=6)  # the stacks at the newest looks, as hashes
        self._busy: deque[tuple[float, float]] = deque(maxlen=6)  # wall and busy seconds at them
        self._crash_log: CrashLog | None = None
        self._has_begun = False

    def await_begin(self, step: int) -> None:
        """Watch this thread, in which the training will begin behind this step."""
        self._watch(lambda: LoopPlace(step, START))

    def begin(self, attempt: int, place: Callable[[], LoopPlace]) -> None:
        """Watch this thread, in which the training begins; `place` says where its loop is."""
        # Another run begins, so an earlier one of this process is really over.
        while _after_runs:
            _after_runs.pop().stop()
        self._attempt, self._has_begun = attempt, True
        self._watch(place)
        if not self._is_alone:
            self._crash_log = self._failures.call(
                "crash.txt", _log_of_crash, self._path.parent, attempt, self._thread_id
            )

    def _watch(self, place: Callable[[], LoopPlace]) -> None:
        self._thread_id, self._native_id = threading.get_ident(), threading.get_native_id()
        self._place, self._pace = place, LoopTimes(place(), time.monotonic())
        looks.add(self)

    def abandon(self) -> None:
        """End the looks at a start."""
        looks.remove(self)
        is_reported, self._is_reported = self._is_reported, False
        if is_reported:
            self._failures.call("stuck.json", self._path.unlink, missing_ok=True)

    def stop(self, error: BaseException | None = None) -> None:
        """End the looks; waits at most a second for one that is being taken.

        After an error, also a signal that ends the process, stuck.json has where the training was, and which
        collectives it had begun. Otherwise the file is removed, and written again by a `_AfterRun` if the
        process continues and other ranks may wait for it.
        """
        looks.remove(self)
        if self._crash_log is not None:
            self._failures.call("crash.txt", self._crash_log.close)
        if error is None:
            self._failures.call("stuck.json", self._path.unlink, missing_ok=True)
            if is_in_group() and not self._is_alone:
                _AfterRun(self._report_after, self._thread_id, self._path)
        elif not self._is_reported and not self._is_alone:
            is_cut_off = follows_from_another(f"{type(error).__name__}: {error}")
            self._failures.call(
                "stuck.json", self._write_report, Look(), time.monotonic(), error=error, is_cut_off=is_cut_off
            )

    def look(self, view: Look) -> None:
        """See whether the step is late, and report it."""
        try:
            self._look(view)
        except Exception as error:
            # The disk may be at fault, and may work at the next look.
            self._failures.count(f"stuck.json: {type(error).__name__}: {error}")

    def _look(self, view: Look) -> None:
        now, place = time.monotonic(), self._place()
        if self._pace.look(place, now):
            self._looked.clear()
            self._busy.clear()
            if self._is_reported:
                self._report_over()
            return
        late_s = self._pace.late_s
        first_s = LEAST_S if self._has_begun else START_REPORT_S
        if late_s < (ALONE_REPORT_S if self._is_alone else first_s):
            return
        self._looked.append(hash(view.read(_stack_of, self._thread_id).lines))
        self._busy.append(
            (now, view.read(_family_s) if self._is_alone else view.read(_busy_s, self._native_id))
        )
        if late_s >= self._pace.report_after_s() and now - self._reported_s >= REPORT_S:
            self._write_report(view, now)

    def _write_report(
        self, view: Look, now: float, *, error: BaseException | None = None, is_cut_off: bool = False
    ) -> None:
        """Write that the step is long, and what is known of it.

        `error`: what ends the training; `is_cut_off`: a collective has raised it.
        """
        place, pace = self._place(), self._pace
        stack = view.read(_stack_of, self._thread_id)
        # An error shows where it was raised; the thread is elsewhere by now.
        if error is not None and error.__traceback__ is not None:
            stack = _stack_of_error(error, stack)
        files = [line.file.replace(os.sep, "/") for line in stack.lines]
        # Files in the stack show the phase, but a data set that loads tensors from files makes no checkpoint.
        by_file = (
            phase
            for part, phase in _BY_FILE
            if any(part in file for file in files)
            if phase != CHECKPOINT or place.phase != DATA
        )
        phase = place.phase if place.phase in _LONG else next(by_file, place.phase)
        innermost = next((file for file in files if not file.endswith(_MEASURING)), "")
        # Nothing is seen inside of the backward engine; DDP may be waiting there for other ranks.
        if phase in (UNKNOWN, BACKWARD) and innermost.endswith(_BACKWARD):
            phase = WAIT
        late_s, limit_s = pace.late_s, pace.limit_s(phase if phase != WAIT else place.phase)
        is_moving = self._is_moving()
        if self._is_alone:
            limit_s = max(limit_s, ALONE_FACTOR * pace.longest_s, UNKNOWN_S * is_moving)
        # Reading a full recorder takes 50 ms, which a thread that computes would miss.
        is_read = late_s >= limit_s or error is not None or (late_s >= BLOCKED_S and not is_moving)
        recorder, groups = view.read(self._groups, is_cut_off) if is_read else ("", ())
        report = RankReport(
            rank=self._rank,
            step=place.step + (place.phase in (DATA, OUTSIDE, START)),
            phase=phase,
            late_s=late_s,
            limit_s=limit_s,
            is_moving=is_moving,
            is_cut_off=is_cut_off,
            recorder=recorder,
            groups=groups,
            line=stack.line,
            stack=stack.texts,
            root=stack.root,
        )
        self._write({"time": time.time(), "is_over": False, **report.as_json()})
        self._is_reported, self._reported_s = True, now
        # The newest look counts: a collective that the thread comes to later waits for others.
        if report.line and phase != WAIT:
            before = [one for one in self.seen if one.step != report.step]
            self.seen = (*before, LongStep(report.step, phase, report.line))[-SEEN:]

    def _report_after(self, stack: "_Stack", late_s: float) -> None:
        """Write where the thread is that ran the loop, after the run."""
        # No line is the user's, such as in an actor that waits for a call: that holds up no one.
        if not stack.line:
            return
        recorder, groups = self._groups(False)
        report = RankReport(
            rank=self._rank,
            step=self._place().step,
            phase=AFTER_RUN,
            late_s=late_s,
            limit_s=LEAST_S,
            recorder=recorder,
            groups=groups,
            line=stack.line,
            stack=stack.texts,
        )
        self._write({"time": time.time(), "is_over": False, **report.as_json()})

    def _report_over(self) -> None:
        """Write that the step has ended: silence would look as if this rank could not report anything."""
        self._write({"time": time.time(), "is_over": True, "step": self._pace.place.step})
        self._is_reported = False

    def _write(self, content: dict[str, object]) -> None:
        data = json.dumps({"format": FORMAT, "attempt": self._attempt, "rank": self._rank, **content})
        if not self._has_begun:
            ensure_directory(self._path.parent)
        with replacing(self._path, is_durable=False, is_private=True) as temporary:
            temporary.write_bytes(data.encode())

    def _is_moving(self) -> bool:
        """Whether the loop's thread has computed since the first looks, or been at different lines."""
        if len(self._looked) < 2:
            return False
        # A thread that has hardly computed, and was at the same line at most looks, is blocked.
        usual = max(map(self._looked.count, self._looked))
        (began_s, busy_before), (ended_s, busy) = self._busy[0], self._busy[-1]
        return usual < 0.75 * len(self._looked) or busy - busy_before > MOVING * (ended_s - began_s)


class _AfterRun:
    """Reports where the rank is after its run was closed, while other ranks may wait for it.

    It ends with the process groups of torch.distributed, and when the process makes another watcher.

    Args:
        report: called with the stack of the loop's thread, and how many seconds it has been the same: once,
            when that is a second. path: what it writes, removed at the end.
    """

    def __init__(self, report: Callable[["_Stack", float], None], thread_id: int, path: Path) -> None:
        self._report, self._thread_id, self._path = report, thread_id, path
        self._before: tuple[SourceLine, ...] = ()
        self._since, self._is_reported = time.monotonic(), False
        self._guard = Guard()
        atexit.register(self.stop)
        _after_runs.append(self)
        looks.add(self)

    def stop(self) -> None:
        """End the looks, and remove what was written."""
        looks.remove(self)
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        atexit.unregister(self.stop)

    def look(self, view: Look) -> None:
        """See whether the thread is where it was."""
        self._guard.call("the look after the run", self._look, view)

    def _look(self, view: Look) -> None:
        if not is_in_group():
            self.stop()
            return
        stack = view.read(_stack_of, self._thread_id)
        if stack.lines != self._before:
            self._before, self._since = stack.lines, time.monotonic()
            if self._is_reported:
                self._path.unlink(missing_ok=True)
            self._is_reported = False
        elif stack.lines and not self._is_reported and time.monotonic() - self._since >= LEAST_S:
            self._is_reported = True
            with suppress(OSError):
                self._report(stack, time.monotonic() - self._since)


_after_runs: list[_AfterRun] = []  # at most one


def is_in_group() -> bool:
    """Whether this process is in a process group of torch.distributed, with others."""
    torch: Any = sys.modules.get("torch")
    if torch is None or "torch.distributed" not in sys.modules or not torch.distributed.is_available():
        return False
    return bool(torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1)


def groups_of_torch(is_broken: bool = False) -> tuple[str, tuple[ProcessGroup, ...]]:
    """What `torch_flight_recorder.read_groups` returns, if this process uses torch.distributed."""
    if "torch.distributed" not in sys.modules:
        return "", ()
    from distsummary.frameworks.torch_flight_recorder import read_groups

    return read_groups(is_broken=is_broken)


class _Stack:
    """Where a thread is: the lines of its stack, the innermost first, of these frames."""

    def __init__(self, lines: Iterable[SourceLine], frames: Iterable[FrameType]) -> None:
        self.lines = tuple(lines)
        # From or to which rank a collective of the stack goes.
        self.root = next(filter(None, map(_root_of, frames)), (None,))[0]

    @cached_property
    def line(self) -> str:
        """That of the user; empty if none is."""
        return _text(user_place(self.lines))

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """What is shown of the lines."""
        return tuple(map(_text, self.lines[:STACK_LINES]))


def _stack_of(thread_id: int) -> _Stack:
    """Where a thread is; without lines if it has ended."""
    frame, frames = frame_of(thread_id), list[FrameType]()
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return _Stack(map(_line_of, frames), frames)


def _stack_of_error(error: BaseException, stack: _Stack) -> _Stack:
    """Where an error was raised, in a thread that has this stack now."""
    raised = [*traceback.walk_tb(error.__traceback__)][::-1]
    found = _Stack(
        (_line_of(frame)._replace(number=number) for frame, number in raised), (one for one, _ in raised)
    )
    found.root = stack.root if found.root is None else found.root
    return found


def _log_of_crash(directory: Path, attempt: int, thread_id: int) -> "CrashLog":
    from distsummary.collect.crash_log import CrashLog

    return CrashLog(directory, attempt, thread_id)


def _busy_s(native_id: int, process: int | str = "self") -> float:
    """The seconds that a thread of a process has computed or waited in the run queue; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        cpu, queue = Path(f"/proc/{process}/task/{native_id}/schedstat").read_bytes().split()[:2]
        return 1e-9 * (int(cpu) + int(queue))
    return 0.0


def _family_s() -> float:
    """As `_busy_s`, of the threads of this process but ours, and of its children, such as loader workers."""
    ours = {str(one.native_id) for one in threading.enumerate() if one.name.startswith("distsummary-")}
    found = 0.0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        # The process may have ended meanwhile.
        with suppress(OSError):
            tasks = {task.name for task in os.scandir(f"/proc/{process.pid}/task")}
            found += sum(_busy_s(int(task), process.pid) for task in tasks - ours)
    return found


def _line_of(frame: FrameType) -> SourceLine:
    code = frame.f_code
    return SourceLine(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name)


def _text(line: SourceLine | None) -> str:
    return "" if line is None else line.text()


def _root_of(frame: FrameType) -> tuple[int] | None:
    """The rank from or to which a collective goes, in a tuple; None of any other frame."""
    file, name = frame.f_code.co_filename.replace(os.sep, "/"), frame.f_code.co_name
    if name not in ROOTS or not file.endswith(_BY_FILE[-1][0]):
        return None
    names = frame.f_locals
    root = names.get(ROOTS[name])
    if not isinstance(root, int):
        root = names.get("group_" + ROOTS[name])
    return (root,) if isinstance(root, int) else None
