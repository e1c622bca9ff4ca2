"""Measures directions: their lengths, grid steps smaller than an ulp, and checkpoints that differ only by
rounding. Pure functions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from distsummary.landscapes.directions.array_rows import rows_of
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights

EXPLICIT_BITS = {"float64": 52, "float32": 23, "fp16": 10, "bf16": 7}  # bits of the significand
OF_DTYPE = {"float64": "float64", "float16": "fp16", "bfloat16": "bf16"}
LEAST_EXPONENT = {"float64": -1022, "float32": -126, "fp16": -14, "bf16": -126}  # of normal numbers


class Measured(NamedTuple):
    """What `measure` found along the directions x and y: shares from 0 to 1, and L2 lengths."""

    rounding: dict[str, float]
    lengths: dict[str, float]


def measure(
    centre: Weights,
    recipe: Recipe,
    names: Sequence[str],
    steps: tuple[float, float],
    precision: str = "",
    kept: Mapping[str, str] | None = None,
) -> Measured:
    """The lengths of directions x and y, and the shares of weights that a step changes by less than an ulp.

    A length is the L2 distance between the parameters at 0 and at 1 on the axis. A share is one of the varied
    weights, between 0 and 1, and 0 for a direction that changes nothing. If it is large, the grid shows
    rounding instead of the loss. `steps` are the distances between neighbouring points along x and y. If
    `precision` is a key of EXPLICIT_BITS, ulps are those of this precision. Otherwise (as for "") they are
    those of the dtype in which the model keeps the parameter. `kept` holds these dtypes by name; for a name
    not in it, the dtype of the centre's array is used (a checkpoint may have another than the model).
    """
    found, kept = Measured({}, {}), kept or {}
    for axis, step in enumerate(steps):
        moved = lost = 0
        squares = 0.0
        # Only some rows of one parameter are in memory at a time.
        for name in names:
            weights = rows_of(centre, name)
            along = recipe.rows(axis, name, weights)
            for start, stop in weights.blocks():
                block = weights(start, stop)
                dtype = kept.get(name, "") or block.dtype.name
                known = precision if precision in EXPLICIT_BITS else OF_DTYPE.get(dtype, "float32")
                moves_by = np.asarray(along(start, stop), np.float64).reshape(-1)
                squares += float(np.dot(moves_by, moves_by))
                change = np.abs(moves_by) * abs(step)
                moves = change > 0
                moved += int(moves.sum())
                below = change < ulp(block.astype(np.float64).reshape(-1), known)
                lost += int((below & moves).sum())
        found.rounding["xy"[axis]] = lost / moved if moved else 0.0
        found.lengths["xy"[axis]] = float(np.sqrt(squares))
    return found


def ulp(weights: Array, precision: str) -> Array:
    """The distance, float64, from each weight to the next larger magnitude that `precision` can represent."""
    _, exponents = np.frexp(weights)  # |w| = m 2^e with 0.5 <= m < 1
    exponents = np.where(weights == 0, LEAST_EXPONENT[precision], exponents - 1)
    exponents = np.maximum(exponents, LEAST_EXPONENT[precision])
    return np.asarray(np.ldexp(1.0, exponents - EXPLICIT_BITS[precision]))


def is_rounding(length: float, states: Sequence[Weights], names: Sequence[str]) -> bool:
    """Whether rounding alone could spread checkpoints by `length` along an axis.

    `length` is a singular value: the root of the sum of squares over the checkpoints. Rounding moves each
    value by at most half an ulp; the last checkpoint's rounding enters all displacements from it. Float32
    values count as bfloat16 only if the values of all checkpoints fit into it; those of one may by chance.
    """
    # In bfloat16 values, the lower 16 bits of the float32 are 0.
    is_narrow = all(
        block.dtype == np.float32 and not (block.view(np.uint32) & 0xFFFF).any()
        for state in reversed(states)
        for block in _blocks(state, names)
    )
    squares = 0.0
    for block in _blocks(states[-1], names):
        precision = "bf16" if is_narrow else OF_DTYPE.get(block.dtype.name, "float32")
        steps = ulp(block.astype(np.float64), precision)
        squares += float(np.einsum("i,i->", steps, steps))
    return length <= 0.5 * float(np.sqrt(len(states) * squares))


def _blocks(state: Weights, names: Iterable[str]) -> Iterator[Array]:
    """The values of the parameters `names`, flat, some rows at a time."""
    for name in names:
        rows = rows_of(state, name)
        for start, stop in rows.blocks():
            yield rows(start, stop).reshape(-1)
