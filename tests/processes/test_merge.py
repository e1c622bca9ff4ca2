"""A merge that is killed."""

import subprocess
import sys

from tests.unit.aggregate.test_merge import Run, names, scalar

KILLED = """
import os, sys
from distsummary.aggregate.merge import merge_run
from distsummary.writing.files import Files

class Killed(Files):
    def sync(self, descriptor):
        os._exit(9)

merge_run(sys.argv[1], files=Killed())
"""


def test_a_killed_merge_leaves_nothing_that_a_reader_takes_for_an_event_file(nasty_tmp_path):
    run = Run(nasty_tmp_path / "run")
    run.write(0, [scalar(1, loss=1.0)])
    run.merge()
    run.write(1, [scalar(1, loss=3.0)])
    before = names(run.run_dir.base)
    assert subprocess.run([sys.executable, "-c", KILLED, str(run.run_dir.base)]).returncode == 9
    (left,) = set(names(run.run_dir.base)) - set(before)
    assert left.startswith(".tmp-")
    inner = names(run.run_dir.base / left)
    assert inner == ["mindspore", "tensorboard"]
    assert not any("summary." in name or "tfevents" in name for name in inner)
    assert run.points("loss") == [(1, 1.0)]
    run.merge()
    assert run.points("loss") == [(1, 2.0)]
    assert not (run.run_dir.base / left).exists()
