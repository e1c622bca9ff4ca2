import io
import json
import math
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import distsummary as ds
from distsummary import LossGrid
from distsummary.errors import (
    DamagedFileError,
    InvalidValueError,
    LandscapeCancelled,
    MissingExtraError,
    MissingFileError,
    RunDirError,
)
from distsummary.format import npz
from distsummary.landscapes.directions.planes import path_axes
from distsummary.landscapes.output.grid import finite_bounds
from distsummary.landscapes.output.write import landscape_record
from distsummary.rundir.run_dir import RunDir
from tests.refusals import refused


def make_grid(**changes: Any) -> LossGrid:
    """A small PCA grid; z[i, j] = 10 i + j."""
    fields: dict[str, Any] = {
        "x": np.linspace(-1, 1, 4), "y": np.linspace(-2, 2, 3),
        "z": np.add.outer(10.0 * np.arange(3), np.arange(4.0)), "numbers": (1, 5, 9),
        "path": np.array([[-0.9, 0.1], [-0.4, 1.5], [0.0, 0.0]]), "path_loss": np.array([3.0, 2.0, 1.0]),
        "true_loss": np.array([3.5, 2.25, 1.0]), "residuals": np.array([0.1, 0.2, 0.0]),
        "decomposition": "PCA", "convergence_point": (0.0, 0.0, 1.0),
        "explained_variance": np.array([0.8, 0.15]), "unit": "epoch", "step_per_epoch": 7,
        "centering": "last", "seed": 3, "engine": "numpy-naive", "samples": 16,
        "worker_seconds": {"here": 1.5},
    }  # fmt: skip
    return LossGrid(**(fields | changes))


def random_grid(**changes: Any) -> LossGrid:
    """The same values as a random plane around checkpoint 9."""
    only_centre = {
        "numbers": (9,), "path": np.zeros((1, 2)), "path_loss": np.array([1.0]), "true_loss": np.array([1.0]),
        "residuals": np.zeros(1), "explained_variance": np.empty(0), "decomposition": "Random",
    }  # fmt: skip
    return make_grid(**(only_centre | changes))


def full_grid() -> LossGrid:
    """A grid with a value in every field, with names that file formats stumble over."""
    measured = {
        name: np.full((3, 4), np.nan) if name == "stderr" else np.arange(12.0).reshape(3, 4) / (number + 3)
        for number, name in enumerate(QUANTITY_NAMES)
    }
    return make_grid(
        kind="joint", runs=("a/b", "c"), run_lengths=(1, 2), eigenvalues=(2.5, 0.5),
        eigenvalue_errors=(0.1, 0.2), hessian_angles=(12.0, 88.5), rng="philox",
        parameters=("lora", "head"), filter_axis={"a.weight": 1, "b.weight": (1, 2)}, directions="0123abcd",
        label="only_lora", normalization="layer", mode="mindspore", bn_mode="batch",
        data_sets=("train", "test"), quantities=measured, computed=np.eye(3, 4) > 0, is_partial=True,
        lost_points=2, hardware="two of a kind é", precision_error=2.5e-4, rounding={"x": 0.23, "y": 0.0},
        lengths={"x": 1.0, "y": 12.5}, run="a run", model="Net",
    )  # fmt: skip


QUANTITY_NAMES = (
    *(
        "accuracy", "stderr", "loss[3]", "test/loss", "test/a/../b", "run", "50%", "50%2F", ".", "..", "/",
        "a b",
    ),
    *('<&">', "z", "x.npy", "meta", "雪"),
)  # fmt: skip
GRIDS = {"pca": make_grid(), "random": random_grid(numbers=()), "full": full_grid()}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_a_saved_grid_is_loaded_as_it_was(grid: LossGrid, nasty_tmp_path: Path) -> None:
    path = nasty_tmp_path / "grid.npz"
    grid.save(path)
    loaded = LossGrid.load(path)
    for name in LossGrid.__dataclass_fields__:
        one, other = getattr(grid, name), getattr(loaded, name)
        if isinstance(one, np.ndarray):
            assert (one.tobytes(), one.dtype, one.shape) == (other.tobytes(), other.dtype, other.shape), name
        elif name != "quantities":
            assert one == other, name
    assert list(loaded.quantities) == list(grid.quantities)
    assert {n: a.tobytes() for n, a in loaded.quantities.items()} == {
        n: np.asarray(a).tobytes() for n, a in grid.quantities.items()
    }


