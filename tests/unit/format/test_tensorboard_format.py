"""The TensorBoard dialect: the bytes that protobuf would make, and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, DATA_CLASS_TENSOR, Summary
from tensorboard.plugins.pr_curve.plugin_data_pb2 import PrCurvePluginData
from torch.utils.tensorboard.summary import audio, pr_curve

from distsummary.errors import DamagedFileError
from distsummary.format import mindspore_format, wire
from distsummary.format import tensorboard_format as tb
from distsummary.format.histogram import count_histogram
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.records import Event, EventIds, Histogram, Value
from tests.unit.format import samples


@given(samples.STEPS, samples.WALL_TIMES, samples.TAGS, samples.SCALARS)
def test_a_scalar_has_the_bytes_of_protobuf(step: int, wall_time: float, tag: str, scalar: float):
    event = samples.with_ids(tensorboard_pb2.Event(wall_time=wall_time, step=step), samples.IDS)
    with np.errstate(over="ignore"):
        event.summary.value.add(tag=tag, simple_value=float(np.float32(scalar)))
    values = [Value("scalar", tag, scalar)]
    assert samples.encoded_summary(tb, step, wall_time, values, samples.IDS) == event.SerializeToString()


@given(samples.TAGS, samples.ARRAYS)
def test_a_histogram_has_the_bytes_of_protobuf(tag: str, array: np.ndarray):
    histogram = count_histogram(array)
    finite = int(histogram.counts.sum())
    bins = finite > 0
    histo = tensorboard_pb2.HistogramProto(
        min=histogram.min or 0.0,
        max=histogram.max or 0.0,
        num=finite,
        sum=histogram.sum or 0.0,
        bucket_limit=histogram.left + histogram.width if bins else [0.0],
        bucket=histogram.counts if bins else [0.0],
    )
    value = tensorboard_pb2.Summary.Value(tag=tag, histo=histo)
    assert samples.encoded_value(tb, Value("histogram", tag, histogram)) == value.SerializeToString()


def test_an_image_has_the_bytes_of_protobuf_and_of_the_other_dialect():
    value = Value("image", "input", samples.PICTURE)
    message = tensorboard_pb2.Summary.Value(tag="input")
    message.image.height, message.image.width, message.image.colorspace = 4, 10, 3
    message.image.encoded_image_string = samples.PICTURE.encoded
    assert (
        samples.encoded_value(tb, value)
        == message.SerializeToString()
        == samples.encoded_value(mindspore_format, value)
    )


def test_version_and_session_records_have_the_bytes_of_protobuf():
    ids = samples.IDS._replace(seq=0)
    version = samples.with_ids(tensorboard_pb2.Event(wall_time=2.5, file_version="brain.Event:2"), ids)
    assert tb.encode_version(2.5, ids) == version.SerializeToString()
    log = tensorboard_pb2.SessionLog(status=tensorboard_pb2.SessionLog.START)
    session = samples.with_ids(tensorboard_pb2.Event(wall_time=2.5, step=7, session_log=log), ids)
    assert tb.encode_session_start(7, 2.5, ids) == session.SerializeToString()
    assert tb.decode_event(version.SerializeToString()) is None
    assert tb.decode_event(session.SerializeToString()) is None


def test_what_tensorboard_has_no_place_for_gives_nothing():
    for plugin in ("tensor", "landscape", "graph", "train_lineage"):
        assert samples.encoded_value(tb, Value(plugin, "x", None)) is None


def test_values_are_read_as_they_were_written():
    counted = count_histogram(np.array([1.0, 2.0, 2.5, 4.0, 9.0, 10.0], np.float32))
    values = [
        Value("scalar", "loss", 0.25),
        Value("histogram", "weight", counted),
        Value("image", "input", samples.PICTURE),
    ]
    decoded = tb.decode_event(samples.encoded_summary(tb, 3, 1.5, values, samples.IDS))
    assert decoded is not None
    ids, event = decoded
    assert (ids, event.step, event.wall_time) == (samples.IDS, 3, 1.5)
    scalar, histogram, image = (value.data for value in event.values)
    assert (scalar, image) == (0.25, samples.PICTURE)
    assert isinstance(histogram, Histogram)
    np.testing.assert_allclose(histogram.left, counted.left)
    np.testing.assert_allclose(histogram.width, counted.width)
    assert histogram.counts.tolist() == counted.counts.tolist()
    assert (histogram.min, histogram.max, histogram.sum, histogram.count) == (1.0, 10.0, 28.5, 6)


@pytest.mark.parametrize("plugin", ["histogram", "image"])
def test_a_description_has_the_bytes_of_protobuf(plugin: str):
    """With TensorBoard's own messages; ours have no field for it."""
    data = count_histogram(np.arange(4.0)) if plugin == "histogram" else samples.PICTURE
    plain = samples.encoded_value(tb, Value(plugin, "x", data))
    described = samples.encoded_value(tb, Value(plugin, "x", data, description="of rank 3"))
    assert plain is not None
    assert described is not None
    expected = Summary.Value.FromString(plain)
    expected.metadata.plugin_data.plugin_name = f"{plugin}s"
    expected.metadata.summary_description = "of rank 3"
    expected.metadata.data_class = DATA_CLASS_TENSOR if plugin == "histogram" else DATA_CLASS_BLOB_SEQUENCE
    assert described == expected.SerializeToString()


