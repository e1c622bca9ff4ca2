"""Hessian-vector products on Ray: actors that each make some groups of the batches."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import ray
from ray.exceptions import RayError

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.run.actor_errors import LOOK, Deaths, how_it_died, original_errors
from distsummary.landscapes.run.actor_start import own_device
from distsummary.landscapes.run.actor_team import Team
from distsummary.landscapes.run.failures import HESSIAN, told

_log = logging.getLogger(__name__)


class HessianActor:
    """A torch_hessian.TorchHessian in a process of its own, on the GPU if Ray gave one."""

    def __init__(self, parts: Sequence[Any], options: dict[str, Any]) -> None:
        self._parts, self._options = parts, options
        self._hessian: Any = None

    def _opened(self) -> Any:
        if self._hessian is None:
            from distsummary.landscapes.engines.torch_hessian import TorchHessian

            self._hessian = TorchHessian(*self._parts, **self._options, device=own_device(self._parts[0]))
        return self._hessian

    def extent(self) -> tuple[float, int]:
        """The weight of all batches, and how many groups they make."""
        hessian = self._opened()
        return hessian.weight, hessian.groups

    def group_product(self, vector: Array, number: int) -> Array:
        """See TorchHessian."""
        return np.asarray(self._opened().group_product(vector, number))


class RayHessian:
    """A `hessian.Hessian`; its products are the same bits for any number of workers.

    A worker that dies is replaced, and its groups are made again. Raises LandscapeError when a worker raises,
    with its error, and when too many die. `forgo`: see Team.
    """

    def __init__(
        self,
        sent: Any,
        options: dict[str, Any],
        resources: Sequence[dict[str, float]],
        forgo: Callable[[], None] = lambda: None,
    ) -> None:
        self._team = Team(HessianActor, resources, sent, ray.put(options), forgo=forgo)
        self._deaths = Deaths(len(resources))
        self._calls: list[Any] = []  # of the last product
        try:
            self.weight, self._groups = self._ask(lambda actor: actor.extent.remote())
        except BaseException:
            self.__exit__()
            raise

    def product(self, vector: Array) -> Array:
        """See `hessian.Hessian`."""
        sent, total = ray.put(vector), np.zeros(len(vector))
        started = self._team.started()
        actors = [started[group % len(started)] for group in range(self._groups)]
        self._calls = [actor.group_product.remote(sent, group) for group, actor in enumerate(actors)]
        for group, (actor, call) in enumerate(zip(actors, self._calls, strict=True)):
            total += self._ask(lambda another, g=group: another.group_product.remote(sent, g), actor, call)
        return total

    def _ask(self, ask: Any, actor: Any = None, call: Any = None) -> Any:
        """The answer to a call that `actor` may be at; asked again of another when that is dead."""
        while True:
            if call is None:
                actor = self._team.started()[0]
                call = ask(actor)
            try:
                with told(HESSIAN, RayError), original_errors():
                    answer = self._team.answer(actor, call, "a worker of the Hessian")
            except RayError as error:
                call = None
                self._replace(actor, error)
            else:
                self._deaths.forget()
                return answer

    def _replace(self, actor: Any, error: RayError) -> None:
        if not self._team.replace(actor):
            return
        how = how_it_died(error)
        _log.warning("a worker of the Hessian died (%s); another takes its place", how)
        self._deaths.add(how)
        if self._deaths.are_too_many:
            raise LandscapeError(
                f"{len(self._deaths)} workers of the Hessian died one after the other ({how}); {LOOK}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._team.end(self._calls)
