"""Every name, parameter, default, property and error on the pages of MindSpore's classes is here too."""

import importlib
import inspect
import re
from typing import Any

import pytest

import distsummary
from tests.conftest import ROOT
from tests.mindspore_pages import APPENDED, BAD, COUNTS, NOT_OURS, PAGES, POLICIES, Bad

DOCUMENT = ROOT / "docs" / "mindspore.md"


def ours(name: str) -> Any:
    """Our class or function of a page, None if there is none."""
    try:
        return getattr(importlib.import_module(PAGES[name].module), name)
    except (AttributeError, ModuleNotFoundError):
        return None


def parameters(text: str) -> list[inspect.Parameter]:
    """The parameters that Python text names, without `self`."""
    function = eval(f"lambda {text}: None")
    return list(inspect.signature(function).parameters.values())


def names(arguments: dict[Any, Any]) -> list[str]:
    """The fields that a message may name: the arguments, and the keys of those that are dicts."""
    inner = [name for value in arguments.values() if isinstance(value, dict) for name in names(value)]
    return [
        str(name) for name in arguments if name not in ("summary_dir", "log_dir") or len(arguments) == 1
    ] + inner


def check_parameters(where: str, function: Any, text: str) -> None:
    """Ours takes every parameter of the page, by name and at its place, with its default."""
    given = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    own = {one.name: one for one in given}
    for place, theirs in enumerate(parameters(text)):
        if f"{where}({theirs.name})" in NOT_OURS:
            continue
        if theirs.kind is inspect.Parameter.VAR_POSITIONAL:
            assert any(one.kind is theirs.kind for one in given), f"{where} takes no *{theirs.name}"
            continue
        assert theirs.name in own, f"{where} has no parameter {theirs.name}"
        assert own[theirs.name].default == theirs.default, f"{where}({theirs.name})"
        if theirs.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            assert given[place].name == theirs.name, f"{where}: {theirs.name} is not at place {place}"
            assert given[place].kind is theirs.kind, f"{where}: {theirs.name} must be taken by place and name"


@pytest.mark.parametrize("name", PAGES)
def test_every_class_of_the_pages_is_there(name):
    assert (ours(name) is not None) or name in NOT_OURS
    assert not (ours(name) is not None and name in NOT_OURS), f"{name} is there: take it out of NOT_OURS"


@pytest.mark.parametrize("name", [name for name in PAGES if name not in NOT_OURS])
def test_a_class_has_what_its_page_says(name):
    page, found = PAGES[name], ours(name)
    assert name in distsummary.__all__ or page.module != "distsummary"
    if page.base:
        assert issubclass(found, distsummary.Callback)
    if page.init:
        check_parameters(name, found, page.init)
    for method, text in page.methods.items():
        where = f"{name}.{method}"
        if where not in NOT_OURS:
            assert callable(getattr(found, method, None)), f"{where} is missing"
            check_parameters(where, getattr(found, method), text)
    for attribute in page.properties:
        is_property = isinstance(inspect.getattr_static(found, attribute, None), property)
        assert is_property or hasattr(found(), attribute), f"{name}.{attribute}"
    if page.attributes:
        made = found(*[lambda lr, step: lr] * len(parameters(page.init or "")))
        assert all(hasattr(made, attribute) for attribute in page.attributes)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.name}-{bad.arguments}")
def test_bad_arguments_raise_what_mindspore_raises_or_documents(bad: Bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = ours(bad.name)
    for error in bad.errors:
        with pytest.raises(error) as raised:
            made(**bad.arguments)
        assert isinstance(raised.value, distsummary.DistSummaryError)
    assert any(name in str(raised.value) for name in names(bad.arguments)), raised.value
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("given", "kept"), POLICIES.items(), ids=str)
def test_one_rule_of_a_checkpoint_policy_cancels_the_other(given, kept):
    config = ours("CheckpointConfig")(*given)
    assert tuple(getattr(config, name) for name in COUNTS) == kept
    policy = config.get_checkpoint_policy()
    assert {name: policy[name] for name in COUNTS} == dict(zip(COUNTS, kept, strict=True))
    assert policy["saved_network"] is None


@pytest.mark.parametrize(("info", "kept"), APPENDED, ids=str)
def test_what_is_appended_to_a_checkpoint(info, kept):
    assert ours("CheckpointConfig")(append_info=info).append_dict == kept


def test_what_is_not_ours_stands_in_the_document():
    named = set(re.findall(r"\w+(?:\.\w+)*", DOCUMENT.read_text()))
    assert {re.split(r"[(]", name)[0] for name in NOT_OURS} <= named


def test_names_that_are_listed_as_missing_are_names_of_pages():
    members = {f"{name}.{method}" for name, page in PAGES.items() for method in page.methods}
    assert {name for name in NOT_OURS if "(" not in name} <= PAGES.keys() | members


@pytest.mark.parametrize("name", ["EarlyStopping", "Tensor", "set_context"])
def test_a_name_that_is_not_ours_says_what_to_do_instead(name):
    with pytest.raises(AttributeError, match=f"{name}.*; "):
        getattr(distsummary, name)
