"""How workers end on Ray: killed; what they held counts as taken for a moment more, and is waited for."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

RETURN_S = 5.0  # at most: others may have taken meanwhile what ours gave back
POLL_S = 0.02
TOLERANCE = 1e-3  # of a GPU: shares are added up
READ_S = 1.0  # at most: the calls of a killed actor end in some milliseconds


@dataclass(slots=True)
class _Returning:
    """How much of each resource will be free when what was held is; waited for until `ends`, no longer."""

    free: dict[str, float] = field(default_factory=dict)
    ends: float = 0.0

    def is_over(self, free: Mapping[str, float]) -> bool:
        """Whether nothing is to be waited for any more."""
        is_back = all(free.get(name, 0) >= amount - TOLERANCE for name, amount in self.free.items())
        return is_back or time.monotonic() >= self.ends


_returning = _Returning()  # of this process: a landscape waits for what the one before it held


def end_actors(actors: Iterable[tuple[Any, Mapping[str, float]]], calls: Collection[Any] = ()) -> None:
    """Kill actors, each given with its resources (actor options), and read what calls are left of them."""
    actors = list(actors)
    held = Counter[str]()
    for _, options in actors:
        for name, option in (("GPU", "num_gpus"), ("CPU", "num_cpus")):
            held[name] += options.get(option, 0)  # type: ignore[assignment]  # a share of a GPU
    try:
        if +held:
            _await(+held)
    finally:  # also when Ctrl-C comes again
        for actor, _ in actors:
            ray.kill(actor, no_restart=True)
    _read(calls)


def _read(calls: Collection[Any]) -> None:
    """Read what calls gave: Ray prints errors that nobody has read."""
    ended = ray.wait(list(calls), num_returns=len(calls), timeout=READ_S)[0] if calls else []
    for call in ended:
        with suppress(RayError):
            ray.get(call)


def _await(held: Mapping[str, float]) -> None:
    """Have `free_resources` wait; for no more than the cluster has, as some may never have got theirs."""
    free, whole = ray.available_resources(), ray.cluster_resources()
    _returning.free = {
        name: min(free.get(name, 0) + amount, whole.get(name, 0)) for name, amount in held.items()
    }
    _returning.ends = time.monotonic() + RETURN_S


def free_resources() -> dict[str, float]:
    """What is free on the cluster, with what this process' own ended actors held."""
    while not _returning.is_over(free := ray.available_resources()):
        time.sleep(POLL_S)
    _returning.free = {}
    return dict(free)
