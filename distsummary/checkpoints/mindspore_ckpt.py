"""MindSpore .ckpt files: a sequence of Checkpoint messages, each with one tensor or one slice of a tensor."""

import math
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from distsummary.base.checks import check_type
from distsummary.base.publish import replacing
from distsummary.checkpoints.mapped import (
    MAX_DIMENSIONS,
    MAX_NAME_BYTES,
    MAX_SLICES,
    MAX_TENSORS,
    Array,
    MappedState,
    StoredArray,
    check_stored,
    map_file,
)
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError
from distsummary.format.pb import mindspore_checkpoint_pb2 as pb
from distsummary.format.wire import read_varint

Bytes: TypeAlias = mmap.mmap | bytes

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


def holds(dtype: object) -> bool:
    """Whether a .ckpt can hold arrays of a dtype."""
    return isinstance(dtype, np.dtype) and dtype.newbyteorder("<") in _NAMES


def map_ckpt(path: str | os.PathLike[str], data: bytes | None = None) -> MappedState:
    """The arrays of a .ckpt file in file order; each is read when it is accessed.

    Opening reads names and shapes, and all bytes if the file has a checksum. BFloat16 becomes float32 (so
    writing it back gives Float32). A `str` value, as written by MindSpore's `append_info`, becomes a 0-d
    array of str. `data`: the decrypted bytes of an encrypted file.

    Raises MissingFileError, DamagedFileError for bytes that are not a checkpoint (such as an encrypted file),
    or InvalidValueError for values that NumPy has no array for (map parameters, Int4).
    """
    found: Bytes = map_file(Path(path)) if data is None else data
    try:
        return MappedState(found, _stored_arrays(found))
    except InvalidValueError as error:
        raise InvalidValueError(f"{os.fspath(path)} cannot be used: {error}") from error
    except ValueError as error:
        # A DamagedFileError, or an error of read_varint.
        raise DamagedFileError(
            f"{os.fspath(path)} is not a MindSpore checkpoint: {error}; an encrypted one is read by "
            "ds.load_checkpoint(path, dec_key=key), a damaged one must be written again"
        ) from error


def ckpt_bytes(state: Mapping[str, Array]) -> bytes:
    """The file that `write_ckpt` writes; raises the same errors for a bad state."""
    _check_state(state)
    return b"".join(_messages(state, SLICE_BYTES))


def write_ckpt(
    path: str | os.PathLike[str], state: Mapping[str, Array], *, slice_bytes: int = SLICE_BYTES
) -> None:
    """Replace `path` by a .ckpt that MindSpore can load.

    Writing a state from `map_ckpt` reproduces the bytes of its file, except for BFloat16 and the checksum.
    An array may have any shape (including 0-d) and the dtype bool, int8 to int64, uint8 to uint64 or float16
    to float64; an array of str must be 0-d. An array of more than `slice_bytes` is split into several values.
    Raises InvalidTypeError or InvalidValueError before anything is written, or RunDirError if writing fails.
    """
    _check_state(state)
    with replacing(Path(path)) as temporary, open(temporary, "xb") as file:
        file.writelines(_messages(state, slice_bytes))


def _check_state(state: Mapping[str, Array]) -> None:
    check_type("state", state, Mapping)
    if not state:
        raise InvalidValueError("state must hold at least one array: an empty checkpoint cannot be read")
    for name, value in state.items():
        check_type("a name in state", name, str)
        if not 0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES:
            raise InvalidValueError(
                f"a name in state must have 1 to {MAX_NAME_BYTES} bytes, got {name[:60]!r}"
            )
        check_type(f"state[{name!r}]", value, np.ndarray)
        is_text = value.dtype.kind == "U" and value.ndim == 0
        if not is_text and value.dtype.newbyteorder("<") not in _NAMES:
            raise InvalidTypeError(
                f"state[{name!r}] has the dtype {value.dtype}, which a .ckpt cannot hold; "
                "convert it or leave it out"
            )


def _messages(state: Mapping[str, Array], slice_bytes: int) -> Iterator[bytes]:
    for name, value in state.items():
        array = value.astype(value.dtype.newbyteorder("<"), copy=False)
        if array.dtype.kind == "U":
            yield _message(name, (0,), "str", array)
            continue
        # MindSpore also uses array_split, so that both write the same bytes.
        for piece in np.array_split(array.reshape(-1), max(1, math.ceil(array.nbytes / slice_bytes))):
            yield _message(name, array.shape, _NAMES[array.dtype], piece)


def _message(name: str, shape: tuple[int, ...], kind: str, content: Array) -> bytes:
    tensor = pb.TensorProto(dims=shape, tensor_type=kind, tensor_content=content.tobytes())
    return pb.Checkpoint(value=[pb.Checkpoint.Value(tag=name, tensor=tensor)]).SerializeToString()


# This reader walks the protobuf wire format itself, so that arrays need not be copied and a file may exceed
# the 2 GiB limit of protobuf parsers. Numbers before a colon are field numbers:
#   file    = (0x0a | varint size | Value)* [ "crc_num" | u80-BE CRC-32 of all bytes before it ]
#   Value   = 1: tag, 2: Tensor | 3: map parameter
#   Tensor  = 1: dims (varint each, or packed), 2: tensor_type, 3: tensor_content


