import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from distsummary.errors import ClosedError, RunDirError
from distsummary.events.files import Files
from distsummary.events.reader import read_directory, read_lineage
from distsummary.events.segments import lineage_files, segments
from distsummary.events.spec import Limits, WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.frames import Part, frame, read_frames
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Batch, Event, Value
from tests.disks import FullDisk
from tests.viewer_rules import lost_points

RUN_ID = "00000000000000ab"


class CrashingFiles(Files):
    """Dies at the Nth write, after taking `taken` bytes of it."""

    def __init__(self, at: int, taken: int = 0) -> None:
        self.left, self.taken = at, taken
        self.opened: list[int] = []

    def create(self, path: Path) -> int:
        self.opened.append(super().create(path))
        return self.opened[-1]

    def end_process(self) -> None:
        """What the kernel does for a killed process."""
        for descriptor in self.opened:
            os.close(descriptor)

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        self.left -= 1
        if self.left == 0:
            super().write(descriptor, [b"".join(parts)[: self.taken]])
            raise KeyboardInterrupt  # not an OSError: nothing is taken back, as after SIGKILL
        return super().write(descriptor, parts)


def scalars(first: int, count: int) -> list[Event]:
    return [
        Event(step, 100.0 + step, [Value("scalar", "loss", step / 2)]) for step in range(first, first + count)
    ]


def batch(first_seq: int, events: list[Event], attempt: int = 0) -> Batch:
    return Batch(run_id=RUN_ID, attempt=attempt, rank=0, first_seq=first_seq, events=events)


def writer(path, **options) -> RankWriter:
    files = options.pop("files", None)
    return RankWriter(WriterSpec(directory=path, run_id=RUN_ID, **options), files)


def recorded(path, dialect=MINDSPORE):
    return [(e.attempt, e.seq, e.step, v.data) for e in read_directory(path, dialect) for v in e.values]


def test_both_dialects_hold_the_same_events_with_their_identity(tmp_path):
    rank_writer = writer(tmp_path, attempt=2)
    rank_writer.write(batch(1, scalars(1, 3), attempt=2))
    rank_writer.close()
    expected = [(2, 1, 1, 0.5), (2, 2, 2, 1.0), (2, 3, 3, 1.5)]
    assert recorded(tmp_path) == recorded(tmp_path, TENSORBOARD) == expected
    assert rank_writer.health().events == 3
    assert rank_writer.last_seq == 3


