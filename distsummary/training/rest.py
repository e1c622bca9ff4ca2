"""Rest: the batches that an epoch which was not over has left."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from distsummary.training.callbacks import length


class Rest:
    """The batches of a loader after those of some steps; from it, a Run knows the steps before.

    Args:
        loader: the loader of the whole epoch.
        steps: how many steps of the epoch were done.
        accumulate: how many batches make a step.
        set_random: called with True before the skipped batches are read, with False after them.

    Attributes:
        loader, steps: as given.
    """

    def __init__(
        self, loader: Iterable[Any], steps: int, accumulate: int, set_random: Callable[[bool], None]
    ) -> None:
        self.loader, self.steps = loader, steps
        self._skipped, self._set_random = steps * accumulate, set_random

    def __iter__(self) -> Iterator[Any]:
        # If no batch is left, those that were done need not be read to be skipped.
        if self._skipped and 0 < length(self.loader) <= self._skipped:
            self._set_random(False)
            return
        # A loader that shuffles does so by these random numbers, and so gives the same order again.
        self._set_random(True)
        batches = iter(self.loader)
        if self._skipped:
            for _ in itertools.islice(batches, self._skipped):
                pass
            self._set_random(False)
        yield from batches
