"""TensorBoard's own reader shows what we framed, and ours reads what TensorBoard's writer wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.data_compat import migrate_event
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util

from distsummary.cli.dump import dump
from distsummary.events.reader import read_directory, read_values
from distsummary.format import tensorboard_format
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame, read_frames
from distsummary.format.histogram import count_histogram
from distsummary.format.png import encode_image
from distsummary.format.records import Event, EventIds, Value
from tests.unit.format import samples

RUN = "0123456789abcdef"
ARRAYS = {
    "normal": np.random.default_rng(1).normal(size=1000).astype(np.float32),
    "constant": np.full(7, 7.0, np.float32),
    "bad": np.array([1, 2, np.nan, np.inf, 3], np.float32),
    "all bad": np.array([np.nan, np.inf], np.float32),
    "none": np.empty(0, np.float32),
}
TEXTS = ["", "# Größe 大\n**bold** and a \0"]
PICTURE = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)


def payload(event: Event, seq: int) -> bytes:
    payloads, refused = encode_event(event, EventIds(RUN, 0, seq), ("tensorboard",))
    assert refused == []
    encoded = payloads["tensorboard"]
    assert encoded is not None
    return encoded


@pytest.fixture
def written(nasty_tmp_path: Path) -> Path:
    """A directory with one file of our own: scalars at three steps, then histograms, an image and texts."""
    events = [Event(step, 100.0 + step, [Value("scalar", "loss", step / 3)]) for step in (1, 2, 5)]
    histograms = [Value("histogram", tag, array) for tag, array in ARRAYS.items()]
    texts = [Value("text", f"text {n}", text) for n, text in enumerate(TEXTS)]
    events.append(Event(6, 106.0, [*histograms, Value("image", "input", PICTURE), *texts]))
    payloads = [
        tensorboard_format.encode_version(1.0, EventIds(RUN, 0)),
        *(payload(event, seq) for seq, event in enumerate(events, 1)),
    ]
    path = nasty_tmp_path / "events.out.tfevents.0000000017.host.1.0"
    path.write_bytes(b"".join(map(frame, payloads)))
    return nasty_tmp_path


@pytest.fixture
def shown(written: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(written), size_guidance={"images": 0, "histograms": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


def test_tensorboard_shows_our_scalars(shown: EventAccumulator):
    assert [(e.step, e.wall_time, e.value) for e in shown.Scalars("loss")] == [
        (step, 100.0 + step, float(np.float32(step / 3))) for step in (1, 2, 5)
    ]


@pytest.mark.parametrize("tag", ARRAYS)
def test_tensorboard_shows_our_histograms(shown: EventAccumulator, tag: str):
    (event,) = shown.Histograms(tag)
    histogram, counted = event.histogram_value, count_histogram(ARRAYS[tag])
    finite = ARRAYS[tag][np.isfinite(ARRAYS[tag])]
    assert histogram.num == finite.size
    assert sum(histogram.bucket) == finite.size
    assert len(histogram.bucket_limit) == len(histogram.bucket)
    assert shown.CompressedHistograms(tag)
    if finite.size:
        assert (histogram.min, histogram.max) == (finite.min(), finite.max())
        assert histogram.bucket == counted.counts.tolist()
        assert histogram.bucket_limit == (counted.left + counted.width).tolist()


def test_tensorboard_shows_our_images(shown: EventAccumulator):
    (event,) = shown.Images("input")
    image = encode_image(PICTURE)
    assert (event.height, event.width, event.encoded_image_string) == (
        image.height,
        image.width,
        image.encoded,
    )


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_bytes_of_tensorboards_own_summary(text: str):
    value = text_pb("note", text).value[0]
    assert samples.encoded_value(tensorboard_format, Value("text", "note", text)) == value.SerializeToString()


def test_tensorboard_shows_our_texts(shown: EventAccumulator):
    assert shown.Tags()["tensors"] == ["text 0", "text 1"]
    assert shown.SummaryMetadata("text 0").plugin_data.plugin_name == "text"
    strings = [tensor_util.make_ndarray(shown.Tensors(f"text {n}")[0].tensor_proto) for n in range(2)]
    assert [(s.shape, s.item().decode()) for s in strings] == [((), text) for text in TEXTS]


def test_the_web_view_of_tensorboard_takes_every_event(written: Path):
    # what its Python backend does to each event before anything is drawn
    (path,) = written.iterdir()
    events = [migrate_event(TensorBoardEvent.FromString(f.payload)) for f in read_frames(path)]
    tensors = {v.tag: tensor_util.make_ndarray(v.tensor) for v in events[-1].summary.value if v.tag in ARRAYS}
    assert {tag: array[:, 2].sum() for tag, array in tensors.items()} == {
        tag: np.isfinite(array).sum() for tag, array in ARRAYS.items()
    }


def test_a_session_start_hides_what_a_later_attempt_does_again(nasty_tmp_path: Path):
    first, second = EventIds(RUN, 0), EventIds(RUN, 1)
    before = [payload(Event(step, 1.0, [Value("scalar", "loss", step)]), step) for step in range(1, 11)]
    after = [payload(Event(step, 2.0, [Value("scalar", "loss", -step)]), step) for step in range(6, 9)]
    start = tensorboard_format.encode_session_start(6, 2.0, second)
    attempts = [
        [tensorboard_format.encode_version(1.0, first), *before],
        [tensorboard_format.encode_version(2.0, second), start, *after],
    ]
    for stamp, payloads in enumerate(attempts, 17):
        path = nasty_tmp_path / f"events.out.tfevents.00000000{stamp}.host.1.0"
        path.write_bytes(b"".join(map(frame, payloads)))
    accumulator = EventAccumulator(str(nasty_tmp_path))
    accumulator.Reload()
    assert [(e.step, e.value) for e in accumulator.Scalars("loss")] == [
        *((step, step) for step in range(1, 6)),
        *((step, -step) for step in range(6, 9)),
    ]


def test_a_file_of_tensorboards_own_writer_is_read(nasty_tmp_path: Path):
    writer = EventFileWriter(str(nasty_tmp_path))
    for step in (1, 2):
        value = Summary.Value(tag="loss", simple_value=step / 2)
        writer.add_event(TensorBoardEvent(wall_time=1.0 + step, step=step, summary=Summary(value=[value])))
    modern = migrate_event(TensorBoardEvent(step=3, summary=Summary(value=[value])))
    assert modern.summary.value[0].HasField("tensor")
    writer.add_event(modern)
    writer.close()
    events = list(read_directory(nasty_tmp_path, "tensorboard"))
    assert [(e.run_id, e.seq, e.step, e.values) for e in events] == [
        ("", 0, 1, [Value("scalar", "loss", 0.5)]),
        ("", 0, 2, [Value("scalar", "loss", 1.0)]),
        ("", 0, 3, [Value("scalar", "loss", 1.0)]),
    ]


def test_files_of_torch_are_read(nasty_tmp_path: Path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(nasty_tmp_path)) as writer:
        write_as_torch_does(writer)
        writer.add_scalar("new", 0.25, 6, walltime=5.0, new_style=True)
    check_what_is_read(nasty_tmp_path)
    assert list(read_values(nasty_tmp_path))[-1][2:] == (6, 5.0, "new", 0.25)


def test_files_of_tensorboardx_are_read(nasty_tmp_path: Path):
    tensorboardx = pytest.importorskip("tensorboardX")
    with tensorboardx.SummaryWriter(str(nasty_tmp_path)) as writer:
        write_as_torch_does(writer)
    check_what_is_read(nasty_tmp_path)


def write_as_torch_does(writer: Any) -> None:
    for step in range(3):
        writer.add_scalar("loss", step / 4, step, walltime=10.0 + step)
    writer.add_histogram("weights", ARRAYS["normal"], 3)
    writer.add_image("input", PICTURE[0], 4)
    writer.add_text("note", "a *text*", 5)


def check_what_is_read(directory: Path) -> None:
    tags = ("loss", "weights", "input", "note/text_summary")
    values = [value for value in read_values(directory) if value.tag in tags]
    assert [value[:5] for value in values[:3]] == [(0, 0, step, 10.0 + step, "loss") for step in range(3)]
    assert [value.value for value in values[:3]] == [0.0, 0.25, 0.5]
    histogram, image = values[3].value, values[4].value
    assert (histogram.counts.sum(), histogram.min) == (1000, pytest.approx(ARRAYS["normal"].min()))
    assert (image.height, image.width) == PICTURE.shape[2:]
    assert values[5][2:] == (5, values[5].wall_time, "note/text_summary", "a *text*")
    assert len(values) == 6
    assert not [record for record in dump(directory) if record["plugin"] == "damage"]
