"""A run of one rank: what its files hold is judged in its own process; each fact is an alert."""

import math
import time
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import distsummary as ds
from distsummary.aggregate.alone import LoneRank
from distsummary.cli.main import main
from distsummary.collect import heartbeat
from distsummary.diagnosis.alerts import read_alerts
from distsummary.errors import DamagedFileError
from distsummary.events.overhead import Overhead, OverheadFinding
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import Batch, Event, Scalars, Value
from distsummary.format.scalar_rows import row_struct
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.deal import Heartbeat
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from tests.unit.aggregate.live_ranks import judge_files
from tests.unit.collect.doubles import Model


@pytest.fixture
def lone(tmp_path):
    """A rank that has joined its run and writes its files; `causes` ends and judges it."""

    class Lone(LoneRank):
        def __init__(self, path):
            self.run_dir = RunDir(path).create()
            super().__init__(LocalCoordinator(self.run_dir), self.run_dir)
            self.begin()

        def begin(self):
            self.place = Topology(rank=0, world_size=1)
            joined = self.register(self.place)
            self.attempt = joined.attempt
            ids = {"run_id": joined.run_id, "attempt": joined.attempt}
            self.writer = RankWriter(WriterSpec(directory=self.run_dir.base, **ids))

        def write(self, *events):
            ids = {"run_id": self.writer.spec.run_id, "attempt": self.attempt, "rank": 0}
            self.writer.write(Batch(first_seq=self.writer.last_seq + 1, events=[*events], **ids))

        def causes(self, **health):
            self.writer.close()
            self.finish(self.place, self.attempt, {"dropped": 0, **health})
            return self.alerts()

        def alerts(self):
            return [(one["cause"], one["since_step"]) for one in read_alerts(self.run_dir)]

    return Lone(tmp_path / "run")


def rows(first, **columns):
    """Packed rows of consecutive steps."""
    pack = row_struct(len(columns)).pack
    packed = (pack(0.0, first + at, *values) for at, values in enumerate(zip(*columns.values(), strict=True)))
    return Scalars(tuple(columns), b"".join(packed))


STARTED, NAN = ("started", 0), math.nan


def test_the_first_number_that_is_not_finite_is_reported_once(lone, capsys):
    lone.write(rows(1, loss=[1.0] * 5, norm=[1.0] * 5))
    lone.write(
        rows(6, loss=[1.0, 1.0, NAN, NAN], norm=[1.0, 1.0, 1.0, NAN]), rows(10, loss=[NAN], norm=[NAN])
    )
    assert lone.causes() == [STARTED, ("nan", 8), ("finished", 0)]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "distsummary: Rank 0 had the first number that is not finite, at step 8: loss is nan."
    )


def test_a_number_that_is_infinite_in_the_files_is_found(lone):
    lone.write(rows(1, loss=[1.0, 1e300]))
    assert lone.causes() == [STARTED, ("nan", 2), ("finished", 0)]


def test_a_loader_that_takes_most_of_the_time_and_memory_that_grows_are_warnings(lone, tmp_path, capsys):
    for first in range(1, 2501, 100):  # batches as they are written
        lone.write(
            rows(
                first,
                **{
                    "zz_perf/step_ms": [40.0] * 100,
                    "zz_perf/data_wait_ms": [30.0] * 100,
                    "loss": [1.0] * 100,
                },
            ),
            Event(first, 0.0, [Value("scalar", "zz_system/process/private_gib", 1.0 + first / 500)]),
        )
    assert sorted(lone.causes()) == [("finished", 0), ("growth", 301), ("loader", 21), STARTED]
    lines = capsys.readouterr().err
    assert "Rank 0 has waited for data most of the time since step 21: 75% of the time, 30 of 40 ms" in lines
    assert "Rank 0 has taken more and more memory since step 301: its memory grew from 1.6 to 5 GiB" in lines
    assert main(["status", str(tmp_path / "run")]) == 0
    assert "with 2 findings" in capsys.readouterr().out


