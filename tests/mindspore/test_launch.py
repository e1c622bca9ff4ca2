"""A function that trains with MindSpore is launched on Ray: one run of its ranks."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import distsummary as ds
from tests.mindspore.trainings import lineage_of, values_of
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]

RANKS = 2


def test_the_ranks_are_one_run_and_have_the_arguments_of_the_script(tmp_path):
    script = Path(__file__).with_name("launched.py")
    command = [sys.executable, str(script), str(tmp_path / "run"), "--freq", "2"]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[-2] == "[(0, 2), (1, 2)]"  # rank and --freq of each
    run = ds.open_run(tmp_path / "run")
    assert (run.state, run.world_size) == ("finished", RANKS)
    assert [step for step, _ in values_of(tmp_path / "run")["scalar", "loss/auto"]] == [1, 2, 4, 6]
    assert lineage_of(tmp_path / "run").train.hyper_parameters.device_num == RANKS
