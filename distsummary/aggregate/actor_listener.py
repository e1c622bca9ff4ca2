"""DigestListener: reports to the aggregator actor of a run what a rank's collector has written."""

import contextlib
import logging
import time
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from distsummary.base.actor_calls import RayConnection
from distsummary.base.failures import error_line
from distsummary.format.digest import Digest

logger = logging.getLogger(__name__)

LOOK_S = 5.0  # how often it looks for an aggregator while there is none
ON_WAY = 8  # digests on their way to an aggregator that does not answer; more are dropped


class DigestListener:
    """Sends digests to the aggregator of a run; can be pickled, and then starts from scratch.

    It finds the actor by its name, again when another has taken its place, and starts none. Nothing is
    repeated: the aggregator reads in the files what it has not received. Only one thread may use it.

    Args:
        name, namespace: of the actor.
        group: the concurrency group in which the actor takes digests.
    """

    def __init__(self, name: str, namespace: str, group: str) -> None:
        self._name, self._namespace, self._group = name, namespace, group
        self._ray: RayConnection | None = None
        self._actor: Any = None
        self._looked_at = float("-inf")
        self._on_way: list[Any] = []  # references to the answers
        self._trouble = ""
        self.dropped = 0  # digests that were not sent

    def __reduce__(self) -> tuple[Any, ...]:
        return DigestListener, (self._name, self._namespace, self._group)

    def report(self, digest: Digest) -> None:
        """Send a digest, or count it as dropped; see `Listener`."""
        try:
            if self._ray is None:
                self._ray = RayConnection()
            with self._ray.call():
                self._receive_answers()
                actor = self._found()
                if actor is None or len(self._on_way) >= ON_WAY:
                    self.dropped += 1
                    return
                self._on_way.append(actor.digest.options(concurrency_group=self._group).remote(digest))
        except Exception as error:
            self.dropped += 1
            self._note(error)

    def settle(self, timeout_s: float) -> None:
        """Wait until what was sent has arrived; see `Listener`."""
        try:
            if self._ray is not None and self._on_way:
                self._ray.ready(self._on_way, timeout_s)
                with self._ray.call():
                    self._receive_answers()
        except Exception as error:
            self._note(error)
        if self.dropped:
            logger.info("%s: %d digest(s) were not sent: %s", self._name, self.dropped, self._trouble)

    def _found(self) -> Any:
        """The aggregator; None if there is none now."""
        now = time.monotonic()
        if self._actor is None and now - self._looked_at >= LOOK_S:
            self._looked_at = now
            with contextlib.suppress(ValueError):  # no actor has this name
                self._actor = ray.get_actor(self._name, namespace=self._namespace)
        return self._actor

    def _receive_answers(self) -> None:
        """Fetch the answers that have come, because Ray prints each error that is not fetched."""
        if not self._on_way:
            return
        come, self._on_way = ray.wait(self._on_way, num_returns=len(self._on_way), timeout=0)
        for reference in come:
            try:
                ray.get(reference, timeout=0)
            except RayError as error:
                self._note(error)
                if isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError):
                    self._actor = None  # it has ended; an unavailable one is being restarted

    def _note(self, error: Exception) -> None:
        """Log a failure for those who debug: nothing is lost by it."""
        self._trouble = error_line(error)
        logger.debug("%s: a digest was not received: %s", self._name, self._trouble)
