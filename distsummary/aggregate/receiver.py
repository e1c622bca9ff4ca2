"""Follows the ranks of one attempt: takes their digests, and reads the files of those that send none."""

import logging
import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from distsummary.aggregate.rank_tail import FileRange, RankTail, place_of, rows_in
from distsummary.aggregate.waiting import Waiting
from distsummary.events.reader import Damage, Piece, ReadEvent
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.format.digest import BulkName, Digest
from distsummary.format.records import LINEAGE_PLUGINS, NORMS, TENSORBOARD_PLUGINS, is_part
from distsummary.format.scalar_rows import row_dtype, row_struct
from distsummary.rundir.timeouts import WAIT_S

SILENT_S = 2.0  # a rank that has reported a step, and nothing since, has reported all of it
LOOK_S = 3.0  # the files of a rank that sends digests are looked at when it has sent none for this long
POLL_S = 0.4  # the longest that one `poll` takes
SLOW_S = 0.001  # a rank; a disk that takes longer is read by several threads at a time
READERS = 32  # these threads
_EVENTS = 100_000  # of all ranks that are read in one round, to hold few of them in memory
_LEAST_EVENTS = 256  # of one rank: as many as are decoded at once

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Rank:
    """One rank: `seq` is the last event that was taken; `reported` the last one that a digest has named.

    Times are by the clock of `advance`; None: since its last call.
    """

    tail: RankTail
    seq: int = 0
    reported: int = 0
    is_sending: bool = False
    has_lived: bool = False
    is_ended: bool = False
    is_drained: bool = False  # ended, and its files have been read to their ends since
    last_seen_s: float | None = -math.inf
    looked_s: float | None = -math.inf  # when its files held nothing new


class _Read(NamedTuple):
    """What was read of one rank: `waited_s`: the time without the CPU; `reported`: as in _Rank, before it."""

    pieces: list[Piece]
    waited_s: float
    reported: int
    error: OSError | None