def _stored_arrays(data: Bytes) -> dict[str, StoredArray]:
    """The arrays in a file, by name, with their byte ranges; consecutive slices of an array are joined."""
    arrays: dict[str, StoredArray] = {}
    last, position, size = "", 0, len(data)
    while position < size:
        # A file may end with a checksum of all bytes before it.
        if size - position == _TRAILER_BYTES and data[position : position + len(_CRC_MARK)] == _CRC_MARK:
            crc = 0
            for start in range(0, position, 1 << 20):
                crc = zlib.crc32(data[start : min(start + (1 << 20), position)], crc)
            if crc != int.from_bytes(data[position + len(_CRC_MARK) :], "big"):
                raise DamagedFileError("its checksum is wrong")
            break
        number, wire, start, stop = _field(data, position, size)
        if (number, wire) != (1, 2):
            raise DamagedFileError(f"no value begins at byte {position}")
        name, array = _value(data, start, stop)
        # A name that follows itself has the next slice of the same array.
        head = arrays.get(name)
        if head is not None:
            if name != last:
                raise DamagedFileError(f"{name!r} occurs twice")
            if (head.dtype, head.shape) != (array.dtype, array.shape) or head.dtype == "text":
                raise DamagedFileError(f"the slices of {name!r} have different shapes or types")
            if len(head.spans) >= MAX_SLICES:
                raise DamagedFileError(f"{name!r} has more than {MAX_SLICES} slices")
            array = replace(head, spans=head.spans + array.spans)
        elif len(arrays) == MAX_TENSORS:
            raise DamagedFileError(f"it names more than {MAX_TENSORS} values")
        arrays[name] = array
        last, position = name, stop
    # The size of an array is known when all of its slices are.
    for name, array in arrays.items():
        if array.dtype != "text":
            check_stored(name, array)
    return arrays


def _value(data: Bytes, start: int, stop: int) -> tuple[str, StoredArray]:
    """The name and the array (or slice of an array) in a Value message."""
    name: str | None = None
    tensor: tuple[int, int] | None = None
    for number, wire, first, last in _fields(data, start, stop):
        if (number, wire) == (1, 2):
            name = _text(data, first, last)
        elif (number, wire) == (2, 2):
            tensor = first, last
        elif number == 3:
            raise InvalidValueError(
                f"{name!r} is a map parameter, which NumPy cannot hold; leave it out when saving"
            )
    if name is None or tensor is None:
        raise DamagedFileError(f"the value at byte {start} has no name or no tensor")

    shape: list[int] = []
    kind, content = "", (start, start)
    for number, wire, first, last in _fields(data, *tensor):
        if number == 1 and wire in (0, 2):
            # Each field has one varint or several packed ones.
            while first < last and len(shape) <= MAX_DIMENSIONS:
                size, first = read_varint(data, first)
                shape.append((size + (1 << 63)) % (1 << 64) - (1 << 63))  # int64
            if first > last:
                raise DamagedFileError(f"the shape of {name!r} does not end where it should")
        elif (number, wire) == (2, 2):
            kind = _text(data, first, last)
        elif (number, wire) == (3, 2):
            content = first, last
    if kind == "Int4":
        raise InvalidValueError(f"{name!r} is Int4, which NumPy cannot hold; save it as Int8")
    if kind not in _DTYPES:
        raise DamagedFileError(f"{name!r} has the unknown type {kind!r}")
    if kind == "str":
        try:
            data[slice(*content)].decode("utf-32-le")
        except UnicodeDecodeError as error:
            raise DamagedFileError(f"{name!r} is not text") from error
        # A text is an array without axes, whatever shape the file gives it.
        shape = []
    return name, StoredArray(dtype=_DTYPES[kind], shape=tuple(shape), spans=(content,))


def _text(data: Bytes, start: int, stop: int) -> str:
    if stop - start > MAX_NAME_BYTES:
        raise DamagedFileError(f"the name at byte {start} has more than {MAX_NAME_BYTES} bytes")
    try:
        return data[start:stop].decode()
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"the name at byte {start} is not UTF-8") from error


def _fields(data: Bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    while start < stop:
        number, wire, first, last = _field(data, start, stop)
        yield number, wire, first, last
        start = last


def _field(data: Bytes, start: int, stop: int) -> tuple[int, int, int, int]:
    """Number and wire type of the field at `start`, and the byte range of its content."""
    key, first = read_varint(data, start)
    wire = key & 7
    if wire == 0:
        last = read_varint(data, first)[1]
    elif wire == 2:
        size, first = read_varint(data, first)
        last = first + size
    else:
        # Types 1 and 5 have 8 and 4 bytes; any other type is refused below.
        last = first + {1: 8, 5: 4}.get(wire, stop)
    if last > stop or wire not in (0, 1, 2, 5):
        raise DamagedFileError(f"the field at byte {start} does not end where it should")
    return key >> 3, wire, first, last
