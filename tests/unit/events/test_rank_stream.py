"""The files of one rank's attempt while they grow."""

import errno
from pathlib import Path

import numpy as np
import pytest

from distsummary.events import rank_stream as module
from distsummary.events.rank_stream import RankStream, owner_of
from distsummary.events.reader import ReadEvent
from distsummary.events.reader import events_of as events_in
from distsummary.events.segments import segments
from distsummary.events.spec import Limits, WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Batch, Event, Shard, Value
from tests.event_files import write_events

RUN = "00000000000000aa"


def writer_of(directory: Path, attempt: int = 0, **options) -> RankWriter:
    return RankWriter(WriterSpec(directory=directory, run_id=RUN, attempt=attempt, **options))


def write(writer: RankWriter, steps, tag: str = "loss") -> None:
    events = [Event(step, 100.0 + step, [Value("scalar", tag, float(step))]) for step in steps]
    seq = writer.last_seq + 1
    writer.write(Batch(run_id=RUN, attempt=writer.spec.attempt, rank=0, first_seq=seq, events=events))


def steps_in(stream: RankStream, limit: int = 10**6) -> list[int]:
    return [event.step for file, piece in stream.read(limit) for event in events_in(piece, file)]


@pytest.mark.parametrize("formats", [DIALECTS, (MINDSPORE,), (TENSORBOARD,)])
def test_each_event_is_read_once_though_files_appear_later_and_rotate(formats, tmp_path):
    stream = RankStream(tmp_path / "rank", (RUN, 0))
    assert steps_in(stream) == []
    writer = writer_of(tmp_path / "rank", formats=formats, limits=Limits(rotate_bytes=2000))
    found = []
    for step in range(1, 200, 7):
        write(writer, range(step, step + 7))
        found += steps_in(stream, limit=5)
    while not stream.is_at_end:
        found += steps_in(stream, limit=50)
    writer.close()
    assert found == list(range(1, step + 7))
    assert len(segments(tmp_path / "rank", formats[0])) > 2
    assert steps_in(stream) == []


def test_the_events_of_other_attempts_are_left_out(tmp_path):
    for attempt in (0, 1, 2):
        writer = writer_of(tmp_path, attempt)
        write(writer, range(10 * attempt, 10 * attempt + 5))
        writer.close()
    assert steps_in(RankStream(tmp_path, (RUN, 1))) == list(range(10, 15))
    assert steps_in(RankStream(tmp_path, ("00000000000000bb", 1))) == []


def test_an_event_that_is_half_written_is_left_for_the_next_poll(tmp_path):
    writer = writer_of(tmp_path)
    write(writer, range(1, 101))
    path = writer.path(MINDSPORE)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    stream = RankStream(tmp_path, (RUN, 0))
    assert steps_in(stream) == list(range(1, 100))
    assert steps_in(stream) == []
    path.write_bytes(whole)
    assert steps_in(stream) == [100]
    assert stream.damage == []
    writer.close()


def test_a_read_that_fails_is_continued_where_it_stopped(tmp_path, monkeypatch):
    writer = writer_of(tmp_path)
    write(writer, range(1, 101))
    stream = RankStream(tmp_path, (RUN, 0))
    whole = module.read_pieces_of

    def failing(path, mode, **options):
        yield next(whole(path, mode, **options))
        raise OSError(errno.EIO, "input/output error")

    found = []

    def read():
        for file, piece in stream.read():
            found.extend(event.step for event in events_in(piece, file))

    monkeypatch.setattr(module, "read_pieces_of", failing)
    with pytest.raises(OSError, match="input/output"):
        read()
    monkeypatch.undo()
    read()
    assert found == list(range(1, 101))
    writer.close()


def test_each_attempt_is_read_in_mindspores_dialect_or_else_in_tensorboards(tmp_path):
    stream = RankStream(tmp_path)
    for attempt, formats in enumerate([DIALECTS, (TENSORBOARD,), (MINDSPORE,)]):
        writer = writer_of(tmp_path, attempt, formats=formats)
        write(writer, [10 * attempt + 1, 10 * attempt + 2])
        writer.close()
    assert sorted(steps_in(stream)) == [1, 2, 11, 12, 21, 22]
    files = [path for path in stream.files() if "tfevents" in path.name]
    assert [owner_of(path) for path in files] == [(RUN, 1)]
    assert steps_in(RankStream(tmp_path, (RUN, 1))) == [11, 12]


def test_a_file_without_an_intact_record_has_no_owner_yet(tmp_path):
    path = tmp_path / "events.out.events.summary.0000000001.0.host_MS"
    path.write_bytes(b"")
    assert owner_of(path) is None
    assert steps_in(RankStream(tmp_path, (RUN, 0))) == []


def test_bulk_values_that_are_not_wanted_have_no_data(tmp_path):
    shard = Shard(global_shape=(4,), offset=(2,))
    values = [
        Value("scalar", "loss", 1.0),
        Value("tensor", "weight", np.zeros(2, np.float32), shard),
        Value("text", "note", "long"),
        Value("histogram", "counts", np.arange(9.0)),
    ]
    write_events(tmp_path, [Event(1, 100.0, values)], run_id=RUN)
    [(_, event)] = RankStream(tmp_path, (RUN, 0), bulk=False).read()
    assert isinstance(event, ReadEvent)
    assert event.values[0] == values[0]
    assert event.values[1:] == [value._replace(data=None) for value in values[1:]]
