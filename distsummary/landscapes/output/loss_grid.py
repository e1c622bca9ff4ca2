"""LossGrid: a loss landscape with its files and pictures."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from distsummary.base.checks import check_choice
from distsummary.base.extras import extra
from distsummary.base.publish import publish, refuse_unlike_files
from distsummary.errors import (
    DamagedFileError,
    InvalidValueError,
    MissingExtraError,
    MissingFileError,
    RunDirError,
)
from distsummary.landscapes.output.describe import in_a_line
from distsummary.landscapes.output.draw import DPI, FORMATS, KINDS, draw, figure_of
from distsummary.landscapes.output.grid import Grid

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

NPZ = ".npz"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LossGrid(Grid):
    """The loss over a plane of parameter space.

    The parameters at (i, j) are `centre + x[j] * direction_x + y[i] * direction_y`; the centre is
    checkpoint `numbers[-1]`.

    Attributes:
        x, y: axes, float64 (n,) and (m,).
        z: losses, float64 (m, n); NaN and Inf are kept.
        numbers: the step or epoch (see `unit`) of each checkpoint of the path; for a random plane, only that
            of the centre.
        kind: how the directions were found: "pca", "joint" (the PCA plane of several runs), "triangle"
            (through three checkpoints), "line" (between two; one row), "random", "given",
            "hessian" or "curvature" (of the factors of an optimizer).
        runs, run_lengths: if there are several runs, their labels and the number of checkpoints of each.
        path: the coordinates of the checkpoints in the plane, float64 (k, 2). The centre is exactly (0, 0).
        path_loss: the loss at these coordinates, in the plane, (k,).
        true_loss: the loss of the checkpoints themselves, (k,).
        residuals: the share of each checkpoint's offset d from the centre that lies outside the plane,
            |d - A c| / |d|, (k,); A holds the two directions, c the coordinates.
        explained_variance: each direction's share of the path's variance, (2,); empty for a random plane.
        eigenvalues, eigenvalue_errors: the two algebraically largest eigenvalues of the Hessian, and an upper
            bound of the error of each, apart from rounding in the Hessian-vector products; of "curvature",
            those of the damped Kronecker factors, without errors.
        hessian_angles: the two angles in degrees between the planes "curvature" and "hessian", if both were
            asked for.
        decomposition: the name of the kind in event files: "PCA", "Random", "Hessian" or "Curvature".
        convergence_point: (x, y, loss) of the end of training as viewers show it.
        unit, step_per_epoch: what `numbers` count, "step" or "epoch", and the number of steps in an epoch.
        centering, normalization, mode, seed, rng: how the directions were made ("" and None: not used).
        parameters: the patterns that selected the varied parameters; empty if all trainable ones are varied.
        filter_axis: for filter normalization, {parameter name: filter axis} where the axis is not 0.
        directions: a blake2b hash of the varied parameters and of the directions: the recipe (names, seed,
            normalization) of random ones, the arrays of all others. "" in older files.
        label: the part of the tag that is neither kind nor checkpoints, see `directions.prepare.label`.
        bn_mode: "eval" (running statistics) or "batch" (statistics of each batch, training mode).
        engine: the engine that evaluated the points.
        samples: the number of rows (samples) of the first data set.
        data_sets: the names of the data sets; `z` is the loss on the first; () for data without a name.
        quantities: what was computed besides the loss, by name: (m, n) each, such as a metric or "stderr".
            If there are `data_sets`, names begin with the data set, as in "train/stderr" and "test/loss".
        computed: where a loss was computed, bool (m, n), by default everywhere; False where it was
            interpolated from others or is missing (NaN in `z`). Nothing is extrapolated.
        is_partial: whether requested points are missing, because the landscape was stopped or lost points.
        lost_points: the number of points without a value because their workers died too often.
        worker_seconds: the seconds that each worker spent on points; after a resume, in the last call only.
        hardware: the hardware that computed the points; several kinds if a resume used another kind.
        precision_error: for a reduced precision, the largest relative error of the losses that were compared.
        rounding: the share of the varied parameters whose change from one grid point to the next is below an
            ulp, {"x": share, "y": share}; see `directions.rounding`.
        lengths: the L2 distance between the parameters at 0 and at 1 on an axis, {"x": l, "y": l}; {} in
            older files.
        run: the name of the run (or checkpoint file) that it was drawn around, "" if there are several (see
            `runs`).
        model: the name of the model's class.
    """

    def __repr__(self) -> str:
        return in_a_line(self)

    def _repr_png_(self) -> bytes | None:
        """The picture that a notebook shows for a grid; None without matplotlib, so that text is shown."""
        try:
            return draw(self)
        except MissingExtraError:
            return None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as .npz, for `load` and for Landscaper (see `output.grid`).

        Raises InvalidValueError for another suffix, RunDirError when the file cannot be written.
        """
        file = Path(path)
        if file.suffix.lower() != NPZ:
            raise InvalidValueError(
                f"{file.name} must end with {NPZ}; other formats: grid.to_xarray().to_netcdf(...)"
            )
        check_place(file)
        publish(file, self.to_npz())

    def to_xarray(self) -> "xarray.Dataset":
        """The arrays with names and axes, from which other programs get what they read (netCDF, HDF5, Zarr).

        Dimensions: y and x of the plane; checkpoint, the steps or epochs of the path. In the plane are loss,
        computed and all quantities; along checkpoint the coordinates path_x and path_y, and path_loss,
        true_loss, residual. The attribute `distsummary` has the other fields of the grid as JSON. Raises
        MissingExtraError without xarray.
        """
        package = extra("an xarray Dataset", "xarray")
        plane, along = ("y", "x"), ("checkpoint",)
        values = {
            "loss": (plane, self.z),
            "computed": (plane, self.computed),
            **{name: (plane, array) for name, array in self.quantities.items()},
            "path_x": (along, self.path[:, 0]),
            "path_y": (along, self.path[:, 1]),
            "path_loss": (along, self.path_loss),
            "true_loss": (along, self.true_loss),
            "residual": (along, self.residuals),
        }
        axes = {"y": self.y, "x": self.x, "checkpoint": [*self.numbers]}
        dataset: xarray.Dataset = package.Dataset(values, axes, {"distsummary": json.dumps(self.meta())})
        return dataset

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote as .npz; raises MissingFileError or DamagedFileError."""
        if not Path(path).is_file():
            raise MissingFileError(
                f"{os.fspath(path)} does not exist; landscapes are saved with LossGrid.save"
            )
        try:
            return cls.from_npz(Path(path).read_bytes())
        except (DamagedFileError, OSError) as error:
            raise DamagedFileError(f"{os.fspath(path)} cannot be read: {error}") from error

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        kind: str = "contour",
        *,
        size: tuple[float, float] | None = None,
        dpi: float = DPI,
    ) -> "Figure | None":
        """Draw a picture into a file (.png, .pdf or .svg); needs matplotlib.

        Without `path` it writes and shows nothing but returns the matplotlib Figure, which a notebook shows
        if it is the value of a cell. pyplot does not know the figure, so there is nothing to close.

        Losses that are not finite, or missing, leave a hole.

        Args:
            path: the file to write.
            kind: "contour" or "surface", with the path on it, or "curve", the losses of the checkpoints. A
                grid of one row is a curve over its axis, whatever the kind.
            size: width and height in inches, from 2 to 60 each. Fonts keep their size, so they are relatively
                larger in a smaller picture.
            dpi: pixels per inch.

        Raises InvalidValueError for another suffix, kind or size, and for the curve of a plane without a
        path, MissingExtraError without matplotlib, RunDirError when the file cannot be written.
        """
        if path is None:
            return figure_of(self, kind, size=size, dpi=dpi)
        file = Path(path)
        suffix = file.suffix.lower()
        check_choice(f"the suffix of {file.name!r}", suffix, [f".{name}" for name in FORMATS])
        check_choice("kind", kind, KINDS)
        check_place(file)
        publish(file, draw(self, kind, suffix[1:], size=size, dpi=dpi))
        return None


def check_place(path: Path) -> None:
    """Raise RunDirError unless `path` is a new or regular file in an existing directory."""
    for parent in path.parents:
        if parent.is_dir():
            break
        if parent.exists():
            raise RunDirError(f"{path} cannot be written: {parent} is a file; choose another directory")
    if not path.parent.is_dir():
        raise RunDirError(f"{path} cannot be written: there is no directory {path.parent}; make it first")
    refuse_unlike_files(path)
