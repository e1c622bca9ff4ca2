"""The zoo of benchmarks: its small trainings run without a false verdict, and its judgement is right."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import distsummary as ds
from benchmarks.zoo import cells
from benchmarks.zoo.launch import command, environ, run
from benchmarks.zoo.plans import RANKS
from benchmarks.zoo.verdicts import judged, reported
from tests.patience import PATIENCE_S
from tests.programs import run_python


def alert(rank: int, cause: str, since: int, reported_at: int, until: int | None = None) -> dict[str, Any]:
    return {
        "time": 1.0, "attempt": 0, "rank": rank, "cause": cause, "since_step": since, "until_step": until,
        "evidence": "", "reported_step": reported_at,
    }  # fmt: skip


def fault(rank: int, place: str, start: int) -> dict[str, Any]:
    return {
        "rank": rank, "place": place, "how": "work", "share": 0.25, "start": start, "end": start + 30,
        "ms": 4.0, "own_ms": 16.0, "total_s": 0.1,
    }  # fmt: skip


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    with ds.init(tmp_path, quiet=True, system_metrics=False) as run:
        run.log(loss=1.0)

    def judge(alerts: list[dict[str, Any]], *faults: dict[str, Any], training: str = "mlp") -> Any:
        (tmp_path / "alerts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in alerts))
        found = judged(str(tmp_path), training, faults, 20)
        return [one["outcome"] for one in found["episodes"]], found["false"], found["false_intervals"]

    return judge


@pytest.mark.parametrize(
    ("reported_at", "outcome"),
    [
        (alert(2, "forward", 100, 119), "right"),
        (alert(2, "forward", 100, 120), "late"),
        (alert(2, "backward", 100, 105), "wrong"),
        (alert(2, "forward", 300, 305), "missed"),
    ],
)
def test_an_alert_is_right_if_it_names_rank_and_cause_within_the_limit(judge, reported_at, outcome):
    assert judge([reported_at], fault(2, "forward", 100))[0] == [outcome]


def test_an_alert_on_another_rank_is_false_also_during_an_episode(judge: Any):
    reported_at = [alert(2, "forward", 100, 105), alert(1, "forward", 100, 108)]
    assert judge(reported_at, fault(2, "forward", 100)) == (["right"], [reported_at[1]], 1)


def test_each_interval_of_a_false_alert_counts(judge: Any):
    again = alert(1, "data", 10, 12, until=30) | {"intervals": [[10, 30], [50, None]]}
    assert judge([again])[2] == 2


def test_the_last_line_of_an_alert_counts(judge: Any):
    reported_at = [alert(1, "data", 10, 12), alert(1, "data", 10, 12, until=30)]
    assert judge(reported_at) == ([], reported_at[1:], 1)


def test_naming_rank_0_while_it_validates_is_no_false_alarm(judge: Any):
    reported_at = [
        alert(0, "unknown", 100, 101),
        alert(0, "unknown", 130, 140),
        alert(1, "unknown", 100, 101),
    ]
    assert judge(reported_at, training="validation")[1] == reported_at[1:]


def test_comments_docstrings_and_other_trainings_void_no_result(tmp_path: Path):
    plain, commented = tmp_path / "a.py", tmp_path / "b.py"
    plain.write_text("@training('one', size=1)\ndef one(job):\n    return 1\n")
    commented.write_text(
        '"""A module."""\n@training("one", size=1)\ndef one(job):\n    """One."""\n    return 1  # one\n'
        '@training("two", size=2)\ndef two(job):\n    return 2\n'
    )
    assert cells.code(plain) != cells.code(commented)
    assert cells.code(plain, "one") == cells.code(commented, "one")


@pytest.mark.long
@pytest.mark.parametrize("name", ["resnet-bn", "sync-bn", "lstm", "zero"])
def test_a_healthy_training_has_no_verdicts(tmp_path: Path, name: str):
    plan = {"training": name, "run_dir": str(tmp_path / "run"), "size": 4, "steps": 60, "seed": 0}
    run(cells.RANK, plan | {"episodes": [], "ranks": 2}, "torchrun")
    assert reported(plan["run_dir"]) == []


@pytest.mark.long
def test_slow_ranks_are_named_while_they_train_and_the_same_afterwards(tmp_path: Path):
    run_dir, steps = tmp_path / "run", 100_000
    slow = [
        {"rank": 1, "place": "forward", "how": "work", "share": 1.0, "start": 100, "end": 140},
        {"rank": 3, "place": "optimizer", "how": "sleep", "share": 1.0, "start": 200, "end": steps},
    ]
    plan = {"training": "mlp", "run_dir": str(run_dir), "size": 64, "steps": steps, "seed": 0, "ranks": RANKS}
    (tmp_path / "plan.json").write_text(json.dumps(plan | {"episodes": slow}))
    expected = {(one["rank"], one["place"]) for one in slow}
    with (tmp_path / "log").open("wb") as log:
        words = command("torchrun", RANKS, cells.RANK, str(tmp_path / "plan.json"))
        training = subprocess.Popen(words, env=environ(), stdout=log, stderr=log, start_new_session=True)
    try:
        until_s = time.monotonic() + PATIENCE_S
        while not expected <= {(one["rank"], one["cause"]) for one in reported(str(run_dir))}:
            assert training.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until_s, reported(str(run_dir))
            time.sleep(0.2)
        live = keys(reported(str(run_dir)))
    finally:
        os.killpg(training.pid, signal.SIGTERM)
        training.wait()
    done = run_python("-m", "distsummary", "why", run_dir, "--json", code=None)
    assert live <= keys(json.loads(done.stdout)["verdicts"])


def keys(verdicts: list[dict[str, Any]]) -> set[tuple[int, str, int, int]]:
    return {(one["rank"], one["cause"], one["since_step"], one["reported_step"]) for one in verdicts}
