"""A run dir names every path of a run, replaces its manifest whole, and names what is wrong with it."""

import re
from pathlib import Path
from typing import Any

import pytest

from distsummary.errors import (
    DamagedFileError,
    InvalidTypeError,
    InvalidValueError,
    NotADirectoryPathError,
    RunDirError,
)
from distsummary.rundir import run_dir as run_dir_module
from distsummary.rundir.run_dir import RunDir, dated_run_dir
from tests.conftest import ROOT
from tests.disks import FULL, room_for
from tests.refusals import refused


@pytest.fixture
def run(nasty_tmp_path: Path) -> RunDir:
    return RunDir(nasty_tmp_path / "run").create()


def touch(run: RunDir) -> None:
    run.update_manifest(lambda manifest: None)


# --- paths


def test_one_rank_writes_into_the_run_dir_and_several_next_to_each_other(run: RunDir) -> None:
    assert run.writer_dir("train", 0, 1) == run.base
    assert run.writer_dir("train", 3, 4) == run.base / "rank_00003"
    assert run.writer_dir("eval", 0, 1) == run.base / "eval"
    assert run.writer_dir("eval", 3, 4) == run.base / "eval_rank_00003"
    assert run.writer_dir("train", 123456, 200000) == run.base / "rank_123456"


def test_rank_dirs_lists_the_directories_of_one_role_in_the_order_of_ranks(run: RunDir) -> None:
    for name in (
        "rank_100000",
        "rank_00010",
        "rank_00002",
        "eval_rank_00001",
        "rank_7",
        "xrank_00003",
        "landscape",
    ):
        (run.base / name).mkdir()
    (run.base / "rank_00004").touch()
    (run.base / "rank_00005").symlink_to(run.base / "rank_00002")
    assert list(run.rank_dirs()) == [2, 10, 100000]
    assert run.rank_dirs("eval") == {1: run.base / "eval_rank_00001"}
    assert RunDir(run.base / "absent").rank_dirs() == {}


def test_a_relative_path_stays_where_it_was_when_the_working_directory_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = RunDir("run")
    monkeypatch.chdir("/")
    assert run.base == tmp_path / "run"


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunDir("~/runs/a").base == tmp_path / "runs/a"
    assert RunDir("./~").base == Path.cwd() / "~"


def test_what_is_no_path_is_refused_with_the_remedy() -> None:
    url = "run_dir must be .*; record to a disk that takes appends"
    refused(
        InvalidValueError,
        (lambda: RunDir(" "), "run_dir must not be blank"),
        (lambda: RunDir("hdfs://h:9000/r"), url),
        (lambda: RunDir(Path("s3://b/r")), url),
    )
    refused(InvalidTypeError, (lambda: RunDir(3), "run_dir must be"))
    RunDir("./gs://b")  # a directory that is really called so


@pytest.mark.parametrize("name", ["docs/features.md", "docs/reliability.md"])
def test_the_documents_say_the_same_of_object_stores(name: str) -> None:
    assert run_dir_module.STORES in " ".join((ROOT / name).read_text().split())


def test_the_ranks_of_a_job_agree_on_the_time_and_jobs_do_not_share_it(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "{time}" / "a{time}"
    jobs = {"1-1": "launch 1", "2-2": "launch 1", "3-3": "launch 2"}
    first, second, other = (dated_run_dir(path, job, now=now) for now, job in jobs.items())
    assert first.base == second.base == tmp_path / "runs/1-1/a1-1"
    assert other.base == tmp_path / "runs/3-3/a3-3"
    assert first.base.is_dir()


def test_a_name_whose_run_is_over_stands_for_a_new_time(tmp_path: Path) -> None:
    over: set[Path] = set()

    def is_over(run_dir: RunDir) -> bool:
        return run_dir.base in over

    path = tmp_path / "{time}"
    first, second = (dated_run_dir(path, "host:29500", is_over=is_over, now="1-1") for _ in range(2))
    over.add(first.base)
    third, fourth = (dated_run_dir(path, "host:29500", is_over=is_over, now="1-1") for _ in range(2))
    assert [one.base.name for one in (first, second, third, fourth)] == ["1-1", "1-1", "1-1-2", "1-1-2"]


def test_a_rank_that_is_alone_gets_a_new_directory(tmp_path: Path) -> None:
    found = [dated_run_dir(tmp_path / "new" / "{time}", "", now="1-1").base.name for _ in range(3)]
    assert found == ["1-1", "1-1-2", "1-1-3"]


# --- creating


def test_create_leaves_nothing_but_the_directory(run: RunDir) -> None:
    assert list(run.base.iterdir()) == []
    assert run.create() is run


@pytest.mark.parametrize("below", ["", "runs/a"])
def test_a_file_in_the_way_is_named_at_once(nasty_tmp_path: Path, below: str) -> None:
    (nasty_tmp_path / "file").write_text("not a directory")
    path = nasty_tmp_path / "file" / below
    with pytest.raises(NotADirectoryPathError, match=re.escape(str(path))):
        RunDir(path).create()
    assert (nasty_tmp_path / "file").read_text() == "not a directory"


# /proc takes no new entries from anybody, root included.
def test_a_directory_that_cannot_be_made_is_named_at_once() -> None:
    made, written = RunDir("/proc/distsummary/run"), RunDir("/proc")
    refused(
        RunDirError,
        (made.create, "the directory /proc/distsummary/run cannot be made: .*, or choose another"),
        (written.create, "the run dir /proc cannot be written: .*, or choose another"),
    )


def test_a_full_disk_is_named_at_once_and_nothing_is_left(nasty_tmp_path: Path) -> None:
    said = pytest.raises(RunDirError, match=f"cannot be written: {FULL}; raise the limit")
    with said, room_for(1000):
        RunDir(nasty_tmp_path / "run").create()
    assert list((nasty_tmp_path / "run").iterdir()) == []


# --- the manifest


def test_a_change_that_raises_changes_nothing(run: RunDir) -> None:
    touch(run)
    before = run.manifest_path.read_bytes()

    def fail(manifest: dict[str, Any]) -> None:
        manifest["attempts"].clear()
        raise InvalidValueError("no")

    with pytest.raises(InvalidValueError, match="no"):
        run.update_manifest(fail)
    assert run.manifest_path.read_bytes() == before


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"run_id": "a"}', b'{"run_id": 1, "attempts": []}'])
def test_a_damaged_manifest_is_named_and_kept(run: RunDir, damage: bytes) -> None:
    run.manifest_path.write_bytes(damage)
    with pytest.raises(DamagedFileError, match=re.escape(str(run.manifest_path)) + ".*fsck --repair; or"):
        touch(run)
    assert run.manifest_path.read_bytes() == damage


def test_a_manifest_that_cannot_be_read_is_named(run: RunDir) -> None:
    run.manifest_path.mkdir()
    with pytest.raises(RunDirError, match=re.escape(f"{run.manifest_path} cannot be read: Is a directory")):
        run.read_manifest()


def test_a_run_dir_that_became_a_file_is_named(run: RunDir) -> None:
    run.base.rmdir()
    run.base.touch()
    with pytest.raises(RunDirError, match=re.escape(f"{run.base} was removed or renamed")):
        touch(run)


def test_a_process_that_holds_the_lock_is_reported_after_the_time_limit(run: RunDir) -> None:
    def register_inside(manifest: dict[str, Any]) -> None:
        run.update_manifest(lambda manifest: None, timeout_s=0.0)

    with pytest.raises(RunDirError, match=r"the lock .* was held for 0 s; another process of the run hangs"):
        run.update_manifest(register_inside)
