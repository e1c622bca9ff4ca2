"""Who evaluates which chunk: decisions only, no processes and no clock."""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from distsummary.errors import InvalidValueError
from distsummary.landscape.directions import Array
from distsummary.landscape.plan import Chunk

MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Points with a result (lost ones included) of all points."""

    done: int
    total: int


class Scheduler:
    """Hands chunks to workers that ask, until each has a result.

    Workers evaluate what they hold in order. Chunks of a lost worker go to the front of the queue again; the
    one it was at is given up when it was lost `max_attempts` times: its values are NaN and it stands in
    `abandoned`.
    """

    def __init__(self, chunks: Sequence[Chunk], *, max_attempts: int = MAX_ATTEMPTS) -> None:
        self._waiting = deque(chunks)
        self._held: dict[Hashable, list[Chunk]] = {}
        self._losses: dict[Chunk, int] = {}
        self._total = sum(map(len, chunks))
        self._max_attempts = max_attempts
        self.results: dict[Chunk, Array] = {}
        self.abandoned: list[Chunk] = []

    def next_chunk(self, worker: Hashable) -> Chunk | None:
        """A chunk for `worker`, None when none waits now (ask again after `lost`)."""
        if not self._waiting:
            return None
        chunk = self._waiting.popleft()
        self._held.setdefault(worker, []).append(chunk)
        return chunk

    def done(self, worker: Hashable, chunk: Chunk, values: Array) -> None:
        """Take the losses float64 (len(chunk),) of a chunk that `worker` held."""
        if np.shape(values) != (len(chunk),):
            raise InvalidValueError(
                f"{chunk} has {len(chunk)} points, got values of shape {np.shape(values)}"
            )
        self._held[worker].remove(chunk)
        self.results[chunk] = np.asarray(values, np.float64)

    def lost(self, worker: Hashable) -> list[Chunk]:
        """`worker` is gone: put its chunks back; returns those that are given up now.

        Only the chunk it was at counts an attempt: those behind it cannot have killed it.
        """
        held = self._held.pop(worker, [])
        self._waiting.extendleft(reversed(held))
        if not held:
            return []
        first = held[0]
        self._losses[first] = self._losses.get(first, 0) + 1
        if self._losses[first] < self._max_attempts:
            return []
        self._waiting.popleft()
        self.results[first] = np.full(len(first), np.nan)
        self.abandoned.append(first)
        return [first]

    @property
    def waiting(self) -> int:
        """Chunks that no worker holds."""
        return len(self._waiting)

    @property
    def is_finished(self) -> bool:
        """Whether every chunk has a result."""
        return not self._waiting and not any(self._held.values())

    def progress(self) -> Progress:
        """How far it is, in points."""
        return Progress(done=sum(map(len, self.results)), total=self._total)
