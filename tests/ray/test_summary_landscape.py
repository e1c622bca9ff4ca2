"""SummaryLandscape and its workers: as many as device_ids has, and by default all that are free."""

import json
from pathlib import Path

import pytest
import ray

from distsummary import LossGrid, SummaryLandscape
from distsummary.errors import ClusterError
from tests.conftest import ROOT
from tests.programs import run_python
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


def draw(output: Path, device_ids: list[int] | None, address: str | None = None) -> dict[str, LossGrid]:
    return SummaryLandscape(golden_mlp.GOLDEN / "summary").gen_landscapes_with_multi_process(
        make_parts, {"landscape_size": 5}, device_ids, output, address=address
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


@pytest.mark.usefixtures("ray_cluster", "no_matplotlib")
def test_an_address_must_be_that_of_the_cluster_that_is_connected(tmp_path, caplog, monkeypatch):
    address = ray.get_runtime_context().gcs_address
    with pytest.raises(ClusterError, match=f"is not the Ray cluster at {address} that this process"):
        draw(tmp_path / "other", [0, 1], "10.255.0.1:6379")
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    grids = draw(tmp_path / "own", [0, 1], address)
    assert {len(grid.worker_seconds) for grid in grids.values()} == {2}
    lines = [record.message for record in caplog.records if "but the Ray cluster has" in record.message]
    assert lines == [
        "workers=2, but the Ray cluster has 1 core: they share them, which is no faster; "
        "workers='auto' starts as many as it has"
    ]


@pytest.mark.long
def test_the_default_works_in_a_process_that_is_not_connected_to_ray(tmp_path: Path) -> None:
    done = run_python("-c", SCRIPT, golden_mlp.GOLDEN / "summary", tmp_path / "maps", cwd=ROOT)
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["workers"].keys() == {"pca[1, 4]", "pca[3, 6]", "random"}
    assert all("worker-0" in workers for workers in reported["workers"].values())
    assert not reported["is_connected"]
    assert (tmp_path / "maps" / "landscape" / "landscape_1-4.npz").exists()
