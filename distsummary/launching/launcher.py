"""Start the ranks of a training function on Ray and wait for their results."""

import atexit
import math
import os
import signal
import socket
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from distsummary.aggregate.actor import settle
from distsummary.base.actor_calls import Beginnings, why_not_begun
from distsummary.base.actor_private import bootstrap_address
from distsummary.base.checks import anchored, check_choice, check_int, check_number, check_type
from distsummary.base.cluster import check_reachable, join, reachable_cluster, start_local
from distsummary.base.columns import named
from distsummary.base.extras import require
from distsummary.base.guard import guarded_log
from distsummary.base.interrupts import handles_interrupts
from distsummary.base.processes import own_process
from distsummary.base.terminal import doing, printed, showing_progress
from distsummary.errors import ClusterError, InvalidTypeError, InvalidValueError, RanksFailedError
from distsummary.launching.rank_ends import (
    STOPPED,
    RankEnd,
    Trace,
    death,
    ended_by,
    error_lines,
    memory_kills,
    raised,
    read_trace,
    reporting_exits,
    stderr_path,
)
from distsummary.rundir.attempts import PROTOCOL
from distsummary.rundir.topology import LAUNCH_ID, LAUNCHED, OPTIONS, RUN_DIR, cluster_address, note_driver

logger = guarded_log(__name__)

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
AUTO = "auto"
GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # of CUDA, of CUDA in WSL, of ROCm
PACKED, SPREAD = "packed", "spread"
BACKENDS = (AUTO, "gloo", "nccl", None)
QUIET_S = 5.0  # a start that takes longer says what it waits for
INTERRUPT_S = 20.0  # how long the ranks may take to end after Ctrl-C: as long as closing their files
WAIT_S = 1.0  # the longest wait for a process before the time is looked at
GRACE_S = 10.0  # how long the other ranks may run after one has failed
TRACE_S = 10.0  # how long the nodes of dead ranks may take to say what these ranks left
MAX_HOSTS = 16  # that are listed at the start
LEAVE_S = 60.0  # how long a rank's exit handlers may take
PRINTING_S = 1.0  # how long the driver waits for the last lines of ranks, which Ray sends twice a second


@handles_interrupts()
def launch(
    train_fn: Callable[[*Arguments], Result],
    *args: *Arguments,
    ranks: int,
    resources_per_rank: Mapping[str, float] | None = None,
    backend: str | None = AUTO,
    address: str | None = None,
    nodes: int | None = None,
    placement: str = PACKED,
) -> list[Result]:
    """Run `train_fn(*args)` in one process per rank on Ray and return the results in rank order.

    Each process gets the variables RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and
    MASTER_PORT, as torchrun would set them, this process's `sys.argv`, DISTSUMMARY and DISTSUMMARY_OPTIONS,
    and an initialised torch.distributed (unless `backend` is None), so that `ds.init` finds the rank by
    itself. If this process is not connected to Ray, it joins the cluster at RAY_ADDRESS or, if this variable
    is not set, the one that `ray start` has started for this user on this machine, which is the one that
    `ray.init()` finds; at the end it disconnects. If there is none, or it runs another version of Ray or has
    no room for the ranks, a local cluster is started that is large enough; one line gives the reason. A Run
    that `train_fn` leaves open is closed when the rank's process ends.

    Args:
        train_fn, args: the function and its arguments; they and the result must be picklable.
        ranks: how many processes to start, >= 1; this is their world size.
        resources_per_rank: Ray resources of each rank, default {"CPU": 1}, with nccl {"CPU": 1, "GPU": 1}.
        backend: "gloo", "nccl", None, or "auto": nccl if each rank gets a GPU, None if torch is not
            installed. Without resources_per_rank each gets one if torch sees GPUs here and the cluster, or
            this machine, has one for each rank.
        address: the Ray cluster to use, as in `ray.init`: "host:port", "auto", or "local" for a new one on
            this machine. None: as above.
        nodes: put the same number of ranks on each of so many nodes, one after the other. None: see
            `placement`. `ranks` must be a multiple of it.
        placement: "packed" puts the ranks on few nodes, "spread" on many; both as far as there is room.

    Raises:
        RanksFailedError: ranks raised or died, or do not fit into the cluster. Equal errors of several ranks
            share one line. 10 s after the first failure the other ranks are stopped, since they may wait
            forever in a collective operation.
        ClusterError: the cluster at `address` or RAY_ADDRESS does not answer.
        InvalidTypeError, InvalidValueError: an argument is wrong.
    """
    if not callable(train_fn):
        raise InvalidTypeError(f"train_fn must be callable, got {train_fn!r}")
    ranks = check_int("ranks", ranks, low=1)
    check_type("resources_per_rank", resources_per_rank, Mapping, optional=True)
    check_choice("backend", backend, BACKENDS)
    check_type("address", address, str, optional=True)
    check_choice("placement", placement, (PACKED, SPREAD))
    if nodes is not None and ranks % (nodes := check_int("nodes", nodes, low=1)):
        raise InvalidValueError(f"ranks must be a multiple of nodes, got ranks={ranks}, nodes={nodes}")
    if backend == AUTO:
        backend = chosen_backend(resources_per_rank, ranks, gpus=_gpus() if resources_per_rank is None else 0)
    resources = check_resources(resources_per_rank, backend)
    begun = time.monotonic()
    # The progress of the start ends when the training begins, before `launch` returns.
    with ExitStack() as start:
        start.enter_context(showing_progress("launch", after_s=QUIET_S))

        def begin_training() -> None:
            start.close()
            if (passed := time.monotonic() - begun) >= QUIET_S:
                say(f"the training begins ({passed:.0f} s after the start)")

        is_local = address == "local" or (address is None and cluster_address() is None)
        doing("starting Ray" if is_local else "connecting to Ray")
        with connected(ranks, resources, address):
            doing(f"reserving {dict(resources)} for each of {ranks} ranks")
            with _placed(ranks, resources, nodes, placement) as group:
                return _run(partial(train_fn, *args), group, ranks, resources, backend, begin_training)


