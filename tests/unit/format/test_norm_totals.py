"""What viewers are shown of norms: those of all parameters together."""

import math

import numpy as np
import pytest

from distsummary.format.norm_totals import NormTotals
from distsummary.format.norms import ParameterNorms, ParameterTable

NAN = float("nan")


def norms(gradients, *, weights=None, updates=None, names=None, gradient_nonfinite=0, weight_nonfinite=0):
    """Gradients: norms of parameters; None: it has no gradient."""
    n = len(gradients)
    names = names or tuple(f"p{row}" for row in range(n))
    zeros = np.zeros(n, np.int64)
    return ParameterNorms(
        ParameterTable(names, ((2,),) * n, (2,) * n, (0,) * n),
        np.square(np.array(weights if weights is not None else np.ones(n), np.float64)),
        np.square(np.array([0.0 if one is None else one for one in gradients])),
        np.array([one is not None for one in gradients]),
        zeros + np.array(weight_nonfinite),
        zeros + np.array(gradient_nonfinite),
        np.square(np.array(updates if updates is not None else np.full(n, NAN), np.float64)),
        np.full(n, NAN, np.float32),
    )


def added(totals, *args, **named):
    return {value.tag: value.data for value in totals.add(norms(*args, **named))}


def test_the_totals_are_norms_over_all_parameters():
    found = added(NormTotals(), [3.0, 4.0, None], weights=[2.0, 1.0, 2.0], updates=[0.3, 0.4, NAN])
    assert found == pytest.approx(
        {"norms/gradient": 5.0, "norms/weight": 3.0, "norms/update": 0.5, "norms/update_to_weight": 0.5 / 3}
    )


def test_updates_that_are_measured_in_turn_are_reported_when_all_have_been():
    totals, n = NormTotals(), 4
    for cycle in (1.0, 2.0):
        for turn in range(n):
            updates = np.where(np.arange(n) == turn, cycle, NAN)
            found = added(totals, [1.0] * n, updates=updates)
            assert found.get("norms/update") == (2 * cycle if turn == n - 1 else None)
            assert found.get("norms/update_to_weight") == (cycle if turn == n - 1 else None)


def test_a_parameter_that_never_has_a_gradient_is_not_awaited():
    totals = NormTotals()
    assert "norms/update" not in added(totals, [1.0, None, 2.0], updates=[3.0, NAN, NAN])
    assert added(totals, [1.0, None, 2.0], updates=[NAN, NAN, 4.0])["norms/update"] == 5.0
    assert "norms/update" not in added(totals, [None, None, None])
    assert "norms/gradient" not in added(totals, [None, None, None])


def test_a_total_without_the_part_of_a_rank_is_left_out_but_not_one_with_a_nan():
    assert {*added(NormTotals(), [NAN, 1.0], updates=[1.0, 1.0])} == {
        "norms/weight", "norms/update", "norms/update_to_weight"
    }  # fmt: skip
    assert {*added(NormTotals(), [1.0, 1.0], weights=[NAN, 1.0], updates=[1.0, 1.0])} == {
        "norms/gradient", "norms/update"
    }  # fmt: skip
    found = added(NormTotals(), [NAN, 1.0], gradient_nonfinite=[1, 0])
    assert math.isnan(found["norms/gradient"])


def test_the_updates_of_another_model_are_its_own():
    totals = NormTotals()
    assert "norms/update" not in added(totals, [1.0, 1.0], updates=[3.0, NAN], names=("a", "b"))
    assert "norms/update" not in added(totals, [1.0, 1.0], updates=[4.0, NAN], names=("lora", "a"))
    assert added(totals, [1.0, 1.0], updates=[NAN, 3.0], names=("lora", "a"))["norms/update"] == 5.0
