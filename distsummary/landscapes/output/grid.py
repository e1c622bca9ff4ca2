"""A loss grid as data, and its NumPy archive (.npz), which can be loaded again.

An archive holds each array of the grid under its name, and all other fields as JSON under the key `meta`.
For a square grid, it also holds two arrays that the package Landscaper 1.3 reads with
`LossLandscape.load_from_npz`: `coordinates` (2, n), the axes, and `loss` (n, n), in which `make_finite` has
replaced NaN and Inf, because Landscaper sorts all points by loss.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from itertools import pairwise
from typing import Any, Self, get_type_hints

import msgspec
import numpy as np

from distsummary.base.checked_json import check_kind, parse_json
from distsummary.errors import DamagedFileError, InvalidValueError, LandscapeError
from distsummary.format.npz import read_npz
from distsummary.landscapes.directions.interpolate import barrier
from distsummary.landscapes.directions.normalization import FilterAxis
from distsummary.landscapes.directions.recipe import Array

ARRAYS = (
    "x",
    "y",
    "z",
    "path",
    "path_loss",
    "true_loss",
    "residuals",
    "explained_variance",
    "computed",
)
NAMED_KINDS = ("joint", "triangle", "line", "hessian", "curvature")  # these kinds are part of a grid's tag
_DIMENSIONS = {"x": 1, "y": 1, "path_loss": 1, "true_loss": 1, "residuals": 1, "explained_variance": 1}
FORMAT = 1  # version of the archives
ZIP = b"PK"  # the first bytes of an archive
QUANTITY = "quantity:"  # prefix of the name of a quantity in an archive
GAP = 4  # times the usual distance of a run's checkpoints; between those that are farther apart is no line


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Grid:
    """The data of a `LossGrid`; the fields are described there."""

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
    kind: str = ""
    runs: tuple[str, ...] = ()
    run_lengths: tuple[int, ...] = ()
    eigenvalues: tuple[float, ...] = ()
    eigenvalue_errors: tuple[float, ...] = ()
    hessian_angles: tuple[float, ...] = ()
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
    lengths: Mapping[str, float] = field(default_factory=dict)
    run: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        expected = (len(self.y), len(self.x))
        if not self.computed.size:
            object.__setattr__(self, "computed", np.ones(expected, bool))
        for name, values in (("z", self.z), ("computed", self.computed), *self.quantities.items()):
            if values.shape != expected:
                raise InvalidValueError(f"{name} must be (len(y), len(x)) = {expected}, got {values.shape}")
        # JSON, from which a grid may have been read, has lists instead of tuples.
        axes = {n: tuple(a) if isinstance(a, list) else a for n, a in self.filter_axis.items()}
        object.__setattr__(self, "filter_axis", axes)
        if self.computed.dtype != np.bool_:
            raise InvalidValueError(f"computed must have the dtype bool, got {self.computed.dtype}")

    @property
    def tag(self) -> str:
        """The tag in event files, as in MindSpore: `landscape_[first, last]` for PCA, or `landscape_[last]`.

        `first` and `last` are the steps or epochs of the path's ends. Kinds in NAMED_KINDS and the label are
        part of the tag; for example, if only some parameters are varied: `landscape_only_lora_[1, 9]`.
        """
        kind = self.kind if self.kind in NAMED_KINDS else ""
        name = "_".join(word for word in ("landscape", kind, self.label) if word)
        if self.decomposition == "PCA" and self.numbers:
            return f"{name}_[{self.numbers[0]}, {self.numbers[-1]}]"
        return f"{name}_[{self.numbers[-1]}]" if self.numbers else name

    @property
    def stderr(self) -> Array | None:
        """The standard error of the loss on the first data set, (m, n); None if it was not requested."""
        first = self.data_sets[0] if self.data_sets else ""
        return self.quantities.get(f"{first}/stderr" if first else "stderr")

    @property
    def explained(self) -> Array:
        """`explained_variance`: each direction's share of the path's variance, (2,); empty without a path."""
        return self.explained_variance

    @property
    def missing(self) -> Array:
        """bool (m, n): True where there is no loss, neither computed nor interpolated.

        All False for a complete grid, even at points that refinement skipped and whose value is NaN because
        the losses around them are not finite. In a partial grid, such points count as missing.
        """
        return np.logical_and(self.is_partial, ~self.computed & ~np.isfinite(self.z))

    @property
    def barrier(self) -> float:
        """How far the loss on a line rises above the straight line between the losses at its ends.

        See `interpolate.barrier`. NaN if points are missing. Raises LandscapeError unless the grid is a line.
        """
        if self.kind != "line":
            raise LandscapeError("only a line has a barrier; draw one with directions='line'")
        return float("nan") if self.missing.any() else barrier(self.z[0])

    @property
    def parts(self) -> dict[str, range]:
        """The path indices of each run's checkpoints, by run label ("" if there is only one run)."""
        if not self.runs:
            return {"": range(len(self.path))}
        ends = np.cumsum(self.run_lengths).tolist()
        return {
            run: range(end - length, end)
            for run, length, end in zip(self.runs, self.run_lengths, ends, strict=True)
        }

    @property
    def stretches(self) -> dict[str, list[range]]:
        """The parts of each run's path without a gap; the way through a gap is not known."""
        found: dict[str, list[range]] = {}
        for run, part in self.parts.items():
            numbers = np.array(self.numbers[part.start : part.stop], np.int64)
            apart = np.diff(numbers)
            ends = (
                part.start + 1 + np.flatnonzero(apart > GAP * max(1.0, np.median(apart)))
                if apart.size
                else ()
            )
            edges = [part.start, *map(int, ends), part.stop]
            found[run] = [range(*pair) for pair in pairwise(edges)]
        return found

    def meta(self) -> dict[str, Any]:
        """Every field that is not an array, as a dict that JSON can hold."""
        apart = {*ARRAYS, "quantities"}
        meta = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        mappings = ("worker_seconds", "rounding", "lengths", "filter_axis")
        return meta | {name: dict(getattr(self, name)) for name in mappings}

    def to_npz(self) -> bytes:
        """The grid as a NumPy archive, see the top of this module."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {f"{QUANTITY}{name}": values for name, values in self.quantities.items()}
        if len(self.x) == len(self.y):
            arrays["loss"] = make_finite(self.z, finite_bounds(self.z))
            arrays["coordinates"] = np.stack((self.x, self.y))
        buffer = io.BytesIO()
        np.savez(buffer, meta=np.array(json.dumps({"format": FORMAT, **self.meta()})), **arrays)
        return buffer.getvalue()

    @classmethod
    def from_npz(cls, data: bytes) -> Self:
        """The grid in an archive that `to_npz` made; raises DamagedFileError for anything else."""
        # NumPy's error would suggest loading the file as a pickle.
        if not data.startswith(ZIP):
            raise DamagedFileError(
                "it is not an .npz file, the only format that can be loaded; save as .npz, or "
                "compute it again"
            )
        try:
            saved = read_npz(data)
            if missing := {"meta", *ARRAYS} - saved.keys():
                raise DamagedFileError(f"without {', '.join(sorted(missing))}")
            meta = parse_json(str(saved["meta"]), dict[str, Any], name="its meta", is_finite=False)
            if meta.pop("format", None) != FORMAT:
                raise DamagedFileError("it was written by a newer version")
            check_kind(meta, _META, name="its meta")
            if any(abs(number) >> 63 for number in meta["numbers"]):
                raise DamagedFileError("a number of a checkpoint has more than 63 bits")
            for name in ("rounding", "lengths"):
                if others := (meta.get(name) or {}).keys() - {"x", "y"}:
                    raise DamagedFileError(f"{name} of {', '.join(sorted(others))}; a plane has x and y")
            # From here on the fields have their types; what remains are the arrays.
            meta |= {name: tuple(value) for name, value in meta.items() if isinstance(value, list)}
            arrays: dict[str, Any] = {name: saved[name] for name in ARRAYS}
            measured = {n.removeprefix(QUANTITY): one for n, one in saved.items() if n.startswith(QUANTITY)}
            for name, array in (*arrays.items(), *measured.items()):
                ndim, kinds = _DIMENSIONS.get(name, 2), "b" if name == "computed" else "iuf"
                if array.dtype.kind not in kinds or array.ndim != ndim:
                    raise DamagedFileError(f"{name} is {array.dtype} of the shape {array.shape}")
            return cls(**(meta | arrays), quantities=measured)
        except (DamagedFileError, InvalidValueError, TypeError) as error:
            raise DamagedFileError(f"not a saved loss grid ({error}); compute it again") from error


# The fields of a grid that are not arrays, with their types. Grid refuses the fields of newer versions.
_META = msgspec.defstruct(
    "Meta",
    [
        (one.name, kind) if one.default is one.default_factory is MISSING else (one.name, kind, None)
        for one, kind in zip(fields(Grid), get_type_hints(Grid).values(), strict=True)
        if one.name not in {*ARRAYS, "quantities"}
    ],
    kw_only=True,
)


def finite_bounds(*arrays: Array) -> tuple[float, float]:
    """The smallest and the largest finite number in all arrays, (0, 0) if there is none."""
    flat = np.concatenate([np.asarray(a, np.float64).reshape(-1) for a in arrays])
    flat = flat[np.isfinite(flat)]
    return (float(flat.min()), float(flat.max())) if flat.size else (0.0, 0.0)


def make_finite(values: Array, bounds: tuple[float, float]) -> Array:
    """`values` with NaN and +Inf set to the upper bound, -Inf to the lower; clipped to float32's range."""
    largest = float(np.finfo(np.float32).max)
    finite = np.nan_to_num(values, nan=bounds[1], posinf=bounds[1], neginf=bounds[0])
    return np.asarray(np.clip(finite, -largest, largest))
