"""The ship of a node as a Ray actor, the home behind the aggregator, and how a rank calls its ship."""

import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from distsummary.aggregate.actor_aggregator import actor_name, start_aggregator, start_on
from distsummary.base.actor_calls import RayConnection, RayGoneError
from distsummary.base.failures import error_line
from distsummary.base.guard import guarded_log
from distsummary.base.processes import own_process
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from distsummary.storage.home import Entered, HostState, News, Seen
from distsummary.storage.ship import Ship
from distsummary.storage.spool import Change

logger = guarded_log(__name__)

ANSWER_S = 5.0  # how long a ship waits for its home, whose link may be cut
START_S = 30.0  # the same for the first answer: the aggregator may have to start
RETRY_S = 0.5


class ActorHome:
    """A Home behind the aggregator of the run, which is started again if it has ended."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._handle: Any = None

    def enter(self, directory: str, attempt: int) -> Entered:
        """See Home."""
        found: Entered = self._call("enter", directory, attempt)
        return found

    def exchange(
        self, host: HostState, held: Mapping[str, int], changes: Sequence[Change], seen: Seen
    ) -> News:
        """See Home."""
        found: News = self._call("exchange", host, dict(held), [*changes], seen)
        return found

    def leave(self, directory: str) -> None:
        """See Home."""
        self._call("leave", directory)

    def _call(self, method: str, *arguments: object) -> Any:
        limit_s = ANSWER_S
        # The handle is kept: while the link is cut, to look the actor up takes longer than the limit.
        if self._handle is None:
            self._handle, limit_s = start_aggregator(self._run_dir), START_S
        try:
            return ray.get(getattr(self._handle, method).remote(*arguments), timeout=limit_s)
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except RayActorError:
            self._handle = None
            raise


class _ShipActor(Ship):
    """A Ship that ends itself by `ray.kill`."""

    def __init__(self, spool: str, home: str) -> None:
        super().__init__(
            Path(spool),
            ActorHome(RunDir(spool, home=Path(home))),
            lambda: ray.kill(ray.get_runtime_context().current_actor, no_restart=True),
        )


class ShipClient:
    """Has the ship of this node send what a rank writes; one that was killed is started again.

    Args:
        run_dir: the spool of this node. connection: to Ray. bulk_bytes: see `Spool`.
    """

    def __init__(self, run_dir: RunDir, connection: RayConnection, bulk_bytes: int) -> None:
        self._run_dir, self._ray, self._bulk_bytes = run_dir, connection, bulk_bytes
        self._handle: Any = None
        self._renewal: Any = None  # the last call of `renew`

    def enter(self, topology: Topology, attempt: int, limit_s: float) -> None:
        """See Ship; logs what it raises, since the files stay on this host."""
        self._call("enter", limit_s, *self._arguments(topology, attempt))

    def renew(self, topology: Topology, attempt: int) -> None:
        """Say that this rank lives, and wait for nothing."""
        with suppress(RayGoneError), self._ray.call():
            try:
                if self._renewal is not None:
                    if not ray.wait([self._renewal], timeout=0)[0]:
                        return
                    ray.get(self._renewal, timeout=RETRY_S)
            except RayActorError:
                self._handle = None
            except RayError as error:
                logger.warning("rank=%d its files are not sent now: %s", topology.rank, error_line(error))
            self._handle = self._handle or self._start()
            self._renewal = self._handle.enter.remote(*self._arguments(topology, attempt))

    def leave(self, topology: Topology, attempt: int, limit_s: float) -> None:
        """See Ship; waits at most so long, then says where the files are."""
        self._call("leave", limit_s, *self._arguments(topology, attempt))

    def _arguments(self, topology: Topology, attempt: int) -> tuple[Any, ...]:
        directory = self._run_dir.writer_name(topology.role, topology.rank, topology.world_size)
        return topology.session, own_process(), directory, attempt, self._bulk_bytes

    def _call(self, method: str, limit_s: float, *arguments: object) -> None:
        until = time.monotonic() + limit_s
        while True:
            try:
                with self._ray.call():
                    self._handle = self._handle or self._start()
                    asked = getattr(self._handle, method).remote(*arguments)
                self._ray.result(asked, max(RETRY_S, until - time.monotonic()))
                return
            except (RayGoneError, RayError) as error:
                if isinstance(error, RayActorError):
                    self._handle = None
                if isinstance(error, RayGoneError) or time.monotonic() > until:
                    logger.warning(
                        "not all files of this rank are at the home of %s yet (%s): they are in %s on %s",
                        self._run_dir.home, error_line(error), self._run_dir.base, platform.node(),
                    )  # fmt: skip
                    return
            time.sleep(RETRY_S)

    def _start(self) -> Any:
        return start_ship(self._run_dir, ray.get_runtime_context().get_node_id())


def start_ship(run_dir: RunDir, node: str) -> Any:
    """The ship of a node for a run, started if there is none. `run_dir`: the spool on that node."""
    actor = ray.remote(max_concurrency=16)(_ShipActor)
    started = start_on(node, False, actor, name=actor_name(run_dir, "ship", node), max_restarts=0)
    return started.remote(str(run_dir.base), str(run_dir.home))
