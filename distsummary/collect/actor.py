"""Runs RankCollector as a Ray actor; RemoteWriter sends batches to that actor until acknowledged."""

import contextlib
import logging
import os
import platform
import shlex
import signal
from collections import deque
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayTaskError

from distsummary.collect.rank_collector import RankCollector
from distsummary.errors import StaleAttemptError, WriteError
from distsummary.format.records import QUEUED, SYNCED, Batch, Health
from distsummary.writing.health import told
from distsummary.writing.spec import WriterSpec

logger = logging.getLogger(__name__)

WINDOW = 4  # batches sent and not yet acknowledged
ANSWER_S = 30.0
SLOW_BYTES_S = 4 << 20  # bytes that even a slow disk takes in a second: a large batch gets more time


def start_collector(spec: WriterSpec) -> Any:
    """Start the rank's collector as an actor on this node; it ends with this process, which owns it.

    It reserves 0 CPUs: on a full cluster, it would wait forever for even a fraction of a CPU. A label
    selector chooses this node, because Ray ignores soft node affinity for actors with 0 CPUs. Ray's retries
    are off because they reorder calls; RemoteWriter repeats calls instead.
    """
    node = ray.get_runtime_context().get_node_id()
    options = {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
        "label_selector": {"ray.io/node-id": node},
        "fallback_strategy": [{"label_selector": {}}],
        "scheduling_strategy": "DEFAULT",  # keeps it out of the placement group of the trainer that starts it
    }
    return ray.remote(RankCollector).options(**options).remote(spec)


def driver_command() -> list[str]:
    """The command that started the driver of this Ray job; empty in the driver itself or if unknown."""
    context = ray.get_runtime_context()
    if context.worker.mode == ray.SCRIPT_MODE:
        return []
    try:
        # Ray's public functions for this ask the dashboard, which need not run; this one asks the cluster.
        jobs = ray._private.state.jobs()
        commands = [job.get("Entrypoint", "") for job in jobs if job["JobID"] == context.get_job_id()]
        return split_command(commands[0]) if commands else []
    except Exception as error:  # a private interface: another version of Ray may lack it
        logger.debug("the driver's command line is unknown: %r", error)
        return []


