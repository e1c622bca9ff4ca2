"""What the event files of one directory recorded: each event once, and which steps count after a restart."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from distsummary.errors import DamagedFileError, MissingFileError, reason
from distsummary.events.contents import Array, FileContents, Progression, joined, scan
from distsummary.events.deduplicate import Seen
from distsummary.events.index import (
    DamagedIndexError,
    continued,
    index_path,
    read_index,
    write_index,
)
from distsummary.events.rank_stream import RankStream, session_start
from distsummary.events.reader import Damage, read_file, values_in
from distsummary.events.segments import LEAST_BYTES, dialect_of, is_shortened
from distsummary.format.frames import whole_length
from distsummary.format.records import TENSORBOARD, Shard, Value

_MAX_PARTS = 16  # of a growing file, before they become one


class ScalarPiece(NamedTuple):
    """The scalars of one tag in one directory, in recording order; all arrays are (n,).

    `attempts`, `steps` int64, `wall_times` float64 in seconds since the epoch, `values` float32.
    """

    tag: str
    attempts: Array
    steps: Array
    wall_times: Array
    values: Array


class EventPlace(NamedTuple):
    """Where a value that is no scalar stands: the bytes `offset` to `end` of `file` are its event's frame."""

    attempt: int
    seq: int
    step: int
    wall_time: float
    plugin: str
    tag: str
    file: Path
    offset: int
    end: int
    shard: Shard | None

    def read(self) -> Value:
        """The value; raises MissingFileError, or DamagedFileError if the file has changed since."""
        try:
            values = values_in(self.file, self.offset, self.end, self.step)
        except FileNotFoundError as error:
            raise MissingFileError(f"{self.file} was removed while it was read") from error
        except DamagedFileError:
            if not is_shortened(self.file):
                raise
            values = []
        found = [value for value in values if (value.plugin, value.tag) == (self.plugin, self.tag)]
        if not found:
            raise DamagedFileError(
                f"{self.file} no longer holds {self.tag!r} of step {self.step} at byte {self.offset}; it was "
                "changed while it was read: open the run again"
            )
        # Of several values with this tag in one event, the last one counts.
        return found[-1]


