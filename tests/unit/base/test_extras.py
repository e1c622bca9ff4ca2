"""A package that is missing is refused with a pip line that works on any machine."""

import re
import tomllib
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

import distsummary
from distsummary.base.extras import extra, missing_extra, require
from distsummary.errors import MissingExtraError

ROOT = Path(distsummary.__file__).parents[1]
TEXTS = [
    *(path for path in (ROOT / "distsummary").rglob("*.py") if "pb" not in path.parts),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "examples").glob("*.py"),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
]
HINT = re.compile(r"pip install ([^`\n]+)")
ELSEWHERE = {"nvidia-ml-py", "mindspore"}  # for the utilisation of a GPU; a framework of its own environment


def test_all_missing_packages_are_named_at_once(hide_package: Callable[[str], None]) -> None:
    hide_package("sklearn")
    hide_package("matplotlib")
    with pytest.raises(MissingExtraError) as caught:
        require("the demo", "json", "sklearn", "matplotlib")
    assert str(caught.value) == (
        "the demo needs scikit-learn and matplotlib, which are not installed; "
        "run: pip install scikit-learn matplotlib"
    )


def test_an_error_inside_of_a_package_is_not_taken_for_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there_at_all'") as caught:
        extra("a test", "broken_package")
    assert not isinstance(caught.value, MissingExtraError)


def test_no_text_names_an_extra_of_this_package() -> None:
    """It is on no package index, so that pip finds neither it nor its extras."""
    found = {path.name for path in TEXTS if "distsummary[" in path.read_text()}
    assert found == set()


def test_each_pip_line_names_packages_that_the_project_uses() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    known = {re.split(r"[\[>=<]", requirement)[0] for requirement in given} | ELSEWHERE
    wrong = []
    for path in TEXTS:
        for hint in HINT.findall(path.read_text()):
            words = [re.split(r"[>=\[]", word)[0] for word in hint.split("`")[0].split()]
            wrong += [(path.name, word) for word in words if word.startswith("distsummary")]
            if path.suffix == ".py" and words and re.fullmatch(r"[\w-]+", words[0]):
                wrong += [(path.name, words[0])] if words[0].rstrip('".,)') not in known else []
    assert wrong == []


def test_the_name_that_pip_knows_is_given() -> None:
    assert "pip install scikit-learn" in str(missing_extra("x", "sklearn"))
