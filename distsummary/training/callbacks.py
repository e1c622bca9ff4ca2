"""Callbacks: hooks that a training loop calls, with MindSpore's names."""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from distsummary.base.checks import check_int_or_both, check_type
from distsummary.base.guard import Guard, guarded, guarded_log, mark_users
from distsummary.errors import InvalidTypeError, InvalidValueError, MissingParameterError, UsageError
from distsummary.format.own_tags import DATA_WAIT_MS
from distsummary.frameworks.base import framework_of
from distsummary.rundir.topology import DATA_AXES, Topology
from distsummary.training.recorder import Recorder
from distsummary.training.step_context import StepContext
from distsummary.training.values import mean_of, resolve

logger = guarded_log(__name__)

C = TypeVar("C", bound="Callback")

EVENTS = ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end")
STEP_HOOKS = ("on_train_step_begin", "on_train_step_end")
HOOKS = tuple(f"on_{phase}_{event}" for phase in ("train", "eval") for event in EVENTS)


class CallbackParams(dict[str, Any]):
    """The parameters of a loop: a dict whose keys can be read and set as attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __missing__(self, name: str) -> Any:
        raise MissingParameterError(
            f"the loop has no parameter {name!r}; it has {sorted(self)}; use .get({name!r})"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def common_params(callbacks: list["Callback"], network: object, topology: Topology) -> dict[str, Any]:
    """The parameters that training and evaluation have in common, under MindSpore's names."""
    return {
        "batch_num": 0,  # unknown
        "dataset_sink_mode": False,
        "device_number": topology.world_size,
        "list_callback": callbacks,
        "net_outputs": None,
        "network": network,
        "parallel_mode": parallel_mode(topology),
    }


def parallel_mode(topology: Topology) -> str:
    """How the ranks share the work, as MindSpore names it."""
    if topology.world_size == 1:
        return "stand_alone"
    splits = [axis for axis, (_, extent) in topology.mesh.items() if extent > 1 and axis not in DATA_AXES]
    return "hybrid_parallel" if splits else "data_parallel"


def length(loader: object) -> int:
    """The number of batches of a loader, 0 if it has no length."""
    try:
        return len(loader)  # type: ignore[arg-type]  # any iterable is asked; some have no length
    except Exception:
        # A class of the user's may raise anything, and the steps are counted as they come.
        return 0


class Batches(Iterator[Any]):
    """The batches that a loop takes from a run: as many as the loader has, as a progress bar asks."""

    def __init__(self, batches: Iterator[Any], loader: Iterable[Any]) -> None:
        self._batches, self._loader = batches, loader

    def __iter__(self) -> Iterator[Any]:
        # A loop over the generator itself has no further call at each step, and closes it where it is left.
        return self._batches

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises TypeError of one without a length


def step_of(run_context: object) -> StepContext:
    """The StepContext of a hook's argument; an empty one if the loop is not ours, such as MindSpore's."""
    step = getattr(run_context, "step", None)
    return step if isinstance(step, StepContext) else StepContext()


def is_sink(params: CallbackParams) -> bool:
    """Whether the loop passes whole epochs to the device (sink mode), so that single steps are invisible."""
    return bool(params.get("dataset_sink_mode"))


def number_of(params: CallbackParams) -> int:
    """What frequencies count: the current step, in sink mode the current epoch; 0 before the first."""
    return int(params.get("cur_epoch_num" if is_sink(params) else "cur_step_num") or 0)


class RunContext:
    """The argument of every hook: gives access to the loop's parameters, and can stop the loop.

    `original_args` are the parameters, as MindSpore has them. `step` is the rest that our loops share with
    their callbacks, which set it; empty in other loops.
    """

    def __init__(self, original_args: CallbackParams) -> None:
        check_type("original_args", original_args, dict)
        self._original_args = original_args
        self.step = StepContext()
        self.is_stop_requested = False

    def original_args(self) -> CallbackParams:
        """The parameters of the loop."""
        return self._original_args

    def request_stop(self) -> None:
        """Ask the loop to stop after this step; the end hooks of epoch and training are still called."""
        self.is_stop_requested = True

    def get_stop_requested(self) -> bool:
        """Whether some callback asked to stop."""
        return self.is_stop_requested


