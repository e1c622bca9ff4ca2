"""The public face: every name loads, and everything that a public signature names is public too."""

import inspect
import typing
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import distsummary
from distsummary import errors

# By users: `Run.eval`, `open_run` and what that gives return them.
NOT_CONSTRUCTED = (
    distsummary.Bill, distsummary.EvaluationRun, distsummary.RankView,
    distsummary.ScalarTable, distsummary.Table, distsummary.ValueTable,
)  # fmt: skip
# What annotations name and type checkers alone import: of libraries, and public classes of ours.
NAMES = {name: getattr(distsummary, name) for name in distsummary.__all__} | {
    "Figure": Any, "pandas": SimpleNamespace(DataFrame=Any), "polars": SimpleNamespace(DataFrame=Any),
    "pyarrow": SimpleNamespace(Table=Any), "xarray": SimpleNamespace(Dataset=Any),
}  # fmt: skip


def own_classes(annotation: Any) -> Iterator[type]:
    """The classes of distsummary that an annotation names."""
    for part in typing.get_args(annotation):
        for inner in part if isinstance(part, list) else [part]:
            yield from own_classes(inner)
    if isinstance(annotation, type) and annotation.__module__.split(".")[0] == "distsummary":
        yield annotation


def public_functions(value: Any) -> Iterator[Callable[..., Any]]:
    """A function itself; of a class what users call: its constructor and its public methods."""
    if not inspect.isclass(value):
        yield value
        return
    for name, member in inspect.getmembers_static(value):
        function = getattr(member, "__func__", getattr(member, "fget", member))
        is_written = inspect.isfunction(function) and "<string>" not in function.__code__.co_filename
        is_constructor = name == "__init__" and value not in NOT_CONSTRUCTED
        if is_written and (is_constructor or not name.startswith("_")):  # a dataclass's is generated
            yield function


@pytest.mark.parametrize("name", distsummary.__all__)
def test_every_class_in_a_public_signature_is_public(name: str) -> None:
    public = {getattr(distsummary, name) for name in distsummary.__all__}
    for function in public_functions(getattr(distsummary, name)):
        function = inspect.unwrap(function)
        for argument, annotation in typing.get_type_hints(function, localns=NAMES).items():
            hidden = set(own_classes(annotation)) - public
            assert not hidden, f"{function.__qualname__}({argument}): {hidden}"


def test_every_public_error_is_in_errors() -> None:
    exported = [getattr(distsummary, name) for name in distsummary.__all__]
    for value in exported:
        if isinstance(value, type) and issubclass(value, BaseException):
            assert getattr(errors, value.__name__) is value


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'no_such_name'"):
        distsummary.no_such_name  # noqa: B018  # the access is what is tested


def test_a_name_of_mindspore_is_an_attribute_error_that_names_what_torch_has() -> None:
    with pytest.raises(AttributeError, match=r"set_seed of MindSpore .* torch.manual_seed \(docs/"):
        distsummary.set_seed  # noqa: B018  # the access is what is tested
