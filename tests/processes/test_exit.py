"""Processes that end without closing their run, and forked children that end before their parents."""

import pytest

from distsummary.events.index import is_index
from distsummary.events.reader import read_directory
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import read_run
from distsummary.runs.recorded_run import open_run
from tests.manifests import whole_manifest
from tests.programs import run_python

BEFORE_A_STEP = """
import sys, threading
import numpy as np
import distsummary as ds

# As in Python 3.12, which starts no thread once the main thread has ended.
start = threading.Thread.start
def start_while_main_runs(thread):
    if not threading.main_thread().is_alive():
        raise RuntimeError("can't create new thread at interpreter shutdown")
    start(thread)

if sys.argv[3] == "no threads":
    threading.Thread.start = start_while_main_runs

def begun():
    return ds.init(sys.argv[1], quiet=True, system_metrics=False)

def of_function():
    begun().log(acc=0.5)

run = begun()
exec(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("given", "plugin", "state"),
    [
        ("run.log(acc=0.5)", "scalar", "finished"),
        ("run.text('note', 'hello')", "text", "finished"),
        ("[run.image(f'i{i}', np.zeros((4, 4), 'uint8')) for i in range(3)]", "image", "finished"),
        ("run.histogram('h', np.arange(4.0))", "histogram", "finished"),
        ("run.audio('a', np.zeros(9), 8000)", "audio", "finished"),
        ("threading.Thread(target=run.log, kwargs={'acc': 0.5}).start()", "scalar", "finished"),
        ("run.log(acc=0.5); del run", "scalar", "finished"),
        ("del run; of_function()", "scalar", "finished"),
        ("run.log(acc=0.5); sys.exit(3)", "scalar", "finished"),
        ("run.log(acc=0.5); raise ValueError('no')", "scalar", "failed"),
        ("run.log(acc=0.5); raise KeyboardInterrupt", "scalar", "interrupted"),
        ("with run: run.log(acc=0.5); raise ValueError('no')", "scalar", "failed"),
        ("run.alert('look', level='warning')", "alert", "finished"),
    ],
)
def test_what_was_given_before_any_step_is_recorded_when_the_process_ends(tmp_path, given, plugin, state):
    run_python("-c", BEFORE_A_STEP, tmp_path, given, "threads", code=None)
    recorded = open_run(tmp_path)
    assert recorded.state == state
    found = [verdict.cause for verdict in recorded.verdicts] if plugin == "alert" else recorded.tags[plugin]
    assert len(found) == (3 if plugin == "image" else 1)


@pytest.mark.parametrize("given", ["run.log(acc=0.5)", "with run.eval() as one: one.log(acc=0.5)"])
def test_a_run_begins_at_the_exit_although_the_interpreter_starts_no_threads(tmp_path, given):
    done = run_python("-c", BEFORE_A_STEP, tmp_path, given, "no threads")
    assert "thread" not in done.stderr
    place = tmp_path / "eval" if "eval" in given else tmp_path
    assert "acc" in {tag.rsplit("/")[-1] for tag in open_run(place).scalars()["tag"]}


LONG = """
import sys
import distsummary as ds

run = ds.init(sys.argv[1], quiet=True)
for step in run.steps(range(300)):
    run.log({f"metric/{number}": 0.5 for number in range(40)})
    if step == 299:
        sys.exit()
"""


def test_what_the_end_of_a_run_uses_first_is_loaded_at_the_exit_of_the_process(tmp_path):
    done = run_python("-c", LONG, tmp_path)
    assert done.stderr == ""
    assert any(is_index(path.name) for path in tmp_path.iterdir())  # the file is long enough


STOPPED = """
import os, signal, sys
import distsummary as ds

def asked(number, frame):
    sys.exit(1)

signal.signal(signal.SIGTERM, asked)
signal.signal(signal.SIGINT, signal.default_int_handler)
token = "hf_" + 20 * "x"
run = ds.init(sys.argv[1], rank=0, world_size=1)

