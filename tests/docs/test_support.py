"""docs/support.md names the floors of pyproject.toml, and `make versions` adds its lines there."""

import re
import tomllib

import pytest

from tests.docs.documents import ROOT
from tests.tools import versions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_floors_are_those_of_the_project() -> None:
    table, _, _ = versions.SUPPORT.read_text().partition(versions.MARK)
    stated = dict(re.findall(r"^\| (\w+) \| ([\d.]+) \|", table, re.MULTILINE))
    needed = [
        PROJECT["requires-python"],
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["torch"],
    ]
    floors = dict(
        re.findall(r"^(\w+)>=([\d.]+)", "\n".join(["Python" + needed[0], *needed[1:]]), re.MULTILINE)
    )
    assert {"Python", "Ray", "torch", "NumPy", "protobuf", "safetensors"} == stated.keys()
    assert all(floors.get(name, floors.get(name.lower())) == version for name, version in stated.items())


def test_the_lowest_environment_has_each_dependency_at_its_floor() -> None:
    assert versions.floors({"dependencies": ["ray>=2.49", "numpy>=1.26"]}) == ["ray==2.49", "numpy==1.26"]


def test_a_result_is_a_line_at_the_top_of_the_table() -> None:
    new = versions.row("newest", ["3.13.0", *"abcdefgh"], "tests", {"failed": 1, "passed": 2345}, "c0ffee")
    text = f"before\n{versions.MARK}\n| a |\n|---|\n| old |\n"
    lines = versions.with_row(text, new).splitlines()
    assert lines[:4] == ["before", versions.MARK, "| a |", "|---|"]
    assert lines[4:] == [new, "| old |"]
    assert new.startswith("| newest | 3.13.0 | torch a, ray b,")
    assert new.endswith("| c0ffee | tests: 1 failed, 2,345 passed |")


def test_failures_of_other_projects_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "OF_OTHERS", {"lowest": {"test_a[": "torch's own"}})
    assert versions.of_others("lowest", ["tests/x.py::test_a[1]", "tests/x.py::test_b"]) == {
        "torch's own": ["tests/x.py::test_a[1]"],
        "": ["tests/x.py::test_b"],
    }
