"""LearningRateScheduler: a callback that sets the optimizer's learning rate after every step."""

import inspect
import math
from collections.abc import Callable

from distsummary.base.checks import check_number
from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.training.callbacks import Callback, RunContext

logger = guarded_log(__name__)

CHANGE = 1e-10  # relative; a smaller difference does not change the learning rate


class LearningRateScheduler(Callback):
    """Sets the learning rate to `learning_rate_function(learning_rate, step)` after every step.

    The new rate holds from the next step on. Of an optimizer with several parameter groups, the function is
    called for each group with that group's rate. All ranks call it: it must return the same on each of them.

        def learning_rate_function(lr, cur_step_num):
            return lr * 0.1 if cur_step_num % 1000 == 0 else lr

        ds.init("runs/decay", optimizer=optimizer, callbacks=ds.LearningRateScheduler(learning_rate_function))

    Args:
        learning_rate_function: takes the current rate (float) and the number of the step that has ended
            (int, counted from 1 over all epochs), and returns the new rate, a finite number >= 0.

    Raises:
        InvalidTypeError: the argument cannot be called with a rate and a step; in the training, the function
            returned no number.
        InvalidValueError: when the training begins, the loop has no optimizer with a learning rate; in the
            training, the function returned a number that is negative, NaN or infinite.
    """

    def __init__(self, learning_rate_function: Callable[[float, int], float]) -> None:
        if not callable(learning_rate_function):
            raise InvalidTypeError(
                "learning_rate_function must be callable, got "
                f"{learning_rate_function!r}; pass a function of the learning rate and the step"
            )
        if not _takes_two(learning_rate_function):
            raise InvalidTypeError(
                "learning_rate_function must take (learning_rate, step), got a function of "
                f"{inspect.signature(learning_rate_function)}; write lambda learning_rate, step: ..."
            )
        self.learning_rate_function = learning_rate_function

    def on_train_begin(self, run_context: RunContext) -> None:
        """Check that there is a learning rate to set."""
        optimizer = run_context.original_args().get("optimizer")
        if optimizer is None or not framework_of(optimizer).learning_rates(optimizer):
            raise InvalidValueError(
                "LearningRateScheduler needs an optimizer with a learning rate, got "
                f"{None if optimizer is None else type(optimizer).__name__}; pass optimizer= to ds.init, Run "
                "or Model"
            )
        super().on_train_begin(run_context)

    def step_end(self, run_context: RunContext) -> None:
        """Set the learning rate of the next step."""
        params = run_context.original_args()
        if params.get("mode") == "eval":
            return
        optimizer, step = params["optimizer"], int(params["cur_step_num"])
        framework = framework_of(optimizer)
        rates = framework.learning_rates(optimizer)
        new = [self._next(rate, step) for rate in rates]
        if new != rates:
            framework.set_learning_rates(optimizer, new)
            logger.info("after step %d, the learning rate changes from %s to %s", step, rates, new)

    def _next(self, rate: float, step: int) -> float:
        given = self.learning_rate_function(rate, step)
        if type(given) is not float:
            given = check_number("the result of learning_rate_function", given)
        if not 0 <= given < math.inf:
            raise InvalidValueError(
                f"the result of learning_rate_function must be finite and >= 0, got {given} for the rate "
                f"{rate} after step {step}"
            )
        return rate if math.isclose(rate, given, rel_tol=CHANGE) else float(given)


def _takes_two(function: Callable[..., object]) -> bool:
    """Whether a function can be called with two arguments; True if Python cannot say."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some built-in functions have no signature.
        return True
    try:
        signature.bind(0.1, 1)
    except TypeError:
        return False
    return True
