"""A callback for the Trainer of Lightning, and a logger for Trainer and Fabric."""

import os
import sys
from collections.abc import Mapping
from typing import Any

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback  # the older name of the same package
    from pytorch_lightning.loggers import Logger
else:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger

from distsummary.integrations.hosted import Hosted


class DistSummaryCallback(Callback):  # type: ignore[misc]  # without types here
    """Records the training of a Trainer, on each of its ranks.

    Example:
        >>> trainer = Trainer(callbacks=[DistSummaryCallback("runs/a")])

    Loss and gradients are those of this rank. What the module logs is recorded as `host/...` where the
    Trainer logs it, the metrics of a validation as `eval/...`.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
        options: further arguments for `ds.init`, such as norms=True.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self._hosted = Hosted(run_dir, options)
        self._before: dict[str, float] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a run with the first step; a resumed training continues at its step."""
        self._hosted.begin(
            optimizers=trainer.optimizers,
            config=dict(pl_module.hparams) or None,
            initial_step=trainer.fit_loop.epoch_loop._batches_that_stepped,
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        """Record what the module has logged, as often as the Trainer passes it to its loggers."""
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._hosted.log(trainer.logged_metrics)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Note the metrics so far, which stay with those of the validation."""
        self._before = {name: float(number) for name, number in trainer.callback_metrics.items()}

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the metrics of a validation, but not of the sanity check."""
        if not trainer.sanity_checking:
            now = {name: float(number) for name, number in trainer.callback_metrics.items()}
            self._hosted.evaluated({k: v for k, v in now.items() if self._before.get(k) != v})

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run, which has failed."""
        self._hosted.end(exception)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the run."""
        self._hosted.end()


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
