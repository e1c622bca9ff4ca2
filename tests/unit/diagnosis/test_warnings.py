"""A loader that takes most of the time, memory that grows: found in long series, and not in ordinary ones."""

import itertools

import numpy as np
import pytest

from distsummary.diagnosis.growth import Growth
from distsummary.diagnosis.loader import LoaderShare
from distsummary.diagnosis.verdict import Verdict

STEPS = 2000
RNG = np.random.default_rng(0)
SYNTHETIC_MS = np.full(STEPS, 40.0)


def loaders(loader_ms, step_ms=SYNTHETIC_MS, *, at_once: int = 10**9) -> list[Verdict]:
    """What is found on R ranks; loader_ms, step_ms: (N,) or (R, N). `at_once`: steps judged together."""
    loader_ms, step_ms = (np.atleast_2d(one) for one in (loader_ms, step_ms))
    ranks, count = len(loader_ms), loader_ms.shape[1]
    judge, found = LoaderShare(), []
    for start in range(0, count, at_once):
        part = slice(start, min(count, start + at_once))
        steps = np.arange(1 + part.start, 1 + part.stop)
        size = ranks * len(steps)
        values = np.concatenate(
            [loader_ms[:, part].ravel(), np.broadcast_to(step_ms, loader_ms.shape)[:, part].ravel()]
        )
        found += judge.add(
            ["zz_perf/data_wait_ms", "loss", "zz_perf/step_ms"],
            np.repeat([0, 2], size),
            np.tile(np.repeat(np.arange(ranks), len(steps)), 2),
            np.tile(steps, 2 * ranks),
            values,
        )
    return found


@pytest.mark.parametrize("at_once", [10**9, 7])
def test_a_loader_that_takes_most_of_the_time_is_found_and_its_cost_follows(at_once):
    first, *later = loaders(np.full(STEPS, 25.0), at_once=at_once)
    assert (first.cause, first.level, first.since_step, first.until_step) == ("loader", "warning", 21, None)
    assert first.evidence == "62% of the time, 25 of 40 ms a step"
    assert first.reported_step == 20 + 2 * 125  # two windows of 5 s
    assert first.lost_s == pytest.approx(6.25)
    costs = [one.lost_s for one in (first, *later)]
    assert all(second > 2 * one for one, second in itertools.pairwise(costs))
    assert costs[-1] > STEPS * 0.025 / 2


def test_it_ends_when_the_loader_is_quick_again():
    slow = np.where(np.arange(STEPS) < 1000, 25.0, 2.0)
    found = loaders(slow)
    assert (found[0].until_step, found[-1].until_step) == (None, 895 + 125)
    assert loaders(np.where(np.arange(STEPS) < 1000, 25.0, 18.0))[-1].until_step is None  # 45 %


ORDINARY = {
    "a loader behind its workers": RNG.exponential(0.5, STEPS),
    "just below": np.full(STEPS, 19.0),
    "slow at first": np.where(np.arange(STEPS) < 80, 39.0, 1.0),
    "an epoch every 100 steps begins with its workers": np.where(np.arange(STEPS) % 100, 0.5, 1500.0),
    "one batch hangs": np.where(np.arange(STEPS) == 700, 30_000.0, 1.0),
}


@pytest.mark.parametrize("loader_ms", ORDINARY.values(), ids=ORDINARY.keys())
def test_an_ordinary_loader_is_not_reported(loader_ms):
    assert loaders(loader_ms, np.maximum(SYNTHETIC_MS, loader_ms + 30)) == []


def test_short_steps_say_nothing():
    assert loaders(np.full(100_000, 0.8), np.full(100_000, 0.9)) == []


def test_one_slow_loader_of_four_is_that_rank_and_three_are_the_run():
    slow, quick = np.full(STEPS, 30.0), np.full(STEPS, 1.0)
    assert loaders(np.array([quick, slow, quick, quick])) == []
    assert loaders(np.array([quick, slow])) == []
    assert loaders(np.array([slow, quick, slow, slow]))[0].ranks == (0, 2, 3)


def memory(gib, *, tag="zz_system/process/private_gib", ranks=1) -> list[Verdict]:
    judge, found = Growth(), []
    for step, values in enumerate(np.atleast_2d(gib).T):
        found += judge.add(
            ["loss", tag], np.ones(ranks, int), np.arange(ranks), np.full(ranks, 100 * step), values
        )
    return found


AT = np.arange(2000)
GROWING = {
    "from the start": 4 + 0.05 * AT, "slowly": 4 + 0.004 * AT,
    "by graphs that are kept": 0.3 + 0.0125 * AT[:113], "late": 4 + 0.05 * np.maximum(0, AT - 1000),
    "at each evaluation": 4 + 0.3 * (AT // 60), "with noise": 4 + 0.02 * AT + RNG.normal(0, 0.05, len(AT)),
}  # fmt: skip


@pytest.mark.parametrize("gib", GROWING.values(), ids=GROWING.keys())
def test_memory_that_grows_is_found_once(gib):
    [verdict] = memory(gib)
    assert (verdict.cause, verdict.level, verdict.until_step) == ("growth", "warning", None)


STEADY = {
    "steady": np.full(len(AT), 4.0),
    "noise": RNG.normal(4, 1, len(AT)),
    "a jump": np.where(AT < 30, 1.0, 8.0),
    "an allocator fills": 4 - 3 * np.exp(-AT / 6),
    "an evaluation every 30 samples": np.where(AT % 30 < 3, 9.0, 4.0),
    "less than 4 GiB": 40 + 3 * AT / len(AT),
    "less than half of it": 4 + 1.9 * AT / len(AT),
    "logarithmically": 1 + np.log1p(AT),
    "sawteeth of garbage": 4 + (AT % 25) / 10,
    "a walk that returns": 4 + np.sin(AT / 9),
}


@pytest.mark.parametrize("gib", STEADY.values(), ids=STEADY.keys())
def test_memory_that_does_not_grow_is_not_reported(gib):
    assert memory(gib) == []


def test_the_verdict_names_rank_amount_and_pace():
    [verdict] = memory(
        np.array([np.full(60, 2.0), 2 + 0.1 * np.arange(60)]), tag="zz_system/gpu/allocated_gib", ranks=2
    )
    assert (verdict.rank, verdict.since_step, verdict.reported_step) == (1, 300, 2600)
    assert verdict.evidence == "its memory on its GPU grew from 2.3 to 4.6 GiB by step 2,600, 1.02 MiB a step"