def train():
    for step in run.steps(range(3)):
        run.log(loss=0.5)
        if step == 1:
            exec(sys.argv[3])

if sys.argv[2] == "with":
    with run:
        train()
else:
    train()
"""


@pytest.mark.parametrize(
    ("way", "ending", "state", "error"),
    [
        ("open", "os.kill(os.getpid(), signal.SIGINT)", "interrupted", "KeyboardInterrupt"),
        ("with", "os.kill(os.getpid(), signal.SIGINT)", "interrupted", "KeyboardInterrupt"),
        ("with", "os.kill(os.getpid(), signal.SIGTERM)", "interrupted", "SystemExit: 1"),
        ("with", "sys.exit()", "finished", ""),
        ("open", "sys.exit()", "finished", ""),
        ("with", "sys.exit(0)", "finished", ""),
        ("with", "sys.exit('')", "failed", "SystemExit"),
        ("with", "sys.exit('no data')", "failed", "SystemExit: no data"),
        ("with", "raise GeneratorExit", "interrupted", "GeneratorExit"),
        ("with", "import asyncio; raise asyncio.CancelledError", "interrupted", "CancelledError"),
        ("open", "raise OSError(f'{token} is wrong\\nmore')", "failed", "OSError: *** is wrong"),
    ],
)
def test_the_manifest_reports_a_training_that_failed_from_one_that_was_interrupted(
    tmp_path, way, ending, state, error
):
    done = run_python("-c", STOPPED, tmp_path, way, ending, code=None)
    assert (done.returncode == 0) == (state == "finished")
    manifest = whole_manifest(tmp_path)
    [attempt] = manifest["attempts"]
    assert manifest["state"] == attempt["ranks"]["0"]["state"] == state
    assert attempt["ranks"]["0"]["health"].get("error", "") == error
    newest = read_run(tmp_path).newest
    assert newest.state == state
    assert (newest.failure and newest.failure[:2]) == ((0, error) if state == "failed" else None)


FORK = """
import os, sys, threading
from distsummary.collect.summary_collector import SummaryCollector
from distsummary.rundir.states import read_run
from distsummary.training.run import Run

def state():
    [rank] = read_run(sys.argv[1]).newest.ranks
    return rank.state

with Run(callbacks=SummaryCollector(sys.argv[1], system_metrics=True)) as run:
    for number in run.steps([1, 2]):
        run.log(loss=0.5)
        if number == 1:
            assert "distsummary-heartbeat" in [thread.name for thread in threading.enumerate()]
            child = os.fork()
            if child == 0:
                assert threading.active_count() == 1
                sys.exit(0)  # leaves the with block, and runs the exit handlers
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert state() == "running", state()
assert state() == "finished", state()
"""


def test_a_forked_child_that_ends_does_not_end_its_parents_run(tmp_path):
    run_python("-W", "ignore", "-c", FORK, tmp_path)
    # step 1 has a text about the run, and the last step the last system metrics
    assert sorted(event.step for event in read_directory(tmp_path)) == [1, 1, 2, 2]


EVALUATE = """
import os, sys
import distsummary as ds

run = ds.init(sys.argv[1], role=sys.argv[2], rank=0, world_size=1)
if sys.argv[2] == "train":
    list(run.steps(range(3)))
else:
    with run.eval() as evaluation:
        evaluation.log(accuracy=0.5)
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
"""


def test_an_evaluation_that_no_one_closes_is_recorded_once_at_the_exit_of_the_process(tmp_path):
    for what in ("train", "eval"):
        run_python("-W", "ignore", "-c", EVALUATE, tmp_path, what)
    events = read_directory(tmp_path)
    assert [(e.attempt, e.step) for e in events for v in e.values if v.tag == "eval/accuracy"] == [(0, 3)]
    assert len(RunDir(tmp_path).read_manifest()["attempts"]) == 1
