"""Lines, triangles, joint planes and subspaces through the public function, on the numpy model."""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Directions, Plane, landscape
from distsummary.checkpoints.mindspore_ckpt import write_ckpt
from distsummary.checkpoints.safetensors import write_safetensors
from distsummary.errors import (
    DamagedFileError,
    InvalidTypeError,
    InvalidValueError,
    LandscapeError,
    MissingFileError,
)
from distsummary.landscapes.output.write import landscape_record
from distsummary.rundir.run_dir import RunDir
from tests.refusals import refused
from tests.unit.landscapes.golden_mlp import Mlp, batches, cross_entropy
from tests.unit.landscapes.test_generator import draw, save_path, walk


def loss_at(state: dict[str, Any]) -> float:
    """The mean loss over all rows with these parameters."""
    model = Mlp()
    model.parameters = {name: np.asarray(array) for name, array in state.items()}
    return float(np.mean([cross_entropy(model(x), y) for x, y in batches()]))


def start_of(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=a.shape).astype(np.float32) for n, a in Mlp().parameters.items()}


def make_run(path: Path, seed: int, count: int = 3) -> RunDir:
    run = RunDir(path).create()
    rng, state, states = np.random.default_rng(seed), start_of(seed), []
    for _ in range(count):
        state = {n: (a + 0.1 * rng.normal(size=a.shape)).astype(np.float32) for n, a in state.items()}
        states.append(state)
    save_path(run, states, [list(range(1, count + 1))])
    return run


def between(start: dict[str, Any], end: dict[str, Any], share: float) -> dict[str, Any]:
    return {name: (1 - share) * start[name] + share * end[name] for name in start}


def test_a_line_is_one_row_from_the_first_checkpoint_to_the_last(tmp_path: Path) -> None:
    run, states = RunDir(tmp_path / "run").create(), walk(4)
    save_path(run, states, [[1, 2, 3, 4]])
    grid = draw(around=run, directions="line", size=5)
    assert (grid.kind, grid.z.shape, grid.numbers, grid.tag) == (
        "line", (1, 5), (1, 4), "landscape_line_[1, 4]",
    )  # fmt: skip
    expected = [loss_at(between(states[0], states[-1], k / 4)) for k in range(5)]
    np.testing.assert_allclose(grid.z[0], expected, rtol=1e-5)
    np.testing.assert_allclose(grid.true_loss, expected[::4], rtol=1e-6)
    np.testing.assert_allclose(grid.path_loss, grid.z[0, [0, -1]], rtol=1e-6)
    straight = np.linspace(expected[0], expected[-1], 5)
    assert grid.barrier == pytest.approx(max(0, np.max(expected - straight)), abs=1e-6)
    with pytest.raises(LandscapeError, match="only a line has a barrier"):
        _ = draw(around=run).barrier


def test_a_line_leads_from_one_run_to_another(tmp_path: Path) -> None:
    one, two = start_of(1), start_of(2)
    write_ckpt(tmp_path / "one.ckpt", one)
    write_safetensors(tmp_path / "two.safetensors", two)
    grid = draw(
        around=None, runs=[tmp_path / "one.ckpt", str(tmp_path / "two.safetensors")], directions="line"
    )
    np.testing.assert_allclose(grid.z[0, 2], loss_at(between(one, two, 0.5)), rtol=1e-5)
    assert (grid.runs, grid.run_lengths) == (("one", "two"), (1, 1))
    same = draw(around=None, runs=[one, two], directions=["line"])["line"]
    assert same.z.tobytes() == grid.z.tobytes()


def test_a_triangle_goes_exactly_through_three_states() -> None:
    corners = [start_of(seed) for seed in (1, 2, 3)]
    grid = draw(around=None, runs=corners, directions="triangle", size=7)
    assert (grid.kind, grid.runs, grid.run_lengths) == (
        "triangle",
        ("state (1)", "state (2)", "state (3)"),
        (1, 1, 1),
    )
    assert grid.residuals.max() < 1e-6
    np.testing.assert_allclose(grid.path_loss, grid.true_loss, rtol=1e-5)
    np.testing.assert_allclose(grid.true_loss, [loss_at(c) for c in corners], rtol=1e-6)
    assert grid.path[0, 1] == pytest.approx(grid.path[1, 1], abs=1e-5)  # x lies along the first side
    record = landscape_record(grid)
    assert record.path_x.size == 0


