"""Steps of a training whose loop is not ours: which calls of optimizers make one step.

Some loops step several optimizers in a step (a GAN), or one optimizer several times (DeepSpeed, once for each
group of parameters). A step is a round in which each optimizer has used its gradients once.
"""

from typing import Any

from torch.utils.weak import WeakIdRef


class StepRounds:
    """Reports where steps end, from the backward passes and the calls of optimizers of one thread.

    A round ends when an optimizer is called again after a further backward pass. From then on the optimizer
    that was called last in it ends each round, at the end of its call. A call without a backward pass since
    the round's end belongs to the round before. If the loop calls optimizers unequally often, each call of
    the one that ends the rounds is a step.
    """

    def __init__(self) -> None:
        self._last: WeakIdRef | None = None
        self._called: dict[WeakIdRef, int] = {}  # in this round -> backward passes before the call
        self._backward = 0  # passes so far
        self._ended_at = -1  # passes at the end of the last round; -1: there was none

    def set_last(self, optimizer: Any) -> None:
        """Each round ends with this optimizer, or with one that is called later; None: that is not known."""
        self._last = None if optimizer is None else WeakIdRef(optimizer)

    def note_backward(self) -> None:
        """A backward pass of the training begins."""
        self._backward += 1

    def begin(self, optimizer: Any) -> bool:
        """An optimizer is called; returns whether the round before has ended only with that."""
        own = WeakIdRef(optimizer)
        # A call without new gradients begins no round, but its closure may still compute some: `end` decides.
        if not self._called and self._is_belated():
            return False
        is_again = own in self._called and (not self._backward or self._called[own] < self._backward)
        # An optimizer that is gone will not be called again either: the round cannot be continued.
        is_over = is_again or any(one() is None for one in self._called)
        if is_over:
            self._last = next(reversed(self._called))
            self._end()
        self._called[own] = self._backward
        return is_over

    def end(self, optimizer: Any) -> bool:
        """The call ends; returns whether the round ends with it."""
        own = WeakIdRef(optimizer)
        if own not in self._called and self._is_belated():
            self._last = own
            return False
        self._called.setdefault(own, self._backward)
        if own != self._last:
            return False
        self._end()
        return True

    def _is_belated(self) -> bool:
        """Whether nothing has computed gradients since the last round; false where no pass is ever seen."""
        return bool(self._backward) and self._backward == self._ended_at

    def _end(self) -> None:
        self._called.clear()
        self._ended_at = self._backward
