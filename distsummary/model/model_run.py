"""ModelRun: the Run that Model drives; in sink mode, several steps pass between two calls of the hooks."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from distsummary.errors import InvalidValueError
from distsummary.training.recorder import NoRecorder, Recorder
from distsummary.training.run import Run


class ModelRun(Run):
    """A Run that knows the data set and its mode before the first step.

    Args:
        dataset: what callbacks find as `train_dataset`.
        batch_num: the steps of an epoch, 0 if unknown.
        sink_size: None: hooks are called at every step. Otherwise sink mode: the steps of an epoch, after
            which the hooks are called once; -1 for the whole data set.
        manager: the loss scale manager, for callbacks.
        skipped: how many steps of the first epoch were done before this training.
        others: arguments of Run.
    """

    def __init__(
        self,
        *,
        dataset: Any = None,
        batch_num: int = 0,
        sink_size: int | None = None,
        manager: Any = None,
        skipped: int = 0,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self._dataset, self._batch_num, self._skipped = dataset, batch_num, skipped
        self._params |= {
            # Values tapped in the network are recorded at the same steps as the loss.
            "is_model": True,
            "dataset_sink_mode": sink_size is not None,
            "loss_scale_mananger": manager,
            "batch_num": batch_num,
            "train_dataset": dataset,
        }
        if sink_size is not None:
            self._params["sink_size"] = sink_size

    @property
    def initial_step(self) -> int:
        """How many steps were done before this training."""
        return self._initial_step

    def sunk(self, batches: Iterable[Any], size: int) -> Iterator[Any]:
        """Yield an epoch's batches in sink mode, `size` or (-1) all, and count each as a step.

        To be used inside of `steps([None])`, which has begun the first of these steps. `zz_perf/step_ms` and
        `zz_perf/data_wait_ms` are then the times of all steps of the epoch together.
        """
        params, clock = self._params, self._clock
        source, count = iter(batches), 0
        while count != size:
            asked_s = clock()
            # The iterator itself marks its end, as no batch can be that iterator.
            batch = next(source, source)
            waited_s = clock() - asked_s
            # Waiting for data does not belong to the body of the step, whose start moves by as much.
            self._data_wait_s += waited_s
            self._body_start_s += waited_s
            if batch is source:
                if not count:
                    raise InvalidValueError("train_dataset gave no batches; check the data")
                return
            # `steps([None])` has counted the first step already.
            if count:
                params["cur_step_num"] += 1
            count += 1
            params["train_dataset_element"] = batch
            yield batch

    def _begin_epoch(self, loader: object, steps: int = 0, *, done: int = 0) -> None:
        # Only the first epoch of a resumed training has steps that were done before.
        done, self._skipped = self._skipped, 0
        super()._begin_epoch(self._dataset, self._batch_num, done=done)

    def _recorder_of_steps(self) -> Recorder | NoRecorder:
        # Without an optimizer there is no learning rate, and a collector plans loss/auto only with one.
        if self._params["optimizer"] is None:
            return NoRecorder(-math.inf, self._own_failures)
        return super()._recorder_of_steps()
