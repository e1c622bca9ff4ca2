"""The norms of ranks in the merged run: the same while they train and afterwards."""

import logging
import shutil

import numpy as np
import pytest

from distsummary import merge_run
from distsummary.aggregate.merged_files import is_merged
from distsummary.cli.main import main
from distsummary.events.reader import read_directory
from distsummary.format.norms import ParameterNorms, ParameterTable
from distsummary.format.own_tags import NORMS_TAG
from distsummary.format.records import DIALECTS, MINDSPORE, NORMS, TENSORBOARD, Event, Value
from tests.unit.aggregate.live_ranks import Ranks

NAN = float("nan")
NAMES = ("sharded", "whole", "bias")
RANKS = 4


def part(step, rank, *, gradient=1.0, names=NAMES):
    """Of a parameter of 8 elements that is split evenly, and two that each rank has; one is not updated."""
    n = len(names)
    split = np.array([name == "sharded" for name in names])
    table = ParameterTable(
        names,
        ((8,),) * n,
        tuple(2 if one else 8 for one in split),
        tuple(2 * rank if one else 0 for one in split),
    )
    is_updated = np.array([name != "bias" for name in names])
    sums = np.where(split, rank + 1.0, 16.0)
    zeros = np.zeros(n, np.int64)
    return Value(
        NORMS,
        NORMS_TAG,
        ParameterNorms(
            table, sums, sums * gradient**2, np.ones(n, np.bool_), zeros, zeros,
            np.where(is_updated, sums / 4, NAN), np.where(is_updated, np.float32(rank), np.float32(NAN)),
        ),
    )  # fmt: skip


def event(step, rank, **more):
    return Event(step, 100.0 + step, [Value("scalar", "loss", float(rank)), part(step, rank, **more)])


@pytest.fixture
def ranks(tmp_path):
    made = Ranks(tmp_path / "run", RANKS)
    yield made
    made.close()


def merged(directory, dialect=MINDSPORE, attempt=None):
    """Step -> the norms as plain numbers, and the scalars of the merged run by tag."""
    found, scalars = {}, {}
    for one in read_directory(directory, dialect):
        if is_merged(one.file) and attempt in (None, one.attempt):
            for value in one.values:
                if value.plugin == NORMS:
                    columns = {name: column.tolist() for name, column in value.data.columns.items()}
                    found[one.step] = repr((value.data.table, columns))
                elif value.tag.startswith("zz_norms/"):
                    scalars.setdefault(value.tag, []).append((one.step, value.data))
    return found, scalars


def norms_at(directory, step):
    [found] = [
        value.data
        for one in read_directory(directory)
        if is_merged(one.file) and one.step == step
        for value in one.values
        if value.plugin == NORMS
    ]
    return found


def test_parts_add_up_and_copies_count_once(ranks):
    for rank in range(RANKS):
        ranks.write(rank, [event(step, rank) for step in (1, 2)])
    ranks.close()
    report = merge_run(ranks.run_dir.base)
    assert (report.short_norms, report.sharded, report.refused) == (0, 0, ())
    one = norms_at(ranks.run_dir.base, 2)
    assert one.table == ParameterTable(NAMES, ((8,),) * 3, (8, 8, 8), (0, 0, 0))
    assert one.weight_sums.tolist() == [1.0 + 2 + 3 + 4, 16.0, 16.0]
    np.testing.assert_equal(one.update_sums, [2.5, 4.0, NAN])
    np.testing.assert_equal(one.update_max, [3.0, 0.0, NAN])
    expected = {"zz_norms/gradient": 42**0.5, "zz_norms/weight": 42**0.5}
    for dialect in (MINDSPORE, TENSORBOARD):
        _, scalars = merged(ranks.run_dir.base, dialect)
        assert scalars == {
            tag: [(step, pytest.approx(number)) for step in (1, 2)] for tag, number in expected.items()
        }


def train(ranks, steps, live=None, first=1):
    """Each rank writes step after step; an adapter comes late."""
    for step in range(first, steps + 1):
        for rank in range(RANKS):
            names = (*NAMES, "lora") if step > 32 else NAMES
            ranks.write(rank, [event(step, rank, gradient=1.0 + 0.01 * (step % 3), names=names)])
        if live is not None and step % 7 == 0:
            live.advance(range(RANKS), float(step))


