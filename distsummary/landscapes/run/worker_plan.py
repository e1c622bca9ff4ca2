"""Plans which workers to start on a cluster's free resources; measures how much memory each needs."""

import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distsummary.errors import InvalidValueError
from distsummary.frameworks.base import framework_of

BARE_BYTES = 400 << 20  # a worker's process that has imported torch; 340 MiB with torch 2.13 on a CPU
COPIES = 4  # of the parameters that an engine holds at least: the model's own, the centre, two directions


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


class WorkerMemory:
    """The memory that a worker needs.

    Attributes:
        nbytes: bytes of a whole worker process; 0 until something is known.
    """

    def __init__(self) -> None:
        self.nbytes = 0

    @contextmanager
    def measured(self, model: Any) -> Iterator[None]:
        """Measure how much the block, which evaluates points of `model`, adds to this process at its peak.

        Where the system does not report a peak (other than Linux), or the block evaluates nothing, it is
        what an engine holds at least: COPIES of the parameters.
        """
        parameters = framework_of(model).named_parameters(model)
        least = COPIES * sum(int(getattr(value, "nbytes", 0)) for _, value in parameters)
        # What was garbage before must not be freed within the block, or the growth would seem too small.
        gc.collect()
        before = 0
        with suppress(OSError):
            # After this the peak begins again, see proc(5).
            Path("/proc/self/clear_refs").write_text("5")
            before = _status("VmRSS")
        yield
        grown = _status("VmHWM") - before if before else 0
        self.nbytes = BARE_BYTES + max(grown, least)


def _status(field: str) -> int:
    """A field of this process's status in bytes; 0 where there is none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
    return 0
