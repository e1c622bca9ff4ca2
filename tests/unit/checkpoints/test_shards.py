"""Checkpoints in shards: what ranks wrote without asking each other, read as one, or refused by name."""

import json
import logging
import os
import pickle
from itertools import pairwise, product

import numpy as np
import pytest

from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.metadata import METADATA
from distsummary.checkpoints.shard_file import ENTRY, FileVersion, ShardRank, read_shards
from distsummary.checkpoints.trajectory import read
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError, MissingFileError
from distsummary.format.records import Shard
from distsummary.landscapes.directions.pca import locate, pca_plane

NUMBERS = (1, 2, 3, 4)
RUN = "0123456789abcdef"


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).integers(-99, 99, shape).astype(dtype)


# name -> the whole array, and where each axis is cut
WHOLE = {
    "rows": (numbers(7, 5), [(0, 3, 7), (0, 5)]),
    "columns": (numbers(5, 7, dtype=np.float64), [(0, 5), (0, 3, 7)]),
    "both": (numbers(5, 6), [(0, 3, 5), (0, 2, 6)]),
    "middle": (numbers(2, 5, 3), [(0, 2), (0, 1, 5), (0, 3)]),
    "inner": (numbers(3, 2, 4), [(0, 1, 3), (0, 2), (0, 3, 4)]),
    "flat": (numbers(9), [(0, 5, 9)]),
    "one row": (numbers(1, 6), [(0, 1), (0, 6)]),  # of which most ranks get nothing
    "flags": (numbers(6) > 0, [(0, 2, 6)]),
    "halves": (numbers(2, 3, dtype=np.float16), [(0, 1, 2), (0, 3)]),
    "not split": (numbers(2, 2), [(0, 2), (0, 2)]),
    "count": (numbers(dtype=np.int64), []),
    "none": (numbers(0, 2), [(0, 0), (0, 2)]),
}
RANKS = 4


def changed(array, number):
    """What the array is at a step."""
    return array if array.dtype == bool else np.asarray(array + array.dtype.type(number))


def boxes(cuts):
    return list(product(*(pairwise(along) for along in cuts)))


def parts(whole=WHOLE, ranks=RANKS, shift=0):
    """The arrays and slices that each rank writes: the n-th box is the n-th rank's."""
    found = [({}, {}) for _ in range(ranks)]
    for name, (array, cuts) in whole.items():
        cells = boxes(cuts)
        for number, cell in enumerate(cells):
            state, slices = found[number]
            state[name] = changed(array, shift)[(*(slice(*ends) for ends in cell), ...)]
            slices[name] = Shard(global_shape=array.shape, offset=tuple(begin for begin, _ in cell))
        if len(cells) > 1:  # a rank that the split left with nothing still reports it
            for state, slices in found[len(cells) :]:
                state[name] = array[:0]
                slices[name] = Shard(global_shape=array.shape, offset=(len(array), *[0] * (array.ndim - 1)))
    return found


def writer(ckpt_dir, rank, ranks=RANKS, attempt=0, run_id=RUN):
    spec = LandscapeSpec(intervals=(NUMBERS,), num_samples=16)
    place = ShardRank(rank=rank, ranks=ranks, attempt=attempt)
    return TrajectoryWriter(
        ckpt_dir, spec, model_name="Net", run_id=run_id, step_per_epoch=2, shard_rank=place
    )


def save(ckpt_dir, numbers=NUMBERS, whole=WHOLE, ranks=RANKS, **options):
    """Every rank saves its part: the last rank first, since none waits for another."""
    for rank in reversed(range(ranks)):
        mine = writer(ckpt_dir, rank, ranks, **options)
        for number in numbers:
            mine.save(number, *parts(whole, ranks, shift=number)[rank])


def expected(name, number):
    return changed(WHOLE[name][0], number)


def path_of(ckpt_dir, number, rank, ranks=RANKS):
    return ckpt_dir / f"Net_{number}_step_rank_{rank:05d}_of_{ranks:05d}.safetensors"


@pytest.fixture
def ckpt_dir(tmp_path):
    return tmp_path / "my runs/a 'b' ü" / "ckpt_dir"


def test_shards_are_read_as_whole_arrays_in_the_order_of_the_model(ckpt_dir):
    save(ckpt_dir)
    found = read(ckpt_dir)
    assert (found.numbers, found.missing, found.run_id) == (NUMBERS, (), RUN)
    for number in NUMBERS:
        state = found.open(number)
        assert list(state) == list(WHOLE)
        for name in WHOLE:
            whole = expected(name, number)
            assert state.shape(name) == whole.shape
            np.testing.assert_array_equal(state[name], whole)
            assert state[name].dtype == whole.dtype
        loaded = found.load(number)
        assert all(array.flags.writeable and array.flags.owndata for array in loaded.values())
    assert not [name for name in os.listdir(ckpt_dir) if name.startswith(".tmp")]


