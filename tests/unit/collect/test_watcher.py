"""When a step is late, and what is written of it."""

import json
import logging
import stat
from pathlib import Path

import pytest

from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.collect import watcher as watcher_module
from distsummary.collect.looks import Look
from distsummary.collect.watcher import OUTSIDE, UNKNOWN_S, LoopPlace, LoopTimes, Watcher


def paced(*seconds: float) -> tuple[LoopTimes, float]:
    """A pace that has seen a step end after each of these times, and the time then."""
    pace, now = LoopTimes(LoopPlace(0, "forward"), 0.0), 0.0
    for step, took in enumerate(seconds, 1):
        now += took
        assert pace.look(LoopPlace(step, "forward"), now)
    return pace, now


def test_no_step_is_late_before_the_length_of_a_step_is_known() -> None:
    assert paced()[0].limit_s("forward") == UNKNOWN_S
    assert paced(90.0)[0].limit_s("forward") == UNKNOWN_S  # the first one may compile


def test_many_steps_between_two_looks_report_a_limit_though_the_start_is_among_them() -> None:
    pace = LoopTimes(LoopPlace(0, OUTSIDE), 0.0)
    pace.look(LoopPlace(19, "forward"), 0.5)
    assert pace.limit_s("forward") == UNKNOWN_S
    pace.look(LoopPlace(30, "evaluation"), 1.0)
    pace.look(LoopPlace(55, "forward"), 2.5)
    assert pace.limit_s("forward") == 1.0
    pace = LoopTimes(LoopPlace(1000, OUTSIDE), 0.0)  # a run that is resumed
    pace.look(LoopPlace(1020, "forward"), 60.0)
    assert pace.limit_s("forward") == 9.0
    pace.look(LoopPlace(1021, "forward"), 60.5)
    pace.look(LoopPlace(1022, "forward"), 61.0)
    assert pace.limit_s("forward") == 1.5


def test_a_step_is_late_after_three_medians_and_at_least_a_second() -> None:
    assert paced(90.0, *[0.02] * 10)[0].limit_s("forward") == 1.0
    assert paced(90.0, *[600.0] * 3)[0].limit_s("forward") == 1800.0
    assert paced(9.0, *[2.0] * 18, 40.0)[0].limit_s("forward") == 6.0


def test_a_rank_reports_where_it_is_before_a_step_is_late() -> None:
    assert paced()[0].report_after_s() == 1.0
    assert paced(9.0, *[2.0] * 4)[0].report_after_s() == 4.0


def test_of_steps_of_different_lengths_the_long_ones_are_not_late() -> None:
    assert paced(1.0, *[0.5] * 27, *[4.0] * 3)[0].limit_s("forward") == 6.0


def test_looks_that_see_many_steps_count_each() -> None:
    pace = LoopTimes(LoopPlace(0, "forward"), 0.0)
    for step in range(0, 2000, 100):
        pace.look(LoopPlace(step, "forward"), 1.0 * step)
    assert pace.limit_s("forward") == 3.0


def test_progress() -> None:
    pace, now = paced(1.0, 1.0)
    assert not pace.look(LoopPlace(2, "backward"), now + 0.5)
    assert pace.since == now
    assert pace.look(LoopPlace(3, "data"), now + 1.0)


def test_a_look_that_comes_late_counts_a_second() -> None:
    """A thread that finds no processor for long, or a machine that sleeps, is no step that is late."""
    pace, now = paced(1.0, 1.0)
    for passed, late in ((0.5, 0.5), (0.5, 1.0), (7.0, 2.0), (0.5, 2.5)):
        now += passed
        assert not pace.look(LoopPlace(2, "forward"), now)
        assert pace.late_s == late
    assert pace.look(LoopPlace(3, "forward"), now + 0.5)
    assert pace.late_s == 0.0


def test_an_evaluation_has_a_limit_of_its_own_and_is_no_part_of_a_step() -> None:
    pace, now = paced(*[0.1] * 30)
    assert pace.limit_s("evaluation") == UNKNOWN_S
    assert pace.look(LoopPlace(30, "evaluation"), now)
    assert pace.look(LoopPlace(30, "data"), now + 50.0)
    assert pace.since == now + 50.0
    assert pace.limit_s("evaluation") == 150.0
    assert pace.limit_s("forward") == 1.0
    assert pace.limit_s(OUTSIDE) == UNKNOWN_S


def watcher_of(directory: Path) -> Watcher:
    failures = Failures(Health(), logging.getLogger(__name__))
    return Watcher(directory, rank=1, groups=lambda is_broken: ("", ()), failures=failures)


def test_a_start_that_takes_long_is_reported_until_the_training_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_module, "LEAST_S", 0.0)
    watcher, path = watcher_of(tmp_path / "rank_00001"), tmp_path / "rank_00001" / "stuck.json"
    watcher.await_begin(0)
    watcher.look(Look())
    assert not path.parent.exists()  # a start takes its time
    monkeypatch.setattr(watcher_module, "START_REPORT_S", 0.0)
    watcher.look(Look())
    found = json.loads(path.read_text())
    assert [found["step"], found["phase"], "test_watcher.py" in found["line"]] == [1, "start", True]
    watcher.abandon()
    assert not path.exists()
    path.write_text("of the training")
    watcher.abandon()  # as when the run is released
    assert path.exists()


def test_the_line_of_a_long_step_is_remembered_unless_it_waits_for_others(tmp_path: Path) -> None:
    place = [LoopPlace(3, "rest")]
    watcher = watcher_of(tmp_path)
    watcher.begin(0, lambda: place[0])
    for step, phase in (
        (3, "rest"),
        (3, "rest"),
        (4, "wait"),
        (5, OUTSIDE),
        *((n, "data") for n in range(6, 40)),
    ):
        place[0] = LoopPlace(step, phase)
        watcher._write_report(Look(), 0.0)
    watcher.stop()
    assert len(watcher.seen) == 16
    step, phase, line = watcher.seen[-1]
    assert (step, phase) == (40, "data")  # waiting for data, the next step has begun
    assert "test_watcher.py" in line
    assert 4 not in {one.step for one in watcher.seen}


def test_no_secret_of_a_source_line_is_written(tmp_path: Path) -> None:
    watcher = watcher_of(tmp_path)
    watcher.begin(0, lambda: LoopPlace(3, "forward"))
    with pytest.raises(ZeroDivisionError) as caught:
        _call("https://api.example/x?access_token=needle1", password="needle2", at=1 / 0)
    watcher.stop(caught.value)
    text = (tmp_path / "stuck.json").read_text()
    assert stat.S_IMODE((tmp_path / "stuck.json").stat().st_mode) == 0o600
    assert "needle" not in text
    line = next(line for line in json.loads(text)["stack"] if "_call" in line)
    assert line.endswith('_call("***", password="***", at=1 / 0)')


def _call(url: str, *, password: str, at: float) -> None:
    raise AssertionError((url, password, at))
