import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Directions, LossGrid, Plane, Progress, landscape
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.trajectory import read
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.format.records import Event, Value
from distsummary.landscapes.directions.checkpoint_sources import is_single
from distsummary.landscapes.engines import naive_engine
from distsummary.rundir.run_dir import RunDir
from tests.event_files import write_events
from tests.landscape_arguments import grouped
from tests.unit.landscapes import golden_mlp
from tests.unit.landscapes.golden_mlp import Mlp, batches, cross_entropy


def make_parts() -> tuple[Any, Any, Any]:
    return Mlp(), cross_entropy, batches()


def draw(**changes: Any) -> Any:
    """5 x 5 landscapes of the golden run, PCA unless said otherwise: a grid, or several by direction."""
    model, loss_fn, data = make_parts()
    arguments = {
        "around": golden_mlp.CKPT_DIR, "size": 5, "progress": False, "model": model, "batches": data,
    } | ({} if "batch_loss" in changes else {"loss_fn": loss_fn})  # fmt: skip
    arguments |= changes
    directions = changes.get("directions")
    if isinstance(directions, list | tuple):
        return landscape(**grouped(**arguments))
    usual = "random" if "runs" not in changes and is_single(arguments["around"]) else "pca"
    grids = landscape(**grouped(**arguments | {"directions": [directions or usual]}))
    return next(iter(grids.values())) if len(grids) == 1 else grids


def save_path(run_dir: RunDir, states: list[dict[str, Any]], intervals: list[list[int]]) -> None:
    spec = LandscapeSpec(intervals=tuple(map(tuple, intervals)), landscape_size=5)
    writer = TrajectoryWriter(run_dir.ckpt_dir, spec, model_name="Mlp", run_id="0" * 16, step_per_epoch=4)
    for number, state in enumerate(states, 1):
        writer.save(number, state)


def walk(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    state = Mlp().parameters
    return [
        {n: (a + 0.1 * k * rng.normal(size=a.shape)).astype(np.float32) for n, a in state.items()}
        for k in range(count)
    ]


def recorded_run(path: Path) -> RunDir:
    """A run of one rank with 4 checkpoints and 6 steps of loss."""
    run = RunDir(path).create()
    save_path(run, walk(4), [[1, 2, 3, 4]])
    run_id = run.update_manifest(lambda manifest: None)["run_id"]
    values = [[Value("scalar", "loss", 3.0 - 0.25 * k), Value("scalar", "lr", 0.1)] for k in range(6)]
    events = [Event(k + 1, 1000.0 + k, values[k]) for k in range(6)]
    write_events(run.base, events, run_id=run_id)
    return run


@pytest.fixture
def run_dir(nasty_tmp_path: Path) -> RunDir:
    return recorded_run(nasty_tmp_path / "run")


def test_one_direction_gives_a_grid_and_several_a_dict(run_dir: RunDir) -> None:
    single = draw(around=run_dir)
    assert (single.decomposition, single.numbers) == ("PCA", (1, 2, 3, 4))
    assert (single.unit, single.step_per_epoch, single.mode, single.bn_mode) == (
        "step", 4, "standard", "eval",
    )  # fmt: skip
    assert (single.centering, single.normalization, single.engine) == ("last", "none", "numpy-naive")
    both = draw(around=str(run_dir.base), directions=("pca", "random"), seed=4)
    assert list(both) == ["pca", "random"]
    assert both["pca"].z.tobytes() == single.z.tobytes()
    assert (both["random"].seed, both["random"].rng) == (4, "philox-bm-v1")
    assert both["random"].normalization == "filter"
    assert list(draw(around=read(run_dir.ckpt_dir), directions=("pca",))) == ["pca"]


def test_every_point_of_the_grid_is_the_loss_at_its_coordinates() -> None:
    rng = np.random.default_rng(3)
    shapes = {name: a.shape for name, a in Mlp().parameters.items()}
    x, y = ({n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in range(2))
    model = Mlp(np.float64)
    start = {n: a.copy() for n, a in model.parameters.items()}
    grid = draw(
        model=model, around=None, size=4, directions=Directions(x=x, y=y), normalization="none",
        batches=batches(),
    )  # fmt: skip
    for i, b in enumerate(grid.y):
        for j, a in enumerate(grid.x):
            moved = Mlp(np.float64)
            moved.parameters = {n: start[n] + a * x[n] + b * y[n] for n in start}
            losses = [cross_entropy(moved(data), labels) for data, labels in batches()]
            assert grid.z[i, j] == pytest.approx(np.mean(losses), rel=1e-12)
    assert grid.samples == 24


def test_batches_count_by_their_rows_but_not_in_mindspores_mode() -> None:
    x, y = (np.concatenate(parts) for parts in zip(*batches(), strict=True))
    uneven = [(x[:20], y[:20]), (x[20:], y[20:])]
    whole = draw(around=None, batches=[(x, y)])
    assert draw(around=None, batches=uneven).z == pytest.approx(whole.z, rel=1e-6)
    unweighted = draw(around=None, batches=uneven, mode="mindspore", normalization="filter")
    assert np.abs(unweighted.z - whole.z).max() > 1e-3


def test_the_model_is_left_as_it_was_also_after_an_error() -> None:
    model = Mlp()
    before = {name: (id(a), a.tobytes()) for name, a in model.parameters.items()}
    calls = []

    def loss_fn(model: Mlp, batch: Any) -> float:
        calls.append(model.parameters["d1.bias"].tobytes())
        if len(calls) > 10:
            raise ZeroDivisionError("in the loss")
        return cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(LandscapeError, match="in the loss"):
        draw(model=model, batch_loss=loss_fn)
    assert calls[-1] != before["d1.bias"][1]
    assert {name: (id(a), a.tobytes()) for name, a in model.parameters.items()} == before


LIMIT: list[float] = []  # a global, which the journal does not know: the code stays the same


def raising_at(weight: float) -> Any:
    """A loss that raises where the first weight is beyond a value."""
    LIMIT[:] = [weight]
    return _raising


def _raising(model: Mlp, batch: Any) -> float:
    if model.parameters["d1.weight"][0, 0] > LIMIT[0]:
        raise ValueError("not positive definite.\nAt all.")
    return cross_entropy(model(batch[0]), batch[1])


CENTRE = float(Mlp().parameters["d1.weight"][0, 0])


UNLABELLED = (np.ones((3, 4), np.float32), "no labels")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ([batches()[0], UNLABELLED], "batch 2"),
        ({"train": batches(), "test": [batches()[0], UNLABELLED]}, "batch 2 of test"),
    ],
)
def test_a_loss_that_raises_is_reported_with_its_batch(data: Any, name: str) -> None:
    def loss_fn(model: Mlp, batch: Any) -> float:
        if isinstance(batch[1], str):
            raise ValueError("no labels.")
        return cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(LandscapeError, match=rf"raised ValueError: no labels in {name} at checkpoint 1 of"):
        draw(batch_loss=loss_fn, batches=data, around=None)


