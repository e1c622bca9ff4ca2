"""Healthy trainings whose ranks do not all do the same: what is said of them, and what is not."""

import random
from collections.abc import Iterator, Sequence

import pytest

from distsummary.diagnosis.check_tags import bits_tags
from tests.unit.aggregate.uneven_ranks import Step, judged, verdicts


def epochs_of(lengths: Sequence[Sequence[int]], *, odd: int | None = None) -> Iterator[Step]:
    """Ranks whose epochs have these lengths (epoch, rank), and equal weights at equal steps of an epoch.

    `odd`: a rank that has other weights from the third epoch on.
    """
    for rank in range(len(lengths[0])):
        step = 0
        for epoch, of_ranks in enumerate(lengths, 1):
            for place in range(1, of_ranks[rank] + 1):
                step += 1
                sums = [1000.0 * epoch + place + (rank == odd and epoch > 2), 2.0, 3.0]
                values = dict(zip(bits_tags(()), sums, strict=True))
                yield rank, step, values | ({"zz_check/epoch": float(epoch)} if place == 1 else {})


@pytest.mark.parametrize("window", [1, 7, 1000])
@pytest.mark.parametrize(
    ("lengths", "said", "since"),
    [
        ([(50, 50)] * 3, "", 101),
        ([(50, 60)] * 3, "From step 61 on, ranks are compared at equal places in their epochs", 101),
        ([(50, 60, 70)] * 3, "From step 71 on", 121),
        ([(60, 60, 50, 60)] * 4, "From step 61 on", 121),
        ([(50, 60), (60, 50), (40, 40)], "From step 61 on", 111),
        ([(1, 2)] * 90, "From step 3 on", 3),
    ],
)
def test_steps_are_compared_at_equal_places_of_epochs_and_it_is_said(tmp_path, lengths, said, since, window):
    ranks = len(lengths[0])
    judging = judged(tmp_path, ranks, epochs_of(lengths), window=window)
    assert verdicts(judging) == []
    assert said in judging.apart
    assert bool(judging.apart) == bool(said)
    [found] = verdicts(judged(tmp_path, ranks, epochs_of(lengths, odd=1), window=window))
    assert (found.cause, found.rank, found.since_step) == ("drift", int(ranks > 2), since)


@pytest.mark.parametrize("window", [1, 50])
def test_stalls_in_later_epochs_of_other_lengths_are_seen_and_cost_what_they_took(tmp_path, window):
    """Rank 1, whose epochs are longer, stalls at step 30 of its own and each 40th one after it."""

    def steps():
        for rank, length in enumerate((40, 52)):
            for step in range(1, 4 * length + 1):
                epoch, place = divmod(step - 1, length)
                # The other one waits at the same place of the epoch.
                is_stall = (epoch * 52 + place + 1 - 30) % 40 == 0
                stall = 1500.0 * is_stall
                own = 8.0 + stall * (rank == 1)
                yield (
                    rank,
                    step,
                    {
                        "zz_perf/own_ms": own,
                        "zz_perf/wait_ms": stall * (rank == 0) * (place < 40),
                        "zz_perf/phase/forward/cpu_ms": 4.0,
                        "zz_perf/phase/backward/cpu_ms": 4.0,
                        "zz_perf/phase/backward/blocked_ms": own - 8.0,
                    }
                    | ({"zz_check/epoch": epoch + 1.0} if place == 0 else {}),
                )

    judging = judged(tmp_path, 2, steps(), window=window)
    [found] = verdicts(judging)
    assert (found.rank, found.cause, found.since_step) == (1, "backward", 30)
    assert found.lost_s == pytest.approx(1.5 * 4, rel=0.01)


def waits_of(step: int, waiting: Sequence[float], idle: Sequence[float]) -> Iterator[Step]:
    """A step of 100 ms of ranks that wait for data and have workers that are idle (ms)."""
    for rank, (data, rest) in enumerate(zip(waiting, idle, strict=True)):
        yield (
            rank,
            step,
            {
                "zz_perf/step_ms": 100.0, "zz_perf/data_wait_ms": data, "zz_perf/own_ms": data + 5.0,
                "zz_perf/wait_ms": 95.0 - data, "zz_perf/phase/data/blocked_ms": data,
                "zz_perf/phase/forward/cpu_ms": 5.0, "zz_perf/phase/data/idle_ms": rest,
            },
        )  # fmt: skip