def test_the_full_grid_leaves_no_field_at_its_default() -> None:
    grid = full_grid()
    for field in fields(LossGrid):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        assert not np.array_equal(getattr(grid, field.name), default), field.name


def test_all_points_count_as_computed_where_nothing_else_is_said() -> None:
    assert make_grid().computed.dtype == np.bool_
    assert make_grid().computed.shape == (3, 4)
    assert make_grid().computed.all()


def test_what_does_not_fit_the_grid_is_refused() -> None:
    refused(
        InvalidValueError,
        (lambda: make_grid(z=np.zeros((4, 3))), r"\(3, 4\)"),
        (lambda: make_grid(computed=np.ones((4, 3), bool)), r"computed must be .* = \(3, 4\), got \(4, 3\)"),
        (lambda: make_grid(computed=np.ones((3, 4))), "computed must have the dtype bool, got float64"),
        (lambda: make_grid(quantities={"acc": np.ones(12)}), r"acc must be .* = \(3, 4\), got \(12,\)"),
    )


def _zeros(shape: tuple[int, ...], header_shape: tuple[int, ...] | None = None) -> bytes:
    """An array of zeros as .npy, whose header may say another shape."""
    header = io.BytesIO()
    described = {"descr": "<f8", "fortran_order": False, "shape": header_shape or shape}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue() + bytes(8 * math.prod(shape))


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("z", _zeros((6000, 6000))),  # which is deflated to kilobytes
        ("x", _zeros((4,), (10**12,))),
        ("z", _zeros((4,), (-1, 4))),
        ("z", _npy(np.array([os.system], object))),
        ("z", _npy(np.full((3, 4), "a"))),
        ("z", _npy(np.float64(1.0))),
        ("path", _npy(np.zeros(4))),
        ("meta", _npy("[" * 100_000)),
        ("meta", _npy('{"format": 1, "numbers": 1e999}')),
        ("x", b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16),
        ("x", b""),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_an_archive_that_is_no_grid_is_refused_before_it_is_inflated(tmp_path, name, member, monkeypatch):
    monkeypatch.setattr(npz, "MOST_INFLATED", 1 << 20)
    path = RunDir(tmp_path).landscape_dir / "grid.npz"
    path.parent.mkdir()
    make_grid().save(path)
    with zipfile.ZipFile(path) as archive:
        members = {one: archive.read(one) for one in archive.namelist()} | {f"{name}.npy": member}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for one, data in members.items():
            archive.writestr(one, data)
    tracemalloc.start()
    with pytest.raises(DamagedFileError, match="compute it again"):
        LossGrid.load(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    (tmp_path / "run.json").write_text(json.dumps({"format": 2, "run_id": "", "attempts": []}))
    run = ds.open_run(tmp_path)
    assert (run.landscapes, len(run.problems)) == ({}, 1)


@pytest.mark.parametrize(
    ("name", "value", "damage"),
    [
        ("numbers", [2**63 - 1], None),
        ("numbers", [2**63], "more than 63 bits"),
        ("rounding", {"x": 0.5}, None),
        ("rounding", {"x": 0.5, "rA": 0.5}, "rounding of rA; a plane has x and y"),
        ("lengths", {"": 0.5}, "lengths of "),
    ],
)
def test_a_grid_whose_meta_holds_what_it_cannot_is_damage(name: str, value: object, damage: str | None):
    saved = make_grid().to_npz()
    with np.load(io.BytesIO(saved)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    meta = json.loads(str(arrays["meta"]))
    changed = io.BytesIO()
    np.savez(changed, **arrays | {"meta": np.array(json.dumps(meta | {name: value}))})
    with pytest.raises(DamagedFileError, match=damage) if damage else nullcontext():
        LossGrid.from_npz(changed.getvalue())


def test_what_is_no_saved_grid_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"none\.npz"):
        LossGrid.load(tmp_path / "none.npz")
    for number, data in enumerate([b"", b"PK\x03\x04 no zip", b"text"]):
        (tmp_path / f"{number}.npz").write_bytes(data)
        with pytest.raises(DamagedFileError, match="compute it again"):
            LossGrid.load(tmp_path / f"{number}.npz")
    (tmp_path / "grid.h5").write_bytes(b"\x89HDF\r\n")
    with pytest.raises(
        DamagedFileError, match=r"grid\.h5 cannot be read: it is not an \.npz file, the only format that"
    ):
        LossGrid.load(tmp_path / "grid.h5")
    np.savez(tmp_path / "other.npz", x=np.arange(3))
    with pytest.raises(DamagedFileError, match="compute it again"):
        LossGrid.load(tmp_path / "other.npz")


def test_what_cannot_be_saved_or_drawn_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    refused(
        InvalidValueError,
        (lambda: make_grid().save(tmp_path / "grid.npz.gz"), r"grid.* must end with \.npz; .*to_xarray"),
        (lambda: make_grid().plot(tmp_path / "grid.gif"), r"'grid\.gif'.*\.pdf.*\.png.*\.svg"),
        (lambda: make_grid().plot(tmp_path / "grid.png", kind="heat"), "kind must .*contour.*surface"),
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere/grid{}", r"there is no directory .*nowhere; make it first"),
        ("file.txt/grid{}", r"file\.txt is a file; choose another directory"),
        ("taken{}", "it is a directory; choose another name"),
        ("fifo{}", "it is no regular file; choose another name"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_named_as_it_was_asked_for(nasty_tmp_path, name, says):
    (nasty_tmp_path / "file.txt").touch()
    for suffix, write in ((".npz", make_grid().save), (".png", make_grid().plot)):
        (nasty_tmp_path / f"taken{suffix}").mkdir()
        os.mkfifo(nasty_tmp_path / f"fifo{suffix}")
        path = nasty_tmp_path / name.format(suffix)
        with pytest.raises(RunDirError, match=f"cannot be written: .*{says}") as refused:
            write(path)
        assert str(refused.value).startswith(f"{path} ")
        assert ".tmp-" not in str(refused.value)


def test_a_saved_grid_has_landscapers_names_too(tmp_path: Path) -> None:
    z = np.add.outer(10.0 * np.arange(4), np.arange(4.0))
    z[0, 0], z[1, 1], z[2, 2] = np.nan, np.inf, -np.inf
    grid = make_grid(z=z, y=np.linspace(-2, 2, 4))
    grid.save(tmp_path / "grid.npz")
    with np.load(tmp_path / "grid.npz") as saved:  # as LossLandscape.load_from_npz and its constructor do
        loss, ranges = saved["loss"], saved["coordinates"]
        assert ranges.shape == (2, 4)
        x, y = np.meshgrid(*ranges)
        assert (x[0].tolist(), y[:, 0].tolist()) == (grid.x.tolist(), grid.y.tolist())
    assert loss.shape == x.shape
    finite = np.isfinite(z)
    assert loss[finite].tolist() == z[finite].tolist()
    assert (loss[0, 0], loss[1, 1], loss[2, 2]) == (33.0, 33.0, 1.0)
    assert LossGrid.load(tmp_path / "grid.npz").z.tobytes() == z.tobytes()


def test_a_grid_that_is_not_square_has_no_place_in_landscapers_names(tmp_path: Path) -> None:
    make_grid().save(tmp_path / "grid.npz")
    with np.load(tmp_path / "grid.npz") as saved:
        assert not {"loss", "coordinates"} & set(saved.files)


def test_a_dataset_has_the_arrays_by_name_and_writes_other_formats(tmp_path, monkeypatch):
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "True")  # as sklearn sets it, which a reader of xarray imports
    grid = make_grid(quantities={"train/accuracy": np.arange(12.0).reshape(3, 4)})
    data = grid.to_xarray()
    assert data["loss"].dims == ("y", "x")
    assert data["loss"].values.tobytes() == grid.z.tobytes()
    assert data["train/accuracy"].sel(x=grid.x[1], y=grid.y[2]) == 9.0
    assert data["path_x"].sel(checkpoint=grid.numbers[-1]) == grid.path[-1, 0]
    assert json.loads(data.attrs["distsummary"])["kind"] == grid.kind
    assert data.sizes == {"y": 3, "x": 4, "checkpoint": len(grid.numbers)}
    data.to_netcdf(tmp_path / "grid.nc")
    with xarray.open_dataset(tmp_path / "grid.nc") as read:
        assert read.equals(data)


def test_a_dataset_without_xarray_names_the_pip_line(hide_package: Callable[[str], None]) -> None:
    hide_package("xarray")
    with pytest.raises(MissingExtraError, match="pip install xarray"):
        make_grid().to_xarray()


def test_the_standard_error_is_that_of_the_first_data_set() -> None:
    one, other = np.ones((3, 4)), np.zeros((3, 4))
    named = {"val/acc/stderr": other, "val/stderr": one, "test/loss": other, "test/stderr": other}
    assert make_grid(data_sets=("val", "test"), quantities=named).stderr is one
    assert make_grid(quantities={"stderr": one}).stderr is one
    assert make_grid(data_sets=("val", "test"), quantities={"test/loss": one}).stderr is None


def test_a_grid_and_a_cancelled_landscape_are_shown_in_a_line() -> None:
    grid = make_grid(kind="pca")
    reported = "LossGrid(pca, 4 x 3 points, loss 0 to 23, explained variance 0.8 + 0.15, numpy-naive)"
    assert repr(grid) == reported
    nothing = random_grid(z=np.full((3, 4), np.nan), computed=np.eye(3, 4) > 0, engine="")
    assert repr(nothing) == "LossGrid(Random, 4 x 3 points, no finite loss, 3 of 12 computed)"
    assert "loss 1 to 23" in repr(make_grid(z=np.where(np.eye(3, 4) > 0, np.nan, grid.z)))
    assert repr(LandscapeCancelled({"pca": grid})) == f"LandscapeCancelled({{'pca': {reported}}})"


def test_tags_are_mindspores() -> None:
    assert make_grid().tag == "landscape_[1, 9]"
    assert random_grid().tag == "landscape_[9]"
    assert random_grid(numbers=()).tag == "landscape"
    assert random_grid(kind="given").tag == "landscape_[9]"  # of older files, and MindSpore's replayed


def test_a_label_stands_in_the_tag_behind_the_kind() -> None:
    assert make_grid(kind="pca", label="only_lora").tag == "landscape_only_lora_[1, 9]"
    assert make_grid(kind="line", label="no2").tag == "landscape_line_no2_[1, 9]"


def test_the_record_of_a_path_shows_the_in_plane_losses_and_of_a_random_plane_no_path() -> None:
    record = landscape_record(make_grid())
    assert (record.decomposition, record.unit, record.step_per_epoch) == ("PCA", "epoch", 7)
    assert record.intervals == (1, 5, 9)
    assert record.path_x.tolist() == [-0.9, -0.4, 0.0]
    assert record.path_y.tolist() == [0.1, 1.5, 0.0]
    assert record.path_z.tolist() == [3.0, 2.0, 1.0]
    assert record.z.shape == (3, 4)
    random = landscape_record(random_grid())
    assert random.intervals == ()
    assert random.path_x.size == random.path_y.size == random.path_z.size == 0


def test_losses_that_are_not_finite_stay_in_the_file_and_are_bounded_in_the_record(tmp_path: Path) -> None:
    z = make_grid().z.copy()
    z[0, 0], z[1, 1], z[2, 2], z[2, 3] = np.nan, np.inf, -np.inf, 1e300
    grid = make_grid(z=z, path_loss=np.array([np.inf, 2.0, -5.0]), convergence_point=(0.0, 0.0, np.nan))
    grid.save(tmp_path / "grid.npz")
    assert LossGrid.load(tmp_path / "grid.npz").z.tobytes() == z.tobytes()
    record = landscape_record(grid)
    largest = float(np.finfo(np.float32).max)
    assert record.z[0, 0] == record.z[1, 1] == record.z[2, 3] == record.path_z[0] == largest
    assert record.z[2, 2] == -5.0
    assert record.convergence_point == (0.0, 0.0, largest)
    assert np.isfinite(record.z).all()
    assert np.isfinite(record.z.astype(np.float32)).all()


def test_a_grid_without_any_finite_loss_is_zero_in_the_record() -> None:
    nothing = np.full((3, 4), np.nan)
    grid = make_grid(z=nothing, path_loss=np.full(3, np.inf), convergence_point=(0.0, 0.0, np.inf))
    assert finite_bounds(nothing) == (0.0, 0.0)
    assert not landscape_record(grid).z.any()
    assert landscape_record(grid).convergence_point == (0.0, 0.0, 0.0)


def test_axes_are_the_paths_box_and_a_fifth_on_each_side() -> None:
    x, y = path_axes(np.array([[-4.0, 1.0], [0.0, 0.0], [1.0, -1.0]]), 5)
    np.testing.assert_allclose(x, np.linspace(-5, 2, 5))
    np.testing.assert_allclose(y, np.linspace(-1.4, 1.4, 5))
