"""What a daemon thread closes while the interpreter ends, as the trial that Ray Tune stops, is closed."""

from pathlib import Path

import pytest

import distsummary as ds
from tests.programs import run_python

# The interpreter ends once the thread is at its end, which then takes a moment more.
AROUND = """
import atexit, sys, threading, time

def end():
    begun.set()
    ends.wait()
    time.sleep(0.3)
    print("closed")
{thread}
begun, ends = threading.Event(), threading.Event()
threading.Thread(target=work, daemon=True).start()
begun.wait()
atexit.register(ends.set)
"""
METHOD = """
from distsummary.base.at_exit import close_at_exit, closing

class Open:
    def __init__(self):
        close_at_exit(self.close)

    def close(self):
        with closing(self.close):
            end()

def work():
    Open().close()
"""
RUN = """
import distsummary as ds

class Late(ds.Callback):
    def __exit__(self, *error):
        end()

def work():
    with ds.init("run", quiet=True, callbacks=Late()) as run:
        for step in run.steps(range(10)):
            run.log(loss=float(step))
        sys.exit(0)
"""


@pytest.mark.parametrize("thread", [METHOD, RUN])
def test_the_end_of_the_interpreter_waits_for_what_another_thread_closes(thread: str, tmp_path: Path) -> None:
    done = run_python("-c", AROUND.format(thread=thread), cwd=tmp_path)
    assert done.stdout == "closed\n"
    if thread is RUN:
        run = ds.open_run(tmp_path / "run")
        assert (run.state, len(run.scalars("loss"))) == ("finished", 10)
