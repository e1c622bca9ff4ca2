"""The collectors of ranks: they receive the batches of writers, write and acknowledge them."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distsummary.base.guard import Guard
from distsummary.base.health import Health
from distsummary.base.processes import is_alive, own_process
from distsummary.errors import StaleAttemptError
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import Batch

LOOK_S = 1.0  # how often an actor looks whether its ranks live
LINGER_S = 3.0  # how long an actor waits for its first or next rank


class Greeting(NamedTuple):
    """A collector's answer to its sender: session, process (see `is_alive`), the counters of its files."""

    session: str
    process: Mapping[str, Any]
    health: Health


class _Rank:
    """The files of one writer; the first call of `opened` opens them, and begins a session."""

    def __init__(self, spec: WriterSpec) -> None:
        self._spec = spec
        self.writer: RankWriter | None = None
        self.session = ""

    def opened(self) -> RankWriter:
        if self.writer is None:
            self.writer = RankWriter(self._spec)
            self.session = uuid.uuid4().hex
        return self.writer


class Collectors:
    """The collectors in one process, of all writers that chose it; `actor.py` runs it as a Ray actor.

    Each writer has a session, which ends at a restart or a failed write. A batch that names an ended session
    is refused, so that batches stay in order. An acknowledged batch is in the files: it survives the death of
    any process.

    A rank whose process has ended without closing is closed by `look`. When there has been no rank for
    LINGER_S, the thread of `keep_looking` calls `on_end`.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ranks: dict[str, _Rank] = {}  # by the key of a writer
        self._owners: dict[str, Mapping[str, Any]] = {}  # key of a writer -> its process
        self._changing = threading.Lock()
        self._used_at = clock()

    def keep_looking(self, on_end: Callable[[], object]) -> None:
        """Start the thread that looks after the ranks."""

        def run() -> None:
            while not self.look():
                time.sleep(LOOK_S)
            on_end()

        threading.Thread(target=Guard().wrap("the look at ranks", run), daemon=True).start()

    def look(self) -> bool:
        """Close what dead processes left open; returns whether no one needs this process any more."""
        with self._changing:
            dead = [key for key, owner in self._owners.items() if is_alive(owner) is False]
        for key in dead:
            self.leave(key)
        if self._owners:
            self._used_at = self._clock()
        return self._clock() - self._used_at > LINGER_S

    def ready(self, key: str, owner: Mapping[str, Any]) -> Mapping[str, Any]:
        """This process, which has started, and waits for `hello` of a writer of the process `owner`."""
        with self._changing:
            self._owners[key] = owner
        return own_process()

    def hello(self, key: str, spec: WriterSpec, owner: Mapping[str, Any]) -> Greeting:
        """Open the files of a writer of the process `owner`, or begin its next session.

        Raises RunDirError if the files cannot be made or written.
        """
        # An earlier process of the rank must not keep its files open.
        self.look()
        with self._changing:
            if key not in self._ranks:
                self._ranks[key], self._owners[key] = _Rank(spec), owner
        rank = self._ranks[key]
        health = rank.opened().health()
        return Greeting(rank.session, own_process(), health)

    def leave(self, key: str) -> None:
        """A writer does not come, or has closed its files."""
        with self._changing:
            self._owners.pop(key, None)
            rank = self._ranks.pop(key, None)
        if rank is not None and rank.writer is not None:
            # No one waits for the answer, so an error of the disk is not reported.
            with contextlib.suppress(OSError):
                rank.writer.close()

    def write(self, key: str, session: str, batch: Batch) -> Health:
        """Write a batch and return the counters; raises StaleAttemptError if its session is over."""
        rank = self._rank(key)
        if session != rank.session:
            raise StaleAttemptError(
                f"batch from seq {batch.first_seq} was sent to an earlier session; say hello again"
            )
        writer = rank.opened()
        try:
            writer.write(batch)
        except OSError:
            # Batches that were sent after this one must not be written before it, so the session ends.
            rank.session = uuid.uuid4().hex
            raise
        return writer.health()

    def path(self, key: str, dialect: str) -> Path:
        """The newest file of a dialect; see `RankWriter.path`."""
        return self._rank(key).opened().path(dialect)

    def flush(self, key: str) -> None:
        """Return when all acknowledged events are as safe as the spec's `delivery` asks; raises OSError."""
        self._rank(key).opened().flush()

    def close(self, key: str) -> Health:
        """Make the files durable and close them."""
        writer = self._rank(key).opened()
        writer.close()
        self.leave(key)
        return writer.health()

    def _rank(self, key: str) -> _Rank:
        if key not in self._ranks:
            raise StaleAttemptError("this collector knows no such writer; say hello again")
        return self._ranks[key]
