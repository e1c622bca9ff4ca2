"""Resumed: where a training stood that another one continues, and the batches that its epoch had left."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from distsummary.training.callbacks import length


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
        return RestOfEpoch(loader, self, accumulate)

    def begin(self, *, is_over: bool = False) -> None:
        """Set the random number generators to the beginning of the epoch, or (`is_over`) to the save."""
        state = self._now if is_over else self._at_epoch or self._now
        if state is not None:
            from distsummary.training.random_state import set_random_state

            set_random_state(state)


@dataclass(frozen=True, slots=True)
class RestOfEpoch:
    """The batches that the resumed epoch has left; from it, a Run has the whole loader and the steps done."""

    loader: Iterable[Any]
    resumed: Resumed
    accumulate: int

    def __iter__(self) -> Iterator[Any]:
        skipped = self.resumed.step_in_epoch * self.accumulate
        # If no batch is left, those that were done need not be read to be skipped.
        if skipped and 0 < length(self.loader) <= skipped:
            self.resumed.begin(is_over=True)
            return
        # A loader that shuffles does so by these random numbers, and so gives the same order again.
        self.resumed.begin()
        batches = iter(self.loader)
        if skipped:
            for _ in itertools.islice(batches, skipped):
                pass
            self.resumed.begin(is_over=True)
        yield from batches
