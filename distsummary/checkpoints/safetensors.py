"""safetensors files: the library writes and validates them, their arrays are read in place."""

import importlib
import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

from distsummary.checkpoints.mapped import MAX_TENSORS, Array, Layout, MappedState, check_layout, map_file
from distsummary.checks import check_type
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError, MissingExtraError
from distsummary.publish import replacing

_DTYPES = {
    "I8": "|i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
    "BF16": "bfloat16", "BOOL": "bool",
}  # fmt: skip
_WRITABLE = {np.dtype(dtype) for dtype in _DTYPES.values() if dtype[0] in "<|"} | {np.dtype(bool)}


def library() -> ModuleType:
    """The safetensors package; raises MissingExtraError with the pip line."""
    try:
        return importlib.import_module("safetensors")
    except ImportError as error:
        raise MissingExtraError(
            "safetensors is not installed; run: pip install 'distsummary[torch]'", name="safetensors"
        ) from error


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """All arrays of the file by name, as copies, in its header's order (by dtype and name).

    BF16 is read as float32. Raises as `map_safetensors`.
    """
    return map_safetensors(path).own()


def map_safetensors(path: str | os.PathLike[str]) -> MappedState:
    """The arrays of the file in place: nothing but its header is read.

    Raises MissingFileError, DamagedFileError for bytes that are not safetensors, InvalidValueError for a
    dtype that NumPy has not (floats of 8 bits and less), MissingExtraError.
    """
    data, layouts, _ = open_safetensors(path)
    return MappedState(data, layouts)


def open_safetensors(path: str | os.PathLike[str]) -> tuple[mmap.mmap, dict[str, Layout], dict[str, str]]:
    """The mapped file, where its arrays lie in it, and its metadata; raises as `map_safetensors`."""
    package = library()
    data = map_file(Path(path))
    try:
        # The library checks sizes, offsets and holes of the header before we believe it.
        with package.safe_open(os.fspath(path), framework="np") as file:
            metadata = dict(file.metadata() or {})
        size = int.from_bytes(data[:8], "little")
        return data, _layouts(json.loads(data[8 : 8 + size]), 8 + size, len(data)), metadata
    except InvalidValueError as error:
        raise InvalidValueError(f"{os.fspath(path)} cannot be used: {error}") from error
    except (package.SafetensorError, RecursionError, ValueError) as error:
        raise DamagedFileError(
            f"{os.fspath(path)} is not a safetensors file: {error}; it must be written again"
        ) from error


def write_safetensors(
    path: str | os.PathLike[str], state: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Replace `path` by a safetensors file of these arrays (bool, integers, float16 to float64, complex64).

    `metadata` is text by name, for the file's header; with it there may be no arrays. Raises InvalidTypeError
    or InvalidValueError before anything is written, MissingExtraError, and RunDirError when writing fails.
    """
    library()
    save_file = importlib.import_module("safetensors.numpy").save_file
    check_type("state", state, Mapping)
    if not state and metadata is None:
        raise InvalidValueError("state must hold at least one array: an empty checkpoint has no use")
    ready = {name: writable(name, value) for name, value in state.items()}
    with replacing(Path(path)) as temporary:
        save_file(ready, temporary, metadata=None if metadata is None else dict(metadata))


def writable(name: object, value: object) -> Array:
    """The array as it will lie in a file: little-endian, in C order; raises as `write_safetensors`."""
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
    return np.asarray(array, dtype=dtype, order="C")  # the library takes contiguous arrays only


def _layouts(header: dict[str, dict[str, object]], begin: int, size: int) -> dict[str, Layout]:
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise DamagedFileError(f"it names more than {MAX_TENSORS} arrays")
    return {name: _layout(name, entry, begin, size) for name, entry in header.items()}


def _layout(name: str, entry: dict[str, object], begin: int, size: int) -> Layout:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if str(dtype) not in _DTYPES:
        raise InvalidValueError(f"{name!r} is {dtype}, which has no array; save it as F32")
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise DamagedFileError(f"{name!r} has no shape")
    start, stop = (begin + int(offset) for offset in offsets)
    if not begin <= start <= stop <= size:
        raise DamagedFileError(f"{name!r} lies outside of the file")
    layout = Layout(dtype=_DTYPES[str(dtype)], shape=tuple(map(int, shape)), spans=((start, stop),))
    check_layout(name, layout)
    return layout
