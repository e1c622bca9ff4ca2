"""What the bytes of a .vtp say, read with Python's XML and base64; tests/interop asks VTK itself."""

import base64
import struct
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest

from distsummary import LossGrid
from distsummary.landscapes.output.vtp import STEPS, to_vtp
from tests.unit.landscapes.test_grid import QUANTITY_NAMES, full_grid, make_grid, random_grid


class PolyData(NamedTuple):
    """The counts of the piece, and its arrays by (section, name)."""

    counts: dict[str, int]
    arrays: dict[tuple[str, str], np.ndarray]

    def cells(self, section: str) -> list[list[int]]:
        ends = self.arrays[section, "offsets"].tolist()
        flat = self.arrays[section, "connectivity"].tolist()
        assert len(flat) == ([0, *ends])[-1]
        return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def parse(data: bytes) -> PolyData:
    root = ElementTree.fromstring(data)
    assert root.attrib == {
        "type": "PolyData",
        "version": "1.0",
        "byte_order": "LittleEndian",
        "header_type": "UInt64",
    }
    piece = root.find("PolyData/Piece")
    assert piece is not None
    arrays = {}
    for section in [*piece, *root.findall("PolyData/FieldData")]:
        for array in section:
            if array.tag == "DataArray":
                arrays[section.tag, array.attrib["Name"]] = decode(array)
    return PolyData({k.removeprefix("NumberOf"): int(v) for k, v in piece.attrib.items()}, arrays)


def decode(array: ElementTree.Element) -> np.ndarray:
    data = base64.b64decode(array.text or "", validate=False)
    (size,) = struct.unpack("<Q", data[:8])
    assert len(data) == 8 + size
    values = np.frombuffer(data[8:], {"Float64": "<f8", "Int64": "<i8"}[array.attrib["type"]])
    return values.reshape(-1, 3) if array.attrib.get("NumberOfComponents") == "3" else values


def test_the_surface_is_the_grid_with_the_loss_as_height() -> None:
    grid = make_grid()
    read = parse(to_vtp(grid))
    points = read.arrays["Points", "Points"][:12]
    assert points[:, 0].reshape(3, 4).tolist() == [grid.x.tolist()] * 3
    assert points[:, 1].reshape(3, 4).T.tolist() == [grid.y.tolist()] * 4
    assert points[:, 2].reshape(3, 4).tolist() == grid.z.tolist()
    assert read.arrays["PointData", "loss"][:12].tolist() == grid.z.reshape(-1).tolist()
    with np.errstate(divide="ignore"):
        logs = np.log10(grid.z.reshape(-1))
    np.testing.assert_array_equal(read.arrays["PointData", "log10_loss"][1:12], logs[1:])
    assert np.isnan(read.arrays["PointData", "log10_loss"][0])  # the loss is 0 there
    quads = read.cells("Polys")
    assert len(quads) == read.counts["Polys"] == 6
    assert read.counts["Strips"] == 0
    assert quads[0] == [0, 1, 5, 4]
    assert quads[-1] == [6, 7, 11, 10]


def test_the_checkpoints_are_vertices_with_their_true_loss_and_number() -> None:
    grid = make_grid()
    read = parse(to_vtp(grid))
    vertices = [cell[0] for cell in read.cells("Verts")]
    assert len(vertices) == read.counts["Verts"] == 3
    assert read.arrays["Points", "Points"][vertices].tolist() == [
        [*at, loss] for at, loss in zip(grid.path.tolist(), grid.path_loss.tolist(), strict=True)
    ]
    for name, values in (
        ("true_loss", grid.true_loss),
        ("loss", grid.path_loss),
        ("residual", grid.residuals),
        ("checkpoint", np.array(grid.numbers)),
    ):
        assert read.arrays["PointData", name][vertices].tolist() == values.tolist(), name
    assert read.arrays["FieldData", "explained_variance"].tolist() == [0.8, 0.15]


