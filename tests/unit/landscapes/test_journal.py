"""The journal gives back what was entered, after any end of its process."""

import errno
import fcntl
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from distsummary.errors import DamagedFileError, LandscapeError, RunDirError
from distsummary.format.frames import frame
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.run.journal import FORMAT, Journal, leftover_journals
from distsummary.rundir.run_dir import RunDir
from tests.disks import FULL, room_for

PLAN = {"checkpoints": "ab", "seed": "7"}
HEADER = 12  # bytes of a frame before its payload


def chunk(row: int, start: int = 0, stop: int = 4) -> Chunk:
    return Chunk(plane=0, kind="grid", row=row, columns=tuple(range(start, stop)))


def measured(row: int, quantities: int = 2) -> np.ndarray:
    return np.arange(4.0 * quantities).reshape(4, quantities) / 7 + row


@pytest.fixture
def path(nasty_tmp_path: Path) -> Path:
    return nasty_tmp_path / "landscape.journal"


def fill(path: Path, rows: int) -> None:
    with Journal(path, PLAN) as journal:
        journal.enter_choice({"engine": "row", "chunk": 1})
        for row in range(rows):
            journal.enter(chunk(row), measured(row), worker="w", seconds=0.5)


def fill_on(path: Path, row: int) -> None:
    with Journal(path, PLAN) as journal:
        journal.enter(chunk(row), measured(row))


def test_what_was_entered_is_there_again_bit_for_bit(path: Path):
    special = np.array([[np.nan], [np.inf], [-0.0], [5e-324]])
    with Journal(path, PLAN) as journal:
        assert (journal.results, journal.choice) == ({}, None)
        journal.enter(chunk(0), special)
    with Journal(path, PLAN) as again:
        assert again.results[chunk(0)].tobytes() == special.tobytes()


def test_a_journal_continues_where_it_stood(path: Path):
    fill(path, 2)
    with Journal(path, PLAN) as journal:
        assert sorted(found.row for found in journal.results) == [0, 1]
        assert journal.choice == {"engine": "row", "chunk": 1}
        journal.enter(chunk(2), measured(2))
    with Journal(path, PLAN) as journal:
        assert len(journal.results) == 3


def test_one_without_a_point_is_not_left_behind(path: Path):
    fill(path, 0)
    assert not path.exists()
    fill(path, 1)
    with Journal(path, PLAN):
        pass
    assert path.exists()


def test_a_journal_keeps_the_hardware_of_its_chunks(path: Path):
    with Journal(path, PLAN) as journal:
        journal.enter_choice({"engine": "row"})
        for row, name in enumerate(("H200", "B200", "H200")):
            journal.enter(chunk(row), measured(row), on=name)
    with Journal(path, PLAN) as journal:
        assert journal.hardware == ["H200", "B200"]
        journal.enter_choice({"engine": "naive"})
        assert journal.hardware == []


@pytest.mark.parametrize("cut", [1, 60])
def test_a_torn_end_is_cut_and_costs_the_last_chunk_only(path: Path, cut: int):
    fill(path, 2)
    whole = path.stat().st_size
    fill_on(path, 2)
    os.truncate(path, path.stat().st_size - cut)
    with Journal(path, PLAN) as journal:
        assert path.stat().st_size == whole
        assert sorted(found.row for found in journal.results) == [0, 1]
        journal.enter(chunk(2), measured(2))
    with Journal(path, PLAN) as journal:
        assert len(journal.results) == 3


@pytest.mark.parametrize("size", [0, 1, 30])
def test_a_journal_that_ended_within_its_header_begins_again(path: Path, size: int):
    Journal(path, PLAN).close()
    os.truncate(path, size)
    fill(path, 1)
    with Journal(path, PLAN) as journal:
        assert len(journal.results) == 1


@pytest.mark.parametrize("before", [0, HEADER])
def test_a_damaged_chunk_is_evaluated_again_and_those_behind_it_are_kept(path: Path, before: int):
    fill(path, 1)
    end = path.stat().st_size
    for row in (1, 2):
        fill_on(path, row)
    data = bytearray(path.read_bytes())
    data[end + before] ^= 1  # of the second chunk's frame
    path.write_bytes(data)
    with Journal(path, PLAN) as journal:
        assert sorted(found.row for found in journal.results) == [0, 2]


