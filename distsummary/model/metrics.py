"""Metrics of an evaluation, with MindSpore's names, numbers and methods: clear, update and eval.

They count on the host, in float64, and take tensors of any framework, NumPy arrays and lists. A metric of
torchmetrics can be used in their place: `ds.Model(..., metrics={"auc": torchmetrics.AUROC("binary")})`.

None of them is computed by torchmetrics. It defines these in another way than MindSpore: MAE and MSE (means
over elements), perplexity (of logits), Dice, ROC (other thresholds; the sigmoid of scores outside of [0, 1]),
BLEU (of texts that it splits itself) and the distances of surfaces. Where both agree (accuracy, precision,
recall, F, top k, the confusion matrix, the similarity of rows), counting takes a few lines here, arguments
would have to be checked all the same, and networks of NumPy would need torch.
"""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from distsummary.base.checks import check_choice, check_int, check_number, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.model.metric import Array, LastUpdate, Mean, Metric, Updatable, indices, is_binary
from distsummary.model.metrics_of_classes import ROC, ConfusionMatrix, ConfusionMatrixMetric, auc
from distsummary.model.metrics_of_images import (
    Dice,
    HausdorffDistance,
    MeanSurfaceDistance,
    OcclusionSensitivity,
    RootMeanSquareDistance,
)
from distsummary.model.metrics_of_text import BleuScore, Perplexity

__all__ = [
    "F1",
    "MAE",
    "MSE",
    "ROC",
    "Accuracy",
    "BleuScore",
    "ConfusionMatrix",
    "ConfusionMatrixMetric",
    "CosineSimilarity",
    "Dice",
    "Fbeta",
    "HausdorffDistance",
    "Loss",
    "MeanSurfaceDistance",
    "Metric",
    "OcclusionSensitivity",
    "OfTorchmetrics",
    "Perplexity",
    "Precision",
    "Recall",
    "RootMeanSquareDistance",
    "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "Updatable",
    "auc",
    "get_metrics",
    "names",
]

CLASSIFICATION, MULTILABEL = "classification", "multilabel"
EVAL_TYPES = (CLASSIFICATION, MULTILABEL)
EPSILON = sys.float_info.min  # added to a count that may be 0: a class that was never met gets 0


class Loss(Mean):
    """The mean over batches of the loss; `update(loss)` takes a number, or a tensor of at most one axis."""

    def update(self, *inputs: Any) -> None:
        """Add the mean of a batch's loss, ()- or (N,)-shaped; raises InvalidValueError for another shape."""
        [loss] = self._arrays(inputs, 1, "one input, the loss")
        if loss.ndim > 1 or not loss.size:
            raise InvalidValueError(
                f"the loss must be one number, or one for each sample, got shape {loss.shape}; reduce it"
            )
        self._add(float(loss.mean(dtype=np.float64)), 1)


class _Evaluation(Metric):
    """A metric of predicted and true classes.

    Args:
        eval_type: "classification": predictions (N, C, ...), of which the largest along C counts, and labels
            (N, ...), or one-hot labels (N, C, ...). "multilabel": predictions and labels (N, C, ...), all 0
            or 1.

    Raises InvalidTypeError for another eval_type.
    """

    def __init__(self, eval_type: str = CLASSIFICATION) -> None:
        try:
            check_choice("eval_type", eval_type, EVAL_TYPES)
        except InvalidValueError as error:
            # MindSpore raises an error of this class.
            raise InvalidTypeError(str(error)) from None
        self._type = eval_type
        self.clear()

    def clear(self) -> None:
        """Forget all updates."""
        self._classes = 0

    def _checked(self, inputs: tuple[Any, ...]) -> tuple[Array, Array]:
        """Predictions and labels of one batch; raises InvalidValueError unless they fit together."""
        predicted, true = self._arrays(inputs, 2, "two inputs, predictions and labels")
        if self._type == CLASSIFICATION:
            true = indices(predicted, true)
            expected = predicted.shape[:1] + predicted.shape[2:]
            if predicted.ndim < 2 or true.shape != expected:
                raise InvalidValueError(
                    f"{self._name} takes predictions (N, C, ...) and labels (N, ...) or one-hot labels "
                    f"(N, C, ...), got the shapes {predicted.shape} and {true.shape}"
                )
        elif predicted.ndim < 2 or predicted.shape != true.shape:
            raise InvalidValueError(
                f"{self._name} of multilabel takes predictions and labels of the same shape (N, C, ...), got "
                f"{predicted.shape} and {true.shape}"
            )
        elif not (is_binary(predicted) and is_binary(true)):
            raise InvalidValueError(
                f"{self._name} of multilabel takes only 0 and 1; compare the predictions with a threshold"
            )
        # Counts are kept for each class, so that the number of classes must not change before `clear`.
        if self._classes not in (0, predicted.shape[1]):
            raise InvalidValueError(
                f"{self._name} got predictions of {predicted.shape[1]} classes after {self._classes}; call "
                "clear between data sets"
            )
        self._classes = predicted.shape[1]
        if self._type == CLASSIFICATION:
            true = true.astype(np.int64)
            if true.size and not 0 <= true.min() <= true.max() < self._classes:
                raise InvalidValueError(
                    f"{self._name} got labels from {true.min()} to {true.max()} for predictions of "
                    f"{self._classes} classes; labels must be in [0, {self._classes - 1}]: leave out samples "
                    "that do not count"
                )
        return predicted, true


