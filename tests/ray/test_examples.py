"""The example of many ranks, as a job of the cluster that RAY_ADDRESS names; the demo starts its own."""

from pathlib import Path

import pytest
import ray

from distsummary.rundir.run_dir import RunDir
from tests.conftest import ROOT
from tests.docs.test_examples import tags
from tests.programs import run_python


@pytest.mark.long
def test_many_ranks_become_one_run(tmp_path: Path) -> None:
    done = run_python(
        ROOT / "examples" / "many_ranks.py",
        tmp_path / "run",
        "2",
        RAY_ADDRESS=ray.get_runtime_context().gcs_address,
    )
    assert "last loss of each rank:" in done.stdout
    run_dir = RunDir(tmp_path / "run")
    assert sorted(run_dir.rank_dirs()) == [0, 1]
    assert tags(run_dir.base)["zz_ranks/loss/max"] == set(range(1, 41))
