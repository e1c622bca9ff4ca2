"""LossGrid: a loss landscape as data, from and to files and records."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path as FilePath
from typing import Any
from zipfile import BadZipFile

import numpy as np

from distsummary.errors import DamagedFileError, InvalidValueError, MissingFileError
from distsummary.events.records import Landscape
from distsummary.landscape.directions import Array

FORMAT = 1
MARGIN = 0.2  # of the path's extent, on each side
_ARRAYS = (
    "x",
    "y",
    "z",
    "path",
    "path_loss",
    "true_loss",
    "residuals",
    "explained_variance",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossGrid:
    """The loss over a plane of parameter space.

    The parameters at (i, j) are `centre + x[j] * direction_x + y[i] * direction_y`; the centre is
    checkpoint `numbers[-1]`.

    Attributes:
        x, y: axes, float64 (n,) and (m,).
        z: losses, float64 (m, n); NaN and Inf stay what they are.
        numbers: the checkpoints of the path by number; only the centre for a random plane.
        path: their coordinates in the plane, float64 (k, 2). The centre is exactly (0, 0).
        path_loss: the loss at these coordinates, in the plane, (k,).
        true_loss: the loss of the checkpoints themselves, (k,).
        residuals: how much of each checkpoint lies outside the plane, |d - A c| / |d|, (k,).
        explained_variance: of the two directions, (2,); empty for a random plane.
        decomposition: "PCA" or "Random".
        convergence_point: (x, y, loss) of the end of training as viewers show it.
        unit, step_per_epoch: what a checkpoint number counts, "step" or "epoch".
        centring, normalization, mode, seed, rng: how the directions were made ("" and None: not used).
        bn_mode: "eval" (running statistics) or "batch" (statistics of each batch, training mode).
        engine: who evaluated the points.
        samples: rows of data behind each loss.
        lost_points: points without a value because their workers died too often.
        worker_seconds: seconds spent on points, by worker.
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
    unit: str = "step"
    step_per_epoch: int = 1
    centring: str = ""
    normalization: str = "none"
    mode: str = "standard"
    seed: int | None = None
    rng: str = ""
    bn_mode: str = "eval"
    engine: str = ""
    samples: int = 0
    lost_points: int = 0
    worker_seconds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.z.shape != (len(self.y), len(self.x)):
            expected = (len(self.y), len(self.x))
            raise InvalidValueError(f"z must be (len(y), len(x)) = {expected}, got {self.z.shape}")

    @property
    def tag(self) -> str:
        """The tag in event files, MindSpore's: `landscape_[first, last]`, or `landscape_[last]` if random."""
        if self.decomposition == "PCA":
            return f"landscape_[{self.numbers[0]}, {self.numbers[-1]}]"
        return f"landscape_[{self.numbers[-1]}]" if self.numbers else "landscape"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `path` (.npz): the arrays as they are, everything else as JSON under the key `meta`."""
        meta = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}
        meta["worker_seconds"] = dict(self.worker_seconds)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        with open(path, "wb") as file:
            np.savez(file, meta=np.array(json.dumps({"format": FORMAT, **meta})), **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "LossGrid":
        """Read what `save` wrote; raises MissingFileError or DamagedFileError."""
        if not FilePath(path).is_file():
            raise MissingFileError(f"{os.fspath(path)} is not there; landscapes are saved with LossGrid.save")
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as saved:
                meta: dict[str, Any] = json.loads(str(saved["meta"]))
                arrays = {name: saved[name] for name in _ARRAYS}
            if meta.pop("format") != FORMAT:
                raise ValueError("it was written by a newer version")
            meta |= {"numbers": tuple(meta["numbers"]), "convergence_point": tuple(meta["convergence_point"])}
            return cls(**meta, **arrays)
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, BadZipFile) as error:
            raise DamagedFileError(
                f"{os.fspath(path)} is not a saved loss grid ({error}); compute it again"
            ) from error

    def to_record(self) -> Landscape:
        """The value for event files.

        Viewers hold neither NaN nor Inf: these become the largest finite loss of grid and path (-Inf the
        smallest, 0 where nothing is finite), and all is held within the range of float32. A random plane has
        no path.
        """
        is_path = self.decomposition == "PCA"
        bounds = finite_bounds(self.z, self.path_loss)
        px, py, pz = self.convergence_point
        return Landscape(
            x=self.x,
            y=self.y,
            z=make_finite(self.z, bounds),
            decomposition=self.decomposition,
            unit=self.unit,
            step_per_epoch=self.step_per_epoch,
            convergence_point=(px, py, float(make_finite(np.array(pz), bounds))),
            intervals=self.numbers if is_path else (),
            path_x=self.path[:, 0] if is_path else np.empty(0),
            path_y=self.path[:, 1] if is_path else np.empty(0),
            path_z=make_finite(self.path_loss, bounds) if is_path else np.empty(0),
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the contours with the path on them as a PNG; needs matplotlib (`distsummary[report]`)."""
        from distsummary.landscape.draw import draw

        FilePath(path).write_bytes(draw(self))


def path_axes(points: Array, size: int) -> tuple[Array, Array]:
    """The axes (size,) around a path (k, 2): its bounding box and a fifth of its extent on each side."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    axes = np.linspace(low - MARGIN * span, high + MARGIN * span, size)
    return axes[:, 0].copy(), axes[:, 1].copy()


def unit_axes(size: int) -> tuple[Array, Array]:
    """The axes (size,) of a random plane: [-1, 1]. Directions carry the length of the weights."""
    axis = np.linspace(-1.0, 1.0, size)
    return axis, axis.copy()


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
