"""The collectors of ranks: they receive the batches of writers, write and acknowledge them."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distsummary.base.guard import Guard
from distsummary.base.health import Health
from distsummary.base.processes import is_alive, own_process
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import Batch

LOOK_S = 1.0  # how often an actor looks whether its ranks live
LINGER_S = 3.0  # how long an actor waits for its first or next rank


class Collectors:
    """The collectors in one process, of all writers that chose it; `actor.py` runs it as a Ray actor.

    An acknowledged batch is in the files: it survives the death of any process. A writer sends the next batch
    when the last one was acknowledged, so that batches stay in order.

    A rank whose process has ended without closing is closed by `look`. When there has been no rank for
    LINGER_S, the thread of `keep_looking` calls `on_end`.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._writers: dict[str, RankWriter] = {}  # by the key of the RemoteWriter
        self._owners: dict[str, Mapping[str, Any]] = {}  # by the same key: its process
        self._changing = threading.Lock()
        self._used_at = clock()

    def keep_looking(self, on_end: Callable[[], object]) -> None:
        """Start the thread that looks after the ranks."""

        look = Guard().wrap("the look at ranks", self.look, False)

        def run() -> None:
            while not look():
                time.sleep(LOOK_S)
            on_end()

        threading.Thread(target=run, name="distsummary-collectors", daemon=True).start()

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

    def hello(self, key: str, spec: WriterSpec, owner: Mapping[str, Any]) -> Health:
        """Open the files of a writer of the process `owner`, and return their counters.

        Raises RunDirError if the files cannot be made or written.
        """
        # An earlier process of the rank must not keep its files open.
        self.look()
        if key not in self._writers:
            writer = RankWriter(spec)
            with self._changing:
                self._writers[key], self._owners[key] = writer, owner
        return self._writers[key].health()

    def leave(self, key: str) -> None:
        """A writer does not come, or has closed its files."""
        with self._changing:
            self._owners.pop(key, None)
            writer = self._writers.pop(key, None)
        if writer is not None:
            # No one waits for the answer, so an error of the disk is not reported.
            with contextlib.suppress(OSError):
                writer.close()

    def write(self, key: str, batch: Batch) -> Health:
        """Write a batch and return the counters; after an OSError it may be sent again."""
        writer = self._writers[key]
        writer.write(batch)
        return writer.health()

    def path(self, key: str, dialect: str) -> Path:
        """The newest file of a dialect; see `RankWriter.path`."""
        return self._writers[key].path(dialect)

    def flush(self, key: str) -> Health:
        """Return when all acknowledged events are as safe as the spec's `delivery` asks; raises OSError."""
        writer = self._writers[key]
        writer.flush()
        return writer.health()

    def close(self, key: str) -> Health:
        """Make the files durable and close them."""
        writer = self._writers[key]
        writer.close()
        self.leave(key)
        return writer.health()
