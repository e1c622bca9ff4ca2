"""The collector of one rank: receives batches, writes them to files and acknowledges them."""

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from distsummary.collect.teller import Teller, write_and_tell
from distsummary.coordination import Listener
from distsummary.errors import StaleAttemptError
from distsummary.format.records import Batch, Health
from distsummary.topology import own_process
from distsummary.writing.spec import WriterSpec
from distsummary.writing.writer import RankWriter


class Greeting(NamedTuple):
    """What a collector tells its sender: session, process (see `is_alive`), and the counters of its files."""

    session: str
    process: Mapping[str, Any]
    health: Health


class RankCollector:
    """Writes one rank's batches; `actor.py` runs it as a Ray actor.

    A session ends at a restart or a failed write. A batch that names an ended session is refused, so that
    batches stay in order. An acknowledged batch is in the files: it survives the death of any process.

    `listener` hears, without being waited for, what is in the files; None: nobody does.
    """

    def __init__(self, spec: WriterSpec, listener: Listener | None = None) -> None:
        self._spec = spec
        self._teller = None if listener is None else Teller(listener, spec.role)
        self._writer: RankWriter | None = None
        self.session = ""

    def ready(self) -> None:
        """Return at once: the process has started."""

    def hello(self) -> Greeting:
        """The collector's session and process, and the counters of its files, such as the last seq.

        The files are opened by the first call of a method, other than a `write` that is refused; that call
        raises RunDirError if they cannot be made or written.
        """
        health = self._opened().health()
        return Greeting(self.session, own_process(), health)

    def _opened(self) -> RankWriter:
        # not opened by the constructor: if a constructor raises, Ray starts a new process
        if self._writer is None:
            self._writer = RankWriter(self._spec)
            self.session = uuid.uuid4().hex
        return self._writer

    def write(self, session: str, batch: Batch) -> Health:
        """Write a batch and return the counters; raises StaleAttemptError if its session is over."""
        if session != self.session:
            raise StaleAttemptError(
                f"batch from seq {batch.first_seq} was sent to an earlier session; say hello again"
            )
        writer = self._opened()
        try:
            write_and_tell(writer, batch, self._teller)
        except OSError:
            self.session = uuid.uuid4().hex  # batches sent after this one must not be written before it
            raise
        return writer.health()

    def flush(self) -> None:
        """Return when all acknowledged events are as safe as the spec's `delivery` asks; raises OSError."""
        self._opened().flush()

    def close(self) -> Health:
        """Make the files durable and close them."""
        self._opened().close()
        if self._teller is not None:
            self._teller.close()
        return self._opened().health()
