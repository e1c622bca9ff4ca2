"""SummaryLandscape and its workers: those it is told to use, and by default those that are free."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distsummary import LossGrid, SummaryLandscape
from tests.conftest import ROOT
from tests.patience import PATIENCE_S
from tests.unit.landscapes import golden_mlp
from tests.unit.landscapes.test_generator import make_parts

SCRIPT = """
import json
import sys

import ray

from distsummary.landscapes.summary_landscape import SummaryLandscape
from tests.unit.landscapes.test_generator import make_parts

sys.modules["matplotlib"] = None  # the pictures would take longest
landscapes = SummaryLandscape(sys.argv[1])
grids = landscapes.gen_landscapes_with_multi_process(make_parts, {"landscape_size": 5}, output=sys.argv[2])
workers = {name: sorted(grid.worker_seconds) for name, grid in grids.items()}
print(json.dumps({"workers": workers, "is_connected": ray.is_initialized()}))
"""


def draw(output: Path, device_ids: list[int] | None) -> dict[str, LossGrid]:
    return SummaryLandscape(golden_mlp.GOLDEN / "summary").gen_landscapes_with_multi_process(
        make_parts, {"landscape_size": 5}, device_ids, output
    )


@pytest.mark.usefixtures("ray_cluster", "no_matplotlib")
def test_the_ids_pick_as_many_workers_and_none_picks_those_that_are_free(tmp_path: Path) -> None:
    one, two, free = draw(tmp_path / "1", [4]), draw(tmp_path / "2", [0, 7]), draw(tmp_path / "3", None)
    for grids, count in ((one, 1), (two, 2)):
        assert {len(grid.worker_seconds) for grid in grids.values()} == {count}
    assert list(one) == ["pca[1, 4]", "pca[3, 6]", "random"]
    for name, grid in one.items():
        assert two[name].z.tobytes() == free[name].z.tobytes() == grid.z.tobytes()
        assert "here" not in free[name].worker_seconds


def test_the_default_works_in_a_process_that_is_not_connected_to_ray(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(golden_mlp.GOLDEN / "summary"), str(tmp_path / "maps")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["workers"].keys() == {"pca[1, 4]", "pca[3, 6]", "random"}
    assert all("worker-0" in workers for workers in told["workers"].values())
    assert not told["is_connected"]
    assert (tmp_path / "maps" / "landscape" / "landscape_1-4.npz").exists()
