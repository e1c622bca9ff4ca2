"""The count sketch `philox-cs-v1`: 31,907 numbers that approximately preserve distances between models.

The sketch S theta of parameters theta has K = 31,907 buckets b. Each element theta_i is added, with a random
sign, to one bucket (Charikar, Chen & Farach-Colton 2002):

    (S theta)_b = sum over elements i in bucket b of sign(i) theta_i

S is linear: the sketches of shards add up to the sketch of the whole, and the difference of two sketches is
the sketch of the difference. For any u and v, the dot product <S u, S v> equals <u, v> with a standard error
of at most |u| |v| sqrt(2 / K), that is 0.8 % of |u| |v| (Weinberger et al. 2009).

Bucket and sign of element i of a parameter are functions of (seed, name, i), chosen so that adding a
parameter takes a few passes over contiguous memory. With chunk c = i // (16 K) and p = i % (16 K),

    bucket = (p + shift_c) mod K,  sign = signs[offset_c + p],
    offset_c, shift_c = w mod 2^18, (w >> 32) mod K     w: word c of Philox (seed, axis 3, name, block 0)
    signs[j] = 2 bit_j - 1                              bits of Philox (seed, axis 3, "signs", block 0)

K is prime, so that a column of a matrix is spread over buckets unless the row length is a multiple of K.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SKETCH = "philox-cs-v1"
BUCKETS = 31_907
CHUNK = 16 * BUCKETS
_OFFSETS = 1 << 18
_AXIS = 3


def philox(seed: int, axis: int, name: str, block: int) -> np.random.Philox:
    """A random generator whose bits are a function of (seed, axis, name, block) alone.

    The key is blake2b-128(int64 seed | uint8 axis | name in UTF-8), little endian; the counter is
    [0, 0, block, 0]. `axis` separates the uses: 0 and 1 are random directions, 2 start vectors, 3 sketches.
    """
    key = hashlib.blake2b(struct.pack("<qB", seed, axis) + name.encode(), digest_size=16).digest()
    return np.random.Philox(counter=[0, 0, block, 0], key=np.frombuffer(key, "<u8").astype(np.uint64))


class Sketcher:
    """Adds parameters, or parts of them, to sketches: float64 arrays of shape (BUCKETS,)."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._signs = signs(seed)

    def add(self, sketch: Array, name: str, values: Array, start: int = 0) -> None:
        """Add elements start .. start + len(values) - 1 of a parameter; `values` is 1-D, of floats."""
        for piece, bucket, flips, _ in self.pieces(name, values, start):
            # Sums of 16-bit floats would be too coarse.
            exact = piece if piece.dtype.itemsize >= 4 else piece.astype(np.float32)
            whole = len(exact) // BUCKETS * BUCKETS
            folded = exact[whole:] * flips[whole:]
            if whole:
                rows = exact[:whole].reshape(-1, BUCKETS), flips[:whole].reshape(-1, BUCKETS)
                # One pass that stores no products.
                rest, folded = folded, np.einsum("rb,rb->b", *rows)
                folded[: len(rest)] += rest
            # After the last bucket comes the first one again.
            first = min(len(folded), BUCKETS - bucket)
            sketch[bucket : bucket + first] += folded[:first]
            sketch[: len(folded) - first] += folded[first:]

    def pieces(self, name: str, values: Any, start: int = 0) -> Iterator[tuple[Any, int, Array, slice]]:
        """Cut `values` at chunk borders; yields (piece, first bucket, signs, slice of the table of signs)."""
        at = 0
        while at < len(values):
            chunk, place = divmod(start + at, CHUNK)
            piece = values[at : at + CHUNK - place]
            offset, shift = _chunk(self._seed, name, chunk)
            where = slice(offset + place, offset + place + len(piece))
            yield piece, (place + shift) % BUCKETS, self._signs[where], where
            at += len(piece)

    def sketch(self, parameters: Mapping[str, Array], names: Sequence[str] | None = None) -> Array:
        """The sketch of whole parameters: of all of them, or only of those in `names`."""
        total = np.zeros(BUCKETS)
        for name in parameters if names is None else names:
            self.add(total, name, np.asarray(parameters[name]).reshape(-1))
        return total


@lru_cache(maxsize=1)
def signs(seed: int) -> Array:
    """The table of random signs: +1 or -1, float32."""
    count = CHUNK + _OFFSETS
    words = philox(seed, _AXIS, "signs", 0).random_raw(-(-count // 64)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=count, bitorder="little")
    return bits.astype(np.float32) * 2 - 1


@lru_cache(maxsize=1 << 16)
def _chunk(seed: int, name: str, chunk: int) -> tuple[int, int]:
    """The chunk's offset in the table of signs, and its shift of the buckets."""
    bits = philox(seed, _AXIS, name, 0)
    # Each step of the counter makes 4 words.
    bits.advance(chunk // 4)
    word = int(bits.random_raw(chunk % 4 + 1)[-1])
    return word % _OFFSETS, (word >> 32) % BUCKETS


def digest(shapes: Mapping[str, Sequence[int]]) -> str:
    """A hash of the names and whole shapes of the parameters; equal digests mean comparable sketches."""
    text = json.dumps([[name, list(map(int, shape))] for name, shape in sorted(shapes.items())])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
