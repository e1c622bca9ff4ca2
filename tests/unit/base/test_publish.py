"""A file that is replaced is whole at every moment, and nothing is left next to it."""

import errno
import os
import re
import time
from pathlib import Path

import pytest

from distsummary.base.publish import (
    STALE_S,
    check_writable,
    is_gone,
    is_in_use,
    publish,
    remove_leftovers,
    replacing,
    temporary_name,
)
from distsummary.errors import RunDirError
from tests.disks import FULL, room_for


@pytest.fixture
def path(nasty_tmp_path: Path) -> Path:
    return nasty_tmp_path / "file"


def test_a_directory_that_takes_no_files_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write anywhere
    with pytest.raises(RunDirError, match=f"{re.escape(str(path))} cannot be written to; fix"):
        check_writable(path)


def test_publish_replaces_the_file_whole_and_leaves_nothing_else(path: Path) -> None:
    publish(path, b"old, and longer")
    publish(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_reader_never_sees_a_published_file_half(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    publish(path, b"old")
    real_fsync = os.fsync

    def look_and_sync(descriptor: int) -> None:
        seen.append(path.read_bytes())
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", look_and_sync)
    publish(path, b"new")
    assert seen == [b"old", b"new"]  # before the rename, and when the directory is synced after it


def test_a_publish_that_fails_names_and_keeps_the_old_file_and_leaves_no_temporary_one(path: Path) -> None:
    publish(path, b"old")
    with pytest.raises(RunDirError, match=re.escape(f"{path} cannot be written: {FULL}")), room_for(0):
        publish(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_writer_that_raises_keeps_the_old_file_and_leaves_no_temporary_one(path: Path) -> None:
    publish(path, b"old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_temporary_name_is_none_that_a_viewer_takes_for_an_event_file(tmp_path: Path) -> None:
    name = temporary_name(tmp_path).name
    assert name.startswith(".tmp-")
    assert "tfevents" not in name
    assert not re.search(r"summary\.\d+", name)


# --- what a killed process leaves


def renamed(path: Path, *, space: str | None = None, start: str | None = None) -> Path:
    """The temporary file as another process would have named it."""
    begin, old_space, pid, old_start, end = path.name.split("-")
    return path.rename(path.with_name("-".join((begin, space or old_space, pid, start or old_start, end))))


@pytest.fixture
def own(nasty_tmp_path: Path) -> Path:
    """A temporary file of this process."""
    path = temporary_name(nasty_tmp_path)
    path.write_bytes(b"half")
    return path


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_what_a_living_process_writes_stays_however_old_it_is(own: Path) -> None:
    age(own, 10 * STALE_S)
    assert is_in_use(own)
    assert remove_leftovers(own.parent) == []
    assert own.read_bytes() == b"half"


def test_what_an_ended_process_left_is_removed_and_nothing_else(own: Path) -> None:
    left = renamed(own, start="1")  # its number is that of another process now
    assert is_in_use(left) is False
    staging = temporary_name(own.parent)
    staging.mkdir()
    (staging / "part").touch()
    staging = renamed(staging, start="2")
    publish(own.parent / "file", b"kept")
    assert sorted(remove_leftovers(own.parent)) == sorted([left, staging])
    assert list(own.parent.iterdir()) == [own.parent / "file"]


def test_what_came_from_another_machine_is_removed_only_when_no_process_can_be_at_it(own: Path) -> None:
    other = renamed(own, space="0" * 16)
    assert is_in_use(other) is None
    assert remove_leftovers(own.parent) == []
    age(other, STALE_S + 60)
    assert remove_leftovers(own.parent) == [other]


@pytest.mark.parametrize("name", [".tmp-mine", f".tmp-{'0' * 32}", ".tmp-0-1-1-0", "tmp", ".tmp-"])
def test_files_of_others_with_a_similar_name_are_never_removed(own: Path, name: str) -> None:
    foreign = own.rename(own.with_name(name))
    age(foreign, 10 * STALE_S)
    assert is_in_use(foreign) is None
    assert remove_leftovers(own.parent) == []
    assert foreign.exists()


def test_a_link_is_removed_and_what_it_points_to_stays(own: Path) -> None:
    target = own.parent / "target"
    target.mkdir()
    (target / "data").touch()
    own.unlink()
    own.symlink_to(target)
    remove_leftovers(renamed(own, start="1").parent)
    assert [path.name for path in own.parent.iterdir()] == ["target"]
    assert (target / "data").exists()


def test_what_cannot_be_removed_stays_and_stops_no_one(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    left = renamed(own, start="1")
    assert remove_leftovers(own.parent) == [left]
    assert left.exists()


def test_a_directory_that_has_become_a_file_is_named_not_the_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    target = tmp_path / "checkpoints" / "a.ckpt"
    with (
        pytest.raises(RunDirError, match=rf"^{target} cannot be written: Not a directory"),
        replacing(target) as temporary,
    ):
        temporary.write_bytes(b"")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, True), (errno.ENOTDIR, True),
        (errno.EIO, False), (errno.ESTALE, False), (errno.EACCES, False), (errno.ETIMEDOUT, False),
    ],
)  # fmt: skip
def test_a_directory_is_gone_only_if_the_disk_says_so(number, expected, monkeypatch):
    def stat(path: Path, **options: bool) -> os.stat_result:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "stat", stat)
    assert is_gone(Path("runs/a")) is expected


def test_a_file_in_place_of_a_directory_does_not_count_as_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [*map(is_gone, (tmp_path, tmp_path / "file", tmp_path / "other"))] == [False, True, True]