@pytest.mark.parametrize("name", list(WHOLE))
def test_every_range_of_elements_is_that_of_the_whole_array(ckpt_dir, name):
    save(ckpt_dir, numbers=[1])
    state, flat = read(ckpt_dir).open(1), expected(name, 1).reshape(-1)
    for start in range(flat.size + 1):
        for stop in range(start, flat.size + 3):
            np.testing.assert_array_equal(state.part(name, start, stop), flat[start:stop])


def test_of_a_range_only_its_own_bytes_are_read(ckpt_dir, monkeypatch):
    save(ckpt_dir, numbers=[1])
    state, asked = read(ckpt_dir).open(1), []
    read_into = FileVersion.read_into

    def spy(version, begin, out):
        asked.append((version.path, out.size))
        read_into(version, begin, out)

    monkeypatch.setattr(FileVersion, "read_into", spy)
    assert state.selected({"r": "rows"}).shape("r") == (7, 5)
    assert asked == [], "shapes are known without reading"
    state.part("rows", 7, 21)  # rows 0 to 2, of five numbers each, are rank 0's
    first, second = (path_of(ckpt_dir, 1, rank) for rank in (0, 1))
    assert asked == [(first, 3), (first, 5), (second, 5), (second, 1)]


def test_a_selection_has_new_names_and_another_process_gets_arrays(ckpt_dir):
    save(ckpt_dir, numbers=[1])
    state = read(ckpt_dir).open(1).selected({"a": "rows", "b": "count"})
    assert list(state) == ["a", "b"]
    np.testing.assert_array_equal(state["a"], expected("rows", 1))
    copy = pickle.loads(pickle.dumps(state))
    assert type(copy) is dict
    np.testing.assert_array_equal(copy["a"], expected("rows", 1))


def test_the_metadata_names_rank_0s_files_and_how_many_there_are(ckpt_dir):
    save(ckpt_dir, numbers=[1, 3])
    reported = json.loads((ckpt_dir / METADATA).read_text())
    assert reported["model_params_file_map"] == {str(n): str(path_of(ckpt_dir, n, 0)) for n in (1, 3)}
    assert reported["shards"] == {"1": RANKS, "3": RANKS}
    assert reported["sha256"] == {"1": "", "3": ""}, "each file has its own inside"
    assert sorted(os.listdir(ckpt_dir)) == sorted(
        [METADATA, *(path_of(ckpt_dir, n, rank).name for n in (1, 3) for rank in range(RANKS))]
    )


def test_a_checkpoint_without_all_its_shards_is_left_out_and_refused_by_name(ckpt_dir, caplog):
    save(ckpt_dir)
    path_of(ckpt_dir, 3, 2).unlink()
    with caplog.at_level(logging.WARNING):
        found = read(ckpt_dir)
    assert (found.numbers, found.missing) == ((1, 2, 4), (3,))
    assert "step 3 is left out: the shard of rank 2 of step 3" in caplog.text
    with pytest.raises(
        MissingFileError,
        match=r"the shard of rank 2 of step 3, .*Net_3_step_rank_00002_of_00004\.safetensors, "
        "does not exist; put it back, train again or choose another (step|epoch)",
    ):
        found.open(3)
    with pytest.raises(InvalidValueError, match=r"step 7 is not in the trajectory .*; saved are: 1, 2, 4"):
        found.open(7)


@pytest.mark.parametrize(
    "other",
    [{"attempt": 1}, {"run_id": "fedcba9876543210", "attempt": 5}],
    ids=["another attempt", "another run"],
)
def test_shards_of_different_starts_do_not_make_a_checkpoint(ckpt_dir, caplog, other):
    save(ckpt_dir)
    writer(ckpt_dir, 3, **other).save(2, *parts(shift=20)[3])
    found = read(ckpt_dir)
    assert found.numbers == (1, 3, 4)
    behind = "rank 3" if "run_id" in other else "rank 0"  # of two attempts the later counts
    assert f"the shard of {behind} of step 2 was not saved" in caplog.text
    with pytest.raises(
        MissingFileError, match=r"from another run, attempt or world size than the files of the other"
    ):
        found.open(2)


def test_a_resumed_run_of_another_world_takes_the_place_of_the_steps_that_it_repeats(ckpt_dir):
    save(ckpt_dir)
    whole = {name: WHOLE[name] for name in ("rows", "flat", "count")}
    save(ckpt_dir, numbers=[3, 4], whole=whole, ranks=2, attempt=1)
    found = read(ckpt_dir)
    assert found.numbers == NUMBERS
    assert [len(found.shards(number)) for number in NUMBERS] == [4, 4, 2, 2]
    assert [list(found.open(number)) for number in (2, 3)] == [list(WHOLE), list(whole)]
    np.testing.assert_array_equal(found.open(4)["rows"], expected("rows", 4))


