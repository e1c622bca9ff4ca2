"""Run: counts and measures the steps of a training loop that the user writes, and drives callbacks."""

import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from distsummary.checks import check_int, check_type
from distsummary.errors import ClosedError, InvalidTypeError, InvalidValueError
from distsummary.topology import Topology, detect
from distsummary.training.callbacks import (
    Callback,
    CallbackList,
    CallbackParams,
    NoRecorder,
    RunContext,
    common_params,
    length,
)
from distsummary.training.evaluation import EvaluationRun
from distsummary.training.values import Scalar, scalars

logger = logging.getLogger(__name__)

STEP_S = "perf/step_s"
DATA_WAIT_S = "perf/data_wait_s"
NOTHING: dict[str, Scalar] = {}  # the logged values of a step that has none yet; never written to


class Run:
    """Drives callbacks from the user's own loop; `close`, or the end of the `with` block, ends the training.

    Example:

        >>> for epoch in run.epochs(3):
        ...     for x, y in run.steps(loader):
        ...         loss = train_step(x, y)
        ...         run.log(loss=loss, lr=0.1)
        ...     with run.eval() as evaluation:
        ...         evaluation.log(accuracy=accuracy(model))
        >>> run.close()

    Every step also logs `perf/step_s`, the seconds from requesting its batch to the end of its body, and
    `perf/data_wait_s`, the part of them spent in the loader; neither includes callbacks or evaluations. After
    `break` the last step counts if it has logged something. If an exception leaves the `with` block, or a
    hook raises, the callbacks are exited as context managers, without `on_train_end`. In a forked child
    process, closing or leaving the run calls no callback.

    Args:
        callbacks: one, several or None.
        network, optimizer, loss_fn: passed on to the callbacks.
        topology: the place of this rank; by default found as `ds.init` finds it.
        epochs: the number that callbacks see when the loop does not use `epochs()`.
        initial_step, initial_epoch: where a resumed training continues, >= 0.
        clock: seconds, for the measurements.

    Raises InvalidTypeError or InvalidValueError for bad arguments.
    """

    def __init__(
        self,
        *,
        callbacks: Callback | Sequence[Callback] | None = None,
        network: object = None,
        optimizer: object = None,
        loss_fn: object = None,
        topology: Topology | None = None,
        epochs: int = 1,
        initial_step: int = 0,
        initial_epoch: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_int("epochs", epochs, low=1)
        check_int("initial_step", initial_step, low=0)
        check_int("initial_epoch", initial_epoch, low=0)
        check_type("topology", topology, Topology, optional=True)
        self.topology = detect() if topology is None else topology
        self._callbacks = CallbackList(callbacks)
        self._params = CallbackParams(
            common_params(self._callbacks, network, self.topology),
            mode="train", epoch_num=epochs, cur_epoch_num=initial_epoch, cur_step_num=initial_step,
            initial_step=initial_step, step_in_epoch=0, optimizer=optimizer, loss_fn=loss_fn,
            train_network=network, train_dataset=None, train_dataset_element=None,
            loss_scale_mananger=None, last_save_ckpt_step=None, latest_ckpt_file=None,
        )  # fmt: skip
        self._context = RunContext(self._params)
        self._clock = clock
        self._steps_before_epoch = initial_step
        self._logged = NOTHING
        self._known_names: set[str] = set()  # names that have been checked
        self._data_wait_s = self._body_start_s = 0.0
        self._is_entered = self._is_training = self._is_epoch_begun = self._is_step_open = False
        self._in_epochs = self._is_guarded = self._is_closed = False
        self._pid = os.getpid()

    @property
    def rank(self) -> int:
        """Which of the run's ranks this process is."""
        return self.topology.rank

    @property
    def step(self) -> int:
        """The current step as it is recorded: counted from 1 over all epochs, 0 before the first."""
        return int(self._params.cur_step_num)

    @property
    def epoch(self) -> int:
        """The current epoch as callbacks see it: counted from 1, 0 before the first."""
        return int(self._params.cur_epoch_num)

    @property
    def context(self) -> RunContext:
        """What the training's hooks are called with."""
        return self._context

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs of the training, counted from 0 like `range(count)`; a resumed run continues.

        `count` is the total of the whole training: a second phase passes more than the first one did.
        """
        check_int("count", count, low=1)
        self._require_open()
        if self.epoch >= count:
            logger.warning("epochs(%d): epoch %d is done already, nothing is left to do", count, self.epoch)
        self._params.epoch_num = count
        return self._epochs(count)

    def _epochs(self, count: int) -> Iterator[int]:
        while True:
            self._settle_epoch()
            if self._is_closed or self.epoch >= count or self._context.get_stop_requested():
                break
            self._in_epochs = True
            self._params.cur_epoch_num += 1
            yield self.epoch - 1
        self._in_epochs = False

    def steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of a loader, each one step; outside `epochs()` one call is one epoch."""
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise InvalidTypeError(f"loader must be iterable, got {type(loader).__name__}; pass the batches")
        self._require_open()
        self._begin_epoch(loader)
        return self._steps(loader)

    def _steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Between two batches: end the step, wait for the next batch, and begin its step.

        Does not rely on being closed: after `break` the interpreter decides when a generator is closed.
        """
        clock, params, context = self._clock, self._params, self._context
        at_steps = self._callbacks.at_steps
        recorder = at_steps[0].plain_step_recorder if len(at_steps) == 1 else NoRecorder()
        batches: Iterator[Any] | None = None
        while True:
            asked_s = clock()
            if self._is_step_open:
                logged, waited_s = self._logged or {}, self._data_wait_s
                logged[STEP_S] = waited_s + (asked_s - self._body_start_s)
                logged[DATA_WAIT_S] = waited_s
                step = params["cur_step_num"]
                if step < recorder.plain_before:  # most steps
                    self._is_step_open = False
                    self._logged = NOTHING
                    try:
                        recorder.record_plain(step, logged)
                    except BaseException as error:
                        self._leave(error)
                        raise
                else:
                    self._logged = logged
                    self._deliver("on_train_step_end")
                asked_s = clock()
            if self._is_closed or context.is_stop_requested:
                break
            if batches is None:
                batches = iter(loader)  # not earlier, because starting its workers counts as waiting for data
            try:
                batch = next(batches)
            except StopIteration:
                break
            started_s = clock()
            self._data_wait_s = started_s - asked_s
            params["cur_step_num"] = step = params["cur_step_num"] + 1
            params["train_dataset_element"] = batch
            params["net_outputs"] = None
            self._is_step_open = True
            if step >= recorder.plain_before:
                self._call("on_train_step_begin")
                started_s = clock()
            self._body_start_s = started_s
            yield batch
        if not self._in_epochs:
            self._settle_epoch()

    def log(self, values: Mapping[str, object] | None = None, /, **named: object) -> None:
        """Record scalars by name at the current step or, between two steps, at the last one.

        Args:
            values: for names that are not identifiers, such as {"train/accuracy": 0.9}.
            named: int, float, or a tensor or array of one element; a device tensor is not waited for.

        Raises:
            InvalidTypeError: a value is not a number; the message names it. ClosedError: the run is closed.
                InvalidValueError: a value has more than one element, or a name is logged again while no step
                is in progress, which would lose the first value.
        """
        if self._is_closed:
            self._require_open()
        given: dict[str, Any] = named
        if values is not None:
            check_type("values", values, Mapping)
            given = {**values, **named}
        new, known = given, self._known_names
        for name, value in given.items():
            if type(value) is not float or name not in known:
                new = scalars(given)
                known.update(new)
                break
        if not self._is_step_open and (again := sorted(new.keys() & self._logged.keys())):
            raise InvalidValueError(
                f"{again[0]!r} was logged twice outside of a step; log inside `for x in run.steps(loader):`"
            )
        if self._logged:
            self._logged |= new
        else:
            self._logged = new
        if "loss" in given:
            self._params["net_outputs"] = given["loss"]

    @contextlib.contextmanager
    def eval(self, dataset: Iterable[Any] | None = None) -> Iterator[EvaluationRun]:
        """An evaluation: its metrics go to the lineage and are scalars `eval/<name>` of the current step."""
        self._require_open()
        started_s = self._clock()
        evaluation = EvaluationRun(
            dataset, callbacks=self._callbacks, topology=self.topology, train=self._params, call=self._call
        )
        self._enter()
        evaluation.call("on_eval_begin", "on_eval_epoch_begin")
        yield evaluation
        evaluation.settle()
        evaluation.call("on_eval_epoch_end", "on_eval_end")
        self._params.metrics = evaluation.metrics
        self._body_start_s += self._clock() - started_s  # it is not part of the step's time

    def close(self) -> None:
        """End the step, the epoch and the training, and leave the callbacks; a second call does nothing."""
        if self._is_closed or os.getpid() != self._pid:
            return
        if self._logged and not self._is_training:
            self._begin_epoch(())  # logged without any step: recorded at step 0
        self._settle_epoch()
        if self._is_training:
            self._deliver("on_train_end")
        self._leave(None)

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._leave(error)

    def _begin_epoch(self, loader: object) -> None:
        if self._in_epochs:
            self._settle_step()
        else:
            self._settle_epoch()
            self._params.cur_epoch_num += 1
            self._params.epoch_num = max(self._params.epoch_num, self.epoch)
        self._params |= {"batch_num": length(loader), "train_dataset": loader}
        if not self._is_training:
            self._is_training = True
            self._enter()
            self._call("on_train_begin")
        if not self._is_epoch_begun:
            self._is_epoch_begun = True
            self._steps_before_epoch = self.step
            self._call("on_train_epoch_begin")

    def _settle_step(self) -> None:
        """End a step that was left by `break`, without times, because its end was not measured."""
        if not self._is_step_open:
            return
        if self._logged:
            self._deliver("on_train_step_end")
        else:
            self._is_step_open = False
            self._params.cur_step_num -= 1

    def _settle_epoch(self) -> None:
        if self._is_closed:
            return
        self._settle_step()
        if self._is_epoch_begun:
            self._is_epoch_begun = False
            self._deliver("on_train_epoch_end")
            self._params.pop("metrics", None)

    def _deliver(self, hook: str) -> None:
        """Call the hook that ends a step, an epoch or the training, with what was logged until then."""
        self._is_step_open = False
        self._params["logged"], self._logged = self._logged or {}, NOTHING
        self._call(hook)

    def _call(self, hook: str, context: RunContext | None = None) -> None:
        self._params["step_in_epoch"] = self._params["cur_step_num"] - self._steps_before_epoch
        try:
            for method in self._callbacks.methods[hook]:
                method(context or self._context)
        except BaseException as error:
            self._leave(error)
            raise
        if not self._is_guarded:
            # Not earlier: atexit calls the handler registered last first, and what the callbacks opened at
            # their first hook has handlers of its own, which must run after this one.
            self._is_guarded = True
            atexit.register(self._close_at_exit)

    def _enter(self) -> None:
        if not self._is_entered:
            self._callbacks.__enter__()
            self._is_entered = True

    def _leave(self, error: BaseException | None) -> None:
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        atexit.unregister(self._close_at_exit)
        if self._logged:  # logged at the step that the error ended: the callbacks see it on exit
            self._params.logged, self._logged = self._logged, NOTHING
        if self._is_entered:
            self._callbacks.__exit__(
                type(error) if error else None, error, error.__traceback__ if error else None
            )

    def _close_at_exit(self) -> None:
        error = getattr(sys, "last_value", None)  # the exception that ended the process, if there was one
        if isinstance(error, BaseException):
            self._leave(error)
        else:
            self.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the run is closed; make a new one")
