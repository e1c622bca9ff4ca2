import sys
from pathlib import Path
from typing import Any

import pytest

from distsummary import Evaluation
from distsummary.cli.landscape_command import load_factory
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from tests.refusals import refused
from tests.unit.landscapes.golden_mlp import Mlp, batches, cross_entropy

FACTORY = "tests.unit.cli.test_factory:make_parts"


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each load adds the working directory to the path of the process."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def make_parts() -> tuple[Any, Any, Any]:
    return Mlp(), cross_entropy, batches()


def make_parts_and_more() -> tuple[Any, Any, Any, Evaluation]:
    return *make_parts(), Evaluation(stderr=True)


def make_named_parts() -> dict[str, Any]:
    return {"model": Mlp(), "batch_loss": max, "batches": batches()}


def make_parts_without_loss() -> dict[str, Any]:
    return {"model": Mlp(), "batches": batches()}


def make_with_an_error() -> Any:
    return {}["parts"]


def make_nothing() -> None:
    return None


def test_a_file_in_the_working_directory_hides_no_module_of_python(tmp_path, monkeypatch):
    (tmp_path / "colorsys.py").write_text("raise SystemExit('hidden')")
    (tmp_path / "own_parts.py").write_text("import colorsys\ndef parts(): return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(InvalidTypeError):  # it was imported, and returns no parts
        load_factory("own_parts:parts")
    assert str(tmp_path) not in str(sys.modules["colorsys"].__file__)


def test_a_module_that_raises_is_reported_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_syntax.py").write_text("def parts(:")
    (tmp_path / "broken_import.py").write_text("\nimport nosuchlib_x")
    refused(
        LandscapeError,
        (
            lambda: load_factory("broken_syntax:parts"),
            r"raised SyntaxError: invalid syntax \(line 1 of .*broken_syntax\.py\)",
        ),
        (
            lambda: load_factory("broken_import:parts"),
            r"ModuleNotFoundError: No module named 'nosuchlib_x' \(line 2 of .*broken_import\.py\)",
        ),
    )


def test_a_factory_is_found_by_name() -> None:
    parts = load_factory(FACTORY)
    assert isinstance(parts["model"], Mlp)
    assert parts["loss_fn"] is cross_entropy
    assert len(parts["batches"]) == 3
    assert "evaluation" not in parts
    assert load_factory(FACTORY + "_and_more")["evaluation"] == Evaluation(stderr=True)
    assert load_factory(FACTORY.replace("make_parts", "make_named_parts"))["batch_loss"] is max


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("nocolon", InvalidValueError, "module:function"),
        ("nowhere.py:parts", InvalidValueError, "cannot be found: .*; leave .py out"),
        ("no_such_module_here:f", InvalidValueError, "cannot be found"),
        ("math:no_such_name", InvalidValueError, "cannot be found"),
        (FACTORY.replace("make_parts", "make_nothing"), InvalidTypeError, "must return"),
        (FACTORY + "_without_loss", InvalidTypeError, "must return .*loss_fn or batch_loss"),
        (
            FACTORY.replace("make_parts", "make_with_an_error"),
            LandscapeError,
            r"raised KeyError: 'parts' \(line 39 of",
        ),
        ("json:dumps", LandscapeError, r"raised TypeError: .*'obj'; fix"),
    ],
)
def test_a_factory_that_cannot_be_used_is_refused(name: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        load_factory(name)
