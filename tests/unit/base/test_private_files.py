"""Which files of a run other users may read."""

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import distsummary as ds


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def record(place: Path, record: ds.Record) -> dict[str, int]:
    """Record a run; returns the rights of its files, by their paths in it; locks hold nothing."""
    for rank in (1, 0):
        with ds.init(
            place, rank=rank, world_size=2, aggregate=False, quiet=True, record=record, system_metrics=False
        ) as run:
            for _ in run.steps(range(3)):
                run.log(loss=1.0)
    ds.merge_run(place)
    found = [path for path in place.rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    return {str(path.relative_to(place)): stat.S_IMODE(path.stat().st_mode) for path in found}


def test_only_the_owner_reads_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--needle", "--token", "abc"])
    modes = record(tmp_path / "run", ds.Record())
    assert {name for name, mode in modes.items() if mode != 0o644} == {"rank_00000/command.json"}
    assert modes["rank_00000/command.json"] == 0o600
    holding = [name for name in modes if b"needle" in (tmp_path / "run" / name).read_bytes()]
    assert holding == ["rank_00000/command.json"]
    assert ds.open_run(tmp_path / "run").provenance["argv"] == ["train.py", "--needle", "--token", "***"]


def test_only_the_owner_reads_a_private_run(tmp_path: Path) -> None:
    modes = record(tmp_path / "run", ds.Record(private=True))
    assert "run.json" in modes
    assert "rank_00001/manifest.json" in modes
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run" / "rank_00001").stat().st_mode) == 0o700
