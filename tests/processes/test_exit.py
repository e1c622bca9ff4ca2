"""Processes that end without closing their run, and forked children that end before their parents."""

import subprocess
import sys

import pytest

from distsummary.reading.reader import read_directory, read_lineage
from distsummary.run_dir import RunDir

LOOP = """
import sys
from distsummary.collect.collector import SummaryCollector
from distsummary.training.run import Run

run = Run(callbacks=SummaryCollector(sys.argv[1]))
for number in run.steps([1, 2]):
    run.log(loss=0.5)
    if number == 2:
        raise SystemExit(1 / int(sys.argv[2]))
"""


@pytest.mark.parametrize(("divisor", "events", "is_complete"), [("1", 5, True), ("0", 4, False)])
def test_a_run_that_nobody_closes_is_closed_at_the_exit_of_the_process(
    tmp_path, divisor, events, is_complete
):
    subprocess.run([sys.executable, "-c", LOOP, str(tmp_path), divisor], capture_output=True, check=False)
    [rank] = RunDir(tmp_path).read_manifest()["attempts"][0]["ranks"].values()
    assert rank["state"] == ("finished" if is_complete else "failed")
    assert (rank["health"]["events"], "failed" in rank["health"]) == (events, not is_complete)
    assert read_lineage(tmp_path).train.algorithm.HasField("loss") == is_complete


FORK = """
import os, sys
from distsummary.collect.collector import SummaryCollector
from distsummary.run_dir import RunDir
from distsummary.training.run import Run

def state():
    [rank] = RunDir(sys.argv[1]).read_manifest()["attempts"][0]["ranks"].values()
    return rank["state"]

with Run(callbacks=SummaryCollector(sys.argv[1])) as run:
    for number in run.steps([1, 2]):
        run.log(loss=0.5)
        if number == 1:
            child = os.fork()
            if child == 0:
                sys.exit(0)  # leaves the with block, and runs the exit handlers
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert state() == "running", state()
assert state() == "finished", state()
"""


def test_a_forked_child_that_ends_does_not_end_its_parents_run(tmp_path):
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path)], check=True, timeout=60)
    assert [event.step for event in read_directory(tmp_path)] == [1, 2]
