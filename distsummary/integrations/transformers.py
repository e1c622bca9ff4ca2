"""A callback for the Trainer of transformers, and of what is built on it, such as TRL."""

import os
from typing import Any

from transformers import TrainerCallback

from distsummary.integrations.after_import import after_import
from distsummary.integrations.hosted import Hosted

EVALUATED = "eval_"  # how the Trainer's names of metrics begin


class DistSummaryCallback(TrainerCallback):  # type: ignore[misc]  # without types here
    """Records the training of a Trainer, on each of its ranks.

    Example:
        >>> trainer = Trainer(model, args, train_dataset=data, callbacks=[DistSummaryCallback("runs/a")])

    Importing this module also makes `TrainingArguments(report_to="distsummary")` work.

    Loss and gradients are those of this rank, before the Trainer takes means over ranks and steps and
    replaces a NaN. What the Trainer logs is recorded as `host/...`, an evaluation as `eval/...`.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
        options: further arguments for `ds.init`, such as norms=True.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self._hosted = Hosted(run_dir, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin a run with the first step; a resumed training continues at its step."""
        optimizer = given.get("optimizer")
        # The optimizer may be in Accelerate's wrapper.
        inner = getattr(optimizer, "optimizer", optimizer)
        self._hosted.begin(
            optimizers=[] if inner is None else [inner],
            config=args.to_sanitized_dict(),
            initial_step=state.global_step,
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        """Record what the Trainer logs of the training."""
        logs = logs or {}
        # The metrics of an evaluation come by `on_evaluate`, too.
        if not any(name.startswith(EVALUATED) for name in logs):
            self._hosted.log(logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **given: Any) -> None:
        """Record the metrics of an evaluation."""
        self._hosted.evaluated({k.removeprefix(EVALUATED): v for k, v in (metrics or {}).items()})

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """End the run; after an exception the Trainer does not call this, and the process's end does."""
        self._hosted.end()


class DefaultCallback(DistSummaryCallback):
    """What each Trainer has under DISTSUMMARY; it has its class since a Trainer warns of two of one class."""


after_import(
    "transformers.integrations.integration_utils",
    lambda module: module.INTEGRATION_TO_CALLBACK.update(distsummary=DistSummaryCallback),
)