def test_sounds_and_pr_curves_have_the_bytes_of_protobuf():
    """With TensorBoard's own messages."""
    sound = Summary.Value(tag="x")
    sound.audio.sample_rate, sound.audio.num_channels, sound.audio.length_frames = 8000, 2, 3
    sound.audio.encoded_audio_string, sound.audio.content_type = samples.SOUND.encoded, "audio/wav"
    assert samples.encoded_value(tb, Value("audio", "x", samples.SOUND)) == sound.SerializeToString()
    curve = Summary.Value(tag="x")
    curve.tensor.dtype, curve.tensor.tensor_content = 1, samples.CURVE.tobytes()
    for size in samples.CURVE.shape:
        curve.tensor.tensor_shape.dim.add(size=size)
    curve.metadata.plugin_data.plugin_name = "pr_curves"
    curve.metadata.plugin_data.content = PrCurvePluginData(num_thresholds=2).SerializeToString()
    curve.metadata.data_class = DATA_CLASS_TENSOR
    assert samples.encoded_value(tb, Value("pr_curve", "x", samples.CURVE)) == curve.SerializeToString()


def test_sounds_and_pr_curves_of_torch_are_read():
    summaries = (
        audio("voice", np.zeros(5, np.float32), 8000),
        pr_curve("cats", np.array([1, 0]), np.array([0.9, 0.1]), num_thresholds=5),
    )
    for summary, plugin in zip(summaries, ("audio", "pr_curve"), strict=True):
        decoded = tb.decode_event(wire.delimited(5, summary.SerializeToString()))
        [value] = decoded[1].values
        assert value.plugin == plugin
        assert value.data.frames == 5 if plugin == "audio" else value.data.shape == (6, 5)


def test_an_empty_histogram_is_read_as_one():
    empty = Value("histogram", "h", count_histogram(np.array([np.nan])))
    decoded = tb.decode_event(samples.encoded_summary(tb, 1, 1.0, [empty]))
    histogram = decoded[1].values[0].data
    assert (histogram.count, histogram.left.size, histogram.min) == (0, 0, None)


@pytest.mark.parametrize(
    ("dtype", "field", "numpy_dtype"), [(1, "float_val", "<f4"), (2, "double_val", "<f8")]
)
@pytest.mark.parametrize("plugin", ["scalars", ""])
def test_the_scalars_of_tensorflow_2_are_read(dtype: int, field: str, numpy_dtype: str, plugin: str):
    as_numbers = tensorboard_pb2.TensorProto(dtype=dtype, **{field: [0.5]})
    as_bytes = tensorboard_pb2.TensorProto(dtype=dtype, tensor_content=np.array(0.5, numpy_dtype).tobytes())
    for tensor in (as_numbers, as_bytes):
        event = tensorboard_pb2.Event(step=4, wall_time=1.0)
        event.summary.value.add(tag="loss", tensor=tensor).metadata.plugin_data.plugin_name = plugin
        assert tb.decode_event(event.SerializeToString()) == (
            EventIds("", 0, 0), Event(4, 1.0, [Value("scalar", "loss", 0.5)])
        )  # fmt: skip


