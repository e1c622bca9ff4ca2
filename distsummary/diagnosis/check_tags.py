"""The scalars by which ranks that should be alike are compared, such as the bit sums of their parameters.

Files hold float32, so each scalar is a whole number below 2**24, which float32 holds exactly. Bit sums of any
number of parameters become three of them, from which the number of a parameter that differs can be found.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distsummary.format.own_tags import BITS_TAGS

PRIME = (1 << 24) - 3  # the largest prime below 2**24
PARTS = 3  # scalars for the bit sums of a group of parameters
WHOLE = "whole"  # the group of the parameters that each rank has whole
_HALF_BITS = 24

Ints = NDArray[np.int64]


def bits_tags(split: Sequence[str]) -> tuple[str, ...]:
    """The tags of the bit sums of the parameters that some axes of the mesh split; () if they are whole."""
    group = "+".join(split) or WHOLE
    return tuple(f"{BITS_TAGS}{group}/{part}" for part in range(PARTS))


def group_of(tag: str) -> tuple[str, int]:
    """The group and the part of a tag of `bits_tags`."""
    group, _, part = tag.removeprefix(BITS_TAGS).rpartition("/")
    return group, int(part)


def axes_of(group: str) -> tuple[str, ...]:
    """The axes of the mesh that split the parameters of a group."""
    return () if group == WHOLE else tuple(group.split("+"))


def weights_of(count: int) -> Ints:
    """int64 (3, count): i**0, i**1 and i**2 modulo PRIME for the parameters i = 1, 2, ... count."""
    numbers = np.arange(1, count + 1, dtype=np.int64) % PRIME
    return np.stack([np.ones_like(numbers), numbers, numbers * numbers % PRIME])


def packed(sums: Ints, weights: Ints) -> tuple[int, int, int]:
    """Three numbers below PRIME from the bit sums of parameters, int64 (count,); see `located`."""
    products = sums % PRIME * weights % PRIME
    first, second, third = (products.sum(axis=1) % PRIME).tolist()
    return first, second, third


def located(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The index of the only parameter whose bit sums differ, from what `packed` made of two ranks' sums.

    None if several differ. 2 of 3 numbers distinguish that from one; both are right but for 1 in 16 million.
    """
    first, second, third = ((a - b) % PRIME for a, b in zip(one, other, strict=True))
    # If only parameter i differs, by d, these are d, i * d and i * i * d, modulo PRIME.
    if not first or first * third % PRIME != second * second % PRIME:
        return None
    number = second * pow(first, -1, PRIME) % PRIME
    return number - 1 if number else None


def halves(digest: int) -> tuple[float, float]:
    """The lower 48 bits of a digest as two scalars."""
    mask = (1 << _HALF_BITS) - 1
    return float(digest & mask), float(digest >> _HALF_BITS & mask)
