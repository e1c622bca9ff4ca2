"""Random bits that are a function of (seed, axis, name, block) alone, for whoever needs the same ones again.

key   = blake2b-128( int64 seed | uint8 axis | name in UTF-8 )     little endian
bits  = numpy's Philox(key, counter=[0, 0, block, 0])
"""

import hashlib
import struct

import numpy as np


def philox(seed: int, axis: int, name: str, block: int) -> np.random.Philox:
    """The bits of one block; `axis` tells uses apart: 0 and 1 directions, 2 start vectors, 3 sketches."""
    digest = hashlib.blake2b(struct.pack("<qB", seed, axis) + name.encode(), digest_size=16).digest()
    return np.random.Philox(counter=[0, 0, block, 0], key=np.frombuffer(digest, "<u8").astype(np.uint64))
