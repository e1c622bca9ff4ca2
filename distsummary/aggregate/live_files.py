"""The merged files of an attempt that still runs: appended, never replaced, each tag once at a step."""

import math
from array import array
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from distsummary.aggregate.merged_files import MERGED, is_merged
from distsummary.aggregate.step_events import step_events
from distsummary.events.files import Files
from distsummary.events.reader import read_directory, read_last_seq
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.norm_totals import with_scalars
from distsummary.format.records import (
    BULK_PLUGINS,
    DIALECTS,
    MAX_TAG_BYTES,
    MINDSPORE,
    TENSORBOARD,
    Batch,
    Event,
    Scalars,
    Value,
)
from distsummary.format.scalar_rows import joined

MAX_QUEUED = 20_000  # steps that wait for a disk that takes nothing; then the oldest ones are left out
_BATCH_VALUES = 20_000  # scalars that are written at once


class _Entry(NamedTuple):
    step: int
    wall_s: float
    scalars: list[Value]
    read: Callable[[], Iterable[Value]] | None  # gives the bulk values


class _Points:
    """The points of one tag, by rising steps."""

    __slots__ = ("_numbers", "_steps")

    def __init__(self) -> None:
        self._steps, self._numbers = array("q"), array("f")

    def add(self, step: int, number: float) -> None:
        self._steps.append(step)
        self._numbers.append(number)

    def holds(self, step: int, number: float) -> bool:
        """Whether this number, as float32, is the point at this step."""
        place = bisect_left(self._steps, step)
        if place == len(self._steps) or self._steps[place] != step:
            return False
        with np.errstate(over="ignore"):
            held, given = self._numbers[place], float(np.float32(number))
        return held == given or (math.isnan(held) and math.isnan(given))


