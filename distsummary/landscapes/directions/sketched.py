"""The path of a training from sketches of its steps: its PCA coordinates, and where it lies in a plane.

A sketch S theta is a short vector, linear in the parameters theta. Inner products of sketches nearly equal
those of the sketched parameters (see `checkpoints.sketch`). With d_k = theta_k - theta_n (n: the last step),
the Gram matrix of the S d_k equals that of the d_k to within a percent, and `pca` finds the axes from it.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distsummary.base.checks import check_choice
from distsummary.checkpoints.sketch.count_sketch import BUCKETS, Sketcher
from distsummary.checkpoints.sketch.sketch_file import Sketches, has_sketches, read_sketches
from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.checkpoint_sources import ckpt_dir_of
from distsummary.landscapes.directions.displacements import combine_rows, inner
from distsummary.landscapes.directions.pca import Gram, Path, pca_axes, solve
from distsummary.landscapes.directions.recipe import Array, Directions, Weights

CENTERINGS = ("last", "mean")  # not "mindspore": a sketch does not give the mean over parameters
MAX_ROWS = 2048  # the axes are found from at most this many steps: more would take minutes
_BLOCK_BYTES = 1 << 23

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchedPath:
    """A training's path in the plane of its leading directions, relative to the last step.

    Attributes:
        steps: the training step of each point, ascending (n,).
        points: coordinates float64 (n, 2), the last one at (0, 0). The signs of the axes are found from the
            sketches, so an axis may be opposite to the one found from whole checkpoints.
        residuals: how much of each displacement lies outside the plane, (n,), see `pca.Path`.
        explained_variance: the share of the variance along each direction, (2,).
        diverged: steps that are left out because their parameters were not finite, ascending.
    """

    steps: tuple[int, ...]
    points: Array
    residuals: Array
    explained_variance: Array
    diverged: tuple[int, ...] = ()

    def __repr__(self) -> str:
        shares = " + ".join(f"{share:.3g}" for share in self.explained_variance)
        lost = f", {len(self.diverged)} diverged" if self.diverged else ""
        return f"SketchedPath({len(self.steps)} steps, explained variance {shares}{lost})"


def sketched_path(sketches: Sketches, *, centering: str = "last") -> SketchedPath:
    """The coordinates of all steps in the plane that PCA finds from at most `MAX_ROWS` evenly spread steps.

    Steps whose parameters were not finite are left out, with a warning in the log. Raises LandscapeError if
    the remaining steps span no plane.
    """
    check_choice("centering of sketches", centering, CENTERINGS)
    _warn_diverged(sketches)
    every = -(-len(sketches.steps) // MAX_ROWS)
    # Evenly spread steps with the last one, which is the origin.
    chosen = sketches.steps[::-1][::every][::-1]
    total = np.zeros((len(chosen), len(chosen)))
    for block in _displacements(sketches, chosen):
        total += inner(block, block)
    axes = pca_axes(Gram(products=total, sums=np.zeros(len(chosen)), size=BUCKETS), centering=centering)
    directions = np.concatenate(
        [combine_rows(axes.weights, block) for block in _displacements(sketches, chosen)], axis=1
    )
    signs = np.sign(directions[[0, 1], np.abs(directions).argmax(axis=1)])
    path = _locate(sketches, directions * signs[:, None], sketches.read(sketches.steps[-1]))
    return SketchedPath(
        steps=sketches.steps,
        points=path.points,
        residuals=path.residuals,
        explained_variance=axes.explained_variance,
        diverged=sketches.diverged,
    )


def _warn_diverged(sketches: Sketches) -> None:
    """Log which steps are left out; raises LandscapeError if fewer than three are left."""
    lost, left = sketches.diverged, len(sketches.steps)
    if left >= 3 and lost:
        _log.warning(
            "%d of %d steps are left out of the path, the earliest of them step %d: "
            "their parameters hold NaN or Inf",
            len(lost), len(lost) + left, lost[0],
        )  # fmt: skip
    if left < 3 and lost:
        raise LandscapeError(
            f"a path needs at least 3 finite sketches, got {left}; at {len(lost)} other steps, the earliest "
            f"step {lost[0]}, the parameters held NaN or Inf: fix the training and train again"
        )
    if left < 3:
        raise LandscapeError(f"a path needs at least 3 sketches, got {left}; train longer")


def training_path(around: str | os.PathLike[str], *, centering: str = "last") -> SketchedPath:
    """The path of a training's steps, from the sketches that the run kept; `around`: run dir or ckpt_dir.

        path = training_path("runs/digits")
        axes.plot(*path.points.T)

    Raises MissingFileError or DamagedFileError if the sketches cannot be read, LandscapeError if the steps
    span no plane.
    """
    return sketched_path(read_sketches(ckpt_dir_of(around, has_sketches)), centering=centering)


def path_in_plane(sketches: Sketches, directions: Directions, centre: Weights, names: Sequence[str]) -> Path:
    """Where the steps lie in the plane through `centre` along `directions`.

    `centre` and `directions` hold whole parameters, which are sketched here. A step in the plane is located
    exactly (up to rounding). For any other step, sketching adds an error to the coordinates, in proportion to
    the part outside the plane.
    """
    sketcher = Sketcher(sketches.header.seed)
    axes = np.stack([sketcher.sketch(axis, names) for axis in (directions.x, directions.y)])
    return _locate(sketches, axes, sketcher.sketch(centre, names))


def _locate(sketches: Sketches, axes: Array, centre: Array) -> Path:
    """Coordinates of S theta_k - `centre` by least squares; `centre` and `axes` (2, BUCKETS) are sketches."""
    rights, squares = [np.empty((2, 0))], [np.empty(0)]
    together = _BLOCK_BYTES // (8 * BUCKETS)
    for first in range(0, len(sketches.steps), together):
        block = np.stack([sketches.read(step) for step in sketches.steps[first : first + together]]) - centre
        rights.append(inner(axes, block))
        squares.append(np.einsum("kb,kb->k", block, block))
    return solve(inner(axes, axes), np.concatenate(rights, axis=1), np.concatenate(squares))


def _displacements(sketches: Sketches, steps: Sequence[int]) -> Iterator[Array]:
    """S theta_k - S theta_n for each of `steps`, float64 (steps, buckets), in blocks of buckets."""
    width = max(1, _BLOCK_BYTES // (8 * len(steps)))
    for start in range(0, BUCKETS, width):
        stop = min(start + width, BUCKETS)
        block = np.stack([sketches.read(step, start, stop) for step in steps])
        block -= block[-1].copy()
        yield block
