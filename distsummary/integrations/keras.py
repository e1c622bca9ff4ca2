"""A callback for Keras on torch, whose optimizers are none of torch's."""

import os
from typing import Any

from keras.callbacks import Callback

from distsummary.integrations.hosted import Hosted


class DistSummaryCallback(Callback):  # type: ignore[misc]  # without types here
    """Records what `Model.fit` trains, with the backend torch, on each of its ranks.

    Example:
        >>> model.fit(x, y, callbacks=[DistSummaryCallback("runs/a")])

    Loss and gradients are those of each batch and this rank. What Keras reports at the end of an epoch, means
    over the epoch, is recorded as `host/...`, an evaluation as `eval/...`.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
        options: further arguments for `ds.init`, such as norms=True.
    """

    # No batch waits for the numbers that Keras would hand over.
    async_safe = True

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__()
        self._hosted = Hosted(run_dir, options)
        self._optimizer: _Optimizer | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin a run with the first step; a resumed training continues at its step."""
        self._optimizer = _Optimizer(self.model)
        optimizer = self.model.optimizer
        self._hosted.begin(
            optimizer=optimizer, config=dict(self.params), initial_step=int(optimizer.iterations)
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record a step."""
        self._hosted.step(self._optimizer)

    def on_test_end(self, logs: Any = None) -> None:
        """Record the metrics of an evaluation."""
        self._hosted.evaluated(logs or {})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record what Keras reports of the training."""
        self._hosted.log({k: v for k, v in (logs or {}).items() if not k.startswith("val_")})

    def on_train_end(self, logs: Any = None) -> None:
        """End the run; after an exception Keras does not call this, and the process's end does."""
        self._hosted.end()


class _Optimizer:
    """The optimizer of a Keras model, as far as a door asks one of torch's."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.state: dict[Any, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group: all trainable parameters, and the learning rate."""
        parameters = [variable.value for variable in self._model.trainable_variables]
        return [{"params": parameters, "lr": float(self._model.optimizer.learning_rate)}]
