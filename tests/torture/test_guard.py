"""A short round of faults in distsummary while it records; `make torture LEVEL=guard` has a long one."""

from pathlib import Path

import pytest

from tests.torture.guard import SHORT, TRAININGS, torture_guard


@pytest.mark.long
@pytest.mark.parametrize("kind", TRAININGS + SHORT)
def test_no_fault_in_our_code_reaches_the_loop(tmp_path: Path, kind: str) -> None:
    found = torture_guard(tmp_path, 1, 7, [kind], steps=100, short_runs=10)
    assert found.violations == []
    assert found.faults > 0
