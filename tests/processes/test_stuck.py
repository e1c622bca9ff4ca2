"""Which of several ranks is stuck, shown while it lasts by alerts, `why` and `status`, from files alone."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from distsummary.base.processes import are_busy, own_process, pid_start_of
from distsummary.cli.main import main
from tests import forked
from tests.patience import PATIENCE_S
from tests.processes import stuck_ranks
from tests.processes.stuck_ranks import CULPRIT, HOLDS, RANKS, SLEEPS


def alerts(run_dir: Path, count: int) -> list[dict[str, object]]:
    """The first alerts, as soon as there are so many."""
    path, until = run_dir / "alerts.jsonl", time.monotonic() + PATIENCE_S
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        hangs = [alert for alert in map(json.loads, lines) if alert["cause"] == "waiting"]
        if len(hangs) >= count:
            return hangs[:count]
        assert time.monotonic() < until, hangs
        time.sleep(0.1)


def said_by_why(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[object, ...]]:
    """The waits that `why` reports, without their evidence."""
    assert main(["why", str(run_dir), "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    return [reports_of(verdict) for verdict in verdicts if verdict["cause"] == "waiting"]


def reports_of(alert: dict[str, object]) -> tuple[object, ...]:
    """What an alert says, without its evidence."""
    return tuple(alert[name] for name in ("rank", "cause", "since_step", "until_step", "reported_step"))


def shown(run_dir: Path, count: int) -> list[tuple[int, float, str]]:
    """The waits that TensorBoard shows of the merged run, as soon as there are so many."""
    until = time.monotonic() + PATIENCE_S
    while True:
        events = EventAccumulator(str(run_dir)).Reload()
        tags = events.Tags()
        ranks = events.Scalars("zz_alerts/rank") if "zz_alerts/rank" in tags["scalars"] else []
        texts = events.Tensors("zz_alerts/text") if "zz_alerts/text" in tags["tensors"] else []
        said = [text.tensor_proto.string_val[0].decode() for text in texts]
        found = [
            (rank.step, rank.value, text)
            for rank, text in zip(ranks, said, strict=False)
            if " keeps the others waiting at step " in text
        ]
        if len(ranks) == len(texts) and len(found) >= count:
            return found
        assert time.monotonic() < until, (ranks, texts)
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.usefixtures("fork_server")
def test_a_rank_that_sleeps_continues_and_then_holds_the_interpreter_lock(tmp_path, capsys):
    run_dir = tmp_path / "run"
    with forked.ranks(RANKS, stuck_ranks.main, str(run_dir)):
        [reported] = alerts(run_dir, 1)
        assert (reported["rank"], reported["since_step"], reported["until_step"]) == (CULPRIT, SLEEPS, None)
        assert "it has not begun all_reduce of 10" in reported["evidence"]
        assert "time.sleep(0.1)  # HERE" in reported["evidence"]

        assert said_by_why(run_dir, capsys) == [reports_of(reported)]
        [(step, rank, text)] = shown(run_dir, 1)  # while no rank ends that step
        assert (step, rank, "has not begun all_reduce of 10" in text) == (SLEEPS, CULPRIT, True)
        # It may continue: so far that is a warning.
        assert main(["status", str(run_dir)]) == 0
        assert f"ank {CULPRIT} keeps the others waiting at step {SLEEPS}" in capsys.readouterr().out

        run_dir.with_name("run.go").touch()
        _, over, again = alerts(run_dir, 3)
        assert (over["rank"], over["since_step"], over["until_step"]) == (CULPRIT, SLEEPS, SLEEPS)
        assert (again["rank"], again["since_step"], again["until_step"]) == (CULPRIT, HOLDS, None)
        assert "native code in it holds the interpreter lock" in again["evidence"]

        assert said_by_why(run_dir, capsys) == [reports_of(over), reports_of(again)]
    assert said_by_why(run_dir, capsys) == [reports_of(over), reports_of(again)]
    assert [(step, rank) for step, rank, _ in shown(run_dir, 2)] == [(SLEEPS, CULPRIT), (HOLDS, CULPRIT)]


def test_a_process_that_computes_is_busy_and_one_that_sleeps_or_is_stopped_is_not() -> None:
    ready = "import time, os, signal\nprint(flush=True)\n"
    codes = ["while True: pass", "time.sleep(99)", "os.kill(os.getpid(), signal.SIGSTOP)"]
    children = [
        subprocess.Popen([sys.executable, "-c", ready + code], stdout=subprocess.PIPE) for code in codes
    ]
    try:
        for child in children:
            child.stdout.readline()
        place = own_process()["pid_space"]
        given = {
            number: {"pid": child.pid, "pid_space": place, "pid_start": pid_start_of(child.pid)}
            for number, child in enumerate(children)
        }
        deadline = time.monotonic() + PATIENCE_S
        while (busy := are_busy(given)) != {0} and time.monotonic() < deadline:
            pass  # they have just begun
        assert busy == {0}
        assert are_busy({1: given[1]}) == set()
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert are_busy(given) == set()


STUCK_IN_A_PROCESS = """
import sys, threading, time
from pathlib import Path
import distsummary as ds

def held(is_over): is_over.wait()

def rank(number, is_over):
    run = ds.init(sys.argv[1], rank=number, world_size=3, system_metrics=False, aggregate=False)
    for step in run.steps(range(10**9)):
        run.log(loss=0.5)
        if number == 1 and step == 30: held(is_over)
        if is_over.wait(0.01): break
    run.close()

is_over = threading.Event()
ranks = [threading.Thread(target=rank, args=(number, is_over)) for number in range(3)]
for each in ranks: each.start()
report = Path(sys.argv[1], "rank_00001/stuck.json")
while not (report.exists() and " in held" in report.read_text()): time.sleep(0.05)
names = sorted(each.name for each in threading.enumerate())
print(names.count("distsummary-watcher"), report.read_text())
is_over.set()
"""


def test_of_ranks_in_threads_of_one_process_the_stuck_one_is_named_with_its_own_stack(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", STUCK_IN_A_PROCESS, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    watchers, report = said.split(" ", 1)
    found = json.loads(report)
    assert (watchers, found["rank"], " in held" in found["line"]) == ("1", 1, True)
    assert " in rank" in " ".join(found["stack"])


LOOKS_AT_THREADS = """
import gc, os, sys, threading, time
from distsummary.base.failures import frame_of

class Slow:
    def __del__(self): time.sleep(0)  # as a finalizer that closes a file, it lets other threads run

def circle():
    one, other = Slow(), Slow()
    one.other, other.other = other, one

def look():
    for _ in range(LOOKS):
        for _ in range(50): circle()
        frame_of(0)
    is_over.set()

LOOKS, is_over = 60, threading.Event()
for _ in range(200): threading.Thread(target=is_over.wait, daemon=True).start()
threading.Thread(target=look, daemon=True).start()
while not is_over.is_set():
    each = threading.Thread(target=circle)
    each.start()
    each.join()
print(gc.isenabled())
"""


def test_to_look_at_threads_stops_no_process_that_starts_threads_meanwhile() -> None:
    command = [sys.executable, "-c", LOOKS_AT_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "True\n"
