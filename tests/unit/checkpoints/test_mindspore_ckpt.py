"""MindSpore .ckpt files: the golden ones, what we write, and hostile bytes."""

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from distsummary.checkpoints.mapped import MAX_SLICES
from distsummary.checkpoints.mindspore_ckpt import map_ckpt, write_ckpt
from distsummary.errors import (
    DamagedFileError,
    InvalidTypeError,
    InvalidValueError,
    MissingFileError,
    RunDirError,
)
from distsummary.format.pb import mindspore_checkpoint_pb2 as pb

GOLDEN = sorted((Path(__file__).parents[2] / "golden").rglob("*.ckpt"))


def _value(name, kind, dims, content):
    tensor = pb.TensorProto(dims=dims, tensor_type=kind, tensor_content=content)
    return pb.Checkpoint(value=[pb.Checkpoint.Value(tag=name, tensor=tensor)]).SerializeToString()


def ckpt_file(tmp_path, content):
    path = tmp_path / "a.ckpt"
    path.write_bytes(content)
    return path


def test_there_are_golden_checkpoints():
    assert len(GOLDEN) == 15


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_a_golden_checkpoint_reads_as_protobuf_reads_it_and_is_written_to_the_same_bytes(path, tmp_path):
    state = map_ckpt(path).own()
    expected = pb.Checkpoint.FromString(path.read_bytes()).value
    assert list(state) == [value.tag for value in expected]
    for value in expected:
        assert state[value.tag].shape == tuple(value.tensor.dims)
        assert state[value.tag].tobytes() == value.tensor.tensor_content
    write_ckpt(tmp_path / "again.ckpt", state)
    assert (tmp_path / "again.ckpt").read_bytes() == path.read_bytes()


def test_an_optimizer_checkpoint_of_mindspore_has_its_scalars():
    state = map_ckpt(next(path for path in GOLDEN if path.name == "mlp-2_5.ckpt")).own()
    assert state["epoch_num"].shape == ()
    assert state["epoch_num"].dtype == np.int64
    assert (state["epoch_num"], state["step_num"]) == (2, 10)
    assert state["global_step"].tolist() == [10]


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(-3, 3).astype(f"i{size}").reshape(2, 3) for size in (1, 2, 4, 8)),
        *(np.arange(6).astype(f"u{size}") for size in (1, 2, 4, 8)),
        *(np.array([0.5, -0.0, np.inf, np.nan], f"f{size}") for size in (2, 4, 8)),
        np.array([True, False]),
        np.array(3, np.float32),
        np.empty((0, 4), np.float32),
        np.arange(12, dtype=">f4").reshape(3, 4),
        np.arange(12.0).reshape(3, 4).T,
        np.array("step ünd 😀"),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_an_array_survives(array, tmp_path):
    write_ckpt(tmp_path / "a.ckpt", {"w": array})
    read = map_ckpt(tmp_path / "a.ckpt").own()["w"]
    np.testing.assert_array_equal(read, array)
    assert (read.dtype, read.shape) == (array.dtype.newbyteorder("="), array.shape)
    assert read.flags.writeable
    assert read.flags.aligned
    assert len(pb.Checkpoint.FromString((tmp_path / "a.ckpt").read_bytes()).value) == 1


def test_a_part_may_cross_the_slices_of_a_large_array(tmp_path):
    array = np.arange(10, dtype=np.float32).reshape(2, 5)
    write_ckpt(tmp_path / "a.ckpt", {"b": np.ones(2), "a": array}, slice_bytes=12)
    state = map_ckpt(tmp_path / "a.ckpt")
    for start in range(10):
        for stop in range(start, 11):
            assert state.part("a", start, stop).tolist() == list(range(start, stop))


def test_a_large_array_is_split_and_joined(tmp_path):
    state = {"a": np.arange(10, dtype=np.float32).reshape(2, 5), "b": np.ones(2)}
    write_ckpt(tmp_path / "a.ckpt", state, slice_bytes=16)
    values = pb.Checkpoint.FromString((tmp_path / "a.ckpt").read_bytes()).value
    assert [(v.tag, list(v.tensor.dims), len(v.tensor.tensor_content)) for v in values] == [
        ("a", [2, 5], 16), ("a", [2, 5], 12), ("a", [2, 5], 12), ("b", [2], 16),
    ]  # fmt: skip
    read = map_ckpt(tmp_path / "a.ckpt").own()
    np.testing.assert_array_equal(read["a"], state["a"])
    np.testing.assert_array_equal(read["b"], state["b"])


def test_bfloat16_is_read_as_float32(tmp_path):
    path = ckpt_file(tmp_path, _value("w", "BFloat16", [2], bytes.fromhex("803f20c0")))
    read = map_ckpt(path).own()["w"]
    assert read.dtype == np.float32
    assert read.tolist() == [1.0, -2.5]


def test_a_mapped_checkpoint_gives_read_only_views(tmp_path):
    write_ckpt(tmp_path / "a.ckpt", {"w": np.arange(4.0), "b": np.zeros(())})
    state = map_ckpt(tmp_path / "a.ckpt")
    array = state["w"]
    assert (len(state), state.shape("w"), array.tolist()) == (2, (4,), [0, 1, 2, 3])
    assert not array.flags.owndata
    assert not array.flags.writeable
    write_ckpt(tmp_path / "a.ckpt", {"w": np.ones(4)})
    assert array.tolist() == [0, 1, 2, 3], "a replaced file stays readable where it is mapped"


