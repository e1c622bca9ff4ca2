"""A function waits for a module that is imported later."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from distsummary.base import health
from distsummary.integrations.after_import import after_import
from distsummary.integrations.deepspeed import follow_deepspeed
from distsummary.integrations.ray_functions import follow_functions

HOSTS = (
    "ray.train.v2._internal.execution.worker_group.thread_runner",
    "ray.train._internal.session",
    "ray.tune.trainable.function_trainable",
    "deepspeed.runtime.engine",
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_it_is_called_once_at_the_end_of_the_import(place: Path) -> None:
    (place / "waited_for.py").write_text("a = 1\n")
    seen: list[int] = []
    after_import("waited_for", lambda module: seen.append(module.a))
    assert importlib.util.find_spec("waited_for") is not None  # finding is not importing
    assert seen == []
    module = importlib.import_module("waited_for")
    importlib.reload(module)
    assert seen == [1]


def test_it_is_called_now_for_a_module_that_was_imported(place: Path) -> None:
    seen: list[str] = []
    after_import("json", lambda module: seen.append(module.__name__))
    assert seen == ["json"]


def test_several_may_wait(place: Path) -> None:
    (place / "waited_for_twice.py").write_text("")
    seen: list[int] = []
    for number in range(2):
        after_import("waited_for_twice", lambda module, number=number: seen.append(number))
    importlib.import_module("waited_for_twice")
    assert seen == [0, 1]
    assert sum(type(each).__module__.startswith("distsummary") for each in sys.meta_path) == 1


def test_what_it_raises_is_reported_and_the_import_succeeds(place, capsys, monkeypatch):
    monkeypatch.setattr(health, "_absent", {})
    (place / "sound.py").write_text("a = 1\n")

    def fail(module: object) -> None:
        raise ValueError("too old")

    after_import("sound", fail)
    assert importlib.import_module("sound").a == 1
    assert capsys.readouterr().err == "distsummary: sound is not followed: ValueError: too old\n"
    assert [*health.absences().errors] == ["sound is not followed: ValueError: too old"]


@pytest.mark.parametrize("follow", [follow_functions, follow_deepspeed.__wrapped__])
def test_a_host_without_its_private_names_is_named_and_imported(follow, place, capsys, monkeypatch):
    monkeypatch.setattr(health, "_absent", {})
    for name in HOSTS:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    follow()
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert [*health.absences().errors] == [line.removeprefix("distsummary: ") for line in lines]
    assert all("is not followed: AttributeError" in line for line in lines)


def test_a_module_that_fails_fails_as_before(place: Path) -> None:
    (place / "failing.py").write_text("raise KeyError('x')\n")
    seen: list[object] = []
    after_import("failing", seen.append)
    with pytest.raises(KeyError):
        importlib.import_module("failing")
    after_import("not_there_at_all", seen.append)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_there_at_all")
    assert seen == []
