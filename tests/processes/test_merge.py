"""A merge that is killed, and one on a disk that is full."""

from tests.programs import run_python
from tests.unit.aggregate.test_merge import Run, names, scalar

KILLED = """
import os, sys
from distsummary.aggregate.merge import merge_run
from distsummary.events.files import Files

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
    run_python("-c", KILLED, run.run_dir.base, code=9)
    (left,) = set(names(run.run_dir.base)) - set(before)
    assert left.startswith(".tmp-")
    inner = names(run.run_dir.base / left)
    assert inner == ["mindspore", "tensorboard"]
    assert not any("summary." in name or "tfevents" in name for name in inner)
    assert run.points("loss") == [(1, 1.0)]
    run.merge()
    assert run.points("loss") == [(1, 2.0)]
    assert not (run.run_dir.base / left).exists()


FULL = """
import resource, sys
from distsummary.cli.main import main

sys.dont_write_bytecode = True  # a module's would be cut off, for all processes after
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(main(["merge", sys.argv[1]]))
"""


def test_on_a_full_disk_the_merged_run_stays_and_the_error_says_what_to_free(nasty_tmp_path):
    run = Run(nasty_tmp_path / "run")
    run.write(0, [scalar(step, loss=1.0) for step in range(10)])
    run.merge()
    run.write(0, [scalar(step, loss=1.0) for step in range(10, 500)])
    before = names(run.run_dir.base)
    done = run_python("-c", FULL, run.run_dir.base, code=1)
    assert "cannot take the merged run (File too large)" in done.stderr
    assert "Free some space" in done.stderr
    assert "Traceback" not in done.stderr
    assert names(run.run_dir.base) == before
    assert len(run.points("loss")) == 10
    run.merge()
    assert len(run.points("loss")) == 500
