import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from distsummary.events.files import Files, sanitise_host
from distsummary.events.segment import Segment, cut_torn_tails, has_live_writer, open_segments
from distsummary.events.segments import SegmentName, next_stamp, stamp_of
from distsummary.format.frames import Part, frame, read_frames
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD

NAME = SegmentName(host="node-1", pid=7)


class FrozenFiles(Files):
    """A clock that stands still, and faults on request."""

    def __init__(self, now: float = 1_700_000_000.5) -> None:
        self.time = now
        self.short_write_of: int | None = None
        self.write_error: int | None = None
        self.truncate_error: int | None = None

    def now(self) -> float:
        return self.time

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        if self.short_write_of is not None:
            taken, self.short_write_of = self.short_write_of, None
            return super().write(descriptor, [b"".join(parts)[:taken]])
        if self.write_error is not None:
            raise OSError(self.write_error, os.strerror(self.write_error))
        return super().write(descriptor, parts)

    def truncate(self, descriptor: int, length: int) -> None:
        if self.truncate_error is not None:
            raise OSError(self.truncate_error, os.strerror(self.truncate_error))
        super().truncate(descriptor, length)


@pytest.mark.parametrize("host", ["summary.12.example", "a tfevents b", "..", "", "ü/Ö"])
def test_a_host_name_cannot_mislead_a_viewer(host):
    clean = sanitise_host(host)
    assert clean
    assert "." not in clean
    assert "/" not in clean
    assert "tfevents" not in clean


def test_both_dialects_share_one_stamp_and_stamps_rise_whatever_the_clock_says(tmp_path):
    files = FrozenFiles()
    first = open_segments(tmp_path, DIALECTS, NAME, files)
    files.time -= 7200  # the clock was set back
    second = open_segments(tmp_path, DIALECTS, NAME, files)
    stamps = [{stamp_of(s.path.name) for s in opened.values()} for opened in (first, second)]
    assert stamps == [{1700000000}, {1700000001}]
    assert next_stamp(tmp_path, files.now()) == 1700000002
    for segment in (*first.values(), *second.values()):
        segment.close()


def test_a_name_taken_meanwhile_is_never_overwritten(tmp_path):
    taken = tmp_path / NAME.file_name(TENSORBOARD, 1700000000)

    class Overtaken(FrozenFiles):
        def create(self, path: Path) -> int:
            if path == taken:
                taken.write_bytes(b"somebody's")
            return super().create(path)

    opened = open_segments(tmp_path, DIALECTS, NAME, Overtaken())
    assert {stamp_of(s.path.name) for s in opened.values()} == {1700000001}
    assert taken.read_bytes() == b"somebody's"
    assert not (tmp_path / NAME.file_name(MINDSPORE, 1700000000)).exists()
    for segment in opened.values():
        segment.close()


def test_a_short_write_is_continued(tmp_path):
    files = FrozenFiles()
    segment = Segment(tmp_path / "s", files)
    files.short_write_of = 3
    segment.append(frame(b"hello"))
    segment.close()
    assert (tmp_path / "s").read_bytes() == frame(b"hello")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failed_append_leaves_whole_frames_and_the_next_one_works(tmp_path, error):
    files = FrozenFiles()
    segment = Segment(tmp_path / "s", files)
    segment.append(frame(b"one"))
    files.short_write_of, files.write_error = 5, error
    with pytest.raises(OSError, match=os.strerror(error)):
        segment.append(frame(b"two"))
    assert (tmp_path / "s").read_bytes() == frame(b"one")
    files.write_error = None
    segment.append(frame(b"two"))
    segment.close()
    assert (tmp_path / "s").read_bytes() == frame(b"one") + frame(b"two")


def test_a_segment_that_cannot_be_taken_back_is_given_up(tmp_path):
    files = FrozenFiles()
    segment = Segment(tmp_path / "s", files)
    files.short_write_of, files.write_error, files.truncate_error = 5, errno.EIO, errno.EIO
    with pytest.raises(OSError, match="error"):
        segment.append(frame(b"two"))
    assert segment.is_dead
    segment.close()


def test_a_torn_tail_is_cut_and_kept_but_never_under_a_live_writer(tmp_path):
    files = Files()
    live = Segment(tmp_path / NAME.file_name(MINDSPORE, 1700000000), files)
    live.append(frame(b"whole") + frame(b"torn")[:-3])
    assert cut_torn_tails(tmp_path, files) == []
    live.close()
    assert cut_torn_tails(tmp_path, files) == [live.path]
    assert [f.payload for f in read_frames(live.path)] == [b"whole"]
    assert live.path.stat().st_size == len(frame(b"whole"))
    assert (tmp_path / "torn-0.bin").read_bytes() == frame(b"torn")[:-3]


def test_damage_in_the_middle_is_left_for_the_reader_to_name(tmp_path):
    data = bytearray(frame(b"first") + frame(b"second"))
    data[13] ^= 1
    path = tmp_path / NAME.file_name(MINDSPORE, 1700000000)
    path.write_bytes(data)
    assert cut_torn_tails(tmp_path, Files()) == []
    assert path.read_bytes() == data


def test_every_torn_tail_is_kept_under_a_free_name(tmp_path):
    (tmp_path / "torn-1.bin").write_bytes(b"older")
    path = tmp_path / NAME.file_name(MINDSPORE, 1700000000)
    path.write_bytes(frame(b"whole") + b"torn")
    assert cut_torn_tails(tmp_path, Files()) == [path]
    assert (tmp_path / "torn-1.bin").read_bytes() == b"older"
    assert (tmp_path / "torn-2.bin").read_bytes() == b"torn"


def test_a_full_disk_does_not_stop_the_cut(tmp_path):
    path = tmp_path / NAME.file_name(MINDSPORE, 1700000000)
    path.write_bytes(frame(b"whole") + b"torn")
    files = FrozenFiles()
    files.write_error = errno.ENOSPC
    assert cut_torn_tails(tmp_path, files) == [path]
    assert path.read_bytes() == frame(b"whole")


def test_a_frame_that_its_writer_ends_meanwhile_is_not_cut(tmp_path):
    path = tmp_path / NAME.file_name(MINDSPORE, 1700000000)
    path.write_bytes(frame(b"one") + frame(b"two")[:-3])

    class LateWriter(Files):
        def open_dead(self, path):
            path.write_bytes(frame(b"one") + frame(b"two"))
            return super().open_dead(path)

    assert cut_torn_tails(tmp_path, LateWriter()) == []
    assert path.read_bytes() == frame(b"one") + frame(b"two")
    assert not list(tmp_path.glob("torn-*"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_live_writer_shows_by_the_lock_of_its_file(tmp_path, dialect):
    assert not has_live_writer(tmp_path / "absent", "0")
    opened = open_segments(tmp_path, (dialect,), NAME, Files())[dialect]
    assert has_live_writer(tmp_path, "0")
    assert not has_live_writer(tmp_path, "1")
    opened.close()
    assert not has_live_writer(tmp_path, "0")
