"""Tensors of any dtype and shape through the files: float32 numbers in the event, unchanged in the .npy."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distsummary.collect.checked_values import MAX_TENSOR_BYTES, checked_value
from distsummary.collect.record import SummaryRecord
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.encode import event_parts
from distsummary.format.frames import read_frames
from distsummary.format.mindspore_format import DATA_TYPES
from distsummary.format.records import Event, EventIds, Shard
from distsummary.pb import mindspore_summary_pb2 as pb
from distsummary.reading.segments import segments

IN_EVENTS = [*DATA_TYPES, ">i2", ">f4", ">f8"]
# No long doubles: sixteen bytes, of which ten count and the others may differ.
ONLY_EXPORTED = ["complex64", ">c16", "U3", "S5", "datetime64[ms]", "timedelta64[D]"]
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
ARRAYS = st.sampled_from([*IN_EVENTS, *ONLY_EXPORTED]).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
STEPS = st.sampled_from([slice(None), slice(None, None, -1), slice(None, None, 2)])

TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


def recorded(tensor) -> tuple[pb.Summary.Value | None, np.ndarray]:
    """The protobuf value of the tensor in the event file, None for none, and the exported array."""
    with tempfile.TemporaryDirectory(prefix="ds-") as place:
        with SummaryRecord(place, formats=("mindspore",), export_options={"tensor_format": "npy"}) as record:
            record.add_value("tensor", "x", tensor)
            record.record(1)
        assert record.health().errors == {}
        payloads = [f.payload for path in segments(Path(place), "mindspore") for f in read_frames(path)]
        values = [value for p in payloads for value in pb.Event.FromString(p).summary.value]
        [path] = Path(place).glob("export_*/tensor/x_1.npy")
        return (values[0] if values else None), np.load(path, allow_pickle=False)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    same_kind = (found.dtype, found.shape) == (expected.dtype, expected.shape)
    return same_kind and found.tobytes() == expected.tobytes()


def numbers(array: np.ndarray) -> bytes:
    with np.errstate(over="ignore"):
        return array.astype("<f4").tobytes()


@settings(max_examples=150)
@given(ARRAYS, STEPS, st.booleans())
def test_any_array(array: np.ndarray, step: slice, is_transposed: bool):
    given = array[step].T if is_transposed else array[step]
    value, exported = recorded(given)
    assert same(exported, given.astype(given.dtype.newbyteorder("=")))
    assert (value is None) == (array.dtype.name not in DATA_TYPES)
    if value is not None:
        assert (tuple(value.tensor.dims), value.tensor.data_type) == (
            given.shape,
            DATA_TYPES[array.dtype.name],
        )
        assert np.array(value.tensor.float_data, "<f4").tobytes() == numbers(given)


@settings(max_examples=100)
@given(st.sampled_from(TORCH_DTYPES), SHAPES, st.integers(0, 2**32 - 1), st.booleans())
def test_any_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int, is_transposed: bool):
    generator = torch.Generator().manual_seed(seed)
    tensor = (
        (torch.randn(shape, generator=generator) * 100)
        .abs()
        .to(dtype)
        .requires_grad_(dtype.is_floating_point)
    )
    given = tensor.t() if is_transposed and tensor.dim() <= 2 else tensor
    value, exported = recorded(given)
    is_known = (dtype.itemsize > 1 and dtype != torch.bfloat16) or not dtype.is_floating_point
    kept = given.detach().numpy() if is_known else given.detach().float().numpy()
    assert same(exported, np.ascontiguousarray(kept))
    assert value is not None
    assert (tuple(value.tensor.dims), value.tensor.data_type) == (
        tuple(given.shape),
        DATA_TYPES[kept.dtype.name],
    )
    assert np.array(value.tensor.float_data, "<f4").tobytes() == numbers(kept)


def test_every_bfloat16_and_float8_is_its_float32():
    for dtype, bits in ((torch.bfloat16, torch.int16), (torch.float8_e4m3fn, torch.uint8)):
        every = torch.arange(2 ** (8 * dtype.itemsize)).to(bits).view(dtype)
        value, exported = recorded(every)
        assert exported.dtype == np.float32
        number = ~np.isnan(exported)  # a NaN may come back with other bits
        assert 1 < np.count_nonzero(~number) < len(exported) / 100
        back = torch.from_numpy(exported[number]).to(dtype)
        assert torch.equal(back.view(bits), every.view(bits)[torch.from_numpy(number)])
        assert value is not None
        assert np.array(value.tensor.float_data, "<f4").tobytes() == exported.tobytes()


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (lambda: torch.zeros(2, dtype=torch.complex64), "complex64; record its absolute value"),
        (lambda: torch.zeros(2, dtype=torch.bits8), "has no array"),
        (lambda: torch.zeros(2, device="meta"), "no values"),
        (lambda: torch.zeros(1 << 24).expand(2, -1), "134217728 bytes, of at most"),
        (lambda: torch.zeros(()), "at least one dimension"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(tmp_path, tensor, reason):
    with SummaryRecord(tmp_path) as record, pytest.raises((InvalidTypeError, InvalidValueError)) as refused:
        record.add_value("tensor", "layer.1", tensor())
    assert "the tensor 'layer.1'" in str(refused.value)
    assert reason in str(refused.value)
    assert record.health().errors == {}


def test_a_tensor_as_large_as_is_taken_fits_its_event_with_the_longest_tag_shape_and_place():
    array = np.zeros(MAX_TENSOR_BYTES // 4, np.float32).reshape((1,) * 31 + (-1,))
    value = checked_value("tensor", "é" * 512, array)
    data = value.data.result()
    assert isinstance(data, np.ndarray)
    place = Shard(global_shape=(2**62,) * 64, offset=(2**61,) * 64)
    event = Event(2**62, 1e10, [value._replace(data=data, shard=place)])
    _, refused = event_parts(event, EventIds("f" * 16, 2**31, 2**62), ("mindspore",))
    assert refused == []
