"""Run: counts and measures the steps of a training loop that the user writes, and drives callbacks.

It is a part of the training, and calls hooks of users: what records, measures or checks a step is called by
its guard, and the rest is outside of it.
"""

import atexit
import contextlib
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from distsummary.base.at_exit import close_at_exit, closing, process_error
from distsummary.base.checks import check_int, check_type
from distsummary.base.guard import guarded, guarded_log, mark_users
from distsummary.base.interrupts import is_good_exit
from distsummary.base.termination import on_termination
from distsummary.errors import ClosedError, InvalidTypeError, InvalidValueError, NonFiniteError
from distsummary.format.own_tags import DATA_WAIT_MS, EPOCH, STEP_MS
from distsummary.format.records import Value
from distsummary.frameworks.base import framework_of
from distsummary.rundir.topology import Topology, detect
from distsummary.training.callbacks import (
    Batches,
    Callback,
    CallbackList,
    CallbackParams,
    RunContext,
    common_params,
    length,
)
from distsummary.training.finite import LARGEST, LOWEST, WARN
from distsummary.training.recorder import NoRecorder, Recorder
from distsummary.training.recording import Recording, weakly
from distsummary.training.resumed import RestOfEpoch
from distsummary.training.timing.phases import DATA, EVALUATION, FORWARD, REST, Phases
from distsummary.training.values import Scalar

if TYPE_CHECKING:
    from distsummary.training.evaluation import EvaluationRun

logger = guarded_log(__name__)

STEP_TIMES = (STEP_MS, DATA_WAIT_MS)  # the numbers that a Run itself adds to a step
ENDLESS: Iterable[Any] = iter(())  # stands for the default loader of `steps`, which counts without end
Opener = TypeVar("Opener")
BY_LOG = object()  # the value of `Run._opener` during a step that `log` began


class ManualStep:
    """Context manager for a step that `Run.next_step` began; leaving the `with` block ends the step."""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[["ManualStep"], None]) -> None:
        self._end = end

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self)


def _nothing(*_: object) -> None:
    """What is called if there is nothing to do."""


