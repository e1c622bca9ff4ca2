"""The free resources of a Ray cluster for workers, even while ended actors still count as holding some."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

RETURN_S = 5.0  # limit of the wait: other programs may have taken what our actors returned
POLL_S = 0.02
TOLERANCE = 1e-3  # of a GPU, because shares are added up
FIT_S = 10.0  # a process starts in one or two


@dataclass(slots=True)
class _Returning:
    """Resources that will be free once ended actors of this process have returned them."""

    free: dict[str, float] = field(default_factory=dict)
    until: float = 0.0  # wait until this time at most


_returning = _Returning()  # a landscape waits for the resources of the one before it


def end_actors(actors: Iterable[tuple[Any, Mapping[str, float]]]) -> None:
    """Kill actors, each given with its resources (actor options); `free_resources` waits for these."""
    actors = list(actors)
    held = Counter[str]()
    for _, options in actors:
        for name, option in (("GPU", "num_gpus"), ("CPU", "num_cpus")):
            held[name] += options.get(option, 0)  # type: ignore[assignment]  # a share of a GPU
    try:
        if +held:
            free, whole = ray.available_resources(), ray.cluster_resources()
            # Not more than the cluster has: some actors may never have received theirs.
            _returning.free = {
                name: min(free.get(name, 0) + amount, whole.get(name, 0)) for name, amount in (+held).items()
            }
            _returning.until = time.monotonic() + RETURN_S
    finally:  # also when Ctrl-C comes again
        for actor, _ in actors:
            ray.kill(actor, no_restart=True)


def free_resources() -> dict[str, float]:
    """The free resources of the cluster plus those that ended actors of this process held."""
    while True:
        free = ray.available_resources()
        is_back = all(free.get(name, 0) >= amount - TOLERANCE for name, amount in _returning.free.items())
        if is_back or time.monotonic() >= _returning.until:
            _returning.free = {}
            return dict(free)
        time.sleep(POLL_S)


def fits(gpus: float) -> bool:
    """Whether a worker can get `gpus` GPUs, or this share of one, now.

    Totals do not show this: 0.4 free on each of three GPUs add up to 1.2, but a worker with a whole GPU does
    not fit. Ray knows what is free on each GPU but does not report it, so a task requests `gpus`.
    """
    if gpus <= 1 and ray.available_resources().get("GPU", 0) >= ray.cluster_resources().get("GPU", 0):
        return True  # nothing is taken
    task = ray.remote(lambda: None).options(
        num_gpus=gpus, num_cpus=0, max_retries=0, scheduling_strategy="DEFAULT"
    )
    asked = task.remote()
    found, _ = ray.wait([asked], timeout=FIT_S)
    if not found:
        ray.cancel(asked)
    return bool(found)