class Receiver:
    """Puts what the ranks report into `waiting`, each event once, and knows how far they are.

    `add` may be called from any thread, the other methods from one.

    Args:
        directories: rank -> its directory, of ranks 0, 1, ...; they may appear later.
        role, run_id, attempt: whose events to take.
        waiting: receives them.

    Attributes:
        sharded: how many shards are left out, since only those of histograms and norms can be put together.
    """

    def __init__(
        self, directories: Mapping[int, Path], *, role: str, run_id: str, attempt: int, waiting: Waiting
    ) -> None:
        self.sharded = 0
        self._role, self._attempt = role, attempt
        self._waiting = waiting
        self._ranks = {
            rank: _Rank(RankTail(directory, run_id, attempt)) for rank, directory in directories.items()
        }
        self._inbox: deque[Digest] = deque()
        self._next = 0  # the rank that the next poll begins with
        self._is_disk_slow = False
        self._unread = set(self._ranks)  # the ranks whose files have not been read to their ends yet
        self._first_s: float | None = None
        self._now_s = 0.0
        self._trouble = ""

    @property
    def is_caught_up(self) -> bool:
        """Whether all that the files held at the beginning has been read."""
        return not self._unread

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged parts of files that were skipped."""
        return tuple(damage for rank in self._ranks.values() for damage in rank.tail.damage)

    def add(self, digest: Digest) -> None:
        """Receive a rank's digest; the next `poll` or `advance` takes it."""
        self._inbox.append(digest)

    def _take_inbox(self) -> None:
        while self._inbox:
            digest = self._inbox.popleft()
            rank = self._ranks.get(digest.rank)
            if rank is not None and (digest.role, digest.attempt) == (self._role, self._attempt):
                self._take(rank, digest)

    def _take(self, rank: _Rank, digest: Digest) -> None:
        """Take a digest, or note that the files have to be read, because one before it was lost."""
        rank.is_sending, rank.last_seen_s = True, None
        rank.reported = max(rank.reported, digest.last_seq)
        if digest.first_seq != rank.seq + 1 or (digest.bulk and not digest.file):
            return
        rank.seq = digest.last_seq
        place = rank.tail.reported(digest.file, digest.end)
        bulk = deque(digest.bulk)
        for tags, rows in digest.scalars:
            size = row_dtype(len(tags)).itemsize
            table = np.frombuffer(rows, row_dtype(len(tags)))
            heads = zip(table["step"].tolist(), table["wall_time"].tolist(), strict=True)
            for row, (step, wall_s) in enumerate(heads):
                while bulk and bulk[0].step < step:  # were reported before: values come in order
                    self._take_bulk(digest.rank, bulk.popleft(), place)
                packed = rows[row * size : (row + 1) * size]
                self._waiting.add_row(digest.rank, step, wall_s, tags, packed)
        for name in bulk:
            self._take_bulk(digest.rank, name, place)

    def _take_bulk(self, number: int, name: BulkName, place: FileRange | None) -> None:
        waiting, key = self._waiting, (name.plugin, name.tag)
        if place is None:
            return
        if not name.is_shard:
            waiting.add_bulk(number, name.step, name.wall_time, key, place)
        elif name.plugin in ("histogram", NORMS):
            waiting.add_shard(number, name.step, name.wall_time, key, place)
        else:  # only these can be put together
            self.sharded += 1

    def _take_event(self, number: int, rank: _Rank, event: ReadEvent) -> None:
        if event.seq <= rank.seq:
            return
        rank.seq = event.seq
        place = place_of(event)
        tags, numbers = [], []
        for value in event.values:
            if value.plugin == "scalar" and value.shard is None:
                tags.append(value.tag)
                numbers.append(value.data)
            elif value.plugin not in LINEAGE_PLUGINS and value.plugin not in TENSORBOARD_PLUGINS:
                name = BulkName(event.step, value.plugin, value.tag, is_part(value), event.wall_time)
                self._take_bulk(number, name, place)
        if tags:
            packed = row_struct(len(tags)).pack(event.wall_time, event.step, *numbers)
            self._waiting.add_row(number, event.step, event.wall_time, tuple(tags), packed)

    def _take_columns(self, number: int, rank: _Rank, columns: ScalarColumns) -> None:
        is_new = columns.seqs > rank.seq
        if not is_new.all():
            columns = columns.chosen(is_new)
        for step, wall_s, tags, packed in rows_in(columns):
            self._waiting.add_row(number, step, wall_s, tags, packed)
        rank.seq = max(rank.seq, int(columns.seqs.max(initial=0)))

    def poll(self, budget_s: float = POLL_S) -> None:
        """Read what the files of the ranks hold that no digest reported; may leave ranks to the next call."""
        self._take_inbox()
        end_s = time.monotonic() + budget_s
        order = [*range(self._next, len(self._ranks)), *range(self._next)]
        to_read = [number for number in order if self._has_to_read(self._ranks[number])]
        self._unread.intersection_update(to_read)
        waited_s = []
        for reads in self._reads(to_read):
            for number, read in reads:  # all of them: what has been read is not read again
                waited_s.append(read.waited_s)
                if self._take_read(number, self._ranks[number], read):
                    self._unread.discard(number)
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
        rank = self._ranks[number]
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        pieces: list[Piece] = []
        error = None
        try:
            pieces = rank.tail.read(max(_LEAST_EVENTS, _EVENTS // len(self._ranks)))
        except OSError as raised:
            error = raised
        waited_s = (time.perf_counter() - began_s) - (time.thread_time() - began_cpu_s)
        return _Read(pieces, waited_s, rank.reported, error)

    def _take_read(self, number: int, rank: _Rank, read: _Read) -> bool:
        """Take what was read of a rank; returns whether there is no more of it now."""
        if read.error is not None:
            trouble = f"the files in {rank.tail.directory} cannot be read: {read.error}"
            if trouble != self._trouble:
                self._trouble = trouble
                logger.warning("%s", trouble)
            rank.is_drained = rank.is_ended
            return True
        for piece in read.pieces:
            if isinstance(piece, ScalarColumns):
                self._take_columns(number, rank, piece)
            else:
                self._take_event(number, rank, piece)
        if read.pieces:
            rank.last_seen_s = None
        if not rank.tail.is_at_end:
            return False
        rank.seq = max(rank.seq, read.reported)  # the files hold what was reported, except for lineage
        rank.is_drained = rank.is_ended
        rank.looked_s = None
        return True

    def _has_to_read(self, rank: _Rank) -> bool:
        if not rank.is_sending or rank.reported > rank.seq or (rank.is_ended and not rank.is_drained):
            return True
        last_seen_s, looked_s = rank.last_seen_s, rank.looked_s
        return (
            last_seen_s is not None
            and looked_s is not None
            and self._now_s - max(last_seen_s, looked_s) > LOOK_S
        )

    def read_to_the_end(self) -> None:
        """Take all that is left: the ranks have ended."""
        for rank in self._ranks.values():
            rank.is_ended, rank.is_drained = True, False
        while not all(rank.is_drained for rank in self._ranks.values()):
            self.poll()
        self._unread.clear()

    def floors(self, living: Collection[int], now: float) -> tuple[float, float]:
        """The first step that is not complete, and the first that a rank may still report more of.

        Args:
            living: the ranks that have registered and not ended.
            now: the time in seconds, by any clock that does not go back.
        """
        self._take_inbox()
        self._now_s = now
        floor = strict_floor = math.inf
        for number, rank in self._ranks.items():
            if rank.last_seen_s is None:
                rank.last_seen_s = now
                self._first_s = now if self._first_s is None else self._first_s
            if rank.looked_s is None:
                rank.looked_s = now
            if number in living:
                rank.has_lived, rank.is_ended, rank.is_drained = True, False, False
            elif (rank.has_lived or rank.seq) and not rank.is_ended:
                rank.is_ended = True
            if rank.is_drained:
                continue
            reached = self._waiting.reached.get(number)
            if reached is None:
                waits = self._unread or self._first_s is None or now - self._first_s < WAIT_S
                if rank.has_lived or waits:
                    floor = strict_floor = -math.inf
                continue
            quiet_s = (now if rank.is_sending else rank.looked_s) - rank.last_seen_s
            is_silent = quiet_s >= SILENT_S and rank.reported <= rank.seq and not self._unread
            floor = min(floor, reached + 1 if is_silent else reached)
            strict_floor = min(strict_floor, reached)
        return floor, strict_floor
