"""Sketches on disk: parts that add up, attempts that replace each other, crashes and full disks."""

import logging
import os
import time

import numpy as np
import pytest

from distsummary.checkpoints.sketch.count_sketch import BUCKETS
from distsummary.checkpoints.sketch.sketch_file import (
    SketchHeader,
    SketchWriter,
    has_sketches,
    read_sketches,
)
from distsummary.errors import DamagedFileError, MissingFileError, RunDirError
from tests.disks import room_for

RUN = "0" * 16


class Taken:
    def __init__(self, sketch):
        self._sketch = sketch

    def result(self):
        return self._sketch


def sketch_at(step, seed=0):
    """A path that starts far from zero and moves little."""
    rng = np.random.default_rng(seed)
    start, along = rng.normal(size=(2, BUCKETS))
    return 100 * start + 0.01 * step * along


def write(directory, steps, *, sketch=sketch_at, **header):
    writer = SketchWriter(directory, SketchHeader(run_id=RUN, **header))
    writer.write([(step, Taken(sketch(step))) for step in steps])
    return writer


def assert_read(sketches, step, expected, displacement):
    np.testing.assert_allclose(sketches.read(step), expected, atol=np.abs(displacement).max() / 32767)


def test_sketches_are_read_as_they_were_but_for_their_sixteenth_bit(nasty_tmp_path):
    assert not has_sketches(nasty_tmp_path)
    writer = write(nasty_tmp_path, [1, 2, 5])
    writer.write([(9, Taken(sketch_at(9)))])
    assert has_sketches(nasty_tmp_path)
    found = read_sketches(nasty_tmp_path)
    assert (found.steps, found.diverged, found.header.run_id) == ((1, 2, 5, 9), (), RUN)
    for step in found.steps:
        assert_read(found, step, sketch_at(step), sketch_at(step) - sketch_at(1))
    assert found.read(5, 100, 103).tolist() == found.read(5)[100:103].tolist()


@pytest.mark.parametrize("size", [1e-60, 1e-37, 1e45])
def test_a_path_in_float64_may_have_any_length(tmp_path, size):
    write(tmp_path, [1, 2], sketch=lambda step: size * sketch_at(step))
    found = read_sketches(tmp_path)
    np.testing.assert_allclose((found.read(2) - found.read(1)) / size, sketch_at(2) - sketch_at(1), atol=1e-5)


def test_a_step_takes_less_than_64_kilobytes(tmp_path):
    write(tmp_path, [1])
    (path,) = tmp_path.iterdir()
    one = path.stat().st_size
    write(tmp_path, range(1, 12))
    assert path.stat().st_size - one == 10 * 63_846
    assert one + 1_999 * 63_846 < 128e6


def test_parameters_that_do_not_move_have_a_displacement_of_exactly_zero(tmp_path):
    write(tmp_path, [1, 2], sketch=lambda step: np.full(BUCKETS, 0.1))
    found = read_sketches(tmp_path)
    assert found.read(1).tolist() == found.read(2).tolist() == [0.1] * BUCKETS


def test_parts_of_a_model_add_up_and_a_step_counts_when_all_have_it(tmp_path, caplog):
    for rank in range(3):
        steps = [1, 2, 3, 5] if rank else [1, 3, 5, 7]
        write(tmp_path, steps, rank=rank, parts=3, sketch=lambda step, r=rank: sketch_at(step, seed=r))
    found = read_sketches(tmp_path)
    assert found.steps == (1, 3, 5)
    whole = sum(sketch_at(5, seed=rank) for rank in range(3))
    np.testing.assert_allclose(found.read(5), whole, atol=1e-5)
    (tmp_path / "sketch_00000_rank_00001.frames").unlink()
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(DamagedFileError, match="no step with sketches of all parts"),
    ):
        read_sketches(tmp_path)
    assert "2 of 3 parts" in caplog.text


def test_a_resumed_training_takes_over_from_its_first_step_on(tmp_path):
    write(tmp_path, range(1, 8))
    write(tmp_path, range(5, 10), attempt=1, sketch=lambda step: sketch_at(step, seed=1))
    found = read_sketches(tmp_path)
    assert found.steps == tuple(range(1, 10))
    np.testing.assert_allclose(found.read(4), sketch_at(4), atol=1e-5)
    np.testing.assert_allclose(found.read(5), sketch_at(5, seed=1), atol=1e-5)