def say(line: str) -> None:
    """One line on stderr, from the launcher."""
    printed(f"distsummary: {line}", file=sys.stderr)


def _run(
    train_fn: Callable[[], Result],
    group: PlacementGroup,
    ranks: int,
    resources: dict[str, float],
    backend: str | None,
    begin_training: Callable[[], None],
) -> list[Result]:
    """Start the ranks in their places, train, and end them; `begin_training` is called between."""
    rank_class = ray.remote(
        num_cpus=resources.get("CPU", 0),
        num_gpus=resources.get("GPU", 0),
        resources={name: n for name, n in resources.items() if name not in ("CPU", "GPU")} or None,
        max_concurrency=1,
    )(_Rank)
    doing(f"starting {ranks} processes")
    actors = [
        rank_class.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=rank * group.bundle_count // ranks
            )
        ).remote(rank)
        for rank in range(ranks)
    ]
    launch_id = f"{LAUNCHED}{uuid.uuid4().hex}"
    running: list[Any] = []
    places: Sequence[RankPlace] = ()
    deaths: dict[int, str] = {}
    state = "lost"
    try:
        # All ranks report their places before any of them connects, because each needs the address of rank 0.
        running[:] = [actor.place.remote(PROTOCOL) for actor in actors]
        _await_processes(running, resources)
        places = _wait(running)
        for line in describe_places(places, resources):
            say(line)
        doing("importing torch and connecting the ranks" if backend else "connecting the ranks")
        driver = own_process()
        running[:] = [
            actor.join.remote(environment | zero_lines(os.environ), backend, driver, sys.argv)
            for actor, environment in zip(actors, plan_environments(places, launch_id), strict=True)
        ]
        _wait(running, places)
        begin_training()
        running[:] = [actor.run.remote(train_fn, backend is not None) for actor in actors]
        return _wait(running, places, deaths)
    except (KeyboardInterrupt, SystemExit) as error:
        # Ray's handler of SIGTERM raises SystemExit.
        state = "interrupted"
        # That handler has set an alarm, which would abort this process 3 s after the signal.
        if isinstance(error, SystemExit):
            signal.alarm(0)
        what = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else f"SIGTERM or sys.exit({error.code})"
        deaths |= dict.fromkeys(range(ranks), f"interrupted: {what} in the process that called ds.launch")
        _interrupt(running, places)
        raise
    finally:
        # The aggregators merge what the ranks wrote, so the ranks end first.
        try:
            _end(actors, running)
        finally:
            settle(launch_id, deaths, state)


def chosen_backend(resources: Mapping[str, float] | None, ranks: int, gpus: float) -> str | None:
    """The backend for these resources of a rank, or None without torch.

    `resources` of None: nccl if there are GPUs (`gpus`) for all ranks.
    """
    if find_spec("torch") is None:
        return None
    has_gpus = gpus >= ranks if resources is None else bool(resources.get("GPU"))
    return "nccl" if has_gpus else "gloo"


