"""Which of several ranks is stuck, told while it lasts by alerts, `why` and `status`, from files alone."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distsummary.cli import main
from tests.processes.stuck_ranks import CULPRIT, HOLDS, RANKS, SLEEPS

PATIENCE_S = 120


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run whose ranks train."""
    path = tmp_path_factory.mktemp("stuck") / "run"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.processes.stuck_ranks", str(path)],
            env={**os.environ, "RANK": str(rank)},
        )
        for rank in range(RANKS)
    ]
    try:
        yield path
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def alerts(run_dir: Path, count: int) -> list[dict[str, object]]:
    """The first alerts, as soon as there are so many."""
    path, until = run_dir / "alerts.jsonl", time.monotonic() + PATIENCE_S
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        hangs = [alert for alert in map(json.loads, lines) if alert["cause"] == "hang"]
        if len(hangs) >= count:
            return hangs[:count]
        assert time.monotonic() < until, hangs
        time.sleep(0.1)


def test_a_rank_that_sleeps_goes_on_and_then_holds_the_interpreter_lock(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [told] = alerts(run_dir, 1)
    assert (told["rank"], told["since_step"], told["until_step"]) == (CULPRIT, SLEEPS, None)
    assert "lacks all_reduce of 10" in told["evidence"]
    assert "time.sleep(0.1)  # HERE" in told["evidence"]

    assert main(["why", str(run_dir), "--json"]) == 1
    [verdict] = json.loads(capsys.readouterr().out)["verdicts"]
    assert (verdict["rank"], verdict["cause"], verdict["since_step"]) == (CULPRIT, "hang", SLEEPS)
    assert main(["status", str(run_dir)]) == 1
    text = capsys.readouterr().out
    assert f"The run is stuck at step {SLEEPS}: look at rank {CULPRIT}." in text
    assert [line.split()[3] for line in text.splitlines() if line.startswith("1 ")] == ["stuck"]

    run_dir.with_name("run.go").touch()
    _, over, again = alerts(run_dir, 3)
    assert (over["rank"], over["since_step"], over["until_step"]) == (CULPRIT, SLEEPS, SLEEPS)
    assert (again["rank"], again["since_step"], again["until_step"]) == (CULPRIT, HOLDS, None)
    assert "native code in it holds the interpreter lock" in again["evidence"]
