"""The hash of data is of all that its batches hold, whatever holds it, and of nothing else."""

import datetime
import threading
from collections import UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary.landscapes.run.fingerprint import digest


class Plain:
    def __init__(self, x: Any) -> None:
        self.x, self.me = x, self  # a cycle


class Slotted:
    __slots__ = ("__hidden", "unset", "x")

    def __init__(self, x: Any) -> None:
        self.x, self.__hidden = None, x


class Listed(list):  # type: ignore[type-arg]  # with an attribute
    def __init__(self, x: Any) -> None:
        super().__init__([1])
        self.x = x


class Encoding(UserDict):  # type: ignore[type-arg]
    def __init__(self, x: Any) -> None:
        super().__init__(a=1)
        self.x = x


@dataclass
class Data:
    x: Any


KINDS: list[Callable[[Any], Any]] = [
    Plain,
    Slotted,
    Listed,
    Encoding,
    Data,
    lambda x: Plain([{"a": Slotted(x)}]),
    lambda x: deque([x]),
    lambda x: UserDict(x=x),
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
    assert "batches hold generator, lock, which cannot be read: a landscape that is stopped" in caplog.text
