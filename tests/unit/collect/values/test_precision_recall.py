"""Precision and recall at each threshold, as torch's SummaryWriter counts them."""

from typing import Any

import numpy as np
import pytest
from torch.utils.tensorboard.summary import compute_curve

from distsummary.collect.values.precision_recall import precision_recall
from distsummary.errors import InvalidValueError
from distsummary.format.records import CURVE_ROWS


def samples(count: int = 500) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    labels = random.random(count) < 0.3
    return labels, np.clip(0.4 * labels + 0.6 * random.random(count), 0, 1)


@pytest.mark.parametrize("thresholds", [2, 11, 127, 1000])
def test_the_rows_are_those_of_torch(thresholds: int) -> None:
    labels, predictions = samples()
    found = precision_recall("p", labels, predictions, thresholds)
    assert found.shape == (len(CURVE_ROWS), thresholds)
    expected = compute_curve(labels, predictions, thresholds)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_each_threshold_counts_what_is_at_least_as_probable() -> None:
    labels, predictions = samples()
    found = dict(zip(CURVE_ROWS, precision_recall("p", labels.astype(int), predictions, 5), strict=True))
    for number, threshold in enumerate((0, 0.25, 0.5, 0.75, 1)):
        is_found = predictions >= threshold
        assert found["true_positives"][number] == (is_found & labels).sum()
        assert found["false_positives"][number] == (is_found & ~labels).sum()
        assert found["true_negatives"][number] == (~is_found & ~labels).sum()
        assert found["false_negatives"][number] == (~is_found & labels).sum()


def test_without_a_positive_sample_nothing_is_divided_by_zero() -> None:
    found = precision_recall("p", np.zeros(3), np.array([0, 0.5, 1]), 3)
    assert found[4:].tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("labels", "predictions", "thresholds", "message"),
    [
        ([0, 1], [0.5], 5, r"must both have the shape \(N,\)"),
        ([], [], 5, r"N of at least 1, got \(0,\)"),
        ([0, 2], [0.5, 0.5], 5, "labels of p must be bool, or 0 and 1"),
        ([0, 1], [0.5, 1.5], 5, r"predictions of p must be numbers in \[0, 1\]"),
        ([0, 1], [0.5, np.nan], 5, r"predictions of p must be numbers in \[0, 1\]"),
        ([0, 1], [0.5, 0.5], 1, r"thresholds of p must be in \[2, 10000\]"),
    ],
)
def test_wrong_arguments_are_named(labels: Any, predictions: Any, thresholds: int, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        precision_recall("p", np.array(labels), np.array(predictions), thresholds)
