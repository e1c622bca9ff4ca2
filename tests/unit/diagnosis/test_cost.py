"""What slow ranks cost, and verdicts that are one."""

from dataclasses import replace

import numpy as np
import pytest

from distsummary.diagnosis.cost import (
    Costs,
    StepTimes,
    excess_ms,
    excess_of_all,
    is_small,
    joined,
    median_of_others,
    shared_ms,
    step_times,
    union,
)
from distsummary.diagnosis.measured_steps import is_measured
from distsummary.diagnosis.verdict import Verdict

SLOW = Verdict(rank=2, cause="data", since_step=100, until_step=None, evidence="e", reported_step=105)


def alone(rank: int) -> dict[str, int]:
    return {}


def times(step: int, own: list[float], wait: list[float] | None = None, every: int = 1) -> StepTimes:
    """A step of ranks that wait for the slowest, unless `wait` is given."""
    own_ms = np.array(own, float)
    wait_ms = own_ms.max() - own_ms if wait is None else np.array(wait, float)
    return StepTimes(step, np.arange(len(own)), own_ms, wait_ms, every)


def test_the_excess_is_over_the_median_of_the_peers() -> None:
    same = {0: "a", 1: "a", 2: "a", 3: "b"}.get
    found = times(1, [5, 7, 20, 100])
    assert excess_ms(found, 2, same) == 14.0
    assert excess_ms(found, 0, same) == -8.5
    assert excess_ms(found, 3, same) == 0.0  # it has no peers
    assert excess_ms(found, 9, same) == 0.0  # it has not recorded the step


def test_the_excess_of_all_ranks_is_that_of_each() -> None:
    random = np.random.default_rng(5)
    for ranks in (1, 2, 3, 4, 7, 8):
        own = random.integers(1, 6, (40, ranks)).astype(float)
        own[random.random(own.shape) < 0.2] = np.nan
        found, medians = excess_of_all(own), median_of_others(own)
        for step, rank in np.ndindex(*own.shape):
            others = np.delete(own[step], rank)
            others = others[~np.isnan(others)]
            if np.isnan(own[step, rank]) or not others.size:
                assert found[step, rank] == 0.0
                continue
            assert medians[step, rank] == np.median(others)
            assert found[step, rank] == max(0.0, own[step, rank] - np.median(others))


def test_what_no_one_waited_for_is_not_lost() -> None:
    two, three = (2, "data", 1), (3, "data", 1)
    assert shared_ms(times(1, [5, 5, 20, 5]), {two: 15.0}) == {two: 15.0}
    assert shared_ms(times(1, [5, 5, 20, 5], [0, 0, 0, 0]), {two: 15.0}) == {two: 0.0}
    both = shared_ms(times(1, [5, 5, 20, 15]), {two: 15.0, three: 10.0})
    assert both == {two: pytest.approx(9.0), three: pytest.approx(6.0)}


def test_a_verdict_costs_its_steps_also_those_before_it_was_certain() -> None:
    costs = Costs(alone)
    for step in range(1, 106):
        costs.add(times(step, [5, 5, 25 if step >= 100 else 5, 5]))
    begun = costs.note(SLOW)
    assert begun.lost_s == pytest.approx(6 * 0.020)
    assert not costs.has_grown(begun)
    for step in range(106, 231):
        costs.add(times(step, [5, 5, 25 if step < 220 else 5, 5]))
    assert costs.has_grown(begun)
    assert costs.of(begun).lost_s == pytest.approx(120 * 0.020)
    ended = costs.note(replace(begun, until_step=219))
    assert ended.lost_s == pytest.approx(120 * 0.020)
    assert costs.of(begun) == begun  # it is over


@pytest.mark.parametrize(("waits", "is_known"), [([0, 0, 0, 0], False), ([0, 0, 5, 0], True)])
def test_a_rank_that_no_other_waited_for_has_cost_little_where_waiting_is_recorded(waits, is_known):
    costs = Costs(alone)
    costs.add(times(1, [5, 5, 5, 5], waits))
    for step in range(100, 110):
        costs.add(times(step, [5, 5, 25, 5], [0, 0, 0, 0]))
    lasting = costs.note(SLOW)
    ended = costs.note(replace(lasting, until_step=109))
    for one in (lasting, ended):
        assert (one.lost_s < 1e-6, is_small(one.cause, one.lost_s, 60.0)) == (True, is_known)