@pytest.mark.parametrize(
    ("waiting", "idle", "found"),
    [
        # all loaders are as slow: rank 0 waits for its own, the others wait for rank 0
        ((90.0, 0.5, 0.5), (2.0, 5.0, 4.0), [("loader", 0, (0, 1, 2))]),
        ((90.0, 0.5), (2.0, 5.0), [("loader", 0, (0, 1))]),
        # that of rank 0 is as quick as it should be, and the others' are slow
        ((0.5, 90.0, 0.5), (90.0, 1.0, 3.0), [("loader", 1, (1, 2))]),
        # those of the others could go faster
        ((90.0, 0.5, 0.5), (2.0, 80.0, 75.0), [("data", 0, ())]),
        ((90.0, 0.5), (2.0, 80.0), [("data", 0, ())]),
    ],
)
def test_a_rank_is_blamed_for_data_only_if_its_peers_could_go_faster(tmp_path, waiting, idle, found):
    steps = [row for step in range(1, 301) for row in waits_of(step, waiting, idle)]
    said = [(one.cause, one.rank, one.ranks) for one in verdicts(judged(tmp_path, len(waiting), steps))]
    assert said == found


def lengths_of(step: int, longest: int, ranks: int) -> Iterator[Step]:
    """A step in which one rank computes for 150 ms and the others, who wait for it, for 50 ms."""
    for rank in range(ranks):
        own = 150.0 if rank == longest else 50.0
        yield (
            rank,
            step,
            {
                "zz_perf/own_ms": own,
                "zz_perf/wait_ms": 150.0 - own,
                "zz_perf/phase/forward/cpu_ms": own / 2,
                "zz_perf/phase/backward/cpu_ms": own / 2,
            },
        )


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_steps_that_are_longest_on_each_rank_in_turns_are_uneven_and_no_rank_is_slow(tmp_path, ranks):
    steps = [row for step in range(1, 301) for row in lengths_of(step, step * 7 % ranks, ranks)]
    [found] = verdicts(judged(tmp_path, ranks, steps))
    assert (found.cause, found.level, found.ranks) == ("uneven", "info", tuple(range(ranks)))
    assert found.lost_s == pytest.approx(300 * 0.1 * (ranks - 1) / ranks, rel=0.05)
    assert "in turns" in found.evidence


def hosts_of(step: int, ranks: int, *, factors: tuple[float, float] = (1.0, 1.0), queue: float = 1.0):
    """A step of ranks of which the last one computes longer (model, optimizer) or waits for a processor."""
    rng = random.Random(step)
    of_rank = {}
    for rank in range(ranks):
        is_last = rank == ranks - 1
        model, optimizer = factors if is_last else (1.0, 1.0)
        noise = rng.uniform(0.9, 1.1)
        of_rank[rank] = [
            5 * noise * model, 8 * noise * model, 3 * noise * optimizer, 4 * noise * (queue if is_last else 1)
        ]  # fmt: skip
    longest = max(map(sum, of_rank.values()))
    for rank, (forward, backward, optimizer, queued) in of_rank.items():
        own = forward + backward + optimizer
        yield (
            rank,
            step,
            {
                "zz_perf/own_ms": own, "zz_perf/wait_ms": longest - own - queued,
                "zz_perf/phase/forward/cpu_ms": forward, "zz_perf/phase/backward/cpu_ms": backward,
                "zz_perf/phase/optimizer/cpu_ms": optimizer, "zz_perf/phase/backward/queue_ms": queued,
            },
        )  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("fields", "cause", "words"),
    [
        ({}, None, ""),
        ({"factors": (1.4, 1.4)}, "host", "its processor is slower"),
        ({"factors": (1.4, 1.0)}, "backward", "above all in backward and forward"),
        ({"queue": 5.0}, "host", "ms a step for a processor, its peers"),
        ({"queue": 1.5}, None, ""),
        ({"factors": (1.05, 1.05)}, None, ""),
    ],
)
def test_a_slower_or_starved_host_is_named_after_two_windows(tmp_path, ranks, fields, cause, words):
    steps = [row for step in range(1, 700) for row in hosts_of(step, ranks, **(fields if step > 300 else {}))]
    found = verdicts(judged(tmp_path, ranks, steps, window=100))
    assert [(one.rank, one.cause) for one in found] == [(ranks - 1, cause)] * (cause is not None)
    assert all(words in one.evidence and 250 <= one.since_step <= 430 for one in found)


@pytest.mark.parametrize(("more_ms", "level"), [(5.0, "info"), (40.0, "warning")])
def test_a_slow_rank_that_cost_little_is_an_info(tmp_path, more_ms, level):
    def row(rank, step):
        more = more_ms if rank == 1 and 200 < step <= 230 else 0.0
        times = {f"zz_perf/phase/{name}/cpu_ms": 4.0 for name in ("forward", "backward", "optimizer")}
        times["zz_perf/phase/forward/cpu_ms"] += more
        return rank, step, times | {"zz_perf/own_ms": 12 + more, "zz_perf/wait_ms": more_ms * (rank == 0)}

    steps = [row(rank, step) for step in range(1, 300) for rank in (0, 1)]
    [found] = verdicts(judged(tmp_path, 2, steps))
    assert (found.rank, found.cause, found.level) == (1, "forward", level)
