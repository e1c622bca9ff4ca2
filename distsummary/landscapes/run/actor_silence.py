"""Workers that do not answer: who they are, how long they have been silent, and how to end them."""

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

SILENT_S = 60.0  # after which it is told of; then after twice as long, and so on
REPLACED = ": another takes its place"

_log = logging.getLogger(__name__)


def asked_where(actor: Any) -> Any:
    """The reference to where an actor runs, which is there when it has started; to be asked for first."""
    return actor.__ray_call__.remote(_where)


def _where(actor: object) -> str:
    return f"process {os.getpid()} on {ray.util.get_node_ip_address()}"


def _has_started(where: Any) -> bool:
    return bool(ray.wait([where], timeout=0)[0])


def _tell(name: str, where: Any, seconds: float, then: str) -> None:
    text = "%s (%s) has not answered for %.0f s; if it hangs, kill that process%s"
    with suppress(RayError):  # it has died, which its calls tell
        _log.warning(text, name, ray.get(where), seconds, then)


def answer(call: Any, name: str, where: Any, then: str = REPLACED) -> Any:
    """`ray.get` that tells of a worker that does not answer."""
    waited = 0.0
    while not ray.wait([call], timeout=waited or SILENT_S)[0]:
        waited = 2 * waited or SILENT_S
        if _has_started(where):
            _tell(name, where, waited, then)
    return ray.get(call)


class Silences:
    """Since when workers that were asked have not answered."""

    def __init__(self) -> None:
        self._where: dict[str, Any] = {}
        self._heard: dict[str, float] = {}
        self._started: set[str] = set()
        self._limit_s = SILENT_S  # of all: who always takes so long is told of once

    def add(self, worker: str, actor: Any) -> None:
        """Take in a worker that nothing was asked of yet."""
        self._where[worker] = asked_where(actor)

    def end(self, worker: str) -> None:
        """Take in that a worker answered, or could not yet."""
        self._heard[worker] = time.monotonic()

    def tell(self, asked: Mapping[str, float]) -> None:
        """Log who has been silent for too long, of workers that were asked then for what they are at.

        One that has not started waits for a place, maybe for hours: it is silent from when that is over.
        """
        for worker in asked.keys() - self._started:
            self.end(worker)
            if _has_started(self._where[worker]):
                self._started.add(worker)
        now = time.monotonic()
        since = {worker: max(at, self._heard.get(worker, at)) for worker, at in asked.items()}
        for worker in [worker for worker, at in since.items() if now - at >= self._limit_s]:
            _tell(f"landscape {worker}", self._where[worker], now - since[worker], REPLACED)
            self._limit_s = 2 * (now - since[worker])
