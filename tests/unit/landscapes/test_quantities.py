from typing import Any

import numpy as np
import pytest

from distsummary import Evaluation
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.model.quantities import MIN_BATCHES, MIN_ROWS, BatchFacts, Tally, quantity_names

HERE = np.zeros(1, int)


def of_rows(losses: Any) -> list[float]:
    """The reading of a batch whose rows have these losses."""
    return [np.mean(losses), np.mean(losses), np.mean(np.square(losses))]


def facts(rows: int, classes: tuple[int, ...] = (), weight: float | None = None) -> BatchFacts:
    return BatchFacts(
        weight=rows if weight is None else weight, rows=rows, class_rows=np.array(classes, float)
    )


def test_the_loss_is_the_mean_over_rows_or_over_batches() -> None:
    by_rows, by_batches = (Tally(Evaluation(), 1, has_rows=False) for _ in range(2))
    for loss, rows in ((1.0, 6), (4.0, 2)):
        by_rows.add(HERE, np.array([[loss]]), facts(rows))
        by_batches.add(HERE, np.array([[loss]]), facts(rows, weight=1.0))
    assert by_rows.values()[0] == [(6 + 8) / 8]
    assert by_batches.values()[0] == [2.5]


def test_the_standard_error_from_rows_is_that_of_the_mean_of_all_rows() -> None:
    losses = np.random.default_rng(0).gamma(2.0, size=23)
    tally = Tally(Evaluation(stderr=True), 1, has_rows=True)
    for part in (losses[:10], losses[10:20], losses[20:]):
        tally.add(HERE, np.array([of_rows(part)]), facts(len(part)))
    mean, error = tally.values()[0]
    assert mean == pytest.approx(losses.mean(), rel=1e-12)
    assert error == pytest.approx(losses.std(ddof=1) / np.sqrt(23), rel=1e-12)


@pytest.mark.parametrize("has_rows", [True, False])
def test_the_standard_error_of_large_losses_keeps_its_digits(has_rows: bool) -> None:
    spread = np.random.default_rng(1).normal(size=(6, 8)) * 1e-3
    losses = (3e3 + spread) if has_rows else (3e7 + spread)
    tally = Tally(Evaluation(stderr=True), 1, has_rows=has_rows)
    for part in losses:
        tally.add(HERE, np.array([of_rows(part)])[:, : 1 + 2 * has_rows], facts(8))
    expected = losses.std(ddof=1) / np.sqrt(48) if has_rows else losses.mean(1).std(ddof=1) / np.sqrt(6)
    assert tally.values()[0, 1] == pytest.approx(expected, rel=2e-3)


def test_where_rows_do_not_count_the_same_the_error_is_that_of_the_batches() -> None:
    weighted, plain = (Tally(Evaluation(stderr=True), 1, has_rows=rows) for rows in (True, False))
    for loss, mean in ((1.0, 1.0), (1.5, 1.2), (0.75, 0.75), (2.0, np.inf)):  # inf: rows are not known
        weighted.add(HERE, np.array([[loss, mean, mean**2 + 1]]), facts(8))
        plain.add(HERE, np.array([[loss]]), facts(8))
    np.testing.assert_array_equal(weighted.values(), plain.values())


def test_losses_by_class_of_rows_that_do_not_count_the_same_are_refused() -> None:
    tally = Tally(Evaluation(classes=2), 1, has_rows=True)
    tally.add(HERE, np.array([[1.0, 1.0, 1.0, 4.0, 0.0]]), facts(4, (4, 0)))
    with pytest.raises(
        LandscapeError, match="a criterion that weights rows or leaves some out; use one that does neither"
    ):
        tally.add(HERE, np.array([[1.0, 1.5, 3.0, 2.0, 4.0]]), facts(4, (2, 2)))


def test_one_point_whose_rows_do_not_count_the_same_is_enough_to_refuse_losses_by_class() -> None:
    tally = Tally(Evaluation(classes=1), 2, has_rows=True)
    with pytest.raises(LandscapeError, match="a criterion that weights rows or leaves some out"):
        tally.add(slice(None), np.array([[1.0, 1.0, 1.0, 4.0], [1.0, 1.5, 3.0, 4.0]]), facts(4, (4,)))


