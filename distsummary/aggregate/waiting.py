"""What ranks have reported of steps that are not in the merged run yet, and which of it is due."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

from distsummary.aggregate.rank_tail import FileRange
from distsummary.aggregate.statistics import SAMPLED, RecordedScalars
from distsummary.format.records import MAX_TAG_BYTES
from distsummary.format.scalar_rows import MAX_PACKERS, row_dtype, row_struct

MAX_HELD_BYTES = 256 << 20  # of scalars that wait; beyond it, the older half of the steps is due
GRAPH = ("graph", "")  # the key of the graph, whatever its tag
_ROW_BYTES = 150  # that a row takes in addition to its packed numbers

Tags: TypeAlias = tuple[str, ...]
BulkKey: TypeAlias = tuple[str, str]  # plugin and tag
_Part: TypeAlias = tuple[Tags, list[int] | None]  # tags, and their places in the row; None: the whole row


class PackedRow(NamedTuple):
    """Scalars that a rank recorded together; `packed` as in `scalar_rows`."""

    rank: int
    tags: Tags
    packed: bytes


class PendingBulk(NamedTuple):
    """A bulk value of one rank, which is read when it is written."""

    rank: int
    place: FileRange


@dataclass(slots=True)
class PendingStep:
    """What the ranks have reported of one step; times in seconds.

    `until`: it is complete when every rank has reported a later step than this one. `first_s`: when the first
    rank reported it, by the clock of `Waiting.due`. `wall_s`: the latest wall time.
    """

    until: int
    first_s: float | None = None
    wall_s: float = 0.0
    rows: list[PackedRow] = field(default_factory=list)
    bulk: dict[BulkKey, PendingBulk] = field(default_factory=dict)
    shards: dict[BulkKey, dict[int, FileRange]] = field(default_factory=dict)


class Due(NamedTuple):
    """What is due, each by rising steps; `short` of the `steps` were given up waiting for."""

    steps: dict[int, PendingStep]
    late: dict[int, PendingStep]
    sampled: dict[int, PendingStep]
    short: int


class Waiting:
    """Keeps what ranks report until it is due.

    What a rank reports of the newest of its steps is due with this step. What it reports of an older step, or
    of one that is merged already, is `late`: due when all ranks have reported a step beyond the newest one
    that a rank had reported by then. So are the SAMPLED tags, which a rank may report at any time during a
    step; they alone wait as long as it takes.

    Attributes:
        reached: rank -> the newest step that it has reported.
    """

    def __init__(self) -> None:
        self.reached: dict[int, int] = {}
        self._front = -math.inf  # the newest step that was due
        self._steps: dict[int, PendingStep] = {}
        self._late: dict[int, PendingStep] = {}
        self._sampled: dict[int, PendingStep] = {}
        self._graph: tuple[PendingBulk, float] | None = None
        self._parts: dict[Tags, list[tuple[_Part, bool]]] = {}
        self._held = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not (self._steps or self._late or self._sampled or self._graph)

    def add_row(self, rank: int, step: int, wall_s: float, tags: Tags, packed: bytes) -> None:
        """Keep scalars that a rank recorded at a step."""
        for (part, places), is_sampled in self._parts.get(tags) or self._divided(tags):
            pending = self._pending_at(rank, step, wall_s, is_sampled=is_sampled)
            row = packed
            if places is not None:
                _, _, *numbers = row_struct(len(tags)).unpack(packed)
                row = row_struct(len(part)).pack(wall_s, step, *(numbers[place] for place in places))
            pending.rows.append(PackedRow(rank, part, row))
            self._held += len(row) + _ROW_BYTES

    def add_bulk(self, rank: int, step: int, wall_s: float, key: BulkKey, place: FileRange) -> None:
        """Keep where a bulk value is; the lowest rank that has it counts, and its last one.

        A graph has no step: it is due with the first step that is.
        """
        if key[0] == GRAPH[0]:
            if self._graph is None or rank <= self._graph[0].rank:
                self._graph = PendingBulk(rank, place), wall_s
            return
        pending = self._pending_at(rank, step, wall_s)
        known = pending.bulk.get(key)
        if known is None or rank <= known.rank:
            pending.bulk[key] = PendingBulk(rank, place)

    def add_shard(self, rank: int, step: int, wall_s: float, key: BulkKey, place: FileRange) -> None:
        """Keep where a rank's shard of a value is; its last one counts."""
        self._pending_at(rank, step, wall_s).shards.setdefault(key, {})[rank] = place

    def take_graph(self) -> tuple[PendingBulk, float] | None:
        """The graph and its wall time, once."""
        graph, self._graph = self._graph, None
        return graph

    def sampled_at(self, step: int) -> PendingStep | None:
        """The samples of a step that are not due yet."""
        return self._sampled.get(step)

    def _pending_at(self, rank: int, step: int, wall_s: float, *, is_sampled: bool = False) -> PendingStep:
        reached = self.reached.get(rank)
        if reached is None or step > reached:
            reached = self.reached[rank] = step
        kept = self._late
        if is_sampled:
            kept = self._sampled
        elif step == reached and step > self._front:
            kept = self._steps
        pending = kept.get(step)
        if pending is None:
            pending = kept[step] = PendingStep(reached)
        pending.until = max(pending.until, reached) if kept is not self._steps else step
        pending.wall_s = max(pending.wall_s, wall_s)
        return pending

    def _divided(self, tags: Tags) -> list[tuple[_Part, bool]]:
        """The tags that can be written, divided into those that are not sampled and those that are."""
        if len(self._parts) >= MAX_PACKERS:
            self._parts.clear()
        divided: dict[bool, list[int]] = {}
        for place, tag in enumerate(tags):
            if 0 < len(tag.encode(errors="replace")) <= MAX_TAG_BYTES:
                divided.setdefault(tag.startswith(SAMPLED), []).append(place)
        self._parts[tags] = [
            ((tags, None) if len(places) == len(tags) else (tuple(tags[p] for p in places), places), sampled)
            for sampled, places in divided.items()
        ]
        return self._parts[tags]

    def due(self, floor: float, strict_floor: float, now_s: float, wait_s: float) -> Due:
        """Take what is due.

        Args:
            floor: the steps below it are complete. strict_floor: those below it will not be reported again.
            now_s, wait_s: what was reported at `now_s - wait_s` or before is due, complete or not.
        """
        before = now_s - wait_s
        for pending in chain(self._steps.values(), self._late.values()):
            if pending.first_s is None:
                pending.first_s = now_s
        waited = {step for step, pending in self._steps.items() if (pending.first_s or 0.0) <= before}
        last = max([floor - 1, *waited])
        if self._held > MAX_HELD_BYTES and self._steps:
            last = max(last, sorted(self._steps)[len(self._steps) // 2])
        steps = sorted(step for step in self._steps if step <= last)
        self._front = max(self._front, steps[-1]) if steps else self._front
        due = Due(
            {step: self._steps.pop(step) for step in steps},
            _leading(self._late, strict_floor, before),
            _leading(self._sampled, strict_floor, -math.inf),
            sum(step >= floor for step in steps),
        )
        for pending in chain(due.steps.values(), due.late.values(), due.sampled.values()):
            self._held -= sum(len(row.packed) + _ROW_BYTES for row in pending.rows)
        return due


def _leading(waiting: dict[int, PendingStep], floor: float, before: float) -> dict[int, PendingStep]:
    """Take the steps, in rising order, up to the first one that is not due."""
    due: dict[int, PendingStep] = {}
    for step in sorted(waiting):
        pending = waiting[step]
        if pending.until >= floor and (pending.first_s is None or pending.first_s > before):
            break
        due[step] = waiting.pop(step)
    return due


def rows_of(rows: Iterable[PackedRow]) -> RecordedScalars:
    """The scalars of packed rows, given in the order in which each rank recorded them."""
    groups: dict[Tags, list[tuple[int, int, bytes]]] = {}
    for order, (rank, tags, packed) in enumerate(rows):
        groups.setdefault(tags, []).append((order, rank, packed))
    numbers: dict[str, int] = {}
    columns = []
    for tags, group in groups.items():
        orders, by_rank, packed_rows = zip(*group, strict=True)
        of_tags = [numbers.setdefault(tag, len(numbers)) for tag in tags]
        table = np.frombuffer(b"".join(packed_rows), row_dtype(len(tags)))
        columns.append(
            (
                np.tile(np.array(of_tags, np.int64), len(group)),
                np.repeat(np.array(by_rank, np.int64), len(tags)),
                np.repeat(table["step"].astype(np.int64), len(tags)),
                table["numbers"].ravel(),
                np.repeat(np.array(orders, np.int64), len(tags)),
            )
        )
    if not columns:
        empty = np.empty(0, np.int64)
        return RecordedScalars((), empty, empty, empty, np.empty(0))
    which, ranks, steps, values, places = map(np.concatenate, zip(*columns, strict=True))
    if len(columns) > 1:  # the rows of one rank may be in several groups
        back = np.argsort(places, kind="stable")
        which, ranks, steps, values = which[back], ranks[back], steps[back], values[back]
    return RecordedScalars(tuple(numbers), which, ranks, steps, values)
