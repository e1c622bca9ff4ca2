"""What cannot be read is never fine: reports of a run that are damaged or gone, events that are."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.cli.fsck import fsck
from distsummary.cli.main import main
from distsummary.runs.run_rows import RunRows
from distsummary.runs.show import overview
from distsummary.runs.status import read_status
from distsummary.runs.status_text import hints

ALERTS = "alerts.jsonl"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one rank, judged to its end."""
    path = tmp_path_factory.mktemp("unread") / "run"
    with ds.init(path, quiet=True, system_metrics=False) as run:
        for _ in run.steps(range(3)):
            run.log(loss=1.0)
    return path


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 7)


def edited(old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "zeroed at its end": lambda path: os.truncate(path, path.stat().st_size + 100),
    "cut": cut,
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "a number too large": edited(b'"lost_s": 0.0', b'"lost_s": 1e999'),
    "NaN": edited(b'"lost_s": 0.0', b'"lost_s": NaN'),
    "another type": edited(b'"rank": 0', b'"rank": "x"'),
    "of another attempt alone": edited(b'"attempt": 0', b'"attempt": 7'),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_no_one_calls_a_run_fine_whose_reports_cannot_be_read(recorded, tmp_path, name, capsys):
    path = tmp_path / "runs" / "a"
    shutil.copytree(recorded, path)
    DAMAGE[name](path / ALERTS)
    status = read_status(path)
    assert ALERTS in status.unread
    assert status.exit_code == 1
    assert "is fine" not in " ".join(hints(status))
    assert any(line.startswith("Not judged: ") for line in hints(status))
    [row] = RunRows(path.parent).read()
    assert (row.is_healthy, "not judged" in row.finding) == (False, True)
    run = ds.open_run(path)
    shown = overview(run)
    assert (shown.level, "not judged" in shown.findings) == ("warning", True)
    assert [one.file.name for one in fsck(path).findings] == [ALERTS]
    if name != "a directory":
        main(["why", str(path)])
        assert ALERTS in capsys.readouterr().out


def test_reports_that_can_be_read_are_judged(recorded: Path) -> None:
    status = read_status(recorded)
    assert (status.unread, status.exit_code, status.findings) == ("", 0, ())
    assert not fsck(recorded).findings


def test_a_run_that_no_one_judged_is_fine_without_reports(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded, tmp_path / "a")
    (tmp_path / "a" / ALERTS).unlink()
    edited(b', "judged": 1', b"")(tmp_path / "a" / "manifest.json")
    assert read_status(tmp_path / "a").exit_code == 0


@pytest.mark.parametrize("name", ["facts.json", "command.json"])
def test_fsck_names_small_files_that_cannot_be_read(recorded: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(recorded, tmp_path / "a")
    (tmp_path / "a" / name).write_text("[[[[")
    [found] = fsck(tmp_path / "a").findings
    assert (found.file.name, found.is_problem) == (name, True)
