"""How ranks join and leave a run: the Coordinator, and the attempts in the run's manifest (a JSON file).

An attempt is one start of the job; a restart gets the next number. A rank asks the run's coordinator for its
attempt. Under Ray, this is the aggregator actor; otherwise a LocalCoordinator, which uses only files.

`run.json` describes the run alone. Each rank describes itself in a file of its own (see `rank_manifest`), so
that thousands of ranks do not wait for one lock:

- The first rank of a start enters the attempt in run.json under the run's lock. The others find it there
  without the lock, and write their own file.
- Whether another rank runs is asked of at most LOOKED_AT ranks, spread over the world: of a job that is over,
  all are gone, and of one that lives, none.
- A rank that leaves writes its own file. A rank that failed or was interrupted also sets the state of the run
  in run.json, unless it says so already. Any rank then looks at the others in random order, and stops at the
  first that still runs or whose end was shown after its own: that one looks too, and sees this end. Only the
  last to be shown finds neither, and sets the state of the run. N ranks look at about N log N files in all,
  whether they leave one after the other or at once. With an aggregator, it counts in memory instead.
- No one writes into another rank's file. A dead rank therefore stays `running` there and in run.json, and
  readers conclude that it is lost (see `states`); what a launcher learns of a death, it adds to run.json.
"""

import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import gcd
from typing import Protocol

from distsummary.base.columns import quoted
from distsummary.base.guard import guarded_log
from distsummary.base.publish import file_system_time
from distsummary.errors import RunDirError
from distsummary.rundir.admission import claimed_twice, refuse_other_world, refuse_taken_run
from distsummary.rundir.attempts import (
    STOPPED,
    Registration,
    attempts_seen,
    begin_attempt,
    choose_attempt,
    end_of,
    end_of_rank,
    find_attempt,
    is_superseded,
    note_evaluation,
    note_fields,
    note_state,
    now_for,
    refuse_stale,
)
from distsummary.rundir.deal import Deal, Heartbeat, deals_in
from distsummary.rundir.rank_manifest import RankEntries, RankManifest, ranks_of
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.timeouts import JOIN_WINDOW_S
from distsummary.rundir.topology import LISTED, Topology

logger = guarded_log(__name__)
CLAIMS = 3  # a rank that another process takes at the same moment chooses its attempt again


class Coordinator(Protocol):
    """How a rank joins and leaves its run: a LocalCoordinator or a client of the aggregator actor."""

    def register(self, topology: Topology) -> Registration:
        """Join the run; all ranks of one start of the job get the same attempt.

        Raises RunDirError if another job records the run.
        """

    def beat(self, topology: Topology, attempt: int, heartbeat: Heartbeat) -> tuple[Deal, ...]:
        """Report that this rank lives and how far it is; returns the deals of the attempt so far."""

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Leave the run after everything is written; the last rank's call may start merging the files."""

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Report that an evaluation was added to the files of a training's attempt, without a new attempt."""

    def note(self, topology: Topology, attempt: int, fields: Mapping[str, object]) -> None:
        """Put what a rank says of its attempt into run.json; raises StaleAttemptError or RunDirError."""


