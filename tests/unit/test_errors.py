"""The error tree is the one its docstring draws, and its errors survive the way between processes."""

import inspect
import pickle
import re

import pytest

from distsummary import errors

CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
]
# ├── InvalidTypeError          (TypeError)           an argument of the wrong type
LINE = re.compile(r"(?P<indent>[│├└─ ]*)(?P<name>\w+Error)(?: +\((?P<builtins>[\w, ]+)\))?(?:  .*)?")


def drawn_bases() -> dict[str, list[str]]:
    """Class name -> names of its bases, as the module's docstring draws them."""
    path: list[tuple[int, str]] = []
    bases = {}
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.fullmatch(line)
        if match is None:
            continue
        while path and path[-1][0] >= len(match["indent"]):
            path.pop()
        builtins = match["builtins"].split(", ") if match["builtins"] else []
        bases[match["name"]] = [name for _, name in path[-1:]] + builtins
        path.append((len(match["indent"]), match["name"]))
    return bases


def test_the_drawing_is_the_tree() -> None:
    real = {kind.__name__: [base.__name__ for base in kind.__bases__] for kind in CLASSES}
    assert drawn_bases() == real | {"DistSummaryError": []}
    assert real["DistSummaryError"] == ["Exception"]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickling_with_its_message(kind: type[Exception]) -> None:
    error = pickle.loads(pickle.dumps(kind("rank 3: loss must be finite, got nan; lower the learning rate")))
    assert type(error) is kind
    assert str(error) == "rank 3: loss must be finite, got nan; lower the learning rate"


def test_a_missing_extra_keeps_the_name_of_the_module_through_pickling() -> None:
    error = errors.MissingExtraError(
        "torch is not installed; run: pip install 'distsummary[torch]'", name="torch"
    )
    assert pickle.loads(pickle.dumps(error)).name == "torch"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_caught_by_the_root(kind: type[Exception]) -> None:
    with pytest.raises(errors.DistSummaryError):
        raise kind("message")
