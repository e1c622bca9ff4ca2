"""Batches of any kind: what is in them, and the same kind again with other leaves."""

import types
from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from distsummary.landscapes.model.batches import inside, leaves, mapped, structure


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any = field(default=2, init=False)


class Encoding(UserDict):  # type: ignore[type-arg]  # as transformers' BatchEncoding
    def __init__(self, data: Any, more: Any) -> None:
        super().__init__(data)
        self.more = more


class Named(dict):  # type: ignore[type-arg]  # an error of another kind where there is no attribute
    __getattr__ = dict.__getitem__


class Holder:
    """What holds its parts in attributes, and itself."""

    __slots__ = ("me", "unset", "x")
    shape: Any

    def __init__(self, x: Any) -> None:
        self.x, self.me = x, self


CONTAINERS = [
    [1, 2], (1, (2,)), Pair(1, 2), {"b": 1, "a": [2]}, OrderedDict(b=1, a=2),
    Encoding({"x": 1, "y": 2}, more=5), Named(x=1, y=2), Frozen(1),
]  # fmt: skip


@pytest.mark.parametrize("batch", CONTAINERS, ids=lambda batch: type(batch).__name__)
def test_a_container_keeps_its_kind_and_the_users_own_its_leaves(batch: Any) -> None:
    other = mapped(batch, lambda leaf: 10 * leaf)
    assert (leaves(batch), leaves(other)) == ([1, 2], [10, 20])
    assert type(other) is type(batch)
    assert structure(other) == structure(batch)
    assert getattr(other, "more", 5) == 5 if isinstance(other, Encoding) else True


def test_what_changes_nowhere_is_the_same_object() -> None:
    batch = [Frozen(1), {"a": np.ones(2)}, types.MappingProxyType({"b": 3})]
    assert mapped(batch, lambda leaf: leaf) is batch


def test_other_mappings_become_dicts_for_a_copy_may_look_at_the_same_memory() -> None:
    assert mapped(types.MappingProxyType({"a": 1}), lambda leaf: leaf + 1) == {"a": 2}


def test_structures_report_kinds_and_names() -> None:
    found = [structure(batch) for batch in (*CONTAINERS, [1], {"b": 1, "c": [2]}, 1)]
    assert all(one != other for at, one in enumerate(found) for other in found[:at])


def test_everything_inside_comes_in_order_and_what_holds_itself_once() -> None:
    held = Holder({"a": 1, "b": [2]})
    found = list(inside((held, 3, held)))
    assert [value for value in found if isinstance(value, int)] == [1, 2, 3]
    assert sum(value is held for value in found) == 1
