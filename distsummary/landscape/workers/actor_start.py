"""How workers are started on Ray: resources, environment, and what is sent to them."""

import math
from typing import Any

import ray

from distsummary.errors import LandscapeError
from distsummary.frameworks.base import framework_of

MAX_DEATHS = 6  # one after the other without a result between: twice what one bad chunk can do
_ENVIRONMENT = {"env_vars": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}}


def plan_workers(
    free: dict[str, float], jobs: int, asked: int | None, *, gpus_each: float = 1.0
) -> list[dict[str, float]]:
    """The resources (actor options) of each worker to start, at least one.

    `gpus_each`: GPUs or the share of one that a worker gets, if enough for one worker are free; 0 for none.
    """
    on_gpus = math.floor(free.get("GPU", 0) / gpus_each) if gpus_each else 0
    cpus = int(free.get("CPU", 0))
    count = max(1, min(asked or on_gpus or cpus, jobs))
    if on_gpus:
        return [{"num_gpus": gpus_each, "num_cpus": 0}] * count
    return [{"num_cpus": 1 if number < cpus else 0} for number in range(count)]


def spawn(kind: type, options: dict[str, float], *arguments: Any) -> Any:
    """An actor with these resources, that is not restarted."""
    # "DEFAULT" leaves a placement group that captures children: its bundles are others' and may be full.
    return (
        ray.remote(kind)
        .options(**options, max_restarts=0, scheduling_strategy="DEFAULT", runtime_env=_ENVIRONMENT)
        .remote(*arguments)
    )


def send(value: Any) -> Any:
    """Put model, loss and data into the object store; raises LandscapeError for what cannot be sent."""
    try:
        return ray.put(value)
    except Exception as error:  # pickle raises whatever the object raises
        raise LandscapeError(
            f"the model, loss_fn or batches cannot be sent to workers ({error}); "
            "use functions and classes of a module, or workers=0 to stay in this process"
        ) from error


def portable(model: Any, batches: Any) -> tuple[Any, Any]:
    """Model and batches that any process can unpickle."""
    if framework_of(model).name != "torch":
        return model, batches
    from distsummary.landscape.engines.torch_memory import portable as on_host

    return on_host(model, batches)


def own_device(model: Any) -> str | None:
    """Inside a worker: the GPU if Ray gave it one, else the CPU; None for models without devices."""
    if framework_of(model).name != "torch":
        return None
    from distsummary.landscape.engines.torch_memory import worker_device

    return worker_device(has_gpu=bool(ray.get_gpu_ids()))
