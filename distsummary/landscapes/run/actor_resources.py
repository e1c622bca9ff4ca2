"""Finds a Ray cluster's free resources; waits until Ray has taken back the resources of killed actors."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

RETURN_S = 5.0  # limit of the wait for killed actors' resources: other programs may have taken them
POLL_S = 0.02
TOLERANCE = 1e-3  # of a GPU or CPU: sums of shares such as 0.1 are not exact


@dataclass(slots=True)
class _Returning:
    """The amounts that will be free once Ray has taken back the resources of killed actors."""

    free: dict[str, float] = field(default_factory=dict)
    until: float = 0.0  # wait until this time at most


_returning = _Returning()  # shared by all landscapes: each waits for the resources of the one before it


def end_actors(actors: Iterable[tuple[Any, Mapping[str, float]]], *, return_s: float = RETURN_S) -> None:
    """Kill actors, given as (actor, its resources); `free_resources` waits `return_s` for these resources."""
    actors = list(actors)
    held = Counter[str]()
    for _, options in actors:
        for name, option in (("GPU", "num_gpus"), ("CPU", "num_cpus"), ("memory", "memory")):
            held[name] += options.get(option, 0)  # type: ignore[assignment]  # a share of a GPU
    try:
        if +held:
            free, whole = ray.available_resources(), ray.cluster_resources()
            # Not more than the cluster has: some actors may never have received their resources.
            _returning.free = {
                name: min(free.get(name, 0) + amount, whole.get(name, 0)) for name, amount in (+held).items()
            }
            _returning.until = time.monotonic() + return_s
    finally:
        # Actors are killed even if another Ctrl-C interrupts the lines above.
        for actor, _ in actors:
            ray.kill(actor, no_restart=True)


def free_resources() -> dict[str, float]:
    """The cluster's free resources, once Ray has taken back those of killed actors, or after a time limit."""
    while True:
        free = ray.available_resources()
        is_back = all(free.get(name, 0) >= amount - TOLERANCE for name, amount in _returning.free.items())
        if is_back or time.monotonic() >= _returning.until:
            _returning.free = {}
            return dict(free)
        time.sleep(POLL_S)