def test_a_resumed_training_may_have_another_number_of_parts(tmp_path):
    write(tmp_path, [1, 2, 3])
    for rank in range(2):
        write(tmp_path, [3, 4], attempt=1, rank=rank, parts=2, sketch=lambda step: sketch_at(step) / 2)
    found = read_sketches(tmp_path)
    assert found.steps == (1, 2, 3, 4)
    for step in found.steps:
        np.testing.assert_allclose(found.read(step), sketch_at(step), atol=1e-5)


def test_steps_that_an_attempt_takes_again_count_the_second_time(tmp_path):
    writer = write(tmp_path, [1, 2, 3])
    writer.write([(2, Taken(sketch_at(2, seed=4)))])
    found = read_sketches(tmp_path)
    assert found.steps == (1, 2)
    np.testing.assert_allclose(found.read(2), sketch_at(2, seed=4), atol=0.1)


def test_the_newest_run_in_a_directory_is_read(tmp_path):
    write(tmp_path, [1, 2, 3])
    old = SketchWriter(tmp_path, SketchHeader(run_id="1" * 16, attempt=5))
    old.write([(8, Taken(sketch_at(8)))])
    past = time.time() - 1000
    os.utime(tmp_path / "sketch_00005_rank_00000.frames", (past, past))
    assert read_sketches(tmp_path).steps == (1, 2, 3)


def test_the_last_attempt_counts_whatever_the_times_of_the_files(tmp_path):
    write(tmp_path, [1, 2, 3])
    write(tmp_path, [4, 5, 6], attempt=1, parameters="others")
    later = time.time() + 1000  # a copy that was made in another order
    os.utime(tmp_path / "sketch_00000_rank_00000.frames", (later, later))
    assert read_sketches(tmp_path).steps == (4, 5, 6)


def test_parameters_that_are_not_finite_have_no_sketch(tmp_path):
    def diverging(step):
        return sketch_at(step) * (np.inf if step in (3, 4) else 1)

    write(tmp_path, range(1, 6), sketch=diverging)
    found = read_sketches(tmp_path)
    assert (found.steps, found.diverged) == ((1, 2, 5), (3, 4))
    write(tmp_path, [3, 5], sketch=diverging)  # from the first step on
    assert read_sketches(tmp_path).steps == (5,)
    np.testing.assert_allclose(read_sketches(tmp_path).read(5), sketch_at(5), atol=0.02)


def test_what_a_crash_tore_and_a_disk_damaged_is_left_out(tmp_path, caplog):
    write(tmp_path, range(1, 6))
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[-3 * 63_846 + 500] ^= 1  # in the third
    path.write_bytes(data[:-10])  # the fifth is torn
    with caplog.at_level(logging.WARNING):
        assert read_sketches(tmp_path).steps == (1, 2, 4)
    assert "no sketch at byte" in caplog.text


def test_files_that_hold_no_sketches_are_refused_by_name(tmp_path, caplog):
    with pytest.raises(MissingFileError, match="'sketch': True"):
        read_sketches(tmp_path)
    with pytest.raises(MissingFileError, match="'sketch': True"):
        read_sketches(tmp_path / "nowhere")
    with pytest.raises(MissingFileError, match="nowhere does not exist; check the path"):
        read_sketches(tmp_path / "nowhere" / "ckpt_dir")
    path = tmp_path / "sketch_00000_rank_00000.frames"
    write(tmp_path / "good", [1])
    header = (tmp_path / "good" / path.name).read_bytes()
    for content in (b"", b"text", header[:100], header.replace(b"philox-cs-v1", b"philox-cs-v9")):
        path.write_bytes(content)
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(DamagedFileError, match="no sketch file"),
        ):
            read_sketches(tmp_path)
        assert path.name in caplog.text
        caplog.clear()


@pytest.mark.parametrize("first", [False, True])
def test_a_write_that_fails_leaves_no_trace_and_the_next_one_continues(tmp_path, first):
    header = SketchHeader(run_id=RUN)
    writer = SketchWriter(tmp_path, header)
    if not first:
        writer.write([(1, Taken(sketch_at(1)))])
    size = 0 if first else header.file(tmp_path).stat().st_size
    with room_for(size + 1000), pytest.raises(RunDirError, match="cannot be written: File too large"):
        writer.write([(2, Taken(sketch_at(2)))])
    assert header.file(tmp_path).stat().st_size == size
    writer.write([])
    writer.write([(3, Taken(sketch_at(3)))])
    assert read_sketches(tmp_path).steps == ((3,) if first else (1, 3))


def test_in_a_private_directory_only_the_owner_reads_it(tmp_path):
    tmp_path.chmod(0o700)
    write(tmp_path / "ckpt_dir", [1, 2])
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "ckpt_dir").iterdir()] == [0o600]