@given(samples.TAGS, st.text(st.characters(codec="utf-8")))
def test_a_text_has_the_bytes_of_protobuf(tag: str, text: str):
    tensor = tensorboard_pb2.TensorProto(dtype=7, string_val=[text.encode()])
    tensor.tensor_shape.SetInParent()
    value = tensorboard_pb2.Summary.Value(tag=tag, tensor=tensor)
    value.metadata.plugin_data.plugin_name = "text"
    assert samples.encoded_value(tb, Value("text", tag, text)) == value.SerializeToString()


def decoded_text(strings: list[bytes], shape: list[int]) -> str:
    """What is read of a text tensor of another writer."""
    dims = [tensorboard_pb2.TensorShapeProto.Dim(size=size) for size in shape]
    tensor = tensorboard_pb2.TensorProto(
        dtype=7, string_val=strings, tensor_shape=tensorboard_pb2.TensorShapeProto(dim=dims)
    )
    event = tensorboard_pb2.Event(step=4, wall_time=1.0)
    event.summary.value.add(tag="note", tensor=tensor).metadata.plugin_data.plugin_name = "text"
    decoded = tb.decode_event(event.SerializeToString())
    (value,) = decoded[1].values
    assert (value.plugin, value.tag) == ("text", "note")
    return value.data


@pytest.mark.parametrize(
    ("strings", "shape", "text"),
    [
        ([b"a"], [], "a"), ([b"a"], [1], "a"), ([b"a", b"b"], [2], "a\nb"),
        ([b"a", b"b", b"c", b"d"], [2, 2], "a | b\nc | d"), ([b"a", b"b", b"c", b"d"], [2, 2, 1], "a\nb"),
        ([], [0], ""), ([], [3, 0], ""),
    ],
)  # fmt: skip
def test_tables_of_other_writers_are_read_line_by_line(strings: list[bytes], shape: list[int], text: str):
    assert decoded_text(strings, shape) == text


@pytest.mark.parametrize(
    ("strings", "shape"), [([b"a", b"b"], [3]), ([b"a\xff"], []), ([b"a", b"b"], [2**40])]
)
def test_a_text_that_is_none_is_damage(strings: list[bytes], shape: list[int]):
    with pytest.raises(DamagedFileError):
        decoded_text(strings, shape)


def test_audio_of_tensorflow_2_is_left_out_and_the_rest_of_its_event_kept():
    event = tensorboard_pb2.Event(step=4, wall_time=1.0)
    audio = tensorboard_pb2.TensorProto(dtype=7, string_val=[b"x"])
    sound = event.summary.value.add(tag="sound", tensor=audio)
    sound.metadata.plugin_data.plugin_name = "audio"
    event.summary.value.add(tag="loss", simple_value=1.0)
    decoded = tb.decode_event(event.SerializeToString())
    assert [value.tag for value in decoded[1].values] == ["loss"]


@pytest.mark.parametrize("size", [2**40, -1])
def test_one_number_does_not_stand_for_an_absurd_shape(size: int):
    shape = tensorboard_pb2.TensorShapeProto(dim=[tensorboard_pb2.TensorShapeProto.Dim(size=size)])
    event = tensorboard_pb2.Event(step=4)
    event.summary.value.add(
        tag="t", tensor=tensorboard_pb2.TensorProto(dtype=1, tensor_shape=shape, float_val=[2])
    )
    with pytest.raises(DamagedFileError, match="has 1 numbers"):
        tb.decode_event(event.SerializeToString())


def test_one_number_stands_for_a_shape():
    shape = tensorboard_pb2.TensorShapeProto(dim=[tensorboard_pb2.TensorShapeProto.Dim(size=3)])
    event = tensorboard_pb2.Event(step=4)
    event.summary.value.add(
        tag="t", tensor=tensorboard_pb2.TensorProto(dtype=1, tensor_shape=shape, float_val=[2])
    )
    decoded = tb.decode_event(event.SerializeToString())
    assert decoded[1].values[0].data.tolist() == [2, 2, 2]
