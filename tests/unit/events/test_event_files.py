"""Rotation, budgets, and what a failed sync costs: nothing."""

import errno
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distsummary.events.event_files import GROUP_BYTES, GroupSync
from distsummary.events.files import Files
from distsummary.events.reader import read_directory, read_lineage
from distsummary.events.segments import segments, stamp_of
from distsummary.events.spec import Limits, WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.frames import Part, read_frames
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.records import DIALECTS, MINDSPORE, SYNCED, TENSORBOARD, WRITTEN, Batch, Event, Value
from tests.disks import room_for
from tests.patience import PATIENCE_S
from tests.viewer_rules import lost_points

RUN_ID = "00000000000000ab"


class Clock(Files):
    """A clock that is set, and syncs and cuts that fail on request."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0
        self.failing_syncs = self.failing_cuts = self.short_write = 0
        self.syncs = 0
        self.is_full = self.has_no_inodes = False
        self.most_bytes = 1 << 40  # of a file
        self.free = (1 << 40, 1 << 41)

    def now(self) -> float:
        return self.time

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        if self.failing_cuts:
            self.failing_cuts -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(descriptor, length)

    def create(self, path: Path) -> int:
        if self.has_no_inodes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().create(path)

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        if os.fstat(descriptor).st_size + sum(map(len, parts)) > self.most_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.short_write < 0:
            self.short_write = 0
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.short_write:
            taken, self.short_write = self.short_write, -1
            return super().write(descriptor, [b"".join(parts)[:taken]])
        return super().write(descriptor, parts)

    def free_space(self, directory: Path) -> tuple[int, int]:
        return self.free


def batch(first: int, count: int) -> Batch:
    events = [Event(n, 100.0 + n, [Value("scalar", "loss", n / 2)]) for n in range(first, first + count)]
    return Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=first, events=events)


def writer(path: Path, files: Files, **options) -> RankWriter:
    return RankWriter(WriterSpec(directory=path, run_id=RUN_ID, **options), files)


def seqs(path: Path, dialect: str = MINDSPORE) -> list[int]:
    """Those of every frame, so that the reader's own de-duplication hides nothing."""
    found = [f.payload for p in segments(path, dialect) for f in read_frames(p)]
    read = [event.seq for event in read_directory(path, dialect)]
    heads = sum(1 for p in segments(path, dialect) if p.stat().st_size)
    assert len(found) == len(read) + heads
    return read


def test_files_rotate_before_they_exceed_rotate_bytes_and_the_dialects_share_their_stamps(tmp_path):
    rank_writer = writer(tmp_path, Clock(), limits=Limits(rotate_bytes=2000))
    for first in range(1, 101, 10):
        rank_writer.write(batch(first, 10))
    rank_writer.close()
    files = segments(tmp_path, MINDSPORE)
    assert len(files) > 2
    assert all(path.stat().st_size <= 2000 for path in files)
    stamps = [[stamp_of(path.name) for path in segments(tmp_path, dialect)] for dialect in DIALECTS]
    assert stamps[0] == stamps[1] == sorted(set(stamps[0]))
    assert seqs(tmp_path) == seqs(tmp_path, TENSORBOARD) == list(range(1, 101))
    assert lost_points(tmp_path) == []


def test_a_batch_that_is_longer_than_files_may_grow_is_spread_over_several(tmp_path):
    files = Clock()
    files.most_bytes = 1000
    rank_writer = writer(tmp_path, files)
    for first in (1, 101):
        rank_writer.write(batch(first, 100))
    large = [Event(n, 1.0, [Value("tensor", "t", np.ones(n % 7 * 20, np.float32))]) for n in range(201, 221)]
    rank_writer.write(Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=201, events=large))
    rank_writer.close()
    assert seqs(tmp_path) == list(range(1, 221))
    assert seqs(tmp_path, TENSORBOARD) == list(range(1, 201))
    assert rank_writer.health().dropped == {}
    assert all(path.stat().st_size <= 1000 for path in segments(tmp_path, MINDSPORE))


def test_an_event_that_is_longer_than_any_file_may_grow_is_counted_and_the_others_are_written(tmp_path):
    files = Clock()
    files.most_bytes = 1000
    rank_writer = writer(tmp_path, files)
    large = Event(31, 1.0, [Value("tensor", "t", np.ones(500, np.float32))])
    events = [*batch(1, 30).events, large, *batch(32, 9).events]
    rank_writer.write(Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=1, events=events))
    rank_writer.write(batch(41, 10))
    rank_writer.close()
    assert seqs(tmp_path) == [*range(1, 31), *range(32, 51)]
    assert seqs(tmp_path, TENSORBOARD) == [*range(1, 31), *range(32, 51)]
    health = rank_writer.health()
    assert health.dropped == {"tensor": 1}
    assert "ulimit -f" in health.missing


