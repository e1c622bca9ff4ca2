"""Decides which worker evaluates which chunk of points; starts no processes and reads no clock."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.engines.worker import ChunkResult

Keep: TypeAlias = Callable[[str, Chunk, ChunkResult], None]  # called with every evaluated chunk
CallPoints: TypeAlias = Callable[[int], int]  # number of workers -> how many points to give one in a call

MAX_ATTEMPTS = 3
IN_FLIGHT = 2  # calls per worker: when one ends, the next one is already waiting at the worker
CALL_S = 0.5  # intended duration of a call, long against the milliseconds that calling costs
LEAST_S = 0.005  # intended least duration of a call, near the end


def call_size(waiting: int, workers: int, point_s: float, least: int = 1) -> int:
    """How many points to give a worker in one call; a point takes `point_s` seconds (0.0: not known yet).

    A call has the points that take CALL_S seconds. When few points are `waiting`, it has fewer, so that all
    `workers` end together, but at least `least`: with some engines each call has a fixed cost.
    """
    if point_s <= 0:
        return least
    share = max(waiting // (2 * IN_FLIGHT * workers), int(LEAST_S / point_s))
    return max(least, min(int(CALL_S / point_s), share))


class Scheduler:
    """Gives workers, on request, several chunks or a part of a chunk per call, until all points have results.

    Workers evaluate their chunks in order. When no chunk waits, an idle worker also gets a chunk that another
    worker holds, preferably a chunk not begun yet; results do not depend on the worker, and the first result
    counts. Chunks of a dead worker return to the front of the queue. To find the chunk that kills workers,
    those of the call at which the worker died are then given one per call, and a chunk that was the only one
    of its call is given in the smallest parts. After MAX_ATTEMPTS deaths a part is given up: its values are
    NaN and it is listed in `abandoned`.

    Args:
        chunks: all chunks.
        known: the chunks, or parts of chunks, that have a result already.
        quantities: the number of quantities per point.
        align: how many points the engine evaluates together; parts of a chunk begin at multiples of it.
        shares: whether idle workers get chunks that others hold. That may leave workers busy at the end.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        known: Collection[Chunk] = (),
        quantities: int = 1,
        align: int = 1,
        shares: bool = True,
    ) -> None:
        columns: dict[object, set[int]] = {}
        for chunk in known:
            columns.setdefault(chunk.row_key, set()).update(chunk.columns)
        rests = [chunk.without(columns.get(chunk.row_key, ())) for chunk in chunks]
        self._quantities, self._align, self._shares = quantities, align, shares
        self.results: dict[Chunk, Array] = {}  # received so far
        self._waiting = deque(rest for rest in rests if rest)
        self._held: dict[str, list[list[Chunk]]] = {}  # worker -> its calls -> chunks not returned yet
        # the only chunk of a call, which cannot be split further -> how many workers died at it, see `lost`
        self._losses: dict[Chunk, int] = {}
        self.missing = self.waiting  # points without a result
        self.abandoned: list[Chunk] = []

    def next_chunks(self, worker: str, points: int = 1) -> list[Chunk]:
        """The chunks of the worker's next call, about `points` points; [] until the next `done` or `lost`."""
        if not self._waiting:
            call = self._shared(worker)
        else:
            chunk = self._waiting.popleft()
            call = [chunk]
            # A chunk at which a worker died is given alone, to find out whether it kills workers.
            if chunk not in self._losses:
                # Parts begin at multiples of `align`; whole chunks follow as far as they fit.
                end = -(-points // self._align) * self._align
                call = [replace(chunk, columns=chunk.columns[:end])]
                if len(chunk) > end:
                    self._waiting.appendleft(replace(chunk, columns=chunk.columns[end:]))
                room = points - len(call[0])
                while (
                    self._waiting and len(self._waiting[0]) <= room and self._waiting[0] not in self._losses
                ):
                    call.append(self._waiting.popleft())
                    room -= len(call[-1])
        if call:
            self._held.setdefault(worker, []).append(list(call))
        return call

    def _shared(self, worker: str) -> list[Chunk]:
        """A chunk without a result that only one other worker holds, preferably one not begun yet."""
        if not self._shares or self._held.get(worker):
            # The worker still has work of its own, or no chunk may be shared.
            return []
        by_worker = [[chunk for call in calls for chunk in call] for calls in self._held.values()]
        holders = Counter(chunk for held in by_worker for chunk in held)
        open_ = [
            (place == 0, chunk)
            for held in by_worker
            for place, chunk in enumerate(held)
            if chunk not in self.results and holders[chunk] == 1
        ]
        return [min(open_, key=lambda entry: entry[0])[1]] if open_ else []

    @property
    def in_flight(self) -> int:
        """How many calls a worker may have: one while a chunk is suspected, see `lost`.

        An answer may be lost with a worker that dies just after it, in its next call; then the wrong chunk
        would be suspected.
        """
        held = (chunk for calls in self._held.values() for call in calls for chunk in call)
        is_suspected = self._losses and not self._losses.keys().isdisjoint([*self._waiting, *held])
        return 1 if is_suspected else IN_FLIGHT

    def done(self, worker: str, chunk: Chunk, values: Array) -> bool:
        """Take a chunk's losses and metrics, (points, quantities); False if it already had a result."""
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
        self.missing -= len(chunk)
        return True

    def lost(self, worker: str, *, was_at_it: bool = True) -> bool:
        """Return the chunks of a dead worker to the queue, or give up the chunk that kills workers.

        The suspects are the chunks of the worker's current call, since later calls cannot have killed it.
        There are none if `was_at_it` is False: the worker was still busy with an earlier scheduler's calls.
        Returns whether there are fewer suspects, or smaller ones, than before.
        """
        calls = self._held.pop(worker, [])
        # Chunks that have a result, or that another worker holds too, need not return to the queue.
        elsewhere = {chunk for others in self._held.values() for call in others for chunk in call}
        missing = [
            [chunk for chunk in call if chunk not in self.results and chunk not in elsewhere]
            for call in calls
        ]
        behind = missing[1:] if was_at_it else missing
        self._waiting.extendleft(reversed([chunk for call in behind for chunk in call]))
        if not was_at_it or not missing or not missing[0]:
            return False
        # One of the chunks of a longer call is to blame. A single chunk is split as far as the engine allows.
        # Only a death at a single part counts against this part.
        suspects = missing[0] if len(calls[0]) > 1 else missing[0][0].split(self._align)
        is_known = len(calls[0]) == len(suspects) == 1
        for chunk in suspects:
            self._losses[chunk] = self._losses.get(chunk, 0) + is_known
        if self._losses[suspects[0]] < MAX_ATTEMPTS:
            self._waiting.extendleft(reversed(suspects))
            return not is_known
        self._settle(suspects[0], np.full((len(suspects[0]), self._quantities), np.nan))
        self.abandoned += suspects
        return True

    @property
    def waiting(self) -> int:
        """Points that no worker holds."""
        return sum(map(len, self._waiting))

    @property
    def is_finished(self) -> bool:
        """Whether every point has a result."""
        return not self.missing