def _gpus() -> float:
    """The GPUs of the cluster, or of this machine without one; 0 if torch sees none here."""
    # Without the device of a GPU, torch need not be imported, which takes long.
    if find_spec("torch") is None or not any(map(os.path.exists, GPU_DEVICES)):
        return 0
    import torch

    seen = torch.cuda.device_count()
    return ray.cluster_resources().get("GPU", 0) if seen and ray.is_initialized() else seen


def check_resources(resources: Mapping[str, float] | None, backend: str | None) -> dict[str, float]:
    """The resources of each rank; raises InvalidTypeError or InvalidValueError if Ray cannot reserve them."""
    if resources is None:
        return {"CPU": 1, "GPU": 1} if backend == "nccl" else {"CPU": 1}
    found = {name: check_number(f"resources_per_rank[{name!r}]", one) for name, one in resources.items()}
    for name, amount in found.items():
        if not 0 <= amount < math.inf:
            raise InvalidValueError(f"resources_per_rank[{name!r}] must be finite and >= 0, got {amount:g}")
    if not any(found.values()):
        raise InvalidValueError(f"resources_per_rank must reserve something, got {dict(resources)}")
    return {name: int(amount) if amount.is_integer() else amount for name, amount in found.items()}


class RankPlace(NamedTuple):
    """Where a rank runs: its node and host, a free port there, and what `read_trace` needs."""

    node: str
    host: str
    address: str
    port: int
    stderr: str
    memory_kills: int
    pid: int


class _Rank:
    """The process of one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    # Ray puts this before each line that the process prints.
    def __repr__(self) -> str:
        return f"rank {self._rank}"

    def place(self, protocol: int) -> RankPlace:
        """Where this process runs, and a port that is free there now; `protocol` is that of the driver.

        Raises ClusterError if this node has another version of distsummary.
        """
        if protocol != PROTOCOL:
            raise ClusterError(
                f"{socket.gethostname()} has another version of distsummary than the process that launched "
                f"this rank: its protocol is {PROTOCOL}, there {protocol}; install one version on all nodes"
            )
        with socket.socket() as probe:
            probe.bind(("", 0))
            return RankPlace(
                ray.get_runtime_context().get_node_id(),
                socket.gethostname(),
                ray.util.get_node_ip_address(),
                probe.getsockname()[1],
                stderr_path(),
                memory_kills(),
                os.getpid(),
            )

    def join(
        self, environment: dict[str, str], backend: str | None, driver: Mapping[str, Any], argv: list[str]
    ) -> None:
        """Set the variables of this rank and connect it to the others by torch.distributed.

        `driver`: the process that awaits it, as of `own_process`. `argv`: that process's sys.argv.
        """
        os.environ.update(environment)
        sys.argv[:] = argv
        note_driver(driver)
        if backend is None:
            return
        # A node of the cluster may be without torch.
        require(f"backend={backend!r}", "torch")
        import torch.distributed

        torch.distributed.init_process_group(backend)

    def run(self, train_fn: Callable[[], Any], is_connected: bool) -> Any:
        """Call the training function as this rank, and leave torch.distributed."""
        try:
            with reporting_exits():
                try:
                    return train_fn()
                finally:
                    if is_connected:
                        import torch.distributed

                        # A script that was written for torchrun has left the group already.
                        if torch.distributed.is_initialized():
                            torch.distributed.destroy_process_group()
        except SystemExit as error:
            # Ray would treat a SystemExit as the death of the actor.
            if error.code in (None, 0):
                return None
            sys.last_value = error
            raise ended_by(error) from error
        except BaseException as error:
            # By this, exit handlers see that the process failed, as the interpreter would show it.
            sys.last_value = error
            raise

    def leave(self) -> None:
        """Run the exit handlers before Ray ends this actor, while they can still reach other actors."""
        # The answer to this call still needs Ray.
        atexit.unregister(ray.shutdown)
        atexit._run_exitfuncs()


def plan_environments(places: Sequence[RankPlace], launch_id: str) -> list[dict[str, str]]:
    """The environment variables of each rank, given each rank's place.

    Nodes are numbered in the order of their lowest ranks; rank 0 is the master.
    """
    nodes = list(dict.fromkeys(place.node for place in places))
    on_node: dict[str, list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        on_node[place.node].append(rank)
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(on_node[place.node].index(rank)),
            "LOCAL_WORLD_SIZE": str(len(on_node[place.node])),
            "NODE_RANK": str(nodes.index(place.node)),
            "MASTER_ADDR": places[0].address,
            "MASTER_PORT": str(places[0].port),
            LAUNCH_ID: launch_id,
        }
        for rank, place in enumerate(places)
    ]


def zero_lines(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that have ranks recorded without a line, whose processes Ray may have started before."""
    found = {name: environ[name] for name in (RUN_DIR, OPTIONS) if environ.get(name)}
    # Ranks may run in another directory.
    if RUN_DIR in found:
        found[RUN_DIR] = anchored(found[RUN_DIR])
    return found