class _File:
    """An event file that may grow: its parts up to the last whole event."""

    def __init__(self, path: Path, *, uses_index: bool) -> None:
        self.path, self.parts = path, list[FileContents]()
        self.size = 0
        self.start = math.inf  # of its session, see `rank_stream.session_start`
        self._uses_index = uses_index
        self._indexed = 0  # how many bytes the index covers
        self._known: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Where the last whole event ends."""
        return self.parts[-1].end if self.parts else 0

    def refresh(self) -> bool:
        """Read what has been added; returns whether anything has changed."""
        stat = self.path.stat()
        known = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if known == self._known:
            return False
        if self._known and (stat.st_ino != self._known[0] or stat.st_size < self.end):
            # Another file has taken its place, or it was cut.
            self.forget()
        if not self._known and self._uses_index and (part := read_index(self.path)) is not None:
            self.parts, self._indexed = [part], part.end
        if self.end < stat.st_size:
            part = scan(self.path, self.end)
            if part.size or part.damage:
                self.parts.append(part)
        if self.start == math.inf and self.parts:
            self.start = session_start(self.path)
        # A growing file gets a part at each refresh, and each question visits all of them.
        if len(self.parts) > _MAX_PARTS:
            self.parts = [joined(self.parts)]
        # Written again when the file has grown by a quarter, so that the cost stays in proportion to it.
        if self._uses_index and self.end - self._indexed >= max(LEAST_BYTES, self._indexed // 4):
            self._write_index()
        self._known, self.size = known, stat.st_size
        return True

    def forget(self) -> None:
        """Begin again, without the index."""
        self.parts, self._indexed, self._known = [], 0, (0, 0, 0)

    def mend(self, error: DamagedIndexError) -> bool:
        """Continue with the index that has replaced the one that was read; False if `refresh` is to read the
        file again.
        """
        # The file may have been removed.
        with suppress(OSError):
            is_same = self._known[:1] == (self.path.stat().st_ino,)
            if is_same and (part := continued(self.parts[0], error, self.path)) is not None:
                self.parts[0] = part
                return True
        self.forget()
        # As if new, so that `refresh` uses an index that is there now.
        self._known = ()
        return False

    def _write_index(self) -> None:
        part = joined(self.parts)
        # Also if it cannot be written: another try comes when the file has grown.
        self._indexed = part.end
        if write_index(self.path, part):
            self.parts = [read_index(self.path) or part]


class Recorded:
    """What the event files of one directory hold; `refresh` reads on.

    Its files are those of a RankStream.

    Args:
        directory, belongs: as in RankStream.
        uses_index: read the indexes next to the files, and write those that are missing.
    """

    def __init__(
        self, directory: Path, *, belongs: Callable[[Path], bool] = lambda path: True, uses_index: bool = True
    ) -> None:
        self.directory = directory
        self._stream, self._uses_index = RankStream(directory, belongs=belongs), uses_index
        self._files: dict[Path, _File] = {}
        self._parts: list[tuple[_File, FileContents, Array | None]] = []  # which events are new; None: all
        self._has_changed = False  # since `_parts` were made
        self._unreadable: list[Damage] = []

    def refresh(self) -> None:
        """Read what has been added to the files.

        Raises MissingFileError if the directory is gone; a file that was removed is left out, and of one that
        cannot be read any more what was read before stays.
        """
        self._unreadable = []
        try:
            wanted = self._stream.files()
        except FileNotFoundError as error:
            raise MissingFileError(f"{self.directory} was removed while it was read") from error
        before = [*self._files]
        self._refresh(wanted)
        self._files = {path: self._files[path] for path in wanted if path in self._files}
        self._has_changed |= before != [*self._files]
        if self._has_changed:
            self._parts = [*self._once()]
            self._has_changed = False

    def mend(self, error: DamagedIndexError) -> bool:
        """After an index was not what it had been: whether all is at hand again that was read.

        If not, `refresh` reads the file again.
        """
        for file in self._files.values():
            if index_path(file.path) == error.path and file.parts:
                old = file.parts[0]
                is_mended = file.mend(error)
                if is_mended:
                    new = file.parts[0]
                    self._parts = [(f, new if part is old else part, rows) for f, part, rows in self._parts]
                return is_mended
        return False

    def _refresh(self, paths: list[Path]) -> None:
        for path in paths:
            file = self._files.setdefault(path, _File(path, uses_index=self._uses_index))
            try:
                self._has_changed |= file.refresh()
            except FileNotFoundError:
                # Removed since the directory was listed.
                del self._files[path]
                self._has_changed = True
            except OSError as error:
                self._unreadable.append(Damage(path, 0, f"it cannot be read: {reason(error)}"))

    def _once(self) -> Iterator[tuple[_File, FileContents, Array | None]]:
        seen = Seen()
        # In TensorBoard's files, sessions that start later replace the steps from their first one on.
        until, first = dict[Path, float](), math.inf
        for file in reversed(self._files.values()):
            until[file.path] = first if dialect_of(file.path) == TENSORBOARD else math.inf
            first = min(first, file.start)
        for file, part, is_new in self._new(seen):
            if until[file.path] < math.inf:
                is_before = part.events["step"].load() < until[file.path]
                is_new = is_before if is_new is None else is_new & is_before
            yield file, part, is_new

    def _new(self, seen: Seen) -> Iterator[tuple[_File, FileContents, Array | None]]:
        for file in self._files.values():
            for part in file.parts:
                if not part.size:
                    continue
                column = part.events["seq"]
                # Nearly always the seqs of a part follow one another; those of other programs are all 0.
                if len(part.owners) == 1 and isinstance(column, Progression):
                    first, stride, count = column
                    is_nobody = not first and not stride
                    if is_nobody or (
                        stride == 1 and seen.add_range(*part.owners[0], first, first + count - 1)
                    ):
                        yield file, part, None
                        continue
                seqs = column.load()
                owners = part.events["owner"].load() if len(part.owners) > 1 else np.zeros(seqs.size, int)
                is_new = np.ones(seqs.size, np.bool_)
                for number, owner in enumerate(part.owners):
                    mine = owners == number
                    is_new[mine] = seen.add_all(*owner, seqs[mine].astype(np.int64, copy=False))
                yield file, part, None if is_new.all() else is_new

    @property
    def damage(self) -> list[Damage]:
        """What was skipped, and which files cannot be read."""
        skipped = [one for file in self._files.values() for part in file.parts for one in part.damage]
        return [*skipped, *self._unreadable]

    def unfinished(self) -> list[Damage]:
        """What follows the last event of each file: damage, or an event that is torn or being written."""
        found: list[Damage] = []
        for file in self._files.values():
            if file.end == file.size:
                continue
            rest: list[Damage] = []
            try:
                for _ in read_file(file.path, "skip", start=file.end, skipped=rest):
                    pass
                if not rest and (whole := whole_length(file.path)) < file.size:
                    text = "the file ends inside an event: it is torn, or being written"
                    rest.append(Damage(file.path, max(whole, file.end), text))
            except OSError as error:
                # It was removed since.
                rest.append(Damage(file.path, file.end, str(error)))
            found += rest
        return found

    @property
    def files(self) -> list[Path]:
        """The event files that count, in the order in which they are read."""
        return [*self._files]

    def lows(self) -> dict[int, float]:
        """Attempt -> the lowest of its steps."""
        found: dict[int, float] = {}
        for _, part, _ in self._parts:
            for (_, attempt), low in zip(part.owners, part.lows, strict=True):
                found[attempt] = min(low, found.get(attempt, np.inf))
        return found

    def highs(self) -> dict[int, int]:
        """Attempt -> the highest of its steps."""
        found: dict[int, int] = {}
        for _, part, rows in self._parts:
            steps = part.events["step"].load()
            attempts = _attempts(part, np.arange(steps.size))
            if rows is not None:
                steps, attempts = steps[rows], attempts[rows]
            for attempt in np.unique(attempts).tolist():
                high = int(steps[attempts == attempt].max())
                found[attempt] = max(high, found.get(attempt, high))
        return found

    def tags(self) -> list[str]:
        """The tags of the scalars, in the order of their first values."""
        return [*dict.fromkeys(tag for _, part, _ in self._parts for tag in part.scalars)]

    def kinds(self) -> dict[tuple[str, str], int]:
        """(Plugin, tag) -> how many values that are no scalars there are, superseded ones included."""
        found: dict[tuple[str, str], int] = {}
        for _, part, _ in self._parts:
            for key, places in part.others.items():
                found[key] = found.get(key, 0) + places.events.size
        return found

    def count(self, tag: str) -> int:
        """How many scalars a tag has, also those that do not count."""
        return sum(part.scalars[tag].events.size for _, part, _ in self._parts if tag in part.scalars)

    def scalars(self, tag: str, ends: Mapping[int, float]) -> ScalarPiece:
        """The scalars of a tag that count.

        Of a step that was recorded twice, the last value counts; files of other programs are taken as they
        are, since their steps need not mean one thing.

        Args:
            ends: attempt -> the step from which on a later attempt has repeated it, see
                `deduplicate.ends_of_attempts`.
        """
        attempts, steps, values, times = self._counted(tag, ends, has_times=True)
        return ScalarPiece(tag, attempts, steps, times, values)

    def curve(self, tag: str, ends: Mapping[int, float]) -> tuple[Array, Array]:
        """The steps and values of `scalars` alone, which take a third of the time."""
        _, steps, values = self._counted(tag, ends, has_times=False)
        return steps, values

    def _counted(self, tag: str, ends: Mapping[int, float], *, has_times: bool) -> tuple[Array, ...]:
        """The attempts, steps, values and, if asked for, wall times of the scalars that count."""
        found: list[tuple[Array, ...]] = []
        is_ours = True
        for _, part, is_new in self._parts:
            series = part.scalars.get(tag)
            if series is None:
                continue
            names = ["step", "wall_time"] if has_times else ["step"]
            # A tag with one value of each event, the usual case, takes the columns of events as they are.
            each = Progression(0, int(part.size > 1), part.size)
            is_each = isinstance(series.events, Progression) and series.events == each
            at = series.events.load()
            steps, *times = (
                part.events[name].load() if is_each else part.events[name].take(at) for name in names
            )
            columns = (_attempts(part, at), steps, series.values.load(), *times)
            counts = _counting(part, columns[0], steps, ends)
            if is_new is not None:
                counts = is_new[at] if counts is None else counts & is_new[at]
            found.append(columns if counts is None else tuple(column[counts] for column in columns))
            is_ours &= all(run_id for run_id, _ in part.owners)
        if not found:
            dtypes = (np.int64, np.int64, np.float32, np.float64)
            return tuple(np.empty(0, dtype) for dtype in dtypes[: 3 + has_times])
        joint = found[0] if len(found) == 1 else tuple(map(np.concatenate, zip(*found, strict=True)))
        steps = joint[1]
        # Of equal steps the last value counts, and stays at its place in the recording order.
        if is_ours and steps.size and not (steps[1:] > steps[:-1]).all():
            order = np.argsort(steps, kind="stable")
            last = np.sort(order[np.append(np.diff(steps[order]) != 0, True)])
            joint = tuple(column[last] for column in joint)
        return joint

    def places(self, plugin: str, tag: str | None, ends: Mapping[int, float]) -> list[EventPlace]:
        """Where the values of a plugin stand that count, in recording order; `tag` None: of all tags."""
        found: list[EventPlace] = []
        is_ours = True
        for file, part, is_new in self._parts:
            here: list[tuple[int, EventPlace]] = []
            for (kind, name), places in part.others.items():
                if kind != plugin or tag not in (None, name):
                    continue
                at = places.events.load()
                attempts, steps = _attempts(part, at), part.events["step"].take(at)
                # A graph has no step, so no later attempt repeats it.
                counts = None if plugin == "graph" else _counting(part, attempts, steps, ends)
                if is_new is not None:
                    counts = is_new[at] if counts is None else counts & is_new[at]
                columns: tuple[Array, ...] = (
                    at, attempts, part.events["seq"].take(at), steps, part.events["wall_time"].take(at),
                    places.offsets.load(), places.ends.load(), places.shards.load(),
                )  # fmt: skip
                if counts is not None:
                    columns = tuple(column[counts] for column in columns)
                for event, attempt, seq, step, time_s, offset, end, shard in zip(
                    *(column.tolist() for column in columns), strict=True
                ):
                    one = part.shards[shard] if shard >= 0 else None
                    place = EventPlace(attempt, seq, step, time_s, kind, name, file.path, offset, end, one)
                    here.append((event, place))
            # Collected tag by tag: bring the values of all tags into the order of their events.
            here.sort(key=lambda one: one[0])
            found += [place for _, place in here]
            is_ours &= all(run_id for run_id, _ in part.owners)
        if is_ours:
            last = {(place.tag, place.step): place for place in found}
            found = [place for place in found if last[place.tag, place.step] is place]
        return found

    def steps(self) -> tuple[int, int] | None:
        """The lowest and the highest step of any event; None without any.

        Graphs and TensorBoard's own pages, which have no step, do not count unless there is nothing else.
        """
        found = [
            part.events["step"].load()[slice(None) if rows is None else rows] for _, part, rows in self._parts
        ]
        found = [steps for steps in found if steps.size]
        if not found:
            return None
        low = min(low for _, part, _ in self._parts for low in part.lows)
        lowest = min(int(steps.min()) for steps in found) if np.isinf(low) else int(low)
        return lowest, max(int(steps.max()) for steps in found)


def _attempts(part: FileContents, at: Array) -> Array:
    """The attempt of each of the events with the indices `at`."""
    if len({attempt for _, attempt in part.owners}) == 1:
        # The same number for all takes no memory.
        return np.broadcast_to(np.int64(part.owners[0][1]), at.shape)
    return np.array([attempt for _, attempt in part.owners])[part.events["owner"].take(at)]


def _counting(part: FileContents, attempts: Array, steps: Array, ends: Mapping[int, float]) -> Array | None:
    """Which of these steps come before their attempt's end, bool (n,); None: all."""
    if all(ends.get(attempt, np.inf) == np.inf for _, attempt in part.owners):
        return None
    counts = np.ones(steps.size, np.bool_)
    for attempt in {attempt for _, attempt in part.owners}:
        counts &= (attempts != attempt) | (steps < ends.get(attempt, np.inf))
    return counts
