"""The states of a run while it continues."""

import io
import json
import re
from dataclasses import replace

import pytest

import distsummary as ds
from distsummary.cli.watch import watch
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import MissingFileError
from tests.unit.runs.states import attempt_state, lost, rank_state, status_of


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def training(tmp_path):
    """A run at its first step, and what ends it at the third look."""
    run = ds.init(tmp_path, quiet=True)
    steps = run.steps(range(3))
    next(steps)
    run.log(loss=1.0)
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            list(steps)
            run.close()

    yield tmp_path, sleep, looks
    run.close()


def test_in_a_pipe_each_change_is_a_line_and_the_end_is_the_table(training):
    path, sleep, looks = training
    out = io.StringIO()
    status = watch(path, out, every_s=1.5, sleep=sleep)
    lines = out.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d running, attempt 0: rank 0 running; step \S+", lines[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d finished, attempt 0: rank 0 finished; step 3, loss \S+", lines[1])
    assert lines[-2:] == ["The run is fine: it has finished.", f"next: tensorboard --logdir {path}"]
    assert (status.exit_code, looks) == (0, [1.5, 1.5])


def test_a_run_that_does_not_exist_yet_is_awaited(tmp_path):
    path, looks, out = tmp_path / "later", [], io.StringIO()

    def sleep(seconds):
        looks.append(seconds)
        # Its directory comes first, then its first step.
        path.mkdir(exist_ok=True)
        if len(looks) == 3:
            with ds.init(path, quiet=True) as run:
                run.log(loss=0.5)

    assert watch(path, out, every_s=1.0, sleep=sleep).run.state == "finished"
    lines = out.getvalue().splitlines()
    assert lines[0] == f"waiting for {path}, which does not exist yet; Ctrl-C ends this"
    assert len(looks) == 3
    assert "finished, attempt 0" in lines[1]
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingFileError, match="is a file"):
        watch(tmp_path / "file", out, every_s=1.0, sleep=sleep)


def test_json_is_an_object_for_each_change(training):
    path, sleep, _ = training
    out = io.StringIO()
    watch(path, out, every_s=1.0, as_json=True, sleep=sleep)
    assert [json.loads(line)["state"] for line in out.getvalue().splitlines()] == ["running", "finished"]


def test_a_screen_is_drawn_again(training):
    path, sleep, _ = training
    out = Screen()
    watch(path, out, every_s=1.0, sleep=sleep)
    assert out.getvalue().count("\x1b[H\x1b[2J") == 3
    assert "\x1b[32mfinished\x1b[0m" in out.getvalue()
    assert out.getvalue().endswith("every 1 s; Ctrl-C ends the view, not the run\n")


def watched(*found):
    """What is shown of these states, look by look."""
    states, out = iter(found), io.StringIO()
    watch("run", out, every_s=1.0, sleep=lambda seconds: None, look=lambda path: next(states))
    return [line[9:] for line in out.getvalue().splitlines()]


def at(seconds, *ranks, state="running"):
    status = status_of(attempt_state(ranks, state))
    return replace(status, now=status.now + seconds)


def test_steps_alone_are_a_line_a_minute_and_a_new_state_is_one_at_once():
    looks = [at(n, rank_state(0, step=n), rank_state(1, step=n)) for n in (1, 3, 59, 62, 64)]
    looks.append(at(66, rank_state(0, step=66), lost(1, step=65)))
    looks.append(at(68, rank_state(0, "finished", step=68), lost(1, step=65), state="lost"))
    assert watched(*looks)[:4] == [
        "running, attempt 0: ranks 0-1 running; step 1",
        "running, attempt 0: ranks 0-1 running; step 62",
        "running, attempt 0: rank 1 lost, rank 0 running; step 66",
        "lost, attempt 0: rank 0 finished, rank 1 lost; step 68",
    ]


def test_a_run_that_stands_still_is_one_line_and_ranks_behind_are_named():
    ranks = [rank_state(0, step=9000), rank_state(1, step=10)]
    lines = watched(at(0, *ranks), at(500, *ranks), at(501, lost(0), lost(1), state="lost"))
    assert lines[:2] == [
        "running, attempt 0: ranks 0-1 running; step 9,000, rank 1 behind",
        "lost, attempt 0: ranks 0-1 lost; step 120",
    ]


def test_a_run_that_is_stuck_and_continues_is_a_line_each():
    ranks = [rank_state(rank, step=9) for rank in range(2)]
    hang = Verdict(rank=1, cause="hang", since_step=9, until_step=None, evidence="", reported_step=9)
    stuck = replace(at(1, *ranks), stuck=(hang,))
    lines = watched(at(0, *ranks), stuck, at(2, *ranks), at(3, lost(0), lost(1), state="lost"))
    assert lines[:3] == [
        "running, attempt 0: ranks 0-1 running; step 9",
        "running, attempt 0: ranks 0-1 running, stuck at step 9: rank 1; step 9",
        "running, attempt 0: ranks 0-1 running; step 9",
    ]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_what_ends_it_in_a_pipe_leaves_the_whole_text(training, end):
    path, _, _ = training

    def sleep(seconds):
        raise end

    out = io.StringIO()
    with pytest.raises(end):
        watch(path, out, every_s=1.0, sleep=sleep)
    assert out.getvalue().endswith(f"next: distsummary watch {path}\n")
    out = Screen()
    with pytest.raises(end):
        watch(path, out, every_s=1.0, sleep=sleep)
    assert out.getvalue().endswith("not the run\n")
