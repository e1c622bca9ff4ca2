"""What comes back from workers stands where it belongs, and says where nothing came."""

from typing import Any

import numpy as np
import pytest

from distsummary import Directions, LossGrid
from distsummary.landscapes.directions.planes import PlanePlan, Prepared
from distsummary.landscapes.engines.chunks import Chunk, Kind, plan_chunks
from distsummary.landscapes.engines.worker import EngineFacts
from distsummary.landscapes.run.assemble import assemble, gather
from distsummary.landscapes.run.refine import first_points

ROWS, COLUMNS = 4, 6


def prepared(shape: tuple[int, int] = (ROWS, COLUMNS), **known: Any) -> Prepared:
    """A plane around two checkpoints of one weight, 1.0 at last."""
    along = {"w": np.ones(1, np.float32)}
    plane = PlanePlan(
        states=[{"w": np.zeros(1, np.float32)}, {"w": np.ones(1, np.float32)}],
        names=("w",),
        recipe=Directions(x=along, y=along),
        x=np.linspace(-1, 1, shape[1]),
        y=np.linspace(-2, 2, shape[0]),
        points=np.array([[-0.5, 0.0], [0.0, 0.0]]),
    )
    usual = {
        "numbers": (1, 2), "residuals": np.zeros(2), "decomposition": "PCA", "mode": "standard"
    }  # fmt: skip
    return Prepared(plane=plane, known=usual | known)


def loss(chunk: Chunk) -> np.ndarray:
    """Two quantities of each point that show where it is from: linear in row and column."""
    kinds = {"grid": 0, "path": 1000, "checkpoint": 2000}
    one = kinds[chunk.kind] + 100.0 * chunk.plane + 10.0 * chunk.row + np.array(chunk.columns)
    return np.stack([one, -one], axis=1)


def everything(*landscapes: Prepared) -> dict[Chunk, np.ndarray]:
    chunks = plan_chunks([landscape.plane for landscape in landscapes], grid_chunk=4)
    return {chunk: loss(chunk) for chunk in chunks}


def grid_of(
    results: dict[Chunk, np.ndarray], *, number: int = 0, abandoned: tuple[Chunk, ...] = (), **known: Any
) -> LossGrid:
    return assembled(prepared(**known), results, number=number, abandoned=abandoned)


def assembled(
    landscape: Prepared,
    results: dict[Chunk, np.ndarray],
    *,
    number: int = 0,
    abandoned: tuple[Chunk, ...] = (),
) -> LossGrid:
    return assemble(
        number,
        landscape,
        results,
        abandoned,
        facts=EngineFacts(name="naive", bn_mode="eval", samples=3, quantities=("loss", "minus")),
        worker_seconds={"here": 2.0},
        precision="",
        precision_error=0.25,
    )


def points(kind: Kind, row: int, *columns: int, plane: int = 0) -> Chunk:
    return Chunk(plane=plane, kind=kind, row=row, columns=columns)


def test_every_result_stands_in_its_place() -> None:
    grid = grid_of(everything(prepared(), prepared()), number=1)
    assert grid.z.tolist() == (100 + np.add.outer(10.0 * np.arange(ROWS), np.arange(COLUMNS))).tolist()
    assert (grid.path_loss.tolist(), grid.true_loss.tolist()) == ([1100, 1101], [2100, 2101])
    assert grid.convergence_point == (0.0, 0.0, 1101.0)
    assert list(grid.quantities) == ["minus"]
    assert np.array_equal(grid.quantities["minus"], -grid.z)
    assert grid.computed.all()
    assert (grid.precision_error, grid.samples, grid.lost_points) == (0.25, 3, 0)


def test_points_that_were_given_up_are_holes_of_their_own_landscape_alone() -> None:
    results = everything(prepared(), prepared())
    given_up = (points("grid", 1, 4, 5), points("path", 0, 0, 1), points("grid", 0, 0, plane=1))
    for chunk in given_up:
        results[chunk] = np.full((len(chunk), 2), np.nan)
    grid = grid_of(results, abandoned=given_up)
    assert np.argwhere(~grid.computed).tolist() == [[1, 4], [1, 5]]
    assert np.argwhere(np.isnan(grid.z)).tolist() == [[1, 4], [1, 5]]  # nothing is made up for them
    assert np.isnan(grid.path_loss).all()
    assert grid.lost_points == 4
    other = grid_of(results, abandoned=given_up, number=1)
    assert np.argwhere(~other.computed).tolist() == [[0, 0]]
    assert other.lost_points == 1


def test_rows_between_evaluated_ones_are_interpolated_and_those_beyond_are_not() -> None:
    results = {c: m for c, m in everything(prepared()).items() if c.kind != "grid" or c.row in (1, 3)}
    grid = grid_of(results)
    assert grid.computed.any(axis=1).tolist() == grid.computed.all(axis=1).tolist() == [False, True] * 2
    assert grid.z[2].tolist() == [20, 21, 22, 23, 24, 25]
    assert grid.quantities["minus"][2].tolist() == [-20, -21, -22, -23, -24, -25]
    assert np.isnan(grid.z[0]).all()  # though there are points of the path


def test_a_refined_grid_is_interpolated_along_both_axes() -> None:
    shape = (17, 17)
    wanted = first_points(shape)
    assert not wanted.all()
    chunks = plan_chunks([prepared(shape).plane], wanted=[wanted])
    grid = grid_of({chunk: loss(chunk) for chunk in chunks}, shape=shape)
    assert np.array_equal(grid.computed, wanted)
    np.testing.assert_allclose(grid.z, np.add.outer(10.0 * np.arange(17), np.arange(17)))
    np.testing.assert_allclose(grid.quantities["minus"], -grid.z)


def test_without_a_single_result_all_is_missing() -> None:
    found = gather({}, 0, prepared().plane)
    assert (found.grid.shape, found.path.shape, found.checkpoint.shape) == (
        (ROWS, COLUMNS, 1),
        (2, 1),
        (2, 1),
    )
    assert np.isnan(found.grid).all()
    assert not found.computed.any()


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"decomposition": "Random", "mode": "mindspore"}, (0.2, 2 / 3, 23.0)),
        ({"decomposition": "PCA", "mode": "mindspore"}, (0.0, 0.0, 1001.0)),
        ({"decomposition": "Random", "mode": "standard"}, (0.0, 0.0, 1001.0)),
    ],
)
def test_the_convergence_point_is_the_centre_but_where_mindspore_has_it_elsewhere(known, expected):
    assert grid_of(everything(prepared()), **known).convergence_point == pytest.approx(expected)


def test_rounding_is_that_of_a_step_between_neighbours() -> None:
    ulp = float(np.spacing(np.float32(1)))
    landscape = prepared()
    for width, lost in ((0.9, 1.0), (1.1, 0.0)):
        landscape.plane.x[:] = 7 + width * ulp * np.arange(COLUMNS)
        found = assembled(landscape, everything(landscape))
        assert found.rounding == {"x": lost, "y": 0.0}


def test_an_axis_of_one_point_has_no_step_that_could_be_lost() -> None:
    assert grid_of(everything(prepared((1, COLUMNS))), shape=(1, COLUMNS)).rounding["y"] == 0.0
