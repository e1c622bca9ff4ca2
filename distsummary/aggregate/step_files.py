"""StepFiles: the steps of a merged run on their way to its files, each tag once at a step."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from distsummary.aggregate.earlier_merge import EarlierMerge
from distsummary.aggregate.merged_files import StagedWriter, is_merged
from distsummary.aggregate.step_events import step_events
from distsummary.events.reader import read_directory, read_last_seq
from distsummary.events.writer import RankWriter
from distsummary.format.norm_totals import with_scalars
from distsummary.format.own_tags import RANKS_TAG
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

Key: TypeAlias = tuple[str, str]  # plugin and tag
Values: TypeAlias = Callable[[], Iterable[Value]]

MAX_QUEUED = 20_000  # steps that wait for a disk that takes nothing; then the oldest ones are left out
_BATCH_VALUES = 20_000  # scalars that are written at once


class _Entry(NamedTuple):
    step: int
    wall_s: float
    scalars: list[Value]
    read: Values | None  # gives the bulk values
    is_complete: bool


class StepFiles:
    """Gives the merged values of steps to a writer: one that appends, or one that writes aside.

    After a restart, what the files hold already is not written again: the caller may give everything from
    the first step on. A file without its newest events, because the process died between the two
    dialects, gets them first.

    Args:
        writer: writes the events. If it is a RankWriter and cannot write for long, steps are left out.
        earlier: notes on how many ranks each step stands; None: nothing does.

    Attributes:
        steps: how many complete steps the files have, or have got.
        is_continued: whether another process began the files; what came late to it is unknown.
        last_step, last_s: the highest step that was written or is about to be, and the latest wall time.
        has_graph: whether a graph was written.
        left_out: how many steps were left out because the disk took nothing for long.
    """

    def __init__(self, writer: RankWriter | StagedWriter, earlier: EarlierMerge | None = None) -> None:
        self.steps = self.left_out = 0
        # TensorBoard sorts runs by their first wall time: without a step, that is when the run began.
        self.last_step, self.last_s = 0, writer.spec.begun or 0.0
        self.has_graph = False
        self._earlier = earlier
        self._written: dict[Key, int] = {}  # plugin, tag -> last step in the files
        self._queue: deque[_Entry] = deque()
        # The writer has this batch and may have written a part of it: after an error it gets it again.
        self._batch: Batch | None = None
        self._writer = writer
        self._keep_bytes: int | None = None
        self.is_continued = writer.last_seq > 0
        if isinstance(writer, RankWriter) and self.is_continued:
            self._read_back(writer)

    def _read_back(self, writer: RankWriter) -> None:
        """Find out what the files hold, and give TensorBoard's file what only MindSpore's has."""
        owner = writer.spec.run_id, writer.spec.attempt
        # The last process may have died after it wrote events to MindSpore's file, and before TensorBoard's.
        last_seq = read_last_seq(writer.directory, TENSORBOARD, *owner)
        for dialect in DIALECTS:
            for event in read_directory(writer.directory, dialect, "skip", skipped=[]):
                if (event.run_id, event.attempt) != owner or not is_merged(event.file):
                    continue
                self._note(event.step, event.wall_time, event.values)
                if dialect == MINDSPORE and event.seq > last_seq:
                    missing = Event(event.step, event.wall_time, event.values)
                    writer.write(self._batch_of([missing], event.seq))

    def _note(self, step: int, wall_s: float, values: Iterable[Value]) -> None:
        self.last_step, self.last_s = max(self.last_step, step), max(self.last_s, wall_s)
        for value in values:
            self.has_graph |= value.plugin == "graph"
            key = (value.plugin, value.tag)
            self._written[key] = max(step, self._written.get(key, step))

    def _batch_of(self, events: Sequence[Event | Scalars], first_seq: int) -> Batch:
        spec = self._writer.spec
        return Batch(run_id=spec.run_id, attempt=spec.attempt, rank=0, first_seq=first_seq, events=events)

    def keep(self, keep_bytes: int | None) -> None:
        """Keep so many bytes of bulk values, the newest; None: all."""
        if keep_bytes is not None and keep_bytes != self._keep_bytes:
            self._keep_bytes = keep_bytes
            self._writer.keep(keep_bytes)

    def has(self, key: Key, step: int) -> bool:
        """Whether the files held a plugin's tag at this step, or at a later one, when they were opened."""
        known = self._written.get(key)
        return known is not None and known >= step

    @property
    def missing(self) -> int:
        """How many steps were left out, and bulk values, for which the disk or the event had no room."""
        dropped = self._writer.health().dropped if isinstance(self._writer, RankWriter) else {}
        spared = sum(dropped.get(plugin, 0) for plugin in BULK_PLUGINS)
        return self.left_out + spared

    def put(
        self,
        step: int,
        wall_s: float,
        values: Sequence[Value],
        read: Values | None = None,
        *,
        is_complete: bool = False,
    ) -> None:
        """Queue values of one step, without those that the files had from the beginning; see `flush`.

        Args:
            step: for each tag, the steps must rise.
            wall_s: seconds since the epoch.
            values: are written as they are.
            read: gives more values, when they are about to be written.
            is_complete: whether these are all scalars of the step, which then counts.
        """
        new, is_held = [], False
        for value in values:
            # Such as <tag>/argmax_rank of a long tag: the writer would refuse it at each step.
            if len(value.tag) > MAX_TAG_BYTES // 4 and len(value.tag.encode()) > MAX_TAG_BYTES:
                continue
            if value.plugin == "scalar" and self.has(("scalar", value.tag), step):
                is_held = True
            else:
                new.append(value)
            if self._earlier is not None and value.tag == RANKS_TAG and value.plugin == "scalar":
                self._earlier.note(step, int(value.data))
        self.steps += is_complete and is_held
        if not new and read is None:
            return
        # A merge of ranks that have ended must be whole: it is flushed after each window.
        if len(self._queue) >= MAX_QUEUED and isinstance(self._writer, RankWriter):
            self._queue.popleft()
            self.left_out += 1
        self._queue.append(_Entry(step, wall_s, new, read, is_complete and not is_held))

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
            step, wall_s, scalars, read, is_complete = self._queue[0]
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
                self.steps += is_complete
                self.last_step, self.last_s = max(self.last_step, step), max(self.last_s, wall_s)
            yield from events

    def close(self) -> None:
        """Write what is queued and close the files; raises OSError. The call may be repeated."""
        self.flush()
        self._writer.close()

    def abandon(self) -> None:
        """Close the files without writing what is queued."""
        self._writer.close()