class LocalCoordinator:
    """A Coordinator without an aggregator: it uses the run's manifest, and the file of the rank itself.

    Args:
        run_dir: the run.
        first_attempt: called with a role ("train" or "eval") that has no attempt in the manifest; returns the
            number of the role's first attempt: above 0 if the event files hold attempts that are not in the
            manifest.
    """

    def __init__(self, run_dir: RunDir, first_attempt: Callable[[str], int] = lambda role: 0) -> None:
        self.run_dir = run_dir
        self.ahead_s = 0.0  # how much further the clock of the run's home is than that of this disk
        self._first_attempt = first_attempt

    def register(self, topology: Topology) -> Registration:
        """Join or start an attempt; raises WorldMismatchError when its ranks disagree on the world size."""
        for left in reversed(range(CLAIMS)):
            registration = self._join(topology)
            try:
                self.claim(topology, registration.attempt)
            except _RankTakenError:
                if not left:
                    raise
            else:
                break
        return registration

    def _join(self, topology: Topology) -> Registration:
        found: Manifest | None = None

        def is_there(manifest: Manifest) -> bool:
            nonlocal found
            seen = attempts_seen(self.run_dir, manifest, topology)
            found = choose_attempt(seen, topology, now=now_for(self.run_dir, topology))
            if found is not None:
                refuse_other_world(self.run_dir, found, topology)
            return found is not None

        def begin(manifest: Manifest) -> None:
            nonlocal found
            # Another job may have begun since this one was admitted.
            refuse_taken_run(self.run_dir, manifest, topology)
            found = begin_attempt(
                manifest, topology, self._first_attempt, started=file_system_time(self.run_dir.base)
            )

        manifest = self.run_dir.update_manifest(begin, is_done=is_there)
        # `is_there` has chosen an attempt, or `begin` has begun one.
        assert found is not None
        return Registration(
            run_id=manifest["run_id"],
            attempt=int(found["attempt"]),
            created=manifest["created"],
            nonce=manifest.get("nonce", ""),
            deals=deals_in(found),
        )

    def claim(self, topology: Topology, attempt: int) -> None:
        """Enter this process as a rank of an attempt in the rank's own file.

        Raises RunDirError if the file cannot be written, or names another process as the rank.
        """

        def check(record: RankEntries) -> None:
            known = record.entry(attempt)
            if known is not None and known.get("session") != topology.session:
                raise _RankTakenError(claimed_twice(self.run_dir, known, topology, attempt))

        RankManifest(self.run_dir, topology, self.ahead_s).claim(attempt, check)
        _list(self.run_dir)

    def beat(self, topology: Topology, attempt: int, heartbeat: Heartbeat) -> tuple[Deal, ...]:
        """Write the heartbeat into the rank's file; returns the deals that an aggregator wrote to run.json.

        Writes nothing once the job was started again. Raises StaleAttemptError if the run dir was replaced.
        """
        manifest = self.run_dir.read_manifest()
        # If run.json was removed, the heartbeat is written all the same, and rank 0 alone reports it.
        if not manifest["run_id"]:
            self.run_dir.refuse_missing()
            RankManifest(self.run_dir, topology, self.ahead_s).beat(attempt, heartbeat)
            if topology.rank == 0:
                self.run_dir.refuse_removed_manifest()
            return ()
        entry = find_attempt(manifest, topology.role, attempt)
        if is_superseded(manifest, entry):
            return ()
        RankManifest(self.run_dir, topology, self.ahead_s).beat(attempt, heartbeat)
        return deals_in(entry)

    def leave(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> Manifest:
        """Write the rank's end into its file; returns the manifest's entry of the attempt.

        `health` may have, in addition to the rank's counters, `failed` or `interrupted` with `error` (what
        the training raised), and `missing` (why events are missing from the files).

        Raises InvalidValueError if the rank never joined the attempt, StaleAttemptError if the job was
        started again, RunDirError if the file cannot be written.
        """
        manifest = self.run_dir.read_manifest()
        self.run_dir.refuse_missing()
        if manifest["run_id"]:
            refuse_stale(manifest, topology.role, attempt)
            find_attempt(manifest, topology.role, attempt)
        # The end of the rank is written first, as it counts even if run.json was removed.
        RankManifest(self.run_dir, topology, self.ahead_s).leave(
            attempt, end_of_rank(health), error=str(health.get("error", "")), health=health
        )
        self.run_dir.refuse_removed_manifest()
        return find_attempt(manifest, topology.role, attempt)

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Write the rank's end into its file, and the run's into the manifest if this rank decides it."""
        self._finish(topology, attempt, health)

    def _finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> bool:
        """See `finish`; returns whether no other rank is left."""
        entry = self.leave(topology, attempt, health)
        state = end_of_rank(health)
        others = states_of_all_that_left(self.run_dir, entry, topology.rank)
        # A failure shows in run.json at once, a good end only when all ranks have left.
        if others is not None or state in STOPPED:
            note_state(self.run_dir, topology.role, attempt, end_of({state, *(others or ())}))
        return others is not None

    def note(self, topology: Topology, attempt: int, fields: Mapping[str, object]) -> None:
        """See Coordinator."""
        note_fields(self.run_dir, (topology.role, attempt), fields)

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Note that the merged run, if there is one, does not contain this evaluation; rank 0 logs it."""
        if note_evaluation(self.run_dir, topology, attempt) and topology.rank == 0:
            logger.warning(
                "the evaluation is not in the merged run yet; after the evaluation: distsummary merge %s",
                quoted(self.run_dir.base),
            )


def _list(run_dir: RunDir) -> None:
    """Add a run to those that `distsummary run` has a process of its command record."""
    if path := os.environ.get(LISTED):
        # It is only for the last lines of that command.
        with suppress(OSError), open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{run_dir.base}\0")


class _RankTakenError(RunDirError):
    """Internal: another process entered as the same rank of the same attempt first."""


def states_of_all_that_left(run_dir: RunDir, entry: Manifest, own: int) -> set[str] | None:
    """The states of the other ranks of an attempt if this rank is the last that left it, else None.

    Ranks that never registered are awaited for JOIN_WINDOW_S after the attempt began.
    """
    own_end = ranks_of(run_dir, entry, [own]).get(str(own), {}).get("shown_ns", 0)
    world_size = entry["world_size"]
    # A stride that has no divisor in common with the world size leads to each rank once.
    strides = [number for number in range(1, world_size + 1) if gcd(number, world_size) == 1]
    # Not from the training's generator, which all ranks may have seeded alike.
    stride = random.SystemRandom().choice(strides)
    others = [(own + stride * number) % world_size for number in range(1, world_size)]
    states: set[str] = set()
    is_awaited: bool | None = None
    at, size = 0, 1
    while at < len(others):
        asked = others[at : at + size]
        # The more ranks have left, the more are asked at once.
        at, size = at + size, max(1, at)
        found = ranks_of(run_dir, entry, asked)
        states |= {known["state"] for known in found.values()}
        # A rank that runs, or whose end was shown after this one's, looks at the others itself.
        if "running" in states or any(known["shown_ns"] > own_end for known in found.values()):
            return None
        # Ranks that are missing may still register, soon after the attempt has begun.
        if len(found) < len(asked) and is_awaited is None:
            is_awaited = file_system_time(run_dir.base) - entry.get("started", 0.0) < JOIN_WINDOW_S
        if len(found) < len(asked) and is_awaited:
            return None
    return states