def describe_places(places: Sequence[RankPlace], resources: Mapping[str, float]) -> list[str]:
    """How many ranks are on how many nodes; then a line for each host, of many for the first MAX_HOSTS."""
    on_host: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        on_host[place.host, place.address].append(rank)
    counts = sorted({len(ranks) for ranks in on_host.values()})
    each = f"{counts[0]} each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    given = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
    lines = (
        [f"{len(places)} ranks on {len(on_host)} nodes, {each}; a rank has {given}"]
        if len(on_host) > 1
        else []
    )
    lines += [
        f"{named(ranks, 'rank')} on {host} ({address}), pid {', '.join(str(places[r].pid) for r in ranks)}"
        for (host, address), ranks in [*on_host.items()][:MAX_HOSTS]
    ]
    if len(on_host) > MAX_HOSTS:
        lines.append(f"... and {len(on_host) - MAX_HOSTS} more hosts")
    return lines


@contextmanager
def connected(ranks: int, resources: Mapping[str, float], address: str | None = None) -> Iterator[None]:
    """Connect to a Ray cluster for the block, if this process is not connected yet; see `launch`."""
    if ray.is_initialized():
        yield
        return
    if address is not None and address != "local":
        check_reachable(address, "address", 'pass address="local" to start a cluster on this machine')
    chosen = address or reachable_cluster(cluster_address())
    if chosen not in (None, "local"):
        join(ray, address=chosen)
    elif chosen == "local" or not _join_current(ranks, resources):
        # The cluster has as many processors as the ranks ask for, even if the machine has fewer.
        cpus = max(os.cpu_count() or 1, int(ranks * resources.get("CPU", 0)))
        start_local(ray, num_cpus=cpus)
    try:
        yield
    finally:
        # Ray sends the last lines that ranks printed a little later.
        time.sleep(PRINTING_S)
        ray.shutdown()


def _join_current(ranks: int, resources: Mapping[str, float]) -> bool:
    """Connect to the cluster of this machine that `ray.init()` finds, if there is one that fits the ranks.

    Otherwise one line gives the reason and the remedy, and False is returned.
    """
    found = bootstrap_address(None)
    if found is None:
        return False
    remedy = "ray stop ends it"
    try:
        check_reachable(found, "/tmp/ray/ray_current_cluster", remedy)
        join(ray, address=found)
    except Exception as error:
        # There is no answer, or the cluster has another version of Ray or Python.
        reason = " ".join(str(error).split())
    else:
        free = ray.available_resources()
        if all(free.get(name, 0) >= ranks * amount for name, amount in resources.items()):
            say(f"joins the Ray cluster at {found}")
            return True
        ray.shutdown()
        shown = {name: free.get(name, 0) for name in resources}
        reason = f"{ranks} ranks of {dict(resources)} do not fit into what it has free, {shown}"
        remedy = "to wait there for room: RAY_ADDRESS=auto"
    say(f"the Ray cluster at {found} is not used, a local one is started: {reason}; {remedy}")
    return False


