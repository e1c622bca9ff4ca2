"""A file that is replaced is whole at every moment, and nothing is left beside it."""

import os
import re
from pathlib import Path

import pytest

from distsummary.errors import NotADirectoryPathError, RunDirError
from distsummary.publish import ensure_directory, publish, replacing, temporary_name


@pytest.fixture
def path(nasty_tmp_path: Path) -> Path:
    return nasty_tmp_path / "file"


def test_ensure_directory_makes_the_parents_and_likes_what_is_there(tmp_path: Path) -> None:
    ensure_directory(tmp_path / "a" / "b")
    ensure_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_ensure_directory_names_a_file_in_the_way(path: Path) -> None:
    path.touch()
    with pytest.raises(NotADirectoryPathError, match=re.escape(str(path / "below"))):
        ensure_directory(path / "below")


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


def test_a_publish_that_fails_names_and_keeps_the_old_file_and_leaves_no_temporary_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunDirError, match=re.escape(f"{path} cannot be written: No space left on device")):
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
