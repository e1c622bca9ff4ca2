"""What a process leaves that is killed while it replaces a file goes with the next one of the directory."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distsummary.base.publish import is_in_use, temporary_name
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.cli.fsck import fsck
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import Batch, Event, Value
from distsummary.rundir.run_dir import RunDir
from tests.programs import run_python

RUN = "00ff00ff00ff00ff"

REPLACE = """
import sys
from pathlib import Path
from distsummary.base.publish import replacing
with replacing(Path(sys.argv[1]) / "file") as temporary:
    temporary.write_bytes(b"half")
    print(temporary.name, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def replacer(nasty_tmp_path):
    """A process that waits in the middle of replacing a file."""
    command = [sys.executable, "-c", REPLACE, str(nasty_tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.temporary = nasty_tmp_path / process.stdout.readline().strip()
        yield process
        process.kill()


def kill(process) -> Path:
    """Kill it, and leave it a zombie: no one has asked for its exit status yet."""
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process.temporary


def open_run(directory: Path) -> None:
    RunDir(directory).create()


def open_writer(directory: Path) -> None:
    RankWriter(WriterSpec(directory=directory, run_id=RUN)).close()


def save_checkpoint(directory: Path) -> None:
    spec = LandscapeSpec(intervals=((1, 2, 3),))
    TrajectoryWriter(directory, spec, model_name="m", run_id=RUN).save(1, {"w": np.ones(2, np.float32)})


@pytest.mark.parametrize("opens", [open_run, open_writer, save_checkpoint])
def test_what_a_killed_process_left_goes_with_the_next_one(replacer, opens):
    directory = replacer.temporary.parent
    opens(directory)
    assert replacer.temporary.read_bytes() == b"half"  # it lives
    kill(replacer)
    opens(directory)
    assert not list(directory.glob(".tmp-*"))
    assert not (directory / "file").exists()


def test_fsck_reports_what_is_in_use_from_what_is_left(replacer):
    directory = replacer.temporary.parent
    batch = Batch(
        run_id=RUN, attempt=0, rank=0, first_seq=1, events=[Event(1, 1.0, [Value("scalar", "a", 1.0)])]
    )
    writer = RankWriter(WriterSpec(directory=directory, run_id=RUN))
    writer.write(batch)
    writer.close()
    foreign = directory / ".tmp-foreign"
    foreign.mkdir()

    def notes():
        return {one.file: one.message for one in fsck(directory).findings if one.kind == "temporary"}

    assert "at work" in notes()[replacer.temporary]
    assert "another machine" in notes()[foreign]
    kill(replacer)
    assert "ended before" in notes()[replacer.temporary]
    assert fsck(directory, repair=True).exit_code == 0
    assert replacer.temporary.exists()  # fsck removes nothing


def test_a_name_is_that_of_the_process_that_asks_after_a_fork_too(nasty_tmp_path):
    code = """if True:
        import os, sys
        from pathlib import Path
        from distsummary.base.publish import is_in_use, temporary_name
        parents = temporary_name(Path("."))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, temporary_name(Path(".")).name.encode())
            os._exit(0)
        os.waitpid(child, 0)
        childs = Path(os.read(read, 1000).decode())
        print(is_in_use(parents), is_in_use(childs))
    """
    done = run_python("-W", "ignore", "-c", code)
    assert done.stdout.split() == ["True", "False"]
    assert is_in_use(temporary_name(nasty_tmp_path))