@pytest.mark.parametrize("count", [2, 4])
def test_the_standard_error_from_batches_is_that_of_the_mean_of_equal_batches(count: int) -> None:
    losses = np.array([1.0, 1.5, 0.75, 2.0])[:count]
    tally = Tally(Evaluation(stderr=True), 1, has_rows=False)
    for loss in losses:
        tally.add(HERE, np.array([[loss]]), facts(8))
    assert tally.values()[0, 1] == pytest.approx(losses.std(ddof=1) / np.sqrt(count), rel=1e-12)


def test_an_error_that_cannot_be_known_is_nan() -> None:
    for has_rows, reading in ((True, [1.0, 1.0, 1.0]), (False, [1.0])):
        tally = Tally(Evaluation(stderr=True), 1, has_rows=has_rows)
        tally.add(HERE, np.array([reading]), facts(1))
        assert np.isnan(tally.values()[0, 1])


def test_metrics_and_losses_by_class_stand_behind_the_loss() -> None:
    evaluation = Evaluation(metrics={"accuracy": lambda o, t: 0.0}, classes=3)
    tally = Tally(evaluation, 1, has_rows=True)
    # loss, that of the rows and its square, accuracy, sums by class
    tally.add(HERE, np.array([[1.0, 1.0, 2.0, 0.5, 3.0, 1.0, 0.0]]), facts(4, (3, 1, 0)))
    tally.add(HERE, np.array([[2.0, 2.0, 5.0, 1.0, 1.0, 3.0, 0.0]]), facts(2, (1, 1, 0)))
    assert quantity_names(evaluation, [""]) == ("loss", "accuracy", "loss[0]", "loss[1]", "loss[2]")
    np.testing.assert_allclose(tally.values()[0], [8 / 6, 4 / 6, 1.0, 2.0, np.nan])


def test_data_sets_prefix_their_quantities() -> None:
    evaluation = Evaluation(tolerance=0.1)
    assert quantity_names(evaluation, ["train", "test"]) == (
        "train/loss", "train/stderr", "train/rows", "test/loss", "test/stderr", "test/rows",
    )  # fmt: skip


def test_two_quantities_of_one_name_are_refused() -> None:
    for metric, data, name in (
        ("b/loss", ["a", "a/b"], "'a/b/loss'"),
        ("test/loss", ["", "test"], "'test/loss'"),
        ("loss[0]", [""], r"'loss\[0\]'"),
    ):
        with pytest.raises(InvalidValueError, match=f"got {name} twice; rename the metric"):
            quantity_names(Evaluation(metrics={metric: len}, classes=2), data)


def test_a_data_set_without_batches_is_no_nan() -> None:
    with pytest.raises(LandscapeError, match="holds no batches"):
        Tally(Evaluation(), 1, has_rows=False).values()


def stopped(evaluation: Evaluation, batches: list[list[float]], has_rows: bool) -> Tally:
    """Two points, each with a reading of each batch as long as it is active."""
    tally = Tally(evaluation, 2, has_rows=has_rows)
    for batch in batches:
        active = tally.active
        readings = [[batch[point], batch[point], 2 * batch[point] ** 2] for point in active]
        tally.add(active, np.reshape(readings, (-1, 3))[:, : 1 + 2 * has_rows], facts(16))
    return tally


def test_a_point_stops_when_its_error_is_small_enough() -> None:
    batches = [[1.0, 0.01]] * 5
    loss, error, rows = stopped(Evaluation(tolerance=0.15), batches, has_rows=True).values().T
    np.testing.assert_array_equal(rows, [48, 32])  # the errors after two batches are 0.18 and 0.0018
    assert (error <= 0.15).all()
    np.testing.assert_allclose(loss, [1.0, 0.01])


