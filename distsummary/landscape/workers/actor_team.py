"""Actors that are asked one by one: those that have started; none is waited for without a limit."""

import logging
from collections.abc import Sequence
from typing import Any

import ray

from distsummary.landscape.workers.actor_end import end_actors
from distsummary.landscape.workers.actor_start import START_S, UNRESERVED, spawn

_log = logging.getLogger(__name__)


class Team:
    """Actors of one kind, made of the same arguments, each with its resources (actor options).

    What counted as free when they were planned may be taken, or be shares of several GPUs.
    """

    def __init__(self, kind: type, resources: Sequence[dict[str, float]], *arguments: Any) -> None:
        self._kind, self._arguments = kind, arguments
        self._members: list[tuple[Any, dict[str, float], Any]] = []  # the last is there when it has started
        for options in resources:
            self._start(options)

    def _start(self, options: dict[str, float]) -> None:
        actor = spawn(self._kind, options, *self._arguments)
        self._members.append((actor, options, actor.__ray_ready__.remote()))

    def started(self) -> list[Any]:
        """The actors that have started, at least one: after START_S one is added that needs no resources."""
        if not self._started(START_S):
            _log.warning("no landscape worker started in %g s; starting one without a reservation", START_S)
            self._start(UNRESERVED)
        return self._started(None)

    def _started(self, timeout_s: float | None) -> list[Any]:
        signs = [sign for _, _, sign in self._members]
        ray.wait(signs, num_returns=1, timeout=timeout_s)
        found, _ = ray.wait(signs, num_returns=len(signs), timeout=0)
        return [actor for actor, _, sign in self._members if sign in found]

    def replace(self, dead: Any) -> bool:
        """Have another take the place of an actor that died; False: it was replaced before."""
        for number, (actor, options, _) in enumerate(self._members):
            if actor is dead:
                del self._members[number]
                ray.kill(dead, no_restart=True)
                self._start(options)
                return True
        return False

    def end(self) -> None:
        """Kill the actors."""
        end_actors((actor, options) for actor, options, _ in self._members)
        self._members.clear()