def test_the_journal_of_another_landscape_is_refused_with_what_differs_and_stays(path: Path):
    fill(path, 1)
    with pytest.raises(LandscapeError, match=r"another landscape, with other data, seed.*resume=False"):
        Journal(path, {"checkpoints": "ab", "seed": "8", "data": "x"})
    with Journal(path, PLAN) as journal:
        assert len(journal.results) == 1


def test_it_begins_again_when_asked_to(path: Path):
    fill(path, 3)
    other = {"seed": "8"}
    with Journal(path, other, resume=False) as journal:
        assert journal.results == {}
    with Journal(path, other) as journal:
        assert journal.results == {}


def test_a_damaged_header_is_reported_as_what_it_is(path: Path):
    fill(path, 1)
    data = bytearray(path.read_bytes())
    data[data.index(b'"seed"')] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"its header is damaged: .* wrong CRC.*resume=False"):
        Journal(path, PLAN)


@pytest.mark.parametrize("content", [b"x" * 100, b'{"format": 1}'])
def test_a_file_that_is_no_journal_is_refused_and_kept(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="not a landscape's journal"):
        Journal(path, PLAN)
    assert path.read_bytes() == content


def test_a_journal_of_another_format_is_refused(path: Path):
    fill(path, 1)
    data = path.read_bytes()
    header = json.dumps({"format": FORMAT - 1, "plan": PLAN}).encode() + b"\n"
    path.write_bytes(frame(header) + data[len(frame(header)) :])
    with pytest.raises(DamagedFileError, match=rf"its format is {FORMAT - 1}\); .*resume=False"):
        Journal(path, PLAN)


@pytest.mark.parametrize("record", [b"no JSON", b"{}", b"[]"])
def test_an_entry_that_cannot_be_read_is_refused_and_kept(path: Path, record: bytes):
    fill(path, 1)
    path.write_bytes(content := path.read_bytes() + frame(record))
    with pytest.raises(DamagedFileError, match=r"has an entry that cannot be read .*resume=False"):
        Journal(path, PLAN)
    assert path.read_bytes() == content


def test_another_engine_voids_what_came_before(path: Path):
    fill(path, 2)
    with Journal(path, PLAN) as journal:
        journal.enter_choice({"engine": "row"})
        assert journal.results == {}
        journal.enter(chunk(7), measured(7))
    with Journal(path, PLAN) as journal:
        assert journal.choice == {"engine": "row"}
        assert [found.row for found in journal.results] == [7]


def test_a_second_holder_is_refused(path: Path):
    with Journal(path, PLAN), pytest.raises(LandscapeError, match="held by another process"):
        Journal(path, PLAN)
    Journal(path, PLAN).close()


def test_what_was_closed_is_free_also_while_a_forked_child_has_the_file_open(path: Path):
    journal = Journal(path, PLAN)
    inherited = os.dup(journal._descriptor)  # the one lock of both, as after a fork
    try:
        journal.close()
        Journal(path, PLAN).close()
    finally:
        os.close(inherited)


def test_who_looks_whether_it_is_held_does_not_hold_it(path: Path, monkeypatch: pytest.MonkeyPatch):
    fill(path, 1)
    with open(path, "rb") as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda seconds: looker.close())
        with Journal(path, PLAN) as journal:
            assert len(journal.results) == 1


