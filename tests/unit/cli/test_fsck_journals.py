"""The journals of landscapes: damage is named with its byte, and a torn end is cut."""

import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from distsummary.cli.fsck import FsckReport, fsck
from distsummary.events.files import Files
from distsummary.format.frames import OVERHEAD, frame
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.run.journal import Journal
from distsummary.rundir.run_dir import RunDir
from tests.unit.cli.test_fsck import a_run, kinds

PLAN = {"checkpoints": "ab", "seed": "7"}
CHUNK_BYTES = 32


def a_journal(run: RunDir, rows: int = 3) -> Path:
    """A journal as a landscape that was stopped leaves it: a header, then a chunk for each row."""
    run.landscape_dir.mkdir(parents=True, exist_ok=True)
    with Journal(run.landscape_journal(PLAN), PLAN) as journal:
        for row in range(rows):
            enter(journal, row)
    return journal.path


def enter(journal: Journal, row: int) -> None:
    journal.enter(Chunk(plane=0, kind="grid", row=row, columns=tuple(range(4))), np.full((4, 1), row / 7))


def borders(path: Path) -> list[int]:
    """Where the frames begin, and where the last one ends."""
    data, places = path.read_bytes(), [0]
    while places[-1] < len(data):
        length = int.from_bytes(data[places[-1] : places[-1] + 8], "little")
        places.append(places[-1] + OVERHEAD + length)
    return places


def places(report: FsckReport) -> list[tuple[str, int | None]]:
    return [(one.kind, one.offset) for one in report.findings]


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def run(nasty_tmp_path: Path) -> RunDir:
    return a_run(nasty_tmp_path / "run")


def test_a_whole_journal_is_clean_and_counts_as_a_file(run: RunDir):
    before = fsck(run.base)
    a_journal(run)
    report = fsck(run.base)
    assert (report.findings, report.exit_code) == ((), 0)
    assert (report.files, report.directories) == (before.files + 1, before.directories + 1)
    assert report.events == before.events


def test_a_directory_of_a_journal_alone_can_be_checked(nasty_tmp_path: Path):
    path = a_journal(RunDir(nasty_tmp_path))
    for base in (nasty_tmp_path, path.parent):
        assert (fsck(base).findings, fsck(base).files) == ((), 1)


def test_a_torn_tail_is_cut_and_kept_and_the_landscape_continues(run: RunDir):
    path = a_journal(run)
    *_, last, end = borders(path)
    os.truncate(path, end - 7)
    torn = path.read_bytes()[last:]
    report = fsck(run.base)
    assert places(report) == [("torn", last)]
    assert report.exit_code == 1
    repaired = fsck(run.base, repair=True)
    assert (repaired.exit_code, repaired.findings, repaired.repaired) == (0, (), report.findings)
    assert path.stat().st_size == last
    assert (run.landscape_dir / "torn-0.bin").read_bytes() == torn
    with Journal(path, PLAN) as journal:
        assert sorted(chunk.row for chunk in journal.results) == [0, 1]


def test_a_journal_that_is_held_is_left_alone(run: RunDir):
    path = a_journal(run)
    with Journal(path, PLAN):
        assert fsck(run.base).findings == ()
        with open(path, "ab") as file:
            file.write(b"half a fra")
        before = path.read_bytes()
        report = fsck(run.base, repair=True)
        assert (kinds(report), report.exit_code) == (["live"], 0)
        assert path.read_bytes() == before
    assert kinds(fsck(run.base)) == ["torn"]


class TakenMeanwhile(Files):
    """A landscape begins between the look at its journal and the cut."""

    def open_dead(self, path: Path) -> int | None:
        with open(path, "rb") as holder:
            fcntl.flock(holder, fcntl.LOCK_EX)
            return super().open_dead(path)


def test_a_journal_that_is_taken_before_the_cut_is_not_cut(run: RunDir):
    path = a_journal(run)
    os.truncate(path, path.stat().st_size - 7)
    before = path.read_bytes()
    report = fsck(run.base, repair=True, files=TakenMeanwhile())
    assert (kinds(report), report.repaired) == (["torn"], ())
    assert path.read_bytes() == before


def test_damage_is_named_with_its_byte_and_what_stands_behind_it_is_intact(run: RunDir):
    path = a_journal(run)
    _, first, second, *_ = borders(path)
    damage(path, first + 20)
    damage(path, second + 3)  # a length
    assert places(fsck(run.base)) == [("damaged", first), ("damaged", second)]
    before = path.read_bytes()
    assert fsck(run.base, repair=True).repaired == ()
    assert path.read_bytes() == before
    with Journal(path, PLAN) as journal:
        assert [chunk.row for chunk in journal.results] == [2]


def test_a_torn_tail_behind_a_length_that_is_damaged_is_not_cut(run: RunDir):
    path = a_journal(run)
    damage(path, borders(path)[1] + 3)
    with open(path, "ab") as file:
        file.write(frame(b"x" * CHUNK_BYTES)[:-1])
    before = path.read_bytes()
    report = fsck(run.base, repair=True)
    assert kinds(report) == ["damaged", "torn"]
    assert [one.repairable for one in report.findings] == [False, False]
    assert path.read_bytes() == before


@pytest.mark.parametrize("left", [0, 5, 40])
def test_one_that_was_only_begun_is_no_problem_once_it_is_cut(run: RunDir, left: int):
    path = a_journal(run)
    os.truncate(path, left)
    assert kinds(fsck(run.base)) == (["torn"] if left else [])
    assert fsck(run.base, repair=True).findings == ()
    Journal(path, PLAN).close()


def test_links_and_other_names_are_no_journals(run: RunDir, nasty_tmp_path: Path):
    path = a_journal(run)
    elsewhere = nasty_tmp_path / "spoilt"
    elsewhere.write_bytes(b"x" * 100)
    (run.landscape_dir / f"journal-{'0' * 16}.bin").symlink_to(elsewhere)
    for name in ("journal.bin", "journal-1.bin", f"{path.name}.bak", "torn-0.bin"):
        (run.landscape_dir / name).write_bytes(b"x" * 100)
    assert fsck(run.base).findings == ()


def test_countless_damage_is_counted(run: RunDir):
    path = a_journal(run, rows=40)
    for offset in borders(path)[1:-1]:
        damage(path, offset + 20)
    found = fsck(run.base).findings
    assert len(found) == 21
    assert found[-1].message.startswith("20 more")
