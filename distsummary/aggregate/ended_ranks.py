"""The ranks of a run that have ended: all that they recorded, in windows of rising steps.

Their files are read twice: to divide what each rank recorded into lanes, in which steps rise, and then by a
Receiver, lane by lane, the one that is farthest behind first. So memory does not grow with the steps.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from distsummary.aggregate.pending import PendingSteps, Source
from distsummary.aggregate.rank_columns import GRAPH, WINDOW, Bools, RecordedGraph, Window, has_place
from distsummary.aggregate.receiver import Receiver
from distsummary.base.terminal import doing
from distsummary.events.deduplicate import ends_of_attempts
from distsummary.events.rank_stream import Owner, RankStream
from distsummary.events.reader import Damage, Piece
from distsummary.events.scalar_columns import ScalarColumns

MOST_LANES = 4
_NEVER = int(np.iinfo(np.int64).min)  # as a step


class EndedRanks:
    """All that the ranks of one role recorded; damaged parts are skipped and listed in `damage`.

    After a restart, the steps of an attempt count only if they lie before the first step of every later
    attempt, since later attempts repeat the rest. If a rank recorded a value twice for a step, the last one
    counts. An attempt is read from its MindSpore files or, if it has none, from its TensorBoard files.
    What is recorded while the files are read may be left out.

    Args:
        directories: rank -> its directory.

    Attributes:
        directories: by rising ranks. damage: the parts that could not be read.
        run_id: that of the newest events; empty if another program wrote them.
        graph: that of the newest attempt which has one, of its lowest rank.
        scalar_tags: the tags of the scalars.
        superseded, last_steps: how many events do not count because a later attempt repeated their steps,
            and rank -> its last step that counts, of the windows that have been read.
    """

    def __init__(self, directories: Mapping[int, Path]) -> None:
        self.directories = dict(sorted(directories.items()))
        self.damage: list[Damage] = []
        self.run_id = ""
        self.graph: RecordedGraph | None = None
        self.scalar_tags: set[str] = set()
        self.superseded, self.last_steps = 0, dict[int, int]()
        self._graph_attempt = -1
        self._lanes: dict[tuple[int, Owner], _Lanes] = {}
        for count, (rank, directory) in enumerate(self.directories.items()):
            doing("looking through rank", count + 1, len(self.directories))
            stream = RankStream(directory, bulk=False)
            for _, piece in stream.read(mode="skip"):
                self._look(rank, piece)
            self.damage += stream.damage
        attempts = np.array([attempt for _, (_, attempt) in self._lanes], np.int64)
        lows = np.array([lanes.low for lanes in self._lanes.values()], np.int64)
        self._ends = ends_of_attempts(attempts, lows)

    def _look(self, rank: int, piece: Piece) -> None:
        self.run_id = piece.run_id or self.run_id
        if isinstance(piece, ScalarColumns):
            self.scalar_tags.update(piece.tags)
        elif piece.values and piece.values[0].plugin == GRAPH:
            is_newer = piece.attempt > self._graph_attempt
            # Such an event has no step. Of one rank, the last graph counts.
            if self.graph is None or is_newer or self.graph.rank == rank:
                self._graph_attempt = piece.attempt
                self.graph = RecordedGraph(rank, piece.values[0], piece.wall_time)
        elif has_place(piece):
            self.scalar_tags.update(
                value.tag for value in piece.values if value.plugin == "scalar" and value.shard is None
            )
        if _has_steps(piece):
            self._lanes.setdefault((rank, (piece.run_id, piece.attempt)), _Lanes()).divide(piece)

    @property
    def is_empty(self) -> bool:
        """Whether the ranks recorded neither a step nor a graph; they may have a lineage."""
        return self.graph is None and not self._lanes

    @property
    def attempts(self) -> tuple[int, ...]:
        """The attempts that recorded something."""
        return tuple(self._ends)

    def attempt_of(self, step: int) -> int:
        """The attempt whose events count at a step."""
        return next(attempt for attempt, end in self._ends.items() if step < end)

    @property
    def first_repeated(self) -> float:
        """The first step that a later attempt has repeated, inf if there was one attempt."""
        return min(self._ends.values(), default=math.inf)

    def windows(self) -> Iterator[Window]:
        """All steps that count, in windows of rising steps, each of one attempt.

        A window holds about WINDOW scalars; it holds more if ranks recorded more of a step, or, of a rank
        whose steps fall again and again, all that is in its last lane.
        """
        self.superseded, self.last_steps = 0, {}
        highest = max((lanes.high for lanes in self._lanes.values()), default=0)
        for attempt, end in self._ends.items():
            streams: dict[Source, _LaneStream] = {}
            for (rank, owner), lanes in self._lanes.items():
                for lane in range(lanes.count) if owner[1] == attempt else ():
                    # A rank has several owners of one attempt if another run was recorded in its directory.
                    source = Source(rank, lane=len(streams), rises=lane < MOST_LANES - 1)
                    streams[source] = _LaneStream(self.directories[rank], owner, lane, end)
            pending = PendingSteps(attempt, have_ended=True)
            receiver, wanted = Receiver(streams, pending), WINDOW
            for floor in receiver.in_turn():
                if pending.size < wanted and floor < math.inf:
                    continue
                for window in pending.due(floor, floor, 0.0, math.inf).steps:
                    doing("merging step", int(window.steps[0]), highest)
                    yield window
                # Dividing the parts takes time for each of them: only when twice as many scalars have come.
                wanted = max(WINDOW, 2 * pending.size)
            self.superseded += sum(stream.superseded for stream in streams.values())
            for rank, step in pending.last_steps.items():
                self.last_steps[rank] = max(step, self.last_steps.get(rank, step))


def _has_steps(piece: Piece) -> bool:
    return isinstance(piece, ScalarColumns) or has_place(piece)


class _Lanes:
    """Divides what a rank recorded into lanes: each event goes to the first one in which it is no step back.

    A training fills one lane. Values that it records later, of steps that it has passed, fill the next ones.
    In the last of MOST_LANES steps may fall. Of one step, what is in a later lane was recorded later.
    """

    def __init__(self) -> None:
        self.low = int(np.iinfo(np.int64).max)  # the lowest step
        self._newest = [_NEVER] * MOST_LANES

    @property
    def high(self) -> int:
        """The highest step."""
        return max(self._newest)

    @property
    def count(self) -> int:
        """How many lanes hold something."""
        return sum(newest > _NEVER for newest in self._newest)

    def divide(self, piece: Piece) -> dict[int, Piece]:
        """Lane -> the part of a piece that goes there; of the piece that follows the one before."""
        if not isinstance(piece, ScalarColumns):
            self.low = min(self.low, piece.step)
            rises = (lane for lane, newest in enumerate(self._newest) if piece.step >= newest)
            lane = next(rises, MOST_LANES - 1)
            self._newest[lane] = max(self._newest[lane], piece.step)
            return {lane: piece}
        self.low = min(self.low, int(piece.steps.min()))
        found: dict[int, Piece] = {}
        for lane in range(MOST_LANES):
            newest = np.maximum.accumulate(np.maximum(piece.steps, self._newest[lane]))
            self._newest[lane] = int(newest[-1])
            fits = (piece.steps == newest) | (lane == MOST_LANES - 1)
            if fits.all():
                found[lane] = piece
                break
            if fits.any():
                found[lane] = piece.chosen(fits)
            piece = piece.chosen(~fits)
        return found


class _LaneStream(RankStream):
    """The events of one lane of a rank's attempt, of steps before `end`; counts those of later steps."""

    def __init__(self, directory: Path, owner: Owner, lane: int, end: float) -> None:
        super().__init__(directory, owner, bulk=False)
        self.superseded = 0
        self._lanes, self._lane, self._end = _Lanes(), lane, end

    def read(self, limit: int = sys.maxsize, *, mode: str = "tail") -> Iterator[tuple[Path, Piece]]:
        """As of RankStream."""
        for file, piece in super().read(limit, mode=mode):
            mine = self._lanes.divide(piece).get(self._lane) if _has_steps(piece) else None
            if mine is None:
                continue
            if not isinstance(mine, ScalarColumns):
                if mine.step < self._end:
                    yield file, mine
                else:
                    self.superseded += 1
                continue
            counts: Bools = mine.steps < self._end
            self.superseded += int(np.count_nonzero(~counts))
            if counts.any():
                yield file, mine if counts.all() else mine.chosen(counts)
