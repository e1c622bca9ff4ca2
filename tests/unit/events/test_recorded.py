"""What a directory recorded, in columns, while its files grow."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from distsummary.errors import MissingFileError
from distsummary.events.contents import column_of, joined, scan
from distsummary.events.recorded import Recorded
from distsummary.format import tensorboard_format
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame
from distsummary.format.records import Event, EventIds, Value
from tests.unit.events.test_reader import MINDSPORE, TENSORBOARD, scalar_frames, write
from tests.unit.events.test_scalar_columns import RUN, run

NO_ENDS: dict[int, float] = {}


def steps(recorded: Recorded, tag: str = "loss") -> list[int]:
    recorded.refresh()
    return recorded.scalars(tag, NO_ENDS).steps.tolist()


def single(seq: int, *values: Value) -> bytes:
    payload = encode_event(Event(10 * seq, 1.5 * seq, list(values)), EventIds(RUN, 0, seq), ("mindspore",))[0]
    return frame(payload["mindspore"] or b"")


@pytest.mark.parametrize("seed", range(5))
def test_every_event_counts_once_however_the_file_grows(nasty_tmp_path: Path, seed: int):
    data = b"".join(scalar_frames("mindspore", range(1, 31)))
    path = nasty_tmp_path / MINDSPORE.format(17)
    recorded, random = Recorded(nasty_tmp_path, uses_index=bool(seed % 2)), Random(seed)
    assert steps(recorded) == []  # not there yet
    with open(path, "wb", buffering=0) as file:
        while data:
            size = random.randint(1, 120)
            file.write(data[:size])
            data = data[size:]
            found = steps(recorded)
            assert found == [10 * seq for seq in range(1, len(found) + 1)]
    assert len(found) == 30
    assert recorded.damage == recorded.unfinished() == []


def test_new_segments_are_followed_and_nothing_counts_twice(nasty_tmp_path: Path):
    recorded = Recorded(nasty_tmp_path)
    frames = scalar_frames("tensorboard", range(1, 6))
    write(nasty_tmp_path, TENSORBOARD.format(17), frames[:3])
    assert steps(recorded) == [10, 20]
    write(nasty_tmp_path, TENSORBOARD.format(18), scalar_frames("tensorboard", range(2, 5)))
    assert steps(recorded) == [10, 20, 30, 40]
    write(nasty_tmp_path, MINDSPORE.format(18), scalar_frames("mindspore", range(9, 12)))
    assert steps(recorded) == [90, 100, 110]  # the same attempt has files of MindSpore now
    for path in nasty_tmp_path.iterdir():
        path.unlink()
    assert steps(recorded) == []


def test_damage_at_the_end_waits_until_something_intact_follows(nasty_tmp_path: Path):
    frames = scalar_frames("mindspore", range(1, 5))
    damaged = bytes(len(frames[2]))  # as a network file system shows what is on its way
    name = MINDSPORE.format(17)
    recorded = Recorded(nasty_tmp_path)
    write(nasty_tmp_path, name, [*frames[:2], damaged])
    assert (steps(recorded), recorded.damage) == ([10], [])
    write(nasty_tmp_path, name, [*frames[:2], damaged, frames[3]])
    assert steps(recorded) == [10, 30]
    assert [one.offset for one in recorded.damage] == [len(frames[0]) + len(frames[1])]
    write(nasty_tmp_path, name, [*frames[:2], damaged, *frames[3:]])
    assert steps(recorded) == [10, 30, 40]
    assert len(recorded.damage) == 1


def test_a_file_that_is_replaced_or_cut_is_read_again(nasty_tmp_path: Path):
    name, recorded = MINDSPORE.format(17), Recorded(nasty_tmp_path)
    write(nasty_tmp_path, name, scalar_frames("mindspore", range(1, 9)))
    assert steps(recorded) == [10 * seq for seq in range(1, 9)]
    write(nasty_tmp_path, name, scalar_frames("mindspore", range(1, 4)))
    assert steps(recorded) == [10, 20, 30]
    other = write(nasty_tmp_path, "other", scalar_frames("mindspore", range(5, 9)))
    other.replace(nasty_tmp_path / name)
    assert steps(recorded) == [50, 60, 70, 80]


def test_each_tag_has_its_values_in_the_order_of_the_file(nasty_tmp_path: Path):
    between = single(500, Value("scalar", "z", 7.0), Value("tensor", "t", np.ones(3)))
    frames = [*run(range(200, 500), ("z", "a")), between, *run(range(501, 701), ("a",))]
    write(nasty_tmp_path, MINDSPORE.format(9), frames)
    recorded = Recorded(nasty_tmp_path)
    recorded.refresh()
    assert recorded.tags() == ["z", "a"]
    assert recorded.kinds() == {("tensor", "t"): 1}
    z, a = (recorded.scalars(tag, NO_ENDS) for tag in "za")
    assert z.steps.tolist() == [10 * seq for seq in range(200, 501)]
    assert z.values.tolist() == [*(seq / 2 for seq in range(200, 500)), 7.0]
    seqs = [*range(200, 500), *range(501, 701)]
    assert a.steps.tolist() == [10 * seq for seq in seqs]
    assert a.wall_times.tolist() == [1.5 * seq for seq in seqs]
    assert [column.dtype.str for column in a[1:]] == ["<i8", "<i8", "<f8", "<f4"]
    [place] = recorded.places("tensor", None, NO_ENDS)
    assert place.read().data.tolist() == [1.0, 1.0, 1.0]


def test_parts_of_a_file_become_one_that_says_the_same(nasty_tmp_path: Path):
    frames = [*run(range(1, 100)), single(100, Value("text", "n", "x")), *run(range(101, 200), attempt=1)]
    path = write(nasty_tmp_path, MINDSPORE.format(9), frames)
    whole = scan(path)
    parts, end = [], 0
    for stop in (50, 100, 101, len(frames)):
        write(nasty_tmp_path, path.name, frames[:stop])
        parts.append(scan(path, end))
        end = parts[-1].end
    one = joined(parts)
    assert (one.end, one.owners, one.lows, one.size) == (whole.end, whole.owners, whole.lows, whole.size)
    for name, column in whole.events.items():
        assert one.events[name].load().tolist() == column.load().tolist()
    for found, expected in ((one.scalars, whole.scalars), (one.others, whole.others)):
        assert [*found] == [*expected]
        for key, columns in expected.items():
            assert [c.load().tolist() for c in found[key]] == [c.load().tolist() for c in columns]


@pytest.mark.parametrize("numbers", [[], [7], [7, 7], [3, 1], [1, 2, 3], [5, 3, 1], [1, 2, 4], [2, 2, 2, 2]])
def test_a_column_gives_back_what_it_was_made_of(numbers: list[int]):
    column = column_of(np.array(numbers, np.int64))
    assert (column.load().tolist(), column.size) == (numbers, len(numbers))


def test_a_directory_that_is_gone_is_named(nasty_tmp_path: Path):
    with pytest.raises(MissingFileError, match="nowhere was removed while it was read"):
        Recorded(nasty_tmp_path / "nowhere").refresh()


def test_a_tag_twice_in_an_event_and_missing_in_another_keeps_its_steps(nasty_tmp_path: Path):
    frames = [
        single(1, Value("scalar", "loss", 1.0)),
        single(2, Value("scalar", "loss", 2.0), Value("scalar", "loss", 2.5)),
        single(3, Value("scalar", "other", 3.0)),
        single(4, Value("scalar", "loss", 4.0)),
    ]
    write(nasty_tmp_path, MINDSPORE.format(17), frames)
    recorded = Recorded(nasty_tmp_path, uses_index=False)
    assert steps(recorded) == [10, 20, 40]
    assert recorded.scalars("loss", NO_ENDS).values.tolist() == [1.0, 2.5, 4.0]


def session(start: int | None, steps: range, stamp: int, directory: Path) -> None:
    """A file of torch's SummaryWriter with `purge_step`: the version twice, then the start of the session."""
    run_id = f"{stamp:016x}"
    data = frame(tensorboard_format.encode_version(0.0, EventIds(run_id, 0, 0)))
    if start is not None:
        data += data + frame(tensorboard_format.encode_session_start(start, 0.0, EventIds(run_id, 0, 0)))
    for seq, step in enumerate(steps, 1):
        event = Event(step, 0.0, [Value("scalar", "loss", float(stamp))])
        payloads, _ = encode_event(event, EventIds(run_id, 0, seq), ("tensorboard",))
        data += frame(payloads["tensorboard"] or b"")
    (directory / TENSORBOARD.format(stamp)).write_bytes(data)


@pytest.mark.parametrize(
    ("sessions", "expected"),
    [
        ([(None, range(10)), (5, range(5, 8))], [1] * 5 + [2] * 3),
        ([(None, range(4)), (0, range(2))], [2] * 2),
        ([(None, range(6)), (4, range(4, 9)), (2, range(2, 3))], [1] * 2 + [3]),
        ([(None, range(3)), (7, range(7, 9))], [1] * 3 + [2] * 2),
        ([(None, range(3)), (None, range(3, 5))], [1] * 3 + [2] * 2),  # no session starts
    ],
)
def test_a_session_that_starts_replaces_the_steps_from_there_on(tmp_path, sessions, expected):
    for stamp, (start, written) in enumerate(sessions, 1):
        session(start, written, stamp, tmp_path)
    recorded = Recorded(tmp_path, uses_index=False)
    recorded.refresh()
    found = recorded.scalars("loss", NO_ENDS)
    assert found.values.tolist() == expected
    assert recorded.steps() == (int(found.steps.min()), int(found.steps.max()))
