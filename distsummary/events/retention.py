"""Retention: bounds the bulk values in a writer's event files; the oldest are removed, all else stays.

A file that is closed is replaced by one with the same events without their bulk values (written with another
name, synced, renamed), whose first event says what was removed. A process that dies leaves one or the other.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from distsummary.base.failures import error_line
from distsummary.base.health import Removed
from distsummary.base.publish import temporary_name
from distsummary.errors import DamagedFileError, RunDirError
from distsummary.events.files import Files
from distsummary.events.index import index_closed
from distsummary.events.scalar_columns import ScalarColumns, read_pieces
from distsummary.events.segment import Segment
from distsummary.events.segments import dialect_of, segments, source_of, stamp_of
from distsummary.events.spec import WriterSpec
from distsummary.format.frames import frame, read_frames
from distsummary.format.records import DIALECTS, MINDSPORE
from distsummary.format.removals import removed_from, with_removed, without_bulk

PARTS = 8  # new files begin when those that are open hold this part of the bulk values that are kept
TRY_AGAIN_S = 5.0
_BLOCK = 4 << 20  # bytes that are copied at once


def removed_below(files: Iterable[Path]) -> Removed:
    """What was removed from the files of one writer; of values in both dialects, each counts once.

    A file that is gone, or cannot be read, counts with nothing.
    """
    found: dict[str, Removed] = {}
    for path in files:
        with suppress(OSError):
            dialect = dialect_of(path)
            found[dialect] = found.get(dialect, Removed()).plus(removed_from(path, dialect))
    total = Removed()
    for one in found.values():
        total = total.plus(one)
    return total._replace(values=found[MINDSPORE].values if MINDSPORE in found else total.values)


def removed_in(directory: Path) -> Removed:
    """What was removed from the event files in a directory; nothing if there is no such directory."""
    with suppress(OSError):
        return removed_below(path for dialect in DIALECTS for path in segments(directory, dialect))
    return Removed()


class Bulk(NamedTuple):
    """An event with bulk values: the bytes `start` to `end` of a file; `payload` is it without them."""

    start: int
    end: int
    payload: bytes
    removed: Removed


def bulk_events(path: Path, dialect: str, most: int) -> Iterator[Bulk]:
    """The events with bulk values of a file that does not grow, until these have `most` bytes.

    Raises OSError, or DamagedFileError: of what is damaged, no one can say what it holds.
    """
    end = taken = 0
    for piece in read_pieces(path, dialect):
        if isinstance(piece, ScalarColumns):
            end = int(piece.ends[-1])
            continue
        if piece.damage is not None:
            raise DamagedFileError(f"{path} is damaged at byte {piece.offset}: {piece.damage}")
        end = piece.end
        if (found := without_bulk(piece.payload, dialect)) is not None:
            taken += piece.end - piece.offset
            yield Bulk(piece.offset, end, *found)
            if taken >= most:
                return
    if end != path.stat().st_size:
        raise DamagedFileError(f"{path} ends inside an event")


def remove_bulk(path: Path, dialect: str, files: Files, most: int) -> Removed:
    """Replace a file that does not grow by one without its oldest bulk values, about `most` bytes of them.

    Raises OSError or DamagedFileError; the file is then as it was.
    """
    removed = removed_from(path, dialect)
    now = Removed()
    for one in bulk_events(path, dialect, most):
        now = now.plus(one.removed._replace(nbytes=one.end - one.start))
    if not now.values:
        return now
    temporary = temporary_name(path.parent)
    target = Segment(temporary, files)
    try:
        with open(path, "rb") as source:
            first = next(read_frames(source))
            target.append(frame(with_removed(first.payload, dialect, removed.plus(now))))
            at = first.end
            for one in bulk_events(path, dialect, most):
                _copy(source, at, one.start, target)
                target.append(frame(one.payload))
                at = one.end
            _copy(source, at, path.stat().st_size, target)
        target.sync()
        files.replace(temporary, path)
    finally:
        target.close()
        temporary.unlink(missing_ok=True)
    return now


def _copy(source: BinaryIO, start: int, end: int, target: Segment) -> None:
    source.seek(start)
    while start < end:
        block = source.read(min(_BLOCK, end - start))
        if not block:
            raise DamagedFileError(f"{source.name} became shorter while it was read")
        target.append(block)
        start += len(block)


class Retention:
    """Keeps the bulk values in a writer's event files below a number of bytes, those that are open included.

    Args:
        spec: whose files, with those of earlier attempts. keep_bytes: of events with bulk values.
        files: the file operations. fail: called with the description of each failure.

    Attributes:
        removed: what was removed, by this writer and those before it.
    """

    def __init__(self, spec: WriterSpec, keep_bytes: int, files: Files, fail: Callable[[str], None]) -> None:
        self._spec, self._keep_bytes, self._files, self._fail = spec, keep_bytes, files, fail
        self._bulk: dict[Path, int] = {}  # file -> bytes of its events with bulk values, oldest first
        self._tried_at = 0.0  # when a file could not be replaced
        found = [
            path
            for dialect in DIALECTS
            if dialect in spec.formats
            for path in segments(Path(spec.directory), dialect)
            if source_of(path.name) == spec.writer_name
        ]
        self.removed = removed_below(found)
        for path in sorted(found, key=lambda path: stamp_of(path.name) or 0):
            # At most all of it; when it is the oldest, it is looked at.
            self._bulk[path] = path.stat().st_size

    def wrote(self, path: Path, nbytes: int) -> None:
        """Count events with bulk values that were appended to a file."""
        self._bulk[path] = self._bulk.get(path, 0) + nbytes

    def is_due(self, paths: Collection[Path]) -> bool:
        """Whether new files must follow those that are open."""
        return sum([self._bulk.get(path, 0) for path in paths]) >= self._keep_bytes // PARTS

    def make_room(self, incoming: int, paths: Collection[Path]) -> None:
        """Before `incoming` bytes of such events are written: remove the oldest, as far as files are closed.

        Args:
            paths: the files that are open, or must stay as they are.
        """
        now = self._files.now()
        if not self._has_too_much(incoming) or abs(now - self._tried_at) < TRY_AGAIN_S:
            return
        last = None
        for path in [path for path in self._bulk if path not in paths]:
            # The files of both dialects that share a stamp hold the same values.
            is_pair = stamp_of(path.name) == last
            if not is_pair and not self._has_too_much(incoming):
                return
            try:
                if self._remove(path, None if is_pair else incoming):
                    last = stamp_of(path.name)
            except FileNotFoundError:
                del self._bulk[path]
            except DamagedFileError as error:
                del self._bulk[path]
                self._fail(f"keep_bytes: the bulk values of a file stay in it: {error_line(error)}")
            except (OSError, RunDirError) as error:
                self._tried_at = now
                self._fail(f"keep_bytes: no bulk values are removed now: {error_line(error)}")
                return

    def _has_too_much(self, incoming: int) -> bool:
        return sum(self._bulk.values()) + incoming > self._keep_bytes

    def _remove(self, path: Path, incoming: int | None) -> bool:
        """Remove the bulk values of a file if there is no room for `incoming` bytes, by an exact look at it.

        None: remove them anyway. Returns whether it did.
        """
        held, dialect = self._files.open_dead(path), dialect_of(path)
        if held is None:
            # Its writer lives: what it appends is not ours to count.
            del self._bulk[path]
            return False
        try:
            everything = path.stat().st_size
            self._bulk[path] = sum(one.end - one.start for one in bulk_events(path, dialect, everything))
            if self._bulk[path] and incoming is not None and not self._has_too_much(incoming):
                return False
            removed = remove_bulk(path, dialect, self._files, everything)
        finally:
            self._files.close(held)
        del self._bulk[path]
        is_counted = dialect == MINDSPORE or MINDSPORE not in self._spec.formats
        self.removed = self.removed.plus(removed if is_counted else removed._replace(values=0))
        index_closed(path)
        return removed.values > 0
