"""The norms of every parameter of a model at one step: what a rank measured of its own elements."""

from dataclasses import dataclass

import numpy as np

from distsummary.format.records import Array

NORMS_TAG = "norms"  # the tag of the only value of the plugin "norms" in an event


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """The n parameters of a model, in the order of all columns of `ParameterNorms`.

    `shapes` are those of the whole parameters. `local_sizes` is how many elements of each are on this rank,
    and `split` names the axes of the mesh that each is split over: () if it is whole on this rank.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    local_sizes: tuple[int, ...]
    split: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class ParameterNorms:
    """What one rank measured of its local elements at one step; every column has n rows.

    `weight_sums`, `gradient_sums`: sums of squares, float64; NaN and infinite elements make a sum NaN or
    infinite. `weight_nonfinite`, `gradient_nonfinite`: how many elements are NaN or infinite, int64.
    `has_gradient`: bool; without a gradient, `gradient_sums` is 0. `update_sums` (float64) and `update_max`
    (float32): sum of squares and largest absolute value of the optimizer's change; NaN where another rank or
    another step measures it.
    """

    table: ParameterTable
    weight_sums: Array
    gradient_sums: Array
    has_gradient: Array
    weight_nonfinite: Array
    gradient_nonfinite: Array
    update_sums: Array
    update_max: Array

    @property
    def nbytes(self) -> int:
        """The size of the columns in bytes."""
        return int(sum(getattr(self, name).nbytes for name in COLUMNS))


COLUMNS = {  # the columns of ParameterNorms and their dtypes
    "weight_sums": np.dtype(np.float64),
    "gradient_sums": np.dtype(np.float64),
    "has_gradient": np.dtype(np.bool_),
    "weight_nonfinite": np.dtype(np.int64),
    "gradient_nonfinite": np.dtype(np.int64),
    "update_sums": np.dtype(np.float64),
    "update_max": np.dtype(np.float32),
}
