"""The trajectory of a training: MindSpore's, ours, used directories and hostile metadata."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.metadata import MAX_BYTES, METADATA, parse_metadata
from distsummary.checkpoints.mindspore_ckpt import map_ckpt, write_ckpt
from distsummary.checkpoints.trajectory import read
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.errors import (
    DamagedFileError,
    InvalidTypeError,
    InvalidValueError,
    MissingFileError,
    RunDirError,
)

GOLDEN = Path(__file__).parents[2] / "golden/ms"
SPEC = LandscapeSpec(intervals=((1, 2, 3), (3, 4, 6)), num_samples=16, landscape_size=5, create_result=False)


def _writer(ckpt_dir, run_id="0123456789abcdef", spec=SPEC, **options):
    return TrajectoryWriter(ckpt_dir, spec, model_name="Net", run_id=run_id, step_per_epoch=2, **options)


def _state(value):
    return {"d1.weight": np.full((2, 3), value, np.float32), "d1.bias": np.full(2, -value, np.float32)}


@pytest.fixture
def ckpt_dir(tmp_path):
    return tmp_path / "my runs/a 'b' ü" / "ckpt_dir"


@pytest.mark.parametrize("case", ["landscape_pca_random", "mlp_train_eval"])
def test_a_trajectory_of_mindspore_is_read_though_its_paths_are_elsewhere(case):
    ckpt_dir = GOLDEN / case / "summary/ckpt_dir"
    found = read(ckpt_dir)
    recorded = json.loads((ckpt_dir / METADATA).read_text())
    assert [list(group) for group in found.intervals] == list(recorded["epoch_group"].values())
    assert found.numbers == tuple(map(int, recorded["model_params_file_map"]))
    assert (found.unit, found.run_id, found.missing) == ("step", "", ())
    assert found.step_per_epoch == recorded["step_per_epoch"]
    assert found.spec.landscape_size == recorded["landscape_size"]
    for number in found.numbers:
        state = found.load(number)
        expected = map_ckpt(ckpt_dir / f"MLP_{number}_step.ckpt").own()
        assert list(state) == ["d1.weight", "d1.bias", "d2.weight", "d2.bias"]
        assert all(np.array_equal(state[name], expected[name]) for name in expected)


def test_our_metadata_has_the_keys_of_mindspore_with_the_same_meaning(ckpt_dir):
    real = json.loads((GOLDEN / "landscape_pca_random/summary/ckpt_dir" / METADATA).read_text())
    writer = _writer(ckpt_dir)
    path = writer.save(1, _state(1))
    ours = json.loads((ckpt_dir / METADATA).read_text())
    assert path == ckpt_dir / "Net_1_step.ckpt"
    assert list(ours) == [*real, "run_id", "sha256"]
    assert ours == {
        "epoch_group": {"0": [1, 2, 3], "1": [3, 4, 6]},
        "model_params_file_map": {"1": str(path)},
        "step_per_epoch": 2,
        "unit": "step",
        "num_samples": 16,
        "landscape_size": 5,
        "create_landscape": {"train": True, "result": False},
        "run_id": "0123456789abcdef",
        "sha256": {"1": hashlib.sha256(path.read_bytes()).hexdigest()},
    }


def test_what_was_saved_is_loaded(ckpt_dir):
    writer = _writer(ckpt_dir)
    for step in range(1, 8):
        if writer.due(step):
            writer.save(step, _state(step))
            assert read(ckpt_dir).numbers[-1] == step, "the metadata names each checkpoint at once"
            assert not writer.due(step)
    found = read(ckpt_dir)
    assert found.spec == SPEC
    assert (found.numbers, found.missing, found.run_id) == ((1, 2, 3, 4, 6), (), "0123456789abcdef")
    for number in found.numbers:
        for name, array in _state(number).items():
            np.testing.assert_array_equal(found.load(number)[name], array)
            np.testing.assert_array_equal(found.open(number)[name], array)
    assert not [name for name in os.listdir(ckpt_dir) if name.startswith(".tmp")]


def test_a_trajectory_can_be_moved(ckpt_dir, tmp_path):
    _writer(ckpt_dir).save(2, _state(2))
    shutil.move(ckpt_dir, tmp_path / "moved")
    assert read(tmp_path / "moved").load(2)["d1.bias"].tolist() == [-2, -2]


def test_a_number_that_was_not_saved_is_named_with_those_that_were(ckpt_dir):
    writer = _writer(ckpt_dir, spec=LandscapeSpec(intervals=((1, 2, 3),), unit="epoch"))
    writer.save(1, _state(1))
    writer.save(2, _state(2))
    found = read(ckpt_dir)
    assert found.missing == (3,)
    with pytest.raises(InvalidValueError, match=r"epoch 3 is not in the trajectory .*; saved are: 1, 2"):
        found.load(3)


def test_a_file_that_is_gone_is_named(ckpt_dir):
    _writer(ckpt_dir).save(1, _state(1)).unlink()
    with pytest.raises(MissingFileError, match=r"step 1, .*Net_1_step\.ckpt, does not exist"):
        read(ckpt_dir).load(1)
    with pytest.raises(MissingFileError, match="train_metadata"):
        read(ckpt_dir.parent)


def test_another_runs_checkpoints_are_disowned_before_the_first_is_replaced(ckpt_dir):
    old = _writer(ckpt_dir, run_id="old")
    for number in (1, 2, 3):
        old.save(number, _state(number))
    new = _writer(ckpt_dir, run_id="new")
    assert read(ckpt_dir).run_id == "old", "a run that saves nothing takes nothing"
    with pytest.raises(InvalidTypeError):
        new.save(2, {"w": "no array"})
    assert (read(ckpt_dir).run_id, read(ckpt_dir).numbers) == ("new", ())
    new.save(2, _state(20))
    found = read(ckpt_dir)
    assert (found.run_id, found.numbers) == ("new", (2,))
    assert found.load(2)["d1.bias"].tolist() == [-20, -20]


def test_a_mindspore_run_in_the_directory_is_another_run(ckpt_dir):
    shutil.copytree(GOLDEN / "mlp_train_eval/summary/ckpt_dir", ckpt_dir)
    _writer(ckpt_dir).save(3, _state(3))
    assert read(ckpt_dir).numbers == (3,)


def test_a_resumed_run_keeps_its_earlier_checkpoints_and_repeats_the_later(ckpt_dir):
    first = _writer(ckpt_dir)
    for number in (1, 2, 3, 4):
        first.save(number, _state(number))
    resumed = _writer(ckpt_dir)
    assert resumed.due(3)
    resumed.save(3, _state(30))
    found = read(ckpt_dir)
    assert found.numbers == (1, 2, 3)
    assert [found.load(number)["d1.bias"][0] for number in (1, 2, 3)] == [-1, -2, -30]


def test_a_resumed_run_keeps_no_earlier_checkpoint_in_the_place_of_one_it_lost(ckpt_dir):
    first = _writer(ckpt_dir)
    for number in (1, 2, 3, 4):
        first.save(number, _state(number))
    resumed = _writer(ckpt_dir)
    assert resumed.due(3)  # and then a slow disk drops it
    assert read(ckpt_dir).numbers == (1, 2, 3, 4)
    resumed.save(4, _state(40))
    assert read(ckpt_dir).numbers == (1, 2, 4)


def test_a_second_training_of_the_same_run_starts_over(ckpt_dir):
    first = _writer(ckpt_dir)
    first.save(1, _state(1))
    first.save(2, _state(2))
    _writer(ckpt_dir).save(1, _state(10))
    assert read(ckpt_dir).numbers == (1,)


def test_damaged_metadata_is_replaced_and_reported(ckpt_dir, caplog):
    ckpt_dir.mkdir(parents=True)
    (ckpt_dir / METADATA).write_text("{")
    _writer(ckpt_dir).save(1, _state(1))
    assert "replacing metadata that cannot be read" in caplog.text
    assert read(ckpt_dir).numbers == (1,)


def test_a_file_that_another_program_wrote_is_refused(ckpt_dir):
    path = _writer(ckpt_dir).save(1, _state(1))
    found = read(ckpt_dir)
    write_ckpt(path, _state(99))
    with pytest.raises(DamagedFileError, match="sha256 differs"):
        found.load(1)


def test_a_failed_save_leaves_the_trajectory_as_it_was(ckpt_dir):
    writer = _writer(ckpt_dir)
    writer.save(1, _state(1))
    (ckpt_dir / "Net_2_step.ckpt").mkdir()
    with pytest.raises(RunDirError, match="Net_2_step"):
        writer.save(2, _state(2))
    assert writer.due(2)
    assert read(ckpt_dir).numbers == (1,)


def test_the_models_name_cannot_leave_the_directory(ckpt_dir):
    writer = TrajectoryWriter(ckpt_dir, SPEC, model_name="../../Net<1>", run_id="r")
    assert writer.save(1, _state(1)).parent == ckpt_dir


# Hostile metadata


def _metadata(**changes):
    good = {
        "epoch_group": {"0": [1, 2, 3]},
        "model_params_file_map": {"1": "/somewhere/Net_1_step.ckpt"},
        "step_per_epoch": 2,
        "unit": "step",
        "num_samples": 16,
        "landscape_size": 5,
    }
    return json.dumps(good | changes).encode()


def test_a_missing_create_landscape_means_both():
    spec = parse_metadata(_metadata()).spec
    assert spec.create_train
    assert spec.create_result


HOSTILE = {
    "empty": b"",
    "no keys": b"{}",
    "too large": b" " * (MAX_BYTES + 1),
    "large integer": _metadata(num_samples=1 << 31),
    "large number": _metadata(epoch_group={"0": [1, 2, 1 << 40]}),
    "negative steps": _metadata(step_per_epoch=-1),
    "groups in a list": _metadata(epoch_group=[[1, 2, 3]]),
    "a group of text": _metadata(epoch_group={"0": "123"}),
    "a long text": _metadata(epoch_group="x" * 1_000_000),
    "a small group": _metadata(epoch_group={"0": [1]}),
    "a key that is no number": _metadata(model_params_file_map={"../1": "a.ckpt"}),
    "a key with other digits": _metadata(model_params_file_map={"\u0661": "a.ckpt"}),
    "a path that is no text": _metadata(model_params_file_map={"1": ["a.ckpt"]}),
    "files in a list": _metadata(model_params_file_map=["a.ckpt"]),
    "a wrong digest": _metadata(sha256={"1": "zz"}),
    "a huge grid": _metadata(landscape_size=10**9),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_metadata_that_is_not_is_refused(content, tmp_path):
    (tmp_path / METADATA).write_bytes(content)
    with pytest.raises(DamagedFileError, match="train_metadata") as caught:
        read(tmp_path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("place", ["/secret/s.ckpt", "../s.ckpt", "..\\..\\s.ckpt", "C:\\s.ckpt"])
def test_a_path_elsewhere_is_looked_up_in_the_directory_only(place, tmp_path):
    directory = tmp_path / "ckpt_dir"
    directory.mkdir()
    write_ckpt(tmp_path / "s.ckpt", _state(666))
    (directory / METADATA).write_bytes(_metadata(model_params_file_map={"1": place}))
    with pytest.raises(MissingFileError):
        read(directory).load(1)
    write_ckpt(directory / "s.ckpt", _state(1))
    assert read(directory).load(1)["d1.bias"][0] == -1


@pytest.mark.parametrize("place", ["", "a/..", ".", "a\0.ckpt", "\ud800.ckpt", "x" * 300 + ".ckpt"])
def test_a_path_that_names_no_file_is_refused(place, tmp_path):
    (tmp_path / METADATA).write_bytes(_metadata(model_params_file_map={"1": place}))
    with pytest.raises(DamagedFileError, match="no checkpoint file"):
        read(tmp_path).load(1)


def test_a_link_out_of_the_directory_is_not_followed(tmp_path):
    directory = tmp_path / "ckpt_dir"
    directory.mkdir()
    write_ckpt(tmp_path / "s.ckpt", _state(666))
    (directory / "s.ckpt").symlink_to(tmp_path / "s.ckpt")
    (directory / METADATA).write_bytes(_metadata(model_params_file_map={"1": "s.ckpt"}))
    with pytest.raises(DamagedFileError, match="leads out of"):
        read(directory).load(1)


def test_only_checkpoint_formats_are_read(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / METADATA).write_bytes(_metadata(model_params_file_map={"1": "a.pt"}))
    with pytest.raises(DamagedFileError, match="must end with"):
        read(tmp_path).load(1)
