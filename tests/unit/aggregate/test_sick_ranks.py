"""Sick ranks are named while they train, and the same afterwards, with the names from their facts.json."""

import pytest

from distsummary.diagnosis.alerts import read_alerts
from distsummary.diagnosis.check_tags import bits_tags, halves, packed, weights_of
from distsummary.format.own_tags import BATCH_TAGS, NONFINITE_TAGS
from distsummary.rundir.rank_facts import FACTS, RankFacts, read_facts, write_facts
from tests.unit.aggregate.live_ranks import Ranks, judge_files, scalar

STEPS = 60
NAMES = ["0.weight", "0.bias", "1.weight"]


@pytest.fixture
def four(tmp_path):
    ranks = Ranks(tmp_path / "run", 4)
    yield ranks
    ranks.close()


def send_facts(ranks):
    for rank in range(4):
        settings = {"seed torch": "1" if rank == 1 else "2", "local rank": str(rank)}
        directory = ranks.run_dir.writer_dir("train", rank, 4)
        write_facts(directory, 0, RankFacts(settings, NAMES, {"whole": [0, 2]}))


def reported_at(step, rank):
    """Rank 3 drifts at step 21, rank 0 and 2 have the same batches, and rank 2 a parameter that is NaN."""
    sums = weights_of(2)[1] * step
    sums[1] += rank == 3 and step >= 21
    numbers = dict(zip(bits_tags(()), packed(sums, weights_of(2)), strict=True))
    if step <= 30:
        numbers |= dict(zip(BATCH_TAGS, halves(1000 * step + rank % 2 * (1 + rank)), strict=True))
    if (step, rank) == (40, 2):
        numbers[NONFINITE_TAGS["gradient"]] = 1.0
    return scalar(step, loss=1.0, **numbers)


def expected():
    return [(1, "config", 1), (0, "shard", 1), (3, "drift", 21), (2, "nan", 40)]


@pytest.mark.parametrize("chunk", [1, 7])
def test_they_are_named_live_and_from_the_files_alike(four, chunk):
    send_facts(four)
    live = four.live()
    for step in range(1, STEPS + 1):
        for rank in range(4):
            four.write(rank, [reported_at(step, rank)])
        if step % chunk == 0:
            live.advance({0, 1, 2, 3}, float(step))
    live.close()
    verdicts = judge_files(four.run_dir)
    assert [(one.rank, one.cause, one.since_step) for one in verdicts] == expected()
    alerts = read_alerts(four.run_dir)
    assert [{k: v for k, v in one.items() if k not in ("time", "attempt")} for one in alerts] == [
        one.as_json() for one in verdicts
    ]
    assert verdicts[1].ranks == (0, 2)
    assert verdicts[2].evidence.startswith("the parameter '1.weight' differs from 3 replicas that agree")
    assert verdicts[3].evidence == "the gradient of the parameter '0.bias' is not finite"
    merged = four.offline(four.run_dir.base.parent / "copy")
    assert not [tag for _, tag in merged if tag.startswith("zz_check/")]


def test_without_facts_parameters_have_numbers_and_settings_are_not_compared(four):
    send_facts(four)
    for rank in range(4):
        (four.run_dir.writer_dir("train", rank, 4) / FACTS).write_text("damaged")
        four.write(rank, [reported_at(step, rank) for step in range(1, STEPS + 1)])
    verdicts = judge_files(four.run_dir)
    assert [(one.rank, one.cause, one.since_step) for one in verdicts] == expected()[1:]
    assert verdicts[1].evidence.startswith("the parameter number 2 differs from 3 replicas")


def test_the_settings_of_three_ranks_are_compared_if_the_fourth_reports_none(four):
    send_facts(four)
    (four.run_dir.writer_dir("train", 0, 4) / FACTS).unlink()
    for rank in range(4):
        four.write(rank, [scalar(step, loss=1.0) for step in range(1, STEPS + 1)])
    [verdict] = judge_files(four.run_dir)
    assert (verdict.rank, verdict.since_step, verdict.reported_step) == (1, 1, 1)


def test_samples_that_come_after_their_step_name_the_rank_with_more_memory(four):
    live = four.live()
    tag = "zz_system/process/memory_gib"
    for step in range(1, STEPS + 1):
        for rank in range(4):
            four.write(rank, [scalar(step, loss=1.0)])
        if step % 10 == 0:
            for rank in range(4):
                gib = 5.0 if rank == 2 and step >= 30 else 2.0
                four.write(rank, [scalar(step, **{tag: gib})])
        live.advance({0, 1, 2, 3}, float(step))
    live.close()
    [alert] = read_alerts(four.run_dir)
    assert (alert["rank"], alert["cause"], alert["since_step"], alert["reported_step"]) == (
        2, "memory", 30, 50,
    )  # fmt: skip
    [verdict] = judge_files(four.run_dir)
    assert verdict.as_json().items() <= alert.items()


def test_facts_of_several_attempts_stand_next_to_each_other(tmp_path):
    write_facts(tmp_path, 0, RankFacts({"a": "1", "b": None}, ["x"], {"whole": [0]}))
    write_facts(tmp_path, 3, RankFacts({"a": "2"}))
    assert read_facts(tmp_path, 0) == RankFacts({"a": "1", "b": None}, ["x"], {"whole": [0]})
    assert read_facts(tmp_path, 3) == RankFacts({"a": "2"}, [], {})
    assert read_facts(tmp_path, 1) is None
    for number in range(40):
        write_facts(tmp_path, number, RankFacts({}))
    assert read_facts(tmp_path, 23) is None
    assert read_facts(tmp_path, 24) is not None
