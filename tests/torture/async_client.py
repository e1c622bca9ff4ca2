"""The training in front of an AsyncWriter: it sends events, waits for flushes and enters the answers."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distsummary.events.async_writer import AsyncWriter
from distsummary.events.files import Files
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter, Writer
from distsummary.format import records
from distsummary.format.scalar_rows import row_of
from tests.torture.client import RUN_ID, StuckError, insist, to_event
from tests.torture.disk import Crash
from tests.torture.ledger import ACKED, SENT, SYNCED, Ledger, read_account
from tests.torture.workload import event

FLUSH_S = 60.0


class AsyncClient:
    """Sends the events up to `total` through an AsyncWriter; a later life continues with events never sent.

    What a flush returned for is acknowledged: nothing may have been dropped, since every fault passes.
    `opened` opens the writer behind the AsyncWriter; None: it is a RankWriter.
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
        opened: Callable[[WriterSpec], Writer] | None = None,
    ) -> None:
        self.seed, self.total, self.bulk, self.tags = seed, total, bulk, tags
        self._files, self._largest_batch, self._pause_s = files, largest_batch, pause_s
        self._next = self._own_first = read_account(place / "ledger").next_number
        self._random = random.Random(seed * 1_000_003 + self._next)
        self._is_synced = (options or {}).get("delivery") == records.SYNCED
        self._ledger = Ledger(place / "ledger")
        spec = WriterSpec(
            directory=place / "events", run_id=RUN_ID, interval_s=0.002, retry_s=0.001, batch_bytes=4096,
            budget_bytes=32 << 20, **options or {},
        )  # fmt: skip
        inner = opened(spec) if opened else insist(lambda: RankWriter(spec, files))
        self._writer = AsyncWriter(inner, spec)

    def run(self) -> None:
        """Send everything, then close."""
        try:
            while self._next <= self.total:
                self._send(min(self.total, self._next + self._random.randrange(self._largest_batch)))
                time.sleep(self._random.random() * self._pause_s)
            self._close()
        finally:
            self._writer.close()  # ends its thread, also after a crash of the disk
            self._ledger.close()

    def _send(self, last: int) -> None:
        first, self._next = self._next, last + 1
        self._ledger.enter(SENT, first, last)
        for n in range(first, last + 1):
            made = to_event(event(self.seed, n, self.bulk, self.tags))
            started = time.monotonic()
            row = row_of(made) if n % 2 else None  # scalars go both ways
            if row is None:
                self._writer.write(made)
            else:
                self._writer.write_row(*row)
            self._ledger.enter_block(time.monotonic() - started)
        deadline = time.monotonic() + FLUSH_S
        while not self._writer.flush(FLUSH_S):  # False: the disk takes nothing now, which passes
            self._refuse_loss()
            if time.monotonic() > deadline:
                raise StuckError(f"flush: {self._writer.health().errors}")
        self._refuse_loss()
        self._ledger.enter(ACKED, first, last)
        if self._is_synced:
            self._ledger.enter(SYNCED, first, last)

    def _refuse_loss(self) -> None:
        if getattr(self._files, "is_down", False):
            raise Crash
        dropped = self._writer.health().dropped
        if dropped:
            raise StuckError(f"dropped {dropped} though every fault passes: {self._writer.health().errors}")

    def _close(self) -> None:
        """Close; without an error of it, what this writer acknowledged is durable then."""
        before = sum(self._writer.health().errors.values())
        self._writer.close()
        self._refuse_loss()
        if sum(self._writer.health().errors.values()) == before and self._own_first < self._next:
            self._ledger.enter(SYNCED, self._own_first, self._next - 1)
