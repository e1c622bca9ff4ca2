"""Where a frame may begin in bytes whose borders are lost: the positions of headers with a right CRC."""

from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from distsummary.format.linear_crc import byte_tables

HEADER = 12  # bytes: u64 length | u32 masked crc32c of the length
_MASK_DELTA = np.uint32(0xA282EAD8)
_CRC_OF_ZEROS = np.uint32(google_crc32c.value(bytes(8)))


def headers(data: bytes, max_payload: int) -> list[tuple[int, int]]:
    """The positions in `data` at which twelve bytes are a header, and the lengths (bytes) it gives.

    Lengths above `max_payload` are left out.

    CRCs are linear: that of eight bytes is the XOR of eight table entries and a constant, so all positions
    are tried at once.
    """
    count = len(data) - HEADER + 1
    if count <= 0:
        return []
    octets = np.frombuffer(data, np.uint8)
    # Lengths are below 2**40, but most bytes are not zero: this leaves few positions in most data.
    found = np.flatnonzero((octets[5 : count + 5] | octets[6 : count + 6] | octets[7 : count + 7]) == 0)
    if found.size:  # a run of zeros is no header: the CRC of eight zeros is none
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


def unmasked(stored: NDArray[Any]) -> NDArray[np.uint32]:
    """TFRecord's mask taken off CRCs again: the constant, then the rotation."""
    rotated = stored.astype(np.uint32) - _MASK_DELTA
    return rotated << np.uint32(15) | rotated >> np.uint32(17)
