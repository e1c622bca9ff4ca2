"""MindSpore's door to landscapes: what it takes, what it refuses, and that its numbers are MindSpore's."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Compute, LossGrid, Plane, SummaryLandscape, landscape
from distsummary.checkpoints.trajectory import read
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.errors import (
    InvalidTypeError,
    InvalidValueError,
    LandscapeCancelled,
    MissingFileError,
    NotADirectoryPathError,
    RunDirError,
)
from distsummary.events.reader import read_file
from distsummary.events.segments import landscape_files
from distsummary.landscapes import summary_landscape
from distsummary.landscapes.summary_landscape import count_workers, parts_of
from distsummary.rundir.run_dir import RunDir
from tests.refusals import refused
from tests.unit.landscapes import golden_mlp
from tests.unit.landscapes.golden_mlp import Mlp, batches, cross_entropy
from tests.unit.landscapes.test_generator import make_parts, recorded_run

SMALL = {"landscape_size": 3, "num_samples": 16}
pytestmark = pytest.mark.usefixtures("no_matplotlib")  # tests/pictures looks at pictures


@pytest.fixture
def run_dir(nasty_tmp_path: Path) -> RunDir:
    """Four checkpoints in one interval."""
    return recorded_run(nasty_tmp_path / "run")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The same, for all tests that write nothing."""
    return recorded_run(tmp_path_factory.mktemp("untouched") / "run")


def generate(run_dir: RunDir, **changes: Any) -> dict[str, LossGrid]:
    arguments = {"callback_fn": make_parts, "collect_landscape": SMALL, "device_ids": [0]}
    landscapes = SummaryLandscape(run_dir, mode=changes.pop("mode", "standard"))
    return landscapes.gen_landscapes_with_multi_process(**(arguments | changes))


def shown(directory: Path) -> list[str]:
    """The tags of the landscapes that MindInsight shows of a run dir."""
    values = [v for file in landscape_files(directory) for e in read_file(file) for v in e.values]
    return [v.tag for v in values if v.plugin == "landscape"]


def test_what_the_training_asked_for_is_drawn_and_written(run_dir: RunDir) -> None:
    before = (run_dir.ckpt_dir / "train_metadata.json").read_bytes()
    grids = generate(run_dir, collect_landscape=None)
    assert list(grids) == ["pca", "random"]
    assert grids["pca"].numbers == (1, 2, 3, 4)
    assert grids["pca"].z.shape == (5, 5)  # the recorded size
    assert shown(run_dir.base) == ["landscape_[1, 4]", "landscape_[4]"]
    assert LossGrid.load(run_dir.landscape_dir / "landscape_1-4.npz").z.tobytes() == grids["pca"].z.tobytes()
    assert (run_dir.ckpt_dir / "train_metadata.json").read_bytes() == before


def test_the_losses_are_those_of_landscape(run_dir: RunDir) -> None:
    grids = generate(run_dir)
    same = landscape(
        *make_parts()[:2], batches()[:2], around=run_dir, plane=Plane(size=3), directions=("pca", "random"),
        progress=False,
    )  # fmt: skip
    for name in ("pca", "random"):
        assert grids[name].z.tobytes() == same[name].z.tobytes()


def test_mode_mindspore_draws_what_mindspore_drew(tmp_path: Path) -> None:
    landscapes = SummaryLandscape(golden_mlp.GOLDEN / "summary", mode="mindspore")
    grids = landscapes.gen_landscapes_with_multi_process(
        lambda: (cross_entropy, Mlp(), batches(), {"Loss": None}), device_ids=[0], output=tmp_path / "maps"
    )
    stored = golden_mlp.stored()
    assert {grid.tag for grid in grids.values()} == stored.keys()
    for grid in grids.values():
        np.testing.assert_allclose(grid.x, stored[grid.tag]["x"], rtol=0, atol=1e-7)
        if grid.decomposition == "PCA":
            np.testing.assert_allclose(grid.z, stored[grid.tag]["z"], rtol=0, atol=1e-5)


def test_collect_landscape_changes_what_is_drawn_for_this_call(run_dir: RunDir) -> None:
    asked = {
        "landscape_size": 4, "unit": "epoch", "create_landscape": {"train": True, "result": False},
        "num_samples": 23, "intervals": [[2, 3, 4], [1, 2, 3]],
    }  # fmt: skip
    grids = generate(run_dir, collect_landscape=asked)
    assert list(grids) == ["pca[2, 4]", "pca[1, 3]"]
    for grid in grids.values():
        assert (grid.z.shape, grid.unit, grid.samples) == ((4, 4), "epoch", 16)  # 2 batches of 8
    assert read(run_dir.ckpt_dir).intervals == ((1, 2, 3, 4),)


