"""The quantities computed at a point: the options (`Evaluation`) and the sums over batches (`Tally`).

For each point, a batch gives one *reading*: a row of numbers, see `Tally`. The quantities of a data set are
computed from the weighted sums of its readings. All points see the batches in the same order, so two points
differ only in their parameters (a paired comparison).

In the formulas below, sums go over batches; l and w are a batch's loss and weight; m is the mean loss,
sum w l / sum w. The standard error of the loss is computed

- from rows, if the loss of every row is known: sqrt(sum w (v + (l - m)^2) / sum w / (n - 1)), where v is the
  variance of the losses of the batch's rows, and n the number of rows of all batches;
- from batches, if losses of rows are unknown or rows have different weights (class weights, rows left out):
  sqrt(B/(B-1) sum w^2 (l - m)^2) / sum w, where B is the number of batches.

`Tally` sums differences from the first batch's loss, because sums of the squares of l would lose digits.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distsummary.base.checks import check_choice, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.directions.recipe import Array

BN_MODES = ("eval", "batch", "recompute")
PRECISIONS = ("", "tf32", "bf16", "fp16", "float64")
REDUCED = ("tf32", "bf16", "fp16")  # the error of these precisions is measured and stored
LOSS = "loss"
SAME = 1e-4  # up to this relative difference, a batch's loss and the mean of its rows count as equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What is computed at each point, and how.

    Attributes:
        metrics: name -> function `f(outputs, targets)` that returns the mean over the rows of a batch. With
            metrics a `batch_loss` must return (loss, outputs), and the metrics get (outputs, batch).
        stderr: also compute the standard error of the loss.
        bn_mode: for models with batch normalization. "eval": running statistics; "batch": statistics of each
            batch; "recompute": running statistics computed again at every point from all batches of the first
            data set; "": "batch" in mode "mindspore", otherwise "eval".
        precision: "": the model's own, without TF32; "tf32": with TF32 (on GPUs that have it); "bf16" or
            "fp16": torch's autocast; "float64".
        streamed: read the batches once for each block of points instead of keeping them on the device. None:
            do so only if they do not fit, that is, if loaders need more than a quarter of the host's memory,
            or batches more than half of the GPU's. False: loaders are read into the host's memory; what needs
            more than half of the GPU's is streamed from there. Loaders that shuffle or augment give the same
            data each time, see `steady`.
    """

    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    stderr: bool = False
    bn_mode: str = ""
    precision: str = ""
    streamed: bool | None = None

    def __post_init__(self) -> None:
        check_type("metrics", self.metrics, Mapping)
        for name, metric in self.metrics.items():
            if not isinstance(name, str) or not callable(metric):
                raise InvalidTypeError(f"metrics must map names to functions, got {name!r}: {metric!r}")
        if reserved := sorted(set(self.metrics) & {LOSS, "stderr"}):
            raise InvalidValueError(f"metrics must not be called {', '.join(reserved)}; choose other names")
        check_type("stderr", self.stderr, bool)
        check_type("streamed", self.streamed, bool, optional=True)
        check_choice("bn_mode", self.bn_mode, ("", *BN_MODES))
        check_choice("precision", self.precision, PRECISIONS)
        if self.bn_mode == "recompute" and self.streamed:
            raise InvalidValueError(
                "bn_mode='recompute' reads all batches twice at every point, which excludes streamed; leave "
                "it out or use bn_mode='batch'"
            )

    def quantities(self) -> tuple[str, ...]:
        """The names of the quantities of a data set at a point."""
        return (LOSS, *self.metrics, *(("stderr",) if self.stderr else ()))


def refuse_unfit(evaluation: Evaluation, mode: str, *, is_torch: bool) -> None:
    """Raise InvalidValueError for options that do not apply to this framework or mode."""
    if not is_torch and (evaluation.precision or evaluation.bn_mode):
        raise InvalidValueError(
            "precision and bn_mode are for torch models; leave them out, since a numpy model computes "
            "as it is written"
        )
    if mode == "mindspore" and evaluation.bn_mode not in ("", "batch"):
        raise InvalidValueError(f"bn_mode must be 'batch' in mode 'mindspore', got {evaluation.bn_mode!r}")


