"""Receiver: follows the streams of the ranks of one attempt, and says which steps are complete."""

import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from distsummary.aggregate.pending import PendingSteps
from distsummary.events.rank_stream import Owner, RankStream
from distsummary.events.reader import Damage, Piece
from distsummary.rundir.timeouts import WAIT_S

SILENT_S = 2.0  # a rank that has reported a step, and nothing since, has reported all of it
POLL_S = 0.4  # the longest that one `poll` takes
SLOW_S = 0.001  # a rank; a disk that takes longer is read by several threads at a time
READERS = 32  # these threads
_EVENTS = 100_000  # of all ranks that are read in one round, to hold few of them in memory
_LEAST_EVENTS = 256  # of one rank: as many as are decoded at once

logger = logging.getLogger(__name__)


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
        directories: rank -> its directory, of ranks 0, 1, ...; they may appear later.
        owner: the attempt to read.
        pending: receives the events.
    """

    def __init__(self, directories: Mapping[int, Path], owner: Owner, pending: PendingSteps) -> None:
        self._pending = pending
        self._ranks = {rank: _Rank(RankStream(path, owner)) for rank, path in directories.items()}
        self._next = 0  # the rank that the next poll begins with
        self._is_disk_slow = False
        self._unread = set(self._ranks)  # the ranks whose files have not been read to their ends yet
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
        order = [*range(self._next, len(self._ranks)), *range(self._next)]
        waited_s = []
        for reads in self._reads(order):
            # Take all of them, even if the time is over: what has been read is not read again.
            for number, read in reads:
                waited_s.append(read.waited_s)
                self._take(number, self._ranks[number], read)
            if time.monotonic() > end_s:
                self._next = (number + 1) % len(self._ranks)
                break
        if waited_s:
            self._is_disk_slow = fmean(waited_s) > SLOW_S

    def _reads(self, numbers: list[int]) -> Iterator[list[tuple[int, _Read]]]:
        """Read the files of ranks; of several at a time if the time goes into waiting for the disk."""
        if not self._is_disk_slow:
            yield from ([(number, self._read(number))] for number in numbers)
            return
        with ThreadPoolExecutor(READERS) as pool:
            for start in range(0, len(numbers), 4 * READERS):
                some = numbers[start : start + 4 * READERS]
                yield list(zip(some, pool.map(self._read, some), strict=True))

    def _read(self, number: int) -> _Read:
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        pieces: list[Piece] = []
        error = None
        try:
            for _, piece in self._ranks[number].stream.read(max(_LEAST_EVENTS, _EVENTS // len(self._ranks))):
                pieces.append(piece)
        except OSError as raised:
            error = raised
        waited_s = (time.perf_counter() - began_s) - (time.thread_time() - began_cpu_s)
        return _Read(pieces, waited_s, error)

    def _take(self, number: int, rank: _Rank, read: _Read) -> None:
        """Take what was read of a rank."""
        if read.pieces:
            self._pending.add(number, read.pieces)
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
        self._unread.discard(number)

    def read_to_the_end(self) -> None:
        """Take all that is left: the ranks have ended."""
        for rank in self._ranks.values():
            rank.is_ended, rank.is_drained = True, False
        while not all(rank.is_drained for rank in self._ranks.values()):
            self.poll()

    def floors(self, living: Collection[int], now: float) -> tuple[float, float]:
        """The first step that is not complete, and the first that a rank may still report more of.

        Args:
            living: the ranks that have registered and not ended.
            now: the time in seconds, by any clock that does not go back.
        """
        floor = strict_floor = math.inf
        for number, rank in self._ranks.items():
            # `poll` does not know the time of this clock and leaves None, which is replaced here.
            if rank.last_seen_s is None:
                rank.last_seen_s = now
                self._first_s = now if self._first_s is None else self._first_s
            if rank.looked_s is None:
                rank.looked_s = now
            reached = self._pending.reached.get(number)
            if number in living:
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