@pytest.mark.parametrize("has_rows", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7, 29, 30])
def test_no_point_ends_with_fewer_rows_than_an_error_needs(rows: int, has_rows: bool) -> None:
    tally = Tally(Evaluation(tolerance=1.0), 1, has_rows=has_rows)
    taken = 0
    while len(tally.active):
        tally.add(HERE, np.array([[0.5, 0.5, 0.25][: 1 + 2 * has_rows]]), facts(rows))  # an error of 0
        taken += rows
    assert taken >= MIN_ROWS
    assert taken < MIN_ROWS + rows or taken == MIN_BATCHES * rows


def test_batches_must_be_several_before_their_spread_is_believed() -> None:
    tally = stopped(Evaluation(tolerance=1.0), [[1.0, 2.0]] * 8, has_rows=False)
    np.testing.assert_array_equal(tally.values()[:, -1], [16 * MIN_BATCHES] * 2)


def test_a_diverged_point_ends_after_its_first_batch_and_keeps_its_loss() -> None:
    for diverged in (7.0, np.inf, np.nan):
        tally = stopped(Evaluation(cap=5.0), [[1.0, diverged], [9.0, 1.0]], has_rows=False)
        loss, rows = tally.values().T
        np.testing.assert_array_equal(rows, [32, 16])
        np.testing.assert_array_equal(loss, [5.0, diverged])


def test_a_loss_at_the_cap_continues() -> None:
    tally = stopped(Evaluation(cap=5.0), [[5.0, np.nextafter(5.0, 6.0)], [1.0, 1.0]], has_rows=False)
    np.testing.assert_array_equal(tally.values()[:, 1], [32, 16])


def test_a_point_stops_where_its_error_is_the_tolerance() -> None:
    batches = [[1.0, 1.0]] * 3
    error = stopped(Evaluation(stderr=True), batches[:2], has_rows=True).values()[0, 1]
    tally = stopped(Evaluation(tolerance=float(error)), batches, has_rows=True)
    np.testing.assert_array_equal(tally.values()[:, -1], [32, 32])


def test_an_infinite_cap_cuts_what_is_not_finite_only() -> None:
    tally = stopped(Evaluation(cap=np.inf), [[1e30, np.nan], [1.0, 1.0]], has_rows=False)
    np.testing.assert_array_equal(tally.values()[:, 1], [32, 16])


def test_without_a_rule_every_point_takes_every_batch() -> None:
    tally = stopped(Evaluation(), [[1.0, np.nan], [3.0, 1.0]], has_rows=False)
    np.testing.assert_array_equal(tally.values(), [[2.0], [np.nan]])


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("classes", -1, InvalidValueError),
        ("classes", 10**9, InvalidValueError),
        ("tolerance", 0.0, InvalidValueError),
        ("tolerance", float("nan"), InvalidValueError),
        ("tolerance", "small", InvalidTypeError),
        ("tolerance", np.float32(0.1), InvalidTypeError),
        ("cap", True, InvalidTypeError),
        ("cap", "3", InvalidTypeError),
        ("cap", float("nan"), InvalidValueError),
        ("cap", -np.inf, InvalidValueError),
        ("stderr", "yes", InvalidTypeError),
        ("streamed", "yes", InvalidTypeError),
        ("bn_mode", "train", InvalidValueError),
        ("precision", "int8", InvalidValueError),
        ("metrics", {"accuracy": 3}, InvalidTypeError),
        ("metrics", {3: len}, InvalidTypeError),
        ("metrics", {"loss": len}, InvalidValueError),
        ("metrics", [len], InvalidTypeError),
    ],
)
def test_what_cannot_be_evaluated_is_named(field: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=field):
        Evaluation(**{field: value})


def test_statistics_of_all_batches_and_leaving_some_out_exclude_each_other() -> None:
    Evaluation(bn_mode="recompute")
    for more in ({"streamed": True}, {"tolerance": 0.1}, {"cap": 3.0}):
        with pytest.raises(InvalidValueError, match="bn_mode='recompute' reads all batches"):
            Evaluation(bn_mode="recompute", **more)  # type: ignore[arg-type]  # of several kinds