def test_steps_that_stand_for_several() -> None:
    costs = Costs(alone)
    costs.add(times(104, [5, 5, 25, 5], every=4))
    assert costs.note(SLOW).lost_s == pytest.approx(0.080)


def test_the_others_may_wait_at_the_next_step() -> None:
    """Rank 2 takes longer in its optimizer: the others wait for its gradients of the next step."""
    costs = Costs(alone)
    for step in range(100, 120):
        is_slow = step % 5 == 0
        costs.add(
            times(
                step,
                [5, 5, 25 if is_slow else 5, 5],
                [20 * (step % 5 == 1)] * 2 + [0] + [20 * (step % 5 == 1)],
            )
        )
    assert costs.note(SLOW).lost_s == pytest.approx(4 * 0.020)
    assert costs.note(replace(SLOW, until_step=115)).lost_s == pytest.approx(4 * 0.020)


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
@pytest.mark.parametrize("every", [1, 4])
def test_what_is_slow_in_gradient_accumulation_costs_what_the_others_wait_at_its_end(micro: int, every: int):
    """Rank 2 takes 20 ms more at each step; the others wait for it at each `micro`-th one alone."""
    generator, costs = np.random.default_rng(1), Costs(alone)
    for step in range(100, 1700):
        own = generator.uniform(4, 6, 4)
        own[2] += 20
        waits = [20 * micro * (step % micro == 0), 0]
        if is_measured(step, every):
            costs.add(times(step, own.tolist(), [waits[0], waits[0], 0, waits[0]], every))
            costs.note(SLOW)
    assert costs.of(SLOW).lost_s == pytest.approx(1600 * 0.020, rel=0.15)


def test_what_is_slow_until_the_end_of_an_epoch_costs_what_the_others_wait_then() -> None:
    """One step in four is measured, and the first one after an epoch, which stands for itself alone."""
    costs = Costs(alone)
    for step in range(100, 1701):
        is_end, own = step % 100 == 0 and step > 100, [5.0, 5.0, 25.0, 5.0]
        if is_end:
            costs.add(times(step, own, [2000.0, 2000.0, 0.0, 2000.0]))
        elif is_measured(step, 4):
            costs.add(times(step, own, [0.0] * 4, 4))
        costs.note(SLOW)
    assert costs.of(SLOW).lost_s == pytest.approx(1600 * 0.020, rel=0.05)


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_slow_in_steps_that_a_rank_makes_alone_costs_what_the_others_wait_then(shared: bool) -> None:
    """Its epochs have 20 steps more than those of the others, which then wait for all of these."""
    costs = Costs(alone)
    for step in range(1, 501):
        is_tail, place = step > 80 and (step - 1) % 100 >= 80, (step - 1) % 100
        stalls = place == (40 if shared else 90) and step > 100
        own = 5.0 + 700.0 * stalls
        if is_tail:
            costs.add(StepTimes(step, np.array([2]), np.array([own]), np.array([0.5])))
        else:
            waits = 700.0 * stalls + (100.0 + 700.0 * (not shared and step > 200)) * (place == 0 and step > 1)
            costs.add(times(step, [5.0, 5.0, own, 5.0], [waits, waits, 0.5, waits]))
        if step == 100:
            costs.note(SLOW)
    costs.add(times(501, [5.0] * 4, [100.0 + 700.0 * (not shared)] * 4))
    assert costs.of(SLOW).lost_s == pytest.approx(4 * 0.7, rel=0.02)


def test_a_rank_that_is_behind_and_catches_up_costs_what_is_left() -> None:
    costs = Costs(alone)
    for step in range(100, 200):
        # It is 40 ms slower at one of four steps and 10 ms quicker at the next two.
        own = [20.0, 20.0, [60.0, 10.0, 10.0, 20.0][step % 4], 20.0]
        costs.add(times(step, own, [20.0 * (step % 4 == 3)] * 2 + [0.0] + [20.0 * (step % 4 == 3)]))
    assert costs.note(SLOW).lost_s == pytest.approx(25 * 0.020)


