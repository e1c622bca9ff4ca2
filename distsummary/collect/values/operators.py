"""Operators: who listens to the values tapped inside of a network, and what each listener has received."""

import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from distsummary.base.failures import Failures
from distsummary.base.guard import Guard, guarded_log
from distsummary.format.records import Value

logger = guarded_log(__name__)

MAX_NAMES = 4096  # tapped names that are recorded; values under further names are dropped and counted
MAX_LATE = 64  # steps whose numbers may be on their way from a device; then the oldest is waited for
TOO_MANY = f"values are tapped under more than {MAX_NAMES} names; those of further names are dropped"


class Numbers(Protocol):
    """Tapped numbers that may still be on their way from a device."""

    def is_ready(self) -> bool:
        """Whether `result` does not wait."""

    def result(self) -> dict[str, float]:
        """Wait for the numbers and return them by name."""


class Taken(NamedTuple):
    """What a listener received: numbers and values of this step, and numbers of earlier steps, oldest first.

    Numbers that were on a device when their step ended come with a later step.
    """

    numbers: dict[str, float]
    values: list[Value]
    earlier: list[tuple[int, dict[str, float]]]


@dataclass
class Received:
    """Values by plugin and name, numbers by name; the last one of a name is kept."""

    numbers: dict[str, float] = field(default_factory=dict)
    values: dict[tuple[str, str], Value] = field(default_factory=dict)
    late: list[Numbers] = field(default_factory=list)

    def add(self, more: "Received") -> None:
        """Add what was received later."""
        self.numbers |= more.numbers
        self.values |= more.values
        self.late += more.late


class TapListener:
    """Collects what is tapped until it is taken, for a collector or a record, which must keep it alive.

    Args:
        snapshot: makes a checked copy of a value, of a plugin and name; raises for what cannot be recorded.
        failures: counts the values that cannot be recorded.
        wants: asked before a value that is no number is copied: plugin, name, and whether it is a parameter
            (equal on all ranks that train the same model). By default, every value is wanted.
        says_repeats: whether to say that a name was tapped several times before its step ended.
    """

    def __init__(
        self,
        snapshot: Callable[[str, str, object], Value],
        failures: Callable[[], Failures],
        wants: Callable[[str, str, bool], bool] = lambda plugin, name, is_parameter: True,
        *,
        says_repeats: bool = False,
    ) -> None:
        self._snapshot, self._failures, self._wants = snapshot, failures, wants
        self._fresh, self._held = Received(), Received()
        self._late: deque[tuple[int, Numbers]] = deque()
        self._is_deaf, self._says_repeats = False, says_repeats
        self._repeated: set[str] = set()
        self.is_gathered = False  # `gather` was called since the last `take`

    def receive_number(self, name: str, number: float) -> None:
        """Take a number that is on the host."""
        if self._is_deaf:
            return
        numbers = self._fresh.numbers
        if name in numbers:
            self.receive_again(name)
        elif len(numbers) >= MAX_NAMES:
            self._failures().count(TOO_MANY, dropped={"scalar": 1})
            return
        numbers[name] = number

    def receive(self, plugin: str, name: str, value: object, *, is_parameter: bool) -> None:
        """Copy a value if it is wanted; one that cannot be recorded is counted."""
        if self._is_deaf or not self._wants(plugin, name, is_parameter):
            return
        values = self._fresh.values
        if (plugin, name) in values:
            self.receive_again(name)
        elif len(values) >= MAX_NAMES:
            self.refuse(plugin, TOO_MANY)
            return
        try:
            values[plugin, name] = self._snapshot(plugin, name, value)
        except Exception as error:
            self.refuse(plugin, f"not recorded: {error}")

    def receive_again(self, name: str) -> None:
        """Say, once for each name, that it was tapped several times and only the last value is recorded."""
        if self._says_repeats and name not in self._repeated and len(self._repeated) < MAX_NAMES:
            self._repeated.add(name)
            logger.warning(
                "%r was tapped several times before its step ended; the last value is recorded. If the taps "
                "are different ones, such as those of several layers, give each its own name",
                name,
            )

    def refuse(self, plugin: str, reason: str) -> None:
        """Count a value that cannot be recorded, unless nothing is recorded now."""
        if not self._is_deaf:
            self._failures().count(reason, dropped={plugin: 1})

    def _listen_to_devices(self) -> Received:
        read_sources()
        fresh, self._fresh = self._fresh, Received()
        return fresh

    def add_read(self, numbers: Mapping[str, float], late: Numbers | None) -> None:
        """Take numbers that compiled code has left in a buffer."""
        if self._is_deaf:
            return
        self._fresh.numbers.update(numbers)
        if late is not None:
            self._fresh.late.append(late)

    def has_received(self) -> bool:
        """Whether `take` may find anything; quick, for steps without operators."""
        fresh, held = self._fresh, self._held
        return bool(_sources or fresh.numbers or fresh.values or held.numbers or held.values or self._is_deaf)

    def gather(self) -> None:
        """What was tapped so far belongs to the next `take`; what is tapped later, to the one after."""
        self._held.add(self._listen_to_devices())
        self.is_gathered = True

    def discard(self) -> None:
        """Forget what was tapped since the last `gather`."""
        self._listen_to_devices()

    def pause(self) -> None:
        """Receive nothing until `resume` or `take`: an evaluation begins."""
        self._held.add(self._listen_to_devices())
        self._is_deaf = True

    def resume(self) -> None:
        """Receive again, and forget what compiled code has tapped meanwhile."""
        if self._is_deaf:
            self._listen_to_devices()
            self._is_deaf = False

    def take(self, step: int) -> Taken:
        """Everything received since the last `take`, as that of a step."""
        self.resume()
        # After `gather`, what was tapped since then belongs to the next step.
        if not self.is_gathered:
            self._held.add(self._listen_to_devices())
        self.is_gathered = False
        held, self._held = self._held, Received()
        self._late.extend((step, late) for late in held.late)
        return Taken(held.numbers, list(held.values.values()), self.take_late(waits=False))

    def take_late(self, *, waits: bool) -> list[tuple[int, dict[str, float]]]:
        """Numbers of earlier steps that have arrived from a device."""
        taken = []
        # The oldest come first; if too many are on their way, the oldest are waited for.
        while self._late and (waits or len(self._late) > MAX_LATE or self._late[0][1].is_ready()):
            step, late = self._late.popleft()
            taken.append((step, late.result()))
        return taken


