"""A count-sketch of all parameters, `philox-cs-v1`: 31,907 numbers from which distances can be told.

Every parameter adds its value, with a random sign, to one of K buckets (Charikar, Chen & Farach-Colton 2002):

    (S theta)_b = sum over elements i in bucket b of sign(i) theta_i

S is linear, so sketches of shards add up and differences of sketches are sketches of differences. Products
<S u, S v> are those <u, v> to within |u| |v| sqrt(2 / K), 0.8 %, whatever u and v (Weinberger et al. 2009).

Bucket and sign of element i of a parameter are functions of (seed, name, i), made so that adding is nothing
but passes over memory: with chunk c = i // (16 K) and p = i % (16 K),

    bucket = (p + shift_c) mod K,  sign = signs[offset_c + p],
    offset_c, shift_c = w mod 2^18, (w >> 32) mod K     w: word c of Philox (seed, axis 3, name, block 0)
    signs[j] = 2 bit_j - 1                              bits of Philox (seed, axis 3, "signs", block 0)

K is prime, so no row length of a matrix brings a column back to the same bucket.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.checkpoints.random_bits import philox

Array = NDArray[Any]

SKETCH = "philox-cs-v1"
BUCKETS = 31_907
CHUNK = 16 * BUCKETS
_OFFSETS = 1 << 18
_AXIS = 3


class Sketcher:
    """Adds parameters, or parts of them, to sketches float64 (BUCKETS,). It remembers no sketch."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._signs = signs(seed)

    def add(self, sketch: Array, name: str, values: Array, start: int = 0) -> None:
        """Add elements start .. start + len(values) - 1 of a parameter; `values` is 1-D, of floats."""
        for piece, place, flipping, _ in self.pieces(name, values, start):
            folded = _fold(piece if piece.dtype.itemsize >= 4 else piece.astype(np.float32), flipping)
            first = min(len(folded), BUCKETS - place)
            sketch[place : place + first] += folded[:first]
            sketch[: len(folded) - first] += folded[first:]

    def pieces(self, name: str, values: Any, start: int = 0) -> Iterator[tuple[Any, int, Array, slice]]:
        """What is added in one go: (values, bucket of the first, their signs, where these signs lie)."""
        at = 0
        while at < len(values):
            chunk, place = divmod(start + at, CHUNK)
            piece = values[at : at + CHUNK - place]
            offset, shift = _chunk(self._seed, name, chunk)
            where = slice(offset + place, offset + place + len(piece))
            yield piece, (place + shift) % BUCKETS, self._signs[where], where
            at += len(piece)

    def sketch(self, parameters: Mapping[str, Array], names: Sequence[str] | None = None) -> Array:
        """The sketch of whole parameters."""
        total = np.zeros(BUCKETS)
        for name in parameters if names is None else names:
            self.add(total, name, np.asarray(parameters[name]).reshape(-1))
        return total


def _fold(values: Array, flipping: Array) -> Array:
    """The sums of values * signs that fall into each bucket counted from the first's, (at most BUCKETS,)."""
    whole = len(values) // BUCKETS * BUCKETS
    rest = values[whole:] * flipping[whole:]
    if not whole:
        return rest
    shape = (-1, BUCKETS)
    # one pass: no product is ever stored
    folded: Array = np.einsum("rb,rb->b", values[:whole].reshape(shape), flipping[:whole].reshape(shape))
    folded[: len(rest)] += rest
    return folded


@lru_cache(maxsize=1)
def signs(seed: int) -> Array:
    """The table of signs, float32."""
    count = CHUNK + _OFFSETS
    words = philox(seed, _AXIS, "signs", 0).random_raw(-(-count // 64)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=count, bitorder="little")
    return bits.astype(np.float32) * 2 - 1


@lru_cache(maxsize=1 << 16)
def _chunk(seed: int, name: str, chunk: int) -> tuple[int, int]:
    bits = philox(seed, _AXIS, name, 0)
    bits.advance(chunk // 4)  # a step of the counter is 4 words
    word = int(bits.random_raw(chunk % 4 + 1)[-1])
    return word % _OFFSETS, (word >> 32) % BUCKETS


def digest(shapes: Mapping[str, Sequence[int]]) -> str:
    """What tells whether sketches are of the same parameters: a hash of their names and whole shapes."""
    told = json.dumps([[name, list(map(int, shape))] for name, shape in sorted(shapes.items())])
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def contiguous(
    shape: Sequence[int], global_shape: Sequence[int], offset: Sequence[int]
) -> Iterator[tuple[int, slice]]:
    """A slice of a tensor in runs that lie together in both: (first element in the whole, the run)."""
    inner = len(shape)
    while inner > 0 and shape[inner - 1] == global_shape[inner - 1]:
        inner -= 1  # axes from here on are whole
    inner = max(inner - 1, 0)  # and along this one a run goes on
    length = int(np.prod(shape[inner:], dtype=np.int64))
    strides = [int(np.prod(global_shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
    for number, index in enumerate(np.ndindex(*shape[:inner])):
        place = [o + i for o, i in zip(offset, [*index, *[0] * (len(shape) - inner)], strict=True)]
        first = sum(p * s for p, s in zip(place, strides, strict=True))
        yield first, slice(number * length, (number + 1) * length)