def test_every_file_begins_at_the_time_that_the_spec_gives(tmp_path):
    """TensorBoard sorts and colours runs by it."""
    rank_writer = writer(tmp_path, Clock(), limits=Limits(rotate_bytes=2000), begun=5.0)
    for first in range(1, 41, 10):
        rank_writer.write(batch(first, 10))
    rank_writer.close()
    files = [path for dialect in DIALECTS for path in segments(tmp_path, dialect)]
    assert len(files) > 2
    heads = [next(read_frames(path)).payload for path in files]
    assert {struct.unpack("<d", head[1:9]) for head in heads} == {(5.0,)}  # field 1 of both dialects


def test_where_no_new_file_can_be_made_the_old_ones_continue(tmp_path):
    clock = Clock()
    rank_writer = writer(tmp_path, clock, limits=Limits(rotate_bytes=300))
    for first in range(1, 41, 10):
        rank_writer.write(batch(first, 10))
        clock.has_no_inodes = first < 21
        clock.time += 10
    rank_writer.close()
    assert len(segments(tmp_path, MINDSPORE)) == 2
    assert seqs(tmp_path) == seqs(tmp_path, TENSORBOARD) == list(range(1, 41))
    assert ["not rotated now" in reason for reason in rank_writer.health().errors] == [True]


def test_a_file_that_may_not_grow_any_more_is_followed_by_another(tmp_path):
    clock = Clock()
    rank_writer = writer(tmp_path, clock)
    rank_writer.write(batch(1, 10))
    clock.most_bytes = 1000
    for first in range(11, 101, 10):
        rank_writer.write(batch(first, 10))
    rank_writer.close()
    assert len(segments(tmp_path, MINDSPORE)) > 2
    assert seqs(tmp_path) == seqs(tmp_path, TENSORBOARD) == list(range(1, 101))
    assert not rank_writer.health().errors


@pytest.mark.parametrize("length", [30, 1 << 14])
def test_a_file_that_another_process_changes_is_left_as_it_is_and_followed_by_another(tmp_path, length):
    rank_writer = writer(tmp_path, Clock())
    rank_writer.write(batch(1, 10))
    [path] = segments(tmp_path, MINDSPORE)
    kept = path.stat().st_size
    os.truncate(path, length)
    with pytest.raises(OSError, match="another process changed the event file"):
        rank_writer.write(batch(11, 10))
    rank_writer.write(batch(11, 10))
    rank_writer.close()
    assert len(segments(tmp_path, MINDSPORE)) == 2
    assert [event.seq for event in read_directory(tmp_path, MINDSPORE)][-10:] == list(range(11, 21))
    assert seqs(tmp_path, TENSORBOARD) == list(range(1, 21))
    torn = sum(path.stat().st_size for path in tmp_path.glob("torn-*.bin"))
    assert length == torn + path.stat().st_size
    assert length < kept or path.stat().st_size == kept


def test_lineage_that_cannot_be_published_holds_up_no_scalar(tmp_path):
    rank_writer, room = writer(tmp_path, Clock()), 1 << 14
    custom = lineage_pb2.UserDefinedInfo(map_str={"note": "x" * room})
    lineage = Event(1, 101.0, [Value("custom_lineage_data", "", custom)])
    with room_for(room):
        for seq in (1, 3):
            rank_writer.write(Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=seq, events=[lineage]))
            rank_writer.write(batch(seq + 1, 1))
            assert rank_writer.health().waiting == {"custom_lineage_data": 1 + seq // 3}
        assert seqs(tmp_path) == [2, 4]
    rank_writer.flush()
    assert read_lineage(tmp_path).custom is not None
    with room_for(room):
        rank_writer.write(Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=5, events=[lineage]))
        rank_writer.close()
    health = rank_writer.health()
    assert (health.waiting, health.dropped) == ({}, {"custom_lineage_data": 1})
    assert "could not be written until the end" in health.missing


def test_a_batch_larger_than_rotate_bytes_has_a_file_of_its_own(tmp_path):
    rank_writer = writer(tmp_path, Clock(), limits=Limits(rotate_bytes=4096))
    for first in (1, 201):
        rank_writer.write(batch(first, 200))
    rank_writer.close()
    assert len(segments(tmp_path, MINDSPORE)) == 2
    assert seqs(tmp_path) == list(range(1, 401))


def test_files_rotate_when_they_are_old_and_not_while_they_are_empty(tmp_path):
    clock = Clock()
    rank_writer = writer(tmp_path, clock, limits=Limits(rotate_s=60))
    for first in range(1, 5):
        rank_writer.write(batch(first, 1))
        clock.time += 40
    rank_writer.close()
    assert [len(list(read_frames(path))) for path in segments(tmp_path, MINDSPORE)] == [3, 3]


