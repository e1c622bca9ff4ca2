"""Receiver: follows the streams of the ranks of one attempt, and says which steps are complete."""

import math
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import fmean
from typing import NamedTuple

from distsummary.aggregate.pending import PendingSteps, Source
from distsummary.aggregate.rank_columns import WINDOW, room_of
from distsummary.base.guard import guarded_log
from distsummary.events.rank_stream import RankStream
from distsummary.events.reader import Damage, Piece
from distsummary.rundir.timeouts import WAIT_S

SILENT_S = 2.0  # a rank that has reported a step, and nothing since, has reported all of it
POLL_S = 0.4  # the longest that one `poll` takes
SLOW_S = 0.001  # a rank; a disk that takes longer is read by several threads at a time
READERS = 32  # these threads
_EVENTS = 100_000  # of all ranks that are read in one round, to hold few of them in memory
_LEAST_EVENTS = 256  # of one rank: as many as are decoded at once
LEAST_ROOM = 1 << 10  # scalars of one rank that are read in turn

logger = guarded_log(__name__)


@dataclass(slots=True)
class _Rank:
    """One rank; times are by the clock of `floors`, None: since its last call."""

    stream: RankStream
    has_lived: bool = False
    is_ended: bool = False
    is_drained: bool = False  # ended, and its files have been read to their ends since
    last_seen_s: float | None = -math.inf
    looked_s: float | None = -math.inf  # when its files held nothing new


class _Read(NamedTuple):
    """What was read of one rank; `waited_s`: the time without the CPU."""

    pieces: list[Piece]
    waited_s: float
    error: OSError | None


class Receiver:
    """Puts what the ranks record into `pending`, each event once, and knows how far they are.

    Args:
        streams: where the events of each source come from.
        pending: receives the events.
    """

    def __init__(self, streams: Mapping[Source, RankStream], pending: PendingSteps) -> None:
        self._pending = pending
        self._ranks = {source: _Rank(stream) for source, stream in streams.items()}
        self._next = 0  # the place of the source that the next poll begins with
        self._is_disk_slow = False
        self._unread = set(self._ranks)  # the sources that have not been read to their ends yet
        self._first_s: float | None = None
        self._trouble = ""

    @property
    def is_caught_up(self) -> bool:
        """Whether all that the files held at the beginning has been read."""
        return not self._unread

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged parts of files that were skipped."""
        return tuple(damage for rank in self._ranks.values() for damage in rank.stream.damage)

    def poll(self, budget_s: float = POLL_S) -> None:
        """Read what the files of the ranks hold since the last call; may leave ranks to the next one."""
        end_s = time.monotonic() + budget_s
        # Begin where the last poll stopped, so that the time is shared by all ranks.
        sources = [*self._ranks]
        order = sources[self._next :] + sources[: self._next]
        waited_s = []
        for reads in self._reads(order):
            # Take all of them, even if the time is over: what has been read is not read again.
            for source, read in reads:
                waited_s.append(read.waited_s)
                self._take(source, read)
            if time.monotonic() > end_s:
                self._next = (sources.index(source) + 1) % len(sources)
                break
        if waited_s:
            self._is_disk_slow = fmean(waited_s) > SLOW_S

    def _reads(self, sources: list[Source]) -> Iterator[list[tuple[Source, _Read]]]:
        """Read the files of ranks; of several at a time if the time goes into waiting for the disk."""
        if not self._is_disk_slow:
            yield from ([(source, self._read(source))] for source in sources)
            return
        with ThreadPoolExecutor(READERS) as pool:
            for start in range(0, len(sources), 4 * READERS):
                some = sources[start : start + 4 * READERS]
                yield list(zip(some, pool.map(self._read, some), strict=True))

    def _read(self, source: Source, room: float | None = None) -> _Read:
        """Read some events: so many that they take this room in memory, in scalars; None: so many events."""
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        pieces: list[Piece] = []
        error = None
        limit = max(_LEAST_EVENTS, _EVENTS // len(self._ranks)) if room is None else sys.maxsize
        room = math.inf if room is None else room
        try:
            for _, piece in self._ranks[source].stream.read(limit):
                pieces.append(piece)
                room -= room_of(piece)
                if room <= 0:
                    break
        except OSError as raised:
            error = raised
        waited_s = (time.perf_counter() - began_s) - (time.thread_time() - began_cpu_s)
        return _Read(pieces, waited_s, error)

    def _take(self, source: Source, read: _Read) -> None:
        """Take what was read of a rank."""
        rank = self._ranks[source]
        if read.pieces:
            self._pending.add(source, read.pieces)
            rank.last_seen_s = None
        if read.error is not None:
            trouble = f"the files in {rank.stream.directory} cannot be read: {read.error}"
            if trouble != self._trouble:
                self._trouble = trouble
                logger.warning("%s", trouble)
        elif rank.stream.is_at_end:
            rank.looked_s = None
        else:
            return
        # There is nothing more to read now. If the rank has ended, that is final.
        rank.is_drained = rank.is_ended
        self._unread.discard(source)

    def in_turn(self) -> Iterator[float]:
        """Read ranks that have ended to the ends of their files, always the one that is farthest behind.

        Gives, after each read, the first step that is not complete; inf at the end. So `pending` holds
        little, if what is complete is taken from it meanwhile. Raises OSError.
        """
        room = max(LEAST_ROOM, WINDOW // 8 // max(1, len(self._ranks)))
        behind = [(-math.inf, source) for source in sorted(self._ranks)]
        while behind:
            _, source = heappop(behind)
            read = self._read(source, room)
            if read.error is not None:
                raise read.error
            self._take(source, read)
            if not self._ranks[source].stream.is_at_end:
                # Of a source whose steps fall, any step may come until all of it has been read.
                reached = self._pending.reached.get(source, -math.inf) if source.rises else -math.inf
                heappush(behind, (reached, source))
            yield behind[0][0] if behind else math.inf

    def floors(self, living: Collection[int], now: float) -> tuple[float, float]:
        """The first step that is not complete, and the first that a rank may still report more of.

        Args:
            living: the ranks that have registered and not ended.
            now: the time in seconds, by any clock that does not go back.
        """
        floor = strict_floor = math.inf
        for source, rank in self._ranks.items():
            # `poll` does not know the time of this clock and leaves None, which is replaced here.
            if rank.last_seen_s is None:
                rank.last_seen_s = now
                self._first_s = now if self._first_s is None else self._first_s
            if rank.looked_s is None:
                rank.looked_s = now
            reached = self._pending.reached.get(source)
            if source.rank in living:
                rank.has_lived, rank.is_ended, rank.is_drained = True, False, False
            elif (rank.has_lived or reached is not None) and not rank.is_ended:
                rank.is_ended = True
            if rank.is_drained:
                continue
            if reached is None:
                # A rank that has reported nothing holds all steps back as long as it may still begin.
                waits = self._unread or self._first_s is None or now - self._first_s < WAIT_S
                if rank.has_lived or waits:
                    floor = strict_floor = -math.inf
                continue
            # A step is complete when its rank has reported a later one, or nothing for SILENT_S.
            is_silent = rank.looked_s - rank.last_seen_s >= SILENT_S and not self._unread
            floor = min(floor, reached + 1 if is_silent else reached)
            strict_floor = min(strict_floor, reached)
        return floor, strict_floor
