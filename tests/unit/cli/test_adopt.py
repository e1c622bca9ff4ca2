"""Ranks that wrote to `PREFIX + str(rank)`: moved into PREFIX, and refused unless they are of one job."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import distsummary as ds
from distsummary import Run, SummaryCollector, SummaryRecord, Topology, merge_run
from distsummary.base.columns import quoted
from distsummary.cli.adopt import adopt
from distsummary.cli.fsck import fsck
from distsummary.cli.main import main
from distsummary.errors import MissingFileError, RunDirError
from distsummary.events.reader import read_directory, read_lineage
from distsummary.format.records import DIALECTS
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.status import read_status
from tests.conftest import ROOT

MINDSPORES = ROOT / "tests" / "golden" / "ms" / "mlp_train_eval" / "summary"


def record(prefix, rank, steps=3):
    with SummaryRecord(f"{prefix}{rank}") as record:
        for step in range(1, steps + 1):
            record.add_value("scalar", "loss", float(10 * rank + step))
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
@pytest.mark.parametrize(("write", "state"), [(record, "unknown"), (train, "finished")])
def test_the_ranks_are_one_run_by_their_numbers(nasty_tmp_path, write, state, name):
    prefix = f"{nasty_tmp_path}/{name}"
    for rank in (1, 0):
        write(prefix, rank)
    assert adopt(prefix).ranks == (0, 1)
    run = ds.open_run(prefix)
    assert (tuple(run.ranks), run.state) == ((0, 1), state)
    assert run.scalars("loss", rank=1)["value"].tolist() == [11.0, 12.0, 13.0]
    for _ in range(2):  # again, when there is a merged run
        report = merge_run(prefix)
        assert (report.ranks, report.missing_ranks, report.steps) == ((0, 1), (), 3)
    for dialect in DIALECTS:
        assert points(prefix, "loss", dialect) == [(1, 6.0), (2, 7.0), (3, 8.0)]
        assert points(prefix, "zz_ranks/loss/argmax_rank", dialect) == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert fsck(prefix).exit_code == 0
    assert read_status(prefix).run.state == state
    problems = ds.open_run(prefix).problems
    assert [line.partition(", ")[0] for line in problems] == (
        [f"rank {rank}: its state was made from event files" for rank in (0, 1)] if state == "unknown" else []
    )


def test_ranks_that_know_their_own_directory_write_into_it_and_are_adopted(nasty_tmp_path):
    prefix = nasty_tmp_path / "summary_dir"

    def train_apart(rank):
        place = Topology(rank=rank, world_size=2, incarnation="host:1+0")
        collector = SummaryCollector(f"{prefix}{rank}", collect_freq=1)
        before = Run(callbacks=[SummaryCollector(f"{prefix}{rank}")], topology=place)
        with before, before.eval() as evaluation:
            evaluation.log(accuracy=0.5 + 0.25 * rank)
        with Run(callbacks=[collector], topology=place) as run:
            for step in run.steps(range(1, 4)):
                run.log(loss=float(10 * rank + step))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train_apart, range(2)))
    for rank in range(2):
        own = ds.open_run(f"{prefix}{rank}")
        assert (own.state, own.world_size) == ("finished", 1)
        assert points(own.path, "loss") == [(step, 10.0 * rank + step) for step in (1, 2, 3)]
        assert read_lineage(own.path).train.hyper_parameters.device_num == 2
        assert not list(own.path.glob("rank_*"))
    assert adopt(prefix) == (prefix, (0, 1), ())
    run = ds.open_run(prefix)
    assert (tuple(run.ranks), run.state, run.world_size) == ((0, 1), "finished", 2)
    assert merge_run(prefix).missing_ranks == ()
    assert points(prefix, "loss") == [(1, 6.0), (2, 7.0), (3, 8.0)]
    assert json.loads(read_lineage(prefix).evaluation.metric) == {"accuracy": 0.625}
    assert fsck(prefix).exit_code == 0


def test_a_rank_without_a_directory_is_missing(nasty_tmp_path):
    prefix = nasty_tmp_path / "summary_dir"
    for rank in (0, 2):
        train(prefix, rank, world_size=3)
    adopt(prefix)
    assert merge_run(prefix).missing_ranks == (1,)
    assert read_status(prefix).run.newest.missing == (1,)


def test_of_a_restarted_job_the_newest_attempt_counts(nasty_tmp_path):
    prefix = nasty_tmp_path / "summary_dir"
    for rank in range(2):
        train(prefix, rank)
        train(prefix, rank, incarnation="host:2+0")
    adopt(prefix)
    assert merge_run(prefix).attempts == (0, 1)
    assert points(prefix, "loss") == [(1, 6.0), (2, 7.0), (3, 8.0)]


def test_what_mindspore_wrote_is_adopted_with_its_lineage(nasty_tmp_path):
    for rank in range(2):
        shutil.copytree(MINDSPORES, nasty_tmp_path / f"summary_dir{rank}")
    own = points(nasty_tmp_path / "summary_dir0", "loss/auto")  # it records the last step of an epoch twice
    adopt(nasty_tmp_path / "summary_dir")
    report = merge_run(nasty_tmp_path / "summary_dir")
    assert report.ranks == (0, 1)
    assert points(report.path, "loss/auto") == sorted({*own})
    assert read_lineage(report.path).train.hyper_parameters.device_num == 2


@pytest.mark.parametrize("read", [ds.open_run, read_status, merge_run])
def test_a_reader_of_a_path_that_only_ranks_have_names_the_command(nasty_tmp_path, read):
    for rank in range(2):
        record(nasty_tmp_path / "rec", rank)
    with pytest.raises(MissingFileError, match=r"such as .*rec0, first: distsummary adopt '.*rec'$"):
        read(nasty_tmp_path / "rec")


def test_an_interrupted_adoption_continues(nasty_tmp_path):
    prefix = nasty_tmp_path / "summary_dir"
    for rank in range(2):
        train(prefix, rank)
    prefix.mkdir()
    (nasty_tmp_path / "summary_dir0" / "rank_00000").rename(prefix / "rank_00000")
    assert adopt(prefix).ranks == (0, 1)
    assert read_status(prefix).run.state == "finished"


def test_the_command_names_the_next_one_and_what_is_left(nasty_tmp_path, capsys):
    prefix = nasty_tmp_path / "summary_dir"
    for rank in range(2):
        train(prefix, rank)
    assert main(["adopt", str(prefix)]) == 0
    first, *left = capsys.readouterr().out.splitlines()
    assert first == f"{prefix}: ranks 0-1; next: distsummary merge {quoted(prefix)}"
    assert [line.split(" is of that rank")[0] for line in left] == [
        f"  what is left in {prefix}{rank}" for rank in range(2)
    ]
    assert json.loads((prefix / "run.json").read_text())["state"] == "finished"
    assert main(["adopt", str(prefix), "--json"]) == 1
    assert "is a run itself" in capsys.readouterr().err


def other_world(prefix):
    train(prefix, 0)
    train(prefix, 1, world_size=3)


def other_start(prefix):
    train(prefix, 0)
    train(prefix, 1, incarnation="elsewhere:2+0")


def other_kind(prefix):
    train(prefix, 0)
    record(prefix, 1)


def other_rank(prefix):
    record(prefix, 0)
    train(f"{prefix}2/x", 0)
    shutil.move(f"{prefix}2/x0/rank_00000", f"{prefix}2/rank_00000")


def whole_runs(prefix):
    for rank in range(2):
        with Run(callbacks=[SummaryCollector(f"{prefix}{rank}")]) as run:
            list(run.steps(range(2)))


@pytest.mark.parametrize(
    ("mix", "said"),
    [
        (other_world, "run0 has world_size 2 and .*run1 3 for attempt 0"),
        (other_start, "run0 has incarnation 'host:1.0' and .*run1 'elsewhere:2.0'"),
        (other_kind, "run1 has no rank directory, but .*run0 has"),
        (other_rank, "run2 holds a run of its own"),
        (whole_runs, "run0 holds a run of its own"),
    ],
)
def test_directories_of_different_jobs_are_refused_by_what_differs(nasty_tmp_path, mix, said):
    prefix = nasty_tmp_path / "run"
    mix(prefix)
    with pytest.raises(RunDirError, match=f"are not the ranks of one job: .*{said}.*move those"):
        adopt(prefix)
    assert not prefix.exists()


def test_ranks_that_are_written_are_left_where_they_are(nasty_tmp_path):
    prefix = nasty_tmp_path / "rec"
    record(prefix, 0)
    with SummaryRecord(f"{prefix}1") as live:
        live.add_value("scalar", "loss", 1.0)
        live.record(1)
        live.flush()
        with pytest.raises(RunDirError, match=r"a writer is at work in .*rec1"):
            adopt(prefix)
    assert adopt(prefix).ranks == (0, 1)


def test_a_path_without_any_is_named(nasty_tmp_path):
    (nasty_tmp_path / "exp7").mkdir()
    with pytest.raises(MissingFileError, match="exp<number> holds the files of a rank"):
        adopt(nasty_tmp_path / "exp")
