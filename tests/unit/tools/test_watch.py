"""The states of a run while it goes on."""

import io
import json
import re

import pytest

import distsummary as ds
from distsummary.tools.watch import watch


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
    assert re.fullmatch(r"\d\d:\d\d:\d\d running, attempt 0, step \S+, ranks: 1 running", lines[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d finished, attempt 0, step 3, ranks: 1 finished", lines[1])
    assert lines[-2:] == ["The run is fine: it has finished.", f"next: tensorboard --logdir {path}"]
    assert (status.exit_code, looks) == (0, [1.5, 1.5])


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
    assert out.getvalue().endswith(f"next: tensorboard --logdir {path}\n")
