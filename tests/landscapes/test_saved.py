"""Checkpoints that a training saved in a way of its own: files, or values by name, by their numbers."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary.checkpoints.safetensors import write_safetensors
from distsummary.errors import InvalidTypeError, InvalidValueError, MissingFileError
from distsummary.rundir.run_dir import RunDir
from tests.unit.landscapes.golden_mlp import Mlp
from tests.unit.landscapes.test_generator import draw, save_path, walk


def saved(directory: Path, count: int = 4) -> dict[int, Path]:
    """Files as the Trainer of transformers has them."""
    found = {}
    for number, state in enumerate(walk(count), 1):
        found[500 * number] = directory / f"checkpoint-{500 * number}" / "model.safetensors"
        found[500 * number].parent.mkdir(parents=True)
        write_safetensors(found[500 * number], state)
    return found


@pytest.mark.parametrize("directions", ["pca", "line", "random"])
def test_files_by_their_numbers_are_a_path(nasty_tmp_path: Path, directions: str) -> None:
    run = RunDir(nasty_tmp_path / "run").create()
    save_path(run, walk(4), [[1, 2, 3, 4]])
    expected = draw(around=run, directions=directions)
    files = saved(nasty_tmp_path)
    for path in (files, dict(reversed(files.items())), dict(zip(files, walk(4), strict=True))):
        found = draw(around=path, directions=directions)
        assert found.z.tobytes() == expected.z.tobytes()
        assert found.true_loss.tobytes() == expected.true_loss.tobytes()
        assert found.numbers == tuple(500 * number for number in expected.numbers)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    files = saved(tmp_path)
    found = draw(around={np.int64(number): file for number, file in files.items()})
    assert found.numbers == (500, 1000, 1500, 2000)
    assert found.z.tobytes() == draw(around=files).z.tobytes()


def test_such_paths_can_be_joined_and_written(tmp_path: Path) -> None:
    files = saved(tmp_path)
    joint = draw(around=None, runs=[files, {1: Mlp().parameters, 2: walk(2)[1]}])
    assert joint.runs == ("path (1)", "path (2)")
    draw(around=files, run_dir=tmp_path / "run")
    assert (RunDir(tmp_path / "run").landscape_dir / "landscape_500-2000.npz").is_file()


def test_files_of_one_name_are_distinguished_by_their_folders(tmp_path: Path) -> None:
    assert draw(around=None, runs=list(saved(tmp_path, 3).values())).runs == tuple(
        f"checkpoint-{number}/model" for number in (500, 1000, 1500)
    )


def test_links_are_called_after_the_folder_that_they_lie_in(tmp_path: Path) -> None:
    links = []
    for revision, file in zip("abc", saved(tmp_path / "blobs", 3).values(), strict=True):
        blob = file.rename(tmp_path / "blobs" / revision)
        links.append(tmp_path / revision / "model.safetensors")
        links[-1].parent.mkdir()
        links[-1].symlink_to(blob)
    assert draw(around=None, runs=links).runs == ("a/model", "b/model", "c/model")


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ({-1: "a.safetensors"}, r"a key of around, a step or epoch, must be .*-1"),
        ({1.0: Mlp().parameters}, r"a key of around, a step or epoch, must be int, got 1\.0"),
        ({1: None}, r"around\[1\] must be values by name or a file .*, got a NoneType"),
        (
            {1: {5: Mlp().parameters}},
            r"around\[1\] must be values by name or .*, got a dict; give one of these",
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused(path: Any, match: str) -> None:
    with pytest.raises((InvalidTypeError, InvalidValueError), match=match):
        draw(around=path)


def test_a_file_of_torch_save_is_reported_whatever_its_name(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("epoch=0-step=4/data.pkl", b"")
    (tmp_path / "epoch=0-step=4.ckpt").write_bytes(content.getvalue())
    with pytest.raises(InvalidValueError, match=r'torch\.save are not read here.*under "state_dict"'):
        draw(around=tmp_path / "epoch=0-step=4.ckpt")


def test_what_is_not_the_values_by_name_is_reported_with_what_to_give(tmp_path: Path) -> None:
    values = Mlp().parameters
    with pytest.raises(InvalidValueError, match=r"mappings under 'state_dict'; .*such as"):
        draw(around={"epoch": np.int64(3), "state_dict": values})
    with pytest.raises(InvalidTypeError, match=r"got a Mlp; for a model, give model\.state_dict\(\)"):
        draw(around=Mlp())
    (tmp_path / "checkpoint-500").mkdir()
    with pytest.raises(MissingFileError, match=r"under its step or epoch: around=\{100: file"):
        draw(around=tmp_path)
