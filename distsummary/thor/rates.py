"""A number that may change with the step: a list, a function, or what a scheduler of torch says."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidTypeError, InvalidValueError

# A number, numbers by step (also an array or tensor), a function of the step, or a scheduler (get_last_lr).
Given: TypeAlias = float | Sequence[float] | Callable[[int], float] | Any
logger = guarded_log(__name__)


class Rate:
    """What `learning_rate` or `damping` is at each step.

    Args:
        field: the name of the argument, for messages.
        given: a number >= 0; a list, array or tensor of numbers by step, whose last one holds for all later
            steps; a function of the number of the step, from 0; or a scheduler of torch, whose first rate
            holds.

    Attributes:
        first: the number at step 0.

    Raises InvalidTypeError or InvalidValueError for anything else.
    """

    def __init__(self, field: str, given: Given) -> None:
        self._field = field
        self._of: Callable[[int], float] | None = None
        if hasattr(given, "get_last_lr"):
            self._of = lambda step: given.get_last_lr()[0]
        elif callable(given) and not hasattr(given, "tolist"):
            self._of = given
        else:
            values = given.tolist() if hasattr(given, "tolist") else given
            if isinstance(values, str) or not isinstance(values, Sequence):
                self.first = self._checked(values)
                return
            if not values:
                raise InvalidValueError(f"{field} must hold a number at least, got an empty list; pass one")
            self._values = [self._checked(value) for value in values]
            self._of, self._has_ended = self._listed, False
        self.first = self._checked(self._of(0))

    def at(self, step: int) -> float | None:
        """The number at a step, from 0; None if it was given as a number, which the optimizer's groups keep.

        Raises InvalidTypeError or InvalidValueError if the function or scheduler gives no number >= 0.
        """
        return None if self._of is None else self._checked(self._of(step))

    def _listed(self, step: int) -> float:
        if step >= len(self._values) and not self._has_ended:
            self._has_ended = True
            logger.warning(
                "THOR: %s holds %d numbers, and step %d has none: the last one, %g, holds from now on",
                self._field, len(self._values), step + 1, self._values[-1],
            )  # fmt: skip
        return self._values[min(step, len(self._values) - 1)]

    def _checked(self, value: object) -> float:
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise InvalidTypeError(
                f"{self._field} must be a number, a list of numbers, a function of the step or a scheduler, "
                f"got {value!r} of type {type(value).__name__}"
            )
        number = float(value)
        if not 0 <= number < math.inf:
            raise InvalidValueError(f"{self._field} must be finite and >= 0, got {number}; such as 0.03")
        return number