def test_another_runs_shards_are_disowned(ckpt_dir):
    save(ckpt_dir)
    save(ckpt_dir, numbers=[2], run_id="new")
    assert (read(ckpt_dir).run_id, read(ckpt_dir).numbers) == ("new", (2,))


def test_a_checkpoint_exists_once_rank_0_has_named_it_and_all_have_written_it(ckpt_dir, caplog):
    ranks = [writer(ckpt_dir, rank) for rank in range(RANKS)]
    ranks[1].save(1, *parts()[1])
    with pytest.raises(MissingFileError, match="train_metadata"):
        read(ckpt_dir)
    ranks[0].save(1, *parts()[0])
    ranks[3].save(1, *parts()[3])
    assert read(ckpt_dir).numbers == ()
    assert "shard of rank 2 of step 1" in caplog.text
    ranks[2].save(1, *parts()[2])
    assert read(ckpt_dir).numbers == (1,)


def test_a_rank_without_any_array_writes_a_file_all_the_same(ckpt_dir):
    writer(ckpt_dir, 1, ranks=2).save(1, {}, {})
    state, slices = parts({"not split": WHOLE["not split"]}, ranks=1)[0]
    writer(ckpt_dir, 0, ranks=2).save(1, state, slices)
    np.testing.assert_array_equal(read(ckpt_dir).open(1)["not split"], WHOLE["not split"][0])


