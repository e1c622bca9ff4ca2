"""Processes that each write to `summary_dir + str(rank)`, as scripts of MindSpore do, become one run."""

import os
import subprocess
import sys

from distsummary.cli.main import main
from distsummary.events.reader import read_directory
from tests.patience import PATIENCE_S

RANK = """
import sys
import numpy as np
from distsummary.rundir import topology
from distsummary import Run, SummaryCollector

rank = topology.detect().rank
with Run(callbacks=[SummaryCollector(sys.argv[1] + str(rank), collect_freq=2)]) as run:
    for step in run.steps(range(1, 5)):
        run.log(loss=float(10 * rank + step))
        run.histogram("weights", np.arange(5.0) + rank)
"""


def test_two_processes_with_a_directory_each_become_one_run(nasty_tmp_path, capsys):
    prefix = str(nasty_tmp_path / "summary_dir")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, prefix], env={**os.environ, **place, "RANK": rank})
        for rank in "01"
    ]
    assert [rank.wait(PATIENCE_S) for rank in ranks] == [0, 0]
    assert main(["adopt", prefix]) == 0
    assert main(["merge", prefix]) == 0
    assert "4 steps of 2 ranks" in capsys.readouterr().out
    for dialect in ("mindspore", "tensorboard"):
        values = [
            (e.step, v) for e in read_directory(nasty_tmp_path / "summary_dir", dialect) for v in e.values
        ]
        assert [(step, v.data) for step, v in values if v.tag == "loss"] == [(1, 6), (2, 7), (3, 8), (4, 9)]
        assert {step for step, v in values if v.tag == "weights"} == {1, 2, 3, 4}
    assert main(["status", prefix]) == 0
    assert main(["fsck", prefix]) == 0
