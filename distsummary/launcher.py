"""Start the ranks of a training function on Ray and wait for their results."""

import atexit
import logging
import os
import re
import socket
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from distsummary.aggregate.actor import settle
from distsummary.checks import check_choice, check_int, check_type
from distsummary.cluster import reachable_cluster
from distsummary.errors import InvalidTypeError, InvalidValueError, MissingExtraError, RanksFailedError
from distsummary.interrupts import heeds_interrupts
from distsummary.topology import LAUNCH_ID

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
BACKENDS = ("gloo", "nccl", None)
PLACEMENT_TIMEOUT_S = 60.0
GRACE_S = 10.0  # how long the other ranks may run after one has failed
LEAVE_S = 60.0  # how long a rank's exit handlers may take


@heeds_interrupts()
def launch(
    train_fn: Callable[[], Result],
    *,
    ranks: int,
    resources_per_rank: Mapping[str, float] | None = None,
    backend: str | None = "gloo",
) -> list[Result]:
    """Run `train_fn` in one process per rank on Ray and return the results in rank order.

    Each process gets the variables RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and
    MASTER_PORT, as torchrun would set them, and an initialised torch.distributed (unless `backend` is None),
    so that `ds.init` finds the rank by itself. If this process is not connected to Ray, it connects to the
    cluster at RAY_ADDRESS or, if this variable is not set, starts a local one that is large enough; at the
    end it disconnects. A Run that `train_fn` leaves open is closed when the rank's process ends.

    Args:
        train_fn: takes no arguments; bind them with functools.partial. It and its result must be picklable.
        ranks: how many processes to start, >= 1; this is their world size.
        resources_per_rank: Ray resources of each rank, default {"CPU": 1}, with nccl {"CPU": 1, "GPU": 1}.
        backend: "gloo", "nccl" or None.

    Raises:
        RanksFailedError: ranks raised or died, or do not fit into the cluster. Equal errors of several ranks
            share one line. 10 s after the first failure the other ranks are stopped, since they may wait
            forever in a collective operation.
        ClusterError: the cluster at RAY_ADDRESS does not answer.
        InvalidTypeError, InvalidValueError: an argument is wrong.
    """
    if not callable(train_fn):
        raise InvalidTypeError(f"train_fn must be callable without arguments, got {train_fn!r}")
    check_int("ranks", ranks, low=1)
    check_type("resources_per_rank", resources_per_rank, Mapping, optional=True)
    check_choice("backend", backend, BACKENDS)
    resources = check_resources(resources_per_rank, backend)
    launch_id = uuid.uuid4().hex
    if not ray.is_initialized():
        print("distsummary: starting Ray, which may take half a minute", file=sys.stderr, flush=True)
    with connected(ranks, resources), _placed(ranks, resources) as group:
        rank_class = ray.remote(
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            resources={name: n for name, n in resources.items() if name not in ("CPU", "GPU")} or None,
            max_concurrency=1,
        )(_Rank)
        actors = [
            rank_class.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            ).remote()
            for rank in range(ranks)
        ]
        running: list[Any] = []
        try:
            environments = plan_environments(ray.get([actor.node.remote() for actor in actors]), launch_id)
            running += [
                actor.run.remote(train_fn, environment, backend)
                for actor, environment in zip(actors, environments, strict=True)
            ]
            return _wait(running)
        finally:
            _end(actors, running)
            settle(launch_id)


def check_resources(resources: Mapping[str, float] | None, backend: str | None) -> dict[str, float]:
    """The resources of each rank; raises InvalidTypeError or InvalidValueError if Ray cannot reserve them."""
    if resources is None:
        return {"CPU": 1, "GPU": 1} if backend == "nccl" else {"CPU": 1}
    for name, amount in resources.items():
        check_type(f"resources_per_rank[{name!r}]", amount, (int, float))
        if amount < 0:
            raise InvalidValueError(f"resources_per_rank[{name!r}] must be >= 0, got {amount}")
    if not any(resources.values()):
        raise InvalidValueError(f"resources_per_rank must reserve something, got {dict(resources)}")
    return dict(resources)


