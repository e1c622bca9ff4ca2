"""`philox-bm-v1`: random normals that are a function of (seed, axis, parameter name, index) alone.

    words    = random_bits.philox(seed, axis, name, block).random_raw()      block = index // 2^16
    u, w     = words 2j and 2j+1 of the block as (w >> 11) / 2^53, u shifted to (0, 1]
    normals  = sqrt(-2 ln u) * (cos, sin)(2 pi w)                            elements 2j and 2j+1, in float64

so they do not depend on workers, sharding, device or numpy's own stream of normals.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.checkpoints.random_bits import philox

Array: TypeAlias = NDArray[Any]

RNG = "philox-bm-v1"
BLOCK = 1 << 16
_PIECE = 1 << 13  # words at a time: what is computed from them stays in the cache, which halves the time
_ALIGNED = 64  # elements: a sine must not depend on where in a vector register, or behind the last, it stands
_UNIT = 2.0**-53


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
        low, high = first - first % _ALIGNED, first + count + -(first + count) % _ALIGNED
        part = out[at - start : at - start + count]
        whole = part if high - low == count else np.empty(high - low, np.float32)
        _fill(whole, philox(seed, axis, name, block), low)
        if whole is not part:
            part[...] = whole[first - low : first - low + count]
        at += count
    return out


def _fill(out: Array, bits: np.random.Philox, start: int) -> None:
    """Elements from `start` on of a block into `out`; start and size are multiples of `_ALIGNED`."""
    if start:
        bits.advance(start // 4)  # a step of the counter is 4 words
    pairs = out.reshape(-1, 2)
    for at in range(0, out.size, _PIECE):
        words = bits.random_raw(min(_PIECE, out.size - at))
        words >>= np.uint64(11)
        both = words.astype(np.float64)
        radius = both[0::2] + 1.0  # never 0: its logarithm is taken
        radius *= _UNIT
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        angle = both[1::2] * (_UNIT * 2.0 * np.pi)
        part = pairs[at // 2 : at // 2 + len(radius)]
        cosine = np.cos(angle)
        cosine *= radius
        part[:, 0] = cosine
        np.sin(angle, out=angle)
        angle *= radius
        part[:, 1] = angle
