"""MindSpore .ckpt files: Checkpoint messages one after the other, one tensor (or slice of one) in each."""

import math
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distsummary.checkpoints.mapped import (
    MAX_DIMENSIONS,
    MAX_NAME_BYTES,
    MAX_SLICES,
    MAX_TENSORS,
    Array,
    Layout,
    MappedState,
    check_layout,
    map_file,
)
from distsummary.checks import check_type
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError
from distsummary.pb import mindspore_checkpoint_pb2 as pb
from distsummary.publish import replacing

SLICE_BYTES = 512 << 20

_CRC_MARK = b"crc_num"
_CRC_BYTES = 10
_TRAILER_BYTES = len(_CRC_MARK) + _CRC_BYTES

_DTYPES = {
    "Int8": "|i1", "Int16": "<i2", "Int32": "<i4", "Int64": "<i8",
    "UInt8": "|u1", "UInt16": "<u2", "UInt32": "<u4", "UInt64": "<u8",
    "Float16": "<f2", "Float32": "<f4", "Float64": "<f8",
    "BFloat16": "bfloat16", "Bool": "bool", "str": "text",
}  # fmt: skip
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items() if dtype[0] in "<|"} | {
    np.dtype(bool): "Bool"
}


def read_ckpt(path: str | os.PathLike[str]) -> dict[str, Array]:
    """All values of a .ckpt by name, in the file's order, as copies.

    BFloat16 is read as float32 (so writing it back gives Float32). A `str` value, as `append_info` leaves it,
    is a 0-d array of str. Raises as `map_ckpt`.
    """
    return map_ckpt(path).own()


def map_ckpt(path: str | os.PathLike[str]) -> MappedState:
    """The values of a .ckpt in place: nothing but names and shapes is read (and a checksum verified).

    Raises MissingFileError, DamagedFileError for bytes that are not a checkpoint (an encrypted file is such),
    InvalidValueError for a value of a kind that has no array (map parameters, Int4).
    """
    data = map_file(Path(path))
    try:
        return MappedState(data, _layouts(data))
    except DamagedFileError as error:
        raise DamagedFileError(
            f"{os.fspath(path)} is not a MindSpore checkpoint: {error}; encrypted files cannot be read, "
            "a damaged one must be written again"
        ) from error
    except InvalidValueError as error:
        raise InvalidValueError(f"{os.fspath(path)} cannot be used: {error}") from error


def write_ckpt(
    path: str | os.PathLike[str], state: Mapping[str, Array], *, slice_bytes: int = SLICE_BYTES
) -> None:
    """Replace `path` by a .ckpt that MindSpore loads; what `read_ckpt` gave is written to the same bytes.

    Arrays may have any shape (0-d too), of bool, int8 to int64, uint8 to uint64, float16 to float64 or 0-d
    str; of more than `slice_bytes` they are split over several values. Raises InvalidTypeError or
    InvalidValueError before anything is written, RunDirError when writing fails.
    """
    check_type("state", state, Mapping)
    if not state:
        raise InvalidValueError("state must hold at least one array: an empty checkpoint cannot be read")
    for name, value in state.items():
        _check_writable(name, value)
    with replacing(Path(path)) as temporary, open(temporary, "xb") as file:
        for name, value in state.items():
            for message in _messages(name, value, slice_bytes):
                file.write(message)


def _check_writable(name: object, value: object) -> None:
    check_type("a name in state", name, str)
    if not 0 < len(str(name).encode(errors="replace")) <= MAX_NAME_BYTES:
        raise InvalidValueError(
            f"a name in state must have 1 to {MAX_NAME_BYTES} bytes, got {str(name)[:60]!r}"
        )
    check_type(f"state[{name!r}]", value, np.ndarray)
    array: Array = np.asarray(value)
    is_text = array.dtype.kind == "U" and array.ndim == 0
    if not is_text and array.dtype.newbyteorder("<") not in _NAMES:
        raise InvalidTypeError(
            f"state[{name!r}] has the dtype {array.dtype}, which a .ckpt cannot hold; "
            "convert it or leave it out"
        )


def _messages(name: str, value: Array, slice_bytes: int) -> Iterator[bytes]:
    if value.dtype.kind == "U":
        yield _message(name, (0,), "str", value.astype(value.dtype.newbyteorder("<")))
        return
    flat = value.astype(value.dtype.newbyteorder("<"), copy=False).reshape(-1)
    # MindSpore cuts with array_split too, so a split file has its bytes.
    for piece in np.array_split(flat, max(1, math.ceil(flat.nbytes / slice_bytes))):
        yield _message(name, value.shape, _NAMES[flat.dtype], piece)


def _message(name: str, shape: tuple[int, ...], kind: str, content: Array) -> bytes:
    tensor = pb.TensorProto(dims=shape, tensor_type=kind, tensor_content=content.tobytes())
    return pb.Checkpoint(value=[pb.Checkpoint.Value(tag=name, tensor=tensor)]).SerializeToString()


# Reading walks the protobuf wire format itself: the arrays stay where they are, and files of more than the
# 2 GiB that a protobuf parser takes can be read.
#   file    = (0x0a | varint size | Value)* [ "crc_num" | u80-BE CRC-32 of all bytes before ]
#   Value   = 1: tag, 2: Tensor | 3: map parameter
#   Tensor  = 1: dims (varint each, or packed), 2: tensor_type, 3: tensor_content


