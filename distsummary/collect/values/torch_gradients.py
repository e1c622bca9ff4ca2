"""Histograms of the gradients of a torch model, as its optimizers see them."""

from typing import Any

from distsummary.base.failures import Failures
from distsummary.base.guard import guarded_log
from distsummary.collect.values.checked_values import checked_copy
from distsummary.collect.values.sources import Source
from distsummary.collect.values.step_values import Parameters
from distsummary.diagnosis.verdict import UNRECORDED
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.own_tags import GRADIENT_TAGS
from distsummary.format.records import Shard, Value
from distsummary.frameworks.base import framework_of
from distsummary.frameworks.torch_optimizer import OptimizerSteps, as_seen
from distsummary.rundir.deal import Group, Share, Steps
from distsummary.training.callbacks import CallbackParams, number_of
from distsummary.training.step_context import ENDED_LATE, StepContext
from distsummary.training.timing.phases import RECORDING

logger = guarded_log(__name__)

SKIPPED = (
    "gradients are due, but the optimizer skips its step, since GradScaler found some that are not finite; "
    "they are recorded at the next step that it makes"
)
NO_STEP = (
    "gradients are due, but up to the next time they are due no torch optimizer that holds parameters of the "
    "model has made a step: those of this time are dropped; pass the model that is trained as watch=, or "
    "record gradients by run.histogram"
)


class Gradients(Source):
    """Copies gradients before a step of an optimizer.

    Each parameter's gradient is recorded under its name after GRADIENT_TAGS: after what the loop did to it
    (accumulation, unscaling, clipping), before the optimizer uses it. Of several steps of the optimizer
    within a step of the training, the first counts. If the optimizer makes no step when gradients are due, as
    while the loop accumulates them or if GradScaler skips the step, they are recorded at the next step that
    it makes. A parameter without a gradient records nothing. Of a sparse gradient, the values of the rows
    that it has are recorded.

    Args:
        parameters: which parameters, and which of them this rank records.
        steps: when gradients are due; the collector may change the attribute.
        params: the parameters of the training, which have its current step.
        context: of the run, whose phases count the time that this takes as that of recording.
        failures: counts what went wrong.
    """

    what = "gradients"

    def __init__(
        self,
        parameters: Parameters,
        network: Any,
        steps: Steps,
        failures: Failures,
        params: CallbackParams,
        context: StepContext,
        *,
        compatibility: Compatibility = OURS,
    ) -> None:
        self.steps = steps
        self.parameters = parameters
        self._framework = framework_of(network)
        self._failures, self._params, self._context = failures, params, context
        self._compatibility = compatibility
        # What this rank records when gradients are due, by name; None: not looked up for this step yet.
        self._due: dict[str, tuple[Any, Shard | None]] | None = None
        self._taken: dict[str, Value | None] = {}  # what the optimizers of this step were seen to have
        self._has_stepped = False  # while gradients were due
        self._waits_since: int | None = None  # the due step at which no optimizer made a step
        # An exception would reach the optimizer's step: `values` raises what was counted, if so configured.
        self._in_hook = Failures(failures.health, logger)
        self._moments = OptimizerSteps(
            network, before=self._take, is_due=self._is_due, failures=self._in_hook
        )

    def begin(self, params: CallbackParams) -> None:
        """See `Source`: look up what is due now, as FSDP2 replaces parameters while it computes."""
        self._due = None
        if self._is_due():
            self._due = self._look_up()

    def deal_among(self, group: Group) -> None:
        """See `Source`."""
        self.parameters.deal_among(group)

    def share(self, step: int) -> Share | None:
        """See `Source`."""
        return self.parameters.share("gradient", self.steps, step, self._failures)

    def plan(self, last: int) -> None:
        """See `Source`."""
        self.at = self.steps.after(last) if self._waits_since is None else last + 1

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`; counted as dropped if the step's end was seen too late."""
        found = [value for value in self._taken.values() if value is not None]
        has_stepped, self._has_stepped = self._has_stepped, False
        self._taken = {}
        if context.ended_late:
            if found:
                self._failures.count(ENDED_LATE, dropped={"histogram": len(found)})
            found = []
        elif not has_stepped and self._has_any():
            self._wait(step)
        if has_stepped:
            self._waits_since = None
        # What the hooks counted is raised here, outside of the optimizer's step.
        reason, self._in_hook.last = self._in_hook.last, None
        self._failures.last = reason or self._failures.last
        self._failures.raise_last()
        return found

    def close(self) -> None:
        """Look at no further step of an optimizer."""
        self._moments.close()

    def _is_due(self) -> bool:
        return number_of(self._params) >= self.at

    def _look_up(self) -> dict[str, tuple[Any, Shard | None]]:
        due = self.parameters.due(self.steps, max(number_of(self._params), 1), self._in_hook)
        return {name: (tensor, shard) for name, tensor, shard in due}

    def _has_any(self) -> bool:
        """Whether any gradient of any rank is due: all may be frozen, which was reported."""
        if self._due is None:
            self._due = self._look_up()
        return not self.parameters.is_empty

    def _wait(self, step: int) -> None:
        """Gradients stay due; those of the time before are lost when the next time comes."""
        if self._waits_since is None:
            self._waits_since = step
        elif step >= self.steps.after(self._waits_since):
            self._waits_since = step
            self._failures.count(NO_STEP, dropped={"histogram": len(self._due or ())})
            self._context.report_finding(UNRECORDED, f"no gradients: {NO_STEP}")

    def _take(self) -> None:
        """Copy the gradients that are due of an optimizer that is about to step."""
        step = self._moments.current
        with self._context.within(RECORDING):
            if step.is_skipped():
                self._in_hook.count(SKIPPED)
                return
            if self._due is None:
                self._due = self._look_up()
            self._has_stepped = True
            for name in step.names:
                if name in self._due and name not in self._taken:
                    self._taken[name] = self._in_hook.call(
                        f"gradient of {name}", self._value, name, *self._due[name], step.scale
                    )

    def _value(self, name: str, parameter: Any, shard: Shard | None, scale: Any) -> Value | None:
        if parameter.grad is None:
            return None
        gradient, tag = as_seen(parameter.grad, scale), GRADIENT_TAGS + name
        # A gradient may be split in another way than its parameter.
        if shard is not None:
            shard = self._framework.shard(gradient)
        data = checked_copy("histogram", tag, gradient, compatibility=self._compatibility)
        return Value("histogram", tag, data, shard)
