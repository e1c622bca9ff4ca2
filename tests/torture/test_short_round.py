"""A short round of `make torture`: every level that it has by default, from one seed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.torture.judge import ROOT

KEYS = ["level", "seed", "kills", "faults", "acked", "acked_missing", "duplicates", "torn_middle", "orphans",
        "longest_block_s"]  # fmt: skip


def torture(place: Path, *words: str) -> dict[str, object]:
    """The last line of a run in which nothing was found."""
    command = [sys.executable, "-m", "tests.torture", "--place", str(place), "--seed", "7", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    line: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert list(line) == KEYS
    assert (line["acked_missing"], line["duplicates"], line["torn_middle"], line["orphans"]) == (0, 0, 0, 0)
    assert list(place.iterdir()) == []  # what passes is not kept
    return line


@pytest.mark.parametrize("seed", [7, 8])  # a RankWriter, and an AsyncWriter before it
def test_a_disk_that_fails_at_each_operation_costs_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    line = torture(tmp_path, "--level", "L0", "--seeds", "1", "--events", "5", "--seed", str(seed))
    assert int(str(line["faults"])) > 100
    assert int(str(line["acked"])) > 500


def test_killed_writers_lose_nothing_acknowledged(tmp_path: Path) -> None:
    line = torture(tmp_path, "--level", "L1", "--kills", "8")
    assert line["kills"] == 8
    assert int(str(line["acked"])) > 0


def test_killed_writers_of_many_tags_lose_nothing_acknowledged(tmp_path: Path) -> None:
    line = torture(tmp_path, "--level", "L1", "--kills", "4", "--tags", "1000")
    assert line["kills"] == 4
    assert int(str(line["acked"])) > 0


def test_a_level_continues_where_it_stopped(tmp_path: Path) -> None:
    (place := tmp_path / "place").mkdir()
    words = ("--level", "L1", "--kills", "2", "--state", str(tmp_path / "state"))
    first = torture(place, *words)
    rounds = tmp_path / "state" / "L1" / "rounds.jsonl"
    rounds.write_text(rounds.read_text().replace('"kills": 2', '"kills": 1002'))
    assert torture(place, *words) == {**first, "kills": 1002}


@pytest.mark.long
def test_killed_and_stopped_collectors_lose_nothing_acknowledged(tmp_path: Path) -> None:
    line = torture(tmp_path, "--level", "actors", "--kills", "3")
    assert line["kills"] == 3
    assert int(str(line["acked"])) > 0


def test_hostile_files_are_refused_in_time_and_memory(tmp_path: Path) -> None:
    assert torture(tmp_path, "--level", "fuzz", "--mutants", "10", "--seconds", "100")["faults"] == 50