@pytest.mark.parametrize(("options", "at_a_flush"), [({"delivery": SYNCED}, 2), ({}, 0)])
def test_both_files_are_made_durable_once_at_the_end_or_at_a_flush_of_the_synced_level(
    tmp_path, options, at_a_flush
):
    clock = Clock()
    rank_writer = writer(tmp_path, clock, **options)
    rank_writer.write(batch(1, 3))
    for _ in range(2):  # the second one finds nothing new
        rank_writer.flush()
        assert clock.syncs == at_a_flush
    rank_writer.close()
    assert clock.syncs == 2


@pytest.mark.parametrize("durable", [0, 5])
def test_what_a_failed_sync_may_have_lost_is_written_again_and_nothing_twice(tmp_path, durable: int):
    clock = Clock()
    rank_writer = writer(tmp_path, clock, delivery=SYNCED)
    if durable:
        rank_writer.write(batch(1, durable))
        rank_writer.flush()
    rank_writer.write(batch(durable + 1, 4))
    clock.failing_syncs = 1
    rank_writer.flush()
    rank_writer.write(batch(durable + 5, 2))
    rank_writer.close()
    for dialect in DIALECTS:
        assert seqs(tmp_path, dialect) == list(range(1, durable + 7))
    assert lost_points(tmp_path) == []
    assert not any(path.stat().st_size == 0 for path in tmp_path.iterdir())


def test_a_sync_that_keeps_failing_is_reported_and_can_be_tried_again(tmp_path):
    clock = Clock()
    rank_writer = writer(tmp_path, clock, delivery=SYNCED)
    rank_writer.write(batch(1, 4))
    clock.failing_syncs = 100
    with pytest.raises(OSError, match="Input/output"):
        rank_writer.flush()
    clock.failing_syncs = 0
    rank_writer.flush()
    rank_writer.close()
    assert seqs(tmp_path) == seqs(tmp_path, TENSORBOARD) == [1, 2, 3, 4]


def test_what_cannot_be_written_again_now_stays_readable_and_is_made_durable_later(tmp_path):
    clock = Clock()
    rank_writer = writer(tmp_path, clock, delivery=SYNCED)
    rank_writer.write(batch(1, 4))
    clock.failing_syncs, clock.is_full = 1, True
    with pytest.raises(OSError, match="No space"):
        rank_writer.flush()
    assert seqs(tmp_path) == seqs(tmp_path, TENSORBOARD) == [1, 2, 3, 4]
    clock.is_full = False
    rank_writer.write(batch(5, 1))
    rank_writer.close()
    assert seqs(tmp_path) == seqs(tmp_path, TENSORBOARD) == [1, 2, 3, 4, 5]
    assert not list(tmp_path.glob(".tmp*"))


def test_a_file_that_never_gets_durable_keeps_its_events_and_the_end_says_so(tmp_path):
    clock = Clock()
    rank_writer = writer(tmp_path, clock, delivery=SYNCED)
    rank_writer.write(batch(1, 4))
    clock.failing_syncs = 100
    with pytest.raises(OSError, match="Input/output"):
        rank_writer.close()
    assert seqs(tmp_path) == seqs(tmp_path, TENSORBOARD) == [1, 2, 3, 4]
    assert not list(tmp_path.glob(".tmp*"))


def test_a_torn_frame_of_a_file_that_is_due_to_rotate_is_cut_and_nothing_comes_twice(tmp_path):
    clock = Clock()
    rank_writer = writer(tmp_path, clock, limits=Limits(rotate_bytes=300))
    rank_writer.write(batch(1, 3))
    clock.short_write, clock.failing_cuts = 40, 1
    with pytest.raises(OSError, match="Input/output"):
        rank_writer.write(batch(4, 1))
    rank_writer.write(batch(4, 1))
    rank_writer.close()
    assert seqs(tmp_path) == seqs(tmp_path, TENSORBOARD) == [1, 2, 3, 4]


def test_bulk_values_are_dropped_and_counted_while_the_disk_is_nearly_full(tmp_path):
    clock = Clock()
    clock.free = (1 << 20, 1 << 40)
    rank_writer = writer(tmp_path, clock)
    values = [Value("scalar", "loss", 1.0), Value("histogram", "w", np.arange(8.0))]
    for seq, free in ((1, 1 << 20), (2, 1 << 40)):
        clock.free = (free, 1 << 41)
        rank_writer.write(
            Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=seq, events=[Event(seq, 1.0, values)])
        )
    rank_writer.close()
    found = [[v.plugin for v in event.values] for event in read_directory(tmp_path)]
    assert found == [["scalar"], ["scalar", "histogram"]]
    assert rank_writer.health().dropped == {"histogram": 1}
    assert any("nearly full" in reason for reason in rank_writer.health().errors)


