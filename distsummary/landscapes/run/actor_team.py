"""Actors that are asked one by one: those that have started; none is waited for without a limit."""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import ray

from distsummary.landscapes.run.actor_end import end_actors
from distsummary.landscapes.run.actor_silence import REPLACED, answer, asked_where
from distsummary.landscapes.run.actor_start import NO_GPU, NOT_STARTED, START_S, UNRESERVED, spawn

_log = logging.getLogger(__name__)


class Team:
    """Actors of one kind, made of the same arguments, each with its resources (actor options).

    What counted as free when they were planned may be taken, or be shares of several GPUs. `forgo` is called
    when GPUs were waited for in vain.
    """

    def __init__(
        self,
        kind: type,
        resources: Sequence[dict[str, float]],
        *arguments: Any,
        forgo: Callable[[], None] = lambda: None,
    ) -> None:
        self._kind, self._arguments, self._forgo = kind, arguments, forgo
        self._members: list[tuple[Any, dict[str, float], Any]] = []  # the last: where it runs
        self._has_started = False
        for options in resources:
            self._start(options)

    def _start(self, options: dict[str, float]) -> None:
        actor = spawn(self._kind, options, *self._arguments)
        self._members.append((actor, options, asked_where(actor)))

    def started(self) -> list[Any]:
        """The actors that have started, at least one: after START_S one that needs no resources.

        That does not work beside those of GPUs, before or after: what a team gives is of one kind.
        """
        if not self._started(START_S):
            self._do_without()
        found = self._started(None)
        self._has_started = True
        return found

    def _do_without(self) -> None:
        on_gpus = [member for member in self._members if member[1].get("num_gpus")]
        if on_gpus and self._has_started:
            _log.warning(NO_GPU, START_S)
            return
        _log.warning(NOT_STARTED, START_S)
        for member in on_gpus:
            self._members.remove(member)
            ray.kill(member[0], no_restart=True)
        if on_gpus:
            self._forgo()
        self._start(UNRESERVED)

    def _started(self, timeout_s: float | None) -> list[Any]:
        signs = [sign for _, _, sign in self._members]
        ray.wait(signs, num_returns=1, timeout=timeout_s)
        found, _ = ray.wait(signs, num_returns=len(signs), timeout=0)
        return [actor for actor, _, sign in self._members if sign in found]

    def answer(self, actor: Any, call: Any, name: str, then: str = REPLACED) -> Any:
        """What a call of one of them gives, see `actor_silence.answer`."""
        where = next((where for member, _, where in self._members if member is actor), None)
        return ray.get(call) if where is None else answer(call, name, where, then)

    def replace(self, dead: Any) -> bool:
        """Have another take the place of an actor that died; False: it was replaced before."""
        for number, (actor, options, _) in enumerate(self._members):
            if actor is dead:
                del self._members[number]
                ray.kill(dead, no_restart=True)
                self._start(options)
                return True
        return False

    def end(self, calls: Collection[Any] = ()) -> None:
        """Kill the actors, and read what these calls gave."""
        end_actors([(actor, options) for actor, options, _ in self._members], calls)
        self._members.clear()
