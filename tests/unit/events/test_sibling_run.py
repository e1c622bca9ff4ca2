"""Ranks that wrote to `PREFIX + str(rank)`: merged into PREFIX, and refused unless they are of one job."""

import json
import os
import re
import shutil

import pytest

import distsummary as ds
from distsummary import Run, SummaryCollector, SummaryRecord, Topology, merge_run
from distsummary.cli.fsck import fsck
from distsummary.cli.main import main
from distsummary.errors import MissingFileError, RunDirError
from distsummary.events.reader import read_directory, read_lineage
from distsummary.events.sibling_run import sibling_run
from distsummary.format.records import DIALECTS
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.status import read_status
from tests.conftest import ROOT

MINDSPORES = ROOT / "tests" / "golden" / "ms" / "mlp_train_eval" / "summary"


def record(prefix, rank, steps=3):
    with SummaryRecord(f"{prefix}{rank}") as record:
        for step in range(1, steps + 1):
            record.add_value("scalar", "loss", float(10 * (rank or 0) + step))
            record.record(step)


def train(prefix, rank, world_size=2, incarnation="host:1+0"):
    """What a rank writes in a training that was given `prefix + str(rank)`."""
    place = Topology(rank=rank, world_size=world_size, incarnation=incarnation)
    directory = RunDir(f"{prefix}{rank}").create()
    coordinator = LocalCoordinator(directory)
    collector = SummaryCollector(directory.base, topology=place, coordinator=coordinator)
    with Run(callbacks=[collector], topology=place) as run:
        for step in run.steps(range(1, 4)):
            run.log(loss=float(10 * rank + step))


def points(directory, tag, dialect="mindspore"):
    events = read_directory(directory, dialect)
    return [(event.step, value.data) for event in events for value in event.values if value.tag == tag]


@pytest.mark.parametrize("name", ["summary_dir", "runs/"])
@pytest.mark.parametrize("write", [record, train])
def test_the_ranks_are_merged_into_one_run_by_their_numbers(nasty_tmp_path, write, name):
    prefix = f"{nasty_tmp_path}/{name}"
    for rank in (1, 0):
        write(prefix, rank)
    for _ in range(2):  # again, when there is a merged run
        report = merge_run(prefix)
        assert (report.ranks, report.missing_ranks, report.steps) == ((0, 1), (), 3)
    for dialect in DIALECTS:
        assert points(prefix, "loss", dialect) == [(1, 6.0), (2, 7.0), (3, 8.0)]
        assert points(prefix, "loss/argmax_rank", dialect) == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert fsck(prefix).findings == ()


def test_files_of_another_writer_get_no_files_of_mindspore_next_to_them(nasty_tmp_path):
    for rank in range(2):
        with SummaryRecord(f"{nasty_tmp_path}/{rank}", formats=["tensorboard"]) as record:
            for step in range(1, 4):
                record.add_value("scalar", "train/loss", float(rank + step))
                record.record(step)
    for _ in range(2):
        assert merge_run(f"{nasty_tmp_path}/").steps == 3
        assert points(nasty_tmp_path, "train/loss", "tensorboard") == [(1, 1.5), (2, 2.5), (3, 3.5)]
        assert [path.name for path in nasty_tmp_path.rglob("*_MS")] == []
        assert [path.name for path in nasty_tmp_path.rglob("*_lineage")] == []
    table = ds.open_run(nasty_tmp_path).scalars("train/loss", rank="merged")
    assert table["value"].tolist() == [1.5, 2.5, 3.5]
    assert fsck(nasty_tmp_path).findings == ()


def test_ranks_that_hide_their_host_are_merged_without_it(nasty_tmp_path):
    prefix = f"{nasty_tmp_path}/summary_dir"
    for rank in range(2):
        place = Topology(rank=rank, world_size=2, incarnation="host:1+0")
        collector = SummaryCollector(f"{prefix}{rank}", topology=place, record=ds.Record(identity=False),
                                     coordinator=LocalCoordinator(RunDir(f"{prefix}{rank}")))  # fmt: skip
        with Run(callbacks=[collector], topology=place) as run:
            for step in run.steps(range(1, 4)):
                run.log(loss=float(10 * rank + step))
    assert merge_run(prefix).ranks == (0, 1)
    assert RunDir(prefix).read_manifest()["identity"] is False
    assert {path.name.count(".host-") for path in nasty_tmp_path.rglob("events.*")} == {1}


