from typing import Any

import numpy as np
import pytest

from distsummary import Evaluation
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.model.quantities import BatchFacts, Tally, quantity_names
from tests.refusals import refused


def of_rows(losses: Any) -> list[float]:
    """The reading of a batch whose rows have these losses."""
    return [np.mean(losses), np.mean(losses), np.mean(np.square(losses))]


def facts(rows: int, weight: float | None = None) -> BatchFacts:
    return BatchFacts(weight=rows if weight is None else weight, rows=rows)


def test_the_loss_is_the_mean_over_rows_or_over_batches() -> None:
    by_rows, by_batches = (Tally(Evaluation(), 1, has_rows=False) for _ in range(2))
    for loss, rows in ((1.0, 6), (4.0, 2)):
        by_rows.add(np.array([[loss]]), facts(rows))
        by_batches.add(np.array([[loss]]), facts(rows, weight=1.0))
    assert by_rows.values()[0] == [(6 + 8) / 8]
    assert by_batches.values()[0] == [2.5]


def test_the_standard_error_from_rows_is_that_of_the_mean_of_all_rows() -> None:
    losses = np.random.default_rng(0).gamma(2.0, size=23)
    tally = Tally(Evaluation(stderr=True), 1, has_rows=True)
    for part in (losses[:10], losses[10:20], losses[20:]):
        tally.add(np.array([of_rows(part)]), facts(len(part)))
    mean, error = tally.values()[0]
    assert mean == pytest.approx(losses.mean(), rel=1e-12)
    assert error == pytest.approx(losses.std(ddof=1) / np.sqrt(23), rel=1e-12)


@pytest.mark.parametrize("has_rows", [True, False])
def test_the_standard_error_of_large_losses_keeps_its_digits(has_rows: bool) -> None:
    spread = np.random.default_rng(1).normal(size=(6, 8)) * 1e-3
    losses = (3e3 + spread) if has_rows else (3e7 + spread)
    tally = Tally(Evaluation(stderr=True), 1, has_rows=has_rows)
    for part in losses:
        tally.add(np.array([of_rows(part)])[:, : 1 + 2 * has_rows], facts(8))
    expected = losses.std(ddof=1) / np.sqrt(48) if has_rows else losses.mean(1).std(ddof=1) / np.sqrt(6)
    assert tally.values()[0, 1] == pytest.approx(expected, rel=2e-3)


def test_where_rows_do_not_count_the_same_the_error_is_that_of_the_batches() -> None:
    weighted, plain = (Tally(Evaluation(stderr=True), 1, has_rows=rows) for rows in (True, False))
    for loss, mean in ((1.0, 1.0), (1.5, 1.2), (0.75, 0.75), (2.0, np.inf)):  # inf: rows are not known
        weighted.add(np.array([[loss, mean, mean**2 + 1]]), facts(8))
        plain.add(np.array([[loss]]), facts(8))
    np.testing.assert_array_equal(weighted.values(), plain.values())


@pytest.mark.parametrize("count", [2, 4])
def test_the_standard_error_from_batches_is_that_of_the_mean_of_equal_batches(count: int) -> None:
    losses = np.array([1.0, 1.5, 0.75, 2.0])[:count]
    tally = Tally(Evaluation(stderr=True), 1, has_rows=False)
    for loss in losses:
        tally.add(np.array([[loss]]), facts(8))
    assert tally.values()[0, 1] == pytest.approx(losses.std(ddof=1) / np.sqrt(count), rel=1e-12)


def test_an_error_that_cannot_be_known_is_nan() -> None:
    for has_rows, reading in ((True, [1.0, 1.0, 1.0]), (False, [1.0])):
        tally = Tally(Evaluation(stderr=True), 1, has_rows=has_rows)
        tally.add(np.array([reading]), facts(1))
        assert np.isnan(tally.values()[0, 1])


def test_metrics_stand_behind_the_loss_and_before_its_error() -> None:
    evaluation = Evaluation(metrics={"accuracy": lambda o, t: 0.0}, stderr=True)
    tally = Tally(evaluation, 1, has_rows=True)
    # loss, that of the rows and its square, accuracy
    tally.add(np.array([[1.0, 1.0, 2.0, 0.5]]), facts(4))
    tally.add(np.array([[2.0, 2.0, 5.0, 1.0]]), facts(2))
    assert quantity_names(evaluation, [""]) == ("loss", "accuracy", "stderr")
    np.testing.assert_allclose(tally.values()[0, :2], [8 / 6, 4 / 6])


def test_data_sets_prefix_their_quantities() -> None:
    evaluation = Evaluation(stderr=True)
    assert quantity_names(evaluation, ["train", "test"]) == (
        "train/loss", "train/stderr", "test/loss", "test/stderr",
    )  # fmt: skip


def test_a_point_that_diverged_leaves_the_others_alone() -> None:
    tally = Tally(Evaluation(), 2, has_rows=False)
    for losses in ([1.0, np.nan], [3.0, 1.0]):
        tally.add(np.array(losses)[:, None], facts(16))
    np.testing.assert_array_equal(tally.values(), [[2.0], [np.nan]])


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("stderr", "yes", InvalidTypeError), ("streamed", "yes", InvalidTypeError),
        ("bn_mode", "train", InvalidValueError), ("precision", "int8", InvalidValueError),
        ("metrics", {"accuracy": 3}, InvalidTypeError), ("metrics", {3: len}, InvalidTypeError),
        ("metrics", {"loss": len}, InvalidValueError), ("metrics", [len], InvalidTypeError),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_named(field: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=field):
        Evaluation(**{field: value})


def test_what_does_not_go_together_is_refused() -> None:
    twice = "got {} twice; rename the metric"
    refused(
        InvalidValueError,
        (
            lambda: quantity_names(Evaluation(metrics={"b/loss": len}), ["a", "a/b"]),
            twice.format("'a/b/loss'"),
        ),
        (
            lambda: quantity_names(Evaluation(metrics={"test/loss": len}), ["", "test"]),
            twice.format("'test/loss'"),
        ),
        (lambda: Evaluation(bn_mode="recompute", streamed=True), "bn_mode='recompute' reads all batches"),
    )
    empty = Tally(Evaluation(bn_mode="recompute"), 1, has_rows=False)
    refused(LandscapeError, (lambda: empty.values(), "holds no batches"))
