"""The judge's own reader of event files, which shares nothing with the product's."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from tests.torture.workload import LINEAGE_KEY, MINDSPORE, TENSORBOARD, fingerprint

_STAMP = {MINDSPORE: re.compile(r"\.summary\.(\d+)\."), TENSORBOARD: re.compile(r"\.tfevents\.(\d+)\.")}
_HELPER = re.compile(r"torn-\d+\.bin|seg-[0-9a-f]+\.idx|manifest\.json|run\.json|export_\d+|\.lock")


class Record(NamedTuple):
    """One frame: `payload` is None for bytes that are no frame, `is_torn` if the file's end cuts it."""

    offset: int
    payload: bytes | None
    is_torn: bool = False


class Found(NamedTuple):
    """An event of a file: `values` is tag -> fingerprint."""

    run_id: str
    attempt: int
    seq: int
    step: int
    values: dict[str, str]


def files_of(directory: Path, dialect: str, *, lineage: bool = False) -> list[Path]:
    """The event files of a dialect in the order of their stamps."""
    found = []
    for path in directory.iterdir():
        stamp = _STAMP[dialect].search(path.name)
        if stamp and path.name.endswith("_lineage") == lineage:
            found.append((int(stamp[1]), path.name, path))
    return [path for *_, path in sorted(found)]


def strays(directory: Path) -> list[Path]:
    """Files that no reader and no repair has a use for: temporary ones that were left."""
    known = {
        path
        for dialect in _STAMP
        for flag in (True, False)
        for path in files_of(directory, dialect, lineage=flag)
    }
    return [path for path in directory.iterdir() if path not in known and not _HELPER.fullmatch(path.name)]


def records(data: bytes) -> Iterator[Record]:
    """Every frame of a file; behind damage it continues at the next place where a whole frame stands."""
    offset = 0
    while offset < len(data):
        end = _end_of_frame(data, offset)
        if end is None:
            intact = (at for at in range(offset + 1, len(data) - 15) if _is_frame(data, at))
            following = next(intact, None)
            yield Record(offset, None, is_torn=following is None and _is_cut(data, offset))
            if following is None:
                return
            offset = following
        elif _is_frame(data, offset):
            yield Record(offset, data[offset + 12 : end - 4])
            offset = end
        else:
            yield Record(offset, None)
            offset = end


def _end_of_frame(data: bytes, offset: int) -> int | None:
    """Where the frame at `offset` ends, None if its header is wrong or goes beyond the file."""
    if offset + 12 > len(data):
        return None
    length, crc = struct.unpack_from("<QI", data, offset)
    end = offset + 16 + length
    return int(end) if end <= len(data) and crc == _masked(data[offset : offset + 8]) else None


def _is_frame(data: bytes, offset: int) -> bool:
    end = _end_of_frame(data, offset)
    return end is not None and struct.unpack_from("<I", data, end - 4)[0] == _masked(
        data[offset + 12 : end - 4]
    )


def _is_cut(data: bytes, offset: int) -> bool:
    """Whether what stands at `offset` is the beginning of a frame that the end of the file cuts."""
    if offset + 12 > len(data):
        return True
    length, crc = struct.unpack_from("<QI", data, offset)
    return bool(crc == _masked(data[offset : offset + 8]) and offset + 16 + length > len(data))


def _masked(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(payload: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a protobuf message: int for varints, bytes for the others."""
    position = 0
    while position < len(payload):
        head, position = _varint(payload, position)
        number, kind = head >> 3, head & 7
        if kind == 0:
            value: Any
            value, position = _varint(payload, position)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                if kind != 2:
                    raise ValueError(f"wire type {kind}")
                size, position = _varint(payload, position)
            value = payload[position : position + size]
            if len(value) < size:
                raise ValueError("a field goes beyond its message")
            position += size
        yield number, value


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = payload[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7


def decode(payload: bytes, dialect: str) -> Found | None:
    """The event of a payload; None for a version or session record. Raises ValueError or IndexError."""
    top: dict[int, Any] = dict(fields(payload))
    step = top.get(2, 0)
    if 5 in top:
        values = dict(_value(value, dialect) for number, value in fields(top[5]) if number == 1)
    elif dialect == MINDSPORE and 4 in top:
        name = dict(fields(top[4]))[2].decode()
        values = {"": f"graph {name}"}
        step = int(name.rpartition("-")[2])  # MindSpore's graph events have no step
    else:
        return None
    run_id = f"{struct.unpack('<Q', top[1000])[0]:016x}" if 1000 in top else ""
    return Found(run_id, top.get(1001, 0), top.get(1002, 0), step, values)


def _value(payload: bytes, dialect: str) -> tuple[str, str]:
    parts = list(fields(payload))
    named = dict(parts)
    tag = named[1].decode()
    if dialect == MINDSPORE:
        return tag, _mindspore_value(named)
    if 2 in named:
        return tag, f"scalar {named[2].hex()}"
    if 4 in named:
        return tag, fingerprint("image", dict(fields(named[4]))[4])
    if 5 in named:
        return tag, _tensorboard_histogram(dict(fields(named[5])))
    if 8 in named:  # a scalar as TensorFlow 2 and newer writers have it
        tensor = dict(fields(named[8]))
        return tag, f"scalar {bytes(tensor.get(4) or tensor.get(5) or b'').hex()}"
    return tag, "unknown"


def _mindspore_value(named: dict[int, Any]) -> str:
    if 3 in named:
        return f"scalar {named[3].hex()}"
    if 4 in named:
        return fingerprint("image", dict(fields(named[4]))[4])
    if 8 in named:
        floats = dict(fields(named[8])).get(3, b"")
        return fingerprint("tensor", np.frombuffer(floats, "<f4"))
    if 9 in named:
        return _mindspore_histogram(list(fields(named[9])))
    return "unknown"


def _mindspore_histogram(parts: list[tuple[int, Any]]) -> str:
    named = dict(parts)
    counted = sum(dict(fields(bucket)).get(3, 0) for number, bucket in parts if number == 1)
    low, high = (struct.unpack("<d", named[number])[0] for number in (6, 5))
    return _histogram(named[8], counted, low, high)


def _tensorboard_histogram(named: dict[int, Any]) -> str:
    low, high, number = (struct.unpack("<d", named.get(key, bytes(8)))[0] for key in (1, 2, 3))
    return _histogram(int(number), int(np.frombuffer(named[7], "<f8").sum()), low, high)


def _histogram(count: int, counted: int, low: float, high: float) -> str:
    return (
        f"histogram {count} {low!r} {high!r}" if count == counted else f"histogram {count} counts {counted}"
    )


def lineage_number(path: Path) -> int:
    """The number of the event whose lineage a file holds, 0 for none."""
    found = [0]
    for record in records(path.read_bytes()):
        if record.payload is not None:
            found += [n for number, info in fields(record.payload) if number == 10 for n in _numbers(info)]
    return max(found)


def _numbers(info: bytes) -> Iterator[int]:
    for number, value in fields(info):
        if number == 1:
            yield from _numbers(value)
        elif number == 3:
            entry = dict(fields(value))
            if entry[1].decode() == LINEAGE_KEY:
                yield entry[2]
