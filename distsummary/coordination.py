"""How ranks join and leave a run: the Coordinator, and the attempts in the run's manifest (a JSON file).

An attempt is one start of the job; a restart gets the next number. A rank asks the run's coordinator for its
attempt. Under Ray, this is the aggregator actor; otherwise a LocalCoordinator, which uses only files.

`run.json` tells of the run alone. Each rank tells of itself in a file of its own (see `rank_manifest`), so
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
- Nobody writes into another rank's file. A dead rank therefore stays `running` there and in run.json, and
  readers conclude that it is lost (see `states`); what a launcher learns of a death, it adds to run.json.
"""

import logging
import os
import platform
import random
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import gcd
from typing import Any, Protocol

from distsummary.deal import BEAT_S, Deal, Heartbeat
from distsummary.errors import RunDirError, StaleAttemptError, WorldMismatchError
from distsummary.publish import file_system_time
from distsummary.rank_manifest import SILENT_S, RankManifest, Told, entries_of, ranks_of, read_ranks
from distsummary.run_dir import Manifest, RunDir
from distsummary.topology import Topology, is_alive, own_process

logger = logging.getLogger(__name__)

PROTOCOL = 1  # of the calls between ranks and aggregator; raise it when they change
SHARED_S = 8.0  # how long a network file system may take to show the run.json of another node
SHARED_POLL_S = 0.5
JOIN_WINDOW_S = 60.0  # how much later than the first rank of a start another rank may join it
LOOKED_AT = 16  # other ranks that a rank looks at before it joins
FAR_S = BEAT_S + 3.0  # how long a heartbeat of another job on another machine is awaited
FAR_POLL_S = 0.5
CLAIMS = 3  # a rank that another process takes at the same moment chooses its attempt again