def test_a_loss_that_raises_somewhere_is_reported_with_its_place() -> None:
    with pytest.raises(LandscapeError) as failed:
        draw(batch_loss=raising_at(CENTRE), around=None)
    assert isinstance(failed.value.__cause__, ValueError)
    assert str(failed.value) == (
        "the model, the loss function or a metric raised ValueError: not positive definite in batch 1 at "
        "y = -1, x = -1 to 1; fix the error, or return NaN there "
        "(the 2 finished points are lost; with run_dir= they would be kept)"
    )


@pytest.mark.usefixtures("no_matplotlib")
def test_what_was_finished_before_a_loss_raised_is_kept_and_not_evaluated_again(tmp_path: Path) -> None:
    arguments = {"around": None, "run_dir": tmp_path}
    with pytest.raises(LandscapeError, match=r"the 2 finished points are kept in .*journal-"):
        draw(batch_loss=raising_at(CENTRE), **arguments)
    reported: list[Progress] = []
    grid = draw(batch_loss=raising_at(np.inf), **arguments, progress=reported.append)
    assert (reported[-1].fresh, reported[-1].done) == (25, 27)
    assert grid.z.tobytes() == draw(around=None).z.tobytes()


@pytest.mark.usefixtures("no_matplotlib")
def test_a_landscape_that_continues_elsewhere_says_so(tmp_path, monkeypatch, caplog):
    arguments = {"around": None, "run_dir": tmp_path}
    here = draw(around=None).hardware
    with pytest.raises(LandscapeError, match="are kept"):
        draw(batch_loss=raising_at(CENTRE), **arguments)
    monkeypatch.setattr(naive_engine, "processor", lambda: "another machine")
    grid = draw(batch_loss=raising_at(np.inf), **arguments)
    there = draw(around=None).hardware
    assert there != here
    [record] = [record for record in caplog.records if "last bits" in record.message]
    assert f"computed on {here}, and now on {there}" in record.message
    assert grid.hardware == f"{here} and {there}"
    [saved] = (tmp_path / "landscape").glob("*.npz")
    assert LossGrid.load(saved).hardware == grid.hardware


def test_a_function_of_model_and_batch_takes_batches_of_any_kind() -> None:
    def loss_fn(model: Mlp, batch: dict[str, Any]) -> float:
        return cross_entropy(model(batch["x"]), batch["y"])

    named = [{"x": x, "y": y} for x, y in batches()]
    assert draw(batch_loss=loss_fn, batches=named, around=None).z.tobytes() == draw(around=None).z.tobytes()
    with pytest.raises(InvalidTypeError, match=r"pass a function of .model, batch. as batch_loss="):
        draw(batches=named, around=None)