def quantity_names(evaluation: Evaluation, data: Sequence[str]) -> tuple[str, ...]:
    """The names of all quantities of a point, with their data set as prefix (none for the data set "").

    Raises InvalidValueError if two quantities have the same name.
    """
    each = evaluation.quantities()
    names = tuple(f"{name}/{quantity}" if name else quantity for name in data for quantity in each)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InvalidValueError(
            f"each quantity must have a name of its own, got {twice[0]!r} twice; rename the metric or the "
            "data set"
        )
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """A batch's weight in the loss of a point, and its number of rows."""

    weight: float
    rows: int


class Tally:
    """The sums over the batches of one data set, for a block of points.

    `readings` are float64 (points, columns). The columns are: the loss; if `has_rows`, the unweighted means,
    in float64, of the rows' losses and of their squares; the metrics.
    """

    def __init__(self, evaluation: Evaluation, points: int, *, has_rows: bool) -> None:
        self._evaluation = evaluation
        self._by_rows = np.full(points, has_rows)
        self._of_rows = 2 * has_rows  # the number of columns about rows
        self._sums = np.zeros((points, 1 + self._of_rows + len(evaluation.metrics)))
        self._weight = self._rows = self._batches = 0.0
        self._origin = np.zeros(points)  # the first batch's loss; below, d is l - origin
        self._moments = np.zeros((points, 3))  # the sums of w d, w d^2 and w v
        self._squares = np.zeros((points, 3))  # the sums of w^2, w^2 d and w^2 d^2

    def add(self, readings: Array, facts: BatchFacts) -> None:
        """Add a batch's readings at all points."""
        weight, loss = facts.weight, readings[:, 0]
        # The losses of diverged points are not finite.
        with np.errstate(invalid="ignore", over="ignore"):
            self._sums += weight * readings
            if self._evaluation.stderr:
                if not self._batches:
                    self._origin = loss.copy()
                away = loss - self._origin
                variance = np.zeros_like(away)
                if self._of_rows:
                    variance = readings[:, 2] - readings[:, 1] ** 2
                    # One batch whose loss is not the mean of its rows' losses is enough: from then on, the
                    # standard error of these points is computed from batches.
                    self._by_rows &= ~is_apart(*readings[:, :3].T)
                self._moments += weight * np.stack((away, away**2, variance), axis=1)
                self._squares += weight**2 * np.stack((np.ones_like(away), away, away**2), axis=1)
        self._weight += weight
        self._rows += facts.rows
        self._batches += 1

    def stderr(self) -> Array:
        """The standard error of each point's loss so far, (points,); NaN until there are enough data."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            # The two formulas at the top of this module, written with sums of d = l - origin.
            mean, mean_square, within = (self._moments / self._weight).T
            by_rows = np.sqrt(np.clip(within + mean_square - mean**2, 0, None) / (self._rows - 1))
            spread = self._squares @ np.array([0, 0, 1.0])
            spread = spread - 2 * mean * self._squares[:, 1] + mean**2 * self._squares[:, 0]
            factor = np.float64(self._batches) / (self._batches - 1)
            by_batches = np.sqrt(np.clip(factor * spread, 0, None)) / self._weight
        is_known = np.where(self._by_rows, self._rows, self._batches) > 1
        return np.where(is_known, np.where(self._by_rows, by_rows, by_batches), np.nan)

    def values(self) -> Array:
        """The quantities, float64 (points, quantities).

        Raises LandscapeError if no batch was added.
        """
        if not self._batches:
            raise LandscapeError("a data set holds no batches; give a loader that can be read again")
        # The columns about rows serve only the standard error and are not quantities themselves.
        found = np.delete(self._sums / self._weight, slice(1, 1 + self._of_rows), axis=1)
        return np.column_stack((found, self.stderr())) if self._evaluation.stderr else found


def is_apart(loss: Array, mean: Array, square: Array) -> Array:
    """Whether a loss differs from the unweighted mean of its rows' losses; False if these are not finite."""
    return np.asarray(np.abs(mean - loss) > SAME * np.sqrt(square))
