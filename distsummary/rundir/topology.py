"""Finds which rank this process is. Only this module reads what launchers set in the environment."""

import os
import platform
import sys
import uuid
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from distsummary.base.checks import check_choice, check_int, check_type, is_int
from distsummary.base.processes import (
    in_ray,
    ipython_shell,
    is_alive,
    pid_space_here,
    pid_start_of,
)
from distsummary.errors import InvalidValueError, WorldMismatchError

ROLES = ("train", "eval", "landscape")
LAUNCH_ID = "DISTSUMMARY_LAUNCH_ID"
LISTED = "DISTSUMMARY_LISTED"  # a file of `distsummary run`: processes append the runs that they record
LAUNCHED = "launch "  # how the id of a launch begins, and so the incarnation of its ranks
HYPER_CONFIG = "MINDINSIGHT_HYPER_CONFIG"
COLLECTORS = "DISTSUMMARY_COLLECTORS"
RUN_DIR, OPTIONS = "DISTSUMMARY", "DISTSUMMARY_OPTIONS"  # of runs that a script does not begin itself

# Along these mesh axes an ordinary tensor is the same on all ranks. Along other axes (tp, pp, ep, cp ...) an
# ordinary tensor may be a shard that the framework does not know to be one.
DATA_AXES = frozenset(
    ("batch", "data", "ddp", "dp", "dp_replicate", "dp_shard", "fsdp", "replicate", "shard")
)
# Ranks that differ only along these axes do work of the same size: along those of tensor parallelism, each
# has an equal part of every layer.
EQUAL_AXES = DATA_AXES | {"tp", "tensor", "tensor_parallel"}

# Source of the rank -> its variables for (rank, world size, local rank, local world size, node rank). SLURM
# comes last: srun may start one task per node, and its numbers then describe that task, not the rank.
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
    "mindspore": ("RANK_ID", "RANK_SIZE", "DEVICE_ID", "", ""),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
}

# Source of the rank -> tuples of variables; the values of a tuple identify this start of the job and
# are the same on all its ranks. The first tuple whose variables are all set is used.
_JOB_IDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "openmpi": (("OMPI_MCA_ess_base_jobid",), ("PMIX_NAMESPACE",)),
    "pmi": (("PMI_JOBID",), ("PMIX_NAMESPACE",)),
    "slurm": (("SLURM_JOB_ID", "SLURM_STEP_ID"),),  # one job script may start several steps
}


# Where the processes of a job meet, which several jobs may do one after the other: of torch, of msrun.
_MEETINGS = (("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"), ("MS_SCHED_HOST", "MS_SCHED_PORT"))

# Variables that change what a rank computes or how it talks to others, and should be the same on all ranks.
_COMPARED = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
    *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "XLA_FLAGS"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_DISTRIBUTED_DEBUG"),
    *(
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_P2P_DISABLE",
        "NCCL_IB_DISABLE",
        "NCCL_SHM_DISABLE",
        "NCCL_NVLS_ENABLE",
    ),
)

_launch: dict[str, Any] = {}  # what `note_driver` noted


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The place of one process in its job, and what identifies the process.

    Attributes:
        mesh: name of a mesh axis (dp, tp, pp ...) -> (coordinate of this rank, size of the axis).
        source: where the rank was read from, such as "torch.distributed".
        incarnation: the launcher's name for this start of the job. It is the same on all ranks, differs after
            a restart, and is empty if the launcher gives none.
        is_incarnation_unique: whether no other start of a job can have the same name. An address and port,
            for example, may serve many jobs one after the other.
        session: a random id that only this object and its copies have.
        pid_space: the namespace in which `pid` is unique. pid_start: when the process started. See
            `is_alive`.
        after: the newest attempt of the run when this rank was admitted, -1 if there was none: one that is
            later, of another job, began since then. None if it was not admitted.
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
    pid_space: str = field(default_factory=lambda: pid_space_here())
    pid_start: str = field(default_factory=lambda: pid_start_of(os.getpid()))
    after: int | None = None


