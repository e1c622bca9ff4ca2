"""SameBatches, MemoryImbalance, different_settings: what ranks should have, or not have, in common."""

import numpy as np
import pytest

from distsummary.diagnosis.check_tags import halves
from distsummary.diagnosis.memory import MemoryImbalance
from distsummary.diagnosis.settings import different_settings
from distsummary.diagnosis.shard import SameBatches
from distsummary.diagnosis.verdict import Verdict
from distsummary.format.own_tags import BATCH_TAGS
from distsummary.rundir.rank_facts import RankFacts


def batches(digests: dict[int, list[int]], mesh: dict[int, dict[str, int]] | None = None) -> list[Verdict]:
    """`digests`: rank -> of its steps 1, 2, ..."""
    rows = [
        (part, rank, step, number)
        for rank, found in digests.items()
        for step, digest in enumerate(found, 1)
        for part, number in enumerate(halves(digest))
    ]
    same = SameBatches(lambda rank: (mesh or {}).get(rank, {}))
    columns = zip(*rows, strict=True)
    return same.add(BATCH_TAGS, *[np.array(column) for column in columns])


def own(ranks: int, steps: int = 30) -> dict[int, list[int]]:
    generator = np.random.default_rng(ranks)
    return {rank: generator.integers(0, 2**48, steps).tolist() for rank in range(ranks)}


@pytest.mark.parametrize("sick", [1, 3])
def test_ranks_with_the_same_batches_are_named_in_one_verdict(sick: int) -> None:
    digests = own(4)
    digests[sick] = digests[0][:]
    [verdict] = batches(digests)
    assert (verdict.rank, verdict.cause, verdict.since_step, verdict.reported_step) == (0, "shard", 1, 2)
    assert verdict.ranks == (0, sick)
    assert verdict.evidence.startswith("at steps 1 and 2, for example; give each rank")


def test_if_all_ranks_see_the_same_data_there_is_one_verdict() -> None:
    [first] = own(1).values()
    [verdict] = batches(dict.fromkeys(range(4), first))
    assert (verdict.rank, verdict.ranks) == (0, (0, 1, 2, 3))


def test_a_verdict_grows_when_another_rank_is_found() -> None:
    digests = own(3)
    digests[1] = digests[0][:]
    digests[2] = digests[2][:10] + digests[0][10:]
    same, found = SameBatches(lambda rank: {}), []
    for step in range(1, 31):
        rows = [
            (part, rank, n) for rank in range(3) for part, n in enumerate(halves(digests[rank][step - 1]))
        ]
        which, ranks, values = (np.array(column) for column in zip(*rows, strict=True))
        found += same.add(BATCH_TAGS, which, ranks, np.full(len(rows), step), values)
    assert [(one.rank, one.since_step, one.ranks) for one in found] == [(0, 1, (0, 1)), (0, 1, (0, 1, 2))]


def test_shards_that_overlap_are_found_at_other_steps() -> None:
    digests = own(4)
    digests[3] = digests[1][10:] + digests[3][:10]
    [verdict] = batches(digests)
    assert (verdict.rank, verdict.since_step, verdict.reported_step) == (1, 11, 14)
    assert verdict.ranks == (1, 3)
    assert "steps 1 and 2 of rank 3 are steps 11 and 12 of rank 1, for example" in verdict.evidence


