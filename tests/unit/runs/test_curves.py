"""Curves next to each other: where they part, what lies between, when one reaches a value."""

import numpy as np
import pytest

from distsummary.runs.curves import best_of, curve_of, mean_of, reached, where_they_part


def part(a, b, steps=None, other=None):
    a, b = np.array(a, np.float32), np.array(b, np.float32)
    return where_they_part(
        curve_of(np.arange(a.size) if steps is None else np.array(steps), a),
        curve_of(np.arange(b.size) if other is None else np.array(other), b),
    )


def test_curves_part_where_they_stay_apart():
    noise = np.array([0, 1] * 10)
    assert part(noise, noise)[:3] == (20, None, None)
    assert part(noise, 1 - noise)[:3] == (20, 0, None)  # no further apart than they jump
    assert part(noise, noise + 9 * (np.arange(20) >= 12))[:3] == (20, 12, 12)
    assert part(noise, noise + 9 * (np.arange(20) == 12))[:3] == (20, 12, None)  # together again
    assert part([1, 1, 1], [1, np.nan, np.nan])[:3] == (3, 1, 1)
    assert part([np.nan, np.inf], [np.nan, np.inf])[:3] == (2, None, None)
    assert part([1, 2, 3], [9, 2, 3], steps=[0, 2, 4], other=[1, 2, 4])[:3] == (2, None, None)
    assert part([1, 7], [7], steps=[3, 3], other=[3])[:2] == (1, None)  # the last of a step counts
    assert part([1], [1], steps=[1], other=[2])[:4] == (0, None, None, None)
    assert part([], [1]).common == 0


def test_noise_hides_neither_that_curves_part_nor_where():
    random = np.random.default_rng(5)
    steps = np.arange(1200)
    slow = random.normal(4, 0.2, 1200) + 1.5 * (steps >= 500) + 40 * (random.random(1200) < 0.02)
    fast = random.normal(4, 0.2, 1200)
    fast[-3:] = slow[-3:]  # the last samples alone say nothing
    assert abs(part(slow, fast).parts_at - 500) < 12
    assert abs(part(fast, slow).parts_at - 500) < 12
    assert part(fast, random.normal(4.1, 0.2, 1200)).parts_at is None
    smooth = np.exp(-steps / 300)
    assert part(smooth, smooth + 0.02 * (steps >= 700))[1:3] == (700, 700)  # equal bits until then
    grown = part(smooth, smooth + 1e-4 * np.maximum(0, steps - 600))
    assert grown.first_difference == 601
    assert 605 < grown.parts_at < 625  # the difference is then as large as three steps of the curve
    ended = part(fast, np.where(steps >= 300, np.nan, fast))
    assert ended[1:3] == (300, 300)
    assert part(-fast, np.where(steps >= 300, -np.inf, -fast))[1:3] == (300, 300)
    assert part([0.91], [0.92])[:3] == (1, 0, None)


def curve(values, steps=None):
    steps = np.arange(1, len(values) + 1) if steps is None else np.array(steps)
    return curve_of(steps, np.array(values, np.float32), 2.0 * steps)


def test_the_area_between_curves_is_that_of_their_common_steps():
    straight = part([0, 1, 2, 3], [1, 2, 3, 4])
    assert (straight.area, straight.between) == (3.0, 1.0)
    other = part([0, 0, 0], [0, 8, 4], steps=[0, 2, 8], other=[0, 2, 8])
    assert (other.area, other.between) == (8 + 36, pytest.approx(44 / 8))
    assert part([0, 0, 0, 0], [1, np.nan, np.inf, 1]).between == 1.0  # without steps that are not finite
    assert part([0], [1])[-2:] == (None, None)


def test_a_curve_reaches_a_value_by_its_mean_and_not_by_an_outlier():
    fast, slow = (curve(2 * np.exp(-np.arange(900) / tau)) for tau in (50, 150))
    steps = [int(one.steps[reached(one, 0.3, "min")]) for one in (fast, slow)]
    assert steps == [pytest.approx(95, abs=3), pytest.approx(285, abs=3)]
    assert reached(curve(fast.values + 1), 0.3, "min") is None
    dips = np.where(np.arange(900) == 100, -2.0, slow.values)
    assert slow.steps[reached(curve(dips), 0.3, "min")] == pytest.approx(285, abs=3)
    spoilt = np.where(np.arange(900) == 0, 1e12, fast.values)
    assert fast.steps[reached(curve(spoilt), 0.3, "min")] == pytest.approx(95, abs=3)
    assert reached(curve([0.1, np.nan, 0.75, 0.9]), 0.75, "max") == 2
    assert reached(curve([np.nan, np.nan]), 0.7, "max") is None


def test_the_best_value_is_a_finite_one():
    assert best_of(curve([3, 1, np.nan, 1]), "min") == 1
    assert best_of(curve([3, np.inf, 5]), "max") == 2
    assert best_of(curve([np.nan]), "max") is None


def test_the_mean_of_curves_is_of_the_steps_that_all_have():
    mean = mean_of([curve([1, 2, 3], [1, 2, 3]), curve([5, 6], [2, 3]), curve([0, 1, 1], [0, 2, 3])])
    assert mean.steps.tolist() == [2, 3]
    assert mean.values.tolist() == pytest.approx([8 / 3, 10 / 3])
    assert mean_of([curve([1], [1]), curve([1], [2])]).steps.size == 0