TRAINED = ("finished", "incomplete")  # states of a rank whose training ended by itself
ENDED = (*TRAINED, "failed", "interrupted")
_STOPPED = ("failed", "interrupted")  # states of a rank whose training an exception ended; the worse first
_STATE_KEYS = {
    "failed": "failed",
    "interrupted": "interrupted",
    "incomplete": "missing",
}  # in a rank's health
_PROCESS = ("pid", "pid_space", "pid_start")  # the fields of a Topology that identify a process
_FIRST = ("rank", "host", *_PROCESS, "session", "source")  # what run.json tells of the rank that came first
_STRONGER = {  # state of a run -> the states that it does not replace
    "failed": ("failed",),
    "interrupted": ("failed", "interrupted"),
    "finished": ("failed", "interrupted", "finished"),
    "lost": ("failed", "interrupted", "finished", "lost"),
}
Liveness = Callable[[Mapping[str, Any]], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a rank learns when it joins a run: `run_id` is 16 hex digits, `attempt` counts from 0.

    `created` is when the run was created, in seconds since the epoch; 0: unknown. `nonce` is that of the
    manifest on the host where the rank was registered, so that the rank can tell whether it sees the same.
    `protocol` is that of the aggregator.
    """

    run_id: str
    attempt: int
    created: float = 0.0
    nonce: str = ""
    host: str = field(default_factory=platform.node)
    protocol: int = field(default_factory=lambda: PROTOCOL)


class Listener(Protocol):
    """Hears, while the ranks train, what a collector has written; can be pickled."""

    def tell(self, digest: Any) -> None:
        """Hear a `Digest`. Never waits and never raises: what is not heard is in the files."""

    def settle(self, timeout_s: float) -> None:
        """Wait until what was told has arrived, at most `timeout_s` seconds; never raises."""


class Coordinator(Protocol):
    """How a rank joins and leaves its run: a LocalCoordinator or a client of the aggregator actor."""

    def register(self, topology: Topology, *, refuse_finished: bool = False) -> Registration:
        """Join the run; all ranks of one start of the job get the same attempt.

        Raises RunDirError if another job records the run, or if the run is finished and `refuse_finished` is
        set.
        """

    def beat(self, topology: Topology, attempt: int, heartbeat: Heartbeat) -> Deal | None:
        """Tell that this rank lives and how far it is; returns the deal that holds, None if there is none."""

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Leave the run after everything is written; the last rank's call may start merging the files."""

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Report that an evaluation was added to the files of a training's attempt, without a new attempt."""

    def listener(self) -> Listener | None:
        """Who hears what collectors have written; None: nobody, the files are read instead."""


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
        self._first_attempt = first_attempt

    def register(self, topology: Topology, *, refuse_finished: bool = False) -> Registration:
        """Join or start an attempt; raises WorldMismatchError when its ranks disagree on the world size."""
        for left in reversed(range(CLAIMS)):
            registration = self._join(topology, refuse_finished=refuse_finished)
            try:
                self.enter(topology, registration.attempt)
            except _RankTakenError:
                if not left:
                    raise
            else:
                break
        return registration

    def _join(self, topology: Topology, *, refuse_finished: bool) -> Registration:
        found: Manifest | None = None

        def is_there(manifest: Manifest) -> bool:
            nonlocal found
            seen = attempts_seen(self.run_dir, manifest, topology)
            found = choose_attempt(seen, topology, now=_now(self.run_dir, topology))
            if found is not None:
                refuse_other_world(self.run_dir, found, topology)
            return found is not None

        def begin(manifest: Manifest) -> None:
            nonlocal found
            refuse_reuse_of(self.run_dir, manifest, topology, refuse_finished=refuse_finished)
            found = begin_attempt(
                manifest, topology, self._first_attempt, started=file_system_time(self.run_dir.base)
            )

        manifest = self.run_dir.update_manifest(begin, is_done=is_there)
        assert found is not None  # chosen or begun
        return Registration(
            run_id=manifest["run_id"],
            attempt=int(found["attempt"]),
            created=manifest["created"],
            nonce=manifest.get("nonce", ""),
        )

    def enter(self, topology: Topology, attempt: int) -> None:
        """Enter this process as a rank of an attempt in the rank's own file.

        Raises RunDirError if the file cannot be written, or names another process as the rank.
        """

        def check(told: Told) -> None:
            known = told.entry(attempt)
            if known is not None and known.get("session") != topology.session:
                raise _RankTakenError(_claimed_twice(self.run_dir, known, topology, attempt))

        RankManifest(self.run_dir, topology).claim(attempt, check)

    def beat(self, topology: Topology, attempt: int, heartbeat: Heartbeat) -> Deal | None:
        """Write the heartbeat into the rank's file; returns the deal that an aggregator wrote to run.json.

        Writes nothing once the job was started again. Raises StaleAttemptError if the run dir was replaced.
        """
        manifest = self.run_dir.read_manifest()
        entry = find_attempt(manifest, topology.role, attempt)
        if is_superseded(manifest, entry):
            return None
        RankManifest(self.run_dir, topology).beat(attempt, heartbeat)
        deal = entry.get("deal")
        return None if deal is None else Deal.from_json(deal)

    def leave(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> Manifest:
        """Write the rank's end into its file; returns the manifest's entry of the attempt.

        `health` may have, beside the rank's counters, `failed` or `interrupted` with `error` (what the
        training raised), and `missing` (why events are missing from the files).

        Raises InvalidValueError if the rank never joined the attempt, StaleAttemptError if the job was
        started again, RunDirError if the file cannot be written.
        """
        manifest = self.run_dir.read_manifest()
        refuse_stale(manifest, topology.role, attempt)
        entry = find_attempt(manifest, topology.role, attempt)
        RankManifest(self.run_dir, topology).leave(
            attempt, end_of_rank(health), error=str(health.get("error", "")), health=health
        )
        return entry

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Write the rank's end into its file, and the run's into the manifest if this rank decides it."""
        self._finish(topology, attempt, health)

    def _finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> bool:
        """See `finish`; returns whether no other rank is left."""
        entry = self.leave(topology, attempt, health)
        state = end_of_rank(health)
        others = states_of_all_that_left(self.run_dir, entry, topology.rank)
        if others is not None or state in _STOPPED:
            note_state(self.run_dir, topology.role, attempt, end_of({state, *(others or ())}))
        return others is not None

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Note that the merged run, if there is one, does not contain this evaluation; rank 0 logs it."""
        if note_evaluation(self.run_dir, topology, attempt) and topology.rank == 0:
            logger.warning(
                "the evaluation is not in the merged run yet; after the evaluation: distsummary merge %s",
                shlex.quote(str(self.run_dir.base)),
            )

    def listener(self) -> None:
        """Nobody listens."""


class _RankTakenError(RunDirError):
    """Internal: another process entered as the same rank of the same attempt first."""


def refuse_other_version(run_dir: RunDir, registration: Registration) -> None:
    """Raise RunDirError if the aggregator that registered the rank is of a version with other calls."""
    found = getattr(registration, "protocol", 0)  # an older version has no such field
    if found != PROTOCOL:
        raise RunDirError(
            f"the aggregator of {run_dir.base}, on {registration.host}, has another version of distsummary "
            f"than {platform.node()}: its protocol is {found}, here {PROTOCOL}; install one version on all "
            "nodes. If no training runs there, end that process, ray::_AggregatorActor"
        )


def refuse_unshared(run_dir: RunDir, registration: Registration) -> None:
    """Raise RunDirError if this host sees another run dir than the host that registered the rank.

    Waits up to SHARED_S for a network file system that shows changes late.
    """
    deadline = time.monotonic() + SHARED_S
    while registration.nonce and (own := run_dir.read_manifest().get("nonce")) != registration.nonce:
        if time.monotonic() > deadline:
            other = "another run.json" if own else "no run.json"
            raise RunDirError(
                f"the run dir {run_dir.base} is not shared: on {platform.node()} it holds {other}, although "
                f"the run was registered there on {registration.host}; name a directory on a disk that all "
                "nodes share (NFS, Lustre, ...), under the same path on each"
            )
        time.sleep(SHARED_POLL_S)
        with suppress(OSError):
            os.listdir(run_dir.base)  # NFS looks for new files when a directory is opened


def note_evaluation(run_dir: RunDir, topology: Topology, attempt: int) -> bool:
    """Note an evaluation in the manifest; returns whether a merge is needed to show it: of several ranks."""
    needs_merge = False

    def note(manifest: Manifest) -> None:
        nonlocal needs_merge
        entry = find_attempt(manifest, "train", attempt)
        needs_merge = entry["world_size"] > 1
        if needs_merge:
            entry["evaluated"] = sorted({*entry.get("evaluated", []), topology.rank})

    run_dir.update_manifest(note)
    return needs_merge


def note_death(run_dir: RunDir, role: str, attempt: int, rank: int, reason: str) -> None:
    """Note why a rank died; see `note_deaths`."""
    note_deaths(run_dir, role, attempt, {rank: reason})


def note_deaths(
    run_dir: RunDir, role: str, attempt: int, deaths: Mapping[int, str], *, state: str = "lost"
) -> None:
    """Note why ranks died without telling it themselves, such as "killed by signal 9 (SIGKILL)".

    For launchers and others that see it. The first reason is kept. Of a rank that told its end, its own word
    holds. Raises StaleAttemptError for an unknown attempt, and as `update_manifest`.

    Args:
        deaths: rank -> reason.
        state: how readers name these ranks: "lost", or "interrupted" if they were asked to end.
    """
    died: dict[str, Any] = {"time": file_system_time(run_dir.base)}
    if state != "lost":
        died["state"] = state

    def noted(manifest: Manifest) -> dict[str, Manifest]:
        found: dict[str, Manifest] = find_attempt(manifest, role, attempt).setdefault("deaths", {})
        return found

    run_dir.update_manifest(
        lambda manifest: noted(manifest).update(
            {str(rank): {"reason": reason, **died} for rank, reason in deaths.items()} | noted(manifest)
        ),
        is_done=lambda manifest: all(str(rank) in noted(manifest) for rank in deaths),
    )


def attempts_seen(run_dir: RunDir, manifest: Manifest, topology: Topology) -> list[Manifest]:
    """The attempts of a rank's role, each with its `ranks` as far as this rank looks at them.

    These are the rank itself and, where that does not tell its attempt, ranks spread over the newest attempt
    and over the newest of the same start.
    """
    attempts = [entry | {"ranks": {}} for entry in manifest["attempts"] if entry["role"] == topology.role]
    told = {
        is_alone: read_ranks(run_dir, topology.role, 1 if is_alone else 2, [topology.rank])
        for is_alone in {entry["world_size"] == 1 for entry in attempts}
    }
    for entry in attempts:
        entry["ranks"] = entries_of(entry, told[entry["world_size"] == 1])
    same_start = [entry for entry in attempts if entry["incarnation"] == topology.incarnation]
    own = str(topology.rank)
    if topology.is_incarnation_unique and any(own not in entry["ranks"] for entry in same_start):
        return attempts
    looked_at = {entry["attempt"]: entry for entry in (*attempts[-1:], *same_start[-1:])}
    for entry in looked_at.values():
        entry["ranks"] |= ranks_of(run_dir, entry, spread(entry["world_size"]))
        first = entry.get("first")
        if first:  # it enters itself in its own file a moment later
            entry["ranks"].setdefault(str(first["rank"]), first | {"state": "running"})
    return attempts


def spread(number: int) -> range:
    """At most LOOKED_AT indices of `number` things, spread over them."""
    return range(0, number, max(1, -(-number // LOOKED_AT)))


def _now(run_dir: RunDir, topology: Topology) -> float:
    """The file system's time where `choose_attempt` may need it."""
    return 0.0 if topology.is_incarnation_unique else file_system_time(run_dir.base)


def refuse_other_world(run_dir: RunDir, entry: Manifest, topology: Topology) -> None:
    """Raise WorldMismatchError if the ranks of the attempt said another world size."""
    if entry["world_size"] != topology.world_size:
        known = entry["ranks"] | ranks_of(run_dir, entry, spread(entry["world_size"]))
        others = ", ".join(sorted(known, key=int)) or str(entry.get("first", {}).get("rank", "?"))
        raise WorldMismatchError(
            f"rank {topology.rank} says world_size {topology.world_size} (by {topology.source}), "
            f"but rank(s) {others} said {entry['world_size']}; start all ranks with one world size"
        )


def states_of_all_that_left(run_dir: RunDir, entry: Manifest, own: int) -> set[str] | None:
    """The states of the other ranks of an attempt if this rank is the last that left it, else None.

    Ranks that never registered are awaited for JOIN_WINDOW_S after the attempt began.
    """
    own_end = ranks_of(run_dir, entry, [own]).get(str(own), {}).get("shown_ns", 0)
    world_size = entry["world_size"]
    strides = [number for number in range(1, world_size + 1) if gcd(number, world_size) == 1]
    # not the training's generator, which all ranks may have seeded alike
    stride = random.SystemRandom().choice(strides)
    others = [(own + stride * number) % world_size for number in range(1, world_size)]  # each one, once
    states: set[str] = set()
    is_awaited: bool | None = None
    at, size = 0, 1
    while at < len(others):
        asked = others[at : at + size]
        at, size = at + size, max(1, at)  # the more have left, the more are asked at once
        found = ranks_of(run_dir, entry, asked)
        states |= {known["state"] for known in found.values()}
        if "running" in states or any(known["shown_ns"] > own_end for known in found.values()):
            return None
        if len(found) < len(asked) and is_awaited is None:
            is_awaited = file_system_time(run_dir.base) - entry.get("started", 0.0) < JOIN_WINDOW_S
        if len(found) < len(asked) and is_awaited:
            return None
    return states


def note_state(run_dir: RunDir, role: str, attempt: int, state: str) -> None:
    """Set the state of the run, if the attempt decides it and no stronger state is set."""

    def is_done(manifest: Manifest) -> bool:
        entry = find_attempt(manifest, role, attempt)
        return not decides(manifest, entry) or manifest["state"] in _STRONGER[state]

    run_dir.update_manifest(lambda manifest: manifest.update(state=state), is_done=is_done)


def refuse_reuse(run_dir: RunDir, topology: Topology, *, refuse_finished: bool) -> None:
    """See `refuse_taken`; for a rank that has not joined the run. Also sees jobs on other machines.

    Whether a process on another machine lives, cannot be asked. If one was heard lately, this waits FAR_S for
    its next heartbeat.
    """
    manifest = run_dir.read_manifest()
    refuse_reuse_of(run_dir, manifest, topology, refuse_finished=refuse_finished)
    attempts = attempts_seen(run_dir, manifest, topology) if topology.role == "train" else []
    if not attempts or choose_attempt(attempts, topology, now=_now(run_dir, topology)):
        return
    newest = max(attempts, key=lambda entry: int(entry["attempt"]))
    if job_of(newest["incarnation"]) == job_of(topology.incarnation):
        return
    now = file_system_time(run_dir.base)
    far = {
        rank: known
        for rank, known in newest["ranks"].items()
        if known["state"] == "running"
        and is_alive(known) is None
        and now - known.get("heard", 0.0) < SILENT_S
        if not known.get("source") == topology.source == "ray.train"
    }
    until = time.monotonic() + FAR_S
    while far and time.monotonic() < until:
        time.sleep(FAR_POLL_S)
        for rank, known in ranks_of(run_dir, newest, [int(rank) for rank in far]).items():
            if known["state"] == "running" and known["heard"] > far[rank].get("heard", 0.0):
                raise RunDirError(_in_use(run_dir, rank, known, topology, newest["attempt"]))


def refuse_reuse_of(
    run_dir: RunDir, manifest: Manifest, topology: Topology, *, refuse_finished: bool
) -> None:
    """See `refuse_taken`; the run has this manifest."""
    attempts = attempts_seen(run_dir, manifest, topology)
    newest = max(attempts, key=lambda entry: int(entry["attempt"]), default=None)
    is_finished = False
    if refuse_finished and newest is not None:
        states = {known["state"] for known in newest["ranks"].values()}
        is_finished = manifest["state"] == "finished"
        if not is_finished and states & {*TRAINED}:  # the manifest may not say so yet
            newest["ranks"] = ranks_of(run_dir, newest)
    refuse_taken(
        attempts, topology, run_dir, refuse_finished=refuse_finished, now=_now(run_dir, topology),
        is_finished=is_finished,
    )  # fmt: skip


def refuse_taken(
    attempts: list[Manifest],
    topology: Topology,
    run_dir: RunDir,
    *,
    refuse_finished: bool,
    now: float,
    is_finished: bool = False,
    alive: Liveness = is_alive,
) -> None:
    """Raise RunDirError if another job records the run, or if the run is finished and `refuse_finished` set.

    Only the role train is checked. All ranks of a job, its restarts by the launcher, and other trainings in
    the same process count as one job. A rank of one start that another living process is already is refused.

    Args:
        attempts: those of the rank's role, with their ranks (see `attempts_seen`).
        now: seconds since the epoch.
        is_finished: whether the manifest says that the run is finished.
    """
    if topology.role != "train" or not attempts or choose_attempt(attempts, topology, now=now, alive=alive):
        return
    newest = max(attempts, key=lambda entry: int(entry["attempt"]))
    own, number = str(topology.rank), newest["attempt"]
    is_same_start = bool(topology.incarnation) and newest["incarnation"] == topology.incarnation
    unfinished = 0
    for rank, known in newest["ranks"].items():
        is_running = known["state"] == "running" and bool(alive(known))
        is_slower_peer = is_same_start and is_running and rank != own
        unfinished += known["state"] not in TRAINED and not is_slower_peer
        same_process = all(known.get(key) == getattr(topology, key) for key in _PROCESS)
        same_job = job_of(newest["incarnation"]) == job_of(topology.incarnation)
        is_peer = same_job and (rank != own or not is_same_start)
        # Ray Train replaces failed workers under a new incarnation, while the old ones may still be ending.
        is_replaced = known.get("source") == topology.source == "ray.train"
        if not is_running or same_process or is_peer or is_replaced:
            continue
        if is_same_start:
            raise RunDirError(_claimed_twice(run_dir, known, topology, number))
        raise RunDirError(_in_use(run_dir, rank, known, topology, number))
    is_finished |= not unfinished and len(newest["ranks"]) == newest["world_size"]
    if refuse_finished and is_finished:
        raise RunDirError(
            f"the run {run_dir.base} holds a finished training (attempt {number}), and this training starts "
            'from step 0; pass exists="new" to record it beside that run, exists="attempt" to show it in '
            "place of that training, or initial_step= if it resumes that training"
        )


def _in_use(run_dir: RunDir, rank: str, known: Mapping[str, Any], topology: Topology, attempt: int) -> str:
    return (
        f"the run {run_dir.base} is in use: rank {rank} of attempt {attempt} runs as process {known['pid']} "
        f"on {known['host']}, and another job starts rank {topology.rank} as process {topology.pid} on "
        f"{topology.host}; wait for its end, or name another directory; to evaluate beside a training use "
        'ds.init(..., role="eval")'
    )


def _claimed_twice(run_dir: RunDir, known: Mapping[str, Any], topology: Topology, attempt: int) -> str:
    return (
        f"rank {topology.rank} of the run {run_dir.base} is claimed twice: by process {known['pid']} on "
        f"{known['host']}, which joined attempt {attempt} first, and by process {topology.pid} on "
        f"{topology.host} (by {topology.source}); give each process a rank of its own, or end the one that "
        "should not run"
    )


def job_of(incarnation: str) -> str:
    """The part of an incarnation that stays the same when the launcher restarts the job."""
    return incarnation.partition("+")[0]


def next_run_dir(run_dir: RunDir, topology: Topology) -> RunDir:
    """The first of `run_dir` and its siblings (`-2`, `-3` ... appended) in which all ranks may train."""
    job, number, found = job_of(topology.incarnation), 1, run_dir
    is_free = False

    def is_decided(manifest: Manifest) -> bool:
        nonlocal is_free
        try:
            refuse_reuse_of(found, manifest, topology, refuse_finished=True)
        except RunDirError:
            is_free = False
            return True
        has_trained = newest_attempt(manifest, topology.role) is not None
        is_free = has_trained or manifest.get("claimed_by") == job
        return has_trained or "claimed_by" in manifest

    def claim(manifest: Manifest) -> None:
        nonlocal is_free
        manifest["claimed_by"], is_free = job, True

    while True:
        found.update_manifest(claim, is_done=is_decided)
        if is_free:
            return found
        number += 1
        found = RunDir(f"{run_dir.base}-{number}").create()


def begin_attempt(
    manifest: Manifest,
    topology: Topology,
    first_attempt: Callable[[str], int] = lambda role: 0,
    *,
    started: float,
) -> Manifest:
    """Add a new attempt, which this rank begins, to the manifest; returns its entry, with no ranks yet.

    `started`: seconds since the epoch, by the file system's clock.
    """
    numbers = [entry["attempt"] for entry in manifest["attempts"] if entry["role"] == topology.role]
    entry = {
        "role": topology.role,
        "attempt": 1 + max(numbers) if numbers else first_attempt(topology.role),
        "incarnation": topology.incarnation,
        "world_size": topology.world_size,
        "started": started,
        "first": {name: getattr(topology, name) for name in _FIRST},
    }
    manifest["attempts"].append(entry)
    if decides(manifest, entry):
        manifest["state"] = "running"
    return entry


def choose_attempt(
    attempts: list[Manifest], topology: Topology, *, now: float, alive: Liveness = is_alive
) -> Manifest | None:
    """The attempt that a rank belongs to, or None if it needs a new one.

    The attempt may have another world size: then the ranks disagree, and the caller raises. An incarnation is
    the launcher's name for a start of the job. If it may be reused (an address and port) or is empty, only
    the newest attempt is a candidate. The rank does not join it if it already has this rank, if the process
    of one of its running ranks has died, or if all its ranks have left and one of them failed. Once all have
    left, a further rank may join only within JOIN_WINDOW_S of the attempt's start.

    Args:
        attempts: the attempts of the rank's role, in the order of their numbers, with their ranks.
        now: seconds since the epoch.
        alive: returns whether a rank's process still runs, None if that cannot be known.
    """
    rank = str(topology.rank)
    for entry in reversed(attempts):
        # A rank that registers twice gets the same attempt, but only within one session: two trainings in one
        # process must not share an attempt, because (attempt, rank, seq) identifies an event.
        known = entry["ranks"].get(rank)
        if known and known["state"] == "running" and known.get("session") == topology.session:
            return entry
    same_start = [entry for entry in attempts if entry["incarnation"] == topology.incarnation]
    if topology.is_incarnation_unique:
        # The oldest attempt without this rank: a faster rank may have started its next training already.
        return next((entry for entry in same_start if rank not in entry["ranks"]), None)
    if not topology.incarnation:
        same_start = [entry for entry in same_start if entry["world_size"] == topology.world_size]
    if not same_start or rank in same_start[-1]["ranks"]:
        return None
    newest = same_start[-1]
    known_ranks = [*newest["ranks"].values()]
    others = [known_ranks[index] for index in spread(len(known_ranks))]
    running = [alive(other) for other in others if other["state"] == "running"]
    if newest["world_size"] != topology.world_size:
        may_join = True in running and False not in running  # otherwise these are two jobs
    elif running:
        may_join = False not in running
    else:
        have_finished = all(other["state"] in TRAINED for other in others)
        may_join = have_finished and now - newest.get("started", 0.0) < JOIN_WINDOW_S
    return newest if may_join else None


def end_of_rank(health: Mapping[str, int | str]) -> str:
    """How a rank ended, by its health: failed, interrupted, incomplete or finished."""
    told = (state for state, key in _STATE_KEYS.items() if health.get(key))
    return next(told, "finished")


def end_of(states: Collection[str]) -> str:
    """How an attempt ended whose ranks have these states; one that still runs is taken for lost."""
    found = next((state for state in _STOPPED if state in states), "finished")
    return "lost" if found == "finished" and "running" in states else found


def decides(manifest: Manifest, entry: Manifest) -> bool:
    """Whether the attempt decides the run's state: the newest training or, without any, evaluation."""
    return entry is (newest_attempt(manifest) or newest_attempt(manifest, "eval"))


def find_attempt(manifest: Manifest, role: str, attempt: int) -> Manifest:
    """The manifest's entry of an attempt; raises StaleAttemptError if it has none."""
    attempts: list[Manifest] = manifest["attempts"]
    for entry in attempts:
        if entry["role"] == role and entry["attempt"] == attempt:
            return entry
    raise StaleAttemptError(
        f"attempt {attempt} of role {role} is not in the manifest; the run dir has been replaced"
    )


def newest_attempt(manifest: Manifest, role: str = "train") -> Manifest | None:
    """The latest attempt of a role; None if there is none."""
    attempts: Iterator[Manifest] = (entry for entry in manifest["attempts"] if entry["role"] == role)
    return max(attempts, key=lambda entry: int(entry["attempt"]), default=None)


def refuse_stale(manifest: Manifest, role: str, attempt: int) -> None:
    """Raise StaleAttemptError if the role has been started again since this attempt."""
    newest = newest_attempt(manifest, role)
    if newest is None or attempt >= newest["attempt"]:
        return
    if is_superseded(manifest, find_attempt(manifest, role, attempt)):
        raise StaleAttemptError(
            f"attempt {attempt} of role {role} was superseded by attempt {newest['attempt']}; "
            "its messages are refused: end its processes"
        )


def is_superseded(manifest: Manifest, entry: Manifest) -> bool:
    """Whether the job was started again since this attempt.

    A newer attempt of the same incarnation is not a restart: a faster rank has begun its next training.
    """
    newest = newest_attempt(manifest, entry["role"]) or entry
    return bool(newest["attempt"] > entry["attempt"] and newest["incarnation"] != entry["incarnation"])


def rank_states(entry: Manifest) -> dict[str, str]:
    """Rank -> the state that it told, of an attempt with its ranks (see `with_ranks`).

    running; finished; incomplete: it finished, but events are missing from its files (a full disk; the reason
    is `missing` in its health); failed: its training raised; interrupted: Ctrl-C,
    a handler of a signal or sys.exit() ended it; unknown. See `states` for ranks that died.
    """
    return {rank: known["state"] for rank, known in entry["ranks"].items()}


def with_ranks(run_dir: RunDir, entry: Manifest) -> Manifest:
    """The manifest's entry of an attempt, and in `ranks` what each of its ranks tells in its own file."""
    return entry | {"ranks": ranks_of(run_dir, entry)}


def is_complete(entry: Manifest) -> bool:
    """Whether every rank of the attempt (with its ranks) has joined and then told its end."""
    states = rank_states(entry).values()
    return len(states) == entry["world_size"] and all(state in ENDED for state in states)


def note_aggregator(run_dir: RunDir) -> None:
    """Note in the manifest that this process is the run's aggregator; raises as `update_manifest`."""
    place = own_process() | {"host": platform.node()}
    run_dir.update_manifest(lambda manifest: manifest.update(aggregator=place))


def awaited_aggregator(run_dir: RunDir) -> Manifest | None:
    """The place of another process that lives and will merge the run; None if there is none.

    Also None if that process is on another host: whether it lives cannot be known there.
    """
    manifest = run_dir.read_manifest()
    place: Manifest = manifest.get("aggregator", {})
    is_own = all(place.get(key) == value for key, value in own_process().items())
    is_living = bool(place) and not is_own and is_alive(place)
    return place if is_living and open_attempts(run_dir, manifest) else None


def open_attempts(run_dir: RunDir, manifest: Manifest) -> list[Manifest]:
    """The newest attempt of each role, with its ranks, unless it is settled (see `is_open`)."""
    return [
        entry
        for entry in (with_ranks(run_dir, found) for found in newest_attempts(manifest))
        if is_open(entry)
    ]


def newest_attempts(manifest: Manifest) -> list[Manifest]:
    """The newest attempt of each role."""
    roles = sorted({entry["role"] for entry in manifest["attempts"]})
    return [entry for role in roles if (entry := newest_attempt(manifest, role))]


def is_open(entry: Manifest) -> bool:
    """Whether an attempt, with its ranks, is not settled yet.

    It is settled when it was merged with the states that its ranks have now, and with all later evaluations.
    An attempt of one rank needs no merge, but its rank must not run.
    """
    if entry.get("merged") == merged_states(entry):
        return bool(entry.get("evaluated"))
    return entry["world_size"] > 1 or "running" in rank_states(entry).values()


def merged_states(entry: Manifest) -> dict[str, int]:
    """State -> how many ranks have it, of an attempt with its ranks; kept in run.json as `merged`."""
    return dict(sorted(Counter(rank_states(entry).values()).items()))
