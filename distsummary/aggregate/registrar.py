"""Registers the ranks of a run in memory, so that a thousand of them cost no file operations."""

import threading
import time
from collections.abc import Mapping
from functools import partial

from distsummary.base.publish import file_system_time
from distsummary.events.rank_stream import owner_of
from distsummary.events.segments import segments
from distsummary.format.records import DIALECTS
from distsummary.rundir.admission import refuse_other_world, refuse_taken
from distsummary.rundir.attempts import (
    ENDED,
    Registration,
    begin_attempt,
    choose_attempt,
    end_of_rank,
    find_attempt,
    note_state,
    rank_states,
    refuse_stale,
)
from distsummary.rundir.deal import deals_in
from distsummary.rundir.rank_manifest import new_entry, ranks_of
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.topology import Topology

FRESH_S = 1.0  # for so long run.json is not read again: others change it only rarely


class Registrar:
    """Gives the ranks that call their attempt, and counts those that leave.

    Each rank's own file, which its client writes, says the same. From these files a new Registrar learns
    what the last one knew. Any thread may call the methods.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._first_attempt = partial(first_free_attempt, run_dir)
        self._ranks: dict[tuple[str, int], dict[str, Manifest]] = {}  # role, attempt -> rank -> its entry
        self._manifest: tuple[float, Manifest] | None = None  # when it was read
        self._lock = threading.RLock()

    def register(self, topology: Topology) -> Registration:
        """Add a rank to its attempt, or to a new one; raises as `Coordinator.register`."""
        with self._lock:
            found = self._choose(self._recent_manifest(), topology)
            if found is None:
                found = self._begin(topology)
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
                deals=deals_in(found),
            )

    def leave(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> bool:
        """Note a rank's end; returns whether all ranks of the attempt have reported theirs.

        Raises StaleAttemptError if the job was started again.
        """
        with self._lock:
            manifest = self._recent_manifest()
            refuse_stale(manifest, topology.role, attempt)
            [entry] = self._with_ranks([find_attempt(manifest, topology.role, attempt)])
            state = end_of_rank(health)
            reported = entry["ranks"].setdefault(
                str(topology.rank), new_entry(topology, attempt, state, started=time.time())
            )
            reported |= {"state": state, "error": str(health.get("error", "")), "health": dict(health)}
            # A failure is noted at once, not only when the last rank has left.
            if state in ("failed", "interrupted"):
                note_state(self._run_dir, topology.role, attempt, state)
            states = rank_states(entry).values()
            return len(states) >= entry["world_size"] and all(one in ENDED for one in states)

    def _begin(self, topology: Topology) -> Manifest:
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
                now=self._now(topology),
            )
            started = file_system_time(self._run_dir.base)
            found = begin_attempt(manifest, topology, self._first_attempt, started=started)

        self._keep(self._run_dir.update_manifest(begin, is_done=is_there))
        # The attempt was chosen by `is_there` or begun by `begin`.
        assert found is not None
        return self._with_ranks([found])[0]

    def _choose(self, manifest: Manifest, topology: Topology) -> Manifest | None:
        attempts = self._attempts(manifest, topology.role)
        return choose_attempt(attempts, topology, now=self._now(topology))

    def _attempts(self, manifest: Manifest, role: str) -> list[Manifest]:
        return self._with_ranks([entry for entry in manifest["attempts"] if entry["role"] == role])

    def _with_ranks(self, entries: list[Manifest]) -> list[Manifest]:
        """Entries of attempts with their ranks; those of an attempt are read from their files once."""
        for entry in entries:
            key = entry["role"], entry["attempt"]
            if key not in self._ranks:
                self._ranks[key] = ranks_of(self._run_dir, entry)
        return [entry | {"ranks": self._ranks[entry["role"], entry["attempt"]]} for entry in entries]

    def _now(self, topology: Topology) -> float:
        # Unique incarnations are matched without the time, whose look-up is a file operation for each rank.
        return 0.0 if topology.is_incarnation_unique else file_system_time(self._run_dir.base)

    def _recent_manifest(self) -> Manifest:
        if self._manifest is None or time.monotonic() - self._manifest[0] > FRESH_S:
            return self._keep(self._run_dir.read_manifest())
        return self._manifest[1]

    def _keep(self, manifest: Manifest) -> Manifest:
        self._manifest = time.monotonic(), manifest
        return manifest


def first_free_attempt(run_dir: RunDir, role: str) -> int:
    """One more than the highest attempt in the event files of a role; 0 if there is none.

    Needed for a run whose manifest was removed. Files of other programs have no attempts.
    """
    newest = -1
    for directory in (run_dir.writer_dir(role, 0, 1), *run_dir.rank_dirs(role).values()):
        for dialect in DIALECTS if directory.is_dir() else ():
            owners = map(owner_of, segments(directory, dialect))
            newest = max([newest, *(owner[1] for owner in owners if owner is not None and owner[0])])
    return newest + 1