def test_the_progress_is_reported_up_to_the_last_point() -> None:
    reported: list[Progress] = []
    draw(directions="random", progress=reported.append)
    done = [progress.done for progress in reported]
    assert done == sorted(done)
    assert (reported[-1].done, reported[-1].total, reported[-1].fresh) == (27, 27, 27)
    assert all(progress.by_worker["here"] > 0 for progress in reported)


def test_numbers_that_were_never_saved_are_left_out_and_named(tmp_path, caplog):
    run = RunDir(tmp_path / "run").create()
    save_path(run, walk(4), [[1, 2, 3], [3, 4, 5, 6], [1, 3, 4, 9]])
    with caplog.at_level(logging.WARNING):
        grids = draw(around=run)
    assert list(grids) == ["pca[1, 3]", "pca[1, 4]"]
    assert grids["pca[1, 4]"].numbers == (1, 3, 4)
    assert "[3, 4, 5, 6], only [3, 4] were saved" in caplog.text


def test_one_direction_is_one_grid_and_a_list_is_a_grid_for_each() -> None:
    parts: dict[str, Any] = dict(zip(("model", "loss_fn", "batches"), make_parts(), strict=True))
    parts |= {"plane": Plane(size=3), "progress": False}
    one = landscape(**parts, directions="random")
    for several in (["random"], ("random",), ["random", "random"]):
        grids = landscape(**parts, directions=several)
        assert list(grids) == ["random"]
        assert grids["random"].z.tobytes() == one.z.tobytes()
    own = Directions(x={"d2.bias": np.arange(3.0)}, y={"d2.bias": np.ones(3)})
    fixed = parts | {"plane": Plane(size=3, normalization="none")}
    assert list(landscape(**fixed, directions=[own, "random", own])) == ["given", "random", "given[2]"]
    assert landscape(**parts).z.tobytes() == one.z.tobytes()
    of_path = parts | {"around": golden_mlp.CKPT_DIR}
    with pytest.raises(InvalidValueError, match=r"2 intervals, each .*; pass directions=\['pca'\]"):
        landscape(**of_path)
    assert list(landscape(**of_path, directions=["pca"])) == ["pca[1, 4]", "pca[3, 6]"]
    assert landscape(**of_path, directions="line").kind == "line"
    assert landscape(**parts | {"batches": {"a": batches(), "b": batches()}}).data_sets == ("a", "b")


def test_a_side_has_51_points_where_nothing_is_said() -> None:
    grid = landscape(Mlp(), batch_loss=lambda model, batch: 1.0, batches=batches()[:1], progress=False)
    assert grid.z.tolist() == [[1.0] * 51] * 51


def rename(state: dict[str, Any]) -> dict[str, Any]:
    return {f"net.{name}": array for name, array in state.items()}


def widen(state: dict[str, Any]) -> dict[str, Any]:
    return {name: np.zeros((9, 9), np.float32) if name == "d1.weight" else a for name, a in state.items()}


@pytest.mark.parametrize(
    ("change", "match"), [(rename, r"checkpoint \d.*d1\.bias"), (widen, r"\(9, 9\), the model .*\(5, 4\)")]
)
def test_checkpoints_of_another_model_are_refused(change, match, tmp_path):
    run = RunDir(tmp_path / "run").create()
    save_path(run, [change(state) for state in walk(3)], [[1, 2, 3]])
    with pytest.raises(InvalidValueError, match=match):
        draw(around=run)


def test_a_single_checkpoint_has_a_random_plane_and_no_path(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    save_path(run, walk(1), [[1, 2, 3]])
    with pytest.raises(LandscapeError, match="at least 3 checkpoints, got 1"):
        draw(around=run)
    grid = draw(around=run, directions="random")
    assert (grid.tag, grid.numbers) == ("landscape_[1]", (1,))
    assert grid.z[2, 2] == grid.true_loss[0] == grid.path_loss[0]


def test_equal_checkpoints_have_no_plane(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    save_path(run, [walk(1)[0]] * 3, [[1, 2, 3]])
    for mode in ("standard", "mindspore"):
        with pytest.raises(LandscapeError, match="all equal"):
            draw(around=run, mode=mode)


def test_weights_of_zero_have_no_filter_normalised_plane() -> None:
    model = Mlp()
    for array in model.parameters.values():
        array[...] = 0
    with pytest.raises(LandscapeError, match="without any parameter to move"):
        draw(model=model, around=None)
    assert draw(model=model, around=None, normalization="none").z.std() > 0


def test_mindspores_mode_needs_a_whole_batch(tmp_path: Path) -> None:
    x, y = (np.concatenate(parts) for parts in zip(*batches(), strict=True))
    with pytest.raises(InvalidValueError, match="at least the batch size 24, got 16"):
        draw(batches=[(x, y)], mode="mindspore")
