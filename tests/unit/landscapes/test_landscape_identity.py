"""Functions count by their code and what they hold, data by all that it holds, and nothing else counts."""

import datetime
import functools
import sys
import threading
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Directions
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.run.landscape_identity import digest, landscape_identity


class Net:
    """A model that is nothing but its parameters."""

    def __init__(self, weight: Any) -> None:
        self.parameters = {"w": weight}


def loss_hash(loss_fn: Any, net: Net | None = None) -> str:
    """The hash of a loss function, for a model whose weight every checkpoint has."""
    points = np.zeros(1)
    plane = PlanePlan(
        states=[{"w": points}], names=("w",), recipe=Directions(x={}, y={}), x=points, y=points, points=points
    )
    model = net or Net(np.zeros(3))
    return landscape_identity(Task(model=model, loss_fn=loss_fn, batches=[], planes=[plane]))["loss_fn"]


def compiled(source: str, skipped: int = 0, file: str = "a.py", **globals_: Any) -> Any:
    """What `source` calls `f`, as if it stood somewhere in a file."""
    space = {"__name__": "somewhere", "functools": functools, "numpy": np} | globals_
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
    "list of a class": ("class f:\n scales = [1, 2]", "class f:\n scales = [1, 3]"),
    "array of a class": ("class f:\n a = numpy.ones(2)", "class f:\n a = numpy.zeros(2)"),
    "partial method": (
        "class f:\n def g(self, h): return h\n k = functools.partialmethod(g, 1)",
        "class f:\n def g(self, h): return h\n k = functools.partialmethod(g, 2)",
    ),
    "inner class": ("def f():\n class g:\n  h = 1", "def f():\n class g:\n  h = 2"),
    "cached property": (
        "class f:\n @functools.cached_property\n def g(self): return 1",
        "class f:\n @functools.cached_property\n def g(self): return 2",
    ),
    "cached": (
        "@functools.cache\ndef f(o, t): return 1",
        "@functools.cache\ndef f(o, t): return 2",
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_other_code_is_another_landscape_and_its_place_is_not(kind: str) -> None:
    one, other = SOURCES[kind]
    assert loss_hash(compiled(one)) != loss_hash(compiled(other))
    if kind != "inner class" or sys.version_info < (3, 13):  # which counts with its line number there
        assert loss_hash(compiled(one)) == loss_hash(compiled(one, skipped=9, file="/elsewhere/b.py"))


def test_a_function_counts_as_it_was_compiled_whatever_its_file_says_now(tmp_path: Path) -> None:
    path, found = tmp_path / "loss.py", []
    for factor in (2, 2, 3):
        path.write_text(f"f = lambda o, t: {factor} * o")
        loss_fn = compiled(path.read_text(), file=str(path))
        path.write_text("f = lambda o, t: 5 * o")  # edited since
        found.append(loss_hash(loss_fn))
    assert found[0] == found[1] != found[2]


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
def test_what_a_function_holds_counts(make: Any, one: Any, other: Any) -> None:
    assert loss_hash(make(one)) == loss_hash(make(one))
    assert loss_hash(make(one)) != loss_hash(make(other))


def test_no_address_and_no_order_of_a_set_counts() -> None:
    names = [f"name {number}" for number in range(50)]
    for make in (lambda: object(), lambda: Silent(1), lambda: open, lambda: Loss(object())):
        assert loss_hash(closing(make())) == loss_hash(closing(make()))
    assert loss_hash(closing(set(names))) == loss_hash(closing(set(reversed(names))))


def test_tuples_count_by_their_values_whether_they_are_one_object_or_two() -> None:
    one, other = (1, 2), tuple([1, 2])
    assert loss_hash([one, one]) == loss_hash([one, other])


def test_tensors_of_the_model_count_by_their_names() -> None:
    one, other = Net(np.ones(3)), Net(np.zeros(3))
    assert loss_hash(closing(one.parameters["w"]), one) == loss_hash(closing(other.parameters["w"]), other)
    assert loss_hash(closing(one.parameters["w"]), one) != loss_hash(closing(one.parameters["w"]), other)


def test_code_that_is_not_pythons_is_reported_by_its_name() -> None:
    assert loss_hash(np.linalg.norm) == loss_hash(np.linalg.norm) != loss_hash(np.linalg.det)
    assert loss_hash(str.upper) != loss_hash(str.lower)


class Plain:
    def __init__(self, x: Any) -> None:
        self.x, self.me = x, self  # a cycle


class Slotted:
    __slots__ = ("__hidden", "unset", "x")

    def __init__(self, x: Any) -> None:
        self.x, self.__hidden = None, x


@dataclass
class Fields:
    x: Any


KINDS: list[Callable[[Any], Any]] = [
    Plain,
    Slotted,
    Fields,
    lambda x: Plain([{"a": Slotted(x)}]),
    lambda x: np.array([None, x, "text"], object),
]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 2.0),
        (np.float32(1), np.float32(2)),
        (np.zeros(3), np.array([0, 0, 1.0])),
        ("a", b"a"),
        (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
        (Path("a"), Path("b")),
        ({1, 2}, {1, 3}),
        (1j, 2j),
    ],
)
def test_what_an_object_holds_counts_by_value(make: Any, one: Any, other: Any) -> None:
    assert digest([make(one)]) == digest([make(one)])
    assert digest([make(one)]) != digest([make(other)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        ([[1], 2], [[1, 2]]),
        (["ab", "c"], ["a", "bc"]),
        ({1: 2, 3: 4}, {1: 4, 3: 2}),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.zeros(2, np.int64), np.zeros(2)),
        (np.zeros(0, np.int64), np.zeros(0)),
        ([x := Plain(1), y := Plain(1), x], [x, y, y]),
        (Plain(len), Plain(max)),
        (Plain(lambda x: x + 1), Plain(lambda x: x + 2)),
        (Plain(int), Plain(float)),
    ],
)
def test_values_that_differ_in_their_kind_or_their_bounds_differ(one: Any, other: Any) -> None:
    assert digest(one) == digest(one)
    assert digest(one) != digest(other)


def test_sets_have_no_order() -> None:
    one, other = {0, 8}, {8, 0}  # 0 and 8 want the same place, which the first of them gets
    assert list(one) != list(other)
    assert digest(one) == digest(other)


def test_objects_that_hold_each_other_take_no_time() -> None:
    nodes = [Plain(number) for number in range(20)]
    for node in nodes:
        node.others = nodes  # type: ignore[attr-defined]
    assert digest(nodes) == digest(nodes)


def test_what_cannot_be_read_is_never_the_same_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    batches = [Plain(threading.Lock()), (number for number in range(3))]
    assert digest(batches) != digest(batches)
    assert "batches hold generator, lock, which cannot be hashed, so this landscape" in caplog.text
