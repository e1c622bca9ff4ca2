"""The collector of one rank: batches in, files and acknowledgements out."""

import uuid
from dataclasses import dataclass

from distsummary.errors import StaleAttemptError
from distsummary.events.records import DIALECTS, Batch, Health
from distsummary.events.writer import RankWriter


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
    max_file_size: int | None = None
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
            max_file_size=self.max_file_size,
            mindspore_compat=self.mindspore_compat,
        )


class RankCollector:
    """Writes one rank's batches; `session` changes with every start, so that no batch skips a restart.

    An acknowledged batch is in the files: it survives the death of any process.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._writer = spec.open()
        self.session = uuid.uuid4().hex

    def hello(self) -> tuple[str, Health]:
        """The session, and the counters with the last seq in the files."""
        return self.session, self._writer.health()

    def write(self, session: str, batch: Batch) -> Health:
        """Write and acknowledge; raises StaleAttemptError for a batch sent to an earlier session."""
        if session != self.session:
            raise StaleAttemptError(
                f"batch from seq {batch.first_seq} was sent to an earlier session; say hello again"
            )
        self._writer.write(batch)
        return self._writer.health()

    def close(self) -> Health:
        """Make the files durable and close them."""
        self._writer.close()
        return self._writer.health()
