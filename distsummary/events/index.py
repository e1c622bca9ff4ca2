"""The index of an event file, `seg-<hash>.idx`: its columns, so that a tag is read without reading the file.

A writer leaves it when it closes the file. The event file stays the truth: an index that is missing, damaged,
of another version or of other bytes is made again. It is valid for the first `end` bytes of the file, which
must be those that it was made from: of the same size and modification time, or with the same CRC. What a
growing file holds after them is read from the file itself.

    8 bytes magic | u32 length of the header | u32 CRC of the header | header, JSON | columns

A column in the header is ["p", first, stride, count] (a progression) or ["a", dtype, place, count, CRC].
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import google_crc32c
import numpy as np
from msgspec import Meta

from distsummary.base.checked_json import check_kind, parse_json
from distsummary.base.guard import guarded_log
from distsummary.base.publish import replacing
from distsummary.errors import DamagedFileError, RunDirError
from distsummary.events.contents import (
    EVENT_COLUMNS,
    Array,
    Column,
    FileContents,
    Places,
    Progression,
    Series,
    scan,
)
from distsummary.events.reader import Damage
from distsummary.events.segments import LEAST_BYTES, all_event_files
from distsummary.format.records import Shard
from distsummary.rundir.run_records import MOST_WHOLE, Whole

MAGIC = b"dsindex\n"
VERSION = 1
MOST_BYTES = 64 << 20  # of an event file that its writer indexes; the first reader takes the memory for more
_MAX_HEADER = 64 << 20
_TAG_BYTES = 100  # of a tag in a header
_BLOCK = 8 << 20
# Bytes that an index leaves free, as bulk values do; 1/50 of the disk if that is less.
MAX_RESERVE = 256 << 20
_HEAD = struct.Struct("<8sII")
LEAST_EVENT, LEAST_SCALAR, LEAST_VALUE = 16, 7, 2  # bytes in an event file, whatever they hold
_STORED = tuple[Literal["a"], Literal["<f4", "<f8", "<i4", "<i8"], Whole, Whole, Whole]

logger = guarded_log(__name__)


_Step = Annotated[float, Meta(ge=-MOST_WHOLE - 1, le=MOST_WHOLE)]


class _Header(TypedDict):
    version: int
    file: str
    end: Whole
    size: int
    mtime_ns: int
    crc: Whole
    owners: list[tuple[str, Whole]]
    lows: list[_Step | None]
    shards: list[tuple[list[Whole], list[Whole]]]
    events: dict[str, list[Any]]
    scalars: list[tuple[str, list[Any], list[Any]]]
    others: list[tuple[str, str, list[Any], list[Any], list[Any], list[Any]]]
    damage: list[tuple[Whole, str]]


class DamagedIndexError(Exception):
    """Internal: an index does not hold what its header says, or what the header said when it was read: then
    another reader, or the writer, has replaced it.

    `path`: the index. `column`: the one that is not there; None: the header.
    """

    def __init__(self, path: Path, reason: str, column: "Stored | None" = None) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.column = path, column


class Stored(NamedTuple):
    """A column in an index file, read when it is needed."""

    path: Path
    dtype: str
    place: int
    length: int
    crc: int
    span: tuple[int, int] | None = None  # the numbers are between these, the second excluded; None: any

    @property
    def size(self) -> int:
        """n."""
        return self.length

    def load(self) -> Array:
        """Read the array; raises DamagedIndexError."""
        size = self.length * np.dtype(self.dtype).itemsize
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(self.place)
                data = file.read(size)
        except OSError as error:
            raise DamagedIndexError(self.path, str(error), self) from error
        if len(data) != size or google_crc32c.value(data) != self.crc:
            raise DamagedIndexError(self.path, f"the column at byte {self.place} is damaged", self)
        array = np.frombuffer(data, self.dtype)
        low, high = self.span or (0, 0)
        if self.span and array.size and not low <= int(array.min()) <= int(array.max()) < high:
            raise DamagedIndexError(self.path, f"the column at byte {self.place} is out of its range", self)
        return array

    def take(self, at: Array) -> Array:
        """See Column."""
        return self.load()[at]


class Beginning(NamedTuple):
    """The first `length` elements of a column of an index that covers more of its file."""

    column: Column
    length: int

    @property
    def size(self) -> int:
        """n."""
        return self.length

    def load(self) -> Array:
        """Read the array; raises DamagedIndexError."""
        return self.column.load()[: self.length]

    def take(self, at: Array) -> Array:
        """See Column."""
        return self.column.take(at)


def index_path(segment: Path) -> Path:
    """The index of an event file, next to it; no viewer takes the name for that of an event file."""
    return segment.parent / f"seg-{hashlib.blake2b(segment.name.encode(), digest_size=8).hexdigest()}.idx"


def is_index(name: str) -> bool:
    """Whether a file of this name is an index."""
    return name.startswith("seg-") and name.endswith(".idx")


def read_index(segment: Path) -> FileContents | None:
    """What the index says about the beginning of an event file; None if there is none that is valid."""
    path = index_path(segment)
    try:
        header, at = _header(path)
        if header["version"] != VERSION or header["file"] != segment.name:
            return None
        part = _part(path, segment, header, at)
        stat = segment.stat()
        # The CRC is the costly check: it is needed only if the size or the time is another one.
        is_same = (stat.st_size, stat.st_mtime_ns) == (header["size"], header["mtime_ns"])
        if stat.st_size < part.end or not (is_same or crc_of(segment, part.end) == header["crc"]):
            return None
        return part
    except (OSError, DamagedIndexError):
        return None


def continued(part: FileContents, error: DamagedIndexError, segment: Path) -> FileContents | None:
    """A part whose index was replaced by one that covers more of the same file, with the columns of that one;
    None if there is no such index. One that is damaged is removed.
    """
    newer = read_index(segment)
    if newer is None or newer.size < part.size:
        return None
    if error.column in [*_columns(newer)]:
        # It is the index that the part was read from, hence damaged. Where it cannot be removed, it stays:
        # who can write there makes it again.
        with suppress(OSError):
            error.path.unlink()
        return None

    def moved(old: Column, new: Column) -> Column:
        return Beginning(new, old.size) if isinstance(old, (Stored, Beginning)) else old

    return replace(
        part,
        events={name: moved(column, newer.events[name]) for name, column in part.events.items()},
        scalars={
            tag: Series(*map(moved, series, newer.scalars[tag])) for tag, series in part.scalars.items()
        },
        others={key: Places(*map(moved, places, newer.others[key])) for key, places in part.others.items()},
    )


def write_index(segment: Path, part: FileContents) -> bool:
    """Write the index of the first `part.end` bytes of an event file, replacing an older one.

    False if that is not possible: the directory cannot be written, the disk is nearly full, or there are too
    many tags for their values. Indexes in the directory whose event files are gone, such as those of an
    earlier merge, are removed.
    """
    path = index_path(segment)
    data: list[bytes] = []
    try:
        stat = segment.stat()
        if not os.access(path.parent, os.W_OK | os.X_OK):
            return False
        if not _has_room(len(part.scalars) + len(part.others), part.end):
            return False
        header = _described(part, data) | {
            "version": VERSION,
            "file": segment.name,
            # While the file grows, its CRC decides.
            "size": stat.st_size if stat.st_size == part.end else -1,
            "mtime_ns": stat.st_mtime_ns,
            "crc": crc_of(segment, part.end),
        }
        head = json.dumps(header).encode()
        # The training needs the rest of the disk more: an index can be made again at any time.
        disk = os.statvfs(path.parent)
        reserved = min(MAX_RESERVE, disk.f_blocks * disk.f_frsize // 50)
        if disk.f_bavail * disk.f_frsize < reserved + len(head) + sum(map(len, data)):
            return False
        with replacing(path, is_durable=False) as temporary, open(temporary, "xb") as file:
            file.write(_HEAD.pack(MAGIC, len(head), google_crc32c.value(head)))
            file.writelines([head, *data])
        # Indexes are listed before event files, so that one that appears meanwhile is not removed.
        found = [other for other in path.parent.iterdir() if is_index(other.name)]
        wanted = {index_path(one) for one in all_event_files(path.parent)}
        for other in found:
            if other not in wanted:
                other.unlink(missing_ok=True)
    except (OSError, RunDirError) as error:
        logger.debug("no index of %s: %s", segment, error)
        with suppress(OSError):
            path.unlink()
        return False
    return True


def index_closed(segment: Path) -> bool:
    """Write the index of an event file that its writer has just closed.

    False if it has less than LEAST_BYTES or more than MOST_BYTES, or as `write_index`.
    """
    try:
        is_due = LEAST_BYTES <= segment.stat().st_size <= MOST_BYTES
        return is_due and write_index(segment, scan(segment))
    except (OSError, RunDirError) as error:
        logger.debug("no index of %s: %s", segment, error)
        return False


def crc_of(path: Path, size: int) -> int:
    """The CRC-32C of the first `size` bytes of a file."""
    crc = 0
    with open(path, "rb", buffering=0) as file:
        while size > 0 and (block := file.read(min(size, _BLOCK))):
            crc = google_crc32c.extend(crc, block)
            size -= len(block)
    return crc


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and the byte at which the columns begin."""
    with open(path, "rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise DamagedIndexError(path, "it is too short")
        magic, length, crc = _HEAD.unpack(head)
        if magic != MAGIC or length > _MAX_HEADER:
            raise DamagedIndexError(path, "it is no index")
        text = file.read(length)
    if google_crc32c.value(text) != crc:
        raise DamagedIndexError(path, "its header is damaged")
    try:
        return parse_json(text, _Header, name="its header", most_bytes=_MAX_HEADER), _HEAD.size + length
    except DamagedFileError as error:
        raise DamagedIndexError(path, str(error)) from error


def _part(path: Path, segment: Path, header: dict[str, Any], at: int) -> FileContents:
    """What the header says; no more is believed than an event file of `end` bytes can hold."""
    size, end = path.stat().st_size, header["end"]
    room = end

    def column(found: list[Any], kind: str, low: int = -(1 << 63), high: int = 1 << 63) -> Column:
        if found[0] == "p" and kind == "i":
            _, first, stride, length = check_kind(found, tuple[str, int, int, Whole], name="a column")
            last = first + stride * max(0, length - 1)
            if not low <= min(first, last) <= max(first, last) < high:
                raise ValueError(f"a column goes from {first} to {last}")
            return Progression(first, stride, length)
        _, dtype, place, length, crc = check_kind(found, _STORED, name="a column")
        end = at + place + length * np.dtype(dtype).itemsize
        if end > size or dtype[1] != kind:
            raise ValueError(f"a column of {dtype} ends at byte {end} of {size}")
        return Stored(path, dtype, at + place, length, crc, (low, high) if kind == "i" else None)

    def columns(found: Sequence[list[Any]], least: int, *kinds: tuple[Any, ...]) -> list[Column]:
        """Columns of one table; each of its rows takes at least so many bytes of the event file."""
        nonlocal room
        made = [column(one, *kind) for one, kind in zip(found, kinds, strict=True)]
        room -= made[0].size * least
        if room < 0 or len({one.size for one in made}) > 1:
            raise ValueError(f"columns of {[one.size for one in made]} elements for {end} bytes of events")
        return made

    try:
        if not _has_room(len(header["scalars"]) + len(header["others"]), end):
            raise ValueError("it has more tags than an index is made for")
        if len(header["owners"]) != len(header["lows"]):
            raise ValueError("not every attempt has its lowest step")
        if header["events"] and header["events"].keys() != EVENT_COLUMNS.keys():
            raise ValueError(f"the columns are {', '.join(header['events'])}")
        # Whatever columns refer to must exist: owners, and below also events, bytes and shards.
        kinds = (("i", 0, len(header["owners"])), ("i",), ("i",), ("f",))
        found = [header["events"][name] for name in EVENT_COLUMNS] if header["events"] else ()
        events = dict(zip(EVENT_COLUMNS, columns(found, LEAST_EVENT, *kinds), strict=True)) if found else {}
        at_event = ("i", 0, events["step"].size if events else 0)
        at_byte, of_shard = ("i", 0, end + 1), ("i", -1, len(header["shards"]))
        return FileContents(
            end=end,
            owners=tuple((run_id, attempt) for run_id, attempt in header["owners"]),
            lows=tuple(np.inf if low is None else float(low) for low in header["lows"]),
            shards=tuple(
                Shard(global_shape=tuple(shape), offset=tuple(offset)) for shape, offset in header["shards"]
            ),
            events=events,
            scalars={
                tag: Series(*columns(found, LEAST_SCALAR, at_event, ("f",)))
                for tag, *found in header["scalars"]
            },
            others={
                (plugin, tag): Places(*columns(found, LEAST_VALUE, at_event, at_byte, at_byte, of_shard))
                for plugin, tag, *found in header["others"]
            },
            damage=tuple(Damage(segment, offset, why) for offset, why in header["damage"]),
        )
    except (ValueError, IndexError) as error:
        # DamagedFileError is a ValueError.
        raise DamagedIndexError(path, f"its header is no header ({error})") from error


def _has_room(tags: int, end: int) -> bool:
    """Whether a header with so many tags is read faster than the first `end` bytes of the event file."""
    return tags * _TAG_BYTES <= min(max(end, LEAST_BYTES), _MAX_HEADER)


def _described(part: FileContents, data: list[bytes]) -> dict[str, Any]:
    """The part as JSON; the bytes of its arrays are appended to `data`."""
    place = 0
    known: dict[int, list[Any]] = {}  # id of a column; many tags may share one

    def described(column: Column) -> list[Any]:
        nonlocal place
        if isinstance(column, Progression):
            return ["p", *column]
        if id(column) in known:
            return known[id(column)]
        array = column.load()
        if array.dtype.kind == "i" and array.size and -(2**31) <= array.min() <= array.max() < 2**31:
            array = array.astype(np.int32)
        little = array.dtype.newbyteorder("<")
        octets = array.astype(little, copy=False).tobytes()
        known[id(column)] = ["a", little.str, place, array.size, google_crc32c.value(octets)]
        data.append(octets)
        place += len(octets)
        return known[id(column)]

    return {
        "end": part.end,
        "owners": part.owners,
        "lows": [None if np.isinf(low) else low for low in part.lows],
        "shards": [(shard.global_shape, shard.offset) for shard in part.shards],
        "events": {name: described(column) for name, column in part.events.items()},
        "scalars": [[tag, *map(described, series)] for tag, series in part.scalars.items()],
        "others": [[*key, *map(described, places)] for key, places in part.others.items()],
        "damage": [(one.offset, one.reason) for one in part.damage],
    }


def _columns(part: FileContents) -> Iterable[Column]:
    yield from part.events.values()
    for found in (*part.scalars.values(), *part.others.values()):
        yield from found