def test_a_writer_that_never_wrote_leaves_no_file(tmp_path):
    writer(tmp_path / "new").close()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_batch_sent_twice_is_written_once(tmp_path):
    rank_writer = writer(tmp_path)
    rank_writer.write(batch(1, scalars(1, 3)))
    rank_writer.write(batch(2, scalars(2, 4)))
    rank_writer.close()
    assert [seq for _, seq, _, _ in recorded(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_restarted_writer_continues_behind_what_each_file_holds(tmp_path):
    first = writer(tmp_path)
    first.write(batch(1, scalars(1, 3)))
    first.close()
    second = writer(tmp_path)
    assert second.last_seq == 3
    second.write(batch(1, scalars(1, 5)))
    second.close()
    for dialect in DIALECTS:
        assert len(segments(tmp_path, dialect)) == 2
        frames = [f for path in segments(tmp_path, dialect) for f in read_frames(path)]
        assert len(frames) == 2 + 5  # nothing is hidden by the reader's own de-duplication
    assert lost_points(tmp_path) == []


@pytest.mark.parametrize("taken", [0, 17])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_crash_at_any_write_costs_nothing_that_was_acknowledged_and_doubles_nothing(tmp_path, at, taken):
    """Writes: two heads, two batches in two files each; each is cut anywhere, also between dialects."""
    acknowledged = 0
    files = CrashingFiles(at, taken)
    dying = writer(tmp_path, files=files)
    try:
        for first in (1, 4):
            dying.write(batch(first, scalars(first, 3)))
            acknowledged = first + 2
    except KeyboardInterrupt:
        files.end_process()
    heir = writer(tmp_path)
    assert heir.last_seq >= acknowledged
    heir.write(batch(acknowledged + 1, scalars(acknowledged + 1, 6 - acknowledged)))
    heir.write(batch(7, scalars(7, 2)))
    heir.close()
    for dialect in DIALECTS:
        payloads = [f for path in segments(tmp_path, dialect) for f in read_frames(path)]
        assert all(f.damage is None for f in payloads)
        assert [seq for _, seq, _, _ in recorded(tmp_path, dialect)] == list(range(1, 9))
        assert len(payloads) == 8 + len(segments(tmp_path, dialect)) - empty_segments(tmp_path, dialect)
    assert lost_points(tmp_path) == []


def empty_segments(path, dialect) -> int:
    return sum(1 for p in segments(path, dialect) if p.stat().st_size == 0)


def test_a_full_disk_raises_and_the_same_batch_fits_later(tmp_path):
    files = FullDisk(left=1000)
    rank_writer = writer(tmp_path, files=files)
    rank_writer.write(batch(1, scalars(1, 1)))
    files.left = 0
    with pytest.raises(OSError, match="No space"):
        rank_writer.write(batch(2, scalars(2, 2)))
    files.left = 1000
    rank_writer.write(batch(2, scalars(2, 2)))
    rank_writer.close()
    assert [seq for _, seq, _, _ in recorded(tmp_path)] == [1, 2, 3]
    assert [seq for _, seq, _, _ in recorded(tmp_path, TENSORBOARD)] == [1, 2, 3]


def test_one_bad_value_costs_that_value(tmp_path):
    rank_writer = writer(tmp_path)
    bad = Value("tensor", "bad", np.array([1j]))
    rank_writer.write(batch(1, [Event(1, 0.0, [Value("scalar", "good", 1.0), bad])]))
    rank_writer.close()
    assert [v.tag for e in read_directory(tmp_path) for v in e.values] == ["good"]
    assert rank_writer.health().dropped == {"tensor": 1}
    assert "complex" in next(iter(rank_writer.health().errors))


def test_lineage_is_one_file_replaced_whole(tmp_path):
    rank_writer = writer(tmp_path)
    train = lineage_pb2.TrainLineage(algorithm=lineage_pb2.TrainLineage.Algorithm(network="Net"))
    custom = lineage_pb2.UserDefinedInfo(map_str={"note": "x"})
    rank_writer.write(batch(1, [Event(1, 0.0, [Value("train_lineage", "", train)])]))
    (older,) = lineage_files(tmp_path)
    rank_writer.write(batch(2, [Event(1, 0.0, [Value("custom_lineage_data", "", custom)])]))
    rank_writer.close()
    (newer,) = lineage_files(tmp_path)
    assert newer.name > older.name
    lineage = read_lineage(tmp_path)
    assert lineage.train == train
    assert lineage.custom is not None
    assert segments(tmp_path, MINDSPORE) == []


def test_a_later_writer_keeps_the_lineage_that_it_does_not_replace(tmp_path):
    train = lineage_pb2.TrainLineage(algorithm=lineage_pb2.TrainLineage.Algorithm(network="Net"))
    evaluation = lineage_pb2.EvaluationLineage(metric='{"acc": 0.5}')
    for plugin, message in (("train_lineage", train), ("eval_lineage", evaluation)):
        rank_writer = writer(tmp_path)
        rank_writer.write(batch(rank_writer.last_seq + 1, [Event(0, 0.0, [Value(plugin, "", message)])]))
        rank_writer.close()
    lineage = read_lineage(tmp_path)
    assert (lineage.train, lineage.evaluation) == (train, evaluation)


def test_a_later_attempt_begins_its_lineage_again(tmp_path):
    for attempt in (0, 1):
        rank_writer = writer(tmp_path, attempt=attempt)
        for number in range(2):
            custom = lineage_pb2.UserDefinedInfo(map_int32={f"attempt {attempt}, {number}": number})
            values = [Value("custom_lineage_data", "", custom)]
            rank_writer.write(batch(number + 1, [Event(1, 0.0, values)], attempt=attempt))
        rank_writer.close()
    kept = {key for entry in read_lineage(tmp_path).custom.user_info for key in entry.map_int32}
    assert kept == {"attempt 1, 0", "attempt 1, 1"}


def test_a_later_attempt_reports_tensorboard_where_it_starts(tmp_path):
    for attempt, first_step in ((0, 1), (1, 50)):
        rank_writer = writer(tmp_path, attempt=attempt)
        rank_writer.write(batch(1, scalars(first_step, 2), attempt=attempt))
        rank_writer.close()
    events = [
        tensorboard_pb2.Event.FromString(f.payload)
        for path in segments(tmp_path, TENSORBOARD)
        for f in read_frames(path)
    ]
    starts = [(e.attempt, e.step) for e in events if e.WhichOneof("what") == "session_log"]
    assert starts == [(1, 50)]


def test_max_file_size_stops_a_file_at_the_first_frame_that_does_not_fit(tmp_path):
    rank_writer = writer(tmp_path, formats=(MINDSPORE,), limits=Limits(max_file_size=250))
    rank_writer.write(batch(1, scalars(1, 20)))
    rank_writer.write(batch(21, scalars(21, 1)))
    rank_writer.close()
    (path,) = segments(tmp_path, MINDSPORE)
    assert 250 - len(frame(b"x" * 60)) < path.stat().st_size <= 250
    kept = [seq for _, seq, _, _ in recorded(tmp_path)]
    assert kept == list(range(1, len(kept) + 1))
    health = rank_writer.health()
    assert any("max_file_size" in reason for reason in health.errors)
    assert (health.events, health.dropped) == (len(kept), {"scalar": 21 - len(kept)})


def test_what_one_of_two_full_files_misses_is_dropped_and_what_both_miss_is_no_event(tmp_path):
    rank_writer = writer(tmp_path, limits=Limits(max_file_size=4000))
    for seq in [*range(1, 21), 20]:  # the last one is sent again
        rank_writer.write(batch(seq, [Event(seq, 1.0, [Value("histogram", "h", np.arange(100.0))])]))
    rank_writer.close()
    kept = [len(recorded(tmp_path, dialect)) for dialect in (MINDSPORE, TENSORBOARD)]
    assert 0 < min(kept) < max(kept) < 20
    health = rank_writer.health()
    assert (health.events, health.dropped) == (max(kept), {"histogram": 20 - min(kept)})
    assert list(health.errors.values()) == [20 - min(kept)]


def test_a_closed_writer_and_a_directory_below_a_file_are_refused(tmp_path):
    rank_writer = writer(tmp_path)
    rank_writer.close()
    rank_writer.close()
    with pytest.raises(ClosedError, match="closed"):
        rank_writer.write(batch(1, scalars(1, 1)))
    (tmp_path / "file").touch()
    with pytest.raises((RunDirError, NotADirectoryError), match="file"):
        writer(tmp_path / "file" / "below")


def test_two_writers_of_a_directory_keep_each_others_lineage(tmp_path):
    first, second = writer(tmp_path, source="a"), writer(tmp_path, source="b")
    for number, rank_writer in enumerate((first, second, first)):
        custom = lineage_pb2.UserDefinedInfo(map_int32={f"k{number}": number})
        rank_writer.write(batch(number + 1, [Event(1, 0.0, [Value("custom_lineage_data", "", custom)])]))
    first.close()
    second.close()
    kept = read_lineage(tmp_path).custom
    assert {key for entry in kept.user_info for key in entry.map_int32} == {"k0", "k1", "k2"}
    assert len(lineage_files(tmp_path)) == 1


def test_a_removed_directory_is_an_error_and_never_made_again(tmp_path):
    rank_writer = writer(tmp_path / "run")
    rank_writer.write(batch(1, scalars(1, 1)))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="removed"):
        rank_writer.write(batch(2, scalars(2, 1)))
    for _ in range(2):
        with pytest.raises(OSError, match="No such file or directory"):
            rank_writer.write(batch(2, scalars(2, 1)))
    rank_writer.close()
    assert not (tmp_path / "run").exists()


def test_segments_that_cannot_get_their_head_leave_nothing_behind(tmp_path):
    files = FullDisk(left=0)
    rank_writer = writer(tmp_path, files=files)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            rank_writer.write(batch(1, scalars(1, 1)))
    assert list(tmp_path.iterdir()) == []
    files.left = 1000
    rank_writer.write(batch(1, scalars(1, 1)))
    rank_writer.close()
    assert len(recorded(tmp_path)) == len(recorded(tmp_path, TENSORBOARD)) == 1


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (lambda file: os.truncate(file, file.stat().st_size // 2), "was cut from"),
        (lambda file: os.truncate(file, 0), "to 0 bytes"),
        (Path.unlink, "was removed"),
        (lambda file: file.rename(file.parent / "other"), ""),  # it is still there
    ],
)
@pytest.mark.parametrize("comes_more", [True, False])
def test_events_that_another_process_takes_are_missing(tmp_path, take, said: str, comes_more: bool):
    """Whether the writer notices with its next batch, or when it closes the file."""
    rank = writer(tmp_path, formats=(MINDSPORE,))
    rank.write(batch(1, scalars(1, 29)))
    take(rank.path(MINDSPORE))
    if comes_more and said:
        with pytest.raises(OSError, match="event file"):
            rank.write(batch(30, scalars(30, 1)))
    if comes_more:
        rank.write(batch(30, scalars(30, 1)))
    rank.close()
    assert said in rank.health().missing
    assert bool(said) == bool(rank.health().missing)
