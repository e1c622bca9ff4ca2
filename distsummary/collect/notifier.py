"""Notifier: reports to the aggregator in a thread, about once a second, what a rank has written."""

import threading

from distsummary.base.guard import Guard
from distsummary.events.writer import RankWriter
from distsummary.format.digest import Digest, digest_of, joined_digests
from distsummary.format.records import Batch
from distsummary.rundir.coordination import Listener

INTERVAL_S = 1.0  # a thousand ranks are a thousand digests in this time
CLOSE_S = 1.0  # how long `close` waits for the last one


class Notifier:
    """Sends digests of batches to a listener; what was written since the last ones goes as one digest.

    It never makes the caller wait, except that `close` waits a second for the last digest to arrive.
    `interval_s`: seconds between two digests.
    """

    def __init__(self, listener: Listener, role: str, *, interval_s: float = INTERVAL_S) -> None:
        self._listener, self._role, self._interval_s = listener, role, interval_s
        self._waiting: list[Digest] = []
        self._is_closed = False
        self._changed = threading.Condition()
        run = Guard().wrap("the notifier", self._run)
        self._thread = threading.Thread(target=run, name="distsummary-notifier", daemon=True)
        self._thread.start()

    def wrote(self, batch: Batch, file: str = "", end: int = 0) -> None:
        """Report a batch that is in the files; for `file` and `end` see `Digest`."""
        digest = digest_of(batch, self._role, file, end)
        with self._changed:
            self._waiting.append(digest)
            self._changed.notify_all()

    def close(self) -> None:
        """Send at once what waits, and end the thread; a second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                digests, self._waiting = joined_digests(self._waiting), []
            for digest in digests:
                self._listener.report(digest)
            with self._changed:
                if not self._changed.wait_for(lambda: self._is_closed, self._interval_s):
                    continue
                if not self._waiting:
                    break
        self._listener.settle(CLOSE_S)


def write_and_notify(writer: RankWriter, batch: Batch, notifier: Notifier | None) -> None:
    """Write a batch, then report it; raises what `RankWriter.write` raises."""
    is_new = batch.first_seq > writer.last_seq
    writer.write(batch)
    if notifier is not None:  # of a batch that was sent again, older files may hold a part
        notifier.wrote(batch, *(writer.written_to() if is_new else ()))
