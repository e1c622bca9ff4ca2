"""MindInsight draws all landscapes of a run, also after one was replaced, and finds nothing else there."""

from pathlib import Path

import numpy as np
import pytest

from distsummary.landscapes.output.write import write_landscapes
from distsummary.rundir.run_dir import RunDir
from tests.tools.mindinsight_check import Verdict, check
from tests.unit.landscapes.test_generator import recorded_run
from tests.unit.landscapes.test_grid import make_grid, random_grid

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run with a loss curve, two paths, a random plane and a line; some losses are not finite."""
    run = recorded_run(tmp_path_factory.mktemp("landscapes") / "run")
    z = make_grid().z.copy()
    z[0, 0], z[1, 1], z[2, 2] = np.nan, np.inf, 1e300
    line = make_grid(y=np.zeros(1), z=np.array([[4.0, 3.0, 2.0, 1.0]]), numbers=(2, 5, 9))
    write_landscapes(run, [make_grid(z=z), make_grid(numbers=(9, 12, 15)), random_grid(), line])
    return run


@pytest.fixture(scope="module")
def before(run_dir: RunDir, mindinsight: Path) -> Verdict:
    return check(run_dir.base, mindinsight)


@pytest.fixture(scope="module")
def after(run_dir: RunDir, before: Verdict, mindinsight: Path) -> Verdict:
    """The path of 9 to 15 drawn again, with other axes."""
    five = np.linspace(-2, 2, 5)
    write_landscapes(run_dir, [make_grid(x=five, y=five, z=np.ones((5, 5)), numbers=(9, 12, 15))])
    return check(run_dir.base, mindinsight)


def test_every_plane_is_drawn_and_the_line_is_not(before: Verdict) -> None:
    assert before.complaints == []
    read = before.jobs["./"]["landscape"]
    assert {name: plane["grid"] for name, plane in read["intervals"].items()} == {
        "[1, 9]": [3, 4],
        "[9, 15]": [3, 4],
    }
    assert read["intervals"]["[1, 9]"]["path_points"] == 3
    assert read["final"]["grid"] == [3, 4]


def test_a_replaced_landscape_is_drawn_in_the_place_of_the_older_one(after: Verdict) -> None:
    assert after.complaints == []
    read = after.jobs["./"]["landscape"]
    assert {name: plane["grid"] for name, plane in read["intervals"].items()} == {
        "[1, 9]": [3, 4],
        "[9, 15]": [5, 5],
    }
    assert read["final"]["grid"] == [3, 4]


def test_next_to_the_planes_there_are_the_curves_of_the_training_and_a_copy_of_the_loss(before, after):
    for verdict in (before, after):
        read = verdict.jobs["./"]
        tags = ("loss/scalar", "lr/scalar", "loss/auto/scalar")
        assert {tag: points["points"] for tag, points in read["scalar"].items()} == dict.fromkeys(tags, 6)
        shown = {plugin: count for plugin, count in read["plugins"].items() if count}
        assert shown == {"loss_landscape": 3, "scalar": 3}