def test_a_run_has_a_triangle_of_its_first_middle_and_last_checkpoint(tmp_path: Path) -> None:
    grid = draw(around=make_run(tmp_path / "a", 1, count=5), directions="triangle")
    assert grid.numbers == (1, 3, 5)
    assert grid.runs == ("step 1", "step 3", "step 5")


def test_several_runs_have_one_plane_with_the_path_of_each(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, seed, count) for name, seed, count in [("a", 1, 3), ("b", 2, 4)]]
    grid = draw(around=None, runs=runs)
    assert (grid.kind, grid.runs, grid.run_lengths, grid.centering) == ("joint", ("a", "b"), (3, 4), "mean")
    assert grid.numbers == (1, 2, 3, 1, 2, 3, 4)
    assert grid.path[-1].tolist() == [0, 0]
    gap = np.linalg.norm(grid.path[2] - grid.path[3])
    assert gap > 3 * np.linalg.norm(grid.path[1] - grid.path[0])  # the runs lie apart
    record = landscape_record(grid)
    assert record.intervals == (1, 2, 3, 4)
    assert record.path_x.tolist() == grid.path[3:, 0].tolist()
    assert grid.tag == "landscape_joint_[1, 4]"


def test_a_joint_plane_of_one_path_cut_in_two_is_its_pca_plane(tmp_path: Path) -> None:
    states = walk(6)
    whole = RunDir(tmp_path / "whole").create()
    save_path(whole, states, [[1, 2, 3, 4, 5, 6]])
    cut = [RunDir(tmp_path / name).create() for name in "ab"]
    save_path(cut[0], states[:3], [[1, 2, 3]])
    save_path(cut[1], states[3:], [[1, 2, 3]])
    one, two = draw(around=whole, centering="mean"), draw(around=None, runs=cut)
    assert one.z.tobytes() == two.z.tobytes()
    assert one.path.tolist() == two.path.tolist()
    assert draw(around=None, runs=cut, centering="last").z.tobytes() == draw(around=whole).z.tobytes()


def test_only_what_a_pattern_names_moves(tmp_path: Path) -> None:
    run, states = RunDir(tmp_path / "run").create(), walk(4)
    save_path(run, states, [[1, 2, 3, 4]])
    grid = draw(around=run, parameters=[r"^d2\."], size=5)
    assert 0 < grid.residuals[0] < 1
    assert grid.true_loss[0] == pytest.approx(loss_at(states[0]), rel=1e-6)
    assert grid.path_loss[0] != pytest.approx(grid.true_loss[0], rel=1e-3)  # d1 stays at the centre
    with pytest.raises(InvalidValueError, match=r"'d3' matches no .*similar names are d2\.weight, d2\.bias"):
        draw(around=run, parameters="d3")


def test_directions_of_ones_own_may_name_a_part_of_the_parameters_next_to_others() -> None:
    x, y = {"d2.bias": np.array([1, 0, 0.0])}, {"d2.bias": [0, 1, 0.0]}
    given = Directions(x=x, y=y)  # type: ignore[arg-type]  # lists are taken, too
    both = draw(around=None, directions=[given, "random"], normalization="none")
    model = Mlp()
    model.parameters["d2.bias"] = model.parameters["d2.bias"] + np.array([1, -1, 0], np.float32)
    expected = np.mean([cross_entropy(model(a), b) for a, b in batches()])
    assert both["given"].z[0, -1] == pytest.approx(expected, rel=1e-6)
    assert both["random"].z.tobytes() == draw(around=None, normalization="none").z.tobytes()


def test_a_centre_that_is_not_finite_is_refused_by_the_name_of_the_parameter() -> None:
    model = Mlp()
    model.parameters["d1.bias"][2] = np.inf
    for more in ({}, {"normalization": "none"}):
        with pytest.raises(LandscapeError, match=r"d1\.bias of the centre holds NaN or Inf"):
            draw(model=model, around=None, **more)


def test_a_checkpoint_file_is_a_centre_like_the_model_itself(tmp_path: Path) -> None:
    state = start_of(4)
    write_ckpt(tmp_path / "m.ckpt", state)
    model = Mlp()
    for name, array in state.items():
        model.parameters[name][...] = array
    expected = draw(model=model, around=None)
    for around in (tmp_path / "m.ckpt", state):
        grid = draw(around=around)
        assert grid.kind == "random"
        assert grid.z.tobytes() == expected.z.tobytes()


