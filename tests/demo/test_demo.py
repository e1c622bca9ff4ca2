"""The demo as a user starts and stops it, in a process and a Ray of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from distsummary import LossGrid
from distsummary.events.reader import read_directory, read_lineage
from distsummary.format.lineage import custom_values
from distsummary.format.records import DIALECTS, MINDSPORE
from distsummary.rundir.run_dir import RunDir
from distsummary.view.report import BUNDLE
from tests.interrupts import sigint
from tests.patience import PATIENCE_S, wait_for


def start(out, *arguments: str) -> subprocess.Popen:
    return python("-m", "distsummary", "demo", "--out", str(out), *arguments)


def python(*arguments: str) -> subprocess.Popen:
    """A process that reacts to Ctrl-C, though the tests may ignore it, as in a script's `make test &`."""
    with sigint(signal.default_int_handler):
        return subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


@pytest.mark.long
def test_the_demo_trains_merges_and_draws(tmp_path):
    demo = start(tmp_path / "demo", "--ranks", "2", "--json")
    output, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 0, errors
    summary = json.loads(output)
    assert summary["accuracy"] > 0.8
    assert set(summary["step_ms"]) == {"0", "1"}
    assert summary["workers"] > 1
    mission = summary["mission"]
    assert [line.split()[:2] for line in mission["actors"][:2]] == [["rank", "0"], ["rank", "1"]]
    assert "aggregator  actor aggregator-" in mission["actors"][2]
    assert mission["deals"][0] == "deal 1, steps 1 to 141, ranks 0-1"
    assert "network DigitsNet, optimizer SGD" in mission["lineage"][1]
    run_dir = RunDir(summary["run_dir"])
    if (BUNDLE / "page.js").is_file():
        assert summary["report"] == f"{run_dir.base}.html"
        assert "demo" in Path(summary["report"]).read_text()
    else:
        assert summary["report"] == ""
    for dialect in DIALECTS:
        merged = {v.tag: v.data for e in read_directory(run_dir.base, dialect) for v in e.values}
        assert np.isclose(merged["loss"], summary["loss"])
        assert np.isclose(merged["eval/accuracy"], summary["accuracy"])
        assert merged["about"].startswith("# Handwritten digits")
        assert merged["wrong digits"].width > 0
        assert "zz_ranks/zz_system/process/memory_gib/max" in merged
        evaluated = [e.step for e in read_directory(run_dir.base, dialect) for v in e.values
                     if v.tag == "eval/accuracy"]  # fmt: skip
        assert len(evaluated) == 3  # one for each epoch
    assert custom_values(read_lineage(run_dir.base).custom)["optimizer.lr"] == 0.05
    grids = [LossGrid.load(path) for path in sorted(run_dir.landscape_dir.glob("*.npz"))]
    assert {grid.decomposition for grid in grids} == {"PCA", "Random"}
    assert all(grid.z.shape == (31, 31) and np.isfinite(grid.z).all() for grid in grids)


@pytest.mark.long
def test_ctrl_c_leaves_readable_files_and_no_process(tmp_path):
    demo = start(tmp_path / "demo", "--ranks", "2", "--epochs", "200")
    assert any("epoch 2" in line for line in demo.stderr)
    run_dir = RunDir(tmp_path / "demo")
    wait_for(lambda: have_begun(run_dir))
    family = psutil.Process(demo.pid).children(recursive=True)
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, errors
    assert "interrupted" in errors
    assert psutil.wait_procs(family, timeout=PATIENCE_S)[1] == []
    for path in run_dir.rank_dirs().values():
        steps = steps_of(path, MINDSPORE, "strict")
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) > 10


def test_ctrl_c_reaches_the_demo_where_the_tests_ignore_it():
    with sigint(signal.SIG_IGN):
        one = python("-c", "import signal; signal.raise_signal(signal.SIGINT)")
    _, errors = one.communicate(timeout=PATIENCE_S)
    assert one.returncode == -signal.SIGINT, errors


def have_begun(run_dir):
    """Whether both ranks' files hold more than ten steps."""
    found = [steps_of(path, MINDSPORE, "tail") for path in run_dir.rank_dirs().values()]
    return len(found) == 2 and min(map(len, found)) > 10


def steps_of(path, dialect, mode):
    """The steps whose loss stands in a rank's files."""
    return [e.step for e in read_directory(path, dialect, mode=mode) for v in e.values if v.tag == "loss"]
