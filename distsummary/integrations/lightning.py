"""A callback for the Trainer of Lightning, and a logger for Trainer and Fabric."""

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    # The older name of the same package.
    from pytorch_lightning import Callback, Trainer
    from pytorch_lightning.loggers import Logger
else:
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.loggers import Logger

from distsummary.integrations.after_import import after_import
from distsummary.integrations.hosted import Hosted


class DistSummaryCallback(Callback):  # type: ignore[misc]  # without types here
    """Records the training of a Trainer, on each of its ranks.

    Example:
        >>> trainer = Trainer(callbacks=[DistSummaryCallback("runs/a")])

    Loss and gradients are those of this rank. What the Trainer passes to its loggers, or would if it had any,
    is recorded as `host/...`, the metrics of a validation as `eval/...`: those of this rank, unless the
    module logs them with sync_dist. Steps count from 1, those of Lightning's loggers from 0.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
        options: further arguments for `ds.init`, such as norms=True.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self._hosted = Hosted(run_dir, options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a run with the first step; a resumed training continues at its step."""
        settings = dict(getattr(trainer.datamodule, "hparams", {})) | dict(pl_module.hparams)
        steps, loop = trainer.global_step, trainer.fit_loop.epoch_loop
        own = getattr(loop, "_batches_that_stepped", None)
        if not pl_module.automatic_optimization and own is not None:
            # The first one counts the steps of all optimizers; Lightning's own does not, but is one behind in
            # a checkpoint that was saved within a batch.
            steps = own + loop.batch_progress.total.processed - loop.batch_progress.total.completed
        self._hosted.begin(optimizers=trainer.optimizers, config=settings or None, initial_step=int(steps))

    def on_logged(self, trainer: Any, metrics: Mapping[str, Any], step: int | None) -> None:
        """Record what the Trainer passes to its loggers, but not of each batch (`step`) of an evaluation."""
        if not (trainer.validating or trainer.testing):
            self._hosted.log(metrics)
        elif step is None:
            self._hosted.evaluated(metrics)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run, which has failed."""
        self._hosted.end(exception)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the run."""
        self._hosted.end()


def _follow_connector(module: Any) -> None:
    """Follow what a Trainer passes the metrics of a step, an epoch or a validation to its loggers by."""
    call = module._LoggerConnector.log_metrics

    @functools.wraps(call)
    def log_metrics(self: Any, metrics: Mapping[str, Any], step: int | None = None) -> None:
        for callback in self.trainer.callbacks:
            if isinstance(callback, DistSummaryCallback):
                callback.on_logged(self.trainer, metrics, step)
        call(self, metrics, step)

    module._LoggerConnector.log_metrics = log_metrics


after_import(f"{Trainer.__module__.rpartition('.')[0]}.connectors.logger_connector", _follow_connector)


class DistSummaryLogger(Logger):  # type: ignore[misc]  # without types here
    """Records the training of a Trainer, or of a loop with Fabric, on each of its ranks.

    Example:
        >>> fabric = Fabric(loggers=DistSummaryLogger("runs/a"))

    Make it before the first step. What is logged is recorded as `host/...`, of each rank its own. A Trainer's
    step and evaluations are known to DistSummaryCallback alone: here a training continues at the step that
    its optimizer counts, or at `initial_step`.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
        options: further arguments for `ds.init`, such as norms=True or initial_step=1000.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__()
        self._hosted = Hosted(run_dir, options)
        self._hosted.begin()

    @property
    def name(self) -> str:
        """Names the directory of checkpoints, with `version`."""
        return "distsummary"

    @property
    def version(self) -> str:
        """Empty: the run dir has the number."""
        return ""

    @property
    def experiment(self) -> Any:
        """The run, None before the first step."""
        return self._hosted.run

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers of this rank at the last step."""
        self._hosted.log(metrics)

    def log_hyperparams(self, params: Any, *args: Any, **named: Any) -> None:
        """Keep settings, which come before the first step, for the run."""
        self._hosted.set_config(params)

    def finalize(self, status: str) -> None:
        """End the run, at the end of a Trainer's training; of a loop with Fabric, the process's end does."""
        self._hosted.end(sys.exception() if status == "failed" else None)
