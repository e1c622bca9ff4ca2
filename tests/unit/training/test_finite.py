"""FiniteCheck: whether the input of a step was finite whose numbers are not."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distsummary as ds
from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.format.own_tags import NONFINITE_TAGS
from distsummary.training.finite import INPUTS, WARN, FiniteCheck

INPUT = NONFINITE_TAGS["input"]
BAD = np.array([[1.0, math.nan]], np.float32)
GOOD, LABELS, NAMES = np.ones((2, 3), np.float32), np.arange(4), np.array(["a", "b"])


def check() -> FiniteCheck:
    failures = Failures(Health(), logging.getLogger(__name__))
    return FiniteCheck(WARN, 0, lambda: failures)


@pytest.mark.parametrize(
    ("batch", "number"),
    [
        (BAD, 0.0), ((GOOD, LABELS, BAD), 2.0), ({"x": [GOOD, {"mask": BAD}], "y": LABELS}, 1.0),
        ((GOOD, LABELS, NAMES), None), (np.array([1.0, math.inf]), 0.0), (None, None),
        (["a text", 7], None),
    ],
)  # fmt: skip
def test_the_first_tensor_of_a_batch_that_is_not_finite_is_numbered(batch: object, number: float | None):
    assert check().input_of(batch, {"loss": math.nan}) == ({} if number is None else {INPUT: number})


def test_a_step_whose_numbers_are_finite_is_not_looked_at() -> None:
    assert check().input_of(BAD, {"loss": 1.0, "accuracy": 0.5}) == {}


def test_few_batches_are_looked_at_and_none_after_one_was_found() -> None:
    found = check()
    for _ in range(INPUTS - 1):
        assert found.input_of(GOOD, {"norm": math.inf}) == {}
    assert found.input_of(BAD, {"norm": math.inf}) == {INPUT: 0.0}
    assert found.input_of(BAD, {"norm": math.inf}) == {}


def test_a_run_records_it_at_the_step_of_the_number(tmp_path: Path) -> None:
    batches: list[Any] = [(GOOD, LABELS)] * 9
    batches[4] = BAD, LABELS
    with ds.init(tmp_path / "run", aggregate=False, quiet=True) as run:
        for x, _ in run.steps(batches):
            run.log(loss=float(x.sum()))
    scalars = ds.open_run(tmp_path / "run").scalars(INPUT)
    assert [(row.step, row.value) for row in scalars] == [(5, 0.0)]
