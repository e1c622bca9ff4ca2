"""Callbacks: hooks that a training loop calls, with MindSpore's names."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from distsummary.checks import check_int, check_type
from distsummary.errors import InvalidValueError, MissingParameterError
from distsummary.training.values import mean_of, resolve

logger = logging.getLogger(__name__)

EVENTS = ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end")
HOOKS = tuple(f"on_{phase}_{event}" for phase in ("train", "eval") for event in EVENTS)


class CallbackParams(dict[str, Any]):
    """What the loop tells its callbacks: a dict whose keys can be read and set as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise MissingParameterError(
                f"the loop does not tell {name!r}; it tells {sorted(self)}; use .get({name!r})"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class RunContext:
    """What every hook is called with: the loop's parameters, and the wish to stop."""

    def __init__(self, original_args: CallbackParams) -> None:
        check_type("original_args", original_args, dict)
        self._original_args = original_args
        self._is_stop_requested = False

    def original_args(self) -> CallbackParams:
        """The parameters of the loop."""
        return self._original_args

    def request_stop(self) -> None:
        """Ask the loop to stop after this step; the epoch's and the training's end are still called."""
        self._is_stop_requested = True

    def get_stop_requested(self) -> bool:
        """Whether some callback asked to stop."""
        return self._is_stop_requested


class Callback:
    """Base of all callbacks: override the hooks that are wanted; only these cost anything.

    `on_train_*` and `on_eval_*` are called; by default each calls the older name (`begin`, `step_end` ...),
    which serves both phases. As a context manager a callback is entered before the first hook and left after
    the last, also after an exception.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, run_context: RunContext) -> None:
        """Before the first epoch."""

    def epoch_begin(self, run_context: RunContext) -> None:
        """Before an epoch."""

    def step_begin(self, run_context: RunContext) -> None:
        """Before a step."""

    def step_end(self, run_context: RunContext) -> None:
        """After a step."""

    def epoch_end(self, run_context: RunContext) -> None:
        """After an epoch."""

    def end(self, run_context: RunContext) -> None:
        """After the last epoch."""

    def on_train_begin(self, run_context: RunContext) -> None:
        """Before the first training epoch."""
        self.begin(run_context)

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Before a training epoch."""
        self.epoch_begin(run_context)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Before a training step, its batch read."""
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """After a training step."""
        self.step_end(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """After a training epoch."""
        self.epoch_end(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """After the last training epoch; not after an exception."""
        self.end(run_context)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Before an evaluation."""
        self.begin(run_context)

    def on_eval_epoch_begin(self, run_context: RunContext) -> None:
        """Before the one pass of an evaluation."""
        self.epoch_begin(run_context)

    def on_eval_step_begin(self, run_context: RunContext) -> None:
        """Before a step of an evaluation."""
        self.step_begin(run_context)

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """After a step of an evaluation."""
        self.step_end(run_context)

    def on_eval_epoch_end(self, run_context: RunContext) -> None:
        """After the one pass of an evaluation."""
        self.epoch_end(run_context)

    def on_eval_end(self, run_context: RunContext) -> None:
        """After an evaluation, its metrics known."""
        self.end(run_context)


class CallbackList:
    """Calls the overridden hooks of several callbacks in their order; which ones is looked up once.

    Args:
        callbacks: one, several, or None.

    Raises InvalidTypeError for anything that is no Callback.
    """

    def __init__(self, callbacks: Callback | Sequence[Callback] | None = None) -> None:
        listed = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else callbacks
        check_type("callbacks", listed, (list, tuple))
        for callback in listed:
            check_type("a callback", callback, Callback)
        self.callbacks: list[Callback] = list(listed)
        self._stack = contextlib.ExitStack()
        self._methods = _methods(self.callbacks)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.callbacks = [_entered(stack, callback) for callback in self.callbacks]
            self._stack = stack.pop_all()
        self._methods = _methods(self.callbacks)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def call(self, hook: str, run_context: RunContext) -> None:
        """Call one of `HOOKS`."""
        for method in self._methods[hook]:
            method(run_context)


def _entered(stack: contextlib.ExitStack, callback: Callback) -> Callback:
    entered: object = stack.enter_context(callback)
    if isinstance(entered, Callback):
        return entered
    logger.warning("%s.__enter__ returned no callback; the original is used", type(callback).__name__)
    return callback


def _methods(callbacks: list[Callback]) -> dict[str, list[Callable[[RunContext], None]]]:
    found = {hook: [_method(callback, hook) for callback in callbacks] for hook in HOOKS}
    return {hook: [method for method in methods if method is not None] for hook, methods in found.items()}


def _method(callback: Callback, hook: str) -> Callable[[RunContext], None] | None:
    """What a hook comes down to: the method itself, the older one that it would call, or nothing."""
    for name in (hook, hook.split("_", 2)[2]):
        if getattr(type(callback), name) is not getattr(Callback, name) or name in vars(callback):
            method: Callable[[RunContext], None] = getattr(callback, name)
            return method
    return None


class LossMonitor(Callback):
    """Prints the loss every `per_print_times` steps (0: never) and stops a training whose loss is not finite.

    The loss of a device tensor is waited for, and so checked, only where it is printed.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        check_int("per_print_times", per_print_times, low=0)
        self._per_print_times = per_print_times
        self._last_printed = 0

    def on_train_begin(self, run_context: RunContext) -> None:
        """Count from the step where this training starts."""
        self._last_printed = run_context.original_args().get("cur_step_num", 0)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Print; raises InvalidValueError for a loss of NaN or infinity."""
        told = run_context.original_args()
        outputs = told.get("net_outputs")
        is_due = 0 < self._per_print_times <= told.cur_step_num - self._last_printed
        loss = mean_of(outputs) if is_due or isinstance(outputs, (int, float)) else None
        if loss is None:
            return
        number = resolve(loss)
        step = step_in_epoch(told)
        if not math.isfinite(number):
            raise InvalidValueError(
                f"epoch: {told.cur_epoch_num} step: {step}, the loss is {number}; "
                "lower the learning rate or mend the data"
            )
        if is_due:
            self._last_printed = told.cur_step_num
            print(f"epoch: {told.cur_epoch_num} step: {step}, loss is {number}", flush=True)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print the metrics of an evaluation inside the training, if there was one."""
        told = run_context.original_args()
        if told.get("metrics"):
            print(f"Eval result: epoch {told.cur_epoch_num}, metrics: {told.metrics}", flush=True)


class TimeMonitor(Callback):
    """Prints the time of every epoch and of its steps, in milliseconds.

    Args:
        data_size: steps of an epoch, for a loader that does not know.
        data_time: print also the mean time of a step that was spent waiting for data.
    """

    def __init__(self, data_size: int | None = None, data_time: bool = False) -> None:
        check_type("data_time", data_time, bool)
        self._data_size = data_size
        self._data_time = data_time
        check_int("data_size", data_size, low=1, optional=True)
        self._started_s: dict[str, float] = {}  # by mode: an evaluation may lie within a training's epoch
        self._waited_s = 0.0

    def epoch_begin(self, run_context: RunContext) -> None:
        """Start the watch."""
        mode = run_context.original_args().get("mode", "train")
        self._started_s[mode] = time.perf_counter()
        if mode == "train":
            self._waited_s = 0.0

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Add up the time spent waiting for data."""
        self._waited_s += run_context.original_args().get("logged", {}).get("perf/data_wait_s", 0.0)

    def epoch_end(self, run_context: RunContext) -> None:
        """Print; nothing for an epoch of which nobody knows the steps (an evaluation without a loader)."""
        told = run_context.original_args()
        is_eval = told.get("mode") == "eval"
        started_s = self._started_s.get("eval" if is_eval else "train")
        steps = told.get("batch_num") or self._data_size or told.get("step_in_epoch")
        if started_s is None or not isinstance(steps, int) or steps <= 0:
            return
        epoch_ms = (time.perf_counter() - started_s) * 1e3
        data = (
            f" (data time: {self._waited_s * 1e3 / steps:5.3f} ms)" if self._data_time and not is_eval else ""
        )
        print(
            f"{'Eval' if is_eval else 'Train'} epoch time: {epoch_ms:5.3f} ms, "
            f"per step time: {epoch_ms / steps:5.3f} ms{data}",
            flush=True,
        )


def step_in_epoch(told: CallbackParams) -> int:
    """The step within its epoch, from 1."""
    if "step_in_epoch" in told or not told.get("batch_num"):
        return int(told.get("step_in_epoch", told.cur_step_num))
    return int((told.cur_step_num - 1) % told.batch_num + 1)
