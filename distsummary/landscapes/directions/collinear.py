"""Axes that span no plane: two of one line, or one that is nothing but rounding; pure."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.array_rows import rows_of
from distsummary.landscapes.directions.displacements import shape_of
from distsummary.landscapes.directions.products import inner
from distsummary.landscapes.directions.recipe import SHOWN, Array, Recipe, Weights
from distsummary.landscapes.directions.rounding import OF_DTYPE, ulp

COLLINEAR = 1e-6  # of the sine between two axes
ONE_ROW = "directions='line' draws one row of points, between two checkpoints or two of runs="


def refuse_parallel(recipe: Recipe, centre: Weights, names: Iterable[str], normalization: str) -> None:
    """Raise LandscapeError, naming what moves, unless the axes x and y span a plane.

    The smallest parameters come first, for as soon as some are found in which the axes differ the others are
    not read.
    """
    products, moved = np.zeros((2, 2)), []
    for name in sorted(names, key=lambda name: int(np.prod(shape_of(centre, name), dtype=np.int64))):
        weights = rows_of(centre, name)
        axes = [recipe.rows(axis, name, weights) for axis in (0, 1)]
        if all(rows.is_zero for rows in axes):
            continue
        moved.append(name)
        for start, stop in weights.blocks():
            both = np.stack([rows(start, stop).reshape(-1) for rows in axes]).astype(np.float64)
            products += inner(both, both)
            if not _are_parallel(products):
                return
    after = "" if normalization == "none" else f" after normalization={normalization!r}"
    more = f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else ""
    raise LandscapeError(
        f"the x direction is {products[0, 1] / products[1, 1]:.4g} times the y direction{after}, in all that "
        f"moves ({', '.join(moved[:SHOWN])}{more}), so they span no plane; use directions that are not "
        f"parallel, another normalization, or more parameters; {ONE_ROW}"
    )


def _are_parallel(products: Array) -> bool:
    """Whether two vectors with these inner products (2, 2) are multiples of each other, or one is zero."""
    (xx, xy), (_, yy) = products
    return bool(xx * yy - xy * xy <= COLLINEAR**2 * xx * yy)


def is_rounding(length: float, states: Sequence[Weights], names: Sequence[str]) -> bool:
    """Whether checkpoints may spread by `length` along an axis by rounding alone.

    Rounding moves each number by half an ulp at most, and what is the last checkpoint's is in all
    displacements; `length` is the root of the sum of squares over the checkpoints, a singular value. Numbers
    of float32 are those of bfloat16 where all are, in all checkpoints: in one they may be so by chance.
    """
    narrow = "bf16" if all(_is_bf16(state, names) for state in reversed(states)) else ""
    squares = sum(
        _ulps(block, narrow or OF_DTYPE.get(block.dtype.name, "float32"))
        for block in _blocks(states[-1], names)
    )
    return length <= 0.5 * float(np.sqrt(len(states) * squares))


def _is_bf16(state: Weights, names: Iterable[str]) -> bool:
    """Whether all numbers are float32 of which bfloat16 would keep everything: the lower 16 bits are 0."""
    return all(
        block.dtype == np.float32 and not (block.view(np.uint32) & 0xFFFF).any()
        for block in _blocks(state, names)
    )


def _blocks(state: Weights, names: Iterable[str]) -> Iterator[Array]:
    """All numbers of a state, flat, some rows at a time."""
    for name in names:
        rows = rows_of(state, name)
        for start, stop in rows.blocks():
            yield rows(start, stop).reshape(-1)


def _ulps(weights: Array, precision: str) -> float:
    """The sum of the squares of their ulps."""
    steps = ulp(weights.astype(np.float64), precision)
    return float(np.einsum("i,i->", steps, steps))