def test_all_verdicts_together_cost_no_more_than_was_waited() -> None:
    generator = np.random.default_rng(0)
    costs, waited = Costs(alone), 0.0
    for step in range(1, 200):
        own = generator.uniform(5, 30, 4)
        found = times(step, own.tolist())
        waited += 1e-3 * float(found.wait_ms.max())
        costs.add(found)
    late = [costs.note(replace(SLOW, rank=rank, since_step=1)) for rank in range(4)]
    for step in range(200, 400):
        found = times(step, generator.uniform(5, 30, 4).tolist())
        waited += 1e-3 * float(found.wait_ms.max())
        costs.add(found)
    total = sum(costs.of(one).lost_s for one in late)
    assert 0.5 * waited < total <= waited + 1e-9


def test_the_times_of_steps_come_from_scalars_in_any_order() -> None:
    tags = ["loss", "zz_perf/own_ms", "zz_perf/wait_ms", "zz_perf/phase/every"]
    rows = [
        (step, rank, tag, 100 * step + 10 * rank + tag)
        for step in (1, 2)
        for rank in (0, 3)
        for tag in range(4)
    ]
    order = np.random.default_rng(1).permutation(len(rows))
    steps, ranks, which, values = (np.array(column)[order] for column in zip(*rows, strict=True))
    first, second = step_times(tags, which, ranks, steps, values.astype(float))
    assert (first.step, second.step, first.ranks.tolist(), first.every) == (1, 2, [0, 3], 133)
    assert second.own_ms.tolist() == [201, 231]
    assert second.wait_ms.tolist() == [202, 232]
    assert [*step_times(["loss"], which[:0], ranks[:0], steps[:0], values[:0])] == []
    assert [*step_times([], which[:0], ranks[:0], steps[:0], values[:0])] == []


def test_a_rank_that_is_slow_for_the_same_cause_several_times_is_one_verdict() -> None:
    parts = [
        replace(SLOW, until_step=119, lost_s=1.0),
        replace(SLOW, cause="forward", since_step=130, until_step=140),
        replace(SLOW, since_step=200, until_step=220, evidence="dearest", lost_s=2.0),
        replace(SLOW, rank=1, since_step=205),
        replace(SLOW, since_step=300),
        replace(SLOW, cause="nan", since_step=301),
        replace(SLOW, cause="nan", since_step=302),
    ]
    found = joined(parts)
    assert [(one.rank, one.cause) for one in found] == [
        (2, "data"), (2, "forward"), (1, "data"), (2, "nan"), (2, "nan"),
    ]  # fmt: skip
    assert found[0].intervals == ((100, 119), (200, 220), (300, None))
    assert (found[0].since_step, found[0].until_step, found[0].evidence) == (100, None, "dearest")
    assert (found[0].lost_s, found[0].reported_step) == (3.0, 105)
    assert found[1] == parts[1]
    assert joined([found[0], replace(SLOW, since_step=300, until_step=310)])[0].intervals[-1] == (300, None)


def test_intervals_that_overlap_are_one() -> None:
    assert union([(5, 9), (1, 3), (9, 12), (20, None), (25, 30)]) == ((1, 3), (5, 12), (20, None))
    assert union([]) == ()


def test_ranks_that_are_slow_for_the_same_cause_in_turns_are_one_verdict() -> None:
    def one(rank: int, since: int, until: int | None, cause: str = "data", lost_s: float = 1.0) -> Verdict:
        return Verdict(
            rank=rank, cause=cause, since_step=since, until_step=until, evidence=f"rank {rank} at {since}",
            reported_step=since, lost_s=lost_s,
        )  # fmt: skip

    turns = [one(0, 10, 30), one(1, 40, 60), one(0, 70, 90, lost_s=3.0), one(1, 100, None)]
    [found] = joined(turns)
    assert (found.rank, found.ranks, found.lost_s) == (0, (0, 1), 6.0)
    assert found.evidence == "in turns (rank 0 4.0 s, rank 1 2.0 s); rank 0 at 70"
    assert len(found.intervals) == 4
    # once each, at the same steps, for another cause, or long after each other: these are two facts
    for others in (
        [one(0, 10, 30), one(1, 70, 90), one(0, 150, 170), one(1, 230, None)],
        [one(0, 10, 30), one(1, 40, 60)],
        [one(0, 10, 60), one(1, 15, 62), one(0, 70, 90), one(1, 71, None)],
        [one(0, 10, 30), one(1, 40, 60, "forward"), one(0, 70, 90), one(1, 100, None, "forward")],
    ):
        assert {(each.rank, each.ranks) for each in joined(others)} == {(0, ()), (1, ())}