def test_recording_that_slows_the_loop_down_is_a_warning(tmp_path, monkeypatch):
    found = [OverheadFinding(7, "16% of the time", 3.0)]
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.001)
    monkeypatch.setattr(Overhead, "look", lambda *arguments: found.pop() if found else None)
    run_dir = RunDir(tmp_path / "run")
    with ds.init(run_dir.base, quiet=True) as run:
        for _ in run.steps(range(1000)):
            run.log(loss=1.0)
            if not found:
                break
            time.sleep(0.01)
    [alert] = [one for one in read_alerts(run_dir) if one["cause"] == "overhead"]
    assert (alert["level"], alert["since_step"], alert["lost_s"]) == ("warning", 7, 3.0)
    assert main(["status", str(run_dir.base)]) == 0


def test_the_time_of_what_is_recorded_is_counted(tmp_path):
    with ds.init(tmp_path / "run", quiet=True, watch=Model(), histograms=".*", collect_freq=1) as run:
        overhead, spent = run._recorders()[0].overhead, []
        for step in run.steps(range(4)):
            if step == 1:
                run.log({f"tag{number}": 1.0 for number in range(200)})
            if step == 2:
                run.tensor("array", np.zeros(10))
            spent.append(overhead.spent_s)
    assert spent == sorted({*spent})


def test_each_heartbeat_judges_what_was_written_since_the_one_before(lone):
    beat = partial(lone.beat, lone.place, lone.attempt, Heartbeat(1, "training", 0.1, None))
    lone.write(rows(1, loss=[1.0] * 100, score=[1.0] * 100))
    beat()
    assert lone.alerts() == [STARTED]
    histogram = Value("histogram", "weights", np.arange(9.0))
    lone.write(Event(101, 0.0, [histogram, Value("scalar", "loss", NAN)]))
    beat()
    assert lone.alerts() == [STARTED, ("nan", 101)]
    lone.write(rows(102, loss=[NAN], score=[NAN]))
    assert lone.causes() == [STARTED, ("nan", 101), ("finished", 1)]


def test_what_an_earlier_attempt_recorded_is_not_judged_again(lone):
    lone.write(rows(1, loss=[1.0, NAN]))
    lone.writer.close()
    lone.begin()
    lone.write(rows(1, loss=[1.0] * 5))
    assert lone.attempt == 1
    assert lone.causes() == [STARTED, ("finished", 0)]


@pytest.mark.parametrize(
    ("health", "cause"),
    [
        ({"failed": 1, "error": "ValueError: x"}, "failed"),
        ({"interrupted": 1, "error": "KeyboardInterrupt"}, "interrupted"),
        ({}, "finished"),
    ],
)
def test_how_it_ended_and_what_it_dropped_is_reported(lone, capsys, health, cause):
    assert [one for one, _ in lone.causes(dropped=3, step=7, **health)] == ["started", "dropped", cause]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 + (cause != "finished")
    assert "3 values by step 7" in lines[0]


def test_a_disk_that_fails_ends_nothing_and_is_logged_once(lone, caplog):
    lone.run_dir.manifest_path.write_text("{")
    with suppress(DamagedFileError):  # of the rank itself, which leaves the run
        lone.causes()
    [reported] = [one for one in caplog.messages if "not judged now" in one]
    assert f"{lone.run_dir.base}: not judged now: DamagedFileError" in reported


