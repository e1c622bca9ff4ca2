"""A rank that is made slow is named with the cause while the ranks train, and from the files alike."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_slow_ranks_are_named_while_they_train_and_the_same_afterwards(tmp_path: Path):
    found = tmp_path / "lines.jsonl"
    options = [
        "--causes",
        "forward",
        "optimizer",
        "--excess",
        "1.0",
        "--count",
        "1",
        "--launchers",
        "torchrun",
    ]
    # --live: the training fails if alerts.jsonl does not hold both before its ranks are merged
    command = [sys.executable, "-m", "benchmarks.culprit", *options, "--live", "--out", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    *episodes, training = map(json.loads, found.read_text().splitlines())
    assert [line["told"] and (line["told"]["rank"], line["told"]["cause"]) for line in episodes] == [
        (line["rank"], line["cause"]) for line in episodes
    ]
    assert training["is_live_equal"], training
    assert [line["told"]["until_step"] is not None for line in episodes] == [True, True]
