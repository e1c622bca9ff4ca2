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
    ENDED,
    Registration,
    begin_attempt,
    choose_attempt,
    end_of,
    end_of_rank,
    find_attempt,
    is_complete,
    is_open,
    merged_states,
    newest_attempt,
    newest_attempts,
    note_aggregator,
    note_evaluation,
    note_state,
    rank_states,
    refuse_other_world,
    refuse_stale,
    refuse_taken,
)
from distsummary.errors import DistSummaryError
from distsummary.format.lineage import Lineage, lineage_values
from distsummary.format.records import Batch, Event
from distsummary.publish import file_system_time
from distsummary.rank_manifest import new_entry, ranks_of
from distsummary.run_dir import Manifest, RunDir
from distsummary.topology import Topology
from distsummary.writing.spec import WriterSpec
from distsummary.writing.writer import RankWriter

logger = logging.getLogger(__name__)

LEASE_S = 60.0
GRACE_S = 2.0
FRESH_S = 1.0  # for so long run.json is not read again: others change it only rarely


class Aggregator:
    """A Coordinator that outlives the ranks; the data that they record does not pass through it.

    It knows the ranks in memory: a call of a rank costs no file operation. Each rank tells the same in its
    own file, where its client writes it, so that a restarted aggregator continues where the last one stopped.
    A role ("train" or "eval") is open until every rank of its newest attempt (start) is finished
    or lost and the attempt has then been merged. The attempt is merged when every rank has finished,
    when `settle` is called for its launch, or when no rank has called the aggregator for `lease_s` seconds.
    Ranks that have not finished then count as lost; a lost rank that comes back reopens its role.

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
        self._first_attempt = partial(first_free_attempt, self._run_dir)
        self._ranks: dict[tuple[str, int], dict[str, Manifest]] = {}  # role, attempt -> rank -> its entry
        self._manifest: tuple[float, Manifest] | None = None  # when it was read
        self._lease_s, self._grace_s, self._on_end = lease_s, grace_s, on_end
        self._lineages: dict[int, Lineage] = {}
        self._lineages_of = -1  # the attempt that `_lineages` belong to
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
            found = self._choose(self._recent_manifest(), topology)
            if found is None:
                found = self._begin(topology, refuse_finished=refuse_finished)
            refuse_other_world(self._run_dir, found, topology)
            attempt = int(found["attempt"])
            self._ranks[topology.role, attempt][str(topology.rank)] = new_entry(
                topology, attempt, "running", started=time.time()
            )
            manifest = self._recent_manifest()
            return Registration(
                run_id=manifest["run_id"],
                attempt=attempt,
                created=manifest["created"],
                nonce=manifest.get("nonce", ""),
            )

    def _choose(self, manifest: Manifest, topology: Topology) -> Manifest | None:
        attempts = self._attempts(manifest, topology.role)
        return choose_attempt(attempts, topology, now=self._now(topology))

    def _attempts(self, manifest: Manifest, role: str) -> list[Manifest]:
        return self._with_ranks([entry for entry in manifest["attempts"] if entry["role"] == role])

    def _begin(self, topology: Topology, *, refuse_finished: bool) -> Manifest:
        found: Manifest | None = None

        def is_there(manifest: Manifest) -> bool:
            nonlocal found
            found = self._choose(manifest, topology)
            return found is not None

        def begin(manifest: Manifest) -> None:
            nonlocal found
            refuse_taken(
                self._attempts(manifest, topology.role),
                topology,
                self._run_dir,
                refuse_finished=refuse_finished,
                now=self._now(topology),
            )
            started = file_system_time(self._run_dir.base)
            found = begin_attempt(manifest, topology, self._first_attempt, started=started)

        self._keep(self._run_dir.update_manifest(begin, is_done=is_there))
        assert found is not None  # chosen or begun
        return self._with_ranks([found])[0]

    def _now(self, topology: Topology) -> float:
        return 0.0 if topology.is_incarnation_unique else file_system_time(self._run_dir.base)

    def _with_ranks(self, entries: list[Manifest]) -> list[Manifest]:
        """Entries of attempts with their ranks; those of an attempt are read from their files once."""
        for entry in entries:
            key = entry["role"], entry["attempt"]
            if key not in self._ranks:
                self._ranks[key] = ranks_of(self._run_dir, entry)
        return [entry | {"ranks": self._ranks[entry["role"], entry["attempt"]]} for entry in entries]

    def _look_again(self, entry: Manifest) -> Manifest:
        """The entry of an attempt with its ranks; those that told no end to this process tell it by file.

        A rank that could not reach the aggregator registers and leaves by its file alone.
        """
        [entry] = self._with_ranks([entry])
        known = entry["ranks"]
        asked = self._run_dir.rank_dirs(entry["role"]) if entry["world_size"] > 1 else (0,)
        left = [rank for rank in asked if known.get(str(rank), {}).get("state") not in ENDED]
        known |= ranks_of(self._run_dir, entry, left)
        return entry

    def _recent_manifest(self) -> Manifest:
        if self._manifest is None or time.monotonic() - self._manifest[0] > FRESH_S:
            return self._keep(self._run_dir.read_manifest())
        return self._manifest[1]

    def _keep(self, manifest: Manifest) -> Manifest:
        self._manifest = time.monotonic(), manifest
        return manifest

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
            manifest = self._recent_manifest()
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
            manifest = self._recent_manifest()
            refuse_stale(manifest, topology.role, attempt)
            [entry] = self._with_ranks([find_attempt(manifest, topology.role, attempt)])
            state = end_of_rank(health)
            told = entry["ranks"].setdefault(
                str(topology.rank), new_entry(topology, attempt, state, started=time.time())
            )
            told |= {"state": state, "error": str(health.get("error", "")), "health": dict(health)}
            if state in ("failed", "interrupted"):
                note_state(self._run_dir, topology.role, attempt, state)
            if all(rank_state in ENDED for rank_state in rank_states(entry).values()):
                self._settle(
                    lambda other: (
                        (other["role"], other["attempt"]) == (topology.role, attempt) and is_complete(other)
                    )
                )

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Note that a rank evaluated its finished training; when the last rank reports this, merge again."""
        with self._changed, self._saving():
            self.renew()
            note_evaluation(self._run_dir, topology, attempt)
            entry = self._look_again(find_attempt(self._run_dir.read_manifest(), "train", attempt))
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

    def _open_attempts(self) -> list[Manifest]:
        """The newest attempt of each role, with its ranks, unless it is settled."""
        newest = newest_attempts(self._keep(self._run_dir.read_manifest()))
        return [entry for entry in map(self._look_again, newest) if is_open(entry)]

    def _is_awaited(self, entry: Manifest) -> bool:
        """Whether an open attempt has a rank that may still call, or can still be merged."""
        return not self._cannot_save or "running" in rank_states(entry).values()

    def _settle(self, wanted: Callable[[Manifest], bool]) -> None:
        """Merge the open attempts that `wanted` selects."""
        for entry in self._open_attempts():
            if wanted(entry):
                self._merge(entry)
        self.renew()

    def _merge(self, entry: Manifest) -> None:
        role, attempt, states = entry["role"], entry["attempt"], merged_states(entry)
        note_state(self._run_dir, role, attempt, end_of(states))
        if entry["world_size"] > 1:
            merge_run(self._run_dir)
        elif "running" not in states:
            return
        self._keep(
            self._run_dir.update_manifest(
                lambda manifest: find_attempt(manifest, role, attempt).update(merged=states, evaluated=[])
            )
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
                    if not any(map(self._is_awaited, self._open_attempts())):
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
