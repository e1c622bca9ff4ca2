"""Scalars of files as arrays, one series for each tag."""

from pathlib import Path

import numpy as np
import pytest

from distsummary.errors import DamagedFileError, InvalidValueError, MissingFileError
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame
from distsummary.format.records import Event, EventIds, Value
from distsummary.reading.reader import Damage
from distsummary.reading.series import read_scalars
from tests.unit.reading.test_reader import MINDSPORE, TENSORBOARD, flip, write
from tests.unit.reading.test_scalar_columns import RUN, run


def single(seq: int, *values: Value) -> bytes:
    payload = encode_event(Event(10 * seq, 1.5 * seq, list(values)), EventIds(RUN, 0, seq), ("mindspore",))[0]
    return frame(payload["mindspore"] or b"")


def test_each_tag_has_its_values_in_the_order_of_the_file(nasty_tmp_path: Path):
    between = single(500, Value("scalar", "z", 7.0), Value("tensor", "t", np.ones(3)))
    frames = [*run(range(200, 500), ("z", "a")), between, *run(range(501, 701), ("a",))]
    found = read_scalars(write(nasty_tmp_path, MINDSPORE.format(9), frames))
    assert list(found) == ["z", "a"]
    assert found["z"].steps.tolist() == [10 * seq for seq in range(200, 501)]
    assert found["z"].values.tolist() == [*(seq / 2 for seq in range(200, 500)), 7.0]
    steps = [*range(200, 500), *range(501, 701)]
    assert found["a"].steps.tolist() == [10 * seq for seq in steps]
    assert found["a"].wall_times.tolist() == [1.5 * seq for seq in steps]
    assert [column.dtype.str for column in found["a"]] == ["<i8", "<i8", "<f8", "<f8"]


def test_what_was_written_twice_comes_once_and_attempts_are_told_apart(nasty_tmp_path: Path):
    write(nasty_tmp_path, MINDSPORE.format(9), run(range(200, 400)))
    write(nasty_tmp_path, MINDSPORE.format(10), run(range(300, 500)))
    write(nasty_tmp_path, MINDSPORE.format(11), run(range(200, 300), attempt=1))
    loss = read_scalars(nasty_tmp_path)["loss"]
    assert loss.steps.tolist() == [10 * seq for seq in (*range(200, 500), *range(200, 300))]
    assert loss.attempts.tolist() == [0] * 300 + [1] * 100


def test_damage_is_raised_or_listed(nasty_tmp_path: Path):
    frames = run(range(200, 500))
    path = write(nasty_tmp_path, TENSORBOARD.format(9), run(range(200, 500), dialect="tensorboard"))
    offset = sum(map(len, frames[:170]))
    flip(path, offset + 30)
    with pytest.raises(DamagedFileError, match=f"byte {offset}:"):
        read_scalars(path)
    skipped: list[Damage] = []
    loss = read_scalars(path, mode="skip", skipped=skipped)["loss"]
    assert loss.values.tolist() == [seq / 2 for seq in range(200, 500) if seq != 370]
    assert skipped == [Damage(path, offset, "the payload has a wrong CRC")]


def test_no_scalars_are_no_series(nasty_tmp_path: Path):
    path = write(nasty_tmp_path, MINDSPORE.format(9), [single(1, Value("tensor", "t", np.ones(3)))])
    assert read_scalars(path) == {}
    assert read_scalars(nasty_tmp_path, "tensorboard") == {}
    with pytest.raises(InvalidValueError, match="dialect"):
        read_scalars(path, "lineage")
    with pytest.raises(MissingFileError, match="nowhere"):
        read_scalars(nasty_tmp_path / "nowhere")
