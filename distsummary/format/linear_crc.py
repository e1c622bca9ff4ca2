"""CRC32Cs of many byte strings of one length at once: they are linear, every byte adds a part of its own."""

from collections.abc import Iterable
from functools import lru_cache

import google_crc32c
import numpy as np
from numpy.typing import NDArray


def changes(differences: NDArray[np.uint8], places: Iterable[int]) -> NDArray[np.uint32]:
    """What turns the CRC of a byte string into that of each of others, of the same length: uint32 (n,).

    crc(a ^ d) = crc(a) ^ changes(d), where the rows of `differences`, uint8 (n, length), are the d.

    Args:
        places: the columns in which anything differs; the others are not looked at.
    """
    length = differences.shape[1]
    crcs = np.zeros(len(differences), np.uint32)
    tables = byte_tables(length)
    for place in places:
        crcs ^= tables[length - 1 - place][differences[:, place]]
    return crcs


def byte_tables(length: int) -> NDArray[np.uint32]:
    """(at least `length`, 256): what a byte adds to a CRC when so many bytes stand behind it."""
    return _byte_tables(1 << max(length - 1, 0).bit_length())


@lru_cache
def _byte_tables(count: int) -> NDArray[np.uint32]:
    tables = np.empty((count, 256), np.uint32)
    zero = int(google_crc32c.value(bytes(1)))
    tables[0] = [int(google_crc32c.value(bytes([octet]))) ^ zero for octet in range(256)]
    for row in range(1, count):  # one more zero behind the byte: the register moves on by one byte
        tables[row] = tables[row - 1] >> np.uint32(8) ^ tables[0][tables[row - 1] & 0xFF]
    return tables
