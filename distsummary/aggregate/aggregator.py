"""The aggregator of one run: registers its ranks, gathers their lineage, writes the merged run at the end."""

import logging
import threading
import time
from collections.abc import Callable

from distsummary.aggregate.merge import merge_run
from distsummary.aggregate.merge_lineage import merge_lineage
from distsummary.aggregate.rank_files import first_free_attempt
from distsummary.coordination import (
    LocalCoordinator,
    Registration,
    find_attempt,
    is_complete,
    newest_attempt,
    open_attempts,
    rank_states,
    refuse_stale,
)
from distsummary.errors import DistSummaryError
from distsummary.format.lineage import Lineage, lineage_values
from distsummary.format.records import Batch, Event
from distsummary.run_dir import Manifest, RunDir
from distsummary.topology import Topology
from distsummary.writing.writer import RankWriter

logger = logging.getLogger(__name__)

LEASE_S = 60.0
GRACE_S = 2.0


class Aggregator:
    """A coordinator that outlives single ranks and is not on the path of their data.

    What it must not forget is the run's manifest, so that a restarted aggregator goes on where the last one
    was: a role is open until its newest attempt was merged with its ranks' final states. It is merged when
    every rank has finished, when the aggregator is told to settle, or when no rank was heard of for `lease_s`
    seconds; ranks that did not finish are then lost, and one that comes back opens its role again. With
    nothing open it calls `on_end`: `grace_s` seconds after the last word of a rank, or at once when it was
    told to settle. It does, too, when a merge failed in vain.

    Args:
        path: the run dir. lease_s, grace_s: seconds.
        on_end: called once, from the aggregator's own thread.
    """

    def __init__(
        self,
        path: str,
        *,
        lease_s: float = LEASE_S,
        grace_s: float = GRACE_S,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_dir = RunDir(path)
        self._local = LocalCoordinator(self._run_dir, lambda role: first_free_attempt(self._run_dir, role))
        self._lease_s, self._grace_s, self._on_end = lease_s, grace_s, on_end
        self._lineages: dict[int, Lineage] = {}
        self._lineages_of = -1  # which attempt
        self._last_contact = time.monotonic()
        self._changed = threading.Condition(threading.RLock())
        threading.Thread(target=self._watch, name="distsummary-lease", daemon=True).start()

    def register(self, topology: Topology) -> Registration:
        """Join the run; raises WorldMismatchError when the ranks of an attempt disagree on the world size."""
        with self._changed:
            self.renew()
            return self._local.register(topology)

    def renew(self) -> None:
        """Some rank of the run lives."""
        with self._changed:
            self._last_contact = time.monotonic()
            self._changed.notify_all()

    def serves(self, launch_id: str) -> bool:
        """Whether ranks of a launch joined the run; waits for nothing."""
        attempts = self._run_dir.read_manifest()["attempts"]
        return any(entry["incarnation"].startswith(launch_id) for entry in attempts)

    def lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        """Keep a rank's lineage; the merged one is written once, when every rank of the attempt told its own.

        What changes later comes into the run when it is merged.
        """
        with self._changed:
            self.renew()
            manifest = self._run_dir.read_manifest()
            refuse_stale(manifest, topology.role, attempt)
            newest = newest_attempt(manifest, topology.role)
            is_of_newest = newest is not None and newest["attempt"] == attempt
            if topology.role == "train" and topology.world_size > 1 and is_of_newest:
                self._keep_lineage(topology, attempt, lineage)

    def _keep_lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        if self._lineages_of != attempt:
            self._lineages, self._lineages_of = {}, attempt
        if len(self._lineages) == topology.world_size:
            return
        self._lineages[topology.rank] = Lineage.from_bytes(lineage)
        if len(self._lineages) == topology.world_size:
            self._write_lineage(topology, attempt)

    def finish(self, topology: Topology, attempt: int, health: dict[str, int]) -> None:
        """The rank has written everything; with the last one the merged run is written before we return."""
        with self._changed:
            self.renew()
            self._local.finish(topology, attempt, health)
            self._settle(lambda entry: _is(entry, topology.role, attempt) and is_complete(entry))

    def settle(self, launch_id: str) -> None:
        """The ranks of a launch have ended: settle what they left open, and no other launch's run."""
        with self._changed:
            self._settle(lambda entry: entry["incarnation"].startswith(launch_id))
            self._last_contact -= self._grace_s  # for nobody: the ranks have ended
            self._changed.notify_all()

    def _settle(self, wanted: Callable[[Manifest], bool]) -> None:
        """Give up the ranks that still run in the wanted ones of the open attempts, and merge those."""
        for entry in open_attempts(self._run_dir.read_manifest()):
            if wanted(entry):
                self._merge(entry["role"], entry["attempt"])
        self.renew()

    def _merge(self, role: str, attempt: int) -> None:
        manifest = self._run_dir.update_manifest(lambda manifest: _mark_lost(manifest, role, attempt))
        entry = find_attempt(manifest, role, attempt)
        if entry["world_size"] > 1:
            merge_run(self._run_dir)
            states = rank_states(entry)
            self._run_dir.update_manifest(
                lambda manifest: find_attempt(manifest, role, attempt).update(merged=states)
            )

    def _write_lineage(self, topology: Topology, attempt: int) -> None:
        merged, _ = merge_lineage(self._lineages, topology.world_size)
        now = time.time()
        events = [Event(0, now, [value]) for value in lineage_values(merged)]
        writer = RankWriter(
            self._run_dir.base,
            run_id=self._run_dir.read_manifest()["run_id"],
            attempt=attempt,
            source="merged",
        )
        writer.write(Batch(run_id=writer.run_id, attempt=attempt, rank=0, first_seq=1, events=events))
        writer.close()

    def _watch(self) -> None:
        """Settle a run whose ranks are silent, then end; sleeps until the next moment that can matter."""
        with self._changed:
            while True:
                left_s = self._last_contact + self._grace_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                elif not self._is_open():
                    break
                elif (left_s := left_s + self._lease_s - self._grace_s) > 0:
                    self._changed.wait(left_s)
                elif not self._settle_quietly():
                    break
        self._on_end()

    def _is_open(self) -> bool:
        try:
            return bool(open_attempts(self._run_dir.read_manifest()))
        except DistSummaryError:
            logger.exception("%s: nothing is left to wait for", self._run_dir)
            return False

    def _settle_quietly(self) -> bool:
        logger.warning(
            "%s: no rank was heard of for %g s; merging what is there", self._run_dir, self._lease_s
        )
        try:
            self._settle(lambda entry: True)
        except Exception:  # nobody waits for this thread; the rank files stand and can be merged later
            logger.exception("%s could not be merged; run: distsummary merge", self._run_dir)
            return False
        return True


def _is(entry: Manifest, role: str, attempt: int) -> bool:
    return bool(entry["role"] == role and entry["attempt"] == attempt)


def _mark_lost(manifest: Manifest, role: str, attempt: int) -> None:
    for rank in find_attempt(manifest, role, attempt)["ranks"].values():
        if rank["state"] == "running":
            rank["state"] = "lost"
    manifest["state"] = "finished"
