"""Directories that torch.distributed.checkpoint reads: written by all ranks, there once all have written."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import distsummary as ds
from distsummary.checkpoints import dcp
from distsummary.checkpoints.model_file import free_prefix, saved_in
from distsummary.checkpoints.safetensors import open_safetensors
from distsummary.checkpoints.shard_file import ShardHeader
from distsummary.errors import DamagedFileError, InvalidValueError, MissingFileError, RunDirError
from distsummary.format.records import Shard

MARK = dcp.writers_mark()
WHOLE = np.arange(10, dtype=np.float32).reshape(5, 2)


def write(path, rank, *, value=WHOLE, failure=None, wait_s=20.0):
    part = value[3 * rank : 3 * rank + 3]
    slices = {"w": Shard(global_shape=(5, 2), offset=(3 * rank, 0))}
    arrays = {"w": part}
    if not rank:
        slices["optimizer/state/0/step"] = Shard(global_shape=(), offset=())
        arrays["optimizer/state/0/step"] = np.array(4.0)
    header = ShardHeader(run_id="r", rank=rank, ranks=2, slices=slices)
    names = {name: other for name in arrays if (other := dcp.torch_name(name, ["w"])) != name}
    dcp.write_dcp(path, header, arrays, names, mark=MARK, wait_s=wait_s, failure=failure)


def write_both(path, **of_rank_1):
    with ThreadPoolExecutor(2) as pool:
        return [pool.submit(write, path, 0), pool.submit(write, path, 1, **of_rank_1)]


def test_the_directory_holds_shards_of_all_ranks_under_the_names_of_torch(tmp_path):
    path = tmp_path / "a-1_2.dcp"
    for done in write_both(path):
        done.result()
    assert [one.name for one in tmp_path.iterdir()] == ["a-1_2.dcp"]
    loaded = ds.load_checkpoint(path)
    assert list(loaded) == ["w", "optimizer/state/0/step"]
    np.testing.assert_array_equal(loaded["w"], WHOLE)
    _, arrays, metadata = open_safetensors(path / "model_rank_00001_of_00002.safetensors")
    assert json.loads(metadata["DCP_SHARDING_INFO"]) == {"w": {"saved_offsets": [3, 0]}}
    _, arrays, _ = open_safetensors(path / "model_rank_00000_of_00002.safetensors")
    assert set(arrays) == {"w", "optimizer.state.w.step"}
    assert [one.path for one in saved_in(tmp_path, "a")] == [path]
    assert free_prefix(tmp_path, "a") == "a_1"
    write_both(path)[0].result()  # the same name again
    assert [one.name for one in tmp_path.iterdir()] == ["a-1_2.dcp"]


def test_a_rank_that_fails_ends_the_waiting_of_all_and_nothing_is_left(tmp_path):
    first, second = write_both(tmp_path / "a-1_2.dcp", failure=MemoryError("none left"))
    with pytest.raises(RunDirError, match="rank 1 could not write"):
        first.result()
    with pytest.raises(MemoryError):
        second.result()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("has_older", [False, True])
def test_rank_0_fails_and_the_other_knows_also_if_an_older_one_has_the_name(tmp_path, has_older):
    path = tmp_path / "a-1_2.dcp"
    for done in write_both(path) if has_older else ():
        done.result()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(write, path, 0, failure=MemoryError("none left"))
        second = pool.submit(write, path, 1)
    with pytest.raises(MemoryError):
        first.result()
    with pytest.raises(RunDirError, match="another rank could not write"):
        second.result()
    assert [*tmp_path.iterdir()] == [path] * has_older
    if has_older:
        np.testing.assert_array_equal(ds.load_checkpoint(path)["w"], WHOLE)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_come_is_named(tmp_path, rank):
    with pytest.raises(RunDirError, match="1 of 2 ranks" if not rank else "rank 0 did not finish"):
        write(tmp_path / "a-1_2.dcp", rank, wait_s=0.01)


def test_what_is_no_whole_checkpoint_is_refused(tmp_path):
    path = tmp_path / "a-1_2.dcp"
    write_both(path)
    (path / "model_rank_00001_of_00002.safetensors").unlink()
    assert not saved_in(tmp_path)[0].is_complete()
    with pytest.raises(MissingFileError):
        ds.load_checkpoint(path)
    with pytest.raises(InvalidValueError, match="not encrypted"):
        ds.load_checkpoint(path, dec_key=b"0123456789ABCDEF")
    pickled = tmp_path / "torchs.dcp"
    pickled.mkdir()
    (pickled / ".metadata").write_bytes(b"\x80\x02.")
    with pytest.raises(MissingFileError, match=r"torch\.distributed\.checkpoint\.load"):
        ds.load_checkpoint(pickled)
    file = path / "model_rank_00000_of_00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises((DamagedFileError, MissingFileError)):
        ds.load_checkpoint(path)


def test_a_key_is_refused():
    with pytest.raises(InvalidValueError, match="format='dcp'"):
        ds.CheckpointConfig(enc_key=b"0123456789ABCDEF", format="dcp")
