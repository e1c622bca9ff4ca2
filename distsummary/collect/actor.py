"""Starts RankCollector as a Ray actor, and says in words why such an actor does not answer."""

import logging
import re
import shlex
from typing import Any

import ray
from ray.exceptions import RayError

from distsummary.collect.rank_collector import RankCollector
from distsummary.coordination import Listener
from distsummary.writing.health import one_line
from distsummary.writing.spec import WriterSpec

logger = logging.getLogger(__name__)

# What differs each time in Ray's description of the same failure.
_FIELDS = re.compile(r"\b(?:actor_id|namespace|pid|ip|name): \S+ ?")
_IDS = re.compile(r"\b(?:0x[0-9a-f]+|[0-9a-f]{16,}|\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?)\b|(?<=pid=)\d+")


def start_collector(spec: WriterSpec, listener: Listener | None = None) -> Any:
    """Start the rank's collector as an actor on this node; it ends with this process, which owns it.

    It reserves 0 CPUs: on a full cluster, it would wait forever for even a fraction of a CPU. A label
    selector chooses this node, because Ray ignores soft node affinity for actors with 0 CPUs. Ray's retries
    and restarts are off, because retries reorder calls and restarts have neither a pause nor an end;
    RemoteWriter repeats calls and starts the next collector.
    """
    node = ray.get_runtime_context().get_node_id()
    options = {
        "num_cpus": 0,
        "max_restarts": 0,
        "max_task_retries": 0,
        "label_selector": {"ray.io/node-id": node},
        "fallback_strategy": [{"label_selector": {}}],
        "scheduling_strategy": "DEFAULT",  # keeps it out of the placement group of the trainer that starts it
    }
    return ray.remote(RankCollector).options(**options).remote(spec, listener)


def driver_command() -> list[str]:
    """The command that started the driver of this Ray job; empty in the driver itself or if unknown."""
    context = ray.get_runtime_context()
    if context.worker.mode == ray.SCRIPT_MODE:
        return []
    try:
        # Ray's public functions for this ask the dashboard, which need not run; this one asks the cluster.
        jobs = ray._private.state.jobs()
        commands = [job.get("Entrypoint", "") for job in jobs if job["JobID"] == context.get_job_id()]
        return split_command(commands[0]) if commands else []
    except Exception as error:  # a private interface: another version of Ray may lack it
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