def test_a_file_system_without_locks_is_reported_by_name(path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(
        RunDirError, match=r"cannot be locked: Function not implemented; write to a run_dir elsewhere"
    ):
        Journal(path, PLAN)


def test_a_removed_journal_is_gone(path: Path):
    journal = Journal(path, PLAN)
    journal.remove()
    journal.close()
    assert not path.exists()


def test_a_closed_journal_leaves_no_file_open(path: Path):
    journal = Journal(path, PLAN)
    descriptor = journal._descriptor
    journal.close()
    journal.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_what_another_made_in_the_place_of_a_removed_journal_stays(path: Path):
    with Journal(path, PLAN) as journal:
        journal.remove()
        fill(path, 1)
    assert path.exists()


def test_a_journal_that_is_removed_while_another_opens_it_is_made_again(path, monkeypatch):
    held = [Journal(path, PLAN)]
    flock = fcntl.flock

    def flock_after_the_first_has_ended(*arguments: int) -> None:
        while held:
            held.pop().remove()
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", flock_after_the_first_has_ended)
    fill(path, 1)
    with Journal(path, PLAN) as journal:
        assert len(journal.results) == 1


def test_chunks_behind_a_damaged_choice_are_not_those_of_the_choice_before(path: Path):
    with Journal(path, PLAN) as journal:
        for row, engine in enumerate(["tiles", "row"]):
            journal.enter_choice({"engine": engine})
            journal.enter(chunk(row), measured(row))
    data = bytearray(path.read_bytes())
    data[data.index(b'"engine": "row"')] ^= 1
    path.write_bytes(data)
    with Journal(path, PLAN) as journal:
        assert journal.choice == {"engine": "tiles"}
        assert [found.row for found in journal.results] == [0]
        journal.enter(chunk(2), measured(2))
    with Journal(path, PLAN) as journal:
        assert sorted(found.row for found in journal.results) == [0, 2]


@pytest.mark.parametrize("taken", [0, 10])
def test_a_full_disk_is_reported_with_what_is_kept_and_costs_nothing_of_it(path: Path, taken: int):
    fill(path, 2)
    content = path.read_bytes()
    with Journal(path, PLAN) as journal:
        remedy = "(free some space|raise the limit of the file size .*)"
        said = pytest.raises(RunDirError, match=rf"written: .*; {remedy}; .* continues from the 8 finished")
        with said, room_for(len(content) + taken):
            journal.enter(chunk(2), measured(2))
        assert path.read_bytes() == content
    with Journal(path, PLAN) as journal:
        assert len(journal.results) == 2


def test_one_that_has_no_room_for_its_header_is_not_left_behind(path: Path):
    with pytest.raises(RunDirError, match=FULL), room_for(0):
        Journal(path, PLAN)
    assert not path.exists()


def test_a_journal_that_cannot_be_opened_is_reported_by_name(path: Path):
    path.symlink_to("elsewhere")
    with pytest.raises(RunDirError, match=r"landscape\.journal cannot be opened: .*write to another run_dir"):
        Journal(path, PLAN)


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "no regular file"), (os.mkdir, "a directory")])
def test_a_journal_whose_place_is_taken_by_something_else_is_reported_by_name(path: Path, make, kind: str):
    make(path)
    with pytest.raises(RunDirError, match=rf"landscape\.journal cannot be written: it is {kind}"):
        Journal(path, PLAN)
    assert path.exists()


@pytest.fixture
def run_dir(nasty_tmp_path: Path) -> RunDir:
    run_dir = RunDir(nasty_tmp_path)
    run_dir.landscape_dir.mkdir()
    return run_dir


def begin(run_dir: RunDir, **changes: str) -> Journal:
    identity = PLAN | changes
    return Journal(run_dir.landscape_journal(identity), identity)


def leftovers(run_dir: RunDir) -> str:
    return leftover_journals(run_dir.landscape_journal(PLAN), PLAN)


def test_a_landscape_alone_has_no_leftover_journals(run_dir: RunDir) -> None:
    begin(run_dir).close()
    assert leftovers(run_dir) == ""


def test_leftover_journals_are_named_with_what_differs_and_what_to_do(run_dir: RunDir) -> None:
    begin(run_dir).close()
    one, other = begin(run_dir, checkpoints="xx", seed="yy"), begin(run_dir, seed="zz")
    one.close()
    other.close()
    said = leftovers(run_dir)
    assert f"{one.path.name} (checkpoints, seed)" in said
    assert f"{other.path.name} (seed)" in said
    assert str(run_dir.landscape_dir) in said
    assert "resume=False removes none of them: delete the files that you do not want" in said


def test_a_journal_that_is_being_written_is_no_leftover(run_dir: RunDir) -> None:
    with begin(run_dir, seed="xx"):
        assert leftovers(run_dir) == ""


def test_nothing_is_said_to_differ_in_a_leftover_that_has_no_identity_like_ours(run_dir: RunDir) -> None:
    broken = run_dir.landscape_dir / f"journal-{'0' * 16}.bin"
    broken.write_bytes(b"no journal")
    begin(run_dir, another="part").close()
    run_dir.landscape_journal(PLAN | {"seed": "xx"}).write_bytes(b"")
    assert f"{broken.name} (unknown)" in leftovers(run_dir)
    assert leftovers(run_dir).count("(unknown)") == 3
