"""Metrics of classes beyond one number: the confusion matrix and ROC curves, with MindSpore's numbers.

The formulas are those of https://en.wikipedia.org/wiki/Confusion_matrix, as MindSpore 2.10 computes them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from distsummary.base.checks import check_choice, check_int, check_number, check_type
from distsummary.errors import InvalidValueError
from distsummary.model.metric import Array, LastUpdate, Metric, array_of, is_binary

NORMALIZED = ("no_norm", "target", "prediction", "all")
DECREASES = ("none", "mean", "sum", "mean_batch", "sum_batch", "mean_channel", "sum_channel")
PAIR = "two inputs, predictions and labels"


class ConfusionMatrix(Metric):
    """How many samples of each class (rows) were predicted as each class (columns).

    Args:
        num_classes: C, the number of classes.
        normalize: "no_norm": counts. "target": shares of each row, "prediction" of each column, "all" of all
            samples; 0 where there is no sample.
        threshold: of predictions that are floats in the shape of the labels: from it on they are class 1.

    Raises InvalidTypeError or InvalidValueError for other arguments.
    """

    def __init__(self, num_classes: int, normalize: str = "no_norm", threshold: float = 0.5) -> None:
        num_classes = check_int("num_classes", num_classes, low=1)
        check_choice("normalize", normalize, NORMALIZED)
        threshold = check_number("threshold", threshold)
        self._classes, self._normalize, self._threshold = num_classes, normalize, threshold
        self.clear()

    def clear(self) -> None:
        """Forget all updates."""
        self._counts = np.zeros((self._classes, self._classes))
        self._is_updated = False

    def update(self, *inputs: Any) -> None:
        """Add predictions (N, C, ...) or (N, ...) and labels (N, ...), ints in [0, C-1].

        Raises InvalidValueError for other shapes or labels.
        """
        predicted, true = self._arrays(inputs, 2, PAIR)
        # Scores of all classes become the best class, scores of one class are compared with the threshold.
        if predicted.ndim == true.ndim + 1 and predicted.ndim > 1:
            predicted = predicted.argmax(axis=1)
        elif np.issubdtype(predicted.dtype, np.floating):
            predicted = predicted >= self._threshold
        if predicted.shape != true.shape:
            raise InvalidValueError(
                f"{self._name} takes predictions (N, C, ...) or (N, ...) and labels (N, ...), got the shapes "
                f"{predicted.shape} and {true.shape}"
            )
        pairs = np.stack([true.reshape(-1), predicted.reshape(-1)]).astype(np.int64)
        if pairs.size and not 0 <= pairs.min() <= pairs.max() < self._classes:
            raise InvalidValueError(
                f"{self._name} got classes from {pairs.min()} to {pairs.max()}; with "
                f"num_classes={self._classes} they must be in [0, {self._classes - 1}]"
            )
        np.add.at(self._counts, tuple(pairs), 1)
        self._is_updated = True

    def eval(self) -> Array:
        """(C, C) float64. Raises NoSamplesError."""
        self._require(self._is_updated)
        axes: dict[str, Any] = {"target": 1, "prediction": 0, "all": None}
        if self._normalize == "no_norm":
            return self._counts.copy()
        whole = self._counts.sum(axis=axes[self._normalize], keepdims=True)
        found = np.zeros_like(self._counts)
        np.divide(self._counts, whole, out=found, where=whole > 0)
        return found


def _over(part: Array, whole: Array) -> Array:
    """The quotient; NaN where it has no value."""
    whole = np.asarray(whole, np.float64)
    found = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=found, where=whole != 0)
    return found


def _threshold(tpr: Array, tnr: Array) -> Array:
    return _over(np.sqrt(tpr * (1 - tnr)) + tnr - 1, tpr + tnr - 1)


# Of the counts of true positives, false positives, true negatives and false negatives.
_MEASURES: dict[str, Callable[[Array, Array, Array, Array], Array]] = {
    "tpr": lambda tp, fp, tn, fn: _over(tp, tp + fn),
    "tnr": lambda tp, fp, tn, fn: _over(tn, fp + tn),
    "ppv": lambda tp, fp, tn, fn: _over(tp, tp + fp),
    "npv": lambda tp, fp, tn, fn: _over(tn, tn + fn),
    "fnr": lambda tp, fp, tn, fn: _over(fn, tp + fn),
    "fpr": lambda tp, fp, tn, fn: _over(fp, fp + tn),
    "fdr": lambda tp, fp, tn, fn: _over(fp, fp + tp),
    "for": lambda tp, fp, tn, fn: _over(fn, fn + tn),
    "pt": lambda tp, fp, tn, fn: _threshold(_over(tp, tp + fn), _over(tn, fp + tn)),
    "ts": lambda tp, fp, tn, fn: _over(tp, tp + fn + fp),
    "acc": lambda tp, fp, tn, fn: _over(tp + tn, tp + fp + tn + fn),
    "ba": lambda tp, fp, tn, fn: (_over(tp, tp + fn) + _over(tn, fp + tn)) / 2,
    "f1": lambda tp, fp, tn, fn: _over(2 * tp, 2 * tp + fn + fp),
    "mcc": lambda tp, fp, tn, fn: _over(
        tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    ),
    "fm": lambda tp, fp, tn, fn: np.sqrt(_over(tp, tp + fp) * _over(tp, tp + fn)),
    "bm": lambda tp, fp, tn, fn: _over(tp, tp + fn) + _over(tn, fp + tn) - 1,
    "mk": lambda tp, fp, tn, fn: _over(tp, tp + fp) + _over(tn, tn + fn) - 1,
}
_ALIASES = {
    "tpr": ("sensitivity", "recall", "hit_rate", "true_positive_rate"),
    "tnr": ("specificity", "selectivity", "true_negative_rate"),
    "ppv": ("precision", "positive_predictive_value"),
    "npv": ("negative_predictive_value",),
    "fnr": ("miss_rate", "false_negative_rate"),
    "fpr": ("fall_out", "false_positive_rate"),
    "fdr": ("false_discovery_rate",),
    "for": ("false_omission_rate",),
    "pt": ("prevalence_threshold",),
    "ts": ("threat_score", "critical_success_index", "csi"),
    "acc": ("accuracy",),
    "ba": ("balanced_accuracy",),
    "f1": ("f1_score",),
    "mcc": ("matthews_correlation_coefficient",),
    "fm": ("fowlkes_mallows_index",),
    "bm": ("informedness", "bookmaker_informedness"),
    "mk": ("markedness", "deltap"),
}
_MEASURE_OF = {name: short for short, names in _ALIASES.items() for name in (short, *names)}


class ConfusionMatrixMetric(Metric):
    """A measure of the confusion matrix of one-hot predictions and labels.

    Args:
        skip_channel: False leaves out class 0. (MindSpore's page says the opposite of what MindSpore does.)
        metric_name: "sensitivity", "specificity", "precision", "f1 score", "mcc" and the like; the error of
            another name lists them all.
        calculation_method: True: measure each class of each sample, then reduce; for segmentations alone.
            False: measure the counts of all samples and classes together.
        decrease: with calculation_method, how one update is reduced to one number: "mean", or "sum" (of which
            `eval` gives the mean, weighted by the measured classes). The others give a number for each class
            or sample and are refused unless there is one, as in MindSpore.

    Raises InvalidTypeError or InvalidValueError for other arguments.
    """

    def __init__(
        self,
        skip_channel: bool = True,
        metric_name: str = "sensitivity",
        calculation_method: bool = False,
        decrease: str = "mean",
    ) -> None:
        check_type("skip_channel", skip_channel, bool)
        check_type("metric_name", metric_name, str)
        check_type("calculation_method", calculation_method, bool)
        check_choice("metric_name", metric_name.replace(" ", "_").lower(), _MEASURE_OF)
        check_type("decrease", decrease, str)
        check_choice("decrease", decrease, DECREASES)
        self._measure = _MEASURES[_MEASURE_OF[metric_name.replace(" ", "_").lower()]]
        self._skip_channel, self._by_sample, self._decrease = skip_channel, calculation_method, decrease
        self.clear()

    def clear(self) -> None:
        """Forget all updates."""
        self._counts = np.zeros(4)
        self._sum, self._measured = 0.0, 0

    def update(self, *inputs: Any) -> None:
        """Add predictions and labels, both (N, C, ...) of 0 and 1; raises InvalidValueError for others."""
        predicted, true = self._arrays(inputs, 2, PAIR)
        if (
            predicted.ndim < 2
            or predicted.shape != true.shape
            or not (is_binary(predicted) and is_binary(true))
        ):
            raise InvalidValueError(
                f"{self._name} takes one-hot predictions and labels of the same shape (N, C, ...), got the "
                f"shapes {predicted.shape} and {true.shape}"
            )
        counts = self._counted(predicted, true)
        if not self._by_sample:
            self._counts += counts.sum(axis=(0, 1))
            return
        if predicted.ndim == 2 or (predicted.ndim == 3 and predicted.shape[-1] == 1):
            raise InvalidValueError(
                f"calculation_method=True is for segmentations (N, C, H, ...), got the shape "
                f"{predicted.shape}; pass calculation_method=False"
            )
        measures = self._measure(*np.moveaxis(counts, -1, 0))
        reduced, measured = _reduced(measures, self._decrease)
        if reduced.size != 1:
            raise InvalidValueError(
                f"decrease={self._decrease!r} gives {reduced.size} numbers for {predicted.shape[0]} "
                f'samples of {counts.shape[1]} classes; choose "mean" or "sum"'
            )
        # An update counts by how much was measured in it; `eval` divides by the sum of that.
        self._sum += reduced.item() * int(measured.item())
        self._measured += int(measured.item())

    def eval(self) -> Any:
        """A float of calculation_method, otherwise (1,) float64. Raises NoSamplesError."""
        if self._by_sample:
            self._require(self._measured)
            return self._sum / self._measured
        self._require(self._counts.any())
        return self._measure(*self._counts[:, None])

    def _counted(self, predicted: Array, true: Array) -> Array:
        """(N, C, 4) float64: true and false positives, true and false negatives."""
        # The meaning is the one that MindSpore gives it: False leaves out class 0.
        if not self._skip_channel and true.shape[1] > 1:
            predicted, true = predicted[:, 1:], true[:, 1:]
        predicted, true = (each.reshape(*each.shape[:2], -1).astype(float) for each in (predicted, true))
        # Where both are 1 the sum is 2, a true positive; where both are 0 it is 0, a true negative.
        both, positives = predicted + true, true.sum(axis=2)
        true_positives, true_negatives = (both == 2).sum(axis=2), (both == 0).sum(axis=2)
        false_positives = true.shape[2] - positives - true_negatives
        return np.stack(
            [true_positives, false_positives, true_negatives, positives - true_positives], axis=-1
        )


def _reduced(measures: Array, decrease: str) -> tuple[Array, Array]:
    """Measures (N, C) reduced, and of how many each number is made; a NaN is no measure."""
    is_measured = ~np.isnan(measures)
    measures = np.where(is_measured, measures, 0.0)
    how, _, axis = decrease.partition("_")
    if decrease == "none":
        return measures, is_measured
    if decrease == "sum":
        return measures.sum(), is_measured.sum()
    # "channel" reduces the classes, "batch" the samples; "mean" both, one after the other
    for number in {"batch": (0,), "channel": (1,), "": (1, 0)}[axis]:
        counted = is_measured.sum(axis=number)
        measures = measures.sum(axis=number)
        if how == "mean":
            measures = np.divide(measures, counted, out=np.zeros_like(measures), where=counted > 0)
        is_measured = counted > 0
    return np.asarray(measures), np.asarray(counted)


class ROC(LastUpdate):
    """The receiver operating characteristic of scores, for `auc`.

    Args:
        class_num: C, the number of classes, if the scores are (N, C, ...).
        pos_label: the positive class if they have the labels' shape; None: 1.

    Raises InvalidTypeError for other types.
    """

    def __init__(self, class_num: int | None = None, pos_label: int | None = None) -> None:
        class_num = check_int("class_num", class_num, optional=True)
        pos_label = check_int("pos_label", pos_label, optional=True)
        self._classes, self._positive = class_num, pos_label
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Take scores (N, ...) or (N, C, ...) and labels (N, ...) in the place of earlier ones.

        Raises InvalidValueError unless they fit each other, class_num and pos_label.
        """
        scores, true = self._arrays(inputs, 2, "two inputs, scores and labels")
        # Scores in the shape of the labels are those of one class, the positive one.
        if scores.shape == true.shape and self._classes in (None, 1):
            self._held = (
                [scores.reshape(-1)],
                [true.reshape(-1) == (1 if self._positive is None else self._positive)],
            )
            return
        if scores.shape[:1] + scores.shape[2:] != true.shape or scores.shape[1] != self._classes:
            raise InvalidValueError(
                f"ROC takes scores of the labels' shape (with class_num None or 1), or (N, class_num, ...), "
                f"got the shapes {scores.shape} and {true.shape}, class_num={self._classes}"
            )
        if self._positive is not None:
            raise InvalidValueError(
                f"pos_label must be None for scores of {self._classes} classes, got {self._positive}"
            )
        # Of several classes, each one has its curve against all others.
        columns = np.moveaxis(scores, 1, 0).reshape(scores.shape[1], -1)
        self._held = [*columns], [true.reshape(-1) == each for each in range(len(columns))]

    def eval(self) -> tuple[Any, Any, Any]:
        """False positive rates, true positive rates, thresholds, each (K,) float64; of C classes, lists of C.

        Raises NoSamplesError, InvalidValueError without a positive or without a negative sample.
        """
        curves = [_curve(*each) for each in zip(*self._last(), strict=True)]
        if self._classes in (None, 1):
            return curves[0]
        false, true, thresholds = (list(each) for each in zip(*curves, strict=True))
        return false, true, thresholds


def _curve(scores: Array, is_positive: Array) -> tuple[Array, Array, Array]:
    """False positive rates, true positive rates and thresholds, from the highest score down."""
    if is_positive.all() or not is_positive.any():
        sort = "negative" if is_positive.all() else "positive"
        raise InvalidValueError(f"ROC has no {sort} samples in the labels, so that their rate has no meaning")
    order = np.argsort(scores, kind="stable")[::-1]
    scores, is_positive = scores[order].astype(np.float64), is_positive[order]
    # Equal scores make one point of the curve, at the end of their run.
    ends = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    positives = np.cumsum(is_positive)[ends]
    # The curve begins at (0, 0), with a threshold above all scores.
    rates = [np.append(0, count / count[-1]) for count in (1 + ends - positives, positives)]
    return rates[0], rates[1], np.append(scores[0] + 1, scores[ends])


def auc(x: Any, y: Any, reorder: bool = False) -> float:
    """The area under a curve by the trapezoidal rule, such as under those of ROC.

    Args:
        x: (N,) or (N, 1), rising or falling, N >= 2: false positive rates.
        y: (N,) or (N, 1): true positive rates.
        reorder: whether the points are sorted by x, then by y.

    Raises InvalidTypeError, InvalidValueError for other points.
    """
    check_type("reorder", reorder, bool)
    x, y = (array_of("auc", each).astype(np.float64) for each in (x, y))
    if any(each.shape not in ((each.size,), (each.size, 1)) for each in (x, y)) or not 2 <= x.size == y.size:
        raise InvalidValueError(
            f"auc takes at least two points x and y of shape (N,) or (N, 1), got {x.shape} and {y.shape}"
        )
    x, y = x.reshape(-1), y.reshape(-1)
    if reorder:
        order = np.lexsort((y, x))
        x, y = x[order], y[order]
    steps = np.diff(x)
    if not ((steps >= 0).all() or (steps <= 0).all()):
        raise InvalidValueError("x of auc must rise or fall; pass reorder=True to sort the points")
    # Where x falls, all steps are negative, but the area must not be.
    direction = -1 if (steps < 0).any() else 1
    return direction * float((steps * (y[1:] + y[:-1]) / 2).sum())
