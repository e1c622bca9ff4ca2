"""`philox-bm-v1`: random normals that are a function of (seed, axis, parameter name, index) alone.

    words    = philox(seed, axis, name, block).random_raw()      block = index // 2^16
    u, w     = words 2j and 2j+1 of the block as (word >> 11) / 2^53, u shifted to (0, 1]
    normals  = sqrt(-2 ln u) * (cos, sin)(2 pi w)  elements 2j, 2j+1, computed in float64, returned as float32

`philox` makes NumPy's generator Philox. The normals do not depend on workers, sharding, device or NumPy's own
method for normals. Cosine and sine are read from a table of 1,024 angles and rotated by the remaining angle,
with series up to the fifth power. Their error is at most 7e-16; NumPy's cos and sin take three times as long.
"""

import hashlib
import struct
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

RNG = "philox-bm-v1"
BLOCK = 1 << 16
_PIECE = 1 << 14  # words per step; intermediate results then stay in the cache, which halves the time
_ALIGNED = 64  # elements are computed in multiples of this: log may round differently in a SIMD loop's tail
_UNIT = 2.0**-53
_TURN = 2.0 * np.pi
_ANGLES = 1 << 10
_REST = 53 - 10  # bits of w that give the remaining angle
_COSINES, _SINES = (f((np.arange(_ANGLES) + 0.5) * (_TURN / _ANGLES)) for f in (np.cos, np.sin))


def philox(seed: int, axis: int, name: str, block: int) -> np.random.Philox:
    """A random generator whose bits are a function of (seed, axis, name, block) alone.

    The key is blake2b-128(int64 seed | uint8 axis | name in UTF-8), little endian; the counter is
    [0, 0, block, 0]. `axis` separates the uses: 0 and 1 are random directions, 2 start vectors.
    """
    key = hashlib.blake2b(struct.pack("<qB", seed, axis) + name.encode(), digest_size=16).digest()
    return np.random.Philox(counter=[0, 0, block, 0], key=np.frombuffer(key, "<u8").astype(np.uint64))


def random_direction(seed: int, axis: int, name: str, shape: tuple[int, ...]) -> Array:
    """Standard normals for one whole parameter, float32."""
    return random_normals(seed, axis, name, 0, int(np.prod(shape, dtype=np.int64))).reshape(shape)


def random_normals(seed: int, axis: int, name: str, start: int, stop: int) -> Array:
    """The normals with index start .. stop-1 of a parameter's direction, float32 (stop - start,)."""
    out = np.empty(stop - start, np.float32)
    at = start
    while at < stop:
        block, first = divmod(at, BLOCK)
        count = min(BLOCK - first, stop - at)
        # Whole multiples of _ALIGNED, so that the bits of an element do not depend on `start` and `stop`.
        low, high = first - first % _ALIGNED, first + count + -(first + count) % _ALIGNED
        part = out[at - start : at - start + count]
        whole = part if high - low == count else np.empty(high - low, np.float32)
        _fill(whole, philox(seed, axis, name, block), low)
        if whole is not part:
            part[...] = whole[first - low : first - low + count]
        at += count
    return out


def _fill(out: Array, bits: np.random.Philox, start: int) -> None:
    """Fill `out` with a block's elements from `start` on; `start` and out.size are multiples of _ALIGNED."""
    if start:
        # A step of the counter gives 4 words.
        bits.advance(start // 4)
    pairs = out.reshape(-1, 2)
    for at in range(0, out.size, _PIECE):
        words = bits.random_raw(min(_PIECE, out.size - at))
        words >>= np.uint64(11)
        part = pairs[at // 2 : (at + words.size) // 2]
        radius = _radius(words[0::2])
        for column, turned in enumerate(_cosine_and_sine(words[1::2])):
            turned *= radius
            part[:, column] = turned


def _radius(words: Array) -> Array:
    """sqrt(-2 ln u) for words of 53 bits, float64."""
    radius = words.astype(np.float64)
    # The argument of log must never be 0.
    radius += 1.0
    radius *= _UNIT
    np.log(radius, out=radius)
    radius *= -2.0
    return np.sqrt(radius, out=radius)


def _cosine_and_sine(words: Array) -> tuple[Array, Array]:
    """cos and sin of 2 pi w, float64, where w = word / 2^53 for `words` of 53 bits.

    Uses few operations, most of them in place.
    """
    nearest = (words >> np.uint64(_REST)).view(np.int64)
    cosines, sines = _COSINES.take(nearest), _SINES.take(nearest)
    rest = (words & np.uint64((1 << _REST) - 1)).astype(np.float64)
    # The table holds the angle in the middle of each interval.
    rest -= float(1 << (_REST - 1))
    rest *= _TURN * _UNIT
    square = rest * rest
    # sin(rest): ((square / 120 - 1 / 6) square + 1) rest
    sine = square * (1 / 120)
    sine -= 1 / 6
    sine *= square
    sine += 1.0
    sine *= rest
    # cos(rest) - 1: (square / 24 - 1 / 2) square
    less = square * (1 / 24)
    less -= 0.5
    less *= square
    # The angle of the table is rotated by the rest, both for the cosine and for the sine.
    found = cosines * less
    found -= sines * sine
    found += cosines
    less *= sines
    less += cosines * sine
    less += sines
    return found, less