class Accuracy(_Evaluation, Mean):
    """The share of samples that are predicted right; of multilabel, those of which all labels are right."""

    def clear(self) -> None:
        """Forget all updates."""
        _Evaluation.clear(self)
        Mean.clear(self)

    def update(self, *inputs: Any) -> None:
        """Add predictions and labels; raises InvalidValueError if their shapes or classes do not fit."""
        predicted, true = self._checked(inputs)
        if self._type == CLASSIFICATION:
            right = predicted.argmax(axis=1) == true
        else:
            right = (np.moveaxis(predicted, 1, -1) == np.moveaxis(true, 1, -1)).all(axis=-1)
        self._add(int(right.sum()), right.size)


class _Counts(_Evaluation):
    """Counts, for each class, true positives and the positives among the predictions and the labels.

    Of multilabel, they are counted for each sample, as in MindSpore.
    """

    def clear(self) -> None:
        """Forget all updates."""
        super().clear()
        self._counts = np.zeros((3, 0))

    def update(self, *inputs: Any) -> None:
        """Add predictions and labels; raises InvalidValueError if their shapes or classes do not fit."""
        predicted, true = self._checked(inputs)
        if self._type == MULTILABEL:
            # Of multilabel, samples take the place of classes: each update adds columns.
            predicted, true = (
                np.moveaxis(each, 1, 0).reshape(self._classes, -1) for each in (predicted, true)
            )
            counts = np.stack([each.sum(axis=0) for each in (predicted * true, predicted, true)])
            self._counts = np.concatenate([self._counts, counts], axis=1)
            return
        largest = predicted.argmax(axis=1).reshape(-1)
        labels = true.reshape(-1)
        # The right, the predicted and the actual positives, see `_share`.
        chosen = (largest[largest == labels], largest, labels)
        counts = np.stack([np.bincount(each, minlength=self._classes) for each in chosen])
        self._counts = self._counts + counts if self._counts.size else counts

    def _share(self, average: bool, of: Callable[[Array, Array, Array], tuple[Array, Array]]) -> Any:
        """The quotient that `of` makes of right, predicted and actual positives; raises NoSamplesError."""
        check_type("average", average, bool)
        self._require(self._classes)
        part, whole = of(*self._counts)
        result = part / (whole + EPSILON)
        return float(result.mean()) if average else result


class Precision(_Counts):
    """The share of the predicted positives that are right, for each class."""

    def eval(self, average: bool = False) -> Any:
        """(C,) float64, of multilabel (samples,); their mean if `average`. Raises NoSamplesError."""
        return self._share(average, lambda right, predicted, actual: (right, predicted))


class Recall(_Counts):
    """The share of the actual positives that were found, for each class."""

    def eval(self, average: bool = False) -> Any:
        """(C,) float64, of multilabel (samples,); their mean if `average`. Raises NoSamplesError."""
        return self._share(average, lambda right, predicted, actual: (right, actual))


class Fbeta(_Counts):
    """The weighted harmonic mean of precision and recall, for each class.

    Raises InvalidTypeError or InvalidValueError unless `beta`, the weight of the recall, is a number > 0.
    """

    def __init__(self, beta: float) -> None:
        beta = check_number("beta", beta)
        if not 0 < beta < math.inf:
            raise InvalidValueError(f"beta must be finite and > 0, got {beta}")
        self._square = beta**2
        super().__init__()

    def eval(self, average: bool = False) -> Any:
        """(C,) float64; its mean if `average`. Raises NoSamplesError."""
        square = self._square
        return self._share(
            average, lambda right, predicted, actual: ((1 + square) * right, square * actual + predicted)
        )


class F1(Fbeta):
    """The harmonic mean of precision and recall, for each class."""

    def __init__(self) -> None:
        super().__init__(1.0)


