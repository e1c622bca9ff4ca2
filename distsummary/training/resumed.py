"""Resumed: where a training stood that another one continues."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from distsummary.training.rest import Rest


@dataclass(kw_only=True)
class Resumed:
    """Where the training that saved a checkpoint stood; `ds.init(resume=...)` takes it.

    Attributes:
        epoch: the number of epochs that were over.
        step: the number of steps that were done.
        step_in_epoch: how many of these belong to the epoch that was not over.
        loss_scale: the state of the loss scale manager of `Model`; None without one.
    """

    epoch: int
    step: int
    step_in_epoch: int = 0
    loss_scale: dict[str, Any] | None = None
    _now: dict[str, Any] | None = field(default=None, repr=False)
    _at_epoch: dict[str, Any] | None = field(default=None, repr=False)

    def rest_of(self, loader: Iterable[Any], *, accumulate: int = 1) -> Iterable[Any]:
        """The batches of the loader that the epoch which was not over had left, an iterable for `run.steps`.

        A loader that shuffles by a random number generator gives the same order again, since the generators
        are first set back to the epoch's beginning, and after the skipped batches to the moment of the save.
        The skipped batches are read from the loader, unless none is left.

        Args:
            loader: the loader of the training that saved the checkpoint.
            accumulate: how many batches made one step, as given to `run.steps`.
        """
        return Rest(
            loader,
            self.step_in_epoch,
            accumulate,
            lambda is_before: self._set((is_before and self._at_epoch) or self._now),
        )

    def begin(self) -> None:
        """Set the random number generators to the beginning of the epoch that was not over."""
        self._set(self._at_epoch or self._now)

    def _set(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            from distsummary.training.random_state import set_random_state

            set_random_state(state)