def test_what_is_no_fault_of_the_data() -> None:
    assert batches(own(8)) == []
    assert batches({rank: [7] * 30 for rank in range(4)}) == []  # constant
    warm = own(4)
    assert batches({rank: [5, *found] for rank, found in warm.items()}) == []  # one batch to warm up
    shared = own(2)
    peers = {rank: shared[rank // 2] for rank in range(4)}
    mesh = {rank: {"dp": rank // 2, "tp": rank % 2} for rank in range(4)}
    assert batches(peers, mesh) == []
    assert [one.ranks for one in batches(peers)] == [(0, 1), (2, 3)]
    assert batches(peers, {rank: {"pp": rank} for rank in range(4)}) == []


def memory(samples: list[tuple[int, int, float]]) -> list[Verdict]:
    steps, ranks, values = (np.array(column) for column in zip(*samples, strict=True))
    return MemoryImbalance().add(["zz_system/process/memory_gib"], np.zeros_like(ranks), ranks, steps, values)


def test_a_rank_that_takes_more_memory_for_three_samples_is_named_once() -> None:
    usual = [(step, rank, 3.0 + 0.1 * rank) for step in range(10, 100, 10) for rank in range(4)]
    assert memory(usual) == []
    [verdict] = memory([(s, r, 5.5 if r == 2 and s >= 40 else v) for s, r, v in usual])
    assert (verdict.rank, verdict.cause, verdict.since_step, verdict.reported_step) == (2, "memory", 40, 60)
    assert memory([(s, r, 5.5 if r == 2 and s in (40, 50, 70) else v) for s, r, v in usual]) == []
    small = [(s, r, (v + (0.9 if r == 2 else 0)) / 3) for s, r, v in usual]  # less than a GiB more
    assert memory(small) == []


def test_one_rank_alone_and_one_that_starts_late_are_no_alarm() -> None:
    assert memory([(step, 0, 8.0) for step in range(10, 100, 10)]) == []
    late = [(step, rank, 3.0) for step in range(10, 100, 10) for rank in range(4) if rank < 3 or step > 50]
    assert memory(late) == []
    two = [(step, rank, 3.0 + 2.5 * rank) for step in range(10, 50, 10) for rank in range(2)]
    assert [one.rank for one in memory(two)] == [1]  # less is no fault
    assert batches(own(1)) == []
    assert settings("config lr", "0.1") == []
    digests = own(4)
    digests[3] = digests[3][20:]
    assert batches(digests) == []


def settings(name: str, *values: str | None) -> list[Verdict]:
    return different_settings({rank: RankFacts({name: value}) for rank, value in enumerate(values)}, 1)


@pytest.mark.parametrize(
    ("name", "sick"),
    [("config lr", 0), ("seed torch", 3), ("version torch", 1), ("environment OMP_NUM_THREADS", 2)],
)
def test_the_rank_that_differs_from_a_majority_is_named(name: str, sick: int) -> None:
    [verdict] = settings(name, *("0.2" if rank == sick else "0.1" for rank in range(4)))
    assert (verdict.rank, verdict.cause, verdict.since_step) == (sick, "config", 1)
    assert verdict.evidence == f"{name} is 0.2 on rank {sick}, 0.1 on 3 others"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("seed torch", ("1", "2", "3", "4")),  # each rank its own
        ("seed torch", ("1337", "1338")),  # of two ranks: seed + rank, seed + 100 * rank, seed * (rank + 1)
        ("seed torch", ("42", "84")),
        ("seed torch", ("3605718223", "7")),  # drawn at random
        ("seed python", ("state 0a1b2c3d", "state 00112233")),
        ("seed torch", ("1", "1", "2", "2")),  # those of two nodes, or of tensor parallel ranks
        ("seed numpy", ("7", None, "7", "7")),  # drawn already
        ("config local_rank", ("0", "1", "1", "1")),
        ("config device", ("'cuda:0'", "'cuda:1'")),
        ("config log", ("'log-0.txt'", "'log-1.txt'")),
        ("config is_writing", ("True", "False", "False", "False")),  # only the first rank does
        ("config lr", ("0.1", "0.1", "0.1", "0.1")),
    ],
)
def test_settings_that_differ_by_design(name: str, values: tuple[str | None, ...]) -> None:
    assert settings(name, *values) == []


def test_of_two_ranks_with_other_settings_both_are_named_but_one_without_it_of_four() -> None:
    assert [one.rank for one in settings("config lr", "0.1", None, "0.1", "0.1")] == [1]
    [verdict] = settings("seed torch", "0", "42")
    assert (verdict.rank, verdict.ranks) == (0, (0, 1))
    assert verdict.evidence == "seed torch is 0 on rank 0, 42 on rank 1"


def on_hosts(name: str, *values: str, hosts: str = "0011") -> list[Verdict]:
    facts = {
        rank: RankFacts({name: value, "host": f"node-{host}", "local rank": str(rank % 2)})
        for rank, (value, host) in enumerate(zip(values, hosts, strict=True))
    }
    return different_settings(facts, 1)


@pytest.mark.parametrize("name", ["config lr", "version cuda", "environment NCCL_ALGO"])
def test_two_halves_of_the_hosts_with_other_settings_are_reported_as_two_sets(name: str) -> None:
    [verdict] = on_hosts(name, "0.1", "0.1", "0.2", "0.2")
    assert (verdict.rank, verdict.ranks) == (0, (0, 1, 2, 3))
    assert verdict.evidence == f"{name} is 0.1 on node-0 (ranks 0 and 1), 0.2 on node-1 (ranks 2 and 3)"


@pytest.mark.parametrize(
    ("name", "values", "hosts"),
    [
        ("config lr", ("0.1", "0.2", "0.1", "0.2"), "0011"),  # not by host, as of groups of ranks
        ("config lr", ("0.1", "0.1", "0.2", "0.2"), "0000"),
        ("config lr", ("0.1", "0.1", "0.2", "0.3"), "0011"),
        ("seed torch", ("1", "1", "2", "2"), "0011"),
        ("config pipeline stage", ("0", "0", "1", "1"), "0011"),
        ("config cache", ("/data/node-0", "/data/node-0", "/data/node-1", "/data/node-1"), "0011"),
        ("environment MASTER_PORT", ("1", "1", "2", "2"), "0011"),
    ],
)
def test_halves_that_differ_by_design(name: str, values: tuple[str, ...], hosts: str) -> None:
    assert on_hosts(name, *values, hosts=hosts) == []


def test_ranks_that_differ_in_the_same_way_are_one_verdict() -> None:
    one, two = settings("config lr", "0.1", "0.1", "0.2", "0.2", "0.3", *["0.1"] * 6)
    assert (one.rank, one.ranks) == (2, (2, 3))
    assert one.evidence == "config lr is 0.2 on rank 2, 0.1 on 8 others"
    assert (two.rank, two.ranks) == (4, ())


def test_the_verdict_names_three_settings_and_counts_the_others() -> None:
    reported = {rank: {f"config {name}": "1" if rank == 2 else "0" for name in "abcde"} for rank in range(4)}
    [verdict] = different_settings({rank: RankFacts(settings) for rank, settings in reported.items()}, 5)
    assert verdict.evidence.endswith("; and 2 more settings")
    assert verdict.since_step == 5
