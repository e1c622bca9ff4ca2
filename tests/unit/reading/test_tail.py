"""Following files that grow, by any number of bytes at a time."""

from pathlib import Path
from random import Random

import pytest

from distsummary.errors import InvalidValueError
from distsummary.reading.reader import Damage
from distsummary.reading.tail import Tail
from tests.unit.reading.test_reader import MINDSPORE, TENSORBOARD, scalar_frames, write


def seqs(tail: Tail) -> list[int]:
    return [event.seq for event in tail.poll()]


@pytest.mark.parametrize("seed", range(5))
def test_every_event_comes_once_however_the_file_grows(nasty_tmp_path: Path, seed: int):
    data = b"".join(scalar_frames("mindspore", range(1, 31)))
    path = nasty_tmp_path / MINDSPORE.format(17)
    tail, random, found, skipped = Tail(path), Random(seed), [], []
    tail = Tail(path, skipped=skipped)
    assert seqs(tail) == []  # not there yet
    with open(path, "wb", buffering=0) as file:
        while data:
            size = random.randint(1, 120)
            file.write(data[:size])
            data = data[size:]
            found += seqs(tail)
    assert found == list(range(1, 31))
    assert skipped == []


def test_new_segments_of_a_directory_are_followed_and_nothing_comes_twice(nasty_tmp_path: Path):
    tail = Tail(nasty_tmp_path, "tensorboard")
    frames = scalar_frames("tensorboard", range(1, 6))
    write(nasty_tmp_path, TENSORBOARD.format(17), frames[:3])
    assert seqs(tail) == [1, 2]
    write(nasty_tmp_path, TENSORBOARD.format(18), scalar_frames("tensorboard", range(2, 5)))
    write(nasty_tmp_path, MINDSPORE.format(18), scalar_frames("mindspore", range(9, 12)))
    assert seqs(tail) == [3, 4]
    assert seqs(tail) == []


def test_what_was_not_taken_comes_at_the_next_poll(nasty_tmp_path: Path):
    write(nasty_tmp_path, MINDSPORE.format(17), scalar_frames("mindspore", range(1, 6)))
    tail = Tail(nasty_tmp_path)
    poll = tail.poll()
    assert [next(poll).seq, next(poll).seq] == [1, 2]
    poll.close()
    assert seqs(tail) == [3, 4, 5]


def test_damage_at_the_end_waits_until_something_intact_follows(nasty_tmp_path: Path):
    frames = scalar_frames("mindspore", range(1, 5))
    damaged = bytes(len(frames[2]))  # as a network file system shows what is on its way
    path = write(nasty_tmp_path, MINDSPORE.format(17), [*frames[:2], damaged])
    skipped: list[Damage] = []
    tail = Tail(path, skipped=skipped)
    assert seqs(tail) == [1]
    write(nasty_tmp_path, path.name, [*frames[:2], damaged, b"x"])
    assert seqs(tail) == []
    assert skipped == []
    write(nasty_tmp_path, path.name, [*frames[:2], damaged, frames[3]])
    assert seqs(tail) == [3]
    assert [damage.offset for damage in skipped] == [len(frames[0]) + len(frames[1])]
    write(nasty_tmp_path, path.name, [*frames[:2], damaged, *frames[3:]])
    assert seqs(tail) == [4]
    assert len(skipped) == 1


def test_an_unknown_dialect_is_refused(nasty_tmp_path: Path):
    with pytest.raises(InvalidValueError, match="dialect"):
        Tail(nasty_tmp_path, "lineage")