def test_a_checksum_is_verified(tmp_path):
    content = _value("w", "Float32", [1], b"\0\0\x80\x3f")
    trailer = b"crc_num" + zlib.crc32(content).to_bytes(10, "big")
    assert map_ckpt(ckpt_file(tmp_path, content + trailer)).own()["w"].tolist() == [1.0]
    damaged = content.replace(b"\x80\x3f", b"\x80\x40")
    with pytest.raises(DamagedFileError, match="checksum is wrong"):
        map_ckpt(ckpt_file(tmp_path, damaged + trailer))


def test_content_that_looks_like_a_checksum_is_content(tmp_path):
    content = _value("w", "UInt8", [17], b"crc_num" + bytes(10))
    assert bytes(map_ckpt(ckpt_file(tmp_path, content)).own()["w"]) == b"crc_num" + bytes(10)


HOSTILE = {
    "empty": b"",
    "text": b"this is no checkpoint at all, whatever its name says",
    "torch zip": b"PK\x03\x04" + bytes(60),
    "pickle": b"\x80\x02}q\x00." * 10,
    "cut": _value("w", "Float32", [4], bytes(16))[:-1],
    "cut in a number": b"\x0a\xff",
    "endless number": b"\x0a" + b"\xff" * 20,
    "a size beyond its shape": b"\x0a\x11\x0a\x01w\x12\x0c\x0a\x01\xac\x12\x07Float32",
    "value larger than the file": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    "no tensor": pb.Checkpoint(value=[pb.Checkpoint.Value(tag="w")]).SerializeToString(),
    "too few bytes": _value("w", "Float32", [5], bytes(16)),
    "huge shape": _value("w", "Float32", [1 << 40, 1 << 40], bytes(16)),
    "huge shape without elements": _value("w", "Float32", [1 << 62, 1 << 62, 0], b""),
    "negative size": _value("w", "Float32", [-4, -1], bytes(16)),
    "many dimensions": _value("w", "Float32", [1] * 70, bytes(4)),
    "unknown type": _value("w", "Object", [1], bytes(8)),
    "long name": _value("w" * 2000, "Float32", [1], bytes(4)),
    "name that is not UTF-8": _value("wwww", "Float32", [1], bytes(4)).replace(b"wwww", b"\xff\xfe\xff\xff"),
    "text that is not": _value("w", "str", [0], b"\xff\xff\xff\xff"),
    "twice": b"".join(_value(name, "Int8", [1], b"1") for name in "aba"),
    "slices that disagree": _value("a", "Int8", [2], b"1") + _value("a", "Int8", [3], b"11"),
    "too many slices": _value("a", "Int8", [0], b"") * (MAX_SLICES + 1),
    "half an element": _value("a", "Int16", [1], b"1") * 2,
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_bytes_that_are_no_checkpoint_are_refused(content, tmp_path):
    path = ckpt_file(tmp_path, content)
    with pytest.raises(DamagedFileError, match=r"a\.ckpt"):
        map_ckpt(path)


def test_map_parameters_and_int4_are_refused_by_name(tmp_path):
    value = pb.Checkpoint.Value(tag="table", maptensor=pb.MapTensorProto())
    with pytest.raises(InvalidValueError, match="'table' is a map parameter"):
        map_ckpt(ckpt_file(tmp_path, pb.Checkpoint(value=[value]).SerializeToString()))
    with pytest.raises(InvalidValueError, match="'q' is Int4"):
        map_ckpt(ckpt_file(tmp_path, _value("q", "Int4", [2], b"1")))


def test_what_is_not_a_file_is_refused(tmp_path):
    with pytest.raises(MissingFileError, match=r"no\.ckpt"):
        map_ckpt(tmp_path / "no.ckpt")
    with pytest.raises(DamagedFileError, match="not a regular file"):
        map_ckpt(tmp_path)
    os.mkfifo(tmp_path / "pipe.ckpt")
    with pytest.raises(DamagedFileError, match="not a regular file"):
        map_ckpt(tmp_path / "pipe.ckpt")


@pytest.mark.parametrize(
    ("state", "error", "match"),
    [
        ({}, InvalidValueError, "at least one array"),
        ([("a", np.ones(1))], InvalidTypeError, "state must be Mapping"),
        ({"a": [1.0]}, InvalidTypeError, r"state\['a'\] must be ndarray"),
        ({"a": np.ones(1, complex)}, InvalidTypeError, "complex128"),
        ({"a": np.array([None])}, InvalidTypeError, "object"),
        ({1: np.ones(1)}, InvalidTypeError, "a name in state must be str"),
        ({"": np.ones(1)}, InvalidValueError, "1 to 1024 bytes"),
    ],
)
def test_a_state_that_no_checkpoint_can_hold_is_refused_before_writing(state, error, match, tmp_path):
    (tmp_path / "a.ckpt").write_bytes(b"old")
    with pytest.raises(error, match=match):
        write_ckpt(tmp_path / "a.ckpt", state)
    assert (tmp_path / "a.ckpt").read_bytes() == b"old"


def test_a_failed_write_names_the_path_and_leaves_nothing(tmp_path):
    (tmp_path / "a.ckpt").mkdir()
    with pytest.raises(RunDirError, match=r"a\.ckpt cannot be written"):
        write_ckpt(tmp_path / "a.ckpt", {"a": np.ones(1)})
    with pytest.raises(RunDirError, match=r"a\.ckpt cannot be written"):
        write_ckpt(tmp_path / "nowhere" / "a.ckpt", {"a": np.ones(1)})
    assert os.listdir(tmp_path) == ["a.ckpt"]
