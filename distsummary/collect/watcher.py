"""Watcher: a thread of each rank that tells in stuck.json where the training stands when a step is long.

It is written although the loop's thread never returns. Who reads the files of all ranks learns which one
holds up the others; see `diagnosis/stuck.py`.
"""

import json
import linecache
import os
import statistics
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from distsummary.consequences import follows_from_another
from distsummary.diagnosis.stuck import Group, Telling
from distsummary.diagnosis.stuck_files import FORMAT
from distsummary.publish import replacing
from distsummary.run_dir import STUCK
from distsummary.training.phases import CHECKPOINT, DATA, EVALUATION, UNKNOWN, WAIT
from distsummary.writing.health import Failures

LOOK_S = 0.5  # seconds between two looks at the step
TELL_S = 1.0  # seconds between two tellings, while it lasts
MOST_S = 1.0  # counts of the time between two looks; one that comes later found no processor, as others may
LEAST_S = 1.0  # no step is late before
TELLING_MEDIANS = 2  # of the recent steps: a rank that goes on for longer tells where it is
MEDIANS = 3  # a step is late after so many medians of the recent ones
UNKNOWN_S = 600.0  # the limit before the length of a step, or of a phase, is known: code is compiled, too
PHASE_LEAST_S = 60.0  # the least limit of an evaluation or a checkpoint, and
PHASE_FACTOR = 3  # so many times the longest one so far
RECENT = 60  # looks at which the step had changed, whose steps are remembered
ENOUGH = 20  # of them, until the long ones among them count; and steps, until their mean tells a limit
LONG_FACTOR = 1.5  # a step is not late before so many times the length that one in twenty exceeds
MOVING = 0.2  # of the wall time, spent on computing or in the run queue: the thread is not blocked
STACK_LINES = 40
OUTSIDE, COMPILE = "outside", "compile"  # phases: between two loops over steps; code is compiled
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
_BACKWARD = "torch/autograd/graph.py"  # calls the engine that runs backward
_STOP_S = 1.0


class Place(NamedTuple):
    """Where the loop is: the step that it makes, and its phase."""

    step: int
    phase: str


