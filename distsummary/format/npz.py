"""NumPy archives (.npz) without belief in their sizes: headers are read before anything is inflated."""

import io
import math
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import DamagedFileError

SUFFIX = ".npz"
MOST_INFLATED = 256 << 20  # bytes of all arrays, in an archive that is smaller; `np.savez` does not compress
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_KINDS = "biufU"  # of dtypes: numbers and text


def read_npz(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an archive by name; raises DamagedFileError for anything that is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sum(one.file_size for one in members) > max(len(data), MOST_INFLATED):
                raise ValueError(f"its arrays would take more than {MOST_INFLATED} bytes")
            return {one.filename.removesuffix(".npy"): _array(archive, one) for one in members}
    except Exception as error:
        # zipfile, zlib and NumPy raise a dozen kinds of exceptions for damaged bytes.
        raise DamagedFileError(f"it is no archive of arrays ({type(error).__name__}: {error})") from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is compressed in another way")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        shape, is_column_major, dtype = _HEADERS[version](file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.kind not in _KINDS or min(shape, default=0) < 0 or size != member.file_size - file.tell():
            raise ValueError(f"{member.filename} says that it is {dtype} of the shape {shape}")
        data = file.read(size)
    array = np.ndarray(shape, dtype, data, order="F" if is_column_major else "C")
    # Copied, since `data` may not be written.
    return array.copy(order="K")
