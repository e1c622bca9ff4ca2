"""AggregatorClient: how a rank calls its run's aggregator, a Ray actor, and has its files sent there."""

import contextlib
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.metrics import Gauge

from distsummary.aggregate.actor_aggregator import NAMESPACE, start_aggregator
from distsummary.aggregate.actor_ship import ShipClient
from distsummary.aggregate.registrar import first_free_attempt
from distsummary.base.actor_calls import RayConnection, RayGoneError, why_not_begun
from distsummary.base.columns import quoted
from distsummary.base.failures import error_line
from distsummary.base.guard import guarded_log
from distsummary.diagnosis.verdict import Verdict
from distsummary.rundir.admission import refuse_other_version, refuse_unshared
from distsummary.rundir.attempts import Registration
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.deal import Deal, Heartbeat
from distsummary.rundir.run_dir import SHIP_BYTES, RunDir
from distsummary.rundir.topology import Topology

logger = guarded_log(__name__)

RETRY_S = 0.5
REGISTER_S = 60.0
NAMED_S = 10.0  # after so long without an answer, a rank that joins says what it waits for
PING_S = 5.0  # how often `settle` asks whether the aggregator still answers, and how long it waits for that
SERVES_S = 15.0
MERGE_S = 10.0
SETTLE_S = 600.0  # how long `settle` does, while the aggregator answers
GAUGES = {
    "step": "The newest step of a rank.",
    "own_ms": "Milliseconds a step that a rank works by itself, mean of 30 s.",
    "waiting_ms": "Milliseconds a step that a rank waits, mean of 30 s.",
}


class RankGauges:
    """How far a rank is and what its steps take: metrics of Ray of its own process, which end when it does.

    Each has the tags `run` (the run dir) and `rank`. Ray puts "ray_" before the names.
    """

    def __init__(self, run_dir: RunDir, rank: int) -> None:
        # Ray takes ASCII alone.
        name = str(run_dir.base).encode("ascii", "backslashreplace").decode()
        self._tags = {"run": name, "rank": str(rank)}
        self._step, self._own, self._waiting = (
            Gauge(f"distsummary_{name}", text, tuple(self._tags)) for name, text in GAUGES.items()
        )

    def set(self, heartbeat: Heartbeat) -> None:
        """Show what a heartbeat reports; times that were not measured stay as they were."""
        self._step.set(heartbeat.step, self._tags)
        self._own.set(heartbeat.own_ms, self._tags)
        self._waiting.set(heartbeat.wait_ms, self._tags)