class Pace:
    """How long steps and phases take, from looks at where the loop is; says when one is late.

    Args:
        place: where the loop is at first. now: seconds, by the clock of `look`.

    Attributes:
        since: when the last progress was seen: another step, or the begin or end of a phase of its own.
        late_s: the seconds that were looked at since; less than have passed if the looks came late.
    """

    def __init__(self, place: Place, now: float) -> None:
        self.place = place
        self._begun = place.step, now
        self.since = self._looked_s = now
        self.late_s = 0.0
        self._steps: deque[float] = deque(maxlen=RECENT)  # seconds a step, at each look that saw new ones
        self._longest: dict[str, float] = {}
        self._seen = 0

    def look(self, place: Place, now: float) -> bool:
        """Note where the loop is; returns whether it has gone on since the last look."""
        passed_s, self._looked_s = now - self._looked_s, now
        before, self.place = self.place, place
        made = place.step - before.step
        if made == 0 and (place.phase in _LONG) == (before.phase in _LONG):
            self.late_s += min(passed_s, MOST_S)
            return False
        took, self.since, self.late_s = now - self.since, now, 0.0
        if before.phase in _LONG:
            self._longest[before.phase] = max(took, self._longest.get(before.phase, 0.0))
        elif made > 0 and place.phase not in _LONG:
            self._seen += 1
            if self._seen > 1:  # the first one holds the start
                self._steps.append(took / made)
        return True

    def telling_s(self) -> float:
        """After how many seconds without progress the rank tells where it is, in any phase.

        The others may wait for it: if it said nothing, they would take it for one that cannot.
        """
        return max(LEAST_S, TELLING_MEDIANS * statistics.median(self._steps)) if self._steps else LEAST_S

    def limit_s(self, phase: str) -> float:
        """After how many seconds without progress a phase is late."""
        if phase in _LONG:
            longest = self._longest.get(phase)
            return UNKNOWN_S if longest is None else max(PHASE_LEAST_S, PHASE_FACTOR * longest)
        if phase == COMPILE:
            return UNKNOWN_S
        if not self._steps:  # all that was seen so far held the start, or a phase of its own
            first, begun_s = self._begun
            made = self.place.step - first
            return max(LEAST_S, MEDIANS * (self.since - begun_s) / made) if made >= ENOUGH else UNKNOWN_S
        limit = max(LEAST_S, MEDIANS * statistics.median(self._steps))
        if len(self._steps) >= ENOUGH:  # steps of different lengths
            limit = max(limit, LONG_FACTOR * sorted(self._steps)[-1 - len(self._steps) // 20])
        return limit


class Watcher:
    """Watches the thread that makes it, until `stop`.

    Args:
        directory: the rank's directory, which gets stuck.json. attempt, rank: see `Topology`.
        place: where the loop is.
        groups: reads the collectives, of which the newest may have raised; returns whether the flight
            recorder is "on" or "off", and the groups.
        failures: counts what raises.
    """

    def __init__(
        self,
        directory: Path,
        *,
        attempt: int,
        rank: int,
        place: Callable[[], Place],
        groups: Callable[[bool], tuple[str, tuple[Group, ...]]],
        failures: Failures,
    ) -> None:
        self._path, self._attempt, self._rank = directory / STUCK, attempt, rank
        self._place, self._groups, self._failures = place, groups, failures
        self._thread_id, self._native_id = threading.get_ident(), threading.get_native_id()
        self._is_told = False  # whether stuck.json says that a step is late
        self._told_s = 0.0
        self._looked: deque[int] = deque(maxlen=6)  # the stacks at the newest looks, as hashes
        self._busy: deque[tuple[float, float]] = deque(maxlen=6)  # wall and busy seconds at them
        self._pace = Pace(place(), time.monotonic())
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distsummary-watcher", daemon=True)
        self._thread.start()

    def stop(self, error: BaseException | None = None) -> None:
        """End the thread; waits for it at most a second.

        After an error, stuck.json goes on to tell where the training stood; it also tells that if the error
        says that another rank is gone. Otherwise the file is removed.
        """
        self._is_stopped.set()
        self._thread.join(_STOP_S)
        if (
            error is not None
            and not self._is_told
            and follows_from_another(f"{type(error).__name__}: {error}")
        ):
            self._failures.call("stuck.json", self._tell, time.monotonic(), is_cut_off=True)
        elif error is None:
            self._failures.call("stuck.json", self._path.unlink, missing_ok=True)

    def _run(self) -> None:
        while not self._is_stopped.wait(LOOK_S):
            try:
                self._look()
            except Exception as error:  # raised by the disk, and perhaps not the next time
                self._failures.count(f"stuck.json: {type(error).__name__}: {error}")

    def _look(self) -> None:
        now, place = time.monotonic(), self._place()
        if self._pace.look(place, now):
            self._looked.clear()
            self._busy.clear()
            if self._is_told:
                self._tell_over()
            return
        late_s = self._pace.late_s
        if late_s < LEAST_S:
            return
        stack = [*_frames(self._thread_id)]
        self._looked.append(hash(tuple((id(frame.f_code), frame.f_lineno) for frame in stack)))
        self._busy.append((now, _busy_s(self._native_id)))
        if late_s >= self._pace.telling_s() and now - self._told_s >= TELL_S:
            self._tell(now)

    def _tell(self, now: float, *, is_cut_off: bool = False) -> None:
        """Write that the step is long, and what is known of it; `is_cut_off`: a collective has raised."""
        place, pace = self._place(), self._pace
        stack = [*_frames(self._thread_id)]
        files = [frame.f_code.co_filename.replace(os.sep, "/") for frame in stack]
        by_file = (
            phase
            for part, phase in _BY_FILE
            if any(part in file for file in files)
            if phase != CHECKPOINT or place.phase != DATA  # a data set may load tensors from files
        )
        phase = place.phase if place.phase in _LONG else next(by_file, place.phase)
        if phase == UNKNOWN and files and files[0].endswith(_BACKWARD):  # as DDP waits, for all that is known
            phase = WAIT
        late_s, limit_s = pace.late_s, pace.limit_s(phase if phase != WAIT else place.phase)
        # Before the limit nobody is blamed, and reading a full recorder takes 50 ms.
        recorder, groups = self._groups(is_cut_off) if late_s >= limit_s or is_cut_off else ("", ())
        telling = Telling(
            rank=self._rank,
            step=place.step + (place.phase in (DATA, OUTSIDE)),
            phase=phase,
            late_s=late_s,
            limit_s=limit_s,
            is_moving=self._is_moving(),
            is_cut_off=is_cut_off,
            recorder=recorder,
            groups=groups,
            line=user_line(stack),
            stack=tuple(map(_line, stack[:STACK_LINES])),
        )
        self._write({"time": time.time(), "is_over": False, **telling.as_json()})
        self._is_told, self._told_s = True, now

    def _tell_over(self) -> None:
        """Write that the step has ended: silence would look as if this rank could not tell anything."""
        self._write({"time": time.time(), "is_over": True, "step": self._pace.place.step})
        self._is_told = False

    def _write(self, content: dict[str, object]) -> None:
        data = json.dumps({"format": FORMAT, "attempt": self._attempt, "rank": self._rank, **content})
        with replacing(self._path, is_durable=False) as temporary:
            temporary.write_bytes(data.encode())

    def _is_moving(self) -> bool:
        """Whether the loop's thread has computed since the first looks, or been at different lines."""
        if len(self._looked) < 2:
            return False
        usual = max(map(self._looked.count, self._looked))
        (began_s, busy_before), (ended_s, busy) = self._busy[0], self._busy[-1]
        return usual < 0.75 * len(self._looked) or busy - busy_before > MOVING * (ended_s - began_s)


def groups_of_torch(is_broken: bool = False) -> tuple[str, tuple[Group, ...]]:
    """What `torch_flight_recorder.read_groups` returns, if this process uses torch.distributed."""
    if "torch.distributed" not in sys.modules:
        return "", ()
    from distsummary.frameworks.torch_flight_recorder import read_groups

    return read_groups(is_broken=is_broken)


def _frames(thread_id: int) -> Iterator[FrameType]:
    """The frames of a thread, the innermost first; none if it has ended."""
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _busy_s(native_id: int) -> float:
    """The seconds that a thread of this process has computed or waited in the run queue; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        cpu, queue = Path(f"/proc/self/task/{native_id}/schedstat").read_bytes().split()[:2]
        return 1e-9 * (int(cpu) + int(queue))
    return 0.0


def _own_code() -> tuple[str, ...]:
    """Directories of code that is not the user's: of distsummary, and of Python."""
    paths = sysconfig.get_paths()
    own = [Path(__file__).parents[1], *(Path(paths[name]) for name in ("stdlib", "platstdlib"))]
    return tuple({str(path) + os.sep for directory in own for path in (directory, directory.resolve())})


def user_line(stack: list[FrameType]) -> str:
    """The innermost line of the user's code, such as `train.py:12 in step: y = model(x)`; empty if none.

    That is none of Python or distsummary, and rather one of no installed package, at least not torch or Ray.

    Args:
        stack: frames, the innermost first.
    """
    own, installed = _own_code(), []
    for frame in stack:
        file = frame.f_code.co_filename
        if "site-packages" in file or "dist-packages" in file:
            if not any(f"{os.sep}{name}{os.sep}" in file for name in ("torch", "ray", "distsummary")):
                installed.append(frame)
        elif not file.startswith((*own, "<frozen")):
            return _line(frame)
    return _line(installed[0]) if installed else ""


def _line(frame: FrameType) -> str:
    """Such as `train.py:12 in step: y = model(x)`, with the whole path."""
    code = frame.f_code
    number = frame.f_lineno or code.co_firstlineno
    text = linecache.getline(code.co_filename, number, frame.f_globals).strip()
    return f"{code.co_filename}:{number} in {code.co_name}" + (f": {text}" if text else "")
