"""Starts the collectors as a Ray actor, and says in words why such an actor does not answer."""

import os
import re
import shlex
from typing import Any

import ray
from ray.exceptions import RayError

from distsummary.base.actor_private import jobs, memory
from distsummary.base.failures import one_line
from distsummary.base.guard import guarded_log
from distsummary.collect.remote.collectors import Collectors

logger = guarded_log(__name__)

NAMESPACE = "distsummary"
NODE = "node"
COLLECTOR_BYTES = 128 << 20  # of a collector's process, with what it holds while it writes
FULL = 0.95  # of the memory: where Ray begins to kill

# What differs each time in Ray's description of the same failure.
_FIELDS = re.compile(r"\b(?:actor_id|namespace|pid|ip|name): \S+ ?")
_IDS = re.compile(r"\b(?:0x[0-9a-f]+|[0-9a-f]{16,}|\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?)\b|(?<=pid=)\d+")


class CollectorActor(Collectors):
    """Collectors that end their process by `ray.kill` when they are not needed any more."""

    def __init__(self) -> None:
        super().__init__()
        self.keep_looking(lambda: ray.kill(ray.get_runtime_context().current_actor, no_restart=True))


def start_collector(scope: str) -> Any:
    """The collectors' actor on this node, started if there is none; `ready` answers when it is up.

    With the scope "rank" it serves the writers of this process, which owns it, and ends with it. With "node"
    it serves all processes of this job on this node, and ends when it serves none.

    It reserves 0 CPUs: on a full cluster, it would wait forever for even a fraction of a CPU. A label
    selector chooses this node, because Ray ignores soft node affinity for actors with 0 CPUs. Ray's retries
    and restarts are off, because retries reorder calls and restarts have neither a pause nor an end;
    RemoteWriter repeats calls and starts the next collector.
    """
    context = ray.get_runtime_context()
    node = context.get_node_id()
    is_shared = scope == NODE
    return (
        ray.remote(CollectorActor)
        .options(
            name=f"collector-{context.get_job_id()}-{node[:12]}" + ("" if is_shared else f"-{os.getpid()}"),
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached" if is_shared else None,
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            label_selector={"ray.io/node-id": node},
            # The strategy keeps the actor out of the placement group of the trainer.
            scheduling_strategy="DEFAULT",
        )
        .remote()
    )


def missing_room() -> str:
    """Why a collector cannot run on this process's node; empty: it can."""
    if ray.util.client.ray.is_connected():
        return "it is connected by Ray Client, whose actors run on other machines"
    found = memory()
    if found is None:
        return ""
    size, used = found
    free = int(FULL * size) - used
    if free >= COLLECTOR_BYTES:
        return ""
    return (
        f"{max(0, free) >> 20} MiB of memory are free until Ray begins to kill processes, and a collector "
        f"needs {COLLECTOR_BYTES >> 20}"
    )


def driver_command() -> list[str]:
    """The command that started the driver of this Ray job; empty in the driver itself or if unknown."""
    context = ray.get_runtime_context()
    if context.worker.mode == ray.SCRIPT_MODE:
        return []
    try:
        commands = [job.get("Entrypoint", "") for job in jobs() if job["JobID"] == context.get_job_id()]
        return split_command(commands[0]) if commands else []
    except Exception as error:
        logger.debug("the driver's command line is unknown: %r", error)
        return []


def split_command(command: str) -> list[str]:
    """The arguments of a command line that Ray made by `subprocess.list2cmdline`, which quotes only by "."""
    lexer = shlex.shlex(command, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.quotes = lexer.escapedquotes = '"'
    return list(lexer)


def reason_of(error: RayError) -> str:
    """Ray's whole description of a failure in one line, without what differs each time (ids, addresses)."""
    return f"{type(error).__name__}: {_IDS.sub('...', _FIELDS.sub('', one_line(str(error))))}"