def _layouts(data: mmap.mmap) -> dict[str, Layout]:
    layouts: dict[str, Layout] = {}
    last = ""
    for start, stop in _values(data):
        name, part = _value(data, start, stop)
        if name in layouts:
            if name != last:
                raise DamagedFileError(f"{name!r} stands there twice")
            layouts[name] = _joined(name, layouts[name], part)
        else:
            _check_complete(last, layouts)
            layouts[name] = part
        last = name
        if len(layouts) > MAX_TENSORS:
            raise DamagedFileError(f"it names more than {MAX_TENSORS} values")
    _check_complete(last, layouts)
    return layouts


def _check_complete(name: str, layouts: dict[str, Layout]) -> None:
    if name not in layouts:
        return
    layout = layouts[name]
    if layout.dtype != "text":
        check_layout(name, layout)


def _joined(name: str, head: Layout, tail: Layout) -> Layout:
    if (head.dtype, head.shape) != (tail.dtype, tail.shape) or head.dtype == "text":
        raise DamagedFileError(f"the slices of {name!r} have different shapes or types")
    if len(head.spans) >= MAX_SLICES:
        raise DamagedFileError(f"{name!r} has more than {MAX_SLICES} slices")
    return Layout(dtype=head.dtype, shape=head.shape, spans=head.spans + tail.spans)


def _values(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    position, size = 0, len(data)
    while position < size:
        if size - position == _TRAILER_BYTES and data[position : position + len(_CRC_MARK)] == _CRC_MARK:
            return _check_crc(data, position)
        number, wire, start, stop = _field(data, position, size)
        if (number, wire) != (1, 2):
            raise DamagedFileError(f"no value begins at byte {position}")
        yield start, stop
        position = stop


def _check_crc(data: mmap.mmap, size: int) -> None:
    crc = 0
    for start in range(0, size, 1 << 20):
        crc = zlib.crc32(data[start : min(start + (1 << 20), size)], crc)
    if crc != int.from_bytes(data[size + len(_CRC_MARK) :], "big"):
        raise DamagedFileError("its checksum is wrong")


def _value(data: mmap.mmap, start: int, stop: int) -> tuple[str, Layout]:
    name: str | None = None
    tensor: tuple[int, int] | None = None
    for number, wire, first, last in _fields(data, start, stop):
        if (number, wire) == (1, 2):
            name = _text(data, first, last)
        elif (number, wire) == (2, 2):
            tensor = first, last
        elif number == 3:
            raise InvalidValueError(
                f"{name!r} is a map parameter, which has no array; leave it out when saving"
            )
    if name is None or tensor is None:
        raise DamagedFileError(f"the value at byte {start} has no name or no tensor")
    return name, _tensor(name, data, *tensor)


def _tensor(name: str, data: mmap.mmap, start: int, stop: int) -> Layout:
    shape: list[int] = []
    kind, content = "", (start, start)
    for number, wire, first, last in _fields(data, start, stop):
        if number == 1 and wire in (0, 2):
            while first < last and len(shape) <= MAX_DIMENSIONS:
                size, first = _varint(data, first, last)
                shape.append(size - (1 << 64) if size >> 63 else size)
        elif (number, wire) == (2, 2):
            kind = _text(data, first, last)
        elif (number, wire) == (3, 2):
            content = first, last
    if kind == "Int4":
        raise InvalidValueError(f"{name!r} is Int4, which has no array; save it as Int8")
    if kind not in _DTYPES:
        raise DamagedFileError(f"{name!r} has the unknown type {kind!r}")
    layout = Layout(dtype=_DTYPES[kind], shape=tuple(shape), spans=(content,))
    return _checked_text(name, data, layout) if kind == "str" else layout


def _checked_text(name: str, data: mmap.mmap, layout: Layout) -> Layout:
    start, stop = layout.spans[0]
    try:
        data[start:stop].decode("utf-32-le")
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{name!r} is not text") from error
    return Layout(dtype="text", shape=(), spans=layout.spans)


def _text(data: mmap.mmap, start: int, stop: int) -> str:
    if stop - start > MAX_NAME_BYTES:
        raise DamagedFileError(f"the name at byte {start} has more than {MAX_NAME_BYTES} bytes")
    try:
        return data[start:stop].decode()
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"the name at byte {start} is not UTF-8") from error


def _fields(data: mmap.mmap, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    while start < stop:
        number, wire, first, last = _field(data, start, stop)
        yield number, wire, first, last
        start = last


def _field(data: mmap.mmap, start: int, stop: int) -> tuple[int, int, int, int]:
    """Number and wire type of the field at `start`, and the byte range of what it holds."""
    key, first = _varint(data, start, stop)
    wire = key & 7
    if wire == 0:
        last = _varint(data, first, stop)[1]
    elif wire == 2:
        size, first = _varint(data, first, stop)
        last = first + size
    else:
        last = first + {1: 8, 5: 4}.get(wire, stop)
    if last > stop or wire not in (0, 1, 2, 5):
        raise DamagedFileError(f"the field at byte {start} does not end where it should")
    return key >> 3, wire, first, last


def _varint(data: mmap.mmap, start: int, stop: int) -> tuple[int, int]:
    value: Any = 0
    for index in range(min(10, stop - start)):
        byte = data[start + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value & (1 << 64) - 1, start + index + 1
    raise DamagedFileError(f"the number at byte {start} does not end")