def test_files_that_are_gone_or_foreign_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"gone\.ckpt"):
        draw(around=tmp_path / "gone.ckpt")
    (tmp_path / "text.ckpt").write_text("not a checkpoint")
    with pytest.raises(DamagedFileError, match=r"text\.ckpt"):
        draw(around=tmp_path / "text.ckpt")
    run = make_run(tmp_path / "run", 1)
    (run.ckpt_dir / "Mlp_2_step.ckpt").unlink()
    with pytest.raises(MissingFileError, match="Mlp_2_step"):
        draw(around=run)
    write_ckpt(run.ckpt_dir / "Mlp_2_step.ckpt", start_of(9))
    with pytest.raises(DamagedFileError, match="not the file that run"):
        draw(around=run)


def test_a_bad_argument_is_refused() -> None:
    def along(x: Any) -> object:
        given = Directions(x={"d2.bias": x}, y={"d2.bias": np.ones(3)})
        return draw(around=None, directions=given, normalization="none")

    def without(**changes: Any) -> object:
        return draw(**({"around": None} | changes))

    real = r"the x direction of d2\.bias is .*; give real numbers"
    refused(
        InvalidValueError,
        (lambda: without(runs=[start_of(1)]), r"at least two runs((?!array).)*got 1; use around="),
        (lambda: without(runs="abc"), "at least two runs"),
        (lambda: without(runs=["a", "b"], directions="random"), "directions with runs= must be one of"),
        (lambda: without(runs=["a", "b"], mode="mindspore"), r"runs= cannot .*mode='mindspore'"),
        (lambda: without(runs=["a", "b"], around="a"), "runs= cannot be combined with around="),
        (lambda: without(directions="line"), "directions='line' needs around="),
        (lambda: without(filter_axis={"d9": 1}), "filter_axis names d9"),
        (lambda: along(np.array([1, np.nan, 0])), r"x direction holds NaN, Inf or .* in d2\.bias"),
        (lambda: along(np.full(3, 1e200)), r"NaN, Inf or a number too large for float32 in d2\.bias"),
        (lambda: along(np.zeros(4)), r"shape \(4,\)"),
    )
    refused(
        InvalidTypeError,
        (lambda: without(runs=3), "runs must be Sequence"),
        (lambda: without(runs=[1, 2]), "around must be"),
        (lambda: along(np.ones(3, complex)), real),
        (lambda: along(["a", "b", "c"]), real),
    )
    refused(LandscapeError, (lambda: along(np.zeros(3)), "x direction is zero"))


