"""The MindSpore dialect: the bytes that protobuf would make, and back."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.errors import DamagedFileError, InvalidTypeError
from distsummary.format import mindspore_format as ms
from distsummary.format import wire
from distsummary.format.histogram import count_histogram
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.format.pb import mindspore_summary_pb2 as summary_pb2
from distsummary.format.records import Event, Histogram, Shard, Value
from tests.unit.format import samples


@given(samples.STEPS, samples.WALL_TIMES, samples.TAGS, samples.SCALARS)
def test_a_scalar_has_the_bytes_of_protobuf(step: int, wall_time: float, tag: str, scalar: float):
    event = samples.with_ids(summary_pb2.Event(wall_time=wall_time, step=step), samples.IDS)
    with np.errstate(over="ignore"):
        event.summary.value.add(tag=tag, scalar_value=float(np.float32(scalar)))
    encoded = samples.encoded_summary(ms, step, wall_time, [Value("scalar", tag, scalar)], samples.IDS)
    assert encoded == event.SerializeToString()


@given(samples.TAGS, samples.ARRAYS, samples.SHARDS)
def test_a_tensor_has_the_bytes_of_protobuf(tag: str, array: np.ndarray, shard: Shard | None):
    value = summary_pb2.Summary.Value(tag=tag)
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32).reshape(-1).tolist()
    data_type = anf_ir_pb2.DataType.Value(f"DT_{array.dtype.name.upper()}")
    value.tensor.CopyFrom(anf_ir_pb2.TensorProto(dims=array.shape, data_type=data_type, float_data=numbers))
    if shard:
        value.shard.global_shape.extend(shard.global_shape)
        value.shard.offset.extend(shard.offset)
    assert samples.encoded_value(ms, Value("tensor", tag, array, shard)) == value.SerializeToString()


@given(samples.TAGS, samples.ARRAYS)
def test_a_histogram_has_the_bytes_of_protobuf(tag: str, array: np.ndarray):
    histogram = count_histogram(array)
    value = summary_pb2.Summary.Value(tag=tag)
    message = value.histogram
    for left, width, count in zip(histogram.left, histogram.width, histogram.counts, strict=True):
        message.buckets.add(left=left, width=width, count=count)
    message.nan_count, message.count = histogram.nan_count, histogram.count
    message.pos_inf_count, message.neg_inf_count = histogram.pos_inf_count, histogram.neg_inf_count
    if histogram.min is not None:
        message.min, message.max, message.sum = histogram.min, histogram.max, histogram.sum
    assert samples.encoded_value(ms, Value("histogram", tag, histogram)) == value.SerializeToString()


def test_an_image_has_the_bytes_of_protobuf():
    value = summary_pb2.Summary.Value(tag="input")
    value.image.height, value.image.width, value.image.colorspace = 4, 10, 3
    value.image.encoded_image = samples.PICTURE.encoded
    assert samples.encoded_value(ms, Value("image", "input", samples.PICTURE)) == value.SerializeToString()


@given(samples.TAGS, st.text(st.characters(codec="utf-8")))
def test_a_text_has_the_bytes_of_protobuf(tag: str, text: str):
    value = summary_pb2.Summary.Value(tag=tag, text=text)
    assert samples.encoded_value(ms, Value("text", tag, text)) == value.SerializeToString()


def test_sounds_and_pr_curves_have_the_bytes_of_protobuf():
    sound = summary_pb2.Summary.Value(tag="x")
    sound.audio.sample_rate, sound.audio.num_channels, sound.audio.length_frames = 8000, 2, 3
    sound.audio.encoded_audio_string, sound.audio.content_type = samples.SOUND.encoded, "audio/wav"
    assert samples.encoded_value(ms, Value("audio", "x", samples.SOUND)) == sound.SerializeToString()
    curve = summary_pb2.Summary.Value(tag="x")
    curve.pr_curve.dims.extend(samples.CURVE.shape)
    curve.pr_curve.data_type = 11
    curve.pr_curve.float_data.extend(samples.CURVE.reshape(-1))
    assert samples.encoded_value(ms, Value("pr_curve", "x", samples.CURVE)) == curve.SerializeToString()
    curve.pr_curve.dims[:] = [12]
    with pytest.raises(DamagedFileError, match=r"a PR curve has the shape \(12,\)"):
        ms.decode_event(wire.double(1, 1.0) + wire.delimited(5, wire.delimited(1, curve.SerializeToString())))


def test_the_version_record_has_the_bytes_of_protobuf():
    for ids in (None, samples.IDS._replace(seq=0)):
        event = samples.with_ids(summary_pb2.Event(wall_time=2.5, version="MindSpore.Event:1"), ids)
        assert ms.encode_version(2.5, ids) == event.SerializeToString()
        assert ms.decode_event(ms.encode_version(2.5, ids)) is None


def test_a_graph_has_the_bytes_of_protobuf_and_no_step():
    event = samples.with_ids(summary_pb2.Event(wall_time=2.5, graph_def=samples.GRAPH), samples.IDS)
    graph = samples.GRAPH.SerializeToString()
    encoded = b"".join(ms.graph_parts([graph], 2.5, samples.IDS))
    assert encoded == event.SerializeToString()
    assert ms.decode_event(encoded) == (samples.IDS, Event(0, 2.5, [Value("graph", "", graph)]))


@given(samples.STEPS, samples.WALL_TIMES)
def test_a_summary_is_read_as_it_was_written(step: int, wall_time: float):
    shard = Shard(global_shape=(4, 3), offset=(2, 0))
    values = [value._replace(shard=shard) for value in samples.SUMMARY_VALUES]
    payload = samples.encoded_summary(ms, step, wall_time, values, samples.IDS)
    decoded = ms.decode_event(payload)
    assert decoded is not None
    ids, event = decoded
    assert (ids, event.step, event.wall_time) == (samples.IDS, step, wall_time)
    for before, after in zip(values, event.values, strict=True):
        assert after[:2] == before[:2]
        assert after.shard == shard
        assert_equal(after.data, before.data)


@given(samples.ARRAYS)
def test_a_tensor_keeps_its_dtype_shape_and_float32_values(array: np.ndarray):
    message = anf_ir_pb2.TensorProto.FromString(ms.encode_tensor(array))
    decoded = ms.decode_tensor(message)
    assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(ms.to_float32(decoded), ms.to_float32(array))


def test_rounded_up_maxima_of_integers_saturate():
    for dtype in ("int64", "uint64", "int32", "uint32"):
        array = np.array([np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
        message = anf_ir_pb2.TensorProto.FromString(ms.encode_tensor(array))
        assert ms.decode_tensor(message).tolist() == array.tolist()


@pytest.mark.parametrize("dtype", ["complex64", "object", "U3", "datetime64[s]", "longdouble"])
def test_dtypes_without_a_number_in_mindspore_are_refused(dtype: str):
    with pytest.raises(InvalidTypeError, match=r"tensor must be one of .*got"):
        ms.encode_tensor(np.zeros(2, dtype))


def test_other_byte_orders_and_strides_are_encoded_by_value():
    array = np.arange(12.0).reshape(3, 4)
    expected = ms.encode_tensor(array)
    assert ms.encode_tensor(array.astype(">f8")) == expected
    assert ms.encode_tensor(np.asfortranarray(array)) == expected
    assert ms.encode_tensor(array[:, ::2]) == ms.encode_tensor(array[:, ::2].copy())


def test_numbers_that_do_not_fill_their_shape_are_damage():
    for dims in ([3], [-1, -2], [2**40], []):
        event = summary_pb2.Event(wall_time=1.0)
        tensor = anf_ir_pb2.TensorProto(dims=dims, data_type=11, float_data=[1, 2])
        event.summary.value.add(tag="t", tensor=tensor)
        with pytest.raises(DamagedFileError, match="has 2 numbers"):
            ms.decode_event(event.SerializeToString())


def assert_equal(one: object, other: object) -> None:
    if dataclasses.is_dataclass(one):
        assert type(one) is type(other)
        for field in dataclasses.fields(one):
            assert_equal(getattr(one, field.name), getattr(other, field.name))
    else:
        np.testing.assert_array_equal(one, other)


def test_a_histogram_without_finite_values_stays_without():
    histogram = count_histogram(np.array([np.nan, np.inf]))
    payload = samples.encoded_summary(ms, 1, 1.0, [Value("histogram", "h", histogram)])
    decoded = ms.decode_event(payload)
    read = decoded[1].values[0].data
    assert isinstance(read, Histogram)
    assert (read.min, read.max, read.sum, read.left.size, read.count) == (None, None, None, 0, 2)
