"""LossGrid: a loss landscape as data, from and to files and records."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from distsummary.errors import (
    DamagedFileError,
    InvalidValueError,
    LandscapeError,
    MissingExtraError,
    MissingFileError,
)
from distsummary.landscapes.directions.interpolate import barrier
from distsummary.landscapes.directions.normalization import FilterAxis
from distsummary.landscapes.directions.recipe import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARRAYS = (
    "x",
    "y",
    "z",
    "path",
    "path_loss",
    "true_loss",
    "residuals",
    "explained_variance",
    "step_path",
    "computed",
)
LATER = ("step_path", "computed")  # older files have none
NAMED_KINDS = ("joint", "triangle", "line", "hessian")  # by their tags


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossGrid:
    """The loss over a plane of parameter space.

    The parameters at (i, j) are `centre + x[j] * direction_x + y[i] * direction_y`; the centre is
    checkpoint `numbers[-1]`.

    Attributes:
        x, y: axes, float64 (n,) and (m,).
        z: losses, float64 (m, n); NaN and Inf stay what they are.
        numbers: the checkpoints of the path by number; only the centre for a random plane.
        kind: how the directions were found: "pca", "joint" (the PCA plane of several runs), "triangle"
            (through three checkpoints), "line" (between two; one row), "random", "given" or "hessian".
        runs, run_lengths: of planes and lines through several, and how many checkpoints each has.
        path: their coordinates in the plane, float64 (k, 2). The centre is exactly (0, 0).
        path_loss: the loss at these coordinates, in the plane, (k,).
        true_loss: the loss of the checkpoints themselves, (k,).
        residuals: how much of each checkpoint lies outside the plane, |d - A c| / |d|, (k,).
        steps, step_path: training steps between the checkpoints and their coordinates (s, 2), by sketches.
        explained_variance: of the two directions, (2,); empty for a random plane.
        eigenvalues, eigenvalue_errors: the two algebraically largest of the Hessian, and how far off each is
            at most, but for the rounding of the products that they are found by.
        decomposition: what viewers are told: "PCA", "Random" or "Hessian".
        convergence_point: (x, y, loss) of the end of training as viewers show it.
        unit, step_per_epoch: what a checkpoint number counts, "step" or "epoch".
        centering, normalization, mode, seed, rng: how the directions were made ("" and None: not used).
        parameters: the patterns that said what moves; empty where all trainable parameters do.
        filter_axis: of filter normalization, the axes by parameter that are not 0.
        directions: a blake2b hash of what moves and of the directions: of random ones the recipe (names,
            seed, normalization), of all others the arrays. "" in older files.
        label: what is in the tag beside kind and checkpoints, see `directions.labels`.
        bn_mode: "eval" (running statistics) or "batch" (statistics of each batch, training mode).
        engine: who evaluated the points.
        samples: rows of data behind each loss.
        data_sets: the names of the data sets, of which the first makes the loss; () for data without a name.
        quantities: what was computed beside the loss, by name: (m, n) each, such as a metric or "stderr".
            With `data_sets` each has the name of its own before it, as "train/stderr" and "test/loss".
        computed: where a loss was computed, bool (m, n), by default everywhere; False where it was
            interpolated from others, or is missing: NaN in `z`. Nothing is extrapolated.
        is_partial: whether points are left that were asked for: the landscape was stopped, or lost points.
        lost_points: points without a value because their workers died too often.
        worker_seconds: seconds spent on points, by worker; where a landscape went on, by the last call.
        hardware: what the points were computed on; of a landscape that went on elsewhere all of them.
        precision_error: of a reduced precision, the largest relative error of the losses that were compared.
        rounding: the share of the moved parameters whose step between neighbours of the grid is below an ulp,
            {"x": share, "y": share}; see `directions.rounding`.
    """

    x: Array
    y: Array
    z: Array
    numbers: tuple[int, ...]
    path: Array
    path_loss: Array
    true_loss: Array
    residuals: Array
    decomposition: str
    convergence_point: tuple[float, float, float]
    explained_variance: Array = field(default_factory=lambda: np.empty(0))
    steps: tuple[int, ...] = ()
    step_path: Array = field(default_factory=lambda: np.empty((0, 2)))
    kind: str = ""
    runs: tuple[str, ...] = ()
    run_lengths: tuple[int, ...] = ()
    eigenvalues: tuple[float, ...] = ()
    eigenvalue_errors: tuple[float, ...] = ()
    unit: str = "step"
    step_per_epoch: int = 1
    centering: str = ""
    normalization: str = "none"
    mode: str = "standard"
    seed: int | None = None
    rng: str = ""
    parameters: tuple[str, ...] = ()
    filter_axis: Mapping[str, FilterAxis] = field(default_factory=dict)
    directions: str = ""
    label: str = ""
    bn_mode: str = "eval"
    engine: str = ""
    samples: int = 0
    data_sets: tuple[str, ...] = ()
    quantities: Mapping[str, Array] = field(default_factory=dict)
    computed: Array = field(default_factory=lambda: np.empty(0, bool))
    is_partial: bool = False
    lost_points: int = 0
    worker_seconds: Mapping[str, float] = field(default_factory=dict)
    hardware: str = ""
    precision_error: float = 0.0
    rounding: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expected = (len(self.y), len(self.x))
        if not self.computed.size:
            object.__setattr__(self, "computed", np.ones(expected, bool))
        for name, values in (("z", self.z), ("computed", self.computed), *self.quantities.items()):
            if values.shape != expected:
                raise InvalidValueError(f"{name} must be (len(y), len(x)) = {expected}, got {values.shape}")
        axes = {n: tuple(a) if isinstance(a, list) else a for n, a in self.filter_axis.items()}  # from JSON
        object.__setattr__(self, "filter_axis", axes)
        if self.computed.dtype != np.bool_:
            raise InvalidValueError(f"computed must be of bool, got {self.computed.dtype}")

    def __repr__(self) -> str:
        from distsummary.landscapes.output.describe import in_a_line

        return in_a_line(self)

    def _repr_png_(self) -> bytes | None:
        """The picture as a notebook's cell shows it; without matplotlib the cell has the text alone."""
        from distsummary.landscapes.output.draw import draw

        try:
            return draw(self)
        except MissingExtraError:
            return None

    @property
    def tag(self) -> str:
        """The tag in event files, MindSpore's: `landscape_[first, last]`, or `landscape_[last]` if random.

        Other kinds have their name in it, and what is drawn of a part of the parameters or by another seed
        its label: `landscape_only_lora_[1, 9]`.
        """
        kind = self.kind if self.kind in NAMED_KINDS else ""
        name = "_".join(word for word in ("landscape", kind, self.label) if word)
        if self.decomposition == "PCA" and self.numbers:
            return f"{name}_[{self.numbers[0]}, {self.numbers[-1]}]"
        return f"{name}_[{self.numbers[-1]}]" if self.numbers else name

    @property
    def stderr(self) -> Array | None:
        """The standard error of the loss, of the first data set, (m, n), if it was asked for."""
        first = self.data_sets[0] if self.data_sets else ""
        return self.quantities.get(f"{first}/stderr" if first else "stderr")

    @property
    def explained(self) -> Array:
        """`explained_variance`: the share of the path that each direction has, (2,); empty without a path."""
        return self.explained_variance

    @property
    def missing(self) -> Array:
        """Which points have no loss since none was computed, there or around them, bool (m, n).

        Of a grid that is not partial not one: there refinement left out what lies between losses that are not
        finite.
        """
        return np.logical_and(self.is_partial, ~self.computed & ~np.isfinite(self.z))

    @property
    def barrier(self) -> float:
        """Of a line: how far the loss rises above the straight line between those of its ends.

        See `interpolate.barrier`; NaN while points are missing. Raises LandscapeError for a grid that is no
        line.
        """
        if self.kind != "line":
            raise LandscapeError("only a line has a barrier; draw one with directions='line'")
        return float("nan") if self.missing.any() else barrier(self.z[0])

    @property
    def parts(self) -> dict[str, range]:
        """The checkpoints of each run, as indices of the path, by its label; "" where there is one run."""
        if not self.runs:
            return {"": range(len(self.path))}
        ends = np.cumsum(self.run_lengths).tolist()
        return {
            run: range(end - length, end)
            for run, length, end in zip(self.runs, self.run_lengths, ends, strict=True)
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the grid in the format that the suffix of `path` names.

        .npz: everything, for `load` and for Landscaper (see `output.npz`).
        .vtp: surface and path for ParaView (see `output.vtp`).
        .h5 or .hdf5: the layout of Li et al.'s repository (see `output.h5`); needs h5py.

        Raises InvalidValueError for another suffix, MissingExtraError without h5py, RunDirError when the file
        cannot be written.
        """
        from distsummary.landscapes.output.files import save_grid

        save_grid(self, FilePath(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "LossGrid":
        """Read what `save` wrote as .npz; raises MissingFileError or DamagedFileError."""
        from distsummary.landscapes.output.npz import from_npz

        if not FilePath(path).is_file():
            raise MissingFileError(f"{os.fspath(path)} is not there; landscapes are saved with LossGrid.save")
        try:
            return from_npz(FilePath(path).read_bytes())
        except (DamagedFileError, OSError) as error:
            raise DamagedFileError(f"{os.fspath(path)} cannot be read: {error}") from error

    def meta(self) -> dict[str, Any]:
        """Every field that is no array, as JSON can hold it."""
        apart = {*ARRAYS, "quantities"}
        meta = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        mappings = ("worker_seconds", "rounding", "filter_axis")
        return meta | {name: dict(getattr(self, name)) for name in mappings}

    def plot(self, path: str | os.PathLike[str] | None = None, kind: str = "contour") -> "Figure | None":
        """Draw a picture into a file (.png, .pdf or .svg); needs matplotlib (`distsummary[report]`).

        Without `path` nothing is written or shown: it returns the matplotlib Figure, which a notebook shows
        as the value of its cell, and which pyplot does not know, so nothing need be closed.

        `kind` "contour" or "surface", the path on either; a grid of one row is drawn as a curve. Losses that
        are not finite, or missing, leave a hole.

        Raises InvalidValueError for another suffix or kind, MissingExtraError without matplotlib, RunDirError
        when the file cannot be written.
        """
        if path is None:
            from distsummary.landscapes.output.draw import figure_of

            return figure_of(self, kind)
        from distsummary.landscapes.output.files import save_picture

        save_picture(self, FilePath(path), kind)
        return None


def finite_bounds(*arrays: Array) -> tuple[float, float]:
    """The smallest and the largest finite number of all arrays, (0, 0) when there is none."""
    flat = np.concatenate([np.asarray(a, np.float64).reshape(-1) for a in arrays])
    flat = flat[np.isfinite(flat)]
    return (float(flat.min()), float(flat.max())) if flat.size else (0.0, 0.0)


def make_finite(values: Array, bounds: tuple[float, float]) -> Array:
    """`values` with NaN and +Inf at the upper bound, -Inf at the lower one, all of them float32 can hold."""
    largest = float(np.finfo(np.float32).max)
    finite = np.nan_to_num(values, nan=bounds[1], posinf=bounds[1], neginf=bounds[0])
    return np.asarray(np.clip(finite, -largest, largest))