class LiveFiles:
    """Appends the merged values of one attempt to the files of a directory, in both dialects.

    After a restart, what the files hold already is not written again: the caller may give everything from
    the first step on. A file without its newest events, because the process died between the two
    dialects, gets them first.

    Args:
        directory: the run dir, or its directory for the role eval.
        run_id, attempt: the identity of the events.
        files: the file operations to use; None means the real ones. Tests pass a test double.
        begun: the time in the first record of each file, as in `WriterSpec`.

    Attributes:
        differing: how many of the given values the files do not have, although they hold the tag at a later
            step, or hold with another number.
        last_step, last_s: the highest step that was written or is about to be, and the latest wall time.
        has_graph: whether a graph was written.
        left_out: how many steps were left out because the disk took nothing for long.

    Raises RunDirError if the directory cannot be made or written.
    """

    def __init__(
        self,
        directory: Path,
        run_id: str,
        attempt: int,
        files: Files | None = None,
        *,
        begun: float | None = None,
    ) -> None:
        self.differing = 0
        # TensorBoard sorts runs by their first wall time: without a step, that is when the run began.
        self.last_step, self.last_s = 0, begun or 0.0
        self.has_graph = False
        self.left_out = 0
        self._directory = directory
        self._owner = (run_id, attempt)
        self._written: dict[tuple[str, str], int] = {}  # plugin, tag -> last step in the files
        self._points: dict[tuple[str, str], _Points] = defaultdict(_Points)  # of these steps
        self._queue: deque[_Entry] = deque()
        # The writer has this batch and may have written a part of it: after an error it gets it again.
        self._batch: Batch | None = None
        spec = WriterSpec(directory=directory, run_id=run_id, attempt=attempt, begun=begun, source=MERGED)
        self._writer = RankWriter(spec, files)
        if self._writer.last_seq:
            self._read_back()

    def _read_back(self) -> None:
        """Find out what the files hold, and give TensorBoard's file what only MindSpore's has."""
        # The last process may have died after it wrote events to MindSpore's file, and before TensorBoard's.
        last_seq = read_last_seq(self._directory, TENSORBOARD, *self._owner)
        for dialect in DIALECTS:
            for event in read_directory(self._directory, dialect, "skip", skipped=[]):
                if (event.run_id, event.attempt) != self._owner or not is_merged(event.file):
                    continue
                self._note(event.step, event.wall_time, event.values)
                for value in event.values:
                    self.has_graph |= value.plugin == "graph"
                    if dialect == MINDSPORE:
                        number = value.data if value.plugin == "scalar" else 0.0
                        self._points[value.plugin, value.tag].add(event.step, number)
                if dialect == MINDSPORE and event.seq > last_seq:
                    missing = Event(event.step, event.wall_time, event.values)
                    self._writer.write(self._batch_of([missing], event.seq))

    def _note(self, step: int, wall_s: float, values: Iterable[Value]) -> None:
        self.last_step, self.last_s = max(self.last_step, step), max(self.last_s, wall_s)
        for value in values:
            key = (value.plugin, value.tag)
            self._written[key] = max(step, self._written.get(key, step))

    def _batch_of(self, events: Sequence[Event | Scalars], first_seq: int) -> Batch:
        run_id, attempt = self._owner
        return Batch(run_id=run_id, attempt=attempt, rank=0, first_seq=first_seq, events=events)

    def has(self, key: tuple[str, str], step: int) -> bool:
        """Whether the files held a plugin's tag at this step, or at a later one, when they were opened."""
        known = self._written.get(key)
        return known is not None and known >= step

    def holds(self, key: tuple[str, str], step: int, number: float = 0.0) -> bool:
        """As `has`; counts a value that differs. `number`: of a scalar."""
        if not self.has(key, step):
            return False
        self.differing += not self._points[key].holds(step, number)
        return True

    @property
    def spared(self) -> int:
        """How many bulk values were not written, since the disk was nearly full or they were too large."""
        return sum(self._writer.health().dropped.get(plugin, 0) for plugin in BULK_PLUGINS)

    def put(
        self,
        step: int,
        wall_s: float,
        values: Sequence[Value],
        read: Callable[[], Iterable[Value]] | None = None,
    ) -> bool:
        """Queue values of one step, without those that the files had from the beginning; see `flush`.

        Args:
            step: for each tag, the steps must rise.
            wall_s: seconds since the epoch.
            values: are written as they are.
            read: gives more values, when they are about to be written.

        Returns whether the files have or get values, as far as that is known.
        """
        new = []
        for value in values:
            # Such as <tag>/argmax_rank of a long tag: the writer would refuse it at each step.
            if len(value.tag) > MAX_TAG_BYTES // 4 and len(value.tag.encode()) > MAX_TAG_BYTES:
                continue
            if value.plugin != "scalar" or not self.holds(("scalar", value.tag), step, value.data):
                new.append(value)
        if not new and read is None:
            return bool(values)
        if len(self._queue) >= MAX_QUEUED:
            self._queue.popleft()
            self.left_out += 1
        self._queue.append(_Entry(step, wall_s, new, read))
        return True

    def flush(self) -> None:
        """Write what is queued; after an OSError, it stays queued, and the call may be repeated."""
        while self._batch or self._queue:
            if self._batch is None:
                events = list(self._next_events())
                if not events:
                    continue
                items = joined(((event, 0) for event in events), lambda event: event)
                self._batch = self._batch_of(items, self._writer.last_seq + 1)
            self._writer.write(self._batch)
            self._batch = None

    def _next_events(self) -> Iterator[Event]:
        """The events of the next steps; of one step if it has bulk values, to hold few of them in memory."""
        room = _BATCH_VALUES
        while self._queue and room > 0:
            step, wall_s, scalars, read = self._queue[0]
            # A step with bulk values gets a batch of its own.
            if read is not None and room < _BATCH_VALUES:
                return
            events = list(
                step_events(step, wall_s, with_scalars(scalars, read() if read is not None else ()))
            )
            # Only now: if `read` raises, the step stays queued.
            self._queue.popleft()
            room -= _BATCH_VALUES if read is not None else len(scalars)
            if events:
                self.last_step, self.last_s = max(self.last_step, step), max(self.last_s, wall_s)
            yield from events

    def close(self) -> None:
        """Write what is queued and close the files; raises OSError. The call may be repeated."""
        self.flush()
        self._writer.close()

    def abandon(self) -> None:
        """Close the files without writing what is queued."""
        self._writer.close()
