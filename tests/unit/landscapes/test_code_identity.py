"""What a function or an object does is told by its code and by what it holds, and by nothing else."""

import functools
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest

from distsummary.landscapes.run.code_identity import Meaning
from distsummary.landscapes.run.fingerprint import digest


def told(value: Any, known: Any = None) -> str:
    return digest(Meaning(known).of(value))


def compiled(source: str, skipped: int = 0, file: str = "a.py", **globals_: Any) -> Any:
    """What `source` calls `f`, as if it stood somewhere in a file."""
    space = {"__name__": "somewhere", "functools": functools} | globals_
    exec(compile("\n" * skipped + source, file, "exec"), space)
    return space["f"]


class Loss:
    def __init__(self, weight: Any = 1.0, **more: Any) -> None:
        self.weight, self.more, self.me = weight, more, self

    def __call__(self, outputs: Any, targets: Any) -> Any:
        return self.weight

    def bound(self, outputs: Any, targets: Any) -> Any:
        return self.weight


class Silent:
    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def bound(self, outputs: Any, targets: Any) -> Any:
        return self.weight


@dataclass(slots=True)
class Config:
    weight: float


class Kind(Enum):
    MEAN = "mean"
    SUM = "sum"


def scaled(scale: Any, outputs: Any, targets: Any, more: Any = None) -> Any:
    return scale


def closing(held: Any) -> Callable[..., Any]:
    def twice(count: int) -> Any:  # its cell holds itself
        return twice(count - 1) if count else held

    return lambda outputs, targets: twice(2)


SOURCES = {
    "constant": ("f = lambda o, t: o", "f = lambda o, t: o + 1"),
    "number": ("f = lambda o, t: o + 1", "f = lambda o, t: o + 2"),
    "kind of number": ("f = lambda o, t: 1", "f = lambda o, t: 1.0"),
    "name": ("f = lambda o, t: o.mean()", "f = lambda o, t: o.sum()"),
    "default": ("f = lambda o, t, k=1: k", "f = lambda o, t, k=2: k"),
    "keyword": ("def f(o, t, *, k=1): return k", "def f(o, t, *, k=2): return k"),
    "inner function": ("f = lambda o, t: (lambda: 1)()", "f = lambda o, t: (lambda: 2)()"),
    "method": (
        "class f:\n def __call__(self): return self.g()\n def g(self): return 1",
        "class f:\n def __call__(self): return self.g()\n def g(self): return 2",
    ),
    "property": (
        "class f:\n @property\n def g(self): return 1",
        "class f:\n @property\n def g(self): return 2",
    ),
    "static method": (
        "class f:\n @staticmethod\n def g(): return 1",
        "class f:\n @staticmethod\n def g(): return 2",
    ),
    "setting of a class": ("class f:\n scale = 1", "class f:\n scale = 2"),
    "inner class": ("def f():\n class g:\n  h = 1", "def f():\n class g:\n  h = 2"),
    "cached": (
        "@functools.cache\ndef f(o, t): return 1",
        "@functools.cache\ndef f(o, t): return 2",
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_other_code_is_told_and_the_place_of_code_is_not(kind: str) -> None:
    one, other = SOURCES[kind]
    assert told(compiled(one)) == told(compiled(one, skipped=9, file="/elsewhere/b.py"))
    assert told(compiled(one)) != told(compiled(other))


def test_a_number_is_told_though_its_class_stands_in_the_line_of_that_number() -> None:
    one, other = "def f():\n class g:\n  h = 2", "\ndef f():\n class g:\n  h = 3"
    assert told(compiled(one)) != told(compiled(other))


@pytest.mark.parametrize(
    "make",
    [
        lambda held: functools.partial(scaled, held),
        lambda held: functools.partial(scaled, 1.0, more=held),
        closing,
        Loss,
        lambda held: Loss(more=held),
        lambda held: Loss(held).bound,
        lambda held: Silent(held).bound,
        lambda held: closing(Loss(held)),
        lambda held: [{"a": (held,)}],
        lambda held: closing(Namespace(a=held)),
    ],
)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 5.0),
        (None, 0),
        ("mean", "sum"),
        ((1, 2), (1, 3)),
        ([1, 2], [1, 3]),
        (np.ones(3), np.ones(4)),
        (np.ones(3), np.array([1.0, 1.0, 30.0])),
        (np.array(["a", None], object), np.array(["b", None], object)),
        (Kind.MEAN, Kind.SUM),
        (Config(1.0), Config(2.0)),
        (np.sqrt, np.square),
        (len, sum),
        (np.dtype("f4"), np.dtype("f8")),
    ],
)
def test_what_a_function_holds_is_told(make: Any, one: Any, other: Any) -> None:
    assert told(make(one)) == told(make(one))
    assert told(make(one)) != told(make(other))


def test_no_address_and_no_order_of_a_set_is_told() -> None:
    names = [f"name {number}" for number in range(50)]
    for make in (lambda: object(), lambda: Silent(1), lambda: open, lambda: Loss(object())):
        assert told(closing(make())) == told(closing(make()))
    assert told(closing(set(names))) == told(closing(set(reversed(names))))


def test_tuples_count_by_their_values_whether_they_are_one_object_or_two() -> None:
    one, other = (1, 2), tuple([1, 2])
    assert told([one, one]) == told([one, other])


def test_what_is_known_counts_by_its_name() -> None:
    one, other = np.ones(3), np.zeros(3)
    assert told(closing(one), {id(one): "weight"}) == told(closing(other), {id(other): "weight"})
    assert told(closing(one), {id(one): "weight"}) != told(closing(one), {id(one): "bias"})


def test_code_that_is_not_pythons_is_told_by_its_name() -> None:
    assert told(np.linalg.norm) == told(np.linalg.norm) != told(np.linalg.det)
    assert told(str.upper) != told(str.lower)
