"""A disk that is full, really, by a small file system of its own; and a limit of the file size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.events.segments import segments
from distsummary.format.records import MINDSPORE
from tests.programs import run_program, run_python

PROGRAM = """
import contextlib, json, os, sys
from pathlib import Path
import numpy as np
import distsummary as ds
from distsummary.errors import WriteError
from distsummary.events import async_writer
from distsummary.rundir.rank_manifest import ranks_of
from distsummary.rundir.run_dir import RunDir

place = Path(sys.argv[1])

@contextlib.contextmanager
def full():
    with open(place / "filler", "wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))
        filler.truncate(filler.tell() - 8192)  # some room is left for what is small
        yield
    os.unlink(place / "filler")

def record_scalars(record, first):
    for step in range(first, first + 300):
        record.scalars(step, {f"value{n}": step for n in range(10)})

found = {}
record = ds.SummaryRecord(place / "record")
record_scalars(record, 0)
found["before"] = record.flush()
with full():
    record_scalars(record, 300)
    found["full"] = [record.flush(), record.flush()]
    found["health"] = [record.health().dropped, list(record.health().errors)]
found["free"] = [record.flush(), record.health().dropped]
record.close()

record = ds.SummaryRecord(place / "raises", raise_exception=True)
with full():
    record_scalars(record, 0)
    try:
        found["raised"] = record.flush()
    except WriteError as error:
        found["raised"] = str(error)
record.close()

async_writer.CLOSE_S = 3.0  # for the close of the run, which 20 s would not help
with full():
    run = ds.init(place / "run")
    for step in run.steps(range(300)):
        run.log({f"value{n}": float(step) for n in range(10)})
    run.close()
run_dir = RunDir(place / "run")
[found["rank"]] = ranks_of(run_dir, run_dir.read_manifest()["attempts"][0]).values()
from distsummary.events.reader import read_directory
found["steps"] = [event.step for event in read_directory(place / "record")]
print(json.dumps(found))
"""
MOUNT = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
CAUSE = "OSError: [Errno 28] No space left on device: '{}'; free some space"
LIMITED = """
import resource, sys
import distsummary as ds

sys.dont_write_bytecode = True  # a module's would be cut off, for all processes after
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
with ds.init(sys.argv[1], system_metrics=False) as run:
    for step in run.steps(range(300)):
        run.log({f"value{n}": float(step) for n in range(10)})
"""


def may_mount(place: Path) -> bool:
    command = ["unshare", "-rm", "sh", "-c", MOUNT, str(place), "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_under_a_limit_of_the_file_size_a_run_is_spread_over_files(tmp_path: Path):
    place = tmp_path / "run"
    run_python("-c", LIMITED, place)
    run = ds.open_run(place)
    assert (run.state, len(run.scalars("value9"))) == ("finished", 300)
    assert max(path.stat().st_size for path in place.iterdir()) <= 20_000
    assert len(segments(place, MINDSPORE)) > 3


def test_a_full_disk_costs_nothing_while_events_fit_into_memory_and_is_reported(tmp_path: Path):
    if not may_mount(tmp_path):
        pytest.skip("this system does not let a user mount a file system of his own")
    program = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = run_program("unshare", "-rm", "sh", "-c", MOUNT, tmp_path, *program)
    found = json.loads(done.stdout)
    cause = CAUSE.format(tmp_path / "record")
    assert found["before"]
    assert found["full"] == [False, False]
    assert found["health"] == [{}, [cause, f"flush returned before everything was written: {cause}"]]
    assert found["free"] == [True, {}]
    assert found["steps"] == list(range(600))
    assert f"could not be flushed: {CAUSE.format(tmp_path / 'raises')}" in found["raised"]
    assert found["rank"]["state"] == "incomplete"
    assert CAUSE.format(tmp_path / "run") in found["rank"]["health"]["missing"]
    assert done.stderr.count(cause) == 2  # once each
