"""Tensors of any dtype and shape through the files: float32 numbers in the event, unchanged in the .npy."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distsummary import SummaryRecord
from distsummary.collect.values.checked_values import MAX_VALUE_BYTES, checked_value
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.events.segments import segments
from distsummary.format.encode import event_parts
from distsummary.format.frames import read_frames
from distsummary.format.mindspore_format import DATA_TYPES
from distsummary.format.pb import mindspore_summary_pb2 as pb
from distsummary.format.records import Event, EventIds, Shard

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


def recorded(tensors: Sequence[Any]) -> Iterator[tuple[pb.Summary.Value | None, np.ndarray]]:
    """For each tensor its protobuf value in the event file, None for none, and the exported array."""
    with tempfile.TemporaryDirectory(prefix="ds-") as place:
        with SummaryRecord(place, formats=("mindspore",), export_options={"tensor_format": "npy"}) as record:
            for number, tensor in enumerate(tensors):
                record.add_value("tensor", f"x{number}", tensor)
            record.record(1)
        assert record.health().errors == {}
        payloads = [f.payload for path in segments(Path(place), "mindspore") for f in read_frames(path)]
        values = {value.tag: value for p in payloads for value in pb.Event.FromString(p).summary.value}
        for number in range(len(tensors)):
            [path] = Path(place).glob(f"export_*/tensor/x{number}_1.npy")
            yield values.get(f"x{number}"), np.load(path, allow_pickle=False)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    same_kind = (found.dtype, found.shape) == (expected.dtype, expected.shape)
    return same_kind and found.tobytes() == expected.tobytes()


def numbers(array: np.ndarray) -> bytes:
    with np.errstate(over="ignore"):
        return array.astype("<f4").tobytes()


@settings(max_examples=40)
@given(st.lists(st.tuples(ARRAYS, STEPS, st.booleans()), min_size=1, max_size=8))
def test_any_arrays(drawn: list[tuple[np.ndarray, slice, bool]]):
    arrays = [array[step].T if is_transposed else array[step] for array, step, is_transposed in drawn]
    for array, (value, exported) in zip(arrays, recorded(arrays), strict=True):
        assert same(exported, array.astype(array.dtype.newbyteorder("=")))
        assert (value is None) == (array.dtype.name not in DATA_TYPES)
        if value is not None:
            expected = array.shape, DATA_TYPES[array.dtype.name]
            assert (tuple(value.tensor.dims), value.tensor.data_type) == expected
            assert np.array(value.tensor.float_data, "<f4").tobytes() == numbers(array)


@settings(max_examples=10)
@given(st.tuples(*[SHAPES] * len(TORCH_DTYPES)), st.integers(0, 2**32 - 1), st.booleans())
def test_tensors_of_any_dtype(shapes: tuple[tuple[int, ...], ...], seed: int, is_transposed: bool):
    generator, tensors = torch.Generator().manual_seed(seed), []
    for dtype, shape in zip(TORCH_DTYPES, shapes, strict=True):
        tensor = (torch.randn(shape, generator=generator) * 100).abs().to(dtype)
        tensor.requires_grad_(dtype.is_floating_point)
        tensors.append(tensor.t() if is_transposed and tensor.dim() <= 2 else tensor)
    for tensor, (value, exported) in zip(tensors, recorded(tensors), strict=True):
        is_known = not tensor.is_floating_point() or tensor.dtype in (
            torch.float16, torch.float32, torch.float64,
        )  # fmt: skip
        kept = tensor.detach().numpy() if is_known else tensor.detach().float().numpy()
        assert same(exported, np.ascontiguousarray(kept))
        expected = tuple(tensor.shape), DATA_TYPES[kept.dtype.name]
        assert (tuple(value.tensor.dims), value.tensor.data_type) == expected
        assert np.array(value.tensor.float_data, "<f4").tobytes() == numbers(kept)


def test_every_bfloat16_and_float8_is_its_float32():
    for dtype, bits in ((torch.bfloat16, torch.int16), (torch.float8_e4m3fn, torch.uint8)):
        every = torch.arange(2 ** (8 * dtype.itemsize)).to(bits).view(dtype)
        [(value, exported)] = recorded([every])
        assert exported.dtype == np.float32
        number = ~np.isnan(exported)  # a NaN may come back with other bits
        assert 1 < np.count_nonzero(~number) < len(exported) / 100
        back = torch.from_numpy(exported[number]).to(dtype)
        assert torch.equal(back.view(bits), every.view(bits)[torch.from_numpy(number)])
        np.testing.assert_array_equal(np.array(value.tensor.float_data, "<f4"), exported)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:.*are deprecated and will")
@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (lambda: torch.zeros(2, dtype=torch.complex64), "complex64; record its absolute value"),
        (lambda: torch.zeros(2, dtype=torch.bits8), "has no array"),
        (lambda: torch.zeros(2, device="meta"), "meta (torch.float32 of shape (2,)) has no values; mater"),
        (lambda: torch.eye(2).to_sparse(), "torch.sparse_coo of shape (2, 2); convert it: value.to_dense()"),
        (lambda: torch.eye(2).to_sparse_csr(), "got torch.sparse_csr of shape (2, 2); convert it: value"),
        (quantized, "(torch.qint8 of shape (2,)) has no numbers; use tensor.dequantize()"),
        (lambda: [torch.ones(1, requires_grad=True)], "got a list that NumPy cannot read"),
        (lambda: torch.zeros(()), "at least one dimension"),
        (lambda: torch.zeros(1).expand(1 << 26), "268435456 bytes, more than the"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(tmp_path, tensor, reason):
    with SummaryRecord(tmp_path) as record, pytest.raises((InvalidTypeError, InvalidValueError)) as refused:
        record.add_value("tensor", "layer.1", tensor())
    assert "the tensor 'layer.1'" in str(refused.value)
    assert reason in str(refused.value)
    assert record.health().errors == {}


def test_any_layout_in_memory_is_read_as_it_is():
    grid = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "with a gradient": grid.clone().requires_grad_(),
        "transposed": grid.t(),
        "every other": grid[:, ::2],
        "empty": torch.empty(0, 3),
        "not finite": torch.tensor([float("nan"), float("inf"), -float("inf")]),
        "expanded": torch.ones(1).expand(4),
        "a parameter": torch.nn.Parameter(torch.ones(2)),
    }
    for (name, tensor), (value, exported) in zip(tensors.items(), recorded([*tensors.values()]), strict=True):
        expected = tensor.detach().numpy()
        assert same(exported, np.ascontiguousarray(expected)), name
        assert tuple(value.tensor.dims) == expected.shape


def test_a_tensor_as_large_as_is_taken_fits_its_event_with_the_longest_tag_shape_and_place():
    array = np.zeros(MAX_VALUE_BYTES // 4, np.float32).reshape((1,) * 31 + (-1,))
    value = checked_value("tensor", "é" * 512, array)
    data = value.data.result()
    assert isinstance(data, np.ndarray)
    place = Shard(global_shape=(2**62,) * 64, offset=(2**61,) * 64)
    event = Event(2**62, 1e10, [value._replace(data=data, shard=place)])
    _, refused = event_parts(event, EventIds("f" * 16, 2**31, 2**62), ("mindspore",))
    assert refused == []
