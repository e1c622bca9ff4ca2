"""Hessian-vector products on Ray: actors that each make some groups of the batches."""

import logging
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import ray
from ray.exceptions import RayError

from distsummary.errors import LandscapeError
from distsummary.landscape.directions.recipe import Array
from distsummary.landscape.workers.actor_end import end_actors
from distsummary.landscape.workers.actor_errors import original_errors
from distsummary.landscape.workers.actor_start import MAX_DEATHS, own_device, spawn
from distsummary.landscape.workers.failures import HESSIAN, told

_log = logging.getLogger(__name__)


class HessianActor:
    """A torch_hessian.TorchHessian in a process of its own, on the GPU if Ray gave one."""

    def __init__(self, parts: Sequence[Any], options: dict[str, Any]) -> None:
        self._parts, self._options = parts, options
        self._hessian: Any = None

    def _opened(self) -> Any:
        if self._hessian is None:
            from distsummary.landscape.engines.torch_hessian import TorchHessian

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
    with its error, and when too many die.
    """

    def __init__(self, sent: Any, options: dict[str, Any], resources: Sequence[dict[str, float]]) -> None:
        self._sent, self._options, self._resources = sent, ray.put(options), resources
        self._actors = [self._start(number) for number in range(len(resources))]
        self._deaths = 0
        try:
            self.weight, self._groups = self._ask(0, lambda actor: actor.extent.remote())
        except BaseException:
            self.__exit__()
            raise

    def _start(self, number: int) -> Any:
        return spawn(HessianActor, self._resources[number], self._sent, self._options)

    def product(self, vector: Array) -> Array:
        """See `hessian.Hessian`."""
        sent, total = ray.put(vector), np.zeros(len(vector))
        workers = [group % len(self._actors) for group in range(self._groups)]
        calls = [self._actors[w].group_product.remote(sent, group) for group, w in enumerate(workers)]
        for group, (worker, call) in enumerate(zip(workers, calls, strict=True)):
            total += self._ask(worker, lambda actor, g=group: actor.group_product.remote(sent, g), call)
        return total

    def _ask(self, worker: int, ask: Any, call: Any = None) -> Any:
        """The answer to a call that may be under way; asked again of a new worker when this one is dead."""
        while True:
            try:
                with told(HESSIAN, RayError), original_errors():
                    answer = ray.get(ask(self._actors[worker]) if call is None else call)
            except RayError as error:
                call = None
                self._replace(worker, error)
            else:
                self._deaths = 0
                return answer

    def _replace(self, worker: int, error: RayError) -> None:
        _log.warning("a worker of the Hessian died (%s); another takes its place", error)
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            raise LandscapeError(
                f"{self._deaths} workers of the Hessian died one after the other ({error}); "
                "look into the memory they need, or use workers=0"
            ) from error
        ray.kill(self._actors[worker], no_restart=True)
        self._actors[worker] = self._start(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_actors(zip(self._actors, self._resources, strict=True))