class Run(Recording):
    """Drives callbacks from the user's own loop; `close`, or the end of the `with` block, ends the training.

    Example:

        >>> for epoch in run.epochs(3):
        ...     for x, y in run.steps(loader):
        ...         loss = train_step(x, y)
        ...         run.log(loss=loss, lr=0.1)
        ...     with run.eval() as evaluation:
        ...         evaluation.log(accuracy=accuracy(model))
        >>> run.close()

    Each step of `steps` also logs `zz_perf/step_ms`, the milliseconds from requesting its batch to the end
    of the loop body, and `zz_perf/data_wait_ms`, the part of this time spent waiting for the loader. Both
    exclude the time of callbacks and evaluations. A loop without a loader calls `next_step`.

    If `break`, `return` or an exception leaves the loop, the current step ends when Python releases the
    iterator of `steps`. If a value was given in that step, the step counts and the hooks of its end are
    called; otherwise it is forgotten. If a hook raises while the iterator is released, the next call on the
    run raises the exception. The epoch stays open until `close`, the next round of `epochs` or, outside
    `epochs`, the next `steps`. While a variable still refers to the iterator, the step stays open until
    `steps`, `next_step`, `epochs` or `close` is called. That call records the step's scalars. Data read from
    the model are skipped and counted, as the model may have changed since (callbacks then find
    `run_context.step.ended_late`).

    Many of its attributes are the state of one machine (step, epoch, training: begun, counted, ended), whose
    transitions are its methods; cut in two, each half would have to know the other's states.

    If an exception leaves the `with` block, or a hook raises, `__exit__` of the callbacks is called, but
    `on_train_end` is not. In a forked child process, closing or leaving the run calls no callback.

    Args:
        callbacks: one callback, a list or tuple of callbacks, or None.
        network, optimizer, loss_fn: passed on to the callbacks.
        topology: the place of this rank in the job; by default found by `topology.detect`.
        epochs: the number of epochs that callbacks see if the loop does not use `epochs()`.
        initial_step, initial_epoch: where a resumed training continues, >= 0.
        clock: returns seconds; all times are measured with it.
        on_nan: what is done if a logged number is NaN or infinite. "warn": the log, or an alert of the run,
            names the first NaN and infinity (tag, step, rank); `health()` counts all by tag. "stop": also,
            NonFiniteError is raised at the end of the step; for a number on a device, at the end of the step
            in which it has arrived on the host.
            "ignore": nothing.
        strict: whether values that cannot be recorded raise InvalidTypeError or InvalidValueError, instead of
            being dropped, counted in `health()` and named once in the log.

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
        on_nan: str = WARN,
        strict: bool = False,
    ) -> None:
        epochs = check_int("epochs", epochs, low=1)
        initial_step = check_int("initial_step", initial_step, low=0)
        initial_epoch = check_int("initial_epoch", initial_epoch, low=0)
        check_type("topology", topology, Topology, optional=True)
        self.topology = detect() if topology is None else topology
        listed = CallbackList(callbacks)
        params = CallbackParams(
            common_params(listed.callbacks, network, self.topology),
            mode="train", epoch_num=epochs, cur_epoch_num=initial_epoch, cur_step_num=initial_step,
            initial_step=initial_step, step_in_epoch=0, optimizer=optimizer, loss_fn=loss_fn,
            train_network=network, train_dataset=None, train_dataset_element=None,
            loss_scale_mananger=None, last_save_ckpt_step=None, latest_ckpt_file=None,
        )  # fmt: skip
        super().__init__(
            rank=self.topology.rank, callbacks=listed, params=params, on_nan=on_nan, strict=strict
        )
        for callback in listed.callbacks:
            # The run counts the failures of guarded callbacks, except of those that record: these count
            # themselves.
            if hasattr(type(callback), "_own_guard") and callback.recorder is None:
                vars(callback)["_own_guard"] = self._own_guard
        self._context = RunContext(params)
        self._context.step = self._step_context
        self._step_context.topology = self.topology
        self._clock = clock
        self._steps_before_epoch = initial_step
        self._initial_step = initial_step
        self._data_wait_s = self._body_start_s = 0.0
        # What began the current step: a `steps` iterator's token, a ManualStep or BY_LOG; None between steps.
        self._opener: object | None = None
        # Records the steps before its `plain_before`, in place of their hooks.
        self._recorder: Recorder | NoRecorder = NoRecorder(-math.inf, self._own_failures)
        self._error: BaseException | None = None  # the next call raises it
        self._is_training = self._is_ended = False
        self._is_epoch_begun = False
        self._in_epochs = self._is_evaluating = self._has_called = False
        self._pid = os.getpid()
        self._phases: Phases | None = None  # measured from two ranks on, to find the one that is slow
        self._measured: list[Any] = []  # what reports to them from torch
        self._body = REST  # the phase with which the body of a step begins
        # The `DDP.join` that the model is in or was in last; how many have begun in loops of `next_step`.
        self._join_of: Callable[[], object] = lambda: None
        self._joined: object = None
        self._joins = 0
        # Values may be given before any hook is called, and are recorded then.
        close_at_exit(self._close_at_exit)
        self._stop_listening: Callable[..., None] = _nothing

    @property
    def rank(self) -> int:
        """The rank of this process in the run."""
        return self.topology.rank

    @property
    def world_size(self) -> int:
        """The number of ranks in the run."""
        return self.topology.world_size

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        place = f"rank {self.rank} of {self.world_size}, " if self.world_size > 1 else ""
        dirs = [recorder.dir for recorder in self._recorders()[:1]]
        where = repr(str(self._inherited_dir or dirs[0])) if self._inherited_dir or dirs else "not recorded"
        return f"<{type(self).__name__} {where}: {place}step {self.step}, {state}>"

    @property
    def step(self) -> int:
        """The current step as it is recorded: counted from 1 over all epochs, 0 before the first."""
        return int(self._params.cur_step_num)

    @property
    def epoch(self) -> int:
        """The current epoch as callbacks see it: counted from 1, 0 before the first."""
        return int(self._params.cur_epoch_num)

    def has_waiting(self) -> bool:
        """Whether values were given that are recorded when the first step begins, or else at the end."""
        return not self._is_training and not self._is_closed and (bool(self._given) or self._has_alerts)

    @property
    def context(self) -> RunContext:
        """The context that is passed to the training's hooks."""
        return self._context

    def epochs(self, count: int) -> Iterator[int]:
        """Yields the numbers of the epochs still to do, up to `count` - 1; the first epoch is 0.

        `count` is the total for the whole training, so a second call must pass a larger number.
        """
        count = check_int("count", count, low=1)
        self._require_open()
        self._refuse_in_evaluation("epochs")
        if self.epoch >= count:
            logger.warning("epochs(%d): epoch %d is done already, nothing is left to do", count, self.epoch)
        self._params.epoch_num = count
        return self._epochs(count)

    def _epochs(self, count: int) -> Iterator[int]:
        params = self._params
        while True:
            if self._error is not None:
                self._raise_kept()
            self._settle_epoch()
            if self._is_closed or params["cur_epoch_num"] >= count or self._context.is_stop_requested:
                break
            self._in_epochs = True
            params["cur_epoch_num"] += 1
            yield params["cur_epoch_num"] - 1
        self._in_epochs = False

    def steps(self, loader: Iterable[Any] = ENDLESS, *, accumulate: int = 1) -> Iterator[Any]:
        """Iterate over the batches of a loader, one step for each; outside `epochs()` each call is one epoch.

        Args:
            loader: any iterable; the default counts from `run.step * accumulate` on, without end. What is
                returned has its length, if it has one: `tqdm(run.steps(loader))` shows how much is left.
            accumulate: how many batches make one step (of the optimizer), >= 1. The last step may have fewer.
                If a name is logged several times within a step, its last value is recorded.
        """
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise InvalidTypeError(f"loader must be iterable, got {type(loader).__name__}; pass the batches")
        accumulate = check_int("accumulate", accumulate, low=1)
        self._require_open()
        self._refuse_in_evaluation("steps")
        self._begin_stepping()
        if loader is ENDLESS:
            loader = itertools.count(self.step * accumulate)
        # Read before the epoch begins: if a hook of its begin requests the stop, there is still one step.
        was_stopped = self._context.is_stop_requested
        # Of an epoch that a resumed training continues, callbacks see the whole loader.
        whole, done = loader, 0
        if isinstance(loader, RestOfEpoch):
            whole, done = loader.loader, loader.resumed.step_in_epoch
        self._begin_epoch(whole, -(-length(whole) // accumulate), done=done)
        self._record_pending()
        return Batches(self._steps(loader, accumulate, was_stopped), loader)

    def _steps(self, loader: Iterable[Any], accumulate: int, may_stop: bool) -> Iterator[Any]:
        """Yield the batches; before each step's first batch, end the previous step and begin the new one.

        An epoch at whose beginning a callback requests a stop has one step, as in MindSpore; if the stop was
        requested before (`may_stop`), it has none.
        """
        clock, params, context = self._clock, self._params, self._context
        opener = object()
        batches: Iterator[Any] | None = None
        missing = 0  # the number of batches still to come in the current step
        phases = self._phases
        if phases is not None:
            phases.is_in_loop = True
        try:
            while True:
                asked_s = clock()
                # No step of this iterator is open if none has begun yet, or if another call has ended it.
                if self._opener is not opener:
                    missing = 0
                    self._settle_step()
                elif not missing:
                    self._end_step(asked_s, is_whole=True)
                    asked_s = clock()
                # A stop takes effect only between steps: a step of several batches is completed first.
                if not missing and (self._is_closed or (may_stop and context.is_stop_requested)):
                    break
                may_stop = True
                if phases is not None:
                    phases.enter(DATA)
                # Made only now, because starting the loader's workers counts as waiting for data.
                if batches is None:
                    batches = iter(loader)
                    if phases is not None:
                        phases.loader.begin(batches)
                try:
                    batch = next(batches)
                except StopIteration:
                    # The last step of a loader may have fewer batches than `accumulate`.
                    if missing:
                        self._end_step(asked_s, is_whole=True)
                    break
                started_s = clock()
                params["train_dataset_element"] = batch
                if missing:
                    # Waiting for a further batch moves the body's begin by as much: the step's time must not
                    # have it twice.
                    missing -= 1
                    self._data_wait_s += started_s - asked_s
                    self._body_start_s += started_s - asked_s
                else:
                    missing = accumulate - 1
                    self._data_wait_s = started_s - asked_s
                    # The same as `_begin_step`, inlined to save a function call at every step.
                    params["cur_step_num"] = step = params["cur_step_num"] + 1
                    params["net_outputs"] = None
                    self._opener, self._body_start_s = opener, started_s
                    if step >= self._recorder.plain_before:
                        self._call("on_train_step_begin")
                        self._body_start_s = clock()
                if phases is not None:
                    phases.enter(self._body)
                try:
                    yield batch
                except GeneratorExit:
                    # The loop was left: no caller would see an exception here, so it is kept for the run's
                    # next call.
                    if self._opener is opener and os.getpid() == self._pid:
                        try:
                            self._end_step(clock())
                        except BaseException as error:
                            self._error = error
                            # If there is no other call, the end of the interpreter raises it.
                            atexit.register(self._raise_kept)
                    raise
        finally:
            # This is reached also if the loader raises. If another loop has begun, the phase is that one's.
            if self._phases is not None and self._opener in (None, opener):
                self._phases.end_loop(self._params["cur_step_num"])
        if not self._in_epochs:
            self._settle_epoch()

    def next_step(self, *, began_s: float | None = None) -> contextlib.AbstractContextManager[None]:
        """End the current step, if any, and begin a new one.

        For loops without a loader. In a `with` statement, the new step ends with the block. The time of each
        step is logged as `zz_perf/step_ms`.

        Args:
            began_s: when the step began, by time.perf_counter(), if before this call: for a loop that knows
                only later, such as when its batch has arrived, that a step follows. NaN if that is not known:
                then neither its time nor those of its phases are logged.
        """
        self._require_open()
        self._refuse_in_evaluation("next_step")
        self._begin_stepping()
        if isinstance(self._opener, ManualStep):
            self._end_step(self._clock(), is_whole=True)
        self._settle_step()
        if not self._is_epoch_begun:
            self._begin_epoch(())
        self._record_pending()
        step = self._begin_step(ManualStep(self._end_manual_step))
        if began_s is not None:
            self._body_start_s = began_s
        return step

    def _refuse_in_evaluation(self, method: str) -> None:
        if self._is_evaluating:
            raise InvalidValueError(
                f"run.{method} must not be called inside of `with run.eval() as evaluation:`, where it would "
                "begin steps of the training; write `for batch in evaluation.steps(loader):`"
            )

    def _end_manual_step(self, step: ManualStep) -> None:
        if self._opener is step and os.getpid() == self._pid:
            self._end_step(self._clock(), is_whole=True)
            # What comes until the next step is the user's, such as rollouts.
            if self._phases is not None:
                self._phases.enter(REST)

    def _go_to(self, step: int, *, has_values: bool) -> bool:
        if self._opener not in (None, BY_LOG) and not isinstance(self._opener, ManualStep):
            raise InvalidValueError(
                f"step must be left out inside `for x in run.steps(loader):`, which counts the steps, got "
                f"{step}; a resumed training passes resume= or initial_step= to ds.init"
            )
        if step < self.step:
            return False
        if has_values and (step > self.step or not self._is_training):
            self._begin_step_by_log(step)
        return True

    def _go_on(self) -> None:
        if self._is_evaluating:
            return
        # Between two steps, the values given so far become a step of their own.
        if self._opener is None:
            self._begin_step_by_log(self.step + 1, with_pending=True)
        self._begin_step_by_log(self.step + 1)

    @contextlib.contextmanager
    def eval(self, dataset: Iterable[Any] | None = None) -> "Iterator[EvaluationRun]":
        """Begin an evaluation; its metrics become lineage and scalars `eval/<name>` of the current step.

        Inside of it, `steps`, `next_step` and `epochs` raise InvalidValueError; use the evaluation's `steps`.
        """
        started_s = self._clock()
        evaluation = self._begin_evaluation(dataset)
        was_evaluating, self._is_evaluating = self._is_evaluating, True
        try:
            with self._step_context.within(EVALUATION):
                yield evaluation
        finally:
            self._is_evaluating = was_evaluating
        self._end_evaluation(evaluation)
        # An evaluation is not part of the step's time.
        self._body_start_s += self._clock() - started_s

    def _begin_evaluation(self, dataset: Iterable[Any] | None) -> "EvaluationRun":
        self._require_open()
        from distsummary.training.evaluation import EvaluationRun, evaluation_params

        evaluation = EvaluationRun(self._call, self._numbers, self._step_context)
        described = evaluation_params(
            dataset, callbacks=self._callbacks, topology=self.topology, train=self._params
        )
        evaluation.params.update(described)
        self._enter()
        evaluation.call("on_eval_begin", "on_eval_epoch_begin")
        return evaluation

    def _end_evaluation(self, evaluation: "EvaluationRun") -> None:
        results = self._own_guard.call("the metrics", evaluation.settle) or {}
        evaluation.call("on_eval_epoch_end", "on_eval_end")
        self._params |= results
        self._check_finite(evaluation.logged)
        if self._is_forked:
            self._drop_forked({"scalar": len(evaluation.metrics)})

    def after_fork(self) -> None:
        """In a forked child: from now on, call no callbacks and only count the values that it gives."""
        super().after_fork()
        # The parent's callbacks are kept referenced: if they were destroyed in the child, that could release
        # what the parent still uses, such as file locks.
        self._parents_callbacks, self._callbacks = self._callbacks, CallbackList()
        self._recorder = NoRecorder(math.inf, self._own_failures)
        self._phases = None

    def close(self) -> None:
        """End the step, the epoch and the training, and exit the callbacks; a second call does nothing."""
        if os.getpid() != self._pid:
            return
        if self._error is not None:
            self._raise_kept()
        if self._is_closed:
            return
        if self.has_waiting():
            if self._callbacks.is_entered:
                # The run only evaluated: record the values together with its evaluations.
                self._record_given()
            else:
                # The values were given without any step: they are recorded at step 0.
                self._begin_epoch(())
        self._settle_epoch()
        if self._is_training and not self._is_ended:
            given = self._given.take()
            self._call("on_train_end", given=given)
            self._check_finite(given[0])
        self._leave(None)

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # As without `with`, where the interpreter ends the run.
        if error is None or is_good_exit(error):
            self.close()
        else:
            if self._error is not None:
                logger.error("a callback failed at the end of the last step", exc_info=self._error)
                self._error = None
            self._leave(error)

    def _begin_epoch(self, loader: object, steps: int = 0, *, done: int = 0) -> None:
        """Begin an epoch of `steps` steps (0: unknown), of which `done` were made before this training."""
        if self._in_epochs:
            self._settle_step()
        # Outside of `epochs`, this begins a new epoch.
        else:
            self._settle_epoch()
            self._params["cur_epoch_num"] = epoch = self.epoch + 1
            self._params.epoch_num = max(self._params.epoch_num, epoch)
        self._params |= {"batch_num": steps, "train_dataset": loader}
        if not self._is_training:
            self._begin_training()
        if not self._is_epoch_begun:
            self._steps_before_epoch = self.step - done
            self._call("on_train_epoch_begin")

    def _begin_training(self) -> None:
        self._enter()
        self._call("on_train_begin")
        # Looked up only now, because entering the callbacks may replace some of them by others.
        self._recorder = self._recorder_of_steps()
        # Phases serve to find the rank that is slow: a single rank has none to be compared with.
        if self.topology.world_size > 1 and self._phases is None:
            self._measure_phases()

    @guarded()
    def _epoch_begun(self, phases: Phases, *, is_manual: bool) -> float | None:
        """The number of the epoch that began with this step, if one did; steps are measured by it."""
        step = self._params["cur_step_num"]
        is_first = step == self._steps_before_epoch + 1
        # A loop without a loader has no epochs; `DDP.join` begins where one would.
        if is_manual and (joined := self._join_of()) is not self._joined:
            self._joined, self._joins, is_first = joined, self._joins + 1, True
        if not is_first:
            return None
        number = self._params["cur_epoch_num"] + self._joins
        phases.begin_epoch(number, step)
        return float(number)

    @guarded()
    def _measure_phases(self) -> None:
        """From now on, measure the phases of each step; those of a torch model, too."""
        self._step_context.phases = phases = self._phases = Phases(failures=self._counted)
        # The function below must not refer to the run, which could then not be released.
        failures = self._counted
        phases.on_failure = lambda reason: failures().count(reason)
        # Until it is known when ranks wait for each other, all blocked time of computing counts as waiting.
        phases.is_computing_shared = True
        if (torch := sys.modules.get("torch")) is None:
            return
        network = self._params.network
        # A torch model reports its phases itself. One that takes no hooks leaves two: data and the rest.
        if network is not None and framework_of(network).name == "torch":
            from distsummary.frameworks.torch_private import join_of
            from distsummary.training.timing.torch_phases import TorchPhases

            self._join_of = partial(join_of, network)
            self._joined = self._join_of()
            try:
                self._measured.append(TorchPhases(network, phases))
                self._body = FORWARD
            except Exception as error:
                self._failures().count(
                    "a step has two phases, data and the rest, since the model takes no hooks: "
                    f"{type(error).__name__}: {error}"
                )
        if torch.distributed.is_available():
            from distsummary.training.timing.torch_waits import TorchWaits

            self._measured.append(TorchWaits(phases))

    def _begin_step(self, opener: Opener) -> Opener:
        """Begin a step that has no batch; returns what began it."""
        step = self._params["cur_step_num"] + 1
        self._params["cur_step_num"], self._opener = step, opener
        self._params |= {"net_outputs": None, "train_dataset_element": None}
        if step >= self._recorder.plain_before:
            self._call("on_train_step_begin")
        if self._phases is not None:
            self._phases.begin_step(step)
            # A step that `log` begins first waits for its batch, from a loader that the run does not know.
            self._phases.enter(REST if opener is BY_LOG and self._phases.is_marked else self._body)
            self._phases.is_in_loop = True
        self._body_start_s = self._clock()
        return opener

    def _begin_step_by_log(self, step: int, *, with_pending: bool = False) -> None:
        """End the current step and begin `step`; if `with_pending`, the values logged so far go to `step`."""
        self._settle_step()
        if not self._is_epoch_begun:
            self._begin_epoch(())
        if not with_pending:
            self._record_pending()
        self._params["cur_step_num"] = step - 1
        self._begin_step(BY_LOG)

    def _end_step(self, ended_s: float | None, *, is_whole: bool = False) -> None:
        """End the current step; a step that was left early (not `is_whole`) without logging does not count.

        `ended_s` is None if the loop body ended earlier, at an unknown time.
        """
        params, opener = self._params, self._opener
        given = self._given
        if given.has_more:
            given.gather()
        logged = given.numbers
        values: Sequence[Value] = given.take_values() if given.values else ()
        given.numbers, self._opener = {}, None
        if not logged and not values and not is_whole:
            params["cur_step_num"] -= 1
            return
        # If the body ended at an unknown time, the step has no times, and the model may have changed since.
        if ended_s is None:
            if self._phases is not None:
                found = self._phases.end_step(params["cur_step_num"]) or {}
                # The phases of any other step would contain what came after its loop.
                if opener is BY_LOG:
                    logged.update(found | logged)
            self._step_context.ended_late = True
            try:
                self._call("on_train_step_end", given=(logged, values))
            finally:
                self._step_context.ended_late = False
            self._check_finite(logged)
            return
        is_timed = True
        if type(opener) is ManualStep:
            step_s = ended_s - self._body_start_s
            # The time is NaN if the user does not know when the step began.
            if is_timed := step_s == step_s:
                logged.setdefault(STEP_MS, 1e3 * step_s)
        else:
            # What was given under one of these names counts.
            waited_s = self._data_wait_s
            logged.setdefault(STEP_MS, 1e3 * (waited_s + (ended_s - self._body_start_s)))
            logged.setdefault(DATA_WAIT_MS, 1e3 * waited_s)
        step = params["cur_step_num"]
        if self._phases is not None:
            if (epoch := self._epoch_begun(self._phases, is_manual=type(opener) is ManualStep)) is not None:
                logged.setdefault(EPOCH, epoch)
            found = self._phases.end_step(step) or {}
            if is_timed:
                logged.update(found | logged)
        # A quick check of all numbers: with a NaN or an infinity, their sum is not in this range.
        try:
            is_finite = LOWEST < sum(logged.values()) < LARGEST  # type: ignore[arg-type]
        except TypeError:
            # A number is still on its device.
            is_finite = False
        if not is_finite:
            batch = params["train_dataset_element"]
            of_input = self._own_guard.call("the search for NaN", self._finite.input_of, batch, logged)
            logged.update(of_input or {})
        recorder, seen = self._recorder, len(logged)
        # At most steps, the recorder takes the values at once, and no hooks are called.
        if step < recorder.plain_before:
            self._record(recorder, step, logged, values)
        else:
            self._call("on_train_step_end", given=(logged, values))
        # Checked one by one if the quick check failed, if operators added numbers, or if an error is due.
        if not is_finite or len(logged) != seen or self._finite.error is not None:
            self._check_finite(logged)

    def _settle_step(self) -> None:
        """End the current step if neither its iterator nor `next_step` has ended it."""
        if self._opener is not None:
            self._end_step(self._clock() if isinstance(self._opener, ManualStep) else None)

    def _record_pending(self) -> None:
        """Record the values given since the last step ended, at that step, before the next step begins.

        The values go to the next step instead if no callback has a recorder, or if a resumed training has
        not made a step yet: a record at the initial step would make merging drop the earlier attempt's
        records of that step, since it drops all from this attempt's first record on.
        """
        if self._given and self._recorders() and not self.step == self._initial_step > 0:
            self._record_given()

    def _settle_epoch(self) -> None:
        if self._is_closed:
            return
        self._settle_step()
        if self._phases is not None:
            self._phases.is_in_loop = False
        if self._is_epoch_begun:
            self._is_epoch_begun = False
            given = self._given.take()
            self._call("on_train_epoch_end", given=given)
            self._check_finite(given[0])
            # The results of an evaluation are those of its epoch, and must not appear in the next one.
            for name in ("metrics", "eval_results"):
                self._params.pop(name, None)

    def _call(
        self,
        hook: str,
        context: RunContext | None = None,
        *,
        given: tuple[dict[str, Scalar], Sequence[Value]] | None = None,
    ) -> None:
        """Call a hook of all callbacks.

        `given`, for end hooks only: the numbers and values given since they were last recorded.
        """
        params = self._params
        if given is not None:
            self._step_context.logged, self._step_context.values = given
        params["step_in_epoch"] = params["cur_step_num"] - self._steps_before_epoch
        if hook == "on_train_begin":
            self._is_training = True
        elif hook == "on_train_epoch_begin":
            self._is_epoch_begun = True
        elif hook == "on_train_end":
            self._is_ended = True
        try:
            for method in self._callbacks.methods[hook]:
                method(context or self._context)
            while after := self._step_context.after_hook:
                after.pop(0)()
        except BaseException as error:
            mark_users(error)
            self._finite.is_over = True
            self._leave(error)
            raise
        if not self._has_called:
            # Again: the first hook of the callbacks has opened writers, which are closed after this run.
            self._has_called = True
            close_at_exit(self._close_at_exit)
            self._stop_listening()

    def _await_begin(self) -> None:
        # Once a hook was called, those who opened files listen to signals themselves.
        if not self._has_called and self._stop_listening is _nothing:
            self._stop_listening = on_termination(weakly(self._leave, _nothing))

    def _enter(self) -> None:
        if not self._callbacks.is_entered:
            self._callbacks.__enter__()

    def _leave(self, error: BaseException | None) -> None:
        if os.getpid() == self._pid:
            with closing(self._close_at_exit):
                self._exit_callbacks(error)

    def _exit_callbacks(self, error: BaseException | None) -> None:
        if self.has_waiting() and not self._callbacks.is_entered:
            # What was given before the first step is recorded, too, whatever ends the run.
            try:
                self._begin_epoch(())
            except Exception as another:
                logger.exception("a callback failed at the begin of the run: %s", another)
        if not self._is_closed:
            # What forked children dropped is counted while the run is open, in the health of its recorder.
            self._count_forked()
            self._is_closed = True
            for measured in (*self._measured, self._phases):
                if measured is not None:
                    self._own_guard.call("phases", measured.close)
            self._own_guard.call("listening to signals", self._stop_listening)
            self._end_last_step()
        # Callbacks are exited once; those that were never entered only free what they hold.
        if self._callbacks.is_entered:
            self._callbacks.__exit__(
                type(error) if error else None, error, error.__traceback__ if error else None
            )
        elif not self._is_training:
            for callback in self._callbacks.callbacks:
                self._own_guard.call("closing", callback.discard)

    def _end_last_step(self) -> None:
        """Give the callbacks the values of a step that an error ended."""
        logged, values = self._given.take()
        has_values = bool(logged or values)
        if self._opener is not None and not has_values:
            self._params.cur_step_num -= 1
        self._opener = None
        self._params["step_in_epoch"] = self._params["cur_step_num"] - self._steps_before_epoch
        if has_values:
            # The run ends anyway: the numbers are reported, but raise nothing.
            with contextlib.suppress(NonFiniteError):
                self._own_guard.call("the search for NaN", self._finite.look, self.step, logged)
            # If a training has begun, the callbacks find the values in `__exit__`.
            if self._is_training:
                self._step_context.logged, self._step_context.values = logged, values
            else:
                for recorder in self._recorders():
                    self._record(recorder, self.step, logged, values)

    def __del__(self) -> None:
        """Close, in a thread, a run that nothing refers to any more, such as one that an exception left."""
        if not hasattr(self, "_body") or self._is_closed or os.getpid() != self._pid:
            return  # the constructor has raised, or it is the parent's; as Python ends, `os` may be None
        if self._has_called or self.has_waiting():
            # The process waits for this thread. While the interpreter is ending, none can be started.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._close_at_exit, name="distsummary-end").start()

    def _close_at_exit(self) -> None:
        error = process_error()
        if error is not None and not is_good_exit(error):
            self._leave(error)
        else:
            self.close()

    def _raise_kept(self) -> None:
        """Raise the exception that a callback raised where no caller could catch it."""
        if self._error is not None:
            error, self._error = self._error, None
            atexit.unregister(self._raise_kept)
            raise error

    def _require_open(self) -> None:
        if self._error is not None:
            self._raise_kept()
        if self._is_closed:
            raise ClosedError("the run is closed; make a new one")
