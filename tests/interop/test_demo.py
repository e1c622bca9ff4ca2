"""The demo tells what it did in one line that a script can read, and ends what it started."""

import json

import pytest

from tests.interop.conftest import RANKS, Demo

pytestmark = pytest.mark.interop


def test_the_demo_prints_one_json_line_and_nothing_else_on_stdout(demo: Demo) -> None:
    assert len(demo.stdout) == 1
    summary = json.loads(demo.stdout[0])
    assert (summary["run_dir"], summary["ranks"]) == (str(demo.run_dir), RANKS)


def test_the_demo_trains(demo: Demo) -> None:
    assert json.loads(demo.stdout[-1])["accuracy"] > 0.85


def test_the_demo_leaves_no_process_behind(demo: Demo) -> None:
    assert demo.left == []


def test_the_manifest_says_that_all_ranks_finished(demo: Demo) -> None:
    manifest = json.loads((demo.run_dir / "run.json").read_bytes())
    assert manifest["state"] == "finished"
    [attempt] = manifest["attempts"]
    assert {rank: entry["state"] for rank, entry in attempt["ranks"].items()} == dict.fromkeys(
        "0123", "finished"
    )
