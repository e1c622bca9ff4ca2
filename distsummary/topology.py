"""Which rank this process is: the only reader of the environment and of the loaded modules."""

import os
import platform
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from distsummary.checks import check_choice, check_int, check_type
from distsummary.errors import InvalidValueError, WorldMismatchError

ROLES = ("train", "eval", "landscape")
LAUNCH_ID = "DISTSUMMARY_LAUNCH_ID"
HYPER_CONFIG = "MINDINSIGHT_HYPER_CONFIG"

# Axes along which a tensor that is not a shard is equal on all ranks. Along any other (tp, pp, ep, cp ...)
# an ordinary tensor may be a part that its framework does not know to be one.
DATA_AXES = frozenset(
    ("batch", "data", "ddp", "dp", "dp_replicate", "dp_shard", "fsdp", "replicate", "shard")
)

# name of the source -> (rank, world size, local rank, local world size, node rank) variables.
# SLURM stands last: under srun its numbers are those of the node's one task, not of the rank.
_VARIABLES: dict[str, tuple[str, str, str, str, str]] = {
    "environment": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    "openmpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "",
    ),
    "pmi": ("PMI_RANK", "PMI_SIZE", "", "", ""),
    "mindspore": ("RANK_ID", "RANK_SIZE", "", "", ""),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Where one process stands in its job.

    `mesh` maps the name of a mesh axis (dp, tp, pp ...) to (coordinate of this rank, size of the axis).
    `incarnation` is equal on all ranks of one start of the job and differs after a restart.
    """

    role: str = "train"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    mesh: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    source: str = "single process"
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)


def detect(
    *,
    role: str = "train",
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Mapping[str, tuple[int, int]] | None = None,
    environ: Mapping[str, str] | None = None,
    modules: Mapping[str, ModuleType] | None = None,
) -> Topology:
    """Find this process's place: arguments, Ray Train, torch.distributed, the environment, else rank 0 of 1.

    Raises InvalidTypeError or InvalidValueError for bad arguments, WorldMismatchError when the arguments or
    torch.distributed contradict the environment.
    """
    environ = os.environ if environ is None else environ
    modules = sys.modules if modules is None else modules
    check_choice("role", role, ROLES)
    check_int("rank", rank, low=0, optional=True)
    check_int("world_size", world_size, low=1, optional=True)
    check_type("mesh", mesh, Mapping, optional=True)
    places = [
        place for place in (_ray_train(modules), _torch(modules, environ), _environment(environ)) if place
    ]
    place = dict(places[0]) if places else {}
    _refuse_contradictions(places, world_size)
    if rank is not None:
        place |= {"rank": rank, "world_size": world_size or place.get("world_size", 1), "source": "arguments"}
    elif world_size is not None:
        place["world_size"] = world_size
    found = Topology(role=role, mesh=dict(mesh or {}), incarnation=_incarnation(environ), **place)
    if found.rank >= found.world_size:
        raise InvalidValueError(
            f"rank must be in [0, world_size) = [0, {found.world_size}), got {found.rank} "
            f"from {found.source}; pass both rank= and world_size="
        )
    return found


def in_ray(modules: Mapping[str, ModuleType] | None = None) -> bool:
    """Whether this process is connected to a Ray cluster (Ray is not imported to find out)."""
    ray = (sys.modules if modules is None else modules).get("ray")
    is_initialized = getattr(ray, "is_initialized", None)
    return bool(is_initialized and is_initialized())


def hyper_config(environ: Mapping[str, str] | None = None) -> str:
    """What a MindInsight tuning job gives this training: JSON text, empty if it is none."""
    return (os.environ if environ is None else environ).get(HYPER_CONFIG, "")


def cluster_address(environ: Mapping[str, str] | None = None) -> str | None:
    """The Ray cluster that this process was started for (a submitted job's, say), None for none."""
    return (os.environ if environ is None else environ).get("RAY_ADDRESS")


def _ray_train(modules: Mapping[str, ModuleType]) -> dict[str, Any] | None:
    train = modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        place = {
            "rank": context.get_world_rank(),
            "world_size": context.get_world_size(),
            "local_rank": context.get_local_rank(),
            "local_world_size": context.get_local_world_size(),
            "node_rank": context.get_node_rank(),
        }
    except Exception:  # outside a train function every version answers differently; then Ray Train has no say
        return None
    if any(value is None for value in place.values()):
        return None
    return place | {"source": "ray.train"}


def _torch(modules: Mapping[str, ModuleType], environ: Mapping[str, str]) -> dict[str, Any] | None:
    distributed = getattr(modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    place = {
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
        "source": "torch.distributed",
    }
    return (_local(environ, _VARIABLES["environment"]) if "RANK" in environ else {}) | place


def _environment(environ: Mapping[str, str]) -> dict[str, Any] | None:
    for source, names in _VARIABLES.items():
        if names[0] in environ and names[1] in environ:
            return {
                "rank": _number(environ, names[0], low=0),
                "world_size": _number(environ, names[1], low=1),
                "source": source,
                **_local(environ, names),
            }
    return None


def _local(environ: Mapping[str, str], names: tuple[str, str, str, str, str]) -> dict[str, int]:
    fields = ("local_rank", "local_world_size", "node_rank")
    lows = (0, 1, 0)
    return {
        key: _number(environ, name, low=low)
        for key, name, low in zip(fields, names[2:], lows, strict=True)
        if name in environ
    }


def _number(environ: Mapping[str, str], name: str, *, low: int) -> int:
    text = environ[name]
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if number < low:
        raise InvalidValueError(
            f"the environment variable {name} must be an integer >= {low}, got {text!r}; mend or unset it"
        )
    return number


def _refuse_contradictions(places: list[dict[str, Any]], world_size: int | None) -> None:
    said = {place["source"]: place["world_size"] for place in places if place["source"] != "slurm"}
    if world_size is not None:
        said["the argument world_size"] = world_size
    if len(set(said.values())) > 1:
        listing = ", ".join(f"{size} by {source}" for source, size in said.items())
        raise WorldMismatchError(
            f"the world size is said to be {listing}; start the ranks with one world size"
        )


def _incarnation(environ: Mapping[str, str]) -> str:
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if LAUNCH_ID in environ:
        return f"{environ[LAUNCH_ID]}+{restart}"
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        return f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}+{restart}"
    return uuid.uuid4().hex  # without a launcher, every start is an incarnation of its own
