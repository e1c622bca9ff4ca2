"""The aggregator of one run: it registers the ranks, collects their lineage and writes the merged run."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from distsummary.aggregate.merge import merge_run
from distsummary.aggregate.merge_lineage import merge_lineage
from distsummary.aggregate.merged_files import MERGED
from distsummary.aggregate.rank_files import first_free_attempt
from distsummary.coordination import (
    LocalCoordinator,
    Registration,
    end_of,
    find_attempt,
    is_complete,
    newest_attempt,
    note_aggregator,
    note_evaluation,
    open_attempts,
    rank_states,
    refuse_stale,
    set_run_state,
)
from distsummary.errors import DistSummaryError
from distsummary.format.lineage import Lineage, lineage_values
from distsummary.format.records import Batch, Event
from distsummary.run_dir import Manifest, RunDir
from distsummary.topology import Topology
from distsummary.writing.spec import WriterSpec
from distsummary.writing.writer import RankWriter

logger = logging.getLogger(__name__)

LEASE_S = 60.0
GRACE_S = 2.0


class Aggregator:
    """A Coordinator that outlives the ranks; the data that they record does not pass through it.

    All its lasting state is in the run's manifest, so that a restarted aggregator continues where the last
    one stopped. A role ("train" or "eval") is open until every rank of its newest attempt (start) is finished
    or lost and the attempt has then been merged. The attempt is merged when every rank has finished,
    when `settle` is called for its launch, or when no rank has called the aggregator for `lease_s` seconds.
    Ranks that have not finished are then marked lost; a lost rank that comes back reopens its role.

    When no role is open, the aggregator ends and calls `on_end`, either `grace_s` seconds after the last call
    of a rank or at once after `settle`. It also ends if the merge after `lease_s` quiet seconds fails, and
    `grace_s` seconds after the last rank has left if a full disk took neither its state nor the merged run.

    Args:
        run_dir: the run dir.
        lease_s, grace_s: see above; in seconds.
        on_end: called once, in the aggregator's own thread.
    """

    def __init__(
        self,
        run_dir: str,
        *,
        lease_s: float = LEASE_S,
        grace_s: float = GRACE_S,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_dir = RunDir(run_dir)
        self._local = LocalCoordinator(self._run_dir, partial(first_free_attempt, self._run_dir))
        self._lease_s, self._grace_s, self._on_end = lease_s, grace_s, on_end
        self._lineages: dict[int, Lineage] = {}
        self._lineages_of = -1  # the attempt that `_lineages` belong to
        self._left: set[tuple[str, int, str]] = set()  # role, attempt, rank: their end may not be saved
        self._cannot_save = False
        self._last_contact = time.monotonic()
        self._changed = threading.Condition(threading.RLock())
        try:
            note_aggregator(self._run_dir)
        except DistSummaryError as error:  # the ranks register all the same
            logger.warning("a merge by hand will not see that an aggregator lives: %s", error)
        threading.Thread(target=self._watch, name="distsummary-lease", daemon=True).start()

    def register(self, topology: Topology, *, refuse_finished: bool = False) -> Registration:
        """Add a rank to the run; raises WorldMismatchError if the ranks disagree on the world size."""
        with self._changed:
            self.renew()
            return self._local.register(topology, refuse_finished=refuse_finished)

    def renew(self) -> None:
        """Renew the lease: some rank of the run is alive."""
        with self._changed:
            self._last_contact = time.monotonic()
            self._changed.notify_all()

    def serves(self, launch_id: str) -> bool:
        """Whether ranks of this launch have joined the run; never waits for a merge."""
        attempts = self._run_dir.read_manifest()["attempts"]
        return any(entry["incarnation"].startswith(launch_id) for entry in attempts)

    def lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        """Keep a rank's lineage; once every rank of the attempt has sent one, write the merged lineage.

        Changes that a rank makes to its lineage later reach the merged lineage when the run is merged.
        """
        with self._changed:
            self.renew()
            manifest = self._run_dir.read_manifest()
            refuse_stale(manifest, topology.role, attempt)
            newest = newest_attempt(manifest, topology.role)
            is_newest = newest is not None and newest["attempt"] == attempt
            if topology.role != "train" or topology.world_size == 1 or not is_newest:
                return
            if self._lineages_of != attempt:
                self._lineages, self._lineages_of = {}, attempt
            if len(self._lineages) == topology.world_size:  # the merged lineage is written already
                return
            self._lineages[topology.rank] = Lineage.from_bytes(lineage)
            if len(self._lineages) < topology.world_size:
                return
            merged, _ = merge_lineage(self._lineages, topology.world_size)
            now = time.time()
            events = [Event(0, now, [value]) for value in lineage_values(merged)]
            run_id = manifest["run_id"]
            writer = RankWriter(
                WriterSpec(directory=self._run_dir.base, run_id=run_id, attempt=attempt, source=MERGED)
            )
            writer.write(Batch(run_id=run_id, attempt=attempt, rank=0, first_seq=1, events=events))
            writer.close()

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Note that a rank has written everything; for the last rank, return only after the run is merged."""
        with self._changed, self._saving():
            self.renew()
            self._left.add((topology.role, attempt, str(topology.rank)))
            self._local.finish(topology, attempt, health)
            self._settle(
                lambda entry: (
                    (entry["role"], entry["attempt"]) == (topology.role, attempt) and is_complete(entry)
                )
            )

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Note that a rank evaluated its finished training; when the last rank reports this, merge again."""
        with self._changed, self._saving():
            self.renew()
            note_evaluation(self._run_dir, topology, attempt)
            entry = find_attempt(self._run_dir.read_manifest(), "train", attempt)
            has_all = len(entry.get("evaluated", [])) >= topology.world_size
            if has_all and "running" not in rank_states(entry).values():
                self._settle(lambda other: (other["role"], other["attempt"]) == ("train", attempt))

    def settle(self, launch_id: str) -> None:
        """Merge the attempts that an ended launch left open; attempts of other launches stay open."""
        with self._changed, self._saving():
            self._settle(lambda entry: entry["incarnation"].startswith(launch_id))
            self._last_contact -= self._grace_s  # no rank is left to wait for
            self._changed.notify_all()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Note whether the block could write what it changes; a full disk is the usual reason if not."""
        try:
            yield
        except OSError:
            self._cannot_save = True
            raise
        self._cannot_save = False

    def _is_awaited(self, entry: Manifest) -> bool:
        """Whether an open attempt has a rank that may still call, or can still be merged."""
        if not self._cannot_save:
            return True
        running = {rank for rank, state in rank_states(entry).items() if state == "running"}
        return any((entry["role"], entry["attempt"], rank) not in self._left for rank in running)

    def _settle(self, wanted: Callable[[Manifest], bool]) -> None:
        """Merge the open attempts that `wanted` selects; first marks their unfinished ranks as lost."""
        for entry in open_attempts(self._run_dir.read_manifest()):
            if wanted(entry):
                self._merge(entry["role"], entry["attempt"])
        self.renew()

    def _merge(self, role: str, attempt: int) -> None:
        def mark_lost(manifest: Manifest) -> None:
            found = find_attempt(manifest, role, attempt)
            for rank in found["ranks"].values():
                if rank["state"] == "running":
                    rank["state"] = "lost"
            set_run_state(manifest, found, end_of(found))

        entry = find_attempt(self._run_dir.update_manifest(mark_lost), role, attempt)
        if entry["world_size"] > 1:
            merge_run(self._run_dir)
            states = rank_states(entry)
            self._run_dir.update_manifest(
                lambda manifest: find_attempt(manifest, role, attempt).update(merged=states, evaluated=[])
            )

    def _watch(self) -> None:
        """The aggregator's thread: merges the run when its ranks fall silent; ends when no role is open."""
        with self._changed:
            while True:
                silent_s = time.monotonic() - self._last_contact
                if silent_s < self._grace_s:
                    self._changed.wait(self._grace_s - silent_s)
                    continue
                try:
                    if not any(map(self._is_awaited, open_attempts(self._run_dir.read_manifest()))):
                        break
                except DistSummaryError:
                    logger.exception("%s: the manifest cannot be read; the aggregator ends", self._run_dir)
                    break
                if silent_s < self._lease_s:
                    self._changed.wait(self._lease_s - silent_s)
                    continue
                logger.warning(
                    "%s: no rank was heard from for %g s; merging what is there", self._run_dir, self._lease_s
                )
                try:
                    self._settle(lambda entry: True)
                except Exception:  # nobody waits for this thread; the rank files can still be merged later
                    logger.exception("%s could not be merged; run: distsummary merge", self._run_dir)
                    break
        self._on_end()
