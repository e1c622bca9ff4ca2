"""Plans which workers to start on a cluster's free resources."""

import math
from collections.abc import Mapping
from typing import Any

from distsummary.errors import InvalidValueError
from distsummary.frameworks.base import framework_of


def plan_workers(
    free: Mapping[str, float], jobs: int, asked: int | None, *, gpus_each: float = 1.0
) -> list[dict[str, float]]:
    """The resources (actor options) of each worker to start, at least one.

    There are `asked` workers, but at most `jobs`. If `asked` is None, there are as many as the free GPUs can
    hold or, if these can hold none, as there are free CPUs. `gpus_each`: GPUs per worker, or a share of one
    GPU. Workers use CPUs if this is 0 or if so many GPUs are not free; those beyond the free CPUs reserve
    none.
    """
    on_gpus = math.floor(free.get("GPU", 0) / gpus_each) if gpus_each else 0
    cpus = int(free.get("CPU", 0))
    count = max(1, min(asked or on_gpus or cpus, jobs))
    return [
        {"num_gpus": gpus_each, "num_cpus": 0} if on_gpus else {"num_cpus": 1 if number < cpus else 0}
        for number in range(count)
    ]


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
