"""Who evaluates which chunk: decisions only, no processes and no clock."""

from collections import Counter, deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distsummary.errors import InvalidValueError
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.engines.chunks import Chunk

MAX_ATTEMPTS = 3
IN_FLIGHT = 2  # calls per worker: the next one is there when it ends one
CALL_S = 0.5  # what a call should take: a call itself costs milliseconds, on both sides
LEAST_S = 0.005  # what it should take at the end too


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Points with a result (lost ones included) of all points."""

    done: int
    total: int


def call_size(waiting: int, workers: int, point_s: float, least: int = 1) -> int:
    """How many points to give at once, of so many that wait and take `point_s` each; 0.0: not known yet.

    As many as fill a call, and fewer and fewer towards the end, so that all workers end together; `least`
    where points share what a call costs.
    """
    if point_s <= 0:
        return least
    share = max(waiting // (2 * IN_FLIGHT * workers), int(LEAST_S / point_s))
    return max(least, min(int(CALL_S / point_s), share))


class Scheduler:
    """Hands chunks to workers that ask, some in one call or a part of one, until each point has a result.

    Workers evaluate what they hold in order. When nothing waits, a worker that asks gets a chunk that another
    holds: first one that is not begun yet, then one that is; results are the same whoever gives them, and the
    first counts. Chunks of a lost worker go to the front of the queue again, and those of the call that it
    was at are then given one by one, at last in the smallest parts, so that the one that kills is found: when
    it was lost `max_attempts` times it is given up, its values are NaN and it stands in `abandoned`.

    Args:
        chunks: all of them. known: those that have results already, or parts of them.
        quantities: how many numbers a point has.
        align: parts of a row of the grid begin at multiples of it: points that the engine takes together.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        known: Collection[Chunk] = (),
        quantities: int = 1,
        align: int = 1,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        columns: dict[Hashable, set[int]] = {}
        for chunk in known:
            columns.setdefault(chunk.row_key, set()).update(chunk.columns)
        rests = [chunk.without(columns.get(chunk.row_key, ())) for chunk in chunks]
        self._quantities, self._align = quantities, align
        self._max_attempts = max_attempts
        self.results: dict[Chunk, Array] = {}  # that came
        self._waiting = deque(rest for rest in rests if rest)
        self._held: dict[Hashable, list[list[Chunk]]] = {}  # by worker: its calls, what they lack
        self._losses: dict[Chunk, int] = {}  # of chunks that are given alone
        self._total = sum(map(len, chunks))
        self._done = self._total - self.waiting
        self.abandoned: list[Chunk] = []

    def next_chunks(self, worker: Hashable, points: int = 1) -> list[Chunk]:
        """A call for `worker`, of about so many points; none: ask again after `done` or `lost`."""
        call = self._first(points) if self._waiting else self._shared(worker)
        if call:
            self._held.setdefault(worker, []).append(list(call))
        return call

    def _first(self, points: int) -> list[Chunk]:
        if self._waiting[0] in self._losses:
            return [self._waiting.popleft()]
        chunk = self._waiting.popleft()
        first = replace(chunk, columns=chunk.columns[: self._aligned(points)])
        if len(first) < len(chunk):
            self._waiting.appendleft(chunk.without(first.columns))
        call, room = [first], points - len(first)
        while self._waiting and len(self._waiting[0]) <= room and self._waiting[0] not in self._losses:
            call.append(self._waiting.popleft())
            room -= len(call[-1])
        return call

    def _aligned(self, points: int) -> int:
        """At least so many points, where parts of a chunk may begin."""
        return -(-points // self._align) * self._align

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

    def lost(self, worker: Hashable, *, was_at_it: bool = True) -> list[Chunk]:
        """`worker` is gone: put its chunks back; returns those that are given up now.

        Only the call it was at counts: what is behind it cannot have killed it. None does where the worker
        was not at it yet, but at what is nobody's any more.
        """
        calls = self._held.pop(worker, [])
        elsewhere = {chunk for others in self._held.values() for call in others for chunk in call}
        missing = [
            [chunk for chunk in call if chunk not in self.results and chunk not in elsewhere]
            for call in calls
        ]
        behind = missing[1:] if was_at_it else missing
        self._waiting.extendleft(reversed([chunk for call in behind for chunk in call]))
        if not was_at_it or not missing or not missing[0]:
            return []
        suspects = missing[0] if len(calls[0]) > 1 else missing[0][0].split(self._align)
        is_known = len(calls[0]) == len(suspects) == 1  # which it died of
        for chunk in suspects:
            self._losses[chunk] = self._losses.get(chunk, 0) + is_known
        if self._losses[suspects[0]] < self._max_attempts:
            self._waiting.extendleft(reversed(suspects))
            return []
        self._settle(suspects[0], np.full((len(suspects[0]), self._quantities), np.nan))
        self.abandoned += suspects
        return suspects

    @property
    def waiting(self) -> int:
        """Points that no worker holds."""
        return sum(map(len, self._waiting))

    @property
    def is_finished(self) -> bool:
        """Whether every point has a result."""
        return self._done == self._total

    def progress(self) -> Counts:
        """How far it is, in points."""
        return Counts(done=self._done, total=self._total)