def test_a_loop_of_its_own_has_alerts_and_why_says_the_same_from_the_files(tmp_path, capsys):
    got = []
    with ds.init(tmp_path, quiet=True, on_alert=got.append) as run:
        for step in run.steps(range(30)):
            run.log(loss=NAN if step >= 10 else 1.0)
    assert [(one["cause"], one["level"], one["since_step"]) for one in got] == [("nan", "error", 11)]
    assert [(one.cause, one.since_step) for one in judge_files(RunDir(tmp_path))] == [("nan", 11)]
    capsys.readouterr()
    assert main(["why", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("Rank 0 had the first number that is not finite, at step 11:")
    assert main(["status", str(tmp_path)]) == 1


def test_why_finds_nothing_in_a_healthy_run_of_one_rank(tmp_path, capsys):
    with ds.init(tmp_path, quiet=True) as run:
        for step in run.steps(range(3)):
            run.log(loss=float(step))
    assert (main(["why", str(tmp_path)]), main(["status", str(tmp_path)])) == (0, 0)
    assert capsys.readouterr().out.startswith("nothing was found; the run has one rank")


def test_a_collector_alone_has_alerts_too(tmp_path):
    collector = ds.SummaryCollector(str(tmp_path))
    with ds.Run(callbacks=collector) as run:
        for step in run.steps(range(30)):
            run.log(loss=NAN if step >= 10 else 1.0)
    assert [one["cause"] for one in read_alerts(RunDir(tmp_path))] == ["started", "nan", "finished"]


def test_what_the_user_reports_is_recorded_with_its_level(tmp_path, capsys):
    got = []
    with ds.init(tmp_path, quiet=True, on_alert=got.append) as run:
        run.alert("before the first step: token=needle")
        for step in run.steps(range(3)):
            run.log(loss=1.0)
            if step == 1:
                run.alert("low accuracy", "0.1 after an epoch", level="warning")
                run.alert("low accuracy", "0.1 after an epoch", level="warning")
        run.alert("diverged", level="error")
    found = [
        (one["since_step"], one["level"], one["evidence"])
        for one in read_alerts(RunDir(tmp_path))
        if one["cause"] == "message"
    ]
    assert found == [
        (0, "info", "before the first step: token=***"),
        (2, "warning", "low accuracy: 0.1 after an epoch"),
        (3, "error", "diverged"),
    ]
    assert [one["level"] for one in got] == ["warning", "error"]
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert main(["status", str(tmp_path)]) == 1
    assert "2 findings: diverged (step 3); low accuracy: 0.1" in capsys.readouterr().out
    assert main(["why", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"title": 3}, ds.errors.InvalidTypeError, "title must be"),
        ({"title": ""}, ds.errors.InvalidValueError, "title must have 1 to 200 characters, got 0"),
        ({"title": "x", "text": None}, ds.errors.InvalidTypeError, "text must be"),
        ({"title": "x", "level": "fatal"}, ds.errors.InvalidValueError, "level must be one of"),
    ],
)
def test_a_wrong_alert_is_refused(tmp_path, given, error, words):
    with ds.init(tmp_path, quiet=True) as run:
        run.log(loss=1.0)
        with pytest.raises(error, match=words):
            run.alert(**given)
    with pytest.raises(ds.errors.ClosedError):
        run.alert("late")


def test_without_a_recorder_an_alert_is_counted():
    with ds.Run() as run:
        run.alert("no one records it")
        assert run.health().dropped == {"alert": 1}


def test_checkpoints_that_are_not_saved_are_one_alert(tmp_path):
    got = []
    checkpoint = ds.ModelCheckpoint(lambda params: "a/b", tmp_path / "ckpt", ds.CheckpointConfig(5))
    with ds.init(
        tmp_path / "run", quiet=True, watch=Model(), callbacks=checkpoint, on_alert=got.append
    ) as run:
        for _ in run.steps(range(10)):
            run.log(loss=1.0)
    assert checkpoint.failures == 2
    [alert] = got
    assert (alert["cause"], alert["level"], alert["since_step"]) == ("unsaved", "error", 5)
    assert alert["text"].startswith("distsummary: Rank 0 did not save a checkpoint at step 5: ")
    assert main(["status", str(tmp_path / "run")]) == 1


def test_a_trajectory_that_is_not_saved_is_one_alert(tmp_path, capsys):
    run_dir, plan = RunDir(tmp_path / "run"), {"unit": "step", "intervals": [[2, 4, 6]]}
    record = ds.Record(collect_landscape=plan)
    with ds.init(run_dir.base, quiet=True, watch=Model(), record=record) as run:
        run_dir.ckpt_dir.write_text("no directory")
        for _ in run.steps(range(10)):
            run.log(loss=1.0)
    found = [one for one in read_alerts(run_dir) if one["cause"] == "unsaved"]
    assert [(one["level"], one["since_step"]) for one in found] == [("error", 2)]
    assert "did not save a checkpoint at step 2: checkpoint of step 2 of the tra" in capsys.readouterr().err
    assert main(["status", str(run_dir.base)]) == 1


def test_a_nan_is_reported_in_one_line(tmp_path, capsys, caplog):
    with ds.init(tmp_path / "run", quiet=True) as run:
        for step in run.steps(range(10)):
            run.log(loss=NAN if step > 4 else 1.0)
    assert run.health().errors == {"'loss' is nan at step 6 on rank 0": 5}
    [line] = [*caplog.messages, *capsys.readouterr().err.splitlines()]
    assert line.startswith("distsummary: Rank 0 had the first number that is not finite, at step 6: ")