class TopKCategoricalAccuracy(Mean):
    """The share of samples whose class is among the `k` largest predictions.

    Raises InvalidTypeError or InvalidValueError unless `k` is an int >= 1.
    """

    def __init__(self, k: int) -> None:
        k = check_int("k", k, low=1)
        self.k = k
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Add predictions (N, C) and labels (N,) or (N, C); raises InvalidValueError for other shapes."""
        predicted, true = self._arrays(inputs, 2, "two inputs, predictions and labels")
        true = indices(predicted, true)
        if predicted.ndim != 2 or true.shape != predicted.shape[:1]:
            raise InvalidValueError(
                f"{self._name} takes predictions (N, C) and labels (N,) or one-hot labels (N, C), got the "
                f"shapes {predicted.shape} and {true.shape}"
            )
        # The stable sort puts the first of equal predictions first, as `argmax` does.
        largest = np.argsort(-predicted.astype(np.float64), axis=1, kind="stable")[:, : self.k]
        self._add(int((largest == true[:, None]).sum()), len(true))


class Top1CategoricalAccuracy(TopKCategoricalAccuracy):
    """The share of samples whose class has the largest prediction."""

    def __init__(self) -> None:
        super().__init__(1)


class Top5CategoricalAccuracy(TopKCategoricalAccuracy):
    """The share of samples whose class is among the five largest predictions."""

    def __init__(self) -> None:
        super().__init__(5)


class _Deviation(Mean):
    """The sum of the elements' `error`, divided by the number of samples (the first axis)."""

    error: ClassVar[np.ufunc]

    def update(self, *inputs: Any) -> None:
        """Add predictions and true values with the same number of elements (N, ...)."""
        predicted, true = self._arrays(inputs, 2, "two inputs, predictions and true values")
        if not predicted.ndim or not true.ndim or predicted.size != true.size:
            raise InvalidValueError(
                f"{self._name} takes predictions and true values of the same shape (N, ...), got "
                f"{predicted.shape} and {true.shape}"
            )
        # Differences of unsigned integers would be wrong below 0: float64 comes first.
        difference = true.reshape(predicted.shape).astype(np.float64) - predicted
        self._add(float(self.error(difference).sum()), len(true))


class MAE(_Deviation):
    """The mean absolute error: the sum over all elements by the number of samples, as in MindSpore."""

    error = np.abs


class MSE(_Deviation):
    """The mean squared error: the sum over all elements by the number of samples, as in MindSpore."""

    error = np.square


class CosineSimilarity(LastUpdate):
    """How similar the rows of a matrix are to each other.

    Args:
        similarity: "cosine", or "dot": of rows that are not divided by their norms.
        reduction: "none", or the "sum" or "mean" of each row.
        zero_diagonal: whether the similarity of a row to itself counts as 0.

    Raises InvalidTypeError or InvalidValueError for other arguments.
    """

    def __init__(
        self, similarity: str = "cosine", reduction: str = "none", zero_diagonal: bool = True
    ) -> None:
        check_type("similarity", similarity, str)
        check_choice("similarity", similarity, ("cosine", "dot"))
        check_type("reduction", reduction, str)
        check_choice("reduction", reduction, ("none", "sum", "mean"))
        check_type("zero_diagonal", zero_diagonal, bool)
        self._is_cosine, self._reduction, self._zero = similarity == "cosine", reduction, zero_diagonal
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Take a matrix (N, M) in the place of an earlier one; raises InvalidValueError for another shape."""
        [rows] = self._arrays(inputs, 1, "one input, a matrix")
        if rows.ndim != 2:
            raise InvalidValueError(f"CosineSimilarity takes a matrix (N, M), got the shape {rows.shape}")
        rows = rows.astype(np.float64)
        if self._is_cosine:
            # The norm of a row of zeros is 0: its similarity to any row is NaN.
            with np.errstate(invalid="ignore"):
                rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        self._held = rows @ rows.T

    def eval(self) -> Array:
        """(N, N) float64, reduced (N,). Raises NoSamplesError."""
        found: Array = self._last().copy()
        if self._zero:
            np.fill_diagonal(found, 0)
        if self._reduction == "none":
            return found
        return np.asarray(found.sum(axis=-1) if self._reduction == "sum" else found.mean(axis=-1))


class OfTorchmetrics:
    """A metric of torchmetrics (with reset, update and compute) under the names clear, update and eval."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def clear(self) -> None:
        """Forget all updates."""
        self._metric.reset()

    def update(self, *inputs: Any) -> None:
        """Add a batch, on the device of its first tensor."""
        device = getattr(inputs[0], "device", None) if inputs else None
        if device is not None and getattr(self._metric, "device", device) != device:
            self._metric.to(device)
        self._metric.update(*inputs)

    def eval(self) -> Any:
        """The metric: a float, or an array if it has several elements."""
        found = self._metric.compute()
        if not framework_of(found).is_tensor(found):
            return found
        array = framework_of(found).to_numpy(found)
        return array.item() if array.size == 1 else array