def test_the_path_is_one_line_on_the_surface_through_all_checkpoints() -> None:
    read = parse(to_vtp(make_grid()))
    [line] = read.cells("Lines")
    vertices = [cell[0] for cell in read.cells("Verts")]
    assert line[::STEPS] == vertices
    assert len(line) == 2 * STEPS + 1
    between = [index for index in line if index not in vertices]
    assert (read.arrays["PointData", "checkpoint"][between] == -1).all()
    x, y, z = read.arrays["Points", "Points"][between].T
    np.testing.assert_allclose(z, 10 * (y + 2) / 2 + (x + 1) * 1.5)
    parts = read.arrays["CellData", "part"].tolist()
    assert parts == [1] * 3 + [1] + [0] * 6


def test_a_path_of_one_checkpoint_is_a_vertex() -> None:
    read = parse(to_vtp(random_grid(numbers=())))
    assert (read.counts["Verts"], read.counts["Lines"], read.counts["Points"]) == (1, 0, 13)
    assert ("FieldData", "explained_variance") not in read.arrays
    assert {len(array) for (section, _), array in read.arrays.items() if section == "PointData"} == {13}
    assert read.arrays["PointData", "checkpoint"].tolist() == [-1] * 12 + [0]  # it has no number


def test_a_loss_that_is_not_finite_makes_a_hole_and_a_finite_coordinate() -> None:
    z = make_grid().z.copy()
    z[0, 0], z[2, 3] = np.nan, -np.inf
    read = parse(to_vtp(make_grid(z=z, path_loss=np.array([3.0, np.inf, 1.0]))))
    loss, points = read.arrays["PointData", "loss"], read.arrays["Points", "Points"]
    np.testing.assert_array_equal(loss[:12], z.reshape(-1))
    assert np.isfinite(points).all()
    assert (points[0, 2], points[11, 2]) == (22.0, 1.0)  # the largest finite loss, the smallest
    assert read.cells("Polys") == [[1, 2, 6, 5], [2, 3, 7, 6], [4, 5, 9, 8], [5, 6, 10, 9]]
    in_lines = {index for line in read.cells("Lines") for index in line}
    assert np.isfinite(loss[list(in_lines)]).all()
    assert {12, 14} <= in_lines  # the checkpoints to both sides of the one that was lost
    assert 13 not in in_lines


def test_a_path_has_no_line_across_a_hole_between_checkpoints() -> None:
    z = make_grid().z.copy()
    z[1, 2] = np.nan
    read = parse(to_vtp(make_grid(z=z)))
    [line] = read.cells("Lines")  # its last leg begins before the hole and ends in it
    assert line[: STEPS + 1 : STEPS] == [12, 13]
    assert STEPS + 1 < len(line) < 2 * STEPS
    assert np.isfinite(read.arrays["PointData", "loss"][line]).all()
    assert np.isnan(read.arrays["PointData", "loss"][line[-1] + 1])


def test_a_grid_of_one_row_is_a_line_with_gaps() -> None:
    row = make_grid(
        x=np.arange(5.0),
        y=np.zeros(1),
        z=np.array([[1.0, 2.0, np.nan, 4.0, 5.0]]),
        path=np.array([[0.0, 0.0], [1.0, 0.0], [4.0, 0.0]]),
    )
    read = parse(to_vtp(row))
    assert read.counts["Polys"] == 0
    assert read.cells("Lines") == [[5, 6, 7], [0, 1], [3, 4]]
    assert read.arrays["CellData", "part"].tolist() == [1] * 3 + [1, 0, 0]


@pytest.mark.parametrize("name", ["grid.vtp", "GRID.VTP"])
def test_the_suffix_names_the_format(nasty_tmp_path: Path, name: str) -> None:
    grid: LossGrid = make_grid()
    grid.save(nasty_tmp_path / name)
    assert (nasty_tmp_path / name).read_bytes() == to_vtp(grid)


def test_each_run_of_a_joint_plane_has_its_line_and_its_number() -> None:
    joint = make_grid(kind="joint", runs=("a", "b"), run_lengths=(1, 2))
    read = parse(to_vtp(joint))
    [line] = read.cells("Lines")  # one checkpoint makes none
    assert line[::STEPS] == [13, 14]
    assert read.arrays["PointData", "run"][12:15].tolist() == [0, 1, 1]
    other = parse(to_vtp(make_grid(kind="joint", runs=("a", "b"), run_lengths=(2, 1))))
    assert [line[::STEPS] for line in other.cells("Lines")] == [[12, 13]]