class Callback:
    """Base of all callbacks: override the hooks you need; the others cost nothing.

    A Run calls `on_train_*` and `on_eval_*`. By default each of these calls the method with the older name
    (`begin`, `step_end` ...), which serves training and evaluation. A callback is also a context manager: it
    is entered before the first hook and exited after the last one, also after an exception.

    """

    _own_guard: Guard  # of those with `guarded_hooks`
    recorder: Recorder | None = None  # of a callback that records the values which the user gives to the Run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def discard(self) -> None:
        """Called if the run is closed before its first hook: free what the constructor holds."""

    def begin(self, run_context: RunContext) -> None:
        """Called before the first epoch."""

    def epoch_begin(self, run_context: RunContext) -> None:
        """Called before an epoch."""

    def step_begin(self, run_context: RunContext) -> None:
        """Called before a step."""

    def step_end(self, run_context: RunContext) -> None:
        """Called after a step."""

    def epoch_end(self, run_context: RunContext) -> None:
        """Called after an epoch."""

    def end(self, run_context: RunContext) -> None:
        """Called after the last epoch."""

    def on_train_begin(self, run_context: RunContext) -> None:
        """Called before the first training epoch."""
        self.begin(run_context)

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Called before a training epoch."""
        self.epoch_begin(run_context)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Called before a training step, after its batch has been read."""
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Called after a training step."""
        self.step_end(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Called after a training epoch."""
        self.epoch_end(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """Called after the last training epoch, but not after an exception."""
        self.end(run_context)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Called before an evaluation."""
        self.begin(run_context)

    def on_eval_epoch_begin(self, run_context: RunContext) -> None:
        """Called before the single pass over an evaluation's data."""
        self.epoch_begin(run_context)

    def on_eval_step_begin(self, run_context: RunContext) -> None:
        """Called before a step of an evaluation."""
        self.step_begin(run_context)

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """Called after a step of an evaluation."""
        self.step_end(run_context)

    def on_eval_epoch_end(self, run_context: RunContext) -> None:
        """Called after the single pass over an evaluation's data."""
        self.epoch_end(run_context)

    def on_eval_end(self, run_context: RunContext) -> None:
        """Called after an evaluation, when its metrics are known."""
        self.end(run_context)


def guarded_hooks(*unguarded: str) -> Callable[[type[C]], type[C]]:
    """Decorator for a callback of ours: what fails in its own hooks does not end the training.

    A Run sets `_own_guard`, which counts their failures; in other loops they are logged. After a hook with a
    newer name, the method with the older name is called, which a user may have overridden, outside of the
    guard.

    Args:
        unguarded: hooks that stay as they are, since they call code of the user's.
    """

    def decorate(kind: type[C]) -> type[C]:
        kind._own_guard = Guard()
        for name in (*HOOKS, *EVENTS, "__exit__"):
            method = vars(kind).get(name)
            if method is not None and name not in unguarded:
                own = method if hasattr(method, "__wrapped__") else guarded()(method)
                setattr(kind, name, _with_older(own, name) if name in HOOKS else own)
        return kind

    return decorate


def _with_older(hook: Callable[[Any, RunContext], None], name: str) -> Callable[[Any, RunContext], None]:
    older = older_name(name)

    @functools.wraps(hook)
    def wrapper(self: Callback, run_context: RunContext) -> None:
        hook(self, run_context)
        getattr(self, older)(run_context)

    return wrapper


def older_name(hook: str) -> str:
    """The older name of a hook, which serves training and evaluation."""
    return hook.split("_", 2)[2]


class CallbackList:
    """Callbacks in a fixed order, entered and exited together as context managers.

    `methods` maps each of `HOOKS` to the methods that override it; calling a hook means calling these.
    `at_steps` lists the callbacks with hooks for training steps. `is_entered`: they have been entered.

    Args:
        callbacks: one callback, a list or tuple of callbacks, or None.

    Raises InvalidTypeError for anything but callbacks.
    """

    def __init__(self, callbacks: Callback | Sequence[Callback] | None = None) -> None:
        listed = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else callbacks
        check_type("callbacks", listed, (list, tuple))
        for callback in listed:
            if isinstance(callback, type) and issubclass(callback, Callback):
                name = callback.__name__
                raise InvalidTypeError(f"a callback must be an object, got the class {name}; write {name}()")
            check_type("a callback", callback, Callback)
        self.callbacks: list[Callback] = list(listed)
        self._stack, self.is_entered = contextlib.ExitStack(), False
        self._look_up()

    def __enter__(self) -> Self:
        if not self.is_entered:
            try:
                self._enter_each()
            except BaseException as error:
                mark_users(error)
                raise
        self._look_up()
        return self

    def _enter_each(self) -> None:
        # If one callback cannot be entered, those that were entered before it are exited.
        with contextlib.ExitStack() as stack:
            entered: list[Callback] = []
            for callback in self.callbacks:
                given: object = stack.enter_context(callback)
                if not isinstance(given, Callback):
                    logger.warning(
                        "%s.__enter__ did not return a callback; the original is used",
                        type(callback).__name__,
                    )
                    given = callback
                entered.append(given)
            self.is_entered, self._stack = True, stack.pop_all()
        # The list is changed in place, because it is also the parameter `list_callback`.
        self.callbacks[:] = entered

    def _look_up(self) -> None:
        """Find the methods that each hook calls: a callback's own, or else its method with the older name."""
        found: dict[str, list[Callable[[RunContext], None]]] = {hook: [] for hook in HOOKS}
        at_steps: list[Callback] = []
        for hook, methods in found.items():
            for callback in self.callbacks:
                for name in (hook, older_name(hook)):
                    # What neither the class nor the object overrides is not called, and costs nothing.
                    if getattr(type(callback), name) is not getattr(Callback, name) or name in vars(callback):
                        methods.append(getattr(callback, name))
                        if hook in STEP_HOOKS and all(callback is not one for one in at_steps):
                            at_steps.append(callback)
                        break
        self.methods, self.at_steps = found, at_steps

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stack.__exit__(kind, error, trace)
        except BaseException as another:
            mark_users(another)
            raise


@guarded_hooks()
class LossMonitor(Callback):
    """Prints the loss every `per_print_times` steps (0: never) and stops a training whose loss is not finite.

    The loss is read and checked at every step, so that a NaN stops the training at the step where it occurs;
    a loss on a device is waited for, as in MindSpore. To find NaN without waiting, `ds.init(on_nan="stop")`.
    Only rank 0 prints. In a Run, the loss is the value logged as `loss`.

    Raises:
        InvalidArgumentError: per_print_times is no int. InvalidValueError: it is negative.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        self._per_print_times = check_int_or_both("per_print_times", per_print_times, low=0)
        self._last_printed = 0
        # True also before a training: one that was not seen from its beginning causes no warning.
        self._has_loss = True

    def on_train_begin(self, run_context: RunContext) -> None:
        """Count as if a resumed training had not been interrupted."""
        begun = run_context.original_args().get("cur_step_num", 0)
        self._last_printed = begun - begun % (self._per_print_times or 1)
        self._has_loss = False

    @guarded(UsageError)
    def step_end(self, run_context: RunContext) -> None:
        """Print the loss if it is due; raises InvalidValueError if the loss is NaN or infinite."""
        params = run_context.original_args()
        if params.get("mode") == "eval":
            return
        number = loss_of(params.get("net_outputs"))
        if number is None:
            return
        self._has_loss = True
        if not math.isfinite(number):
            raise InvalidValueError(
                f"{_place(params)}, the loss is {number}{_on_rank(run_context)}; lower the learning rate "
                "or fix the data"
            )
        step = params["cur_step_num"]
        # If the loop went back to an earlier step, print from there on.
        if step < self._last_printed:
            self._last_printed = step - 1
        if 0 < self._per_print_times <= step - self._last_printed:
            self._last_printed = step
            if _is_rank_0(run_context):
                print(f"{_place(params)}, loss is {number}", flush=True)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print the metrics of an evaluation inside the training, if there was one."""
        params = run_context.original_args()
        if params.get("metrics") and _is_rank_0(run_context):
            print(f"Eval result: epoch {params.cur_epoch_num}, metrics: {params.metrics}", flush=True)

    def on_train_end(self, run_context: RunContext) -> None:
        """Warn if the training never gave a loss: then nothing was printed or checked."""
        if not self._has_loss and _is_rank_0(run_context):
            logger.warning("LossMonitor saw no loss; log it at every step by run.log(loss=loss)")


@guarded_hooks()
class TimeMonitor(Callback):
    """Prints, on rank 0, the time of every epoch and of its steps, in milliseconds.

    Args:
        data_size: the number of steps of an epoch, for a loader without a length. By default, such steps are
            counted.
        data_time: also print the mean time per step that was spent waiting for data.

    Raises:
        InvalidArgumentError: data_size is no int. InvalidValueError: it is not positive.
        InvalidTypeError: data_time is no bool.
    """

    def __init__(self, data_size: int | None = None, data_time: bool = False) -> None:
        check_type("data_time", data_time, bool)
        self._data_size = check_int_or_both("data_size", data_size, low=1, optional=True)
        self._data_time = data_time
        # The times are kept by mode, as an evaluation may run inside of a training epoch.
        self._started_s: dict[str, float] = {}
        self._begun_step, self._waited_ms = 0, 0.0

    def epoch_begin(self, run_context: RunContext) -> None:
        """Note the time at which the epoch begins."""
        params = run_context.original_args()
        mode = params.get("mode", "train")
        self._started_s[mode] = time.perf_counter()
        if mode == "train":
            self._begun_step, self._waited_ms = params.get("step_in_epoch", 0), 0.0

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Add up the time spent waiting for data."""
        if self._data_time:
            self._waited_ms += resolve(run_context.step.logged.get(DATA_WAIT_MS, 0.0))

    def epoch_end(self, run_context: RunContext) -> None:
        """Print the times, unless the number of steps is unknown (as in an evaluation without a loader).

        Of an epoch that a resumed training continues with, those of the steps that were left, if any were.
        """
        params = run_context.original_args()
        is_eval = params.get("mode") == "eval"
        started_s = self._started_s.get("eval" if is_eval else "train")
        steps = params.get("batch_num") or self._data_size or params.get("step_in_epoch")
        if isinstance(steps, int) and not is_eval:
            steps -= self._begun_step
        if started_s is None or not isinstance(steps, int) or steps <= 0 or not _is_rank_0(run_context):
            return
        epoch_ms = (time.perf_counter() - started_s) * 1e3
        data = f" (data time: {self._waited_ms / steps:5.3f} ms)" if self._data_time and not is_eval else ""
        print(
            f"{'Eval' if is_eval else 'Train'} epoch time: {epoch_ms:5.3f} ms, "
            f"per step time: {epoch_ms / steps:5.3f} ms{data}",
            flush=True,
        )


def loss_of(outputs: object) -> float | None:
    """The loss in a network's outputs as a float, waiting for its device; None if they hold no number."""
    if outputs is None or type(outputs) is float:
        return outputs
    # Most losses are a tensor of one number, which is found quickly.
    number = framework_of(outputs).number(outputs)
    if number is not None:
        return number
    try:
        mean = mean_of(outputs)
    except (InvalidTypeError, InvalidValueError, OverflowError):
        return None
    return None if mean is None else resolve(mean)


def _place(params: CallbackParams) -> str:
    return f"epoch: {params.get('cur_epoch_num', 1)} step: {step_in_epoch(params)}"


def _is_rank_0(run_context: RunContext) -> bool:
    topology = run_context.step.topology
    return topology is None or topology.rank == 0


def _on_rank(run_context: RunContext) -> str:
    topology = run_context.step.topology
    return "" if topology is None or topology.world_size == 1 else f" on rank {topology.rank}"


def step_in_epoch(params: CallbackParams) -> int:
    """The number of the current step within its epoch, counted from 1."""
    if "step_in_epoch" in params or not params.get("batch_num"):
        return int(params.get("step_in_epoch", params.cur_step_num))
    return int((params.cur_step_num - 1) % params.batch_num + 1)
