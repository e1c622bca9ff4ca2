"""Counts a precision-recall curve: what a classifier of two classes finds at each threshold."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.base.checks import check_int
from distsummary.errors import InvalidValueError

DEFAULT_THRESHOLDS = 127  # as torch's SummaryWriter
MOST_THRESHOLDS = 10_000


def precision_recall(
    field: str, labels: NDArray[Any], predictions: NDArray[Any], thresholds: int = DEFAULT_THRESHOLDS
) -> NDArray[np.float32]:
    """The curve, (6, T): `records.CURVE_ROWS` at T thresholds of equal distance from 0 to 1.

    A sample counts as found at the thresholds up to its prediction. Precision is the share of those found
    that are positive, recall the share of the positive ones that are found; 0 without any, as TensorBoard
    and torch's `SummaryWriter.add_pr_curve` have it.

    Args:
        field: names the curve in messages.
        labels: (N,), bool or 0 and 1. predictions: (N,), in [0, 1].
        thresholds: T, 2 to 10,000.

    Raises InvalidTypeError, InvalidValueError: a wrong argument.
    """
    thresholds = check_int(f"thresholds of {field}", thresholds, low=2, high=MOST_THRESHOLDS)
    if labels.ndim != 1 or labels.shape != predictions.shape or not labels.size:
        raise InvalidValueError(
            f"labels and predictions of {field} must both have the shape (N,), N of at least 1, got "
            f"{labels.shape} and {predictions.shape}; of several classes, give each a curve of its own"
        )
    if labels.dtype.kind not in "biuf" or not np.isin(labels, (0, 1)).all():
        raise InvalidValueError(
            f"labels of {field} must be bool, or 0 and 1, got {labels.dtype} with other values; "
            "compare them with the class: labels == 3"
        )
    if predictions.dtype.kind not in "biuf" or not ((predictions >= 0) & (predictions <= 1)).all():
        raise InvalidValueError(
            f"predictions of {field} must be numbers in [0, 1], got {predictions.dtype} with other values; "
            "of logits, take the sigmoid"
        )
    # `highest` is the last threshold that finds a sample; sums from the right count what each one finds.
    highest = np.floor(predictions.astype(np.float64) * (thresholds - 1)).astype(np.int64)
    positive = labels.astype(bool)
    found_true, found_false = (
        np.bincount(highest[kind], minlength=thresholds)[::-1].cumsum()[::-1]
        for kind in (positive, ~positive)
    )
    missed = found_true[0] - found_true
    precision = found_true / np.maximum(1, found_true + found_false)
    recall = found_true / np.maximum(1, found_true + missed)
    rows = (found_true, found_false, found_false[0] - found_false, missed, precision, recall)
    return np.stack(rows).astype(np.float32)