def test_a_single_checkpoint_makes_no_line(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    save_path(run, walk(1), [[1, 2, 3]])
    with pytest.raises(InvalidValueError, match="a line needs 2 checkpoints, got 1"):
        draw(around=run, directions="line")


def test_the_filter_axis_reaches_the_directions() -> None:
    plain = landscape(Mlp(), cross_entropy, batches(), plane=Plane(size=3), progress=False)
    turned = landscape(
        Mlp(), cross_entropy, batches(), plane=Plane(size=3, filter_axis={"d1.weight": 1}), progress=False
    )
    assert plain.z[1, 1] == turned.z[1, 1]
    assert plain.z[0, 0] != turned.z[0, 0]


@pytest.mark.parametrize("directions", ["pca", "random"])
def test_a_value_that_stays_and_is_nan_is_reported_by_name(tmp_path: Path, directions: str) -> None:
    run, states = RunDir(tmp_path / "run").create(), walk(3)
    states[-1]["d2.bias"][1] = np.nan
    save_path(run, states, [[1, 2, 3]])
    with pytest.raises(
        LandscapeError, match=r"checkpoint 3 of run: d2\.bias of the centre holds NaN.*is not varied"
    ):
        draw(around=run, directions=directions, parameters="d1")


@pytest.mark.parametrize("intervals", [[[2, 3, 4], [1, 2, 3]], [[1, 2, 3], [4, 5, 6]]])
def test_the_last_checkpoint_is_the_one_with_the_highest_number_for_all(tmp_path, intervals):
    run, states = RunDir(tmp_path / "run").create(), walk(4)
    save_path(run, states, intervals)  # of [4, 5, 6] only 4
    given = Directions(x=start_of(1), y=start_of(2))
    asked = ["random", given, "line", "triangle"]
    assert [grid.numbers[-1] for grid in draw(around=run, directions=asked, size=3).values()] == [4] * 4
    line = draw(around=None, runs=[states[0], run], directions="line", size=3)
    np.testing.assert_allclose(line.true_loss[-1], loss_at(states[3]), rtol=1e-6)
    states[3]["d2.bias"][1] = np.nan
    save_path(run, states, intervals)
    for more in ({"around": run, "directions": "line"}, {"around": None, "runs": [states[0], run]}):
        with pytest.raises(LandscapeError, match=r"checkpoint 4 of .*: d2\.bias of the centre"):
            draw(**more, parameters="d1")


@pytest.mark.parametrize("directions", ["pca", "line", "triangle"])
def test_a_checkpoint_of_a_path_that_is_not_finite_is_reported_by_its_number(tmp_path: Path, directions: str):
    run, states = RunDir(tmp_path / "run").create(), walk(3)
    states[0]["d1.weight"][1, 1] = np.inf
    save_path(run, states, [[1, 2, 3]])
    with pytest.raises(LandscapeError, match=r"(checkpoint|step) 1 holds NaN or Inf in d1\.weight; .*runs="):
        draw(around=run, directions=directions)
    files = [run.ckpt_dir / f"Mlp_{number}_step.ckpt" for number in (1, 2, 3)]
    with pytest.raises(LandscapeError, match="Mlp_1_step holds NaN or Inf"):
        draw(around=None, runs=files, directions=directions if directions != "line" else "pca")


def test_files_of_torch_save_are_refused_with_what_to_do(tmp_path: Path) -> None:
    for name in ("model.pt", "pytorch_model.bin"):
        with pytest.raises(InvalidValueError, match=r"torch\.save are not read here.*weights_only=True"):
            draw(around=tmp_path / name)
    assert draw(around=make_run(tmp_path / "run.pt", 1), size=3).kind == "pca"


def test_runs_of_one_name_are_numbered_apart_also_from_one_that_is_called_so(tmp_path: Path) -> None:
    file, (state, *others) = tmp_path / "state (1).ckpt", walk(3)
    write_ckpt(file, state)
    grid = draw(around=None, runs=[*others, file], directions="pca")
    assert grid.runs == ("state (1) (1)", "state (2)", "state (1) (3)")
    assert len(grid.path) == 3


def test_a_checkpoint_of_another_model_is_reported_with_its_run(tmp_path: Path) -> None:
    runs = [RunDir(tmp_path / name).create() for name in ("first", "second")]
    states = walk(3)
    save_path(runs[0], states, [[1, 2, 3]])
    save_path(runs[1], [*states[:2], states[2] | {"d1.weight": np.zeros((1, 2), np.float32)}], [[1, 2, 3]])
    with pytest.raises(InvalidValueError, match=r"checkpoint 3 of second has d1\.weight of shape \(1, 2\)"):
        draw(around=None, runs=runs, directions="line")
    with pytest.raises(InvalidValueError, match=r"^state has d1\.weight of shape \(1, 2\)"):
        draw(around=states[2] | {"d1.weight": np.zeros((1, 2), np.float32)})


@pytest.fixture
def few_files() -> Iterator[None]:
    """This process may open ten more files than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = sorted(set(range(1000)) - set(map(int, os.listdir("/proc/self/fd"))))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[10], hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(sys.version_info < (3, 13), reason="what is mapped stays open")
def test_a_path_of_more_checkpoints_than_files_may_be_open_is_drawn(tmp_path: Path, few_files: None) -> None:
    run, count = RunDir(tmp_path / "run").create(), 30
    save_path(run, walk(count), [list(range(1, count + 1))])
    assert np.isfinite(draw(around=run).z).all()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="what is mapped need not be open")
def test_a_path_of_more_checkpoints_than_files_may_be_open_says_what_to_raise(tmp_path, few_files):
    run, count = RunDir(tmp_path / "run").create(), 30
    save_path(run, walk(count), [list(range(1, count + 1))])
    with pytest.raises(LandscapeError, match=r"more checkpoints than.*ulimit -n") as failed:
        draw(around=run)
    assert isinstance(failed.value.__cause__, OSError)
    files = sorted(run.ckpt_dir.glob("*.ckpt"))
    with pytest.raises(LandscapeError, match="ulimit -n"):
        draw(around=None, runs=files, directions="pca")
