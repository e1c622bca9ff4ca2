"""RankCollector as a Ray actor, and the writer that sends batches to it until they are acknowledged."""

import contextlib
import logging
import os
import platform
import signal
from collections import deque
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayTaskError

from distsummary.collect.rank_collector import RankCollector
from distsummary.errors import StaleAttemptError, WriteError
from distsummary.format.records import QUEUED, SYNCED, Batch, Health
from distsummary.writing.spec import WriterSpec

logger = logging.getLogger(__name__)

WINDOW = 4  # batches under way at once
ANSWER_S = 30.0


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

    After the collector died, or could not write, what was not acknowledged goes to its next session: same
    seq, same order. OSErrors say that a call is to be made again (`Writer`). Used by one thread, the
    AsyncWriter's; `health` by any.

    Raises WriteError when Ray was shut down: nothing can be acknowledged any more.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._spec = spec
        self._actor = start_collector(spec)
        self._session: str | None = None
        self._process = ("", 0)
        self._sent: deque[tuple[Batch, Any]] = deque()
        self._health = Health()
        self._failed = Health()

    def health(self) -> Health:
        """The collector's counters as of its last answer."""
        return self._health.plus(self._failed)

    def start(self) -> int:
        """Wait for the collector; returns the last seq in its files."""
        self._connect()
        return self._health.last_seq

    def write(self, batch: Batch) -> None:
        """Send; waits only when the window is full. A batch that OSError refuses was not taken."""
        while len(self._sent) >= WINDOW:
            self._settle_oldest()
        if self._session is None:
            self._resume()
        self._sent.append((batch, self._send(batch)))

    def flush(self) -> None:
        """Return when every batch is delivered, or its failure counted."""
        while self._sent:
            self._settle_oldest()
        if self._spec.delivery == SYNCED:
            _require_ray()
            self._answer(self._actor.flush.remote())

    def close(self) -> None:
        """Close the files and end the actor; what it never acknowledged is counted as dropped."""
        try:
            if not self._sent and self._session is not None and ray.is_initialized():
                self._health = self._answer(self._actor.close.remote())
        finally:
            self._drop_sent("the collector did not acknowledge it in time")
            if ray.is_initialized():
                ray.kill(self._actor, no_restart=True)

    def _send(self, batch: Batch) -> Any:
        _require_ray()
        return self._actor.write.remote(self._session, batch)

    def _settle_oldest(self) -> None:
        """Wait for the oldest acknowledgement; OSError says that it did not come and the batch is kept."""
        if self._session is None:
            self._resume()
        batch, reference = self._sent[0]
        try:
            self._health = self._answer(reference)
        except StaleAttemptError:  # sent behind a batch that failed: it goes to the next session, too
            self._session = None
            return
        except OSError as error:
            self._session = None
            if self._spec.delivery == QUEUED:
                self._drop_sent(f"not sent again: {error}")
            raise
        except RayTaskError as error:  # refused for good: the collector could not even read it
            self._count_lost(batch, _reason(error))
        self._sent.popleft()

    def _answer(self, reference: Any) -> Any:
        """The answer of the collector; one that died, hangs or has a bad disk is an OSError."""
        try:
            return ray.get(reference, timeout=ANSWER_S)
        except GetTimeoutError as error:
            # It hangs: end it, so that Ray restarts it. A collector that is still starting is left alone.
            host, pid = self._process
            if host == platform.node():  # a stopped process would not hear Ray's kill
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            elif host:
                ray.kill(self._actor, no_restart=False)
            raise TimeoutError(f"no answer of the collector for {ANSWER_S:g} s") from error
        except ActorDiedError as error:  # for good: Ray does not restart one whose constructor failed
            self._actor = start_collector(self._spec)
            raise ConnectionError(f"the collector died and is started again: {_reason(error)}") from error
        except RayActorError as error:
            raise ConnectionError("the collector is being restarted") from error

    def _connect(self) -> None:
        _require_ray()
        greeting = self._answer(self._actor.hello.remote())
        self._session, self._health = greeting.session, greeting.health
        self._process = greeting.host, greeting.pid

    def _resume(self) -> None:
        """Send everything unacknowledged to the collector's next session, in order."""
        self._connect()
        if self._sent:
            logger.warning("rank=%d sends %d batch(es) again", self._spec.rank, len(self._sent))
        self._sent = deque((batch, self._send(batch)) for batch, _ in self._sent)

    def _drop_sent(self, reason: str) -> None:
        for batch, _ in self._sent:
            self._count_lost(batch, reason)
        self._sent.clear()

    def _count_lost(self, batch: Batch, reason: str) -> None:
        for plugin, count in batch.plugins().items():
            self._failed.drop(plugin, count)
        self._failed.fail(reason)
        logger.warning("rank=%d %d event(s) were not written: %s", self._spec.rank, batch.size, reason)


def _require_ray() -> None:
    """Without this a call would start a cluster of its own."""
    if not ray.is_initialized():
        raise WriteError("Ray was shut down before the run was closed; close the run first")


def _reason(error: Exception) -> str:
    cause = getattr(error, "cause", None)
    return f"{type(cause).__name__}: {cause}" if cause else f"{type(error).__name__}: {str(error)[:300]}"
