"""FirstNonFinite: which rank, number and step."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from distsummary.diagnosis.sick import FirstNonFinite
from distsummary.diagnosis.verdict import Verdict
from distsummary.format.own_tags import LAG, NONFINITE_TAGS

Row = tuple[int, int, str, float]  # step, rank, tag, value
INPUT, GRADIENT, WEIGHT = (NONFINITE_TAGS[kind] for kind in ("input", "gradient", "weight"))
RANKS = range(4)


def look(first: FirstNonFinite, rows: Iterable[Row]) -> list[Verdict]:
    rows = list(rows)
    tags = sorted({tag for _, _, tag, _ in rows})
    return first.add(
        tags,
        np.array([tags.index(tag) for _, _, tag, _ in rows], np.int64),
        np.array([rank for _, rank, _, _ in rows], np.int64),
        np.array([step for step, _, _, _ in rows], np.int64),
        np.array([value for _, _, _, value in rows], float),
    )


def by_chunks(rows: Iterable[Row], chunk: int = 100) -> list[Verdict]:
    rows, first, found = list(rows), FirstNonFinite(named), []
    for low in range(1, 40, chunk):
        found += look(first, [row for row in rows if low <= row[0] < low + chunk])
    return found


def numbers(
    tag: str, values: dict[tuple[int, int], float], last: int = 6, ranks: Iterable[int] = RANKS
) -> list[Row]:
    """A tag at all steps, of value 1 but for `values` at (step, rank)."""
    return [(step, rank, tag, values.get((step, rank), 1.0)) for step in range(1, last) for rank in ranks]


def everywhere(step: int, value: float = math.nan) -> dict[tuple[int, int], float]:
    return {(step, rank): value for rank in RANKS}


def named(rank: int, index: int) -> str:
    return repr(["0.weight", "0.bias"][index])


@pytest.mark.parametrize(("bad", "chunk"), [(math.nan, 1), (math.inf, 3), (-math.inf, 100)])
def test_the_first_step_and_its_rank_are_reported_once_however_steps_are_divided(bad: float, chunk: int):
    [verdict] = by_chunks(numbers("loss", {(3, 2): bad, **everywhere(4, bad), **everywhere(5, bad)}), chunk)
    assert (verdict.rank, verdict.cause, verdict.since_step, verdict.reported_step) == (2, "nan", 3, 3)
    assert verdict.evidence == f"loss is {bad}, finite on 3 other ranks"
    assert verdict.ranks == ()


def test_a_loss_on_one_rank_is_the_origin_of_a_norm_of_all_ranks() -> None:
    """The norm is logged after the all-reduce of the gradients, and comes first in the alphabet."""
    [verdict] = look(
        FirstNonFinite(),
        [
            *numbers("train/grad_norm", everywhere(3)),
            *numbers("train/loss", {(3, 1): math.nan}),
            *numbers("eval/loss", {(3, 0): math.nan}),
            *numbers("train/accuracy", {}),
        ],
    )
    assert (verdict.rank, verdict.since_step) == (1, 3)
    assert verdict.evidence == (
        "train/loss is nan, finite on 3 other ranks; also train/grad_norm on all 4 ranks, eval/loss on rank 0"
    )


def test_an_input_comes_before_the_loss_of_the_same_rank() -> None:
    rows = [*numbers("loss", {(3, 1): math.nan}), (3, 1, INPUT, 0.0), *numbers("grad_norm", everywhere(3))]
    [verdict] = look(FirstNonFinite(), rows)
    assert verdict.rank == 1
    assert verdict.evidence == (
        "tensor 1 of the input batch is not finite; also loss on rank 1, grad_norm on all 4 ranks"
    )


def test_an_input_reports_the_rank_if_all_have_the_same_loss() -> None:
    [verdict] = look(FirstNonFinite(), [*numbers("loss", everywhere(3)), (3, 2, INPUT, 1.0)])
    assert (verdict.rank, verdict.ranks) == (2, ())
    assert verdict.evidence.startswith("tensor 2 of the input batch")


def test_a_number_of_one_rank_alone_says_less_than_one_that_is_finite_elsewhere() -> None:
    [verdict] = look(
        FirstNonFinite(),
        [
            *numbers("a/loss", {(3, 0): math.nan}, ranks=[0]),
            *numbers("z", {(3, r): math.nan for r in (1, 2)}),
        ],
    )
    assert (verdict.rank, verdict.ranks) == (1, (1, 2))
    assert verdict.evidence == "z is nan, finite on 2 other ranks; also a/loss on rank 0"


def test_if_all_ranks_have_it_all_are_counted() -> None:
    [verdict] = look(FirstNonFinite(), numbers("loss", everywhere(3)))
    assert (verdict.rank, verdict.ranks) == (0, (0, 1, 2, 3))
    assert verdict.evidence == "loss is nan on all 4 ranks"


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_nan_that_comes_after_a_mere_infinity_is_reported_too_and_each_once(chunk: int) -> None:
    """Under automatic mixed precision, a gradient's norm is infinite now and then, which is normal."""
    norms = numbers("grad_norm", {(5, 1): math.inf, (9, 3): math.inf, (12, 0): -math.inf}, 31)
    losses = {(20, 2): math.nan} | {(step, rank): math.nan for step in range(21, 31) for rank in RANKS}
    found = by_chunks([*norms, *numbers("loss", losses, 31)], chunk)
    assert [(one.rank, one.since_step, one.evidence.split(",")[0]) for one in found] == [
        (1, 5, "grad_norm is inf"),
        (2, 20, "loss is nan"),
    ]


