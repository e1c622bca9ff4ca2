"""Several ranks that MindSpore's msrun starts are one run."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.aggregate.process import MERGE_WAIT_S
from distsummary.cli.adopt import adopt
from tests.mindspore.trainings import lineage_of, values_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.interop

RANKS, STEPS = 2, 120


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The run dir, and how long each rank's `Model.train` took after its last step."""
    place = tmp_path_factory.mktemp("msrun")
    here = Path(sys.executable).parent
    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",  # msrun starts `python`
        "PYTHONPATH": os.pathsep.join(places),
        "GLOG_v": "3",
    }
    workers = [f"--worker_num={RANKS}", f"--local_worker_num={RANKS}", f"--master_port={free_port()}"]
    script = [Path(__file__).with_name("msrun_rank.py"), place]
    command = [here / "msrun", *workers, f"--log_dir={place / 'logs'}", "--join=True", *script]
    done = subprocess.run(
        [*map(str, command)], cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    logs = [(place / "logs" / f"worker_{rank}.log").read_text() for rank in range(RANKS)]
    assert done.returncode == 0, done.stdout + done.stderr + "\n".join(logs)
    return place / "run", [float(re.search(r"^took (.+)$", log, re.MULTILINE)[1]) for log in logs]


def test_the_ranks_are_merged_and_each_has_its_directory(launched):
    run_dir, _ = launched
    run = ds.open_run(run_dir)
    assert (run.state, run.world_size) == ("finished", RANKS)
    merged = values_of(run_dir)
    assert [step for step, _ in merged["scalar", "loss/auto"]] == [1, *range(5, STEPS + 1, 5)]
    for rank in range(RANKS):
        found = values_of(run_dir / f"rank_{rank:05}")
        assert [step for step, _ in found["scalar", "zz_perf/step_ms"]] == [*range(1, STEPS + 1)]


def test_the_lineage_is_that_of_all_ranks(launched):
    train = lineage_of(launched[0]).train
    assert train.hyper_parameters.device_num == RANKS
    assert train.hyper_parameters.optimizer == "Momentum"


def test_the_steps_have_phases_of_data_and_the_rest(launched):
    tags = {tag for _, tag in values_of(launched[0] / "rank_00001")}
    assert {"zz_perf/phase/data/cpu_ms", "zz_perf/phase/rest/cpu_ms", "zz_perf/own_ms"} <= tags


def test_why_names_the_rank_that_computes_more(launched):
    command = [sys.executable, "-m", "distsummary", "why", str(launched[0]), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    found = json.loads(done.stdout)["verdicts"]
    slow = [(one["rank"], one["cause"]) for one in found if one["cause"] != "overhead"]
    assert slow == [(1, "unknown")], found  # outside of the phases that it knows


def test_ranks_with_directories_of_their_own_write_into_them(launched):
    parent = launched[0].parent
    for rank in range(RANKS):
        own = parent / f"apart{rank}"
        run = ds.open_run(own)
        assert (run.state, run.world_size) == ("finished", 1)
        assert [step for step, _ in values_of(own)["scalar", "loss/auto"]] == [1, *range(5, STEPS + 1, 5)]
        assert lineage_of(own).train.hyper_parameters.device_num == RANKS
        assert not list(own.glob("rank_*"))
    assert adopt(parent / "apart").ranks == tuple(range(RANKS))
    assert ds.merge_run(parent / "apart").missing_ranks == ()


def test_train_returns_before_the_run_is_merged(launched):
    assert max(launched[1]) < MERGE_WAIT_S / 2
