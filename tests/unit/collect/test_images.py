"""Pictures on their whole way: handed over, drawn, written, read from both files and decoded by Pillow."""

import io
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from distsummary.collect.record import SummaryRecord
from distsummary.collect.summary_collector import SummaryCollector
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.events.reader import read_directory
from distsummary.format.records import DIALECTS
from tests.unit.collect.doubles import train

BATCH = np.random.default_rng(0).integers(0, 256, (3, 3, 5, 7), np.uint8)
BATCH.ravel()[:2] = 0, 255
GREY = BATCH[:, :1]
LAYOUTS = {
    "NCHW": (BATCH, BATCH), "NHWC": (BATCH.transpose(0, 2, 3, 1), BATCH), "CHW": (BATCH[0], BATCH[:1]),
    "HWC": (BATCH[0].transpose(1, 2, 0), BATCH[:1]), "HW": (GREY[0, 0], GREY[:1]),
    "NCHW grey": (GREY, GREY), "NHWC grey": (GREY.transpose(0, 2, 3, 1), GREY),
    "reversed rows": (BATCH[:, :, ::-1], BATCH[:, :, ::-1]),
}  # fmt: skip


def decoded(directory: Path, tag: str) -> list[np.ndarray]:
    """The pictures of a tag, of both dialects."""
    found = []
    for dialect in DIALECTS:
        [value] = [v for e in read_directory(directory, dialect) for v in e.values if v.tag == tag]
        picture = PIL.Image.open(io.BytesIO(value.data.encoded))
        assert (picture.format, picture.mode, picture.size) == (
            "PNG",
            "RGB",
            (value.data.width, value.data.height),
        )
        found.append(np.asarray(picture))
    return found


def drawn(nchw: np.ndarray) -> np.ndarray:
    """Up to eight pictures (N, C, H, W) side by side, as (H, N * W, 3)."""
    return np.concatenate([np.broadcast_to(p.transpose(1, 2, 0), (*p.shape[1:], 3)) for p in nchw], axis=1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_of_every_layout_come_out_of_the_files_as_they_went_in(tmp_path, layout):
    given, expected = LAYOUTS[layout]
    with SummaryRecord(tmp_path) as record:
        record.add_value("image", "x", given)
        record.record(1)
    for pixels in decoded(tmp_path, "x"):
        assert np.array_equal(pixels, drawn(expected))
    assert record.health().errors == {}


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "reversed rows"])
def test_the_input_of_a_training_is_recorded_in_every_layout(tmp_path, layout):
    given, expected = LAYOUTS[layout]
    train(SummaryCollector(tmp_path), steps=1, batch=(given, 1))
    for pixels in decoded(tmp_path, "input_data/auto"):
        assert np.array_equal(pixels, drawn(expected))


def test_compatibility_takes_mindspores_layout_alone_and_stretches_it(tmp_path):
    for name in ("NCHW", "NHWC", "HW"):
        collector = SummaryCollector(tmp_path / name, mindspore_compat=True, collect_landscape={})
        train(collector, steps=1, batch=LAYOUTS[name][0])
        assert collector.health().errors == {}
    assert [pixels.max() for pixels in decoded(tmp_path / "NCHW", "input_data/auto")] == [254, 254]
    events = [e for name in ("NHWC", "HW") for e in read_directory(tmp_path / name)]
    assert {v.plugin for e in events for v in e.values} == {"histogram"}


@pytest.mark.parametrize(
    "shape", [(2, 4, 5), (1, 2, 4, 5), (1, 3, 0, 5), (0, 3, 4, 5), (4,), (1, 1, 1, 4, 4)]
)
def test_what_is_no_picture_is_refused_with_its_name_its_shape_and_what_is_taken(tmp_path, shape):
    with SummaryRecord(tmp_path) as record, pytest.raises(InvalidValueError) as refused:
        record.add_value("image", "x", np.zeros(shape))
    assert "the image 'x'" in str(refused.value)
    assert f"got {shape}" in str(refused.value)
    assert "(N, C, H, W)" in str(refused.value)


def test_pictures_of_no_numbers_are_refused(tmp_path):
    with SummaryRecord(tmp_path) as record, pytest.raises(InvalidTypeError, match=r"image 'x'.*complex64"):
        record.add_value("image", "x", np.zeros((4, 4), "complex64"))