def detect(
    *,
    role: str = "train",
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Mapping[str, tuple[int, int]] | None = None,
    environ: Mapping[str, str] | None = None,
    modules: Mapping[str, ModuleType] | None = None,
) -> Topology:
    """Find this rank by arguments, Ray Train, torch's or MindSpore's groups or the environment; else 0 of 1.

    Raises InvalidTypeError or InvalidValueError for wrong arguments, WorldMismatchError if the sources
    (other than SLURM) disagree on the world size.
    """
    environ = os.environ if environ is None else environ
    modules = sys.modules if modules is None else modules
    check_choice("role", role, ROLES)
    rank = check_int("rank", rank, low=0, optional=True)
    world_size = check_int("world_size", world_size, low=1, optional=True)
    check_type("mesh", mesh, Mapping, optional=True)
    for axis, place in (mesh or {}).items():
        check_type("an axis of mesh", axis, str)
        is_pair = isinstance(place, tuple | list) and len(place) == 2
        if not (is_pair and all(map(is_int, place)) and 0 <= place[0] < place[1]):
            raise InvalidValueError(
                f"mesh[{axis!r}] must be (coordinate of this rank, size of the axis), "
                f"0 <= coordinate < size, got {place!r}"
            )
    sources = _sources(environ, modules)
    # SLURM counts tasks, and a task may be the launcher of several ranks.
    sizes = {source["source"]: source["world_size"] for source in sources if source["source"] != "slurm"}
    if world_size is not None:
        sizes["the argument world_size"] = world_size
    if len(set(sizes.values())) > 1:
        listing = ", ".join(f"{size} by {source}" for source, size in sizes.items())
        raise WorldMismatchError(
            f"sources disagree on the world size: {listing}; start the ranks with one world size"
        )
    fields = dict(sources[0]) if sources else {}
    if rank is not None:
        fields |= {
            "rank": rank,
            "world_size": world_size or fields.get("world_size", 1),
            "source": "arguments",
        }
    elif world_size is not None:
        fields["world_size"] = world_size
    incarnation, is_unique = _incarnation(environ, fields.get("rank", 0), fields.get("world_size", 1))
    found = Topology(
        role=role,
        mesh=dict(mesh or {}),
        incarnation=incarnation,
        is_incarnation_unique=is_unique,
        **fields,
    )
    if found.rank >= found.world_size:
        raise InvalidValueError(
            f"rank must be in [0, world_size) = [0, {found.world_size}), got {found.rank} "
            f"from {found.source}; pass both rank= and world_size="
        )
    return found


def place() -> Topology:
    """This rank; 0 of 1 if the sources disagree."""
    try:
        return detect()
    except (InvalidValueError, WorldMismatchError):
        return detect(rank=0, world_size=1)


def has_cluster() -> bool:
    """Whether a Ray cluster is there to be used: this process is connected to it, or was started for it."""
    return in_ray() or bool(cluster_address())


def in_notebook(modules: Mapping[str, ModuleType] | None = None) -> bool:
    """Whether this process is the kernel of a notebook."""
    # Subclasses of the shell count, too.
    kinds = type(ipython_shell(modules)).__mro__
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in kinds)


def note_driver(driver: Mapping[str, Any]) -> None:
    """Note which process awaits this one, a rank of a launch; given as for `is_alive`."""
    _launch.update(driver=driver, pid=os.getpid(), parent=os.getppid())


def lost_driver() -> str:
    """Why no one awaits this rank of a launch any more; empty if it is awaited, or was not launched."""
    if _launch.get("pid") != os.getpid():
        return ""
    if _launch["parent"] != os.getppid():
        return "driver lost: Ray's process of this node is gone, so ds.launch took this rank for dead"
    if is_alive(_launch["driver"]) is False:
        return "driver lost: the process that called ds.launch is gone"
    return ""


def hyper_config(environ: Mapping[str, str] | None = None) -> str:
    """The settings of a MindInsight tuning job for this training, as JSON; empty outside such a job."""
    return (os.environ if environ is None else environ).get(HYPER_CONFIG, "")


def wanted_collectors(environ: Mapping[str, str] | None = None) -> str:
    """Who writes the files of ranks under Ray, as the environment says; empty if it does not."""
    return (os.environ if environ is None else environ).get(COLLECTORS, "")


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those variables that should be the same on all ranks."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in _COMPARED if name in environ}


def job_name(environ: Mapping[str, str] | None = None) -> str:
    """A name of this job that all its ranks share and that survives restarts; empty if there is none."""
    environ = os.environ if environ is None else environ
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if environ.get(LAUNCH_ID):
        return environ[LAUNCH_ID]
    # Without --rdzv-id, torchrun sets "none" in every job.
    if run_id not in ("", "none"):
        return f"torchrun {run_id}"
    if environ.get("SLURM_JOB_ID"):
        return f"slurm {environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}"
    return ""


def launch_token(
    topology: Topology,
    environ: Mapping[str, str] | None = None,
    modules: Mapping[str, ModuleType] | None = None,
) -> tuple[str, bool]:
    """What names this launch on all its ranks, also after a restart, and whether no other can have the name.

    The token is empty for a process that no launcher started. A token that another launch may have had is
    reported as unique in a restarted process, which has to find the run that it had.
    """
    environ = os.environ if environ is None else environ
    modules = sys.modules if modules is None else modules
    if name := job_name(environ):
        return name, True
    job = topology.incarnation.partition("+")[0]
    if topology.source == "ray.train":
        return train_token(modules["ray.train"].get_context().get_experiment_name(), environ, modules), True
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT")
    parent = f"{topology.host} {os.getppid()} {pid_start_of(os.getppid())}"
    # One agent of torch has all the ranks and starts them again: its process names the launch.
    if restarts is not None and environ.get("LOCAL_WORLD_SIZE") == environ.get("WORLD_SIZE"):
        return parent, True
    if topology.world_size == 1:
        return "", True
    if topology.is_incarnation_unique:
        return job, True
    return job or parent, restarts not in (None, "0")


