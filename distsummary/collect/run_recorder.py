"""RunRecorder: takes the values that a user gives to a Run, for the SummaryCollector."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.collect.values.checked_values import checked_value
from distsummary.errors import InvalidValueError
from distsummary.events.overhead import Overhead
from distsummary.format.records import MINDSPORE, Value
from distsummary.training.recorder import Identity

ONLY_MINDSPORE = ("tensor", "landscape")  # TensorBoard's files have no place for these plugins


class RunRecorder:
    """The `training.recorder.Recorder` of a SummaryCollector, which sets its attributes.

    `record`, `health` and `gather` are attributes so that a step makes as few calls as possible.

    Args:
        path: the directory of the run.
        formats: the dialects of the run's files.
        exports: whether tensors are also exported; see `checked_value`.
        health: returns the collector's counters.
        record: takes values while no session is open.
        alert: reports a cause at a step with its evidence and level.
        define: takes definitions, see `Run.define`.
        identity: returns what the run is called. summary: returns the newest numbers by tag.
        failures: counts the values that the Run drops.

    Attributes:
        overhead: what recording costs.
    """

    def __init__(
        self,
        path: Path,
        *,
        formats: Sequence[str],
        exports: bool,
        health: Callable[[], Health],
        record: Callable[..., None],
        alert: Callable[[str, int, str, str], None],
        define: Callable[[Mapping[str, object]], None],
        identity: Callable[[], Identity],
        summary: Callable[[], dict[str, float]],
        failures: Failures,
    ) -> None:
        self.dir = path
        self.plain_before = -math.inf
        self.record, self.health, self.failures = record, health, failures
        self.gather: Callable[[], None] = lambda: None
        self.alert, self.define = alert, define
        self.identity, self.summary = identity, summary
        self.overhead = Overhead()
        self._formats, self._exports = formats, exports

    def snapshot(self, plugin: str, name: str | None, value: object) -> Value:
        """A checked copy of a value; see `checked_value`.

        Also raises InvalidValueError if none of the run's files could hold it.
        """
        is_exported = self._exports and plugin == "tensor"
        if plugin in ONLY_MINDSPORE and MINDSPORE not in self._formats and not is_exported:
            raise InvalidValueError(
                f"the {plugin} {name!r} has no place in the files of TensorBoard; add {MINDSPORE!r} to "
                f"formats=, got {list(self._formats)}"
            )
        with self.overhead.measured():
            return checked_value(plugin, name, value, exports=self._exports)
