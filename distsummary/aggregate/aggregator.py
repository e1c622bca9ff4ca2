"""The aggregator of one run: registers its ranks, gathers their lineage, writes the merged run at the end."""

import logging
import threading
import time
from collections.abc import Callable

from distsummary.aggregate.merge import merge_run
from distsummary.aggregate.merge_lineage import merge_lineage
from distsummary.coordination import Registration
from distsummary.events.records import Batch, Event, Lineage, lineage_values
from distsummary.events.writer import RankWriter
from distsummary.run_dir import (
    LocalCoordinator,
    Manifest,
    RunDir,
    find_attempt,
    is_complete,
    newest_attempt,
    refuse_stale,
)
from distsummary.topology import Topology

logger = logging.getLogger(__name__)

LEASE_S = 60.0
GRACE_S = 2.0


class Aggregator:
    """A coordinator that outlives single ranks and is not on the path of their data.

    What it must not forget is the run's manifest, so that a restarted aggregator goes on where the last one
    was. It settles the run, that is, writes the merged run, when every rank has finished, when it is told to,
    or when no rank was heard of for `lease_s` seconds; ranks that did not finish are then lost. `grace_s`
    seconds later, if no new attempt registered, it calls `on_end`.

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
        self._local = LocalCoordinator(self._run_dir)
        self._lease_s, self._grace_s, self._on_end = lease_s, grace_s, on_end
        self._open = unsettled(self._run_dir.read_manifest())
        self._lineages: dict[int, Lineage] = {}
        self._last_contact = time.monotonic()
        self._changed = threading.Condition(threading.RLock())
        threading.Thread(target=self._watch, name="distsummary-lease", daemon=True).start()

    def register(self, topology: Topology) -> Registration:
        """Join the run; raises WorldMismatchError when the ranks of an attempt disagree on the world size."""
        with self._changed:
            registration = self._local.register(topology)
            if topology.role == "train" and self._open.get("train", (-1, 0))[0] != registration.attempt:
                self._lineages.clear()
            self._open[topology.role] = (registration.attempt, topology.world_size)
            self.renew()
            return registration

    def renew(self) -> None:
        """Some rank of the run lives."""
        with self._changed:
            self._last_contact = time.monotonic()
            self._changed.notify_all()

    def lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        """Keep a rank's lineage; the merged one is written when every rank has told its own."""
        with self._changed:
            self.renew()
            refuse_stale(self._run_dir.read_manifest(), topology.role, attempt)
            if topology.role != "train" or topology.world_size == 1:
                return
            self._lineages[topology.rank] = Lineage.from_bytes(lineage)
            if len(self._lineages) == topology.world_size:
                self._write_lineage(topology, attempt)

    def finish(self, topology: Topology, attempt: int, health: dict[str, int]) -> None:
        """The rank has written everything; with the last one the merged run is written before we return."""
        with self._changed:
            self.renew()
            self._local.finish(topology, attempt, health)
            if is_complete(find_attempt(self._run_dir.read_manifest(), topology.role, attempt)):
                self._settle(topology.role, attempt)

    def settle(self, launch_id: str) -> None:
        """The ranks of a launch have ended: settle what they left open, and no other launch's run."""
        with self._changed:
            manifest = self._run_dir.read_manifest()
            for role, (attempt, _) in list(self._open.items()):
                if find_attempt(manifest, role, attempt)["incarnation"].startswith(launch_id):
                    self._settle(role, attempt)

    def _settle(self, role: str, attempt: int) -> None:
        """Write the merged run of what the rank directories hold, unless a newer attempt is under way."""
        open_attempt, world_size = self._open.get(role, (-1, 0))
        if open_attempt != attempt:
            return
        del self._open[role]
        self._run_dir.update_manifest(lambda manifest: _mark_lost(manifest, role, attempt))
        if world_size > 1:
            merge_run(self._run_dir)
        self.renew()

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
                patience_s = self._lease_s if self._open else self._grace_s
                left_s = self._last_contact + patience_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                elif self._open:
                    self._settle_quietly()
                else:
                    break
        self._on_end()

    def _settle_quietly(self) -> None:
        logger.warning(
            "%s: no rank was heard of for %g s; merging what is there", self._run_dir, self._lease_s
        )
        for role, (attempt, _) in list(self._open.items()):
            try:
                self._settle(role, attempt)
            except Exception:  # nobody waits for this thread; the rank files stand and can be merged later
                logger.exception("%s could not be merged; run: distsummary merge", self._run_dir)


def unsettled(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """The newest attempt of each role that still has running ranks: role -> (attempt, world size)."""
    found = {}
    for role in {entry["role"] for entry in manifest["attempts"]}:
        entry = newest_attempt(manifest, role)
        if entry and any(rank["state"] == "running" for rank in entry["ranks"].values()):
            found[role] = (entry["attempt"], entry["world_size"])
    return found


def _mark_lost(manifest: Manifest, role: str, attempt: int) -> None:
    for rank in find_attempt(manifest, role, attempt)["ranks"].values():
        if rank["state"] == "running":
            rank["state"] = "lost"
    manifest["state"] = "finished"
