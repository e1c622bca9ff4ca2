"""Who evaluates which chunk: decisions only, no processes and no clock."""

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distsummary.errors import InvalidValueError
from distsummary.landscape.directions.recipe import Array
from distsummary.landscape.engines.plan import Chunk

MAX_ATTEMPTS = 3
IN_FLIGHT = 2  # calls per worker: the next one is there when it ends one
CALL_S = 0.5  # what a call should take: a call itself costs milliseconds, on both sides


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Points with a result (lost ones included) of all points."""

    done: int
    total: int


def call_size(waiting: int, workers: int, chunk_s: float) -> int:
    """How many chunks to give at once, of so many that wait and take `chunk_s` each; 0.0: not known yet.

    As many as fill a call, and fewer and fewer towards the end, so that all workers end together.
    """
    if chunk_s <= 0:
        return 1
    return max(1, min(int(CALL_S / chunk_s), waiting // (2 * IN_FLIGHT * workers)))


class Scheduler:
    """Hands chunks to workers that ask, some in one call, until each has a result.

    Workers evaluate what they hold in order. When nothing waits, a worker that asks gets a chunk that another
    holds: first one that is not begun yet, then one that is; results are the same whoever gives them, and the
    first counts. Chunks of a lost worker go to the front of the queue again, and those of the call that it
    was at are then given one by one, so that the one that kills is found: when it was lost `max_attempts`
    times alone it is given up, its values are NaN and it stands in `abandoned`.

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
        self._held: dict[Hashable, list[list[Chunk]]] = {}  # by worker: its calls, what they lack
        self._losses: dict[Chunk, int] = {}  # of chunks that are given alone
        self._total = sum(map(len, chunks))
        self._done = sum(map(len, self.results))
        self.abandoned: list[Chunk] = []

    def next_chunks(self, worker: Hashable, most: int = 1) -> list[Chunk]:
        """A call for `worker`, at most so many chunks; none: ask again after `done` or `lost`."""
        call = self._first(most) if self._waiting else self._shared(worker)
        if call:
            self._held.setdefault(worker, []).append(list(call))
        return call

    def _first(self, most: int) -> list[Chunk]:
        call = [self._waiting.popleft()]
        if call[0] in self._losses:
            return call
        while len(call) < most and self._waiting and self._waiting[0] not in self._losses:
            call.append(self._waiting.popleft())
        return call

    def _shared(self, worker: Hashable) -> list[Chunk]:
        """A chunk without a result that one other worker alone holds; rather one that it has not begun."""
        if self._held.get(worker):
            return []  # it is at work itself
        by_worker = [[chunk for call in calls for chunk in call] for calls in self._held.values()]
        holders = Counter(chunk for held in by_worker for chunk in held)
        open_ = [
            (place == 0, chunk)
            for held in by_worker
            for place, chunk in enumerate(held)
            if chunk not in self.results and holders[chunk] == 1
        ]
        return [min(open_, key=lambda entry: entry[0])[1]] if open_ else []

    def done(self, worker: Hashable, chunk: Chunk, values: Array) -> bool:
        """Take the quantities, float64 (points, quantities), of a chunk; False: it was known already."""
        if np.shape(values) != (len(chunk), self._quantities):
            raise InvalidValueError(
                f"{chunk} has {len(chunk)} points of {self._quantities} quantities, "
                f"got values of shape {np.shape(values)}"
            )
        calls = self._held[worker]
        call = next(call for call in calls if chunk in call)
        call.remove(chunk)
        if not call:
            calls.remove(call)
        return self._settle(chunk, np.asarray(values, np.float64))

    def _settle(self, chunk: Chunk, values: Array) -> bool:
        if chunk in self.results:
            return False
        self.results[chunk] = values
        self._done += len(chunk)
        return True

    def lost(self, worker: Hashable) -> list[Chunk]:
        """`worker` is gone: put its chunks back; returns those that are given up now.

        Only the call it was at counts: what is behind it cannot have killed it.
        """
        calls = self._held.pop(worker, [])
        elsewhere = {chunk for others in self._held.values() for call in others for chunk in call}
        held = [chunk for call in calls for chunk in call if chunk not in self.results]
        self._waiting.extendleft(chunk for chunk in reversed(held) if chunk not in elsewhere)
        if not calls:
            return []
        is_known = len(calls[0]) == 1  # which chunk it died of
        for chunk in calls[0]:
            self._losses[chunk] = self._losses.get(chunk, 0) + is_known
        first = calls[0][0]
        if first in self.results or first in elsewhere or self._losses[first] < self._max_attempts:
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
