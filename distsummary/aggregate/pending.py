"""PendingSteps: what ranks have reported of steps that are not merged yet, and which of it is due."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from distsummary.aggregate.rank_columns import (
    GRAPH,
    ColumnBuffer,
    RankColumns,
    RecordedGraph,
    TagNumbers,
    Window,
    has_place,
    window_of,
)
from distsummary.events.reader import Piece
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.format.own_tags import SYSTEM_TAGS

MAX_HELD = 1 << 23
_NEVER = np.iinfo(np.int64).min  # as a step
_LANE = 40  # bits of the number of a part, before that of its lane


class Source(NamedTuple):
    """Where events come from: a rank or, of one that has ended, a lane of it (see `ended_ranks`).

    `rises`: whether the steps of one that has ended never fall.
    """

    rank: int
    lane: int = 0
    rises: bool = True


@dataclass(slots=True)
class _Older:
    """What came of a step that a rank had passed already, or may come of it at any time.

    `until`: due when every rank has reported a later step than this one. `first_s`: when the first rank
    reported it, by the clock of `PendingSteps.due`.
    """

    until: int
    first_s: float | None = None
    parts: list[RankColumns] = field(default_factory=list)


class Due(NamedTuple):
    """What is due: complete `steps`, `late` values of steps before, and `sampled` ones.

    `short`: how many of the steps were given up waiting for. `samplers`: step -> the ranks that have reported
    samples of it, due or not.
    """

    steps: list[Window]
    late: Window | None
    sampled: Window | None
    short: int
    samplers: Mapping[int, set[int]]


class PendingSteps:
    """Keeps what the ranks of one attempt report until it is due.

    While they train, what a rank reports of the newest of its steps is due with this step. What it reports of
    an older step, or of one that is merged already, is `late`: due when all ranks have reported a step beyond
    the newest one that this rank had reported when it was read. So are tags that begin with SYSTEM_TAGS,
    which a rank may report at any time during a step; they alone wait as long as it takes. Of ranks that have
    ended, everything is due with its step.

    Args:
        attempt: that of the ranks.
        max_held: scalars that wait; beyond it, the older half of the steps is due.
        have_ended: whether the ranks have ended, and their sources give each step before it is due.

    Attributes:
        reached: source -> the newest step that it has reported.
        graph: the graph that the lowest rank recorded; it has no step.
    """

    def __init__(self, attempt: int, *, max_held: int = MAX_HELD, have_ended: bool = False) -> None:
        self.reached: dict[Source, int] = {}
        self.graph: RecordedGraph | None = None
        self._attempt, self._max_held = attempt, math.inf if have_ended else max_held
        self._have_ended = have_ended
        self._front: float = -math.inf  # the newest step that was due
        self._tags = TagNumbers()
        self._is_sampled = np.empty(0, np.bool_)  # by the number of a tag
        self._number = 0  # of the next part
        self._steps = ColumnBuffer()
        self._late: dict[int, _Older] = {}
        self._sampled: dict[int, _Older] = {}
        self._newest = _NEVER  # of all steps
        self._reports: deque[tuple[float, int]] = deque()  # time, and the newest step at that time

    @property
    def size(self) -> int:
        """How much waits for its step to be complete, in scalars."""
        return self._steps.size

    @property
    def last_steps(self) -> dict[int, int]:
        """Rank -> the highest step that it has reported, in the order of the ranks."""
        found: dict[int, int] = {}
        for source, step in sorted(self.reached.items()):
            found[source.rank] = max(step, found.get(source.rank, step))
        return found

    def add(self, source: Source, pieces: Iterable[Piece]) -> None:
        """Keep what a rank recorded, in the order in which it did."""
        if self._have_ended:
            if (whole := self._part(source, pieces)) is not None:
                self.reached[source] = max(whole.high, self.reached.get(source, whole.high))
                self._keep_timely(whole)
            return
        timely: list[Piece] = []
        late: list[Piece] = []
        for piece in pieces:
            reached = self.reached.get(source, _NEVER)
            if isinstance(piece, ScalarColumns):
                # A scalar is late if its rank, or the merged run, had passed its step already.
                newest = np.maximum.accumulate(np.maximum(piece.steps, reached))
                is_late = (piece.steps < newest) | (piece.steps <= self._front)
                self.reached[source] = int(newest[-1])
                if is_late.any():
                    late.append(piece.chosen(is_late))
                    piece = piece.chosen(~is_late)
                if piece.steps.size:
                    timely.append(piece)
            elif piece.values and piece.values[0].plugin == GRAPH:
                if self.graph is None or source.rank <= self.graph.rank:
                    self.graph = RecordedGraph(source.rank, piece.values[0], piece.wall_time)
            elif has_place(piece):
                self.reached[source] = max(piece.step, reached)
                is_timely = piece.step >= reached and piece.step > self._front
                (timely if is_timely else late).append(piece)
        for some, is_late_one in ((timely, False), (late, True)):
            part = self._part(source, some) if some else None
            if part is None:
                continue
            if len(self._tags) > len(self._is_sampled):
                self._is_sampled = np.array([tag.startswith(SYSTEM_TAGS) for tag in self._tags], np.bool_)
            # Samples of the system never hold a step back, and wait by themselves.
            sampled, rest = part.divided(self._is_sampled)
            if sampled is not None:
                _keep(self._sampled, sampled, self.reached[source])
            if rest is not None and is_late_one:
                _keep(self._late, rest, self.reached[source])
            elif rest is not None:
                self._keep_timely(rest)

    def _part(self, source: Source, pieces: Iterable[Piece]) -> RankColumns | None:
        # Of a rank, what is in a later lane was recorded later; see `ended_ranks`.
        number = (source.lane << _LANE) + self._number
        self._number += 1
        return RankColumns.of(source.rank, number, pieces, self._tags)

    def _keep_timely(self, part: RankColumns) -> None:
        self._steps.add(part)
        self._newest = max(self._newest, part.high)

    def due(self, floor: float, strict_floor: float, now_s: float, wait_s: float) -> Due:
        """Take what is due.

        Args:
            floor: the steps below it are complete. strict_floor: those below it will not be reported again.
            now_s, wait_s: what was reported at `now_s - wait_s` or before is due, complete or not.
        """
        before = now_s - wait_s
        # When each newest step was seen first, to know from when on it need not be awaited.
        if self._newest > (self._reports[-1][1] if self._reports else self._front):
            self._reports.append((now_s, self._newest))
        for older in self._late.values():
            older.first_s = now_s if older.first_s is None else older.first_s
        # Complete steps are due, also those that have waited too long, and the older half if memory is short.
        last = floor - 1
        while self._reports and self._reports[0][0] <= before:
            last = max(last, self._reports.popleft()[1])
        if self._steps.size > self._max_held:
            last = max(last, self._steps.middle())
        steps = [window_of(self._attempt, group, [*self._tags]) for group in self._steps.take(last + 1)]
        if steps:
            self._front = max(self._front, int(steps[-1].steps[-1]))
        numbers = [step for window in steps for step in window.steps.tolist()]
        return Due(
            steps,
            samplers={
                step: {part.rank for part in self._sampled[step].parts}
                for step in numbers
                if step in self._sampled
            },
            late=self._leading(self._late, strict_floor, before),
            sampled=self._leading(self._sampled, strict_floor, -math.inf),
            short=sum(step >= floor for step in numbers),
        )

    def _leading(self, kept: dict[int, _Older], floor: float, before: float) -> Window | None:
        """Take the steps, in rising order, up to the first one that is not due."""
        due: list[_Older] = []
        for step in sorted(kept):
            older = kept[step]
            if older.until >= floor and (older.first_s is None or older.first_s > before):
                break
            due.append(kept.pop(step))
        if not due:
            return None
        parts = sorted(chain.from_iterable(older.parts for older in due), key=attrgetter("rank", "number"))
        return window_of(self._attempt, parts, [*self._tags])


def _keep(kept: dict[int, _Older], part: RankColumns, until: int) -> None:
    """Keep a part by its steps; `until` as in _Older."""
    for step in np.unique(part.steps).tolist():
        older = kept.setdefault(step, _Older(until))
        older.until = max(older.until, until)
        if (since := part.since(step)) is not None and (of_step := since.before(step + 1)) is not None:
            older.parts.append(of_step)
