"""Drift: one flipped bit in one of several replicas; what is no drift."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from distsummary.diagnosis.check_tags import bits_tags, located, packed, weights_of
from distsummary.diagnosis.drift import Drift
from distsummary.diagnosis.verdict import Verdict
from distsummary.rundir.rank_facts import RankFacts

NAMES = [f"layer{number}.weight" for number in range(40)]
Sums = tuple[int, int, int]
Reported = dict[int, dict[int, Sums]]  # step -> rank -> what it reports


def look(drift: Drift, reported: Reported, split: tuple[str, ...] = ()) -> list[Verdict]:
    tags = bits_tags(split)
    rows = [
        (tag, rank, step, float(np.float32(number)))
        for step, by_rank in reported.items()
        for rank, numbers in by_rank.items()
        for tag, number in enumerate(numbers)
    ]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return drift.add(tags, *columns)


def settled(drift: Drift, reported: Reported, split: tuple[str, ...] = ()) -> list[Verdict]:
    return [*look(drift, reported, split), *drift.settle()]


def drift_of(mesh: dict[int, dict[str, int]] | None = None, layouts: dict[int, int] | None = None) -> Drift:
    def facts(rank: int) -> RankFacts:
        layout = {} if layouts is None else {"whole": layouts[rank]}
        return RankFacts({}, NAMES, {"whole": range(len(NAMES))}, layout)

    return Drift(lambda rank: (mesh or {}).get(rank, {}), facts)


def sums_of(arrays: list[np.ndarray]) -> np.ndarray:
    return np.array([np.add.reduce(array.view(np.int64)) for array in arrays])


def equal(ranks: int, first: int, last: int) -> Reported:
    return {step: dict.fromkeys(range(ranks), (step, 2, 3)) for step in range(first, last)}


def test_a_flipped_bit_is_named_with_rank_parameter_and_step_300_of_300_times() -> None:
    generator, chance = np.random.default_rng(0), random.Random(0)
    weights = weights_of(len(NAMES))
    for episode in range(300):
        ranks = chance.choice([3, 4, 5, 8])
        rank, index, step = chance.randrange(ranks), chance.randrange(len(NAMES)), chance.randint(1, 12)
        values = [
            generator.normal(size=2 * chance.randint(1, 40)).astype(np.float32) for _ in range(len(NAMES))
        ]
        reported: Reported = {}
        for number in range(1, 15):
            values = [one + np.float32(0.01) for one in values]
            own = [one.copy() for one in values]
            if number >= step:
                own[index].view(np.uint32)[chance.randrange(len(own[index]))] ^= 1
            good, bad = packed(sums_of(values), weights), packed(sums_of(own), weights)
            reported[number] = {other: bad if other == rank else good for other in range(ranks)}
        [verdict] = look(drift_of(), reported)
        assert (verdict.rank, verdict.cause, verdict.since_step) == (rank, "drift", step), episode
        assert repr(NAMES[index]) in verdict.evidence


def test_of_two_replicas_both_are_named_and_the_end_is_reported() -> None:
    reported = equal(2, 1, 9)
    for step in (4, 5):
        reported[step][1] = (step + 5, 7, 3 + 5)
    found = look(drift_of(), reported)
    assert [(one.rank, one.ranks, one.since_step, one.until_step) for one in found] == [
        (0, (0, 1), 4, None), (0, (0, 1), 4, 5),
    ]  # fmt: skip
    assert found[0].evidence == (
        "the parameter 'layer0.weight' differs, and of two copies either may be right; "
        "all were equal at step 3"
    )


def together(step: int) -> Sums:
    """What a rank reports that holds the same as the others."""
    return step, 2 * step, 3


def by_itself(step: int, rank: int) -> Sums:
    """Of one that trains alone: more than one of its parameters differs."""
    return step + rank, 2 * step + 3 * rank, 3 + 7 * rank


@pytest.mark.parametrize(
    ("are_equal", "found"),
    [
        # never: stages of a pipeline, or a model that is not wrapped
        (lambda step: False, [("info", 1, None)]),
        # only while the learning rate is 0
        (lambda step: step <= 4, [("info", 5, None)]),
        # local SGD: at each 16th step, from the beginning, or after a warm-up
        (lambda step: step % 16 == 0, []),
        (lambda step: step < 100 or step % 16 == 0, []),
        (lambda step: step < 100 or step % 60 == 0, []),
        # no longer
        (lambda step: step < 100, [("error", 100, None)]),
        (lambda step: step < 390, [("error", 390, None)]),
        (lambda step: step % 16 == 0 and step < 200, [("error", 193, None)]),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_train_apart_are_an_error_only_where_they_were_equal_and_no_longer_are(
    ranks: int, are_equal: Callable[[int], bool], found: list[tuple[str, int, int | None]]
) -> None:
    reported = {
        step: {
            # In the first steps, nothing moves.
            rank: together(max(4, step)) if are_equal(step) else by_itself(step, rank)
            for rank in range(ranks)
        }
        for step in range(1, 401)
    }
    drift = drift_of()
    verdicts = settled(drift, reported)
    assert drift.settle() == []
    assert [(one.level, one.since_step, one.until_step) for one in verdicts] == found
    assert all(one.ranks == tuple(range(ranks)) for one in verdicts)
    if found and found[0][0] == "info" and found[0][1] == 1:
        assert "from the first comparison on: is the model wrapped in DDP?" in verdicts[0].evidence


@pytest.mark.parametrize(
    ("waits", "steps", "found"),
    [
        (lambda step: step == 1, 600, ["warning"]),  # such as a barrier before the loop
        (lambda step: False, 500, ["info"]),
        (lambda step: step == 500, 600, ["info"]),  # such as an average of the parameters
        (lambda step: True, 600, ["info"]),
    ],
)
@pytest.mark.parametrize("chunk", [1, 600])
def test_ranks_that_differ_and_never_wait_for_each_other_train_alone(waits, steps, found, chunk):
    drift, verdicts = drift_of(), []
    tags = [*bits_tags(()), "zz_perf/wait_ms"]
    for first in range(1, steps + 1, chunk):
        rows = [
            (tag, rank, step, value)
            for step in range(first, min(first + chunk, steps + 1))
            for rank in (0, 1)
            for tag, value in enumerate((*by_itself(step, rank), 2.5 * waits(step)))
        ]
        verdicts += drift.add(tags, *(np.array(column) for column in zip(*rows, strict=True)))
    verdicts += drift.settle()
    assert [one.level for one in verdicts] == found
    assert ("each trains alone. Wrap" in verdicts[0].evidence) == (found == ["warning"])


@pytest.mark.parametrize(
    ("drifts", "found"), [(None, [("info", 0, 1)]), (2, [("info", 0, 1), ("error", 2, 300)])]
)
def test_a_rank_that_never_held_the_weights_of_the_others_is_an_info(drifts, found):
    """Such as one that keeps the parameters and sends them to the others."""
    reported = {
        step: {
            rank: by_itself(step, rank + 1)
            if rank == 0 or (rank == drifts and step >= 300)
            else together(step)
            for rank in range(5)
        }
        for step in range(1, 401)
    }
    verdicts = settled(drift_of(), reported)
    assert [(one.level, one.rank, one.since_step) for one in verdicts] == found


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_it_is_reported_once_however_the_steps_are_divided(chunk: int) -> None:
    reported = equal(4, 1, 20)
    for step in range(7, 20):
        reported[step][2] = (step + 1, 3, 4)
    drift, found = drift_of(), []
    for low in range(1, 20, chunk):
        part = {step: reported[step] for step in range(low, min(low + chunk, 20))}
        found += look(drift, part)
    [verdict] = found
    assert (verdict.rank, verdict.since_step, verdict.reported_step) == (2, 7, 7)
    assert NAMES[0] in verdict.evidence


def test_ranks_that_are_no_copies_are_not_compared() -> None:
    different = {step: {rank: (step, rank, 5) for rank in range(4)} for step in range(1, 5)}
    stages = {rank: {"pp": rank} for rank in range(4)}
    assert settled(drift_of(stages), different) == []
    shards = {rank: {"dp_shard": rank} for rank in range(4)}
    assert settled(drift_of(shards), different, ("dp_shard",)) == []
    both = {rank: {"dp_replicate": rank // 2, "dp_shard": rank % 2} for rank in range(4)}
    reported: Reported = {1: {0: (1, 1, 1), 1: (2, 2, 2), 2: (1, 1, 1), 3: (2, 2, 2)}}
    assert look(drift_of(both), reported, ("dp_shard",)) == []
    reported[1][3] = (3, 3, 3)
    assert [one.ranks for one in settled(drift_of(both), reported, ("dp_shard",))] == [(1, 3)]
    assert settled(drift_of(layouts=dict(enumerate(range(4)))), different) == []
    found = settled(drift_of(layouts={0: 7, 1: 8, 2: 7, 3: 8}), different)
    assert [one.ranks for one in found] == [(0, 2), (1, 3)]


def test_without_a_majority_all_are_named() -> None:
    apart = {step: {rank: by_itself(step, rank) for rank in range(4)} for step in range(3, 99)}
    [verdict] = look(drift_of(), equal(4, 1, 3) | apart)
    assert (verdict.rank, verdict.ranks) == (0, (0, 1, 2, 3))
    assert "no majority of 4 agrees" in verdict.evidence


def test_two_of_four_that_report_a_step_wait_for_the_others() -> None:
    reported = equal(4, 1, 4)
    reported |= {4: {0: (1, 1, 1), 2: (2, 3, 5)}, 8: dict.fromkeys(range(4), (8, 8, 8))}
    reported[8][2] = (9, 9, 9)
    [verdict] = look(drift_of(), reported)
    assert (verdict.rank, verdict.since_step) == (2, 8)


def test_several_parameters_that_differ_are_not_taken_for_one() -> None:
    generator = np.random.default_rng(1)
    weights = weights_of(1000)
    sums = generator.integers(-(2**63), 2**63 - 1, 1000)
    for _ in range(300):
        other = sums.copy()
        places = generator.choice(1000, 2, replace=False)
        other[places] ^= 1 << generator.integers(0, 62, 2)
        assert located(packed(other, weights), packed(sums, weights)) is None


def test_one_rank_alone_and_one_that_starts_late_are_no_alarm() -> None:
    assert look(drift_of(), equal(1, 1, 9)) == []
    reported = equal(3, 1, 9)
    for step in range(5, 9):
        reported[step] = reported[step] | {3: (step, 2, 3)}
    assert look(drift_of(), reported) == []


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_two_that_are_left_of_three_do_not_wait_for_a_rank_that_reports_nothing_any_more(chunk: int) -> None:
    reported = equal(3, 1, 9) | equal(2, 9, 600)
    for step in range(300, 600):
        reported[step][1] = (step + 1, 3, 4)
    drift, found = drift_of(), []
    for low in range(1, 600, chunk):
        part = {step: reported[step] for step in range(low, min(low + chunk, 600))}
        found += look(drift, part)
    assert [(one.ranks, one.since_step) for one in found] == [((0, 1), 300)]


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_a_rank_that_reports_something_else_is_waited_for(chunk: int) -> None:
    """The sums of rank 2 cost more: it reports them at each 512th step."""
    tags = [*bits_tags(()), "loss"]
    rows = []
    for step in range(1, 1025):
        for rank in range(3):
            rows.append((3, rank, step, 1.0))
            if rank < 2 or step <= 8 or step % 512 == 0:
                bad = rank == 1 and step >= 300
                rows += [(part, rank, step, float(step % 7 + bad * (part + 1))) for part in range(3)]
    drift, found = drift_of(), []
    for low in range(1, 1025, chunk):
        here = [
            np.array(column)
            for column in zip(*(row for row in rows if low <= row[2] < low + chunk), strict=True)
        ]
        found += drift.add(tags, *here)
    assert [(one.rank, one.since_step) for one in found] == [(1, 512)]