def test_status_knows_the_ranks_before_and_after_the_merge(nasty_tmp_path):
    prefix = nasty_tmp_path / "summary_dir"
    for rank in range(2):
        train(prefix, rank)
    for _ in range(2):
        status = read_status(prefix)
        assert (status.run.state, [rank.rank for rank in status.run.newest.ranks]) == ("finished", [0, 1])
        assert status.exit_code == 0
        assert fsck(prefix).exit_code == 0
        merge_run(prefix)
    assert json.loads((prefix / "run.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(("write", "state"), [(record, "unknown"), (train, "finished")])
def test_open_run_reads_the_ranks_before_and_after_the_merge(nasty_tmp_path, write, state):
    prefix = nasty_tmp_path / "summary_dir"
    for rank in range(2):
        write(prefix, rank)
    for is_merged in (False, True):
        run = ds.open_run(prefix)
        assert (tuple(run.ranks), run.state) == ((0, 1), state)
        unmerged = [f"not merged: distsummary merge {run.path}"] if state == "finished" else []
        assert run.problems == ([] if is_merged else unmerged)
        found = run.scalars("loss", rank=1)
        assert found["value"].tolist() == [11.0, 12.0, 13.0]
        assert is_merged or not prefix.exists()  # reading makes no directory
        merge_run(prefix)
    assert run.scalars("loss", rank="merged")["value"].tolist() == [6.0, 7.0, 8.0]


def test_status_of_one_of_them_names_the_others(nasty_tmp_path, capsys):
    for rank in range(2):
        train(nasty_tmp_path / "summary_dir", rank)
    assert main(["status", str(nasty_tmp_path / "summary_dir1")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\n0 +missing .* in a directory of its own\n", said)
    assert "This rank is fine: it has finished." in said
    last = " ".join(line.strip() for line in said.splitlines())
    assert "has only rank 1 of a job whose ranks have 2 directories" in last
    assert last.endswith(f"distsummary merge {nasty_tmp_path}/summary_dir")


def test_a_rank_without_a_directory_is_missing(nasty_tmp_path):
    prefix = nasty_tmp_path / "summary_dir"
    for rank in (0, 2):
        train(prefix, rank, world_size=3)
    assert merge_run(prefix).missing_ranks == (1,)
    assert read_status(prefix).run.newest.missing == (1,)


def test_of_a_restarted_job_the_newest_attempt_counts(nasty_tmp_path):
    prefix = nasty_tmp_path / "summary_dir"
    for rank in range(2):
        train(prefix, rank)
        train(prefix, rank, incarnation="host:2+0")
    assert merge_run(prefix).attempts == (0, 1)
    assert points(prefix, "loss") == [(1, 6.0), (2, 7.0), (3, 8.0)]


def test_what_mindspore_wrote_is_merged_with_its_lineage(nasty_tmp_path):
    for rank in range(2):
        shutil.copytree(MINDSPORES, nasty_tmp_path / f"summary_dir{rank}")
    report = merge_run(nasty_tmp_path / "summary_dir")
    assert report.ranks == (0, 1)
    own = points(nasty_tmp_path / "summary_dir0", "loss/auto")  # it records the last step of an epoch twice
    assert points(report.path, "loss/auto") == sorted({*own})
    assert read_lineage(report.path).train.hyper_parameters.device_num == 2


def test_later_records_are_in_the_next_merge_and_read_as_begun_with_the_first(nasty_tmp_path):
    prefix = nasty_tmp_path / "rec"
    for rank in range(2):
        record(prefix, rank)
    merge_run(prefix)
    created = json.loads((prefix / "run.json").read_text())["created"]
    for rank in range(2):
        record(prefix, rank, steps=5)
    assert merge_run(prefix).steps == 5
    assert json.loads((prefix / "run.json").read_text())["created"] == created


def test_who_merges_one_of_them_is_reported_of_the_others(nasty_tmp_path, caplog):
    prefix = nasty_tmp_path / "rec"
    for rank in range(3):
        record(prefix, rank)
    merge_run(f"{prefix}1")
    [message] = [record.getMessage() for record in caplog.records]
    assert "has only rank 1 of a job whose ranks have 3 directories rec<rank>" in message
    assert message.endswith(f"distsummary merge {RunDir(prefix).base}")


def test_a_run_next_to_others_with_numbers_is_left_alone(nasty_tmp_path, caplog):
    for name in ("exp", "exp0", "exp1"):
        with Run(callbacks=[SummaryCollector(nasty_tmp_path / name)]) as run:
            for step in run.steps(range(2)):
                run.log(loss=float(step))
    assert sibling_run(nasty_tmp_path / "exp") is None
    assert "nothing has to be merged" in merge_run(nasty_tmp_path / "exp").note
    assert "nothing has to be merged" in merge_run(nasty_tmp_path / "exp1").note
    assert fsck(nasty_tmp_path / "exp").directories == 1
    assert not caplog.records


def test_a_directory_with_event_files_of_its_own_is_no_prefix(nasty_tmp_path):
    for name in ("logs", "logs/0", "logs/1"):
        record(nasty_tmp_path / name, "")
    assert sibling_run(nasty_tmp_path / "logs") is None
    assert ds.open_run(nasty_tmp_path / "logs").ranks.keys() == {0}


def other_world(prefix):
    train(prefix, 0)
    train(prefix, 1, world_size=3)


def other_start(prefix):
    train(prefix, 0)
    train(prefix, 1, incarnation="elsewhere:2+0")


def other_kind(prefix):
    train(prefix, 0)
    record(prefix, 1)


def whole_run(prefix):
    record(prefix, 0)
    record(prefix, 1)
    train(f"{prefix}2/x", 0)
    shutil.move(f"{prefix}2/x0/rank_00000", f"{prefix}2/rank_00000")
    shutil.move(f"{prefix}2/x0/run.json", f"{prefix}2/run.json")


def other_time(prefix):
    for rank in range(2):
        record(prefix, rank)
    for path in [*RunDir(f"{prefix}1").base.iterdir()]:
        stamp = next(part for part in path.name.split(".") if part.isdigit())
        os.rename(path, path.with_name(path.name.replace(stamp, str(int(stamp) + 3600))))


@pytest.mark.parametrize(
    ("mix", "said"),
    [
        (other_world, "run0 has world_size 2 and .*run1 3 for attempt 0"),
        (other_start, "run0 has incarnation 'host:1.0' and .*run1 'elsewhere:2.0'"),
        (other_kind, "run0 has a rank directory; .*run1 has event files, but no rank directory"),
        (whole_run, "run2 is the directory of rank 0"),
        (other_time, "run1 begins 3[56].. s after .*run0 has ended"),
    ],
)
def test_directories_of_different_jobs_are_refused_by_what_differs(nasty_tmp_path, mix, said):
    prefix = nasty_tmp_path / "run"
    mix(prefix)
    with pytest.raises(RunDirError, match=f"are not the ranks of one job: .*{said}.*move those"):
        merge_run(prefix)
    assert not prefix.exists()


def test_a_path_without_any_is_no_run(nasty_tmp_path):
    record(nasty_tmp_path / "exp", 7)
    with pytest.raises(MissingFileError, match="PREFIX0, PREFIX1"):
        merge_run(nasty_tmp_path / "exp")


def test_plain_directories_report_no_states_and_status_says_what_to_do(nasty_tmp_path, capsys):
    for rank in range(2):
        record(nasty_tmp_path / "rec", rank)
    assert main(["status", str(nasty_tmp_path / "rec")]) == 2
    assert "2 directories of ranks without states" in capsys.readouterr().err
