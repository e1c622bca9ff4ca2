"""Checks that the files of one dialect in a directory fit together: rising steps, one writer, no copies."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distsummary.base.columns import without_middle
from distsummary.cli.findings import Finding, finding
from distsummary.events.deduplicate import Seen
from distsummary.format.records import TENSORBOARD, Event, EventIds

_MAX_TAGS = 100_000  # in a directory; further tags are not compared
_LONG = 1024  # characters of a tag


@dataclass(slots=True)
class _File:
    """One file: the run id of its first event, and the first and last wall time (seconds) of its events."""

    path: Path
    run_id: str
    first: float
    last: float


@dataclass(slots=True)
class _Tag:
    """The highest step of a tag's newest attempt, in the tag's newest file and (`old_*`) in older files."""

    file: int
    attempt: int
    step: int
    old_file: int = -1
    old_attempt: int = 0
    old_step: int = 0


@dataclass(slots=True)
class _Clash:
    """Counts values at steps that this or an older file had already reached, and describes the first one."""

    offset: int
    tag: str
    step: int
    reached: int
    count: int = 0


class StepOrder:
    """Receives the events of the files in reading order; `findings` then lists what viewers would lose.

    MindInsight and TensorBoard erase a tag's older points when a newer file has a lower step; TensorBoard
    also does this within one file. At an equal step, MindInsight and TensorBoard's data server show the newer
    point in place of the older one. That is a finding only if the files are not known to be of one attempt;
    a later evaluation of a run stands at an equal step. A new attempt may go back to lower steps without a
    finding.
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._files: list[_File] = []
        self._tags: dict[tuple[str, str | int], _Tag] = {}
        self._clashes: dict[tuple[int, int], _Clash] = {}  # (older, newer) index in _files -> clash
        self._copies: dict[int, tuple[int, int]] = {}  # index in _files -> (count, first offset)
        self._seen = Seen()
        self._run_ids: dict[str, int] = {}  # run id -> index in _files of its first file
        self._offset = 0

    def begin(self, path: Path, offset: int, ids: EventIds, event: Event) -> bool:
        """Note an event, before `take` notes its values; returns False for a copy of an earlier event."""
        if not self._files or self._files[-1].path != path:
            self._files.append(_File(path, ids.run_id, event.wall_time, event.wall_time))
        file = self._files[-1]
        file.first, file.last = min(file.first, event.wall_time), max(file.last, event.wall_time)
        self._offset = offset
        if ids.run_id and len(self._run_ids) < 100:
            self._run_ids.setdefault(ids.run_id, len(self._files) - 1)
        if self._seen.add(ids.run_id, ids.attempt, ids.seq):
            return True
        count, first = self._copies.get(len(self._files) - 1, (0, offset))
        self._copies[len(self._files) - 1] = (count + 1, first)
        return False

    def take(self, plugin: str, tag: str, ids: EventIds, step: int) -> None:
        """Note one value of the event that `begin` noted."""
        # A graph has no step.
        if plugin == "graph":
            return
        # The hash of a long tag takes less memory.
        key = (plugin, tag if len(tag) <= _LONG else hash(tag))
        now = len(self._files) - 1
        known = self._tags.get(key)
        if known is None:
            if len(self._tags) < _MAX_TAGS:
                self._tags[key] = _Tag(now, ids.attempt, step)
            return
        if known.file != now:
            # The tag's first value in this file: the step reached in the previous file becomes
            # `old_step`, unless `old_step` is higher.
            if known.old_file < 0 or (known.attempt, known.step) > (known.old_attempt, known.old_step):
                known.old_file, known.old_attempt, known.old_step = known.file, known.attempt, known.step
            known.file, known.attempt, known.step = now, ids.attempt, step
        elif ids.attempt > known.attempt:
            # A new attempt may begin again at lower steps.
            known.attempt, known.step = ids.attempt, step
        elif self._dialect == TENSORBOARD and step < known.step and ids.attempt == known.attempt:
            self._clash(now, now, tag, step, known.step)
        if known.old_file >= 0 and ids.attempt <= known.old_attempt and step <= known.old_step:
            old_ids = (self._files[known.old_file].run_id, known.old_attempt)
            # At an equal step, files of one attempt do not clash: a later evaluation stands there.
            is_same_attempt = bool(ids.run_id) and (ids.run_id, ids.attempt) == old_ids
            if step < known.old_step or not is_same_attempt:
                self._clash(known.old_file, now, tag, step, known.old_step)
        known.step = max(known.step, step)

    def _clash(self, older: int, newer: int, tag: str, step: int, reached: int) -> None:
        clash = self._clashes.setdefault((older, newer), _Clash(self._offset, tag, step, reached))
        clash.count += 1

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with the order, writers and copies of the events."""
        for (older, newer), clash in self._clashes.items():
            old, new = self._files[older], self._files[newer]
            tag = repr(without_middle(clash.tag, 80))
            what = f"{clash.count} value(s) not rising in step, first {tag} at step {clash.step}"
            if old is new:
                text = f"{what}, after step {clash.reached}: TensorBoard erases the steps between"
                yield finding(new.path, "step_back", text, offset=clash.offset)
                continue
            text = (
                f"{what}, but {old.path.name} already reached step {clash.reached}: viewers erase its points"
            )
            # Files whose times overlap were written by two writers at the same time.
            at_once = new.first <= old.last and old.first <= new.last
            if at_once or new.run_id != old.run_id:
                text = f"two writers in one directory: {text}"
                yield finding(new.path, "overlap", text, offset=clash.offset)
            else:
                yield finding(new.path, "step_back", text, offset=clash.offset)
        for number, (count, offset) in self._copies.items():
            text = f"{count} event(s) with the run id, attempt and seq of earlier events"
            yield finding(self._files[number].path, "duplicate", text, offset=offset)
        if len(self._run_ids) > 1:
            *_, (run_id, number) = self._run_ids.items()
            others = ", ".join(other for other in self._run_ids if other != run_id)
            text = f"events of the run {run_id} in a directory with the run(s) {others}"
            yield finding(self._files[number].path, "mixed_runs", text)
