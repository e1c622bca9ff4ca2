"""Forks: what a Run does in a process that was forked from its own, such as a DataLoader worker."""

import math
import mmap
import os
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from distsummary.base.guard import Guard, guarded_log
from distsummary.format.records import PLUGINS

logger = guarded_log(__name__)

FORKED = (
    "values given to the run in a forked process, such as a DataLoader worker, are dropped; return them with "
    "the batch, or send them to the process of the training, and log them there"
)
PROCESSES = 64


class Forks:
    """Counts the values that forked children give to a run, in memory that they share with its process.

    Children inherit no thread that writes, and one writer at most may append to an event file, so nothing is
    recorded in them. Counting takes no lock: another thread may have held it when the process was forked.
    """

    def __init__(self) -> None:
        # A counter for each plugin, in a row of its own for each child: children that run at the same time
        # hardly ever share a row. The last column of the first row says whether a drop was logged.
        shape = (PROCESSES, len(PLUGINS) + 1)
        shared = mmap.mmap(-1, 8 * math.prod(shape))
        self._counts = np.frombuffer(shared, np.int64).reshape(shape)
        self._seen: Counter[str] = Counter()

    def drop(self, values: Mapping[str, int]) -> None:
        """In a child: count values by plugin; the first call in any child says so in the log."""
        for plugin, count in values.items():
            self._counts[os.getpid() % PROCESSES, PLUGINS.index(plugin)] += count
        if any(values.values()) and not self._counts[0, -1]:
            self._counts[0, -1] = 1
            logger.warning("%s (logged once; counted in health() of the training's process)", FORKED)

    def new(self) -> Counter[str]:
        """In the run's process: the values by plugin that children have dropped since the last call."""
        totals = Counter(dict(zip(PLUGINS, self._counts[:, :-1].sum(axis=0).tolist(), strict=True)))
        found, self._seen = totals - self._seen, totals
        return found


class Forkable(Protocol):
    """An object that changes its behaviour in a forked child."""

    def after_fork(self) -> None:
        """Called in the child right after a fork, in its only thread."""


_guard = Guard()
_living: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def register_for_forks(living: Forkable) -> None:
    """Have `after_fork` called in each child that is forked from now on, as long as the object lives."""
    _living.add(living)


def forkables() -> list[Forkable]:
    """All that live, in this process."""
    return list(_living)


def _after_fork_in_child() -> None:
    for living in forkables():
        _guard.call("after a fork", living.after_fork)


os.register_at_fork(after_in_child=_after_fork_in_child)
