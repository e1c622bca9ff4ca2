"""RunRecorder: takes the values that a user gives to a Run, for the SummaryCollector."""

import math
from collections.abc import Callable
from pathlib import Path

from distsummary.collect.checked_values import checked_value
from distsummary.format.records import Health, Value
from distsummary.writing.health import Failures


class RunRecorder:
    """The `training.recorder.Recorder` of a SummaryCollector, which sets its attributes.

    `record` and `health` are attributes so that a step makes as few calls as possible: while a session is
    open, `record` is that of the session.

    Args:
        path: the directory of the run.
        exports: whether tensors are also exported; see `checked_value`.
        health: returns the collector's counters.
        record: takes values while no session is open.
        failures: counts the values that the Run drops.
    """

    def __init__(
        self,
        path: Path,
        *,
        exports: bool,
        health: Callable[[], Health],
        record: Callable[..., None],
        failures: Failures,
    ) -> None:
        self.dir = path
        self.plain_before = -math.inf
        self.record, self.health, self.failures = record, health, failures
        self._exports = exports

    def snapshot(self, plugin: str, name: str | None, value: object) -> Value:
        """A checked copy of a value; see `checked_value`."""
        return checked_value(plugin, name, value, exports=self._exports)
