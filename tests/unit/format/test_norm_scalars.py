"""What viewers are shown of norms: totals, and the few parameters whose gradient is not as in their past."""

import math

import numpy as np
import pytest

from distsummary.format.norm_scalars import HOLD, SHOWN, WARM, NormScalars
from distsummary.format.norms import ParameterNorms, ParameterTable

NAN, INF = float("nan"), float("inf")


def norms(gradients, *, weights=None, updates=None, names=None, gradient_nonfinite=0, weight_nonfinite=0):
    """Gradients: norms of parameters; None: it has no gradient."""
    n = len(gradients)
    names = names or tuple(f"p{row}" for row in range(n))
    zeros = np.zeros(n, np.int64)
    return ParameterNorms(
        ParameterTable(names, ((2,),) * n, (2,) * n, ((),) * n),
        np.square(np.array(weights if weights is not None else np.ones(n), np.float64)),
        np.square(np.array([0.0 if one is None else one for one in gradients])),
        np.array([one is not None for one in gradients]),
        zeros + np.array(weight_nonfinite),
        zeros + np.array(gradient_nonfinite),
        np.square(np.array(updates if updates is not None else np.full(n, NAN), np.float64)),
        np.full(n, NAN, np.float32),
    )


def added(scalars, *args, **named):
    return {value.tag: value.data for value in scalars.add(norms(*args, **named))}


def noisy(seed=0, n=20):
    """Endless gradients around different sizes that fall together, as in a training."""
    random = np.random.default_rng(seed)
    sizes = np.exp(random.normal(-3, 2, n))
    step = 0
    while True:
        step += 1
        common = math.exp(random.normal(0, 0.5)) / math.sqrt(step)
        yield sizes * common * np.exp(random.normal(0, 0.2, n))


def test_the_totals_are_norms_over_all_parameters():
    found = added(NormScalars(), [3.0, 4.0, None], weights=[2.0, 1.0, 2.0], updates=[0.3, 0.4, NAN])
    assert found == pytest.approx(
        {"norms/gradient": 5.0, "norms/weight": 3.0, "norms/update": 0.5, "norms/update_to_weight": 0.5 / 3}
    )


def test_updates_that_are_measured_in_turn_are_reported_when_all_have_been():
    scalars, n = NormScalars(), 4
    for cycle in (1.0, 2.0):
        for turn in range(n):
            updates = np.where(np.arange(n) == turn, cycle, NAN)
            found = added(scalars, [1.0] * n, updates=updates)
            assert found.get("norms/update") == (2 * cycle if turn == n - 1 else None)
            assert found.get("norms/update_to_weight") == (cycle if turn == n - 1 else None)


def test_a_parameter_that_never_has_a_gradient_is_not_awaited():
    scalars = NormScalars()
    assert "norms/update" not in added(scalars, [1.0, None, 2.0], updates=[3.0, NAN, NAN])
    assert added(scalars, [1.0, None, 2.0], updates=[NAN, NAN, 4.0])["norms/update"] == 5.0
    assert "norms/update" not in added(scalars, [None, None, None])
    assert "norms/gradient" not in added(scalars, [None, None, None])


def test_a_total_without_the_part_of_a_rank_is_left_out_but_not_one_with_a_nan():
    assert {*added(NormScalars(), [NAN, 1.0], updates=[1.0, 1.0])} == {
        "norms/weight", "norms/update", "norms/update_to_weight"
    }  # fmt: skip
    assert {*added(NormScalars(), [1.0, 1.0], weights=[NAN, 1.0], updates=[1.0, 1.0])} == {
        "norms/gradient", "norms/update"
    }  # fmt: skip
    found = added(NormScalars(), [NAN, 1.0], gradient_nonfinite=[1, 0])
    assert math.isnan(found["norms/gradient"])
    assert math.isnan(found["norms/gradient/p0"])


@pytest.mark.parametrize("seed", range(4))
def test_noise_and_what_is_common_to_all_do_not_stand_out(seed):
    scalars, gradients = NormScalars(), noisy(seed)
    for _ in range(600):
        assert {tag for tag in added(scalars, next(gradients)) if tag.count("/") > 1} == set()
    assert "norms/gradient/p3" not in added(scalars, next(gradients) * 1e4)  # all at once: a loss that jumped


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_a_parameter_that_leaves_its_past_is_shown_from_then_on_for_a_while(factor):
    scalars, gradients = NormScalars(), noisy()
    for _ in range(100):
        added(scalars, next(gradients))
    shown = []
    for step in range(3 * HOLD):
        now = next(gradients)
        now[7] *= factor if step == 5 else 1.0
        found = {tag: number for tag, number in added(scalars, now).items() if tag.count("/") > 1}
        assert found in ({}, {"norms/gradient/p7": pytest.approx(now[7])})
        shown.append(bool(found))
    assert shown == [False] * 5 + [True] * HOLD + [False] * (2 * HOLD - 5)


def test_a_lasting_change_becomes_the_past():
    scalars, gradients = NormScalars(), noisy()
    for _ in range(100):
        added(scalars, next(gradients))
    shown = []
    for _ in range(1500):
        now = next(gradients)
        now[7] *= 1e3
        shown.append("norms/gradient/p7" in added(scalars, now))
    assert shown[0]
    assert not shown[-1]


def test_nothing_is_said_of_a_parameter_without_a_past_and_a_new_one_starts_its_own():
    scalars, gradients = NormScalars(), noisy(n=10)
    for step in range(200):
        now = [*next(gradients)]
        if step > 100:  # as if an adapter had been added
            now.append(1e6 if step == 101 + WARM // 2 else 1.0)
        names = tuple(f"p{row}" for row in range(10)) + (("new",) if step > 100 else ())
        now[2] *= 1e4 if step == 150 else 1.0
        found = {tag for tag in added(scalars, now, names=names) if tag.count("/") > 1}
        assert found == ({"norms/gradient/p2"} if step >= 150 else set())


def test_what_is_not_finite_is_shown_at_once_and_of_many_the_first_eight():
    n = 20
    found = added(NormScalars(), [1.0] * n, gradient_nonfinite=[0] * 5 + [1] * 15)
    assert [tag for tag in found if tag.count("/") > 1] == [
        f"norms/gradient/p{row}" for row in range(5, 5 + SHOWN)
    ]
    assert "norms/gradient/p1" in added(NormScalars(), [1.0, 2.0], weight_nonfinite=[0, 7])
    assert added(NormScalars(), [1.0, INF])["norms/gradient/p1"] == INF


def test_a_gradient_of_zero_stands_out_where_it_is_rare():
    scalars = NormScalars()
    for step in range(200):
        found = added(scalars, [0.0 if step == 150 else 1.0, 0.0 if step % 3 else 1.0, 0.0])
        shown = [tag for tag in found if tag.count("/") > 1]
        assert shown == (["norms/gradient/p0"] if step >= 150 else [])


def test_a_name_too_long_for_a_tag_takes_no_place():
    names = ("x" * 1020, "y")
    found = added(NormScalars(), [1.0, 1.0], names=names, gradient_nonfinite=[1, 1])
    assert [tag for tag in found if tag.count("/") > 1] == ["norms/gradient/y"]
