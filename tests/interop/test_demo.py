"""The demo reports what it did in one line that a script can read, and ends what it started."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from distsummary.events.reader import read_lineage
from distsummary.format.lineage import custom_values
from distsummary.rundir.states import read_run
from tests.interop.conftest import RANKS, Demo

pytestmark = [pytest.mark.interop, pytest.mark.smoke]


def test_the_demo_prints_one_json_line_and_nothing_else_on_stdout(demo: Demo) -> None:
    assert len(demo.stdout) == 1
    summary = json.loads(demo.stdout[0])
    assert (summary["run_dir"], summary["ranks"]) == (str(demo.run_dir), RANKS)


def test_the_demo_leaves_no_process_behind(demo: Demo) -> None:
    assert demo.left == []


def test_the_manifest_says_that_all_ranks_finished(demo: Demo) -> None:
    manifest = json.loads((demo.run_dir / "run.json").read_bytes())
    assert manifest["state"] == "finished"
    [attempt] = read_run(demo.run_dir).attempts
    assert [(rank.rank, rank.state) for rank in attempt.ranks] == [(n, "finished") for n in range(4)]


def test_tensorboard_shows_the_settings_and_the_text(demo: Demo) -> None:
    shown = EventAccumulator(str(demo.run_dir)).Reload()
    plugins = {metadata.plugin_data.plugin_name for metadata in shown.summary_metadata.values()}
    assert {"hparams", "text"} <= plugins


def test_mindinsight_is_given_the_settings_as_custom_lineage(demo: Demo) -> None:
    custom = read_lineage(demo.run_dir).custom
    assert custom is not None
    assert custom_values(custom)["optimizer.momentum"] == 0.9