@pytest.mark.parametrize(
    ("mode", "intervals", "last"),
    [
        ("standard", [[2, 3, 4], [1, 2, 3]], 4), ("mindspore", [[2, 3, 4], [1, 2, 3]], 3),
        ("standard", [[1, 3, 2]], 3), ("mindspore", [[1, 3, 2]], 2), ("standard", [], 4),
    ],
)  # fmt: skip
def test_a_random_plane_is_around_the_highest_number_asked_for_and_in_mindspores_mode_the_last(
    run_dir: RunDir, mode: str, intervals: list[list[int]], last: int
) -> None:
    only_result = {"create_landscape": {"train": False, "result": True}}
    grids = generate(run_dir, mode=mode, collect_landscape=SMALL | only_result | {"intervals": intervals})
    assert [(name, grid.numbers) for name, grid in grids.items()] == [("random", (last,))]


def test_an_empty_create_landscape_is_what_was_recorded(run_dir: RunDir) -> None:
    assert list(generate(run_dir, collect_landscape=SMALL | {"create_landscape": {}})) == ["pca", "random"]


def test_nothing_asked_for_writes_nothing_and_calls_no_one(run_dir: RunDir) -> None:
    def never() -> None:
        raise AssertionError

    nothing = {"create_landscape": {"train": False, "result": False}}
    assert generate(run_dir, callback_fn=never, collect_landscape=nothing) == {}
    assert not run_dir.landscape_dir.exists()


def test_another_output_gets_the_landscapes_and_the_loss_curve_of_the_run(run_dir: RunDir, tmp_path: Path):
    generate(run_dir, output=str(tmp_path / "maps"))
    assert shown(tmp_path / "maps") == ["landscape_[1, 4]", "landscape_[4]"]
    [file] = landscape_files(tmp_path / "maps")
    values = [v for e in read_file(file) for v in e.values]
    assert sum(v.tag == "loss/auto" for v in values) == 6
    assert not run_dir.landscape_dir.exists()


def test_it_begins_again_when_asked_to(run_dir: RunDir, stop_at: Any) -> None:
    seen = stop_at(None)
    generate(run_dir)
    whole = len(seen)
    stop_at(2)
    with pytest.raises(LandscapeCancelled):
        generate(run_dir)
    seen = stop_at(None)
    generate(run_dir, resume=False)
    assert len(seen) == whole


# --- callback_fn


class WithLoss:
    """What wraps a loss function, as MindSpore's Model does."""

    loss_fn = staticmethod(cross_entropy)


NET = Mlp()


@pytest.mark.parametrize(
    ("model", "metrics"),
    [
        (cross_entropy, None), (cross_entropy, {"Loss": object(), "Accuracy": object()}),
        (WithLoss(), None), (NET, {"Loss": cross_entropy}), (None, {"Loss": cross_entropy}),
    ],
    ids=["a loss function", "with metrics", "with a loss_fn", "the network", "none"],
)  # fmt: skip
def test_mindspores_four_values_report_the_loss_function(model: Any, metrics: Any) -> None:
    expected = {"model": NET, "loss_fn": cross_entropy, "batches": batches}
    assert parts_of((model, NET, batches, metrics)) == expected


def test_a_function_of_model_and_batch_comes_in_a_dict() -> None:
    parts = {"model": NET, "batch_loss": max, "batches": batches}
    assert parts_of(parts) == parts
    with pytest.raises(InvalidTypeError, match=r"loss_fn or batch_loss.*got a dict"):
        parts_of({"model": NET, "batches": batches})


