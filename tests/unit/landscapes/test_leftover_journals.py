"""What lies beside a journal: the journals of other landscapes that nobody holds, and what differs."""

from pathlib import Path

import pytest

from distsummary.landscapes.run.journal import Journal
from distsummary.landscapes.run.leftover_journals import describe, strays
from distsummary.run_dir import RunDir

PLAN = {"data": "ab", "evaluation": "cd", "points": "ef"}


@pytest.fixture
def run_dir(nasty_tmp_path: Path) -> RunDir:
    run_dir = RunDir(nasty_tmp_path)
    run_dir.landscape_dir.mkdir()
    return run_dir


def begin(run_dir: RunDir, **changes: str) -> Journal:
    plan = PLAN | changes
    return Journal(run_dir.landscape_journal(plan), plan)


def found_by(run_dir: RunDir) -> dict[Path, list[str]]:
    return strays(run_dir.landscape_journal(PLAN), PLAN)


def test_a_landscape_alone_has_none(run_dir: RunDir) -> None:
    begin(run_dir).close()
    assert found_by(run_dir) == {}
    assert describe({}) == ""


def test_others_are_named_with_what_differs_and_what_to_do(run_dir: RunDir) -> None:
    begin(run_dir).close()
    one, other = begin(run_dir, data="xx", evaluation="yy"), begin(run_dir, points="zz")
    one.close()
    other.close()
    assert found_by(run_dir) == {one.path: ["data", "evaluation"], other.path: ["points"]}
    said = describe(found_by(run_dir))
    assert f"{one.path.name} (data, evaluation)" in said
    assert f"{other.path.name} (points)" in said
    assert str(run_dir.landscape_dir) in said
    assert "resume=False does not remove it; if it is not wanted, delete the file" in said


def test_one_that_is_being_drawn_is_left_out(run_dir: RunDir) -> None:
    with begin(run_dir, data="xx"):
        assert found_by(run_dir) == {}


def test_of_one_that_tells_no_plan_like_ours_nothing_is_said_to_differ(run_dir: RunDir) -> None:
    broken = run_dir.landscape_dir / f"journal-{'0' * 16}.bin"
    broken.write_bytes(b"no journal")
    begin(run_dir, another="part").close()
    run_dir.landscape_journal(PLAN | {"data": "xx"}).write_bytes(b"")
    assert list(found_by(run_dir).values()) == [[], [], []]
    assert f"{broken.name} (unknown)" in describe(found_by(run_dir))
