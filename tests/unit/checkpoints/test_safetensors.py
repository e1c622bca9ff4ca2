"""safetensors files: what the library reads of ours, what we read of its, and hostile bytes."""

import json
import pickle

import numpy as np
import pytest
import safetensors.numpy

from distsummary.checkpoints.load import load_checkpoint
from distsummary.checkpoints.safetensors import map_safetensors, write_safetensors
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError

ARRAYS = {
    "f16": np.array([1, np.nan], np.float16), "f32": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "f64": np.array(2.5), "big": np.arange(3, dtype=">i4"), "i8": np.array([-1], np.int8),
    "u64": np.array([1 << 63], np.uint64), "bool": np.array([[True], [False]]),
    "c64": np.array([1 + 2j], np.complex64), "none": np.empty((0, 2), np.float32),
}  # fmt: skip


def _file(tmp_path, header, content=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def test_arrays_survive_and_the_library_reads_the_same(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", ARRAYS)
    read = map_safetensors(tmp_path / "a.safetensors").own()
    peer = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert read.keys() == peer.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(read[name], array)
        np.testing.assert_array_equal(peer[name], array)
        assert (read[name].dtype, read[name].shape) == (array.dtype.newbyteorder("="), array.shape)
        assert read[name].flags.writeable


def test_bfloat16_is_read_as_float32(tmp_path):
    header = {"w": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]}}
    read = map_safetensors(_file(tmp_path, header, bytes.fromhex("803f20c0"))).own()["w"]
    assert read.dtype == np.float32
    assert read.tolist() == [[1.0], [-2.5]]


def test_a_mapped_file_gives_read_only_views(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", ARRAYS)
    state = map_safetensors(tmp_path / "a.safetensors")
    assert state.shape("f32") == (3, 2)
    assert not state["f32"].flags.writeable
    assert not state["f32"].flags.owndata


def test_a_part_of_a_mapped_array_is_read_alone(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", ARRAYS)
    state = map_safetensors(tmp_path / "a.safetensors")
    flat = ARRAYS["f32"].reshape(-1)
    for start, stop in [(0, 6), (2, 5), (4, 99), (3, 3)]:
        assert state.part("f32", start, stop).tolist() == flat[start:stop].tolist()


def test_a_mapped_file_goes_to_another_process_as_its_arrays(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", ARRAYS)
    arrived = pickle.loads(pickle.dumps(map_safetensors(tmp_path / "a.safetensors")))
    assert type(arrived) is dict
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrived[name], array)


def _entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


def test_bytes_that_are_no_safetensors_are_refused(tmp_path):
    path = _file(tmp_path, _entry(), bytes(5))  # one byte too many
    for content in (path.read_bytes(), b"", b"1234"):
        path.write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"a\.safetensors"):
            map_safetensors(path)


def test_a_dtype_that_numpy_has_not_is_refused_by_name(tmp_path):
    path = _file(tmp_path, _entry(dtype="F8_E4M3", offsets=(0, 1)), bytes(1))
    with pytest.raises(InvalidValueError, match="'w' is F8_E4M3"):
        map_safetensors(path)


def test_a_state_that_the_format_cannot_hold_is_refused(tmp_path):
    for state, error in (
        ({}, InvalidValueError),
        ({"__metadata__": np.ones(1)}, InvalidValueError),
        ({"a": np.array("text")}, InvalidTypeError),
        ({"a": 1.0}, InvalidTypeError),
    ):
        with pytest.raises(error):
            write_safetensors(tmp_path / "a.safetensors", state)
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_not_utf8_is_damage(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"text/note": np.array([0xFF, 0xFE], np.uint8)})
    with pytest.raises(DamagedFileError, match="a text in the checkpoint is damaged"):
        load_checkpoint(str(tmp_path / "a.safetensors"))
