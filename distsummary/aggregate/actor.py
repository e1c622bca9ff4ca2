"""The aggregator as a named Ray actor, and a rank's way to it."""

import hashlib
import logging
import threading
import time
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from distsummary.aggregate.aggregator import LEASE_S, Aggregator
from distsummary.coordination import Registration
from distsummary.run_dir import RunDir
from distsummary.topology import Topology

logger = logging.getLogger(__name__)

NAMESPACE = "distsummary"
_TRIES = 5
RETRY_S = 0.5


class _AggregatorActor(Aggregator):
    """Ends itself by `ray.kill`: with max_restarts=-1 an actor that merely exits is started again."""

    def __init__(self, path: str) -> None:
        super().__init__(path, on_end=_end_own_actor)


def _end_own_actor() -> None:
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def actor_name(run_dir: RunDir) -> str:
    """The run's aggregator is found by this name in the namespace `distsummary`."""
    return "aggregator-" + hashlib.blake2b(str(run_dir.base).encode(), digest_size=12).hexdigest()


def _get_or_start(run_dir: RunDir) -> Any:
    """The aggregator, started if there is none; detached, because it must outlive any one rank."""
    options = {
        "name": actor_name(run_dir),
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": 1,
        "label_selector": {"ray.io/node-id": ray.get_runtime_context().get_node_id()},
        "fallback_strategy": [{"label_selector": {}}],
    }
    return ray.remote(_AggregatorActor).options(**options).remote(str(run_dir.base))


class AggregatorClient:
    """A Coordinator that asks the aggregator actor and renews the run's lease while this process lives."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._handle = _get_or_start(run_dir)
        self._finished = threading.Event()
        self._renewer: threading.Thread | None = None

    def register(self, topology: Topology) -> Registration:
        """Join the run; raises WorldMismatchError when the ranks of an attempt disagree on the world size."""
        registration: Registration = self._ask("register", topology)
        if self._renewer is None:
            self._renewer = threading.Thread(target=self._renew, name="distsummary-renew", daemon=True)
            self._renewer.start()
        return registration

    def lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        """Send the rank's lineage without waiting for the answer."""
        self._handle.lineage.remote(topology, attempt, lineage)

    def finish(self, topology: Topology, attempt: int, health: dict[str, int]) -> None:
        """Leave the run; the last rank waits until the merged run is written."""
        self._finished.set()
        self._ask("finish", topology, attempt, health)

    def _ask(self, method: str, *args: object) -> Any:
        """Call and wait; an aggregator that ended or restarts meanwhile is looked up, or started, again."""
        for left in reversed(range(_TRIES)):
            try:
                return ray.get(getattr(self._handle, method).remote(*args))
            except RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except RayActorError:
                if not left:
                    raise
                logger.warning("%s: the aggregator went away; asking its next life", self._run_dir)
                time.sleep(RETRY_S)
                self._handle = _get_or_start(self._run_dir)

    def _renew(self) -> None:
        while not self._finished.wait(LEASE_S / 4):
            self._handle.renew.remote()


def settle(launch_id: str) -> None:
    """Have the aggregators that served a launch write their merged runs now: its ranks have ended."""
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE and entry["name"].startswith("aggregator-"):
            try:
                ray.get(ray.get_actor(entry["name"], namespace=NAMESPACE).settle.remote(launch_id))
            except (RayActorError, ValueError):
                continue  # it has settled and ended between our look and our call
