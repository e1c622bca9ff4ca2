"""Which tensors an event holds, which only a .npy file, and which are refused where they are handed over."""

import re
import warnings

import numpy as np
import pytest

from distsummary.collect.record import SummaryRecord
from distsummary.collect.summary_collector import SummaryCollector
from distsummary.collect.values.checked_values import MAX_VALUE_BYTES, checked_value
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.events.reader import read_directory
from tests.unit.collect.doubles import Model, train

NPY = {"tensor_format": "npy"}
ONLY_EXPORTED = {
    "complex64": np.array([1 + 2j, np.nan], "complex64"),
    "complex128": np.array([[1j]]),
    "longdouble": np.array([1, 2], np.longdouble) / 3,
    "text": np.array(["a", "é"]),
    "bytes": np.array([b"a"]),
    "times": np.array(["2026-01-01", "NaT"], "datetime64[s]"),
    "spans": np.array([3], "timedelta64[D]"),
    "records": np.array([(1.5, 2)], [("a", "<f4"), ("b", "<i2")]),
}
EVENT_DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">f4", ">i8"]


def large(elements: int = MAX_VALUE_BYTES // 4 + 1, dtype: str = "int8") -> np.ndarray:
    return np.broadcast_to(np.zeros(1, dtype), (elements,))


@pytest.mark.parametrize("dtype", EVENT_DTYPES)
@pytest.mark.parametrize("plugin", ["tensor", "histogram"])
def test_numbers_of_up_to_64_bits_are_taken_as_they_are(plugin, dtype):
    value = checked_value(plugin, "x", np.ones((2, 0, 3), dtype))
    native = np.dtype(dtype).newbyteorder("=")
    assert (value.data.result().dtype, value.data.result().shape) == (native, (2, 0, 3))


@pytest.mark.parametrize("kind", ONLY_EXPORTED)
def test_other_dtypes_are_refused_with_name_dtype_range_and_remedy(kind):
    array = np.resize(ONLY_EXPORTED[kind], (2, 2))
    with pytest.raises(InvalidTypeError) as refused:
        checked_value("tensor", "layer.1", array)
    assert re.fullmatch(
        r"the tensor 'layer\.1' must be bool, integer or float of up to 64 bits, "
        rf"got {re.escape(str(array.dtype))}; (convert|record) .*",
        str(refused.value),
    )


def test_objects_are_refused_by_exports_too():
    for array in (np.array([None, 1]), np.array([(1, None)], [("a", "i4"), ("b", "O")])):
        with pytest.raises(InvalidTypeError, match="the tensor 'x' must be bool"):
            checked_value("tensor", "x", array, exports=True)


def test_a_masked_array_is_refused_since_its_places_have_no_value():
    for plugin in ("tensor", "histogram", "scalar"):
        with pytest.raises(InvalidTypeError, match=r"'x': a masked array has .*filled"):
            checked_value(plugin, "x", np.ma.masked_array([1.0], [True]))


def test_a_tensor_larger_than_an_event_is_refused_with_its_size_and_the_remedies():
    with pytest.raises(InvalidValueError) as refused:
        checked_value("tensor", "layer.1", large())
    assert str(refused.value) == (
        "the tensor 'layer.1' of shape (67106817,) takes 268427268 bytes, more than the 268427264 of an "
        "event; record a part of it or its histogram, or export tensors with "
        'export_options={"tensor_format": "npy"}'
    )
    assert checked_value("histogram", "x", large(1 << 20)).data.nbytes == 1 << 20


def test_what_only_npy_files_can_hold_is_exported_and_in_no_event(tmp_path):
    with SummaryRecord(tmp_path, export_options=NPY) as record:
        for tag, array in ONLY_EXPORTED.items():
            record.add_value("tensor", tag, array)
        record.add_value("tensor", "ordinary", np.ones(2, np.float16))
        record.add_value("tensor", "large", large(dtype="?"))
        record.record(3)
        record.add_value("tensor", "text", np.array(["alone"]))
        record.record(4)
    assert record.health().errors == {}
    events = list(read_directory(tmp_path))
    assert [(e.step, [v.tag for v in e.values]) for e in events] == [(3, ["ordinary"])]
    [place] = tmp_path.glob("export_*/tensor")
    found = {path.name: np.load(path, allow_pickle=False) for path in place.iterdir()}
    assert found.keys() == {f"{tag}_3.npy" for tag in (*ONLY_EXPORTED, "ordinary", "large")} | {"text_4.npy"}
    for tag, array in ONLY_EXPORTED.items():
        assert found[f"{tag}_3.npy"].dtype == array.dtype
        assert found[f"{tag}_3.npy"].tobytes() == array.tobytes()
    assert found["large_3.npy"].shape == large().shape


class Complex(Model):
    """Parameters that an event cannot hold, one without a dimension, and an ordinary one."""

    def __init__(self):
        self.parameters = {"wave": np.array([1j]), "scale": np.array(2.5), "weight": np.ones(3, np.float32)}


def test_parameters_that_cannot_be_recorded_cost_themselves_alone(tmp_path):
    whole = {"tensor_regular": ".*", "histogram_regular": ".*"}
    collector = SummaryCollector(tmp_path, collect_specified_data=whole)
    train(collector, steps=1, network=Complex())
    tags = {(v.plugin, v.tag): v.data for e in read_directory(tmp_path) for v in e.values}
    assert tags["tensor", "scale/auto"].shape == (1,)
    assert {tag for plugin, tag in tags if plugin in ("tensor", "histogram")} == {"scale/auto", "weight/auto"}
    assert [reason.partition(" must be")[0] for reason in collector.health().errors] == [
        "histogram of wave: InvalidTypeError: the histogram 'wave/auto'",
        "tensor of wave: InvalidTypeError: the tensor 'wave/auto'",
    ]


def test_parameters_that_cannot_be_recorded_are_exported_if_that_was_asked_for(tmp_path):
    only_tensors = {"tensor_regular": ".*"}
    collector = SummaryCollector(
        tmp_path, collect_specified_data=only_tensors, keep_default_action=False, export_options=NPY
    )
    train(collector, steps=1, network=Complex())
    names = {path.name for path in tmp_path.glob("export_*/tensor/*")}
    assert names == {"wave%2Fauto_1.npy", "scale%2Fauto_1.npy", "weight%2Fauto_1.npy"}
    assert collector.health().errors == {}


def test_records_of_one_second_export_to_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.5)
    records = [SummaryRecord(tmp_path, export_options=NPY) for _ in range(3)]
    for number, record in enumerate(records):
        record.add_value("tensor", "x", np.full(1, number))
        record.record(1)
        record.close()
    found = {path.parts[-3]: np.load(path).item() for path in tmp_path.glob("export_*/tensor/x_1.npy")}
    assert found == {f"export_{1_700_000_000 + n}": n for n in range(3)}


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_small_numbers_of_ml_dtypes_become_float32(tmp_path, name):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="pip install ml_dtypes")
    array = np.array([0, 1, 0], getattr(ml_dtypes, name))
    with warnings.catch_warnings(), SummaryRecord(tmp_path, export_options=NPY) as record:
        warnings.simplefilter("error")
        for plugin in ("tensor", "histogram"):
            record.add_value(plugin, plugin, array)
        record.add_value("image", "image", array.reshape(1, 3))
        record.add_value("scalar", "scalar", array[1])
        record.record(1)
    assert record.health().errors == {}
    [event] = read_directory(tmp_path)
    values = {value.plugin: value.data for value in event.values}
    assert (values["tensor"].dtype, values["tensor"].tolist()) == (np.float32, [0, 1, 0])
    assert (values["histogram"].count, values["histogram"].sum, values["scalar"]) == (3, 1.0, 1.0)
    [path] = tmp_path.glob("export_*/tensor/*")
    assert (np.load(path).dtype, np.load(path).tolist()) == (np.float32, [0, 1, 0])