@contextmanager
def _placed(
    ranks: int, resources: dict[str, float], nodes: int | None, placement: str
) -> Iterator[PlacementGroup]:
    """Reserve the resources of all ranks for the block, in one bundle a rank, or a node if `nodes` says so.

    Raises RanksFailedError if they do not fit.
    """
    if nodes is None:
        group = placement_group([resources] * ranks, strategy="PACK" if placement == PACKED else "SPREAD")
    else:
        whole = {name: amount * (ranks // nodes) for name, amount in resources.items()}
        group = placement_group([whole] * nodes, strategy="STRICT_SPREAD")
    try:
        beginnings = Beginnings()
        while not group.wait(WAIT_S):
            if (limit_s := beginnings.limit_s()) is not None:
                where = "" if nodes is None else f" on {nodes} nodes, {ranks // nodes} each,"
                living = sum(node["Alive"] for node in ray.nodes())
                raise RanksFailedError(
                    f"{ranks} ranks of {resources}{where} did not fit within {limit_s:g} s; the "
                    f"cluster has {ray.available_resources()} free of {ray.cluster_resources()}, and "
                    f"{living} nodes: ask for less or add nodes"
                )
        yield group
    finally:
        remove_placement_group(group)


def _await_processes(running: list[Any], resources: Mapping[str, float]) -> None:
    """Return when all ranks have processes, or one of them has failed.

    Raises RanksFailedError if no further process begins.
    """
    pending, beginnings = running, Beginnings()
    while pending:
        ready, pending = ray.wait(pending, num_returns=1, timeout=WAIT_S)
        if any(isinstance(_failure(reference), RayError) for reference in ready):
            return
        if ready:
            beginnings.note()
        elif (limit_s := beginnings.limit_s()) is not None:
            raise RanksFailedError(
                f"{len(pending)} of {len(running)} ranks have no process, and none began within "
                f"{limit_s:g} s: of each, {why_not_begun(resources)}; see also: ray status"
            )


def _failure(reference: Any) -> RayError | None:
    try:
        ray.get(reference)
    except RayError as error:
        return error
    return None


def _wait(
    running: list[Any], places: Sequence[RankPlace] = (), deaths: dict[int, str] | None = None
) -> list[Any]:
    """The results of all ranks; raises RanksFailedError at most GRACE_S after the first failure.

    `deaths` then gets the ranks that died or were stopped, and why: they cannot report it themselves.
    """
    rank_of = {reference: rank for rank, reference in enumerate(running)}
    results: dict[int, Any] = {}
    errors: dict[int, RayError] = {}  # in the order of time
    pending = running
    deadline = float("inf")
    while pending and time.monotonic() < deadline:
        timeout = None if deadline == float("inf") else max(0.1, deadline - time.monotonic())
        ready, pending = ray.wait(pending, num_returns=1, timeout=timeout)
        for reference in ready:
            try:
                results[rank_of[reference]] = ray.get(reference)
            except RayError as error:
                errors[rank_of[reference]] = error
                # The other ranks may wait for this one for ever, so their time is limited now.
                deadline = min(deadline, time.monotonic() + GRACE_S)
    if not errors:
        return [results[rank] for rank in range(len(running))]
    # Any error but RayTaskError is the death of a process, so its node is asked what the process left.
    dead = [rank for rank, error in errors.items() if not isinstance(error, RayTaskError)]
    traces = _traces({rank: places[rank] for rank in dead if places})
    failures = [
        RankEnd(rank, death(str(error), traces.get(rank), places[rank].address if places else ""))
        if rank in dead
        else raised(rank, error)
        for rank, error in errors.items()
    ]
    failures += [
        RankEnd(rank_of[reference], f"stopped: it still ran {GRACE_S:g} s after the first failure", STOPPED)
        for reference in pending
    ]
    if deaths is not None:
        deaths |= {one.rank: one.text for one in failures if one.rank in dead or one.kind == STOPPED}
    raise RanksFailedError(error_lines(failures))


def _interrupt(running: list[Any], places: Sequence[RankPlace]) -> None:
    """Ask the ranks to end, as Ctrl-C asks this process, and wait: then they report it and close their files.

    Ray blocks SIGINT in its workers and raises SystemExit in them at SIGTERM.
    """
    if not places:
        return
    pids: dict[str, list[int]] = defaultdict(list)
    for place in places:
        pids[place.node].append(place.pid)
    send = ray.remote(num_cpus=0, max_retries=0)(_terminate)
    for node, found in pids.items():
        send.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(found)
    ray.wait(running, num_returns=len(running), timeout=INTERRUPT_S)


def _terminate(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _traces(places: Mapping[int, RankPlace]) -> dict[int, Trace]:
    """What dead ranks left on their nodes, as far as these can be asked within TRACE_S."""
    read = ray.remote(num_cpus=0, max_retries=0)(read_trace)
    asked = {
        read.options(scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False)).remote(
            place.stderr, place.memory_kills
        ): rank
        for rank, place in places.items()
    }
    if not asked:
        return {}
    found: dict[int, Trace] = {}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=TRACE_S)
    for reference in late:
        ray.cancel(reference, force=True)
    for reference in ready:
        try:
            found[asked[reference]] = ray.get(reference)
        except RayError as error:
            # The node may have died, too.
            logger.debug("rank %d left no trace that can be read: %s", asked[reference], error)
    return found


def _end(actors: list[Any], running: list[Any]) -> None:
    """Run the exit handlers of the ranks that returned or raised, then kill all processes."""
    try:
        # Only ranks that have ended can run their exit handlers; the others are killed at once.
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
