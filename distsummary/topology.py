"""Which rank this process is: the only reader of the environment and of the loaded modules."""

import os
import platform
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
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

_MAX_PID = 1 << 22  # PID_MAX_LIMIT of Linux
_ENDED = "ZX"  # states of proc(5): a zombie has an entry, and does nothing any more

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

# name of the source -> what its launcher calls this start of the job, on all ranks alike and never again: the
# first entry whose variables are all set.
_JOB_IDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "openmpi": (("OMPI_MCA_ess_base_jobid",), ("PMIX_NAMESPACE",)),
    "pmi": (("PMI_JOBID",), ("PMIX_NAMESPACE",)),
    "slurm": (("SLURM_JOB_ID", "SLURM_STEP_ID"),),  # the job alone is all that one script starts
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Where one process stands in its job.

    `mesh` maps the name of a mesh axis (dp, tp, pp ...) to (coordinate of this rank, size of the axis).
    `incarnation` is the launcher's name for this start of the job: equal on all its ranks, another after a
    restart, empty if no launcher names it. `is_incarnation_unique` says that no other start ever has the same
    name; an address and port, for one, serve many jobs. `session` is of this object and its copies alone.
    `pid_space` tells within what `pid` is unique, `pid_start` when the process began (both for `is_alive`).
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
    is_incarnation_unique: bool = False
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    pid_space: str = field(default_factory=lambda: _pid_space())
    pid_start: str = field(default_factory=lambda: _pid_start(os.getpid()))


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
    for axis, coordinate_of_size in (mesh or {}).items():
        _check_axis(axis, coordinate_of_size)
    places = [
        place for place in (_ray_train(modules), _torch(modules, environ), _environment(environ)) if place
    ]
    place = dict(places[0]) if places else {}
    _refuse_contradictions(places, world_size)
    if rank is not None:
        place |= {"rank": rank, "world_size": world_size or place.get("world_size", 1), "source": "arguments"}
    elif world_size is not None:
        place["world_size"] = world_size
    incarnation, is_unique = _incarnation(environ, place.get("rank", 0), place.get("world_size", 1))
    found = Topology(
        role=role,
        mesh=dict(mesh or {}),
        incarnation=incarnation,
        is_incarnation_unique=is_unique,
        **place,
    )
    if found.rank >= found.world_size:
        raise InvalidValueError(
            f"rank must be in [0, world_size) = [0, {found.world_size}), got {found.rank} "
            f"from {found.source}; pass both rank= and world_size="
        )
    return found


def _check_axis(axis: object, place: object) -> None:
    check_type("an axis of mesh", axis, str)
    if not (
        isinstance(place, tuple | list)
        and len(place) == 2
        and all(type(number) is int for number in place)
        and 0 <= place[0] < place[1]
    ):
        raise InvalidValueError(
            f"mesh[{axis!r}] must be (coordinate of this rank, size of the axis), 0 <= coordinate < size, "
            f"got {place!r}"
        )


def in_ray(modules: Mapping[str, ModuleType] | None = None) -> bool:
    """Whether this process is connected to a Ray cluster (Ray is not imported to find out)."""
    ray = (sys.modules if modules is None else modules).get("ray")
    is_initialized = getattr(ray, "is_initialized", None)
    return bool(is_initialized and is_initialized())


def in_notebook(modules: Mapping[str, ModuleType] | None = None) -> bool:
    """Whether a notebook's kernel runs this process (IPython is not imported to find out)."""
    ipython = (sys.modules if modules is None else modules).get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
    shell = get_ipython() if get_ipython else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)  # or made of it


def is_alive(told: Mapping[str, Any]) -> bool | None:
    """Whether the process of a Topology (as a mapping) still runs; None where that cannot be known."""
    if not told.get("pid_space") or told["pid_space"] != _pid_space():
        return None
    return _is_running(told["pid"], str(told["pid_start"]))


def own_process() -> dict[str, Any]:
    """What `is_alive` needs to know of this process, after a fork of the new one."""
    return {"pid": os.getpid(), "pid_space": _pid_space(), "pid_start": _pid_start(os.getpid())}


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


def _incarnation(environ: Mapping[str, str], rank: int, world_size: int) -> tuple[str, bool]:
    """The name of this start of the job, and whether it is no other's."""
    name, is_unique = _start(environ, rank, world_size)
    if name:
        return f"{name}+{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", is_unique
    # Without a launcher one rank is a start of its own, and several cannot know each other.
    return (uuid.uuid4().hex, True) if world_size == 1 else ("", False)


def _start(environ: Mapping[str, str], rank: int, world_size: int) -> tuple[str, bool]:
    if LAUNCH_ID in environ:
        return environ[LAUNCH_ID], True
    for source in _JOB_IDS:
        numbers = tuple(environ.get(name) for name in _VARIABLES[source][:2])
        if numbers == (str(rank), str(world_size)):  # else it started something else: a Ray cluster's nodes
            name = _job_id(environ, source)
            if name:
                return name, True
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    if all(name in environ for name in names[:2]):
        return ":".join(environ[name] for name in names if name in environ), False
    return "", False


def _job_id(environ: Mapping[str, str], source: str) -> str:
    for names in _JOB_IDS[source]:
        if all(name in environ for name in names):
            ids = [environ[name] for name in names]
            return f"{source} {'.'.join(ids)}+{environ.get('SLURM_RESTART_COUNT', '0')}"
    return ""


def _pid_space() -> str:
    """Names the kernel and the namespace (container) whose process numbers these are, empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _pid_start(pid: int) -> str:
    """When the process began, in clock ticks since boot; empty if there is none."""
    return _state_and_start(pid)[1]


def _state_and_start(pid: int) -> tuple[str, str]:
    """Fields 3 and 22 of proc(5), stat; empty if there is no such process or it may not be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except OSError:
        return "", ""


def _is_running(pid: object, start: str) -> bool | None:
    if not isinstance(pid, int) or not 0 < pid <= _MAX_PID:
        return False
    state, found = _state_and_start(pid)
    if found:
        return found == start and state not in _ENDED
    try:
        os.kill(pid, 0)  # /proc may hide the processes of others (hidepid), kill(2) does not
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return None
