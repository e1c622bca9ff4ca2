"""Private names of Ray, each with what happens in a version that has none or another."""

import contextlib
import functools
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.experimental.internal_kv import _internal_kv_get

from distsummary.base.guard import Guard
from distsummary.base.health import note_absent
from distsummary.base.private import private

TRIAL_S = 5.0  # how long the end of a trial waits for its function, which may compute until its next report

_QUOTED = re.compile(r"^Original exception \(string repr\):\n(.*?)\n+traceback: ", re.S | re.M)


class _OutsideOwnThreads:
    """Whether a call of Ray may start a cluster if there is none: not in threads of this package."""

    def __bool__(self) -> bool:
        return not threading.current_thread().name.startswith("distsummary-")


@private(
    "ray._private.worker.disconnect",
    "a call of distsummary's during ray.shutdown() may end the process",
    lambda ending: None,
)
def guard_shutdown(ending: Callable[[], AbstractContextManager[None]]) -> None:
    """Have `ray.shutdown` disconnect within `ending()`: before it ends what calls need."""
    disconnect = ray._private.worker.disconnect
    if not callable(disconnect):
        raise TypeError(f"{disconnect!r} is not callable")

    def disconnect_between_calls(*args: Any, **options: Any) -> None:
        with ending():
            disconnect(*args, **options)

    ray._private.worker.disconnect = disconnect_between_calls


@private(
    "ray._private.auto_init_hook",
    "a call of distsummary's after ray.shutdown() may start a cluster",
    lambda: None,
)
def forbid_start() -> None:
    """Have calls of Ray in threads of this package start no cluster."""
    from ray._private import auto_init_hook

    if auto_init_hook.enable_auto_connect is True:
        auto_init_hook.enable_auto_connect = _OutsideOwnThreads()


@private(
    "ray.train._internal.session._TrainSession.finish",
    "the last values of a trial that Ray Tune stops may not be written",
    lambda close: None,
)
def close_with_trial(close: Callable[[], object]) -> None:
    """Call `close` when Ray Tune stops the trial of this process, which Ray kills 0.2 s later."""
    module: Any = sys.modules.get("ray.train._internal.session")
    if module is None or hasattr(finish := module._TrainSession.finish, "__wrapped__"):
        return
    if not callable(finish):
        raise TypeError(f"{finish!r} is not callable")

    @functools.wraps(finish)
    def finish_and_close(self: Any, timeout: float | None = None) -> Any:
        try:
            return finish(self, timeout)
        finally:
            # With a timeout of 0, the process ends; else it may run the next trial.
            if timeout == 0:
                # The function is left by SystemExit, so a run of a `with` block ends by itself.
                if self.training_started and self.training_thread.is_alive():
                    threading.Thread.join(self.training_thread, TRIAL_S)
                Guard().call("the end of a trial", close)

    module._TrainSession.finish = finish_and_close


@private("ray._private.worker.global_worker", "", lambda: True)
def is_disconnected() -> bool:
    """Whether a shutdown of Ray in another thread, if there is one, is over."""
    worker = ray._private.worker.global_worker
    return worker.connected or not hasattr(worker, "core_worker")


@contextlib.contextmanager
def on_loopback(address: str) -> Iterator[dict[str, str]]:
    """Options of `ray.init` in the block that have a cluster listen on this loopback address.

    With a constant of Ray's off, as on Windows and macOS, it keeps that address; else, and in a version
    without the constant, it replaces it by one of the machine.
    """
    constants: Any = getattr(ray._private, "ray_constants", None)
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    if before is None:
        note_absent(
            "a local Ray cluster listens on an address of the machine, since this Ray has no constant"
        )
        yield {}
        return
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield {"_node_ip_address": address}
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@private(
    "ray._private.utils.get_used_memory", "whether memory is left for a collector is not tried", lambda: None
)
def memory() -> tuple[int, int] | None:
    """The bytes of memory that a node or its container has, and those in use: Ray kills by these numbers."""
    utils = ray._private.utils
    return utils.get_system_memory(), utils.get_used_memory()


@private("ray._private.state.jobs", "the command line of the driver is not recorded", list)
def jobs() -> list[Mapping[str, Any]]:
    """Ray's table of jobs; its public functions ask the dashboard, which need not run."""
    return [*ray._private.state.jobs()]


@private("ray._private.state.actors", "", lambda: None)
def actors() -> list[Mapping[str, Any]] | None:
    """Ray's table of actors, dead ones too, or None; the public function asks the dashboard, as above."""
    return [*ray._private.state.actors().values()]


@private("ray.autoscaler.v2.sdk.get_cluster_status", "nodes of an autoscaler are not awaited", lambda: 0)
def nodes_to_come() -> int:
    """How many nodes an autoscaler starts or asks for now; 0 without one."""
    from ray.autoscaler.v2.sdk import get_cluster_status

    found = get_cluster_status(ray.get_runtime_context().gcs_address)
    count: int = len(found.pending_nodes) + sum(launch.count for launch in found.pending_launches)
    # Version 1, which `ray up` starts, writes a report of its own.
    told: bytes | None = _internal_kv_get(ray._private.ray_constants.DEBUG_AUTOSCALING_STATUS)
    report = (json.loads(told) if told else {}).get("autoscaler_report") or {}
    count += len(report.get("pending_nodes", ())) + sum(report.get("pending_launches", {}).values())
    return count


@private("ray._private.services.canonicalize_bootstrap_address", "", lambda address: address or "auto")
def bootstrap_address(address: str | None) -> str | None:
    """The address of a cluster as `gcs_address` has it; given None, that of the one that `ray.init` finds.

    That is None if there is none. Otherwise "auto", by which `ray.init` finds it.
    """
    found: str | None = ray._private.services.canonicalize_bootstrap_address(address)
    return found


@private("ray._private.worker._global_node", "", lambda: None)
def raylet_log() -> Path | None:
    """The file into which what starts processes on this node writes; None for a client (ray://)."""
    node = ray._private.worker._global_node
    return None if node is None else Path(node.get_logs_dir_path(), "raylet.err")


def quoted_error(error: Exception) -> str | None:
    """What a worker raised, quoted by Ray because it cannot be unpickled here; None for other errors."""
    # Ray has this class since 2.50.
    if (kind := getattr(ray.exceptions, "UnserializableException", None)) and isinstance(error, kind):
        return str(error)
    found = _QUOTED.search(str(error)) if isinstance(error, ray.exceptions.RaySystemError) else None
    return None if found is None else found[1]
