"""RankCollector as a Ray actor, and the writer that sends batches to it until they are acknowledged."""

import logging
import time
from collections import deque
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from distsummary.collect.rank_collector import RankCollector, WriterSpec
from distsummary.errors import StaleAttemptError, WriteError
from distsummary.events.records import Batch, Health

logger = logging.getLogger(__name__)

WINDOW = 4  # batches under way at once
RECOVERY_S = 60.0
RETRY_S = 0.2


def start_collector(spec: WriterSpec) -> Any:
    """The actor, on this node, owned by this process: it ends when the process does.

    0 CPUs with a label selector: any fraction of a CPU deadlocks a full cluster, and soft affinity with 0
    CPUs is not honoured. Ray's retries stay off because they reorder; the RemoteWriter sends again itself.
    """
    node = ray.get_runtime_context().get_node_id()
    options = {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
        "label_selector": {"ray.io/node-id": node},
        "fallback_strategy": [{"label_selector": {}}],
        "scheduling_strategy": "DEFAULT",  # not the placement group of the trainer that starts it
    }
    return ray.remote(RankCollector).options(**options).remote(spec)


class RemoteWriter:
    """Sends batches in order to the rank's collector and keeps each one until it is acknowledged.

    After the collector died, what was not acknowledged goes to its next life, same seq, same order.
    Used by one thread (the AsyncWriter's), apart from `health`.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._spec = spec
        self._actor = start_collector(spec)
        self._session: str | None = None
        self._sent: deque[tuple[Batch, Any]] = deque()
        self._health = Health()
        self._failed = Health()
        self.resent = 0

    def health(self) -> Health:
        """The collector's counters as of its last acknowledgement; the first call waits for its start."""
        if self._session is None:
            self._connect()
        return self._health.plus(self._failed)

    def write(self, batch: Batch) -> None:
        """Send; waits only when the window is full. A later failure shows in `health()`."""
        if self._session is None:
            self._connect()
        self._sent.append((batch, self._send(batch)))
        while len(self._sent) > WINDOW:
            self._await_oldest()

    def flush(self) -> None:
        """Return when every batch is acknowledged or its failure counted."""
        while self._sent:
            self._await_oldest()

    def close(self) -> None:
        """Flush, close the files and end the actor."""
        if self._actor is None:
            return
        try:
            self.flush()
            self._health = ray.get(self._actor.close.remote(), timeout=RECOVERY_S)
        finally:
            ray.kill(self._actor, no_restart=True)
            self._actor = None

    def _send(self, batch: Batch) -> Any:
        return self._actor.write.remote(self._session, batch)

    def _await_oldest(self) -> None:
        batch, reference = self._sent[0]
        try:
            self._health = ray.get(reference)
            self._sent.popleft()
        except (RayActorError, StaleAttemptError):
            self._recover()
        except RayTaskError as error:  # the collector lives and refused the batch: its disk, not its death
            self._sent.popleft()
            self._count_lost(batch, error)

    def _recover(self) -> None:
        """Wait for the collector's next life and send everything unacknowledged again, in order."""
        self._connect()
        unacknowledged = [batch for batch, _ in self._sent]
        self._sent.clear()
        self.resent += len(unacknowledged)
        logger.warning(
            "rank=%d its collector was restarted; %d batch(es) sent again",
            self._spec.rank,
            len(unacknowledged),
        )
        self._sent.extend((batch, self._send(batch)) for batch in unacknowledged)

    def _connect(self) -> None:
        deadline = time.monotonic() + RECOVERY_S
        while True:
            try:
                timeout = max(RETRY_S, deadline - time.monotonic())
                self._session, self._health = ray.get(self._actor.hello.remote(), timeout=timeout)
                return
            except (RayActorError, GetTimeoutError) as error:
                if time.monotonic() > deadline:
                    raise WriteError(
                        f"the collector of rank {self._spec.rank} is not up after {RECOVERY_S:g} s: {error}"
                    ) from error
                time.sleep(RETRY_S)

    def _count_lost(self, batch: Batch, error: Exception) -> None:
        for event in batch.events:
            for value in event.values:
                self._failed.drop(value.plugin)
        reason = (
            f"{type(error.cause).__name__}: {error.cause}" if isinstance(error, RayTaskError) else str(error)
        )
        self._failed.fail(reason)
        logger.warning("rank=%d %d event(s) were not written: %s", self._spec.rank, len(batch.events), reason)