_listeners: list[weakref.ref[TapListener]] = []
_sources: list[Callable[[], tuple[Mapping[str, float], Numbers | None]]] = []


def listeners() -> list[TapListener]:
    """Everybody who listens now."""
    return [one for one in (reference() for reference in _listeners) if one is not None]


def is_listening() -> bool:
    """Whether anybody listens."""
    return bool(_listeners)


def listen(listener: TapListener) -> None:
    """Pass everything that is tapped from now on to a listener."""
    # Forget what compiled code left in its buffers before.
    listener.discard()
    _listeners.append(weakref.ref(listener, _listeners.remove))


def stop_listening(listener: TapListener) -> None:
    """Pass nothing more to a listener; a second call does nothing."""
    _listeners[:] = [one for one in _listeners if one() is not listener]


def add_source(read: Callable[[], tuple[Mapping[str, float], Numbers | None]]) -> None:
    """Add a buffer that compiled code writes numbers into; `read` returns these and empties the buffer."""
    _sources.append(read)


def read_sources() -> None:
    """Pass what compiled code has left in its buffers to the listeners."""
    for read in _sources:
        numbers, late = read()
        if numbers or late is not None:
            for listener in listeners():
                listener.add_read(numbers, late)


def tap_number(name: str, number: float) -> None:
    """Pass a number that is on the host to the listeners."""
    for listener in listeners():
        listener.receive_number(name, number)


def tap(plugin: str, name: str, value: object, *, is_parameter: bool = False) -> None:
    """Pass a value to the listeners; each copies it if it wants it."""
    for listener in listeners():
        listener.receive(plugin, name, value, is_parameter=is_parameter)


def refuse(plugin: str, reason: str) -> None:
    """Count a value that cannot be tapped."""
    for listener in listeners():
        listener.refuse(plugin, reason)


class Refusals:
    """Counts, for the listeners, what fails in operators; see `guard.Counts`."""

    def count(self, reason: str) -> None:
        """Count a failure, which costs the value that is tapped now."""
        refuse("scalar", reason)

    def fail(self, what: str, error: Exception) -> None:
        """Count an exception."""
        self.count(f"{what}: {type(error).__name__}: {error}")


GUARD = Guard(Refusals)


def tap_again(name: str) -> None:
    """Say that compiled code taps a name several times."""
    for listener in listeners():
        listener.receive_again(name)


# The parent records; a child only runs the model.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_listeners.clear)
