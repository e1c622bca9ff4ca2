"""The kinds of values that a collector itself adds to a training's steps, each due at steps of its own."""

import math
from typing import ClassVar

from distsummary.base.failures import Failures
from distsummary.collect.values.step_values import (
    Parameters,
    image_values,
    learning_rate_values,
    loss_values,
    unless_logged,
)
from distsummary.format.compatibility import Compatibility
from distsummary.format.records import Value
from distsummary.rundir.deal import Group, Share, Steps
from distsummary.training.callbacks import CallbackParams
from distsummary.training.step_context import ENDED_LATE, StepContext


class Source:
    """A kind of values. Steps before the `at` of every source are plain: nothing is computed at them.

    A source overrides `values`, and of the other methods those that it needs. `what` names the values, also
    in the message about a failure. `steps` says when they are due, as long as the source `is_active`.
    """

    what: str
    steps: Steps
    is_active = True
    at: float = -math.inf  # the next due step; before the first step -inf, if none is due any more inf

    def begin(self, params: CallbackParams) -> None:
        """Called when a step begins that is not plain."""

    def deal_among(self, group: Group) -> None:
        """From now on, the ranks of `group` divide what is equal on them."""

    def share(self, step: int) -> Share | None:
        """This rank's share of what is dealt, from a step on; None: nothing that has a name is."""
        return None

    def close(self) -> None:
        """Release the model; called when the training is over, and more than once."""

    def plan(self, last: int) -> None:
        """Set `at` to the first due step after `last`."""
        self.at = self.steps.after(last) if self.is_active else math.inf

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """The values of a step at which they are due. What it raises is counted, and the step continues.

        If `context.ended_late`, the model may have changed since the step: do not read it.
        """
        raise NotImplementedError


class LossSource(Source):
    """The loss in the loop's outputs as `loss/auto`, unless the loop logged it.

    Outputs that hold no loss are counted. A `Run` passes no outputs, but with `Compatibility.steps` a logged
    `loss` is recorded as `loss/auto` too.
    """

    what = "loss"

    def __init__(self, steps: Steps, failures: Failures, *, compatibility: Compatibility) -> None:
        self.steps = steps
        self._failures, self._compatibility = failures, compatibility

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`."""
        outputs = params.get("net_outputs")
        # A Run whose user logs no loss has nothing to record, nor has a loop that knows no outputs.
        if outputs is None and (context.topology is not None or "net_outputs" not in params):
            return []
        if "loss" in context.logged and not self._compatibility.steps:
            return []
        try:
            return loss_values(outputs)
        except Exception:
            self._failures.health.drop("scalar")
            raise


class LearningRate(Source):
    """The learning rate as `learning_rate/auto`, unless the loop logged it."""

    what = "learning rate"

    def __init__(self, steps: Steps, failures: Failures) -> None:
        self.steps = steps
        self._failures = failures
        self.is_active = False
        self._rate: list[Value] = []

    def begin(self, params: CallbackParams) -> None:
        """See `Source`: keep the rate now, as a scheduler may set the next one before the step ends."""
        self.is_active = params.get("optimizer") is not None
        if self.is_active:
            self._rate = self._failures.call(self.what, learning_rate_values, params) or []

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`."""
        return unless_logged(self._rate, context.logged) if self._rate else []


class Images(Source):
    """The first images of the batch, until a batch holds none."""

    what = "input_data"

    def __init__(self, steps: Steps, *, compatibility: Compatibility) -> None:
        self.steps = steps
        self._compatibility = compatibility

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`."""
        if not self.is_active:
            return []
        # If it raises, no later batch is tried either.
        self.is_active = False
        images = image_values(params.get("train_dataset_element"), compatibility=self._compatibility)
        self.is_active = bool(images)
        return images


class WatchedParameters(Source):
    """Parameters of the model, recorded as histograms or whole.

    Args:
        plugin: "histogram" or "tensor".
        steps: when they are due; the collector may change the attribute.

    `parameters` is None until there is a model, or if none of its parameters are to be recorded.
    """

    PLURAL: ClassVar = {"histogram": "histograms", "tensor": "tensors"}

    def __init__(self, plugin: str, steps: Steps, failures: Failures) -> None:
        self.what = self.PLURAL[plugin]
        self.steps = steps
        self.parameters: Parameters | None = None
        self._plugin, self._failures = plugin, failures

    def deal_among(self, group: Group) -> None:
        """See `Source`."""
        if self.parameters is not None:
            self.parameters.deal_among(group)

    def share(self, step: int) -> Share | None:
        """See `Source`."""
        if self.parameters is None:
            return None
        return self.parameters.share(self._plugin, self.steps, step, self._failures)

    def plan(self, last: int) -> None:
        """See `Source`."""
        self.at = math.inf if self.parameters is None else self.steps.after(last)

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`; counted as dropped if the step's end was seen too late."""
        found, failures = self.parameters, self._failures
        if found is None:
            return []
        values: list[Value] = []
        if not context.ended_late:
            values = found.values(self._plugin, self.steps, step, failures)
        elif due := found.due(self.steps, step, failures):
            failures.count(ENDED_LATE, dropped={self._plugin: len(due)})
        return values
