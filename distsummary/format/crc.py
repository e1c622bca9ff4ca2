"""CRC32C as TFRecord frames use it: masking, CRCs of many byte strings at once, search for frame headers."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

Crc = TypeVar("Crc", int, NDArray[Any])

_HEADER_BYTES = 12  # a frame begins with u64 length | u32 masked crc32c of the length
_MASK_DELTA = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """The masked CRC32C of some bytes."""
    return masked(int(google_crc32c.value(data)))


def masked(crc: Crc) -> Crc:
    """A CRC32C as frames store it: rotated, plus a constant (tensorflow/core/lib/hash/crc32c.h)."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def unmasked(stored: NDArray[Any]) -> NDArray[np.uint32]:
    """The CRC32Cs before masking, from the form that frames store; the inverse of `masked`."""
    rotated = stored.astype(np.uint32) - np.uint32(_MASK_DELTA)
    return rotated << np.uint32(15) | rotated >> np.uint32(17)


# For byte strings of equal length, crc(a ^ b) = crc(a) ^ crc(b) ^ crc(zeros). So each byte that differs
# changes the CRC by an amount that depends only on that byte and on how many bytes follow it.


def crc_changes(differences: NDArray[np.uint8], places: Iterable[int]) -> NDArray[np.uint32]:
    """How a byte string's CRC changes when the string is XORed with each of n differences: uint32 (n,).

    Each row d of `differences`, uint8 (n, length), has one result c: crc(a ^ d) = crc(a) ^ c for any a.

    Args:
        places: the columns of `differences` that are not all zero; other columns are skipped.
    """
    length = differences.shape[1]
    changes = np.zeros(len(differences), np.uint32)
    tables = byte_tables(length)
    for place in places:
        changes ^= tables[length - 1 - place][differences[:, place]]
    return changes


def byte_tables(length: int) -> NDArray[np.uint32]:
    """Row k, column d: the change of the CRC when a byte that k bytes follow is XORed with d."""
    # Rounded up to a power of two, so that few tables serve all lengths.
    return _byte_tables(1 << max(length - 1, 0).bit_length())


@lru_cache
def _byte_tables(count: int) -> NDArray[np.uint32]:
    tables = np.empty((count, 256), np.uint32)
    zero = int(google_crc32c.value(bytes(1)))
    tables[0] = [int(google_crc32c.value(bytes([octet]))) ^ zero for octet in range(256)]
    # One more zero after the byte shifts the CRC register by one byte.
    for row in range(1, count):
        tables[row] = tables[row - 1] >> np.uint32(8) ^ tables[0][tables[row - 1] & 0xFF]
    return tables


_CRC_OF_ZEROS = np.uint32(google_crc32c.value(bytes(8)))


def find_headers(data: bytes, max_payload: int) -> list[tuple[int, int]]:
    """Finds the frame headers in `data` whose CRC is right: (position, payload length) of each.

    Headers with a length above `max_payload` bytes are left out. NumPy checks all positions together, since
    the CRC of eight bytes is the XOR of eight table entries and a constant.
    """
    count = len(data) - _HEADER_BYTES + 1
    if count <= 0:
        return []
    octets = np.frombuffer(data, np.uint8)
    # Lengths are below 2**40, so a header's bytes 5 to 7 are zero: this leaves few positions in most data.
    found = np.flatnonzero((octets[5 : count + 5] | octets[6 : count + 6] | octets[7 : count + 7]) == 0)
    # A run of zeros is no header: the CRC of eight zeros is not zero.
    if found.size:
        ends = octets[found + 8] | octets[found + 9] | octets[found + 10] | octets[found + 11]
        found = found[ends != 0]
    crcs = np.full(found.size, _CRC_OF_ZEROS, np.uint32)
    for place, table in enumerate(reversed(byte_tables(8))):
        crcs ^= table[octets[found + place]]
    found = found[unmasked(_little_endian(octets, found + 8, 4)) == crcs]
    lengths = _little_endian(octets, found, 8)
    fit = lengths <= max_payload
    return list(zip(found[fit].tolist(), lengths[fit].tolist(), strict=True))


def _little_endian(octets: NDArray[np.uint8], positions: NDArray[np.intp], width: int) -> NDArray[np.uint64]:
    """The unsigned numbers of `width` bytes at each of the positions."""
    numbers = np.zeros(positions.size, np.uint64)
    for place in range(width):
        numbers |= octets[positions + place].astype(np.uint64) << np.uint64(8 * place)
    return numbers
