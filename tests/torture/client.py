"""What stands before the system under torture: it sends batches until they are acknowledged."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from distsummary.events.files import Files
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format import records as product
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.records import Batch, Event, Image, Scalars, Value
from distsummary.format.scalar_rows import row_of
from tests.torture.ledger import ACKED, SENT, SYNCED, Ledger, first_missing, read_account
from tests.torture.workload import LINEAGE_KEY, EventSpec, ValueSpec, event

T = TypeVar("T")

RUN_ID = "0123456789abcdef"
TRIES = 40  # more than any fault lasts


class StuckError(Exception):
    """The system still fails though its fault has passed."""


def to_event(spec: EventSpec) -> Event:
    """The spec as the system takes it."""
    return Event(spec.n, spec.wall_time, [_to_value(value) for value in spec.values])


def to_batch(specs: list[EventSpec]) -> Batch:
    """The specs in the two forms that a batch has: events, and (of every other event) rows of scalars."""
    items: list[Event | Scalars] = []
    for spec in specs:
        made = to_event(spec)
        row = row_of(made) if spec.n % 2 else None
        last = items[-1] if items else None
        if row is None:
            items.append(made)
        elif isinstance(last, Scalars) and last.tags == row[0]:
            items[-1] = Scalars(last.tags, last.rows + row[1])
        else:
            items.append(Scalars(*row))
    return Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=specs[0].n, events=items)


def _to_value(value: ValueSpec) -> Value:
    match value.plugin:
        case "image":
            return Value("image", value.tag, Image(height=12, width=12, encoded=value.data, colorspace=1))
        case "graph":
            return Value("graph", "", anf_ir_pb2.GraphProto(name=value.data).SerializeToString())
        case "lineage":
            info = lineage_pb2.UserDefinedInfo(map_int32={LINEAGE_KEY: value.data})
            wrapped = lineage_pb2.UserDefinedInfo(user_info=[info])
            return Value("custom_lineage_data", "", wrapped)
    return Value(value.plugin, value.tag, np.asarray(value.data) if value.plugin != "scalar" else value.data)


def insist(call: Callable[[], T], start_over: Callable[[], None] = lambda: None) -> T:
    """Try again as a client does, after every fourth failure starting over; StuckError in the end."""
    for tried in range(1, TRIES + 1):
        try:
            return call()
        except OSError as error:
            failure = error
            if tried % 4 == 0:
                start_over()
    raise StuckError(f"after {TRIES} tries: {failure}") from failure


class Client:
    """Sends the events 1 to `total` in batches to a RankWriter, and again what was not acknowledged.

    The batches, resends, flushes and clean restarts follow from `seed`. One instance is one life of the
    process. It continues behind what was acknowledged, or, after a power cut, behind what the files hold.
    """

    def __init__(
        self,
        place: Path,
        *,
        seed: int,
        total: int,
        files: Files | None = None,
        options: dict[str, Any] | None = None,
        bulk: int = 2000,
        tags: int = 0,
        largest_batch: int = 4,
        pause_s: float = 0.0,
        resume_from_files: bool = False,
    ) -> None:
        self.place, self.seed, self.total, self.bulk, self.tags = place, seed, total, bulk, tags
        self._files, self._options, self._largest_batch = files, options or {}, largest_batch
        self._pause_s = pause_s
        self._writer: RankWriter | None = None
        self._own_first: int | None = None  # of what this writer acknowledged since it was opened
        self._ledger = Ledger(place / "ledger")
        if resume_from_files:
            self._next = insist(self._opened).health().last_seq + 1
        else:
            self._next = first_missing(read_account(place / "ledger").acked)
        self._oldest = self._next if resume_from_files else 1  # what may still be sent again
        self._random = random.Random(seed * 1_000_003 + self._next)

    def run(self) -> None:
        """Send everything, then close; raises StuckError when a passed fault is not survived."""
        try:
            if self._next > self.total:
                # The life before ended while it sent again what was acknowledged; its torn frame is cut off.
                insist(self._opened, self._abandon)
            while self._next <= self.total:
                first = self._next
                last = min(self.total, first + self._random.randrange(self._largest_batch))
                self._send(first, last)
                self._next = last + 1
                self._disturb(first, last)
                time.sleep(self._random.random() * self._pause_s)
            self._close()
        finally:
            self._ledger.close()

    def _disturb(self, first: int, last: int) -> None:
        draw = self._random.random()
        if draw < 0.15:
            self._send(max(self._oldest, first - 2), last)  # an acknowledgement got lost
        elif draw < 0.30:
            self._close()
        elif draw < 0.40:
            insist(lambda: self._opened().flush(), self._abandon)
            if self._options.get("delivery") == product.SYNCED:
                self._enter_synced(self._own_first)

    def _send(self, first: int, last: int) -> None:
        batch = to_batch([event(self.seed, n, self.bulk, self.tags) for n in range(first, last + 1)])
        self._ledger.enter(SENT, first, last)
        insist(lambda: self._write(batch), self._abandon)
        self._ledger.enter(ACKED, first, last)
        if self._own_first is None:
            self._own_first = first

    def _write(self, batch: Batch) -> None:
        writer = self._opened()
        writer.write(batch)
        if writer.health().last_seq < batch.last_seq:
            raise OSError(f"seq {batch.last_seq} was neither refused nor written")

    def _opened(self) -> RankWriter:
        if self._writer is None:
            spec = WriterSpec(directory=self.place / "events", run_id=RUN_ID, **self._options)
            self._writer = RankWriter(spec, self._files)
        return self._writer

    def _abandon(self) -> None:
        self._close()

    def _close(self) -> None:
        """Close; what this writer acknowledged is durable then, unless that raises."""
        writer, self._writer = self._writer, None
        own_first, self._own_first = self._own_first, None
        try:
            if writer is not None:
                writer.close()
        except OSError:
            return  # not durable, and said so
        self._enter_synced(own_first)

    def _enter_synced(self, own_first: int | None) -> None:
        if own_first is not None and own_first < self._next:
            self._ledger.enter(SYNCED, own_first, self._next - 1)
