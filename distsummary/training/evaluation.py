"""One evaluation of a run: its own steps and parameters, and the metrics that it logs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from distsummary.errors import ClosedError
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import (
    Batches,
    CallbackList,
    CallbackParams,
    RunContext,
    common_params,
    length,
)
from distsummary.training.step_context import StepContext
from distsummary.training.values import Scalar, check_named, resolve

OF_TRAINING = ("metrics", "eval_results", "eval_network", "valid_dataset")  # shown by the training, too


def evaluation_params(
    dataset: Iterable[Any] | None, *, callbacks: CallbackList, topology: Topology, train: CallbackParams
) -> CallbackParams:
    """What callbacks see when an evaluation begins.

    Args:
        dataset: the data on which the model is evaluated, if known beforehand.
        train: the parameters of the training that the evaluation belongs to.
    """
    # As in MindSpore, a callback also finds what it knows of the training: the optimizer, for example.
    hidden = ("step_in_epoch", "eval_results")
    of_training = {name: value for name, value in train.items() if name not in hidden}
    return CallbackParams(
        of_training | common_params(callbacks.callbacks, train.network, topology),
        mode="eval",
        cur_step_num=0,
        cur_epoch_num=train.cur_epoch_num,
        global_step=train.cur_step_num,
        eval_network=train.network,
        eval_dataset_element=None,
        valid_dataset=dataset,
        metrics={},
        batch_num=0 if dataset is None else length(dataset),
    )


class EvaluationRun:
    """One evaluation, made by `Run.eval`.

    Args:
        call: takes the name of a hook and a context, and calls that hook of all callbacks.
        numbers: checks and converts a mapping of names to metrics; None if that failed, and was counted.
        step: what the run shares with its callbacks.

    Attributes:
        params: what callbacks see of this evaluation.
    """

    def __init__(
        self,
        call: Callable[[str, RunContext], None],
        numbers: Callable[[Mapping[str, object]], dict[str, Scalar] | None],
        step: StepContext,
    ) -> None:
        self._call, self._numbers = call, numbers
        self.logged: dict[str, Scalar] = {}
        self._is_over = False
        self.metrics: dict[str, float] = {}
        self.eval_loss: dict[str, float] = {}
        self.loss: float | None = None  # shown as `eval_loss`; None: a metric named loss is
        self.params = CallbackParams(mode="eval", cur_step_num=0, metrics={})
        self._context = RunContext(self.params)
        self._context.step = step

    def log(self, values: Mapping[str, object] | None = None, /, **named: object) -> None:
        """Log metrics by name, like `Run.log`; raises ClosedError after the evaluation's `with` block."""
        if self._is_over:
            raise ClosedError("the evaluation is over; log inside its `with run.eval()` block")
        given = {} if values is None else check_named("evaluation.log", values)
        self.logged |= self._numbers({**given, **named}) or {}

    def steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterate over the batches of a loader, one step each, until a callback has requested a stop."""
        return Batches(self._steps(loader), loader)

    def _steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        params, context = self.params, self._context
        params |= {"valid_dataset": loader, "batch_num": length(loader)}
        for batch in loader:
            params["cur_step_num"] += 1
            params["eval_dataset_element"] = batch
            self._call("on_eval_step_begin", context)
            yield batch
            self._call("on_eval_step_end", context)
            if context.is_stop_requested:
                break

    def settle(self) -> dict[str, Any]:
        """Wait until the metrics are known; returns what the training's callbacks find of this evaluation."""
        self._is_over = True
        self.metrics = {name: resolve(value) for name, value in self.logged.items()}
        loss = self.metrics.get("loss", self.metrics.get("Loss")) if self.loss is None else self.loss
        self.eval_loss = {} if loss is None else {"eval_loss": loss}
        self.params |= {"metrics": self.metrics, "eval_results": self.metrics | self.eval_loss}
        return {name: self.params[name] for name in OF_TRAINING}

    def call(self, *hooks: str) -> None:
        """Call hooks with this evaluation's own context."""
        for hook in hooks:
            self._call(hook, self._context)