def test_a_changed_byte_is_noticed_whether_in_the_numbers_or_in_the_header(ckpt_dir):
    save(ckpt_dir)
    path = path_of(ckpt_dir, 1, 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    other = path_of(ckpt_dir, 2, 1)
    header = other.read_bytes()
    other.write_bytes(header.replace(rb"\"offset\": [3, 0]", rb"\"offset\": [2, 0]", 1))
    found = read(ckpt_dir)
    assert found.numbers == NUMBERS, "they were saved"
    for number in (1, 2):
        with pytest.raises(
            DamagedFileError, match=r"not what rank 1 of run \w+ wrote .*sha256.*choose another"
        ):
            found.open(number)


MISFITS = {
    "gap": (numbers(2, 2), (6, 2), (4, 0), "'w' .* do not cover the whole"),
    "overlap": (numbers(3, 2), (6, 2), (2, 0), "'w' .* do not cover the whole"),
    "no grid": (numbers(6, 1), (6, 2), (0, 1), "'w' .* do not cover the whole"),
    "too short": (numbers(2, 2), (6, 2), (3, 0), "'w' .* do not cover the whole"),
    "another shape": (numbers(4, 2), (7, 2), (3, 0), r"disagree on 'w', .*\(7, 2\)"),
    "another dtype": (numbers(3, 2, dtype=np.float64), (6, 2), (3, 0), "disagree on 'w', .*<f8"),
}


@pytest.mark.parametrize(("array", "shape", "offset", "message"), MISFITS.values(), ids=MISFITS.keys())
def test_slices_that_do_not_make_up_the_whole_are_refused(ckpt_dir, array, shape, offset, message):
    first = numbers(3, 2), Shard(global_shape=(6, 2), offset=(0, 0))
    for rank, (held, shard) in enumerate((first, (array, Shard(global_shape=shape, offset=offset)))):
        writer(ckpt_dir, rank, ranks=2).save(1, {"w": held}, {"w": shard})
    with pytest.raises(DamagedFileError, match=message):
        read(ckpt_dir).open(1)


def test_an_array_that_two_ranks_hold_whole_is_refused(ckpt_dir):
    for rank in range(2):
        writer(ckpt_dir, rank, ranks=2).save(1, *parts({"count": WHOLE["count"]}, ranks=1)[0])
    with pytest.raises(DamagedFileError, match=r"'count'.* each element once"):
        read(ckpt_dir).open(1)


def test_a_file_that_is_replaced_while_it_is_read_is_noticed(ckpt_dir):
    save(ckpt_dir)
    state = read(ckpt_dir).open(1)
    save(ckpt_dir, attempt=1)
    with pytest.raises(DamagedFileError, match="was replaced while it was read; load the trajectory again"):
        state["rows"]


def test_a_link_out_of_the_directory_is_not_followed(ckpt_dir, tmp_path):
    save(ckpt_dir, numbers=[1])
    path = path_of(ckpt_dir, 1, 1)
    path.rename(tmp_path / path.name)
    path.symlink_to(tmp_path / path.name)
    with pytest.raises(DamagedFileError, match="leads out of"):
        read(ckpt_dir).open(1)


HEADERS = {
    "no json": "{",
    "no object": "[]",
    "another format": '{"format": 2, "slices": {}}',
    "an unknown key": '{"format": 1, "slices": {}, "run_id": "r", "rank": 0, "ranks": 2, "colour": 1}',
    "no slices": '{"format": 1, "run_id": "r", "rank": 0, "ranks": 2}',
    "a rank beyond": '{"format": 1, "slices": {}, "run_id": "r", "rank": 2, "ranks": 2}',
    "a shape of text": '{"format": 1, "run_id": "r", "rank": 0, "ranks": 2, '
    '"slices": {"w": {"global_shape": ["1"], "offset": [0]}}}',
    "a slice outside": '{"format": 1, "run_id": "r", "rank": 0, "ranks": 2, '
    '"slices": {"w": {"global_shape": [4], "offset": [3]}}}',
    "another axis": '{"format": 1, "run_id": "r", "rank": 0, "ranks": 2, '
    '"slices": {"w": {"global_shape": [4, 1], "offset": [0, 0]}}}',
    "too large": '{"format": 1, "run_id": "r", "rank": 0, "ranks": 2, '
    '"slices": {"w": {"global_shape": [9223372036854775807], "offset": [0]}}}',
    "another name": '{"format": 1, "run_id": "r", "rank": 0, "ranks": 2, '
    '"slices": {"v": {"global_shape": [2], "offset": [0]}}}',
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_that_is_none_of_ours_is_refused(tmp_path, header):
    from distsummary.checkpoints.safetensors import write_safetensors

    write_safetensors(tmp_path / "a.safetensors", {"w": np.zeros(2, np.float32)}, {ENTRY: header})
    with pytest.raises(
        DamagedFileError, match=r"a\.safetensors holds no shards of a checkpoint: .*; train again"
    ):
        read_shards(tmp_path / "a.safetensors")


def test_a_name_in_the_metadata_that_is_no_shard_is_refused(ckpt_dir):
    save(ckpt_dir, numbers=[1])
    reported = json.loads((ckpt_dir / METADATA).read_text())
    for wrong in ("Net_1_step.ckpt", "../" + path_of(ckpt_dir, 1, 1).name):
        reported["model_params_file_map"] = {"1": wrong}
        (ckpt_dir / METADATA).write_text(json.dumps(reported))
        with pytest.raises(DamagedFileError, match="must end with _rank_00000_of_"):
            read(ckpt_dir).open(1)
    for count in (1, "2", 1 << 40):
        (ckpt_dir / METADATA).write_text(json.dumps({**reported, "shards": {"1": count}}))
        with pytest.raises(DamagedFileError, match="shards"):
            read(ckpt_dir)


def test_what_cannot_be_written_is_refused_before_a_file_is_there(ckpt_dir):
    part = writer(ckpt_dir, 1)
    with pytest.raises(InvalidValueError, match=r"slices must have exactly the names of .*\['w'\]"):
        part.save(1, {"w": numbers(2)}, {})
    with pytest.raises(InvalidValueError, match=r"'w' of shape \(2,\) at \(3,\) must lie inside"):
        part.save(1, {"w": numbers(2)}, {"w": Shard(global_shape=(4,), offset=(3,))})
    with pytest.raises(InvalidTypeError, match="w"):
        part.save(1, {"w": [1.0]}, {"w": Shard(global_shape=(1,), offset=(0,))})
    assert os.listdir(ckpt_dir) == []


def test_the_plane_of_a_path_in_shards_is_that_of_the_whole_path(ckpt_dir):
    rng = np.random.default_rng(0)
    whole, cuts = {"w": (31, 77), "b": (77,)}, {"w": [(0, 31), (0, 30, 77)], "b": [(0, 39, 77)]}
    states = [
        {name: rng.standard_normal(shape, np.float32) for name, shape in whole.items()} for _ in NUMBERS
    ]
    for rank in range(2):
        mine = writer(ckpt_dir, rank, ranks=2)
        for number, state in zip(NUMBERS, states, strict=True):
            mine.save(number, *parts({n: (state[n], cuts[n]) for n in whole}, ranks=2)[rank])
    found = read(ckpt_dir)
    opened = [found.open(number) for number in NUMBERS]
    plane, reference = pca_plane(opened, list(whole)), pca_plane(states, list(whole))
    for name in whole:
        np.testing.assert_array_equal(plane.directions.x[name], reference.directions.x[name])
        np.testing.assert_array_equal(plane.directions.y[name], reference.directions.y[name])
    path, other = (locate(s, list(whole), plane.directions) for s in (opened, states))
    np.testing.assert_array_equal(path.points, other.points)