def test_steps_known_by_sketches_are_a_line_on_the_surface_of_a_part_of_its_own() -> None:
    steps = np.column_stack((np.linspace(-0.9, 0, 7), np.linspace(0.1, 0, 7)))
    read = parse(to_vtp(make_grid(steps=tuple(range(7)), step_path=steps)))
    path, between = read.cells("Lines")
    assert path[::STEPS] == [12, 13, 14]
    points = read.arrays["Points", "Points"][between]
    np.testing.assert_allclose(points[:, :2], steps)
    np.testing.assert_allclose(points[:, 2], 10 * (steps[:, 1] + 2) / 2 + (steps[:, 0] + 1) * 1.5)
    assert read.arrays["CellData", "part"].tolist() == [1] * 3 + [1, 2] + [0] * 6


def test_each_quantity_is_an_array_of_the_grids_points() -> None:
    grid = full_grid()
    read = parse(to_vtp(grid))
    built_in = {"loss", "log10_loss", "true_loss", "residual", "checkpoint", "run", "computed"}
    names = [name for section, name in read.arrays if section == "PointData"]
    assert len(names) == len(built_in) + len(QUANTITY_NAMES)
    assert built_in < set(names)
    for name, values in grid.quantities.items():
        array = read.arrays["PointData", "quantity:run" if name == "run" else name]
        assert len(array) == read.counts["Points"]
        np.testing.assert_array_equal(array[:12], values.reshape(-1))
        assert np.isnan(array[12:]).all()


def test_quantities_whose_names_are_taken_do_not_take_one_anothers() -> None:
    one, other = np.full((3, 4), 1.0), np.full((3, 4), 2.0)
    for names in (("loss", "quantity:loss"), ("quantity:loss", "loss")):
        read = parse(to_vtp(make_grid(quantities=dict(zip(names, (one, other), strict=True)))))
        found = {name: array[0] for (_, name), array in read.arrays.items() if "quantity:" in name}
        assert sorted(found.values()) == [1.0, 2.0]


def test_which_points_were_computed_is_an_array_and_facts_of_the_grid_are_fields() -> None:
    grid = full_grid()
    read = parse(to_vtp(grid))
    computed = read.arrays["PointData", "computed"]
    assert computed[:12].tolist() == grid.computed.reshape(-1).tolist()
    assert computed[12:15].tolist() == [1, 1, 1]  # the checkpoints
    assert not computed[15:].any()  # what lies between is interpolated
    assert read.arrays["FieldData", "precision_error"].tolist() == [2.5e-4]
    assert read.arrays["FieldData", "rounding"].tolist() == [0.23, 0.0]
    text = ElementTree.fromstring(to_vtp(grid)).find("PolyData/FieldData/Array")
    assert text is not None
    assert text.attrib == {"type": "String", "Name": "hardware", "NumberOfTuples": "1", "format": "binary"}
    assert base64.b64decode(text.text or "")[8:] == "two of a kind é\0".encode()
    assert [name for section, name in parse(to_vtp(make_grid())).arrays if section == "FieldData"] == [
        "explained_variance"
    ]


def test_two_runs_are_two_lines_and_none_leads_from_one_to_the_other() -> None:
    joint = make_grid(
        kind="joint",
        runs=("a", "b"),
        run_lengths=(2, 3),
        numbers=(1, 2, 1, 2, 3),
        path=np.array([[-0.9, 0.1], [-0.4, 1.5], [0.5, -1.0], [0.2, 0.1], [0.0, 0.0]]),
        path_loss=np.arange(5.0),
        true_loss=np.arange(5.0),
        residuals=np.zeros(5),
    )
    read = parse(to_vtp(joint))
    first, second = read.cells("Lines")
    assert (first[::STEPS], second[::STEPS]) == ([12, 13], [14, 15, 16])
    assert not set(first) & set(second)
    assert read.arrays["CellData", "part"].tolist()[:7] == [1] * 7
