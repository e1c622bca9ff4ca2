"""The files of one rank's attempt while they grow."""

import errno
from pathlib import Path

import pytest

from distsummary.aggregate import rank_tail as module
from distsummary.aggregate.rank_tail import RankTail, rows_in
from distsummary.events.reader import events_of as events_in
from distsummary.events.reader import read_pieces_of
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.events.segments import segments
from distsummary.events.spec import Limits, WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Batch, Event, Scalars, Value
from distsummary.format.scalar_rows import events_of, row_of

RUN = "00000000000000aa"


def writer_of(directory: Path, attempt: int = 0, **options) -> RankWriter:
    return RankWriter(WriterSpec(directory=directory, run_id=RUN, attempt=attempt, **options))


def write(writer: RankWriter, steps, tag: str = "loss") -> None:
    events = [Event(step, 100.0 + step, [Value("scalar", tag, float(step))]) for step in steps]
    seq = writer.last_seq + 1
    writer.write(Batch(run_id=RUN, attempt=writer.spec.attempt, rank=0, first_seq=seq, events=events))


def steps_in(tail: RankTail, limit: int = 10**6) -> list[int]:
    return [event.step for piece in tail.read(limit) for event in events_in(piece, tail.directory)]


@pytest.mark.parametrize("formats", [DIALECTS, (MINDSPORE,), (TENSORBOARD,)])
def test_each_event_is_read_once_though_files_appear_later_and_rotate(formats, tmp_path):
    tail = RankTail(tmp_path / "rank", RUN, 0)
    assert steps_in(tail) == []
    writer = writer_of(tmp_path / "rank", formats=formats, limits=Limits(rotate_bytes=2000))
    found = []
    for step in range(1, 200, 7):
        write(writer, range(step, step + 7))
        found += steps_in(tail, limit=5)
    while not tail.is_at_end:
        found += steps_in(tail, limit=50)
    writer.close()
    assert found == list(range(1, step + 7))
    assert len(segments(tmp_path / "rank", formats[0])) > 2
    assert steps_in(tail) == []


def test_the_events_of_other_attempts_are_left_out(tmp_path):
    for attempt in (0, 1, 2):
        writer = writer_of(tmp_path, attempt)
        write(writer, range(10 * attempt, 10 * attempt + 5))
        writer.close()
    assert steps_in(RankTail(tmp_path, RUN, 1)) == list(range(10, 15))
    assert steps_in(RankTail(tmp_path, "00000000000000bb", 1)) == []


def test_an_event_that_is_half_written_is_left_for_the_next_poll(tmp_path):
    writer = writer_of(tmp_path)
    write(writer, range(1, 101))
    path = writer.path(MINDSPORE)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    tail = RankTail(tmp_path, RUN, 0)
    assert steps_in(tail) == list(range(1, 100))
    assert steps_in(tail) == []
    path.write_bytes(whole)
    assert steps_in(tail) == [100]
    assert tail.damage == []
    writer.close()


def test_what_has_been_reported_is_not_read(tmp_path):
    writer = writer_of(tmp_path, limits=Limits(rotate_bytes=1000))
    tail = RankTail(tmp_path, RUN, 0)
    write(writer, range(1, 6))
    first = writer.path(MINDSPORE)
    place = tail.reported(first.name, first.stat().st_size)
    assert place == (first, 0, first.stat().st_size)
    assert steps_in(tail) == []
    write(writer, range(6, 8))
    assert tail.reported(first.name, first.stat().st_size).start == place.end
    write(writer, range(8, 30))
    newest = writer.path(MINDSPORE)
    assert newest != first
    tail.reported(newest.name, newest.stat().st_size)  # and so everything in the older ones
    write(writer, range(30, 33))
    assert steps_in(tail) == [30, 31, 32]
    writer.close()


def test_rows_of_columns_are_the_recorded_ones_in_their_order(tmp_path):
    writer = writer_of(tmp_path)
    tags = (("loss",), ("loss", "lr"), ("lr", "loss"), ("acc",))
    events = [
        Event(step, 100.0 + step, [Value("scalar", tag, step / 4) for tag in tags[step * step % 7 % 4]])
        for step in range(1, 400)
    ]
    writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=1, events=events))
    writer.close()
    [path] = segments(tmp_path, MINDSPORE)
    columns = [piece for piece in read_pieces_of(path) if isinstance(piece, ScalarColumns)]
    found = [row for piece in columns for row in rows_in(piece)]
    assert len(found) > 300
    assert [step for step, *_ in found] == sorted({step for step, *_ in found})
    for step, wall_s, tags_of, packed in found:
        event = events[step - 1]
        assert wall_s == event.wall_time
        assert (tags_of, packed) == row_of(event)
        assert [*events_of(Scalars(tags_of, packed))] == [event]


def test_what_a_failed_read_had_found_is_read_again(tmp_path, monkeypatch):
    writer = writer_of(tmp_path)
    write(writer, range(1, 101))
    tail = RankTail(tmp_path, RUN, 0)
    whole = module.read_pieces_of

    def failing(path, mode, **options):
        yield next(whole(path, mode, **options))
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(module, "read_pieces_of", failing)
    with pytest.raises(OSError, match="input/output"):
        tail.read(1000)
    monkeypatch.undo()
    assert steps_in(tail) == list(range(1, 101))
    writer.close()
