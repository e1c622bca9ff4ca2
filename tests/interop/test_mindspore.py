"""What MindSpore writes live is read, dumped, checked and converted with the values that it was given."""

import base64
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

from distsummary.cli.fsck import fsck
from distsummary.events.reader import read_directory, read_lineage, read_values
from distsummary.format.compatibility import AS_MINDSPORE
from distsummary.format.histogram import count_histogram
from distsummary.format.png import encode_image
from distsummary.format.records import Histogram, Image, Landscape, Value
from tests.interop.conftest import Recorded
from tests.interop.views import View, differences, own_view, python_view, server_view
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.interop


def distsummary(*arguments: object) -> str:
    """What the command prints on stdout."""
    command = [sys.executable, "-m", "distsummary", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


def read(directory: Path) -> dict[str, list[tuple[int, Any]]]:
    """Tag -> (step, data) in the order of the file."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for value in read_values(directory, mode="strict"):
        found.setdefault(value.tag, []).append((value.step, value.value))
    return found


def pixels(encoded: bytes) -> Any:
    return np.asarray(Picture.open(io.BytesIO(encoded)))


def drawn(pictures: Any) -> Any:
    return pixels(encode_image(pictures, compatibility=AS_MINDSPORE).encoded)


def assert_same(found: Histogram, expected: Histogram) -> None:
    for name in ("left", "width", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for name in ("count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.sum == pytest.approx(expected.sum)


def each_step_once(view: View) -> View:
    """MindSpore records the last step of an epoch twice, and the data server keeps the later of two."""
    return View(*({key: list(dict(points).items()) for key, points in kind.items()} for kind in view))


# --- values recorded one by one


def test_every_value_of_every_step_is_read(mindspore_wrote: Recorded) -> None:
    found = read(mindspore_wrote.record)
    assert found.keys() == mindspore_wrote.inputs.keys()
    assert all([step for step, _ in steps] == [1, 2, 3] for steps in found.values())


def test_scalars_are_read_to_the_bit(mindspore_wrote: Recorded) -> None:
    numbers = [number for _, number in read(mindspore_wrote.record)["scalar"]]
    np.testing.assert_array_equal(np.float32(numbers), mindspore_wrote.inputs["scalar"])


@pytest.mark.parametrize("tag", ["tensor", "tensor_ints"])
def test_tensors_are_read_with_dtype_and_shape(mindspore_wrote: Recorded, tag: str) -> None:
    for (_, found), given in zip(read(mindspore_wrote.record)[tag], mindspore_wrote.inputs[tag], strict=True):
        assert found.dtype == given.dtype
        np.testing.assert_array_equal(found, given)


def test_histograms_are_those_that_we_count_ourselves(mindspore_wrote: Recorded) -> None:
    given = mindspore_wrote.inputs["histogram"]
    for (_, found), values in zip(read(mindspore_wrote.record)["histogram"], given, strict=True):
        assert_same(found, count_histogram(values))


@pytest.mark.parametrize("tag", ["image", "image_grey"])
def test_images_have_the_pixels_that_we_draw_ourselves(mindspore_wrote: Recorded, tag: str) -> None:
    for (_, found), given in zip(read(mindspore_wrote.record)[tag], mindspore_wrote.inputs[tag], strict=True):
        np.testing.assert_array_equal(pixels(found.encoded), drawn(given))


def test_dump_reports_the_same_values(mindspore_wrote: Recorded) -> None:
    inputs = mindspore_wrote.inputs
    lines = [json.loads(line) for line in distsummary("dump", mindspore_wrote.record, "--full").splitlines()]
    reported = {(line["tag"], line["step"]): line["value"] for line in lines}
    assert len(reported) == len(lines) == 3 * len(inputs)
    assert [reported["scalar", step] for step in (1, 2, 3)] == [0.25, "NaN", "-Infinity"]
    for step in range(3):
        np.testing.assert_array_equal(reported["tensor", step + 1]["data"], inputs["tensor"][step])
        assert reported["tensor_ints", step + 1]["dtype"] == "int32"
        counts = [count for _, _, count in reported["histogram", step + 1]["buckets"]]
        assert counts == count_histogram(inputs["histogram"][step]).counts.tolist()
        encoded = base64.b64decode(reported["image", step + 1]["base64"])
        np.testing.assert_array_equal(pixels(encoded), drawn(inputs["image"][step]))
    assert [reported["histogram", 2][name] for name in ("nan", "pos_inf", "neg_inf")] == [1, 1, 1]


def test_fsck_finds_no_problem(mindspore_wrote: Recorded) -> None:
    for directory in (mindspore_wrote.record, mindspore_wrote.training):
        report = fsck(directory)
        assert [one.as_line() for one in report.findings if one.is_problem] == []
        assert report.events > 0


@pytest.mark.parametrize("kind", ["record", "training"])
def test_converted_it_is_shown_by_tensorboard(mindspore_wrote: Recorded, tmp_path: Path, kind: str) -> None:
    directory = getattr(mindspore_wrote, kind)
    distsummary("convert", directory, "--out", tmp_path)
    converted, original = own_view(tmp_path), own_view(directory, "mindspore")
    for name in ("scalars", "images", "histograms"):
        assert getattr(converted, name).keys() == getattr(original, name).keys()
    assert repr(converted.scalars) == repr(original.scalars)
    assert converted.images == original.images
    assert differences(python_view(tmp_path), converted) == []
    assert differences(server_view(tmp_path), each_step_once(converted)) == []


# --- a training under MindSpore's own collector


def test_the_loss_of_every_step_is_read(mindspore_wrote: Recorded) -> None:
    losses = mindspore_wrote.reported["losses"]
    assert dict(read(mindspore_wrote.training)["loss/auto"]) == {
        step: np.float32(loss) for step, loss in enumerate(losses, 1)
    }


def test_the_weights_are_counted_and_the_graph_is_there(mindspore_wrote: Recorded) -> None:
    plugins: dict[str, list[Value]] = {}
    for event in read_directory(mindspore_wrote.training, mode="strict"):
        for value in event.values:
            plugins.setdefault(value.plugin, []).append(value)
    assert {value.tag for value in plugins["histogram"]} == {"weight/auto"}
    assert all(value.data.count == 3 * 6 for value in plugins["histogram"])
    assert not any(isinstance(v.data, (Image, Landscape)) for values in plugins.values() for v in values)
    lines = [json.loads(line) for line in distsummary("dump", mindspore_wrote.training).splitlines()]
    [graph] = [line["value"] for line in lines if line["plugin"] == "graph"]
    assert graph["nodes"] > 5


def test_the_lineage_is_read_whole(mindspore_wrote: Recorded) -> None:
    reported, lineage = mindspore_wrote.reported, read_lineage(mindspore_wrote.training)
    train = lineage.train
    assert train.algorithm.network
    assert math.isclose(train.algorithm.loss, reported["losses"][-1], rel_tol=1e-6)
    hyper = train.hyper_parameters
    assert hyper.optimizer == "Momentum"
    assert (hyper.epoch, hyper.batch_size) == (reported["epochs"], reported["batch_size"])
    assert json.loads(lineage.evaluation.metric) == reported["metrics"]
    assert lineage.dataset_graph is not None
    entries = [dict(info.map_str) | dict(info.map_int32) for info in lineage.custom.user_info]
    assert {"note": "live"} in entries
    assert {"k": 3} in entries