def test_a_bulk_value_that_one_file_misses_is_counted_by_the_next_writer_that_leaves_it_out(tmp_path):
    class FullForOne(Clock):
        left = 3  # writes: the heads of two files, and the batch in one of them

        def write(self, descriptor: int, parts: Sequence[Part]) -> int:
            self.left -= 1
            self.is_full = self.left < 0
            return super().write(descriptor, parts)

    values = [Value("scalar", "loss", 1.0), Value("histogram", "w", np.arange(8.0))]
    sent = Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=1, events=[Event(1, 1.0, values)])
    first = writer(tmp_path, FullForOne())
    with pytest.raises(OSError, match="No space"):
        first.write(sent)
    die(first)
    found = [[v.plugin for e in read_directory(tmp_path, dialect) for v in e.values] for dialect in DIALECTS]
    assert sorted(found) == [[], ["scalar", "histogram"]]

    clock = Clock()
    clock.free = (1 << 20, 1 << 41)
    second = writer(tmp_path, clock)
    for _ in range(2):  # sent again, and once more: it was not acknowledged in time
        second.write(sent)
        assert second.health().dropped == {"histogram": 1}
    second.close()
    found = [[v.plugin for e in read_directory(tmp_path, dialect) for v in e.values] for dialect in DIALECTS]
    assert sorted(found) == [["scalar"], ["scalar", "histogram"]]


def test_a_bulk_value_that_was_left_out_of_one_file_is_counted_when_the_other_has_room_for_it(tmp_path):
    clock = Clock()
    rank_writer = writer(tmp_path, clock)
    rank_writer.write(batch(1, 1))
    write, left = clock.write, iter([False, True])  # the disk is full for the second file
    clock.write = lambda *given: (setattr(clock, "is_full", next(left, False)), write(*given))[1]
    values = [Value("scalar", "loss", 1.0), Value("histogram", "w", np.arange(8.0))]
    sent = Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=2, events=[Event(2, 1.0, values)])
    clock.free = (1 << 20, 1 << 41)
    with pytest.raises(OSError, match="No space"):
        rank_writer.write(sent)
    clock.free = (1 << 40, 1 << 41)
    rank_writer.write(sent)
    assert rank_writer.health().dropped == {"histogram": 1}
    rank_writer.write(replace(sent, first_seq=3))
    rank_writer.close()
    assert rank_writer.health().dropped == {"histogram": 1}
    found = [[v.plugin for e in read_directory(tmp_path, dialect) for v in e.values] for dialect in DIALECTS]
    whole = ["scalar", "histogram"]
    assert sorted(found, key=len) == [["scalar", "scalar", *whole], ["scalar", *whole, *whole]]


def die(rank_writer: RankWriter) -> None:
    for segment in rank_writer._event_files._segments.values():
        segment.close()  # as the kernel does
    rank_writer._event_files._segments = {}
    rank_writer.close()


@pytest.mark.parametrize("delivery", [WRITTEN, SYNCED])
def test_what_a_killed_writer_of_the_attempt_left_is_made_durable_by_the_next(tmp_path, delivery):
    class Syncs(Clock):
        def __init__(self) -> None:
            super().__init__()
            self.synced: list[str] = []

        def sync(self, descriptor: int) -> None:
            self.synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
            super().sync(descriptor)

    def killed(attempt: int) -> list[str]:
        rank_writer = writer(tmp_path, Clock(), attempt=attempt, delivery=delivery)
        rank_writer.write(replace(batch(1, 3), attempt=attempt))
        die(rank_writer)
        return [os.path.realpath(path) for path in rank_writer._event_files.paths.values()]

    killed(0)  # an older attempt is not this writer's business
    left, files = killed(1), Syncs()
    rank_writer = writer(tmp_path, files, attempt=1, delivery=delivery)
    assert sorted(files.synced) == (sorted(left) if delivery == SYNCED else [])
    rank_writer.close()
    assert sorted(files.synced) == sorted(left)


def test_a_failed_sync_of_what_a_killed_writer_left_is_raised_by_close(tmp_path):
    first = writer(tmp_path, Clock())
    first.write(batch(1, 3))
    die(first)
    files = Clock()
    rank_writer = writer(tmp_path, files)
    files.failing_syncs = 1
    with pytest.raises(OSError, match="Input/output error"):
        rank_writer.close()
    assert any("may not be durable" in reason for reason in rank_writer.health().errors)


def test_a_group_is_synced_after_its_interval_or_at_its_size_and_nothing_wakes_an_idle_one():
    synced = threading.Semaphore(0)
    group = GroupSync(synced.release, interval_s=0.01)
    group.wrote(1)
    assert synced.acquire(timeout=PATIENCE_S)
    slow = GroupSync(synced.release, interval_s=3600)
    slow.wrote(GROUP_BYTES)
    assert synced.acquire(timeout=PATIENCE_S)
    group.close()
    slow.close()
    assert not synced.acquire(blocking=False)
