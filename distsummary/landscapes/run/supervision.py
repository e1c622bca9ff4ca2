"""Decides which workers to start, when a worker counts as silent, and when too many have died."""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from distsummary.errors import InvalidValueError
from distsummary.frameworks.base import framework_of

SILENT_S = 60.0  # a worker is reported after this silence, again after twice as long, and so on
MAX_DEATHS = 8  # consecutive deaths without a result: twice the number that one bad chunk can cause
NOT_BEGUN = "it could not begin: "


def plan_workers(
    free: Mapping[str, float],
    jobs: int,
    asked: int | None,
    *,
    gpus_each: float = 1.0,
    worker_bytes: int = 0,
) -> list[dict[str, float]]:
    """The resources (actor options) of each worker to start, at least one.

    There are `asked` workers, but at most `jobs`. If `asked` is None, there are as many as the free GPUs can
    hold or, if these can hold none, as there are free CPUs. `gpus_each`: GPUs per worker, or a share of one
    GPU. Workers use CPUs if this is 0 or if so many GPUs are not free. `worker_bytes`: the memory that each
    worker reserves; if `asked` is None, there are only as many as fit into the free memory, at least one.
    """
    on_gpus = math.floor(free.get("GPU", 0) / gpus_each) if gpus_each else 0
    cpus = int(free.get("CPU", 0))
    fitting = int(min(jobs, free.get("memory", math.inf) / worker_bytes)) if worker_bytes else jobs
    count = max(1, min(asked or min(on_gpus or cpus, fitting), jobs))
    found: list[dict[str, float]] = [
        {"num_gpus": gpus_each, "num_cpus": 0} if on_gpus else {"num_cpus": 1 if number < cpus else 0}
        for number in range(count)
    ]
    for options in found[:fitting] if worker_bytes else ():
        options["memory"] = worker_bytes
    return found


def surplus(count: int, whole: Mapping[str, float], each: Mapping[str, float]) -> str:
    """What it means that these are more workers than the cluster has cores or GPUs; empty if they are not.

    Args:
        whole: the resources of the cluster. each: those of a worker, as `plan_workers` returned them.
    """
    gpus = each.get("num_gpus", 0)
    most = math.floor(whole.get("GPU", 0) / gpus) if gpus else int(whole.get("CPU", 0))
    if count <= most:
        return ""
    has = f"{whole.get('GPU', 0):g} GPUs for {gpus:g} each" if gpus else f"{most} core{'s' * (most != 1)}"
    then = f"{count - most} of them wait for a GPU" if gpus else "they share them, which is no faster"
    return f"workers={count}, but the Ray cluster has {has}: {then}; workers='auto' starts as many as it has"


def spread(model: Any) -> list[int]:
    """The indices of a torch model's GPUs if it is spread over several; else an empty list."""
    if framework_of(model).name != "torch":
        return []
    from distsummary.landscapes.model.torch_memory import spread as gpus

    return gpus(model)


def default_gpus(model: Any) -> float:
    """The default number of GPUs per worker: for a torch model as many as it lies on, at least 1; else 0."""
    return float(max(1, len(spread(model)))) if framework_of(model).name == "torch" else 0.0


def check_spread(own: list[int], given: float) -> None:
    """Raise InvalidValueError if workers with `given` GPUs cannot hold a model on the GPUs `own`."""
    if own and own != list(range(len(own))):
        raise InvalidValueError(
            f"a model on several GPUs must be on the first ones (0, 1, ...) to use workers, got {own}; "
            "move it there, or use workers=0"
        )
    if given < len(own):
        raise InvalidValueError(
            f"each worker must have as many GPUs as the model lies on ({len(own)}), got {given:g}; "
            "free as many, change gpus_per_worker, or use workers=0"
        )


class Silences:
    """Tracks which workers have not answered for too long; all times are seconds of the same clock."""

    def __init__(self, limit_s: float = SILENT_S) -> None:
        self._limit_s = limit_s  # for all workers; a report raises it, so that slow calls are reported once
        self._last_seen: dict[str, float] = {}

    def receive(self, worker: str, now: float) -> None:
        """Note that a worker answered."""
        self._last_seen[worker] = now

    def report(self, asked: Mapping[str, float], started: Set[str], now: float) -> dict[str, float]:
        """The workers to report now, each with its seconds of silence.

        `asked`: when each worker got its current call. A worker that is not in `started` waits for its
        resources, maybe for hours: its silence begins when it has started.
        """
        for worker in asked.keys() - started:
            self.receive(worker, now)
        silent = {worker: now - max(at, self._last_seen.get(worker, at)) for worker, at in asked.items()}
        silent = {worker: s for worker, s in silent.items() if worker in started and s >= self._limit_s}
        if silent:
            self._limit_s = 2 * max(silent.values())
        return silent


def are_too_many(deaths: Sequence[str], workers: int, limit: int = MAX_DEATHS) -> bool:
    """Whether there are `limit` deaths, or all workers failed to begin in the same way (at least two did).

    `deaths`: how workers died since the last result, in a few words that begin with NOT_BEGUN if the worker
    could not begin. `workers`: how many there are.
    """
    end_alike = len(set(deaths)) == 1 and deaths[0].startswith(NOT_BEGUN)
    return len(deaths) >= (min(max(2, workers), limit) if end_alike else limit)
