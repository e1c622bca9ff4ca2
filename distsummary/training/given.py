"""Given: the values that a user has given to a Run and that are not recorded yet."""

from collections.abc import Mapping
from threading import Lock
from typing import TypeAlias

from distsummary.format.records import Value
from distsummary.training.values import Scalar

Key: TypeAlias = tuple[str, str]  # the plugin and the tag of a value


class Given:
    """Numbers by name, and values of other kinds by plugin and name; the last one of a name is kept.

    Only the thread of the training loop may use `numbers` and `values`; other threads call `add_elsewhere`.
    `has_more` says that they did, and that `gather` was not called since.
    """

    __slots__ = ("_lock", "_numbers_elsewhere", "_values_elsewhere", "has_more", "numbers", "values")

    def __init__(self) -> None:
        self.numbers: dict[str, Scalar] = {}
        self.values: dict[Key, Value] = {}
        self._numbers_elsewhere: dict[str, Scalar] = {}
        self._values_elsewhere: dict[Key, Value] = {}
        self.has_more = False
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self.numbers or self.values or self.has_more)

    def add_elsewhere(self, numbers: Mapping[str, Scalar], values: Mapping[Key, Value]) -> None:
        """Add values from a thread that is not the training loop's."""
        with self._lock:
            self._numbers_elsewhere |= numbers
            self._values_elsewhere |= values
            self.has_more = True

    def gather(self) -> None:
        """Move what other threads have added to `numbers` and `values`."""
        with self._lock:
            self.numbers |= self._numbers_elsewhere
            self.values |= self._values_elsewhere
            self._numbers_elsewhere, self._values_elsewhere = {}, {}
            self.has_more = False

    def take(self) -> tuple[dict[str, Scalar], list[Value]]:
        """Take out all numbers and values, also those of other threads."""
        if self.has_more:
            self.gather()
        numbers, self.numbers = self.numbers, {}
        return numbers, self.take_values()

    def take_values(self) -> list[Value]:
        """Take out the values that are no numbers, except those of other threads."""
        values, self.values = self.values, {}
        return list(values.values())
