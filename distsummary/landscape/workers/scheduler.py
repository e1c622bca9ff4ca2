"""Who evaluates which chunk: decisions only, no processes and no clock."""

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distsummary.errors import InvalidValueError
from distsummary.landscape.directions.recipe import Array
from distsummary.landscape.engines.plan import Chunk

MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Points with a result (lost ones included) of all points."""

    done: int
    total: int


class Scheduler:
    """Hands chunks to workers that ask, until each has a result.

    Workers evaluate what they hold in order. When nothing waits, a worker that asks gets a chunk that another
    holds: first one that is not begun yet, then one that is; results are the same whoever gives them, and the
    first counts. Chunks of a lost worker go to the front of the queue again; the one it was at is given up
    when it was lost `max_attempts` times: its values are NaN and it stands in `abandoned`.

    Args:
        chunks: all of them. results: those that are known already, float64 (points, quantities).
        quantities: how many numbers a point has.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        results: Mapping[Chunk, Array] | None = None,
        quantities: int = 1,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        known = results or {}
        self._chunks = tuple(chunks)
        self._quantities = quantities
        self._max_attempts = max_attempts
        self.results: dict[Chunk, Array] = {chunk: known[chunk] for chunk in chunks if chunk in known}
        self._waiting = deque(chunk for chunk in chunks if chunk not in self.results)
        self._held: dict[Hashable, list[Chunk]] = {}
        self._losses: dict[Chunk, int] = {}
        self._total = sum(map(len, chunks))
        self._done = sum(map(len, self.results))
        self.abandoned: list[Chunk] = []

    def next_chunk(self, worker: Hashable) -> Chunk | None:
        """A chunk for `worker`, None when there is none for it now (ask again after `done` or `lost`)."""
        chunk = self._waiting.popleft() if self._waiting else self._shared(worker)
        if chunk is not None:
            self._held.setdefault(worker, []).append(chunk)
        return chunk

    def _shared(self, worker: Hashable) -> Chunk | None:
        """A chunk without a result that one other worker alone holds; rather one that it has not begun."""
        if self._held.get(worker):
            return None  # it is at work itself
        holders = Counter(chunk for held in self._held.values() for chunk in held)
        open_ = [
            (place == 0, chunk)
            for held in self._held.values()
            for place, chunk in enumerate(held)
            if chunk not in self.results and holders[chunk] == 1
        ]
        return min(open_, key=lambda entry: entry[0])[1] if open_ else None

    def done(self, worker: Hashable, chunk: Chunk, values: Array) -> bool:
        """Take the quantities, float64 (points, quantities), of a chunk; False: it was known already."""
        if np.shape(values) != (len(chunk), self._quantities):
            raise InvalidValueError(
                f"{chunk} has {len(chunk)} points of {self._quantities} quantities, "
                f"got values of shape {np.shape(values)}"
            )
        self._held[worker].remove(chunk)
        return self._settle(chunk, np.asarray(values, np.float64))

    def _settle(self, chunk: Chunk, values: Array) -> bool:
        if chunk in self.results:
            return False
        self.results[chunk] = values
        self._done += len(chunk)
        return True

    def lost(self, worker: Hashable) -> list[Chunk]:
        """`worker` is gone: put its chunks back; returns those that are given up now.

        Only the chunk it was at counts an attempt: those behind it cannot have killed it.
        """
        held = self._held.pop(worker, [])
        elsewhere = {chunk for others in self._held.values() for chunk in others}
        self._waiting.extendleft(c for c in reversed(held) if c not in self.results and c not in elsewhere)
        if not held or held[0] in self.results:
            return []
        first = held[0]
        self._losses[first] = self._losses.get(first, 0) + 1
        if self._losses[first] < self._max_attempts or first in elsewhere:
            return []
        self._waiting.remove(first)
        self._settle(first, np.full((len(first), self._quantities), np.nan))
        self.abandoned.append(first)
        return [first]

    @property
    def waiting(self) -> int:
        """Chunks that no worker holds."""
        return len(self._waiting)

    @property
    def is_finished(self) -> bool:
        """Whether every chunk has a result."""
        return len(self.results) == len(self._chunks)

    def progress(self) -> Counts:
        """How far it is, in points."""
        return Counts(done=self._done, total=self._total)