def train_token(
    name: str, environ: Mapping[str, str] | None = None, modules: Mapping[str, ModuleType] | None = None
) -> str:
    """The `launch_token` of a training of Ray Train with this name, also in its controller."""
    ray = (sys.modules if modules is None else modules)["ray"]
    return job_name(environ) or f"ray {ray.get_runtime_context().get_job_id()} {name}"


def cluster_address(environ: Mapping[str, str] | None = None) -> str | None:
    """The address of the Ray cluster that this process was started for (by `ray job submit`), or None."""
    return (os.environ if environ is None else environ).get("RAY_ADDRESS")


def _sources(environ: Mapping[str, str], modules: Mapping[str, ModuleType]) -> list[dict[str, Any]]:
    """The fields of Topology from each source that knows the rank, the most trusted source first."""
    found: list[dict[str, Any]] = []
    if (train := modules.get("ray.train")) is not None:
        # Outside a training function these calls fail, in each version of Ray in a different way; Ray is then
        # not a source.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context = train.get_context()
            fields = {
                "rank": context.get_world_rank(),
                "world_size": context.get_world_size(),
                "local_rank": context.get_local_rank(),
                "local_world_size": context.get_local_world_size(),
                "node_rank": context.get_node_rank(),
            }
            # The first version of Train answers everywhere, outside of an experiment with rank 0 of 1.
            experiment = context.get_experiment_name()
            if all(value is not None for value in (experiment, *fields.values())):
                found.append(fields | {"source": "ray.train"})
    distributed = getattr(modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        names, place = _VARIABLES["environment"], (distributed.get_rank(), distributed.get_world_size())
        found.append(_source("torch.distributed", *place, environ, names))
    communication = modules.get("mindspore.communication.management")
    if communication is not None and communication.GlobalComm.INITED:
        names, place = _VARIABLES["mindspore"], (communication.get_rank(), communication.get_group_size())
        found.append(_source("mindspore.communication", *place, environ, names))
    for source, names in _VARIABLES.items():
        if names[0] in environ and names[1] in environ:
            place = _number(environ, names[0], low=0), _number(environ, names[1], low=1)
            found.append(_source(source, *place, environ, names))
            break
    return found


def _source(
    source: str, rank: int, world_size: int, environ: Mapping[str, str], names: tuple[str, ...]
) -> dict[str, Any]:
    """The fields of Topology from one source; those on its node only if the variables describe the rank."""
    fields = zip(("local_rank", "local_world_size", "node_rank"), names[2:], (0, 1, 0), strict=True)
    has_variables = names[0] in environ
    local = {k: _number(environ, n, low=low) for k, n, low in fields if has_variables and n in environ}
    return {"rank": rank, "world_size": world_size, "source": source, **local}


def _number(environ: Mapping[str, str], name: str, *, low: int) -> int:
    text = environ[name]
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if number < low:
        raise InvalidValueError(
            f"the environment variable {name} must be an integer >= {low}, got {text!r}; fix or unset it"
        )
    return number


def _incarnation(environ: Mapping[str, str], rank: int, world_size: int) -> tuple[str, bool]:
    """The name of this start of the job, and whether no other start of a job can have the same name."""
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if environ.get(LAUNCH_ID):
        return f"{environ[LAUNCH_ID]}+{restarts}", True
    for source, choices in _JOB_IDS.items():
        # The variables may be those of another process, such as of a launcher of Ray's nodes.
        numbers = tuple(environ.get(name) for name in _VARIABLES[source][:2])
        if numbers != (str(rank), str(world_size)):
            continue
        for names in choices:
            if all(name in environ for name in names):
                job = ".".join(environ[name] for name in names)
                return f"{source} {job}+{environ.get('SLURM_RESTART_COUNT', '0')}+{restarts}", True
    # An address and a port may serve many jobs, so that the name is not unique.
    for names in _MEETINGS:
        if all(name in environ for name in names[:2]):
            return f"{':'.join(environ[name] for name in names if name in environ)}+{restarts}", False
    # Without a launcher, a single rank gets a random name; several ranks could not agree on one.
    return (uuid.uuid4().hex, True) if world_size == 1 else ("", False)
