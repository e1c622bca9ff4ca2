"""Taps: what a collector takes from the operators inside of a network, and at which steps."""

import zlib
from collections.abc import Callable, Mapping, Sequence

from distsummary.base.failures import Failures
from distsummary.collect.values import operators
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.records import Value
from distsummary.rundir.deal import Group, Steps
from distsummary.training.callbacks import CallbackParams, number_of


class Taps:
    """Adds to a step's values those that operators have tapped in it.

    Numbers are recorded at every step, as those that a loop logs; images and histograms at the steps of
    `regular`, tensors at those of `tensors`. All ranks record what they tap, as it differs on them; of a
    parameter, which is equal on the ranks of `group`, only one does. Which one follows from the name: it
    is not known beforehand what is tapped.

    Args:
        snapshot: see `operators.TapListener`. failures: counts what cannot be recorded.
        deal: who records a parameter; see `Parameters`.
        compatibility: with its `steps`, numbers, too, are only recorded at those of `regular`; so they are
            in the loops of `Model`, where `loss/auto` is.

    Attributes:
        listener: receives what is tapped.
        tensors: when tensors are due. group: the ranks that divide the parameters that are tapped.
    """

    def __init__(
        self,
        snapshot: Callable[[str, str, object], Value],
        failures: Failures,
        *,
        regular: Steps,
        tensors: Steps,
        deal: str,
        compatibility: Compatibility = OURS,
    ) -> None:
        self.tensors, self.group = tensors, Group()
        self._regular, self._deal, self._compatibility = regular, deal, compatibility
        self._params: CallbackParams | None = None
        self._record: Callable[..., None] | None = None
        self._last: int | None = None  # the newest step (in sink mode, epoch) that was recorded
        self._stride = 1  # the steps between the newest two
        self._failures = failures
        self.listener = operators.TapListener(snapshot, lambda: failures, self._wants, says_repeats=True)
        operators.listen(self.listener)

    def begin(self, params: CallbackParams, record: Callable[..., None]) -> None:
        """Begin a training: forget what was tapped before, and pass on values to `record`."""
        self._params, self._record = params, record
        # If `run.log` begins the training, its first step was tapped before and must be kept.
        if not self.listener.is_gathered:
            self.listener.discard()

    def after(self, last: int) -> float:
        """The first step after `last` at which something that is tapped is due."""
        return min(self._regular.after(last), self.tensors.after(last))

    def record(
        self,
        step: int,
        numbers: Mapping[str, object],
        values: Sequence[Value] = (),
        *,
        number: int | None = None,
    ) -> None:
        """Record a step's values, and what was tapped in it; a value that was given goes before a tapped one.

        The tapped numbers are added to `numbers`, where the run looks for NaN.

        Args:
            number: what the plan counts: the step, or the epoch in sink mode.
        """
        record = self._record
        assert record is not None
        if self.listener.has_received():
            due = step if number is None else number
            joined = self._failures.call("operators", self._with_tapped, step, due, numbers, values)
            numbers, values = joined or (numbers, values)
        record(step, numbers, values)

    def _with_tapped(
        self, step: int, due: int, numbers: Mapping[str, object], values: Sequence[Value]
    ) -> tuple[Mapping[str, object], Sequence[Value]]:
        """The values of a step with what was tapped in it; numbers of earlier steps are recorded."""
        taken = self.listener.take(step)
        for earlier, arrived in taken.earlier:
            if self._record is not None:
                self._record(earlier, arrived)
        if taken.numbers and self._takes_numbers(due):
            # A dict is changed in place, because the run looks for NaN in it.
            joined = numbers if isinstance(numbers, dict) else dict(numbers)
            for name, value in taken.numbers.items():
                joined.setdefault(name, value)
            numbers = joined
        given = {(value.plugin, value.tag) for value in values}
        tapped = [
            value
            for value in taken.values
            if (value.plugin, value.tag) not in given and self._is_due(value.plugin, due)
        ]
        self._last, self._stride = due, max(1, due - (self._last or 0))
        return numbers, [*values, *tapped] if tapped else values

    def _takes_numbers(self, number: int) -> bool:
        is_of_model = self._params is not None and self._params.get("is_model", False)
        return not (self._compatibility.steps or is_of_model) or self._regular.due(self._last, number)

    def _is_due(self, plugin: str, number: int) -> bool:
        if plugin == "scalar":
            return self._takes_numbers(number)
        return (self.tensors if plugin == "tensor" else self._regular).due(self._last, number)

    def _wants(self, plugin: str, name: str, is_parameter: bool) -> bool:
        """Whether a value that is tapped now is due, and this rank's to record."""
        number = self._now()
        if not self._is_due(plugin, number):
            return False
        if not is_parameter or self._deal == "all":
            return True
        if self._deal == "steps":
            return (self.tensors if plugin == "tensor" else self._regular).turn(number, self.group)
        # A checksum, because Python's hash of a text differs between processes.
        return zlib.crc32(name.encode(errors="replace")) % self.group.size == self.group.index

    def _now(self) -> int:
        """The step that is tapped now. If `run.log` makes the steps, it has not begun yet."""
        params = self._params or CallbackParams()
        now = max(number_of(params), (self._last or 0) + self._stride)
        return now + self._stride if self.listener.is_gathered else now

    def close(self) -> None:
        """Listen no more; record the numbers that were still on a device."""
        operators.stop_listening(self.listener)
        for step, numbers in self.listener.take_late(waits=True):
            if self._record is not None:
                self._record(step, numbers)