@pytest.mark.parametrize("chunk", [1, 100])
def test_a_nan_at_the_step_after_an_infinite_loss_follows_from_it(chunk: int) -> None:
    found = by_chunks(numbers("loss", {(3, 1): math.inf, **everywhere(4), **everywhere(5)}), chunk)
    assert [(one.rank, one.since_step) for one in found] == [(1, 3)]
    apart = by_chunks(numbers("loss", {(2, 1): math.inf, (5, 3): math.nan}), chunk)
    assert [(one.rank, one.since_step) for one in apart] == [(1, 2), (3, 5)]


@pytest.mark.parametrize("chunk", [1, 100])
def test_after_a_nan_and_at_its_step_no_infinity_is_reported(chunk: int) -> None:
    [verdict] = by_chunks(numbers("loss", {(3, 1): math.inf, (3, 2): math.nan, (4, 0): math.inf}), chunk)
    assert (verdict.rank, verdict.since_step) == (2, 3)
    assert verdict.evidence == "loss is nan, finite on 2 other ranks"


def test_a_tag_that_was_never_finite_is_no_alarm_but_a_loss_is() -> None:
    first = FirstNonFinite()
    assert look(first, [(step, 0, "never", math.nan) for step in range(1, 9)]) == []
    assert look(first, [(9, 0, "accuracy", 0.5)]) == []
    assert [one.since_step for one in look(first, [(10, 0, "loss", math.nan)])] == [10]
    second = FirstNonFinite()
    assert look(second, [(1, 0, "accuracy", 0.5), (2, 0, "accuracy", math.inf)])[0].since_step == 2


def test_the_parameter_is_named_with_the_loss_or_alone() -> None:
    rows = [*numbers("loss", {(3, 2): math.nan}), *((3, rank, GRADIENT, 1.0) for rank in RANKS)]
    [verdict] = by_chunks(rows)
    assert (verdict.rank, verdict.since_step) == (2, 3)
    assert verdict.evidence.endswith("; also the gradient of the parameter '0.bias' on all 4 ranks")
    rows = [*numbers("loss", {}), (4, 1, WEIGHT, 0.0), (5, 1, GRADIENT, 1.0), (5, 1, GRADIENT + LAG, 2.0)]
    [verdict] = by_chunks(rows)
    assert (verdict.rank, verdict.since_step, verdict.reported_step) == (1, 3, 5)
    assert verdict.evidence == "the gradient of the parameter '0.bias' is not finite"


def test_a_parameter_is_named_also_after_and_at_the_step_of_an_infinity() -> None:
    infinite = numbers("grad_norm", {(2, 0): math.inf, (4, 1): math.inf})
    first, second = by_chunks([*infinite, (4, 1, WEIGHT, 0.0), (5, 3, WEIGHT, 1.0)])
    assert (first.rank, first.since_step) == (0, 2)
    assert (second.rank, second.since_step) == (1, 4)
    assert second.evidence == (
        "grad_norm is inf, finite on 3 other ranks; also the weight of the parameter '0.weight' on rank 1"
    )


@pytest.mark.parametrize(
    ("tags", "first"),
    [
        (("train/grad_norm", "train/loss"), "train/loss"), (("perplexity", "loss"), "loss"),
        (("layer0/grad", "out/entropy"), "out/entropy"), (("weight/0", "layer0/grad"), "layer0/grad"),
        (("val_loss", "train/norm"), "train/norm"), (("test/accuracy", "accuracy"), "accuracy"),
    ],
)  # fmt: skip
def test_of_numbers_on_as_many_ranks_the_one_that_arises_first_in_a_step_is_the_origin(tags, first):
    make: Callable[[str], list[Row]] = lambda tag: numbers(tag, everywhere(3))  # noqa: E731
    [verdict] = look(FirstNonFinite(), [row for tag in tags for row in make(tag)])
    assert verdict.evidence.startswith(f"{first} is nan on all 4 ranks; also ")
