"""Draws a confusion matrix: how often samples of each class were taken for which class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.base.extras import extra
from distsummary.collect.values.figures import drawn
from distsummary.errors import InvalidValueError

MOST = 200  # classes
NUMBERED = 20  # up to so many, each cell shows its count


def drawn_matrix(field: str, counts: NDArray[Any], classes: Sequence[str] | None = None) -> NDArray[np.uint8]:
    """The picture, (1, 3, H, W); the darkness of a cell is its share of the row.

    Args:
        field: names the matrix in messages.
        counts: (C, C), not negative: row i, column j counts samples of class i that were taken for class j.
        classes: the names of the C classes; by default their numbers.

    Raises InvalidValueError for wrong arguments, MissingExtraError: matplotlib is not installed.
    """
    shape = counts.shape
    if len(shape) != 2 or shape[0] != shape[1] or not 1 <= shape[0] <= MOST or not (counts >= 0).all():
        raise InvalidValueError(
            f"{field} must have the shape (C, C), 1 <= C <= {MOST}, of counts >= 0, got {shape} of "
            f"{counts.dtype}; count with sklearn.metrics.confusion_matrix or torchmetrics"
        )
    size = shape[0]
    if classes is not None and len(classes) != size:
        raise InvalidValueError(f"classes of {field} must have {size} names, got {len(classes)}")
    figure = extra(field, "matplotlib.figure").Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="actual")
    if classes is not None:
        axes.set_xticks(range(size), classes, rotation=90)
        axes.set_yticks(range(size), classes)
    for row, column in np.ndindex(size, size) if size <= NUMBERED else ():
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{counts[row, column]:g}", ha="center", va="center", color=color, fontsize=8)
    return drawn(field, figure)
