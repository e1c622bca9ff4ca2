"""FirstNonFinite: which rank, tag and step."""

import math

import numpy as np
import pytest

from distsummary.diagnosis.sick import FirstNonFinite
from distsummary.diagnosis.verdict import Verdict
from distsummary.format.check_tags import LAG, NONFINITE_TAGS

TAGS = ["accuracy", "grad_norm", "loss", "never"]


def look(first: FirstNonFinite, rows: list[tuple[int, int, str, float]]) -> list[Verdict]:
    """`rows`: (step, rank, tag, value)."""
    return first.add(
        TAGS,
        np.array([TAGS.index(tag) for _, _, tag, _ in rows], np.int64),
        np.array([rank for _, rank, _, _ in rows], np.int64),
        np.array([step for step, _, _, _ in rows], np.int64),
        np.array([value for _, _, _, value in rows], float),
    )


def steps(values: dict[tuple[int, int], float], *, last: int = 6) -> list[tuple[int, int, str, float]]:
    return [
        (step, rank, "loss", values.get((step, rank), 1.0)) for step in range(1, last) for rank in range(4)
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_first_step_and_its_rank_are_told_once_however_steps_are_divided(bad: float, chunk: int) -> None:
    rows = steps({(3, 2): bad} | {(step, rank): bad for step in (4, 5) for rank in range(4)})
    first, found = FirstNonFinite(), []
    for low in range(1, 6, chunk):
        found += look(first, [row for row in rows if low <= row[0] < low + chunk])
    [verdict] = found
    assert (verdict.rank, verdict.cause, verdict.since_step, verdict.first_told_step) == (2, "nan", 3, 3)
    assert verdict.evidence == f"loss is {bad} on rank 2 at step 3, finite on 3 others"


def told(rows: list[tuple[int, int, str, float]], chunk: int) -> list[tuple[int, int, str]]:
    first, found = FirstNonFinite(), []
    for low in range(1, 40, chunk):
        found += look(first, [row for row in rows if low <= row[0] < low + chunk])
    return [(one.rank, one.since_step, one.evidence.split(" on ")[0]) for one in found]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_nan_that_comes_after_a_mere_infinity_is_told_too_and_each_once(chunk: int) -> None:
    """Under automatic mixed precision, a gradient's norm is infinite now and then, which is normal."""
    norms = {(5, 1): math.inf, (9, 3): math.inf, (12, 0): -math.inf}
    rows = [
        (step, rank, "grad_norm", norms.get((step, rank), 2.0)) for step in range(1, 31) for rank in range(4)
    ]
    rows += steps({(20, 2): math.nan}, last=21)
    rows += [(step, rank, "loss", math.nan) for step in range(21, 31) for rank in range(4)]
    assert told(rows, chunk) == [(1, 5, "grad_norm is inf"), (2, 20, "loss is nan")]


@pytest.mark.parametrize("chunk", [1, 100])
def test_after_a_nan_and_at_its_step_no_infinity_is_told(chunk: int) -> None:
    rows = steps({(3, 1): math.inf, (3, 2): math.nan, (4, 0): math.inf})
    assert told(rows, chunk) == [(2, 3, "loss is nan")]
    assert look(FirstNonFinite(), rows)[0].evidence.endswith("finite on 2 others")


def test_if_all_ranks_have_it_the_lowest_is_named_and_all_are_counted() -> None:
    [verdict] = look(FirstNonFinite(), steps({(3, rank): math.nan for rank in range(4)}))
    assert verdict.rank == 0
    assert verdict.evidence.endswith("on all 4 ranks that recorded it")


def test_a_tag_that_was_never_finite_is_no_alarm_but_a_loss_is() -> None:
    first = FirstNonFinite()
    assert look(first, [(step, 0, "never", math.nan) for step in range(1, 9)]) == []
    assert look(first, [(9, 0, "accuracy", 0.5)]) == []
    assert [one.since_step for one in look(first, [(10, 0, "loss", math.nan)])] == [10]
    second = FirstNonFinite()
    assert look(second, [(1, 0, "accuracy", 0.5), (2, 0, "accuracy", math.inf)])[0].since_step == 2


def named(rank: int, index: int) -> str:
    return repr(["0.weight", "0.bias"][index])


def with_parameter(rows: list[tuple[int, int, str, float]]) -> list[Verdict]:
    tags = ["loss", NONFINITE_TAGS["gradient"], NONFINITE_TAGS["weight"], NONFINITE_TAGS["gradient"] + LAG]
    step, rank, tag, value = zip(*rows, strict=True)
    which = [tags.index(one) for one in tag]
    return FirstNonFinite(named).add(
        tags, np.array(which), np.array(rank), np.array(step), np.array(value, float)
    )


def test_the_parameter_is_named_with_the_loss_or_alone() -> None:
    gradient = NONFINITE_TAGS["gradient"]
    rows = [*steps({(3, 2): math.nan}), *((3, rank, gradient, 1.0) for rank in range(4))]
    [verdict] = with_parameter(rows)
    assert (verdict.rank, verdict.since_step) == (2, 3)
    assert verdict.evidence.endswith("; so is the gradient of the parameter '0.bias'")
    rows = [
        *steps({}),
        (4, 1, NONFINITE_TAGS["weight"], 0.0),
        (5, 1, gradient, 1.0),
        (5, 1, gradient + LAG, 2.0),
    ]
    [verdict] = with_parameter(rows)
    assert (verdict.rank, verdict.since_step, verdict.first_told_step) == (1, 3, 5)
    assert verdict.evidence == "the gradient of the parameter '0.bias' is not finite on rank 1 at step 3"


def test_a_parameter_is_named_also_after_and_at_the_step_of_an_infinity() -> None:
    weight = NONFINITE_TAGS["weight"]
    rows = [*steps({(2, 0): math.inf, (4, 1): math.inf}), (4, 1, weight, 0.0), (5, 3, weight, 1.0)]
    first, second = with_parameter(rows)
    assert (first.rank, first.since_step) == (0, 2)
    assert (second.rank, second.since_step) == (1, 4)
    assert second.evidence.startswith("loss is inf on rank 1 at step 4, finite on 3 others; so is the weight")