@pytest.mark.parametrize(
    ("result", "kind", "says"),
    [
        (None, InvalidTypeError, "callback_fn must return .*got a NoneType"),
        ((1, 2), InvalidTypeError, "got a tuple of 2"),
        ((cross_entropy, NET, [], []), InvalidTypeError, "metrics .* must be dict or None, got"),
        ((cross_entropy, NET, [], {"loss": 1}), InvalidValueError, r"'Loss', got \['loss'\]"),
        ((None, NET, [], None), InvalidTypeError, r"metrics\['Loss'\] must be a loss function, got None"),
        ((3, NET, [], None), InvalidTypeError, "the model .* must be a loss function, got 3"),
    ],
)
def test_another_result_of_callback_fn_is_refused(result: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        parts_of(result)


# --- bad arguments


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"callback_fn": ["data"]}, InvalidTypeError, r"callback_fn must be a function .*\), got a list$"),
        ({"device_ids": (0, 1)}, InvalidTypeError, "device_ids must be list or None"),
        ({"device_ids": [0, "1"]}, InvalidTypeError, r"device_ids\[1\] must be int, got '1'"),
        ({"device_ids": [True]}, InvalidTypeError, r"device_ids\[0\] must be int, got True"),
        ({"device_ids": [-1]}, InvalidValueError, r"device_ids\[0\] must be >= 0, got -1"),
        ({"device_ids": [1, 1]}, InvalidValueError, r"each device once, got \[1, 1\]"),
        ({"output": 3}, InvalidTypeError, "output must be str or PathLike"),
        ({"output": " "}, InvalidValueError, "output must not be blank"),
        ({"collect_landscape": True}, InvalidTypeError, "collect_landscape must be dict or None"),
        ({"collect_landscape": {"size": 3}}, InvalidValueError, "unknown key 'size'"),
        (
            {"collect_landscape": {"num_samples": 7}},
            InvalidValueError,
            r"^collect_landscape\['num_samples'\] must be at least the batch size 8, got 7; give",
        ),
        (
            {"collect_landscape": {"intervals": [[3, 4, 5, 6]]}},
            InvalidValueError,
            r"steps that were not saved: \[5, 6\]; saved are \[1, 2, 3, 4\]",
        ),
    ],
)
def test_a_bad_argument_is_named(untouched, changes, kind, says):
    with pytest.raises(kind, match=says):
        generate(untouched, **changes)
    assert not untouched.landscape_dir.exists()


def test_the_constructor_names_a_bad_argument() -> None:
    wrong: Any = SummaryLandscape
    refused(
        InvalidTypeError,
        (lambda: wrong(None), "summary_dir must be str or PathLike"),
        (lambda: wrong("run", seed=1.5), "seed must be int"),
    )
    refused(
        InvalidValueError,
        (lambda: wrong(""), "summary_dir must not be blank"),
        (lambda: wrong("run", mode="x"), "mode must be one of"),
    )
    refused(NotADirectoryPathError, (lambda: wrong(__file__), "summary_dir must be a directory"))


def test_a_directory_without_a_trajectory_is_not_made_and_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="run does not exist; check the path"):
        generate(RunDir(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(MissingFileError, match=r"train_metadata\.json does not exist; train with"):
        generate(RunDir(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_callback_fn_is_the_callers(untouched: RunDir) -> None:
    def broken() -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        generate(untouched, callback_fn=broken)


# --- workers


def test_the_ids_are_counted() -> None:
    assert count_workers(None, is_connected=False) == "ray"
    assert count_workers([], is_connected=False) == 0
    assert count_workers([], is_connected=True) == 0
    assert count_workers([5], is_connected=False) == 0
    assert count_workers([5], is_connected=True) == 1
    assert count_workers([0, 9, 4], is_connected=False) == 3


def test_more_ids_than_one_ask_for_as_many_workers(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spy(*parts: Any, compute: Compute, **options: Any) -> Any:
        asked.append(compute.workers)
        return landscape(*parts, compute=Compute(workers=0), **options)

    monkeypatch.setattr(summary_landscape, "landscape", spy)
    generate(run_dir, device_ids=[3, 1, 2])
    assert asked == [3]


# --- clean_ckpt


def test_clean_ckpt_removes_the_checkpoints_and_nothing_else(run_dir: RunDir) -> None:
    generate(run_dir)
    resumed = TrajectoryWriter(
        run_dir.ckpt_dir, read(run_dir.ckpt_dir).spec, model_name="Mlp", run_id=read(run_dir.ckpt_dir).run_id
    )
    resumed.save(2, Mlp().parameters)
    files = {path.name for path in run_dir.ckpt_dir.glob("*.ckpt")}
    assert len(files) == 4  # 3 and 4 are those of the attempt before, which nothing names
    assert read(run_dir.ckpt_dir).numbers == (1, 2)
    SummaryLandscape(run_dir).clean_ckpt()
    assert not run_dir.ckpt_dir.exists()
    assert shown(run_dir.base) == ["landscape_[1, 4]", "landscape_[4]"]
    SummaryLandscape(run_dir).clean_ckpt()  # nothing there is fine


def test_clean_ckpt_says_what_it_could_not_remove(run_dir: RunDir, tmp_path: Path) -> None:
    os.rename(run_dir.ckpt_dir, tmp_path / "elsewhere")
    run_dir.ckpt_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirError, match="cannot be removed"):
        SummaryLandscape(run_dir).clean_ckpt()
    assert len(list((tmp_path / "elsewhere").iterdir())) == 5