class AggregatorClient:
    """A Coordinator that calls the aggregator actor, and keeps reporting to it that this process is alive.

    If the actor does not answer in time, or after `ray.shutdown()`, the client uses the run dir without the
    actor: nothing is lost, but the merged run may have to be written by `distsummary merge`.

    Args:
        run_dir: the run.
        register_s: seconds after which a rank continues without the aggregator's answer.
        merge_s: how long the last rank's `finish` and `evaluated` wait for the merged run.
        ship_bytes: see `collect.record_options.Record`.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        register_s: float = REGISTER_S,
        merge_s: float = MERGE_S,
        ship_bytes: int = SHIP_BYTES,
    ) -> None:
        self._run_dir, self._register_s, self._merge_s = run_dir, register_s, merge_s
        self._ship_bytes = ship_bytes
        self._local = LocalCoordinator(run_dir, partial(first_free_attempt, run_dir))
        self._ray = RayConnection()
        self._handle = start_aggregator(run_dir)
        self._renewal: Any = None  # the last call of `renew`
        self._gauges: RankGauges | None = None
        self._has_gauges = True
        self._ship: ShipClient | None = None  # sends what this rank writes to another node

    def register(self, topology: Topology) -> Registration:
        """Join the run.

        Raises WorldMismatchError when the ranks of an attempt disagree on the world size, RunDirError when
        the run dir is not shared with the aggregator's node, or that node has another version.
        """
        began = time.time()
        registration: Registration = self._ask("register", self._register_s, topology)
        refuse_other_version(self._run_dir, registration)
        if self._run_dir.is_away:
            self._local.ahead_s = registration.now - (began + time.time()) / 2
            # The ship may need a while to start, and until then nothing else says that this rank runs.
            self._ask("claim", self._register_s, topology, registration.attempt)
            self._ship = ShipClient(self._run_dir, self._ray, self._ship_bytes)
            self._ship.enter(topology, registration.attempt, self._register_s)
        else:
            refuse_unshared(self._run_dir, registration)
        self._local.claim(topology, registration.attempt)
        return registration

    def beat(self, topology: Topology, attempt: int, heartbeat: Heartbeat) -> tuple[Deal, ...]:
        """Report in the run dir that this rank lives; returns the deals that the aggregator wrote there.

        An aggregator that has ended, because it was killed or took all ranks for dead, is started again.
        """
        if self._ship is not None:
            # What the ship sends says that its ranks live.
            self._ship.renew(topology, attempt)
        else:
            self._renew()
        deals = self._local.beat(topology, attempt, heartbeat)
        if self._has_gauges and topology.role == "train":
            try:
                with contextlib.suppress(RayGoneError), self._ray.call():
                    if self._gauges is None:
                        self._gauges = RankGauges(self._run_dir, topology.rank)
                    self._gauges.set(heartbeat)
            except Exception as error:
                # Metrics of Ray are an extra: no error in them may disturb the run.
                self._has_gauges = False
                logger.warning("%s: no metrics of Ray are set any more: %s", self._run_dir, error_line(error))
        return deals

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Leave the run; the call of the last rank returns only after the merged run is written."""
        try:
            self._local.leave(topology, attempt, health)
            if self._ship is not None:
                self._ship.leave(topology, attempt, self._merge_s)
        finally:
            # The aggregator is called even if the disk is full, so that it can merge and end.
            self._ask("finish", self._merge_s, topology, attempt, health)

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Report an evaluation; the call of the last rank returns only after the run is merged again."""
        if self._run_dir.is_away:
            self._ship = self._ship or ShipClient(self._run_dir, self._ray, self._ship_bytes)
            self._ship.enter(topology, attempt, self._merge_s)
            self._ship.leave(topology, attempt, self._merge_s)
        self._ask("evaluated", self._merge_s, topology, attempt)

    def note(self, topology: Topology, attempt: int, fields: Mapping[str, object]) -> None:
        """See Coordinator."""
        if self._run_dir.is_away:
            self._ask("note", self._merge_s, topology, attempt, fields)
        else:
            self._local.note(topology, attempt, fields)

    def report(self, attempt: int, verdict: Verdict) -> bool:
        """See Reporter."""
        try:
            with self._ray.call():
                asked = self._handle.report.remote(attempt, verdict)
            return bool(self._ray.result(asked, self._merge_s))
        except (RayError, RayGoneError) as error:
            if isinstance(error, RayActorError):
                # The ship of this rank has started another one.
                with contextlib.suppress(RayGoneError), self._ray.call():
                    self._handle = start_aggregator(self._run_dir)
            raise OSError(f"the aggregator does not answer: {error_line(error)}") from error

    def _renew(self) -> None:
        # While a call has no answer yet, no further one is sent: they would only queue up.
        with contextlib.suppress(RayGoneError), self._ray.call():
            try:
                if self._renewal is None or ray.wait([self._renewal], timeout=0)[0]:
                    if self._renewal is not None:
                        ray.get(self._renewal, timeout=RETRY_S)
                    self._renewal = self._handle.renew.remote()
            except RayActorError:
                self._handle, self._renewal = start_aggregator(self._run_dir), None

    def _ask(self, method: str, timeout_s: float, *args: object, **options: object) -> Any:
        """Call the aggregator, or the LocalCoordinator if there is no answer; raises what the call raised."""
        deadline, is_restarted = time.monotonic() + timeout_s, False
        try:
            while True:
                try:
                    with self._ray.call():
                        reference = getattr(self._handle, method).remote(*args, **options)
                    # The first call may wait for room in the cluster, and the rank would seem to hang.
                    if method == "register" and self._ray.ready([reference], min(NAMED_S, timeout_s))[1]:
                        logger.warning(
                            "%s: the aggregator has not answered for %g s; the cluster may be full or slow "
                            "(ray status); the rank waits %g s, then continues without it",
                            self._run_dir, min(NAMED_S, timeout_s), timeout_s,
                        )  # fmt: skip
                    return self._ray.result(reference, max(RETRY_S, deadline - time.monotonic()))
                except RayTaskError:
                    # The aggregator's own code raised it. This clause comes first, since such an error may be
                    # an instance of RayActorError too.
                    raise
                except RayActorError:
                    if time.monotonic() >= deadline:
                        raise
                    if not is_restarted:
                        logger.warning("%s: the aggregator ended; calling a new one", self._run_dir)
                    is_restarted = True
                    # All ranks may get here at once: `start_aggregator` gives them the same new actor.
                    time.sleep(RETRY_S)
                    with self._ray.call():
                        self._handle = start_aggregator(self._run_dir)
        except RayTaskError as error:
            # The caller gets the error itself, as from a LocalCoordinator, without Ray's wrapper.
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except RayGoneError as error:
            reason = str(error)
        except RayError as error:
            reason = f"no answer from the aggregator ({type(error).__name__}: {error})"
            if method == "register":
                with contextlib.suppress(RayGoneError, RayError), self._ray.call():
                    reason += f"; {why_not_begun({})}"
        logger.warning(
            "%s: %s; %s() continues without the aggregator. If the merged run is missing later, run: "
            "distsummary merge %s",
            self._run_dir.home, reason, method, quoted(self._run_dir.home),
        )  # fmt: skip
        if self._run_dir.is_away and method == "finish":
            # The rank has left in its own file, and the run.json of the home alone has the state of the run.
            return None
        return getattr(self._local, method)(*args, **options)


def settle(
    launch_id: str,
    deaths: Mapping[int, str] | None = None,
    state: str = "lost",
    *,
    serves_s: float = SERVES_S,
) -> None:
    """Make the aggregators of a launch write their merged runs now; call it once all its ranks have ended.

    `deaths` are the ranks that died and why; readers then give `state` to those that reported no end.

    Never raises. Waits at most `serves_s` for all aggregators in the cluster to say whether they serve the
    launch, then at most SETTLE_S for those that serve it to merge, as long as they answer.
    """
    try:
        # Only an aggregator knows whether it serves this launch: ask those of all runs in the cluster.
        found = []
        for entry in ray.util.list_named_actors(all_namespaces=True):
            if entry["namespace"] == NAMESPACE and entry["name"].startswith("aggregator-"):
                # The actor may have ended after it was listed.
                with contextlib.suppress(ValueError):
                    found.append(ray.get_actor(entry["name"], namespace=NAMESPACE))
        asked = [actor.serves.remote(launch_id) for actor in found]
        answers = _answers(asked, serves_s)
        own = [actor for actor, reference in zip(found, asked, strict=True) if answers.get(reference)]
        settling = {actor.settle.remote(launch_id, deaths or {}, state): actor for actor in own}
        deadline = time.monotonic() + SETTLE_S
        # A merge may take long. It is awaited as long as the aggregators still answer another call meanwhile.
        while settling and time.monotonic() < deadline:
            ended, _ = ray.wait([*settling], num_returns=len(settling), timeout=PING_S)
            _answers(ended, RETRY_S, is_settling=True)
            settling = {reference: actor for reference, actor in settling.items() if reference not in ended}
            asked = [actor.serves.remote(launch_id) for actor in settling.values()]
            if len(_answers(asked, PING_S)) < len(asked):
                break
        if settling:
            logger.warning("the merged run may be missing; run: distsummary merge")
    except Exception:
        logger.exception("the merged run may be missing; run: distsummary merge")


def _answers(references: list[Any], timeout_s: float, *, is_settling: bool = False) -> dict[Any, Any]:
    """Reference -> answer, for the calls that are answered in time; failed and late calls are logged."""
    if not references:
        return {}
    ready, late = ray.wait(references, num_returns=len(references), timeout=timeout_s)
    found = {}
    for reference in ready:
        try:
            found[reference] = ray.get(reference, timeout=RETRY_S)
        except RayActorError as error:
            # Of those that are asked whose run it is, some have just ended. One that settles has failed.
            log = logger.warning if is_settling else logger.debug
            log("an aggregator ended before it answered: %s", error)
        except RayError as error:
            logger.warning(
                "an aggregator failed: %s; if its run is not merged, run: distsummary merge", error
            )
    if late:
        logger.warning("%d aggregator(s) did not answer within %g s", len(late), timeout_s)
    return found
