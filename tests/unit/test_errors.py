"""The error tree matches its drawing, is complete, and its errors survive pickling."""

import errno
import inspect
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import distsummary as ds
from distsummary import errors
from distsummary.base.extras import missing_extra
from distsummary.base.publish import replacing
from distsummary.errors import remedy_of

CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
]
ERRORS = [kind for kind in CLASSES if kind is not ds.LandscapeCancelled]
MESSAGE = "rank 3: loss must be finite, got nan; lower the learning rate"
# ├── InvalidTypeError          (TypeError)           an argument of the wrong type
NAME = r"(?P<name>\w+(?:Error|Interrupt|Cancelled))"
LINE = re.compile(rf"(?P<indent>[│├└─ ]*){NAME}(?: +\((?P<builtins>[\w, ]+)\))?(?:  .*)?")


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
    assert drawn_bases() == real | {"DistSummaryError": [], "KeyboardInterrupt": []}
    assert real["DistSummaryError"] == ["Exception"]


def test_every_exception_of_the_package_is_in_the_tree_or_says_that_it_is_internal() -> None:
    package = Path(errors.__file__).parent
    elsewhere = re.compile(
        r"^ *class (\w+)\(.*(?:Error|Exception|Interrupt|Exit|Warning)\b.*\):\n(?! *\"\"\"Internal: )", re.M
    )
    found = {
        str(path.relative_to(package)): elsewhere.findall(path.read_text())
        for path in package.rglob("*.py")
        if path.name != "errors.py"
    }
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_survives_pickling_with_its_message(kind: type[Exception]) -> None:
    error = pickle.loads(pickle.dumps(kind(MESSAGE)))
    assert type(error) is kind
    assert str(error) == str(kind(MESSAGE))
    assert str(error).startswith(MESSAGE)


def test_an_interrupted_landscape_survives_pickling_with_its_grids() -> None:
    error = pickle.loads(pickle.dumps(ds.LandscapeCancelled({"pca": np.zeros(3)})))
    assert error.grids["pca"].tolist() == [0, 0, 0]


def test_the_place_of_an_error_in_a_filter_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(errors.FilterError(MESSAGE, 7))).at == 7


def test_a_missing_extra_keeps_the_name_of_the_module_through_pickling() -> None:
    error = missing_extra("a tensor", "torch")
    assert pickle.loads(pickle.dumps(error)).name == "torch"


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_caught_by_the_root(kind: type[Exception]) -> None:
    with pytest.raises(errors.DistSummaryError):
        raise kind("message")


# What the system refuses has a remedy that fits its reason; what has none is said as it is.
@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EACCES, "fix the permissions"),
        (errno.EROFS, "make the file system writable"),
        (errno.EIO, r"see what the system says of the disk \(dmesg\), then try again"),
        (errno.ESTALE, r"see what the system says of the disk \(dmesg\), then try again"),
        (errno.ENOENT, "its directory is gone: make it again"),
        (errno.EXDEV, "mend that"),
    ],
)
def test_the_remedy_fits_the_reason_of_the_system(tmp_path: Path, number: int, remedy: str) -> None:
    why = re.escape(os.strerror(number))
    with (
        pytest.raises(ds.DistSummaryError, match=f"cannot be written: {why}; {remedy}$"),
        replacing(tmp_path / "file"),
    ):
        raise OSError(number, os.strerror(number))
    assert remedy_of(OSError(number, "another process changed the event file")) == ""
