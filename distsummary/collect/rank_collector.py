"""The collector of one rank: batches in, files and acknowledgements out."""

import os
import platform
import uuid
from dataclasses import dataclass
from typing import NamedTuple

from distsummary.errors import StaleAttemptError
from distsummary.format.records import DIALECTS, WRITTEN, Batch, Health
from distsummary.writing.event_files import Limits
from distsummary.writing.writer import NO_LIMITS, RankWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSpec:
    """Everything that a RankWriter is opened with, small enough to cross a process boundary."""

    directory: str
    run_id: str
    attempt: int = 0
    rank: int = 0
    dialects: tuple[str, ...] = DIALECTS
    prefix: str = "events"
    suffix: str = "_MS"
    limits: Limits = NO_LIMITS
    delivery: str = WRITTEN
    mindspore_compat: bool = False

    def open(self) -> RankWriter:
        """The writer; raises RunDirError when its directory cannot be written."""
        return RankWriter(
            self.directory,
            run_id=self.run_id,
            attempt=self.attempt,
            rank=self.rank,
            dialects=self.dialects,
            prefix=self.prefix,
            suffix=self.suffix,
            limits=self.limits,
            delivery=self.delivery,
            mindspore_compat=self.mindspore_compat,
        )


class Greeting(NamedTuple):
    """The collector's session, its process, and what its files hold."""

    session: str
    host: str
    pid: int
    health: Health


class RankCollector:
    """Writes one rank's batches; `session` changes with every start, and every
    failed write, so that no batch is written before an earlier one.

    An acknowledged batch is in the files: it survives the death of any process.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._writer = spec.open()
        self.session = uuid.uuid4().hex

    def hello(self) -> Greeting:
        """Who answers, and the counters with the last seq in the files."""
        return Greeting(self.session, platform.node(), os.getpid(), self._writer.health())

    def write(self, session: str, batch: Batch) -> Health:
        """Write and acknowledge; raises StaleAttemptError for a batch sent to an earlier session."""
        if session != self.session:
            raise StaleAttemptError(
                f"batch from seq {batch.first_seq} was sent to an earlier session; say hello again"
            )
        try:
            self._writer.write(batch)
        except OSError:
            self.session = uuid.uuid4().hex  # what was sent behind this batch must not be written before it
            raise
        return self._writer.health()

    def flush(self) -> None:
        """Return when what was acknowledged is delivered, durable if that was asked for; raises OSError."""
        self._writer.flush()

    def close(self) -> Health:
        """Make the files durable and close them."""
        self._writer.close()
        return self._writer.health()
