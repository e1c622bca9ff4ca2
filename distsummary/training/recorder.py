"""Recorder: what a Run needs from the callback that records the user's values; NoRecorder, without one."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.events.overhead import Overhead
from distsummary.format.own_tags import is_own
from distsummary.format.records import Value

NOT_RECORDED = (
    "no callback records values, so they are dropped; use ds.init or callbacks=[ds.SummaryCollector(...)]"
)


def counted(numbers: Iterable[str], values: Iterable[Value]) -> Counter[str]:
    """How many values of each plugin a user gave: not the times that a Run adds to its steps."""
    found = Counter(value.plugin for value in values)
    found["scalar"] += sum(not is_own(tag) for tag in numbers)
    return found


class Identity(NamedTuple):
    """A run's `name`, `id` (empty before its first step), its directory `home` and `config`."""

    name: str
    id: str
    home: Path
    config: Mapping[str, Any]


class Recorder(Protocol):
    """Records the values that a user gives to a Run. A callback names its recorder as `Callback.recorder`.

    At a step before `plain_before`, the recorder does no more than record what was given: a Run then calls
    `record` instead of the step's hooks, if no other callback has hooks for steps. At all other steps, the
    recorder's callback finds the values in its parameters `logged` and `values`.

    Attributes:
        dir: the directory of the run.
        overhead: what recording costs the loop.
        failures: counts the values that the Run drops.
        alert: reports a cause at a step with its evidence and level; see `Recording.alert`.
        define: takes definitions of tags; see `Recording.define`.
        identity: returns what the run is called.
        summary: returns the newest number of each tag.
        gather: called when `run.log` gives a value in a loop that counts no steps. What operators inside of
            the network have tapped so far then belongs to the step of this value, which ends only with the
            next step's first value.
    """

    plain_before: float
    dir: Path
    overhead: Overhead
    failures: Failures
    alert: Callable[[str, int, str, str], None]
    define: Callable[[Mapping[str, object]], None]
    identity: Callable[[], Identity]
    summary: Callable[[], dict[str, float]]
    gather: Callable[[], None]

    def snapshot(self, plugin: str, name: str | None, value: object) -> Value:
        """A checked copy of a value, for `record`; the caller may change the original afterwards.

        Raises InvalidTypeError or InvalidValueError for a value that cannot be recorded.
        """

    def record(self, step: int, numbers: Mapping[str, object], values: Sequence[Value] = ()) -> None:
        """Record numbers by name, and values made by `snapshot`, as one event of a step."""

    def health(self) -> Health:
        """What was recorded, dropped and refused so far."""


class NoRecorder:
    """Stands for the Recorder of a Run whose callbacks record nothing.

    Args:
        plain_before: -inf if there are callbacks, which find the numbers in their parameters; inf if no one
            sees the numbers, so that they are counted as dropped.
        failures: counts the dropped numbers.
    """

    def __init__(self, plain_before: float, failures: Failures) -> None:
        self.plain_before = plain_before
        self._failures = failures

    def record(self, step: int, numbers: Mapping[str, object], values: Sequence[Value] = ()) -> None:
        """Count the numbers that the user gave (not the times of the step) as dropped."""
        if dropped := counted(numbers, ())["scalar"]:
            self._failures.count(NOT_RECORDED, dropped={"scalar": dropped})