def split_command(command: str) -> list[str]:
    """The arguments of a command line that Ray made by `subprocess.list2cmdline`, which quotes only by "."""
    lexer = shlex.shlex(command, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.quotes = lexer.escapedquotes = '"'
    return list(lexer)


class RemoteWriter:
    """Sends batches in order to the rank's collector and keeps each one until it is acknowledged.

    If the collector dies or cannot write, its session ends. All unacknowledged batches are then sent to its
    next session, in the same order and with the same numbers; with the delivery QUEUED they are dropped. An
    OSError means that the caller must repeat the call (see `Writer`). Only the AsyncWriter's thread may use
    this object, except for `health`, which any thread may call.

    Methods raise WriteError after Ray was shut down, because nothing can be acknowledged any more.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._spec = spec
        self._actor = start_collector(spec)
        self._session: str | None = None
        self._process = ("", 0)
        # Batches with references to their answers; None: the batch has not been sent to the new session yet.
        self._sent: deque[tuple[Batch, Any]] = deque()
        self._refusal = ""  # why the last write failed
        self._health = Health()
        self._failed = Health()

    def health(self) -> Health:
        """The counters in the collector's last answer, plus the events of lost batches."""
        return self._health.plus(self._failed)

    def start(self) -> int:
        """Wait for the collector; returns the last sequence number in its files."""
        self._connect()
        return self._health.last_seq

    def write(self, batch: Batch) -> None:
        """Send a batch; an OSError means: not accepted.

        Waits while WINDOW batches are unacknowledged, or while they and `batch` exceed the budget in bytes.
        """
        while self._sent and (
            self._session is None or len(self._sent) >= WINDOW or self._exceeds_budget(batch)
        ):
            self._settle_oldest()
        if self._session is None:
            self._connect()
        self._sent.append((batch, self._send(batch)))

    def flush(self) -> None:
        """Return when each batch has been delivered or counted as lost."""
        while self._sent:
            self._settle_oldest()
        if self._spec.delivery == SYNCED:
            _require_ray()
            self._answer(self._actor.flush.remote())

    def close(self) -> None:
        """Close the files and end the actor; batches without an acknowledgement are counted as dropped."""
        try:
            if not self._sent and self._session is not None and ray.is_initialized():
                self._health = self._answer(self._actor.close.remote())
        finally:
            self._drop_sent(self._refusal or "the collector did not acknowledge it in time")
            if ray.is_initialized():
                ray.kill(self._actor, no_restart=True)

    def _exceeds_budget(self, batch: Batch) -> bool:
        return batch.nbytes + sum(sent.nbytes for sent, _ in self._sent) > self._spec.budget_bytes

    def _send(self, batch: Batch) -> Any:
        _require_ray()
        return self._actor.write.remote(self._session, batch)

    def _settle_oldest(self) -> None:
        """Await the oldest batch's acknowledgement; after an OSError, all batches are kept unless QUEUED."""
        if self._session is None:
            self._resume()
        batch, reference = self._sent[0]
        try:
            self._health = self._answer(reference, ANSWER_S + batch.nbytes / SLOW_BYTES_S)
        except StaleAttemptError:  # this batch's session is over: the batch is sent again in the next session
            self._session = None
            return
        except OSError as error:
            self._session, self._refusal = None, told(error)
            if self._spec.delivery == QUEUED:
                self._drop_sent(f"not sent again: {error}")
            raise
        except RayTaskError as error:  # any other error: the collector would raise it again
            self._count_lost(batch, _reason(error))
        self._sent.popleft()
        if self._sent and self._sent[0][1] is None:
            logger.warning("rank=%d sends %d batch(es) again", self._spec.rank, 1 + len(self._sent))
            self._sent = deque((waiting, self._send(waiting)) for waiting, _ in self._sent)

    def _answer(self, reference: Any, timeout_s: float | None = None) -> Any:
        """Wait for the collector's answer; raises OSError if it died, hangs or cannot write to its disk."""
        timeout_s = ANSWER_S if timeout_s is None else timeout_s
        try:
            return ray.get(reference, timeout=timeout_s)
        except GetTimeoutError as error:
            # The collector hangs: kill it, so that Ray restarts it. If `host` is empty, it is still starting.
            host, pid = self._process
            if host == platform.node():  # a stopped process would not react to Ray's kill
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            elif host:
                ray.kill(self._actor, no_restart=False)
            raise TimeoutError(f"no answer from the collector for {timeout_s:g} s") from error
        except ActorDiedError as error:  # for good: Ray does not restart an actor whose constructor failed
            self._actor = start_collector(self._spec)
            raise ConnectionError(f"the collector died and is started again: {_reason(error)}") from error
        except RayActorError as error:
            raise ConnectionError("the collector is being restarted") from error
        except RayTaskError as error:
            if isinstance(error.cause, OSError):
                raise error.cause from None  # without the collector's stack
            raise

    def _connect(self) -> None:
        _require_ray()
        greeting = self._answer(self._actor.hello.remote())
        self._session, self._health = greeting.session, greeting.health
        self._process = greeting.host, greeting.pid

    def _resume(self) -> None:
        """Send the oldest batch to the collector's next session; the others follow when it is acknowledged.

        If the disk still takes nothing, only this one batch was sent in vain.
        """
        self._connect()
        self._ignore_answers()  # they came before the greeting: their session is over
        batch, _ = self._sent[0]
        self._sent = deque((waiting, None) for waiting, _ in self._sent)
        self._sent[0] = batch, self._send(batch)

    def _ignore_answers(self) -> None:
        """Fetch the answers that no longer count, because Ray prints each error that nobody fetches."""
        for _, reference in self._sent:
            if reference is not None and ray.is_initialized():
                with contextlib.suppress(Exception):
                    ray.get(reference, timeout=0)

    def _drop_sent(self, reason: str) -> None:
        self._ignore_answers()
        for batch, _ in self._sent:
            self._count_lost(batch, reason)
        self._sent.clear()

    def _count_lost(self, batch: Batch, reason: str) -> None:
        for plugin, count in batch.plugins().items():
            self._failed.drop(plugin, count)
        self._failed.fail(reason)
        logger.warning("rank=%d %d event(s) were not written: %s", self._spec.rank, batch.size, reason)


def _require_ray() -> None:
    """Raise WriteError if Ray was shut down: calling an actor would then start a new cluster."""
    if not ray.is_initialized():
        raise WriteError("Ray was shut down before the run was closed; close the run first")


def _reason(error: Exception) -> str:
    cause = getattr(error, "cause", None)
    return f"{type(cause).__name__}: {cause}" if cause else f"{type(error).__name__}: {str(error)[:300]}"