@pytest.mark.parametrize("formats", [DIALECTS, (TENSORBOARD,)])
def test_live_and_afterwards_are_the_same(tmp_path, formats):
    ranks = Ranks(tmp_path / "run", RANKS, formats=formats)
    live = ranks.live()
    train(ranks, 60, live)
    report = live.close()
    assert (report.is_exact, report.short_norms, report.sharded) == (True, 0, 0)
    ranks.close()
    ranks.offline(tmp_path / "offline")
    for dialect in (MINDSPORE, TENSORBOARD):
        there = merged(ranks.run_dir.base, dialect)
        assert there == merged(tmp_path / "offline", dialect)
        assert len(there[1]["zz_norms/gradient"]) == 60
    assert len(merged(ranks.run_dir.base)[0]) == 60


def test_live_is_the_same_from_files_alone_and_after_a_restart(ranks, tmp_path):
    live = ranks.live()
    train(ranks, 50)
    live.advance(range(RANKS), 0.0)
    live.abandon()
    assert len(merged(ranks.run_dir.base)[0]) > 0
    again = ranks.live()
    train(ranks, 60, again, first=51)
    report = again.close()
    assert (report.late, report.is_continued) == (0, True)
    ranks.offline(tmp_path / "offline")
    assert merged(ranks.run_dir.base) == merged(tmp_path / "offline")


def test_without_the_norms_of_a_rank_a_parameter_that_is_split_has_none_and_that_is_said(
    ranks, caplog, capsys
):
    for rank in range(RANKS):
        ranks.write(rank, [event(step, rank) for step in (range(1, 4) if rank != 2 else range(1, 2))])
    ranks.close()
    with caplog.at_level(logging.WARNING):
        report = merge_run(ranks.run_dir.base)
    assert report.short_norms == 2
    assert "of 'sharded', ranks 0, 1, 3 hold 6 of 8 elements" in caplog.text
    assert caplog.text.count("NaN in the merged run") == 1
    assert main(["merge", str(ranks.run_dir.base)]) == 0
    assert "norms of parameters that are NaN, as parts are missing: 2\n" in capsys.readouterr().out
    one = norms_at(ranks.run_dir.base, 2)
    np.testing.assert_equal(one.weight_sums, [NAN, 16.0, 16.0])
    np.testing.assert_equal(one.gradient_sums, [NAN, 16.0, 16.0])
    np.testing.assert_equal(one.update_sums, [NAN, 4.0, NAN])
    assert one.weight_nonfinite.tolist() == [0, 0, 0]
    _, scalars = merged(ranks.run_dir.base)
    assert {tag: [step for step, _ in points] for tag, points in scalars.items()} == {
        "zz_norms/gradient": [1], "zz_norms/weight": [1]
    }  # fmt: skip


def test_what_an_attempt_repeats_counts(tmp_path):
    for attempt, (first, last) in enumerate([(1, 30), (21, 50)]):
        ranks = Ranks(tmp_path / "run", RANKS, attempt=attempt)
        live = ranks.live()
        train(ranks, last, live, first=first)
        live.close()
        ranks.close()
    live_scalars = merged(tmp_path / "run", attempt=1)[1]
    shutil.copytree(tmp_path / "run", tmp_path / "offline")
    merge_run(tmp_path / "offline")
    numbers, scalars = merged(tmp_path / "offline")
    assert sorted(numbers) == [*range(1, 51)]
    assert {
        tag: [point for point in points if point[0] > 20] for tag, points in scalars.items()
    } == live_scalars


def test_copies_of_one_part_are_not_taken_for_all_parts(tmp_path):
    ranks = Ranks(tmp_path / "run", 2 * RANKS)  # 0 to 3 hold the parts, and so do 4 to 7
    for rank in (0, 4, 1, 5):
        value = part(1, rank % RANKS)
        ranks.write(rank, [Event(1, 1.0, [value])])
    ranks.close()
    report = merge_run(ranks.run_dir.base)
    assert report.short_norms == 1
    assert np.isnan(norms_at(ranks.run_dir.base, 1).weight_sums).tolist() == [True, False, False]
    assert np.isnan(norms_at(ranks.run_dir.base, 1).update_sums).tolist() == [True, False, True]
