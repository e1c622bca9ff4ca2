"""How workers are started on Ray: resources, environment, and what is sent to them."""

import math
from typing import Any

import ray

from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.model.user_code import first_line

START_S = 30.0  # after which a worker without resources is added if none has started
UNRESERVED = {"num_cpus": 0.0}
NOT_STARTED = "no landscape worker started in %g s; starting one without a reservation"
NO_GPU = (
    "no landscape worker got its GPU in %g s; one is waited for, as GPUs computed the finished points and "
    "CPUs give other last bits; free one, or stop this call: with run_dir= the next one goes on"
)
FIT_S = 10.0  # a process starts in one or two
# One thread each; and glibc keeps what a layer frees for the next one, see docs/landscape.md, "Memory".
_ENVIRONMENT = {
    "env_vars": {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most that every glibc takes
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    }
}


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


def fits(gpus: float) -> bool:
    """Whether a worker gets so many GPUs, or such a share of one, now.

    Totals do not tell: 0.4 of each of three GPUs are 1.2 free ones, and hold no worker with one. Ray knows
    what is left of each, and does not say; so it is asked for them.
    """
    if gpus <= 1 and ray.available_resources().get("GPU", 0) >= ray.cluster_resources().get("GPU", 0):
        return True  # nothing is taken
    task = ray.remote(_nothing).options(
        num_gpus=gpus, num_cpus=0, max_retries=0, scheduling_strategy="DEFAULT"
    )
    asked = task.remote()
    found, _ = ray.wait([asked], timeout=FIT_S)
    if not found:
        ray.cancel(asked)
    return bool(found)


def _nothing() -> None:
    pass


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
    except Exception as error:  # pickle raises whatever the object raises; Ray puts an essay before it
        what = first_line(error.__cause__ or error)
        raise LandscapeError(
            f"the model, loss function or batches cannot be sent to workers ({what}); "
            "use functions and classes of a module, or workers=0 to stay in this process"
        ) from error


def portable(model: Any, batches: Any) -> tuple[Any, Any]:
    """Model and batches that any process can unpickle."""
    if framework_of(model).name != "torch":
        return model, batches
    from distsummary.landscapes.model.torch_loan import portable as on_host

    return on_host(model, batches)


def on_host(model: Any, function: Any) -> Any:
    """A loss function or metric that any process can unpickle: its tensors on the host."""
    if framework_of(model).name != "torch":
        return function
    from distsummary.landscapes.model.torch_loan import placed

    return placed(function, model, "cpu")


def gpus_each(model: Any, asked: float | None) -> float:
    """The GPUs, or the share of one, of each worker: what is asked for, else what the model needs."""
    if asked is not None:
        return asked
    return float(max(1, len(spread(model)))) if framework_of(model).name == "torch" else 0.0


def spread(model: Any) -> list[int]:
    """The numbers of the GPUs that a model lies on, where they are several; else none."""
    if framework_of(model).name != "torch":
        return []
    from distsummary.landscapes.model.torch_memory import spread as gpus

    return gpus(model)


def check_spread(own: list[int], given: float) -> None:
    """Raise InvalidValueError where workers with so many GPUs cannot hold a model that lies on `own`."""
    if own and own != list(range(len(own))):
        raise InvalidValueError(
            f"a model over several GPUs must lie on the first ones for workers, got numbers {own}; "
            "put it there, or use workers=0"
        )
    if given < len(own):
        raise InvalidValueError(
            f"each worker must have the {len(own)} GPUs that the model lies on, got {given:g}; "
            "free as many, change gpus_per_worker, or use workers=0"
        )


def own_device(model: Any) -> str | None:
    """Inside a worker: the GPU if Ray gave it one, else the CPU; None for models without devices."""
    if framework_of(model).name != "torch":
        return None
    from distsummary.landscapes.model.torch_memory import worker_device

    return worker_device(model, ray.get_runtime_context().get_assigned_resources().get("GPU", 0.0))