_BY_NAME: dict[str, Callable[..., Any]] = {
    "accuracy": Accuracy,
    "acc": Accuracy,
    "precision": Precision,
    "recall": Recall,
    "F1": F1,
    "dice": Dice,
    "roc": ROC,
    "auc": auc,
    "bleu_score": BleuScore,
    "cosine_similarity": CosineSimilarity,
    "occlusion_sensitivity": OcclusionSensitivity,
    "topk": TopKCategoricalAccuracy,
    "hausdorff_distance": HausdorffDistance,
    "top_1_accuracy": Top1CategoricalAccuracy,
    "top_5_accuracy": Top5CategoricalAccuracy,
    "mae": MAE,
    "mse": MSE,
    "loss": Loss,
    "mean_surface_distance": MeanSurfaceDistance,
    "root_mean_square_distance": RootMeanSquareDistance,
    "perplexity": Perplexity,
    "confusion_matrix": ConfusionMatrix,
    "confusion_matrix_metric": ConfusionMatrixMetric,
}
_WITH_ARGUMENTS = {  # what no name alone can make
    "topk": "metrics={'topk': distsummary.model.metrics.TopKCategoricalAccuracy(k)}",
    "confusion_matrix": (
        "metrics={'confusion_matrix': distsummary.model.metrics.ConfusionMatrix(num_classes)}"
    ),
    "auc": "metrics={'roc'}, and distsummary.model.metrics.auc(fpr, tpr) of its curve",
}


def names() -> list[str]:
    """The names of the metrics that `Model(metrics={...})` knows, sorted."""
    return sorted(_BY_NAME)


def get_metrics(metrics: object) -> dict[str, Updatable]:
    """The metrics of an evaluation by name.

    Args:
        metrics: None; a set of names, such as {"acc", "recall"}; or a dict of names and objects: metrics of
            this module or of torchmetrics, or any object with the methods clear, update and eval.

    Raises InvalidTypeError for anything else and for names of metrics that take arguments, InvalidValueError
    for an unknown name.
    """
    if metrics is None:
        return {}
    # The names in a string, list or tuple are a likely mistake: the message shows the set that is meant.
    if isinstance(metrics, (str, list, tuple)):
        listed = [metrics] if isinstance(metrics, str) else metrics
        meant = ", ".join(f'"{name}"' for name in listed if isinstance(name, str))
        raise InvalidTypeError(
            f"metrics must be a set or dict, got {metrics!r}"
            + (f"; write metrics={{{meant}}}" if meant else "")
        )
    check_type("metrics", metrics, (dict, set))
    if isinstance(metrics, Mapping):
        for name in metrics:
            check_type("the name of a metric", name, str)
        return {name: _as_metric(name, metric) for name, metric in metrics.items()}
    assert isinstance(metrics, set)
    for name in metrics:
        check_type("a metric in a set", name, str)
        if name not in _BY_NAME:
            raise InvalidValueError(
                f"there is no metric {name!r}; known names are {', '.join(names())}; pass others as objects, "
                f"for example of torchmetrics: metrics={{{name!r}: object}}"
            )
        if name in _WITH_ARGUMENTS:
            raise InvalidTypeError(f"the metric {name!r} takes arguments; write {_WITH_ARGUMENTS[name]}")
    return {name: _BY_NAME[name]() for name in sorted(metrics)}


def _as_metric(name: str, metric: Any) -> Updatable:
    if isinstance(metric, type):
        raise InvalidTypeError(
            f"metrics[{name!r}] must be an object, got the class {metric.__name__}; call it"
        )
    if all(callable(getattr(metric, method, None)) for method in ("clear", "update", "eval")):
        found: Updatable = metric
        return found
    if all(callable(getattr(metric, method, None)) for method in ("reset", "update", "compute")):
        return OfTorchmetrics(metric)
    if isinstance(metric, str) and metric in _BY_NAME:
        made = _BY_NAME[metric]
        module = "distsummary" if made in (Accuracy, Loss) else "distsummary.model.metrics"
        write = _WITH_ARGUMENTS.get(metric, f"{module}.{made.__name__}()")
        raise InvalidTypeError(f"metrics[{name!r}] must be an object, got the name {metric!r}; write {write}")
    raise InvalidTypeError(
        f"metrics[{name!r}] must have the methods clear, update and eval (or torchmetrics' reset, update and "
        f"compute), got {type(metric).__name__}"
    )