class _Rank:
    """The process of one rank."""

    def node(self) -> tuple[str, str, int]:
        """The id and address of this process's node, and a port that is free there now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return (
                ray.get_runtime_context().get_node_id(),
                ray.util.get_node_ip_address(),
                probe.getsockname()[1],
            )

    def run(self, train_fn: Callable[[], Any], environment: dict[str, str], backend: str | None) -> Any:
        """Call the training function as this rank."""
        os.environ.update(environment)
        try:
            if backend is None:
                return train_fn()
            try:
                import torch.distributed
            except ImportError as error:
                raise MissingExtraError(
                    f"backend={backend!r} needs torch; run: pip install 'distsummary[torch]', "
                    "or use backend=None"
                ) from error
            torch.distributed.init_process_group(backend)
            try:
                return train_fn()
            finally:
                torch.distributed.destroy_process_group()
        except SystemExit as error:  # Ray would treat it as the death of the actor
            if error.code in (None, 0):
                return None
            sys.last_value = failure = RuntimeError(f"the rank ended by sys.exit({error.code!r})")
            raise failure from error
        except BaseException as error:
            sys.last_value = error  # tells exit handlers that the process failed, as the interpreter would do
            raise

    def leave(self) -> None:
        """Run the exit handlers before Ray ends this actor, while they can still reach other actors."""
        atexit.unregister(ray.shutdown)  # the answer to this call still needs Ray
        atexit._run_exitfuncs()


def plan_environments(hosts: list[tuple[str, str, int]], launch_id: str) -> list[dict[str, str]]:
    """The environment variables of each rank, given each rank's (node id, address, free port).

    Nodes are numbered in the order of their lowest ranks; rank 0 is the master.
    """
    nodes = list(dict.fromkeys(node for node, _, _ in hosts))
    on_node: dict[str, list[int]] = defaultdict(list)
    for rank, (node, _, _) in enumerate(hosts):
        on_node[node].append(rank)
    _, address, port = hosts[0]
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts)),
            "LOCAL_RANK": str(on_node[node].index(rank)),
            "LOCAL_WORLD_SIZE": str(len(on_node[node])),
            "NODE_RANK": str(nodes.index(node)),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            LAUNCH_ID: launch_id,
        }
        for rank, (node, _, _) in enumerate(hosts)
    ]


@contextmanager
def connected(ranks: int, resources: Mapping[str, float]) -> Iterator[None]:
    """Connect to a Ray cluster for the block, if this process is not connected yet.

    The cluster is the one at RAY_ADDRESS (in a submitted Ray job), or a new local one that fits the ranks.
    """
    if ray.is_initialized():
        yield
        return
    if reachable_cluster() is not None:
        ray.init(logging_level="warning")
    else:
        cpus = max(os.cpu_count() or 1, int(ranks * resources.get("CPU", 0)))
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, logging_level="warning")
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _placed(ranks: int, resources: dict[str, float]) -> Iterator[PlacementGroup]:
    """Reserve the resources of all ranks for the block; raises RanksFailedError if they do not fit."""
    group = placement_group([resources] * ranks, strategy="PACK")
    try:
        if not group.wait(PLACEMENT_TIMEOUT_S):
            raise RanksFailedError(
                f"{ranks} ranks of {resources} did not fit within {PLACEMENT_TIMEOUT_S:g} s; the cluster has "
                f"{ray.available_resources()} free of {ray.cluster_resources()}: ask for less or add nodes"
            )
        yield group
    finally:
        remove_placement_group(group)


def _wait(running: list[Any]) -> list[Any]:
    """The results of all ranks; raises RanksFailedError at most GRACE_S after the first failure."""
    rank_of = {reference: rank for rank, reference in enumerate(running)}
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    pending = running
    deadline = float("inf")
    while pending and time.monotonic() < deadline:
        timeout = None if deadline == float("inf") else max(0.1, deadline - time.monotonic())
        ready, pending = ray.wait(pending, num_returns=1, timeout=timeout)
        for reference in ready:
            try:
                results[rank_of[reference]] = ray.get(reference)
            except (RayTaskError, RayActorError) as error:
                failures[rank_of[reference]] = describe(error)
                deadline = min(deadline, time.monotonic() + GRACE_S)
    if failures:
        for reference in pending:
            failures[rank_of[reference]] = (
                f"stopped: it was still running {GRACE_S:g} s after the first failure"
            )
        raise RanksFailedError(group_failures(failures))
    return [results[rank] for rank in range(len(running))]


def _end(actors: list[Any], running: list[Any]) -> None:
    """Run the exit handlers of the ranks that returned or raised, then kill all processes."""
    try:
        ended, _ = ray.wait(running, num_returns=len(running), timeout=0) if running else ([], [])
        leaving = [actors[running.index(reference)].leave.remote() for reference in ended]
        if leaving:
            _, late = ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_S)
            if late:
                logger.warning("%d rank(s) did not end within %g s and are killed", len(late), LEAVE_S)
    except RayError:
        logger.exception("the ranks are killed without their exit handlers")
    for actor in actors:
        ray.kill(actor, no_restart=True)


def describe(error: Exception) -> str:
    """The exception of a rank in one paragraph, with the innermost line of the user's own code."""
    cause = getattr(error, "cause", None)
    if cause is None:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    places = [line.strip() for line in str(error).splitlines() if line.lstrip().startswith("File ")]
    own = [
        place for place in places if "site-packages" not in place and "distsummary/" not in place
    ] or places
    return f"{type(cause).__name__}: {cause}" + (f" ({own[-1]})" if own else "")


def group_failures(failures: Mapping[int, str]) -> str:
    """One line for each distinct error, with its ranks; differences in numbers or addresses are ignored."""
    groups: dict[str, list[int]] = defaultdict(list)
    texts: dict[str, str] = {}
    for rank, text in sorted(failures.items()):
        key = re.sub(r"0x[0-9a-f]+|\d+", "#", text)
        groups[key].append(rank)
        texts.setdefault(key, text)
    return "\n".join(
        f"[rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, ranks))}] {texts[key]}"
        for key, ranks in groups.items()
    )
