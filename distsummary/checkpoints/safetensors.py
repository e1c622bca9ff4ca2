"""safetensors files: the safetensors library writes and validates them; arrays are read in place."""

import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize, numpy, safe_open

from distsummary.base.checks import check_type
from distsummary.base.publish import replacing
from distsummary.checkpoints.mapped import (
    MAX_TENSORS,
    Array,
    MappedState,
    StoredArray,
    check_stored,
    map_file,
)
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError

_DTYPES = {
    "I8": "|i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
    "BF16": "bfloat16", "BOOL": "bool",
}  # fmt: skip
_WRITABLE = {np.dtype(dtype) for dtype in _DTYPES.values() if dtype[0] in "<|"} | {np.dtype(bool)}


def map_safetensors(path: str | os.PathLike[str], data: bytes | None = None) -> MappedState:
    """The arrays of a file in the order of its header. Reads only the header; an array is read on access.

    BF16 is decoded to float32. `data`: the decrypted bytes of an encrypted file. Raises MissingFileError,
    DamagedFileError for bytes that are not safetensors, InvalidValueError for a dtype that NumPy does not
    have (floats of 8 bits or less).
    """
    if data is not None:
        with _refused(path):
            # Called only because the library checks the header.
            deserialize(data)  # type: ignore[no-untyped-call]
            return MappedState(data, _stored_arrays(data))
    mapped, arrays, _ = open_safetensors(path)
    return MappedState(mapped, arrays)


def open_safetensors(
    path: str | os.PathLike[str],
) -> tuple[mmap.mmap, dict[str, StoredArray], dict[str, str]]:
    """The mapped file, its arrays, and its metadata; raises the same errors as `map_safetensors`."""
    data = map_file(Path(path))
    with _refused(path):
        # The library checks the sizes, offsets and gaps in the header before they are used here.
        with safe_open(os.fspath(path), framework="np") as file:
            metadata = dict(file.metadata() or {})
        return data, _stored_arrays(data), metadata


@contextmanager
def _refused(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors about the bytes of a file, those of the library too, into ours with its path."""
    try:
        yield
    except InvalidValueError as error:
        raise InvalidValueError(f"{os.fspath(path)} cannot be used: {error}") from error
    except (SafetensorError, RecursionError, ValueError) as error:
        raise DamagedFileError(
            f"{os.fspath(path)} is not a safetensors file: {error}; it must be written again"
        ) from error


def safetensors_bytes(state: Mapping[str, Array]) -> bytes:
    """The file that `write_safetensors` writes; raises the same errors for a bad state."""
    data: bytes = numpy.save({name: writable(name, value) for name, value in state.items()})
    return data


def write_safetensors(
    path: str | os.PathLike[str], state: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Replace `path` with a safetensors file of these arrays (bool, integers, float16 to float64, complex64).

    `metadata` maps names to texts for the file's header; if it is given, `state` may be empty. Raises
    InvalidTypeError or InvalidValueError before anything is written, RunDirError if
    writing fails.
    """
    check_type("state", state, Mapping)
    if not state and metadata is None:
        raise InvalidValueError("state must hold at least one array: an empty checkpoint has no use")
    ready = {name: writable(name, value) for name, value in state.items()}
    with replacing(Path(path)) as temporary:
        try:
            numpy.save_file(ready, temporary, metadata=None if metadata is None else dict(metadata))
        except SafetensorError as error:
            # The arrays have been checked, so this is an error of the file, whose number the text has.
            if found := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
            raise OSError(str(error)) from error


def writable(name: object, value: object) -> Array:
    """The array as it is stored: little-endian, in C order; raises InvalidTypeError or InvalidValueError."""
    check_type("a name in state", name, str)
    check_type(f"state[{name!r}]", value, np.ndarray)
    array: Array = np.asarray(value)
    dtype = array.dtype.newbyteorder("<")
    if name == "__metadata__":
        raise InvalidValueError("a name in state must not be '__metadata__', which the format reserves")
    if dtype not in _WRITABLE:
        raise InvalidTypeError(
            f"state[{name!r}] has the dtype {array.dtype}, which safetensors cannot hold; "
            "convert it or leave it out"
        )
    # The library accepts only contiguous arrays.
    return np.asarray(array, dtype=dtype, order="C")


def _stored_arrays(data: mmap.mmap | bytes) -> dict[str, StoredArray]:
    """The arrays that the header of a file lists; its offsets count from the end of the header."""
    begin, size = 8 + int.from_bytes(data[:8], "little"), len(data)
    header: dict[str, dict[str, object]] = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise DamagedFileError(f"it names more than {MAX_TENSORS} arrays")
    arrays = {}
    for name, entry in header.items():
        dtype, shape, offsets = str(entry["dtype"]), entry["shape"], entry["data_offsets"]
        if dtype not in _DTYPES:
            raise InvalidValueError(f"{name!r} is {dtype}, which NumPy cannot hold; save it as F32")
        if not isinstance(shape, list) or not isinstance(offsets, list):
            raise DamagedFileError(f"{name!r} has no shape")
        start, stop = (begin + int(offset) for offset in offsets)
        if not begin <= start <= stop <= size:
            raise DamagedFileError(f"{name!r} lies outside the file")
        arrays[name] = StoredArray(dtype=_DTYPES[dtype], shape=tuple(map(int, shape)), spans=((start, stop),))
        check_stored(name, arrays[name])
    return arrays
