"""A disk that hangs, for a while and for ever: each operation on it opens a FIFO that no one reads."""

import json

import pytest

from distsummary.rundir.states import read_run
from tests.programs import run_python

PROGRAM = """
import json, os, sys, threading, time
from pathlib import Path
import distsummary as ds
from distsummary.base import publish
from distsummary.events.files import Files
from distsummary.events.spec import WriterSpec

place, hangs_s = Path(sys.argv[1]), float(sys.argv[2])
os.mkfifo(fifo := place / "fifo")
WriterSpec.__init__.__kwdefaults__["budget_bytes"] = 1 << 18
is_hung = False

def hanging(call):
    def hang(*args, **named):
        if is_hung:
            open(fifo, "wb").close()  # returns when there is a reader
        return call(*args, **named)
    return hang

Files.write = hanging(Files.write)
os.replace, os.unlink = hanging(os.replace), hanging(os.unlink)

def waited_s():  # for a processor
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9

def recover():
    global is_hung
    is_hung = False
    os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

held_s = 0.0
run = ds.init(place / "run", quiet=True, system_metrics=False)
for step in run.steps(range(6000)):
    if step == 100:
        is_hung = True
        if hangs_s:
            threading.Timer(hangs_s, recover).start()
    run.log({f"value{n}": 1.0 for n in range(20)})
    if step > 1:  # the first opens the files
        took_s = time.monotonic() - begun - (waited_s() - waited)
        held_s += took_s if took_s > 0.1 else 0.0  # what is shorter is no wait
    time.sleep(0.002 if is_hung else 0)
    begun, waited = time.monotonic(), waited_s()
begun = time.monotonic()
run.close()
health = run.health()
print(json.dumps({
    "held_s": held_s,
    "closed_s": time.monotonic() - begun,
    "given": health.given, "written": health.written, "dropped": health.dropped,
    "errors": list(health.errors),
}), flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("hangs_s", [10.0, 0.0])
def test_a_hung_disk_holds_the_loop_for_two_seconds_in_all_and_every_value_is_counted(tmp_path, hangs_s):
    done = run_python("-c", PROGRAM, tmp_path, hangs_s)
    found = json.loads(done.stdout)
    for plugin, given in found["given"].items():
        assert found["written"].get(plugin, 0) + found["dropped"].get(plugin, 0) == given, plugin
    assert found["given"]["scalar"] >= 20 * 6000
    assert found["dropped"]["scalar"] > 0
    assert found["held_s"] < 3.0
    state = read_run(tmp_path / "run").attempts[0].ranks[0].state
    if hangs_s:
        assert state == "incomplete"
    else:
        assert 20.0 <= found["closed_s"] < 30.0
        assert [r for r in found["errors"] if "the end of the run is not done: " in r and ".py:" in r]
        assert state == "lost"
