"""How ranks join and leave a run: the Coordinator, and the attempts in the run's manifest (a JSON file).

An attempt is one start of the job; a restart gets the next number. A rank asks the run's coordinator for its
attempt. Under Ray, this is the aggregator actor; otherwise a LocalCoordinator, which uses only the manifest.
"""

import logging
import os
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from distsummary.deal import Deal, Heartbeat
from distsummary.errors import InvalidValueError, RunDirError, StaleAttemptError, WorldMismatchError
from distsummary.run_dir import Manifest, RunDir
from distsummary.topology import Topology, is_alive, own_process

logger = logging.getLogger(__name__)

SHARED_S = 8.0  # how long a network file system may take to show the run.json of another node
SHARED_POLL_S = 0.5
JOIN_WINDOW_S = 60.0  # how much later than the first rank of a start another rank may join it

TRAINED = ("finished", "incomplete")  # states of a rank whose training ended by itself
ENDED = (*TRAINED, "failed", "interrupted")
_STOPPED = ("failed", "interrupted")  # states of a rank whose training an exception ended; the worse first
_STATE_KEYS = {
    "failed": "failed",
    "interrupted": "interrupted",
    "incomplete": "missing",
}  # in a rank's health
_PROCESS = ("pid", "pid_space", "pid_start")  # the fields of a Topology that identify a process
Liveness = Callable[[Mapping[str, Any]], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a rank learns when it joins a run: `run_id` is 16 hex digits, `attempt` counts from 0.

    `created` is when the run was created, in seconds since the epoch; 0: unknown. `nonce` is that of the
    manifest on the host where the rank was registered, so that the rank can tell whether it sees the same.
    """

    run_id: str
    attempt: int
    created: float = 0.0
    nonce: str = ""
    host: str = field(default_factory=platform.node)


class Coordinator(Protocol):
    """How a rank joins and leaves its run: a LocalCoordinator or a client of the aggregator actor."""

    def register(self, topology: Topology, *, refuse_finished: bool = False) -> Registration:
        """Join the run; all ranks of one start of the job get the same attempt.

        Raises RunDirError if another job records the run, or if the run is finished and `refuse_finished` is
        set.
        """

    def beat(self, topology: Topology, attempt: int, heartbeat: Heartbeat) -> Deal | None:
        """Tell that this rank lives and how far it is; returns the deal that holds, None if there is none."""

    def lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        """Report this rank's lineage (`Lineage.to_bytes`); raises StaleAttemptError for an older attempt."""

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Leave the run after everything is written; the last rank's call may start merging the files."""

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Report that an evaluation was added to the files of a training's attempt, without a new attempt."""


class LocalCoordinator:
    """A Coordinator without an aggregator: it allocates attempts in the manifest, under the run dir's lock.

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
        answer: list[int] = []

        def join(manifest: Manifest) -> None:
            refuse_reuse(manifest, topology, self.run_dir, refuse_finished=refuse_finished)
            answer.append(join_attempt(manifest, topology, self._first_attempt))

        manifest = self.run_dir.update_manifest(join)
        return Registration(
            run_id=manifest["run_id"],
            attempt=answer[0],
            created=manifest["created"],
            nonce=manifest["nonce"],
        )

    def beat(self, topology: Topology, attempt: int, heartbeat: Heartbeat) -> Deal | None:
        """Return the deal of the attempt that an aggregator wrote to the manifest."""
        deal = find_attempt(self.run_dir.read_manifest(), topology.role, attempt).get("deal")
        return None if deal is None else Deal.from_json(deal)

    def lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        """Only check the attempt: the rank's own files hold the lineage."""
        refuse_stale(self.run_dir.read_manifest(), topology.role, attempt)

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Mark the rank finished in the manifest."""
        self.run_dir.update_manifest(lambda manifest: leave_attempt(manifest, topology, attempt, health))

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Note that the merged run, if there is one, does not contain this evaluation; rank 0 logs it."""
        if note_evaluation(self.run_dir, topology, attempt) and topology.rank == 0:
            logger.warning(
                "the evaluation is not in the merged run yet; after the evaluation: distsummary merge %s",
                shlex.quote(str(self.run_dir.base)),
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


def refuse_reuse(
    manifest: Manifest,
    topology: Topology,
    run_dir: RunDir,
    *,
    refuse_finished: bool,
    alive: Liveness = is_alive,
) -> None:
    """Raise RunDirError if another job records the run, or if the run is finished and `refuse_finished` set.

    Only the role train is checked. All ranks of a job, its restarts by the launcher, and other trainings in
    the same process count as one job.
    """
    attempts = [entry for entry in manifest["attempts"] if entry["role"] == topology.role]
    if topology.role != "train" or not attempts or choose_attempt(attempts, topology, now=time.time()):
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
        if is_running and not (same_process or is_peer or is_replaced):
            raise RunDirError(
                f"the run {run_dir.base} is in use: rank {rank} of attempt {number} runs as process "
                f"{known['pid']} on {known['host']}; wait for its end, or name another directory; to "
                'evaluate beside a training use ds.init(..., role="eval")'
            )
    if refuse_finished and not unfinished and len(newest["ranks"]) == newest["world_size"]:
        raise RunDirError(
            f"the run {run_dir.base} holds a finished training (attempt {number}), and this training starts "
            'from step 0; pass exists="new" to record it beside that run, exists="attempt" to show it in '
            "place of that training, or initial_step= if it resumes that training"
        )


def job_of(incarnation: str) -> str:
    """The part of an incarnation that stays the same when the launcher restarts the job."""
    return incarnation.partition("+")[0]


def next_run_dir(run_dir: RunDir, topology: Topology) -> RunDir:
    """The first of `run_dir` and its siblings (`-2`, `-3` ... appended) in which all ranks may train."""
    job, number, found = job_of(topology.incarnation), 1, run_dir
    is_free = False

    def claim(manifest: Manifest) -> None:
        nonlocal is_free
        try:
            refuse_reuse(manifest, topology, run_dir, refuse_finished=True)
        except RunDirError:
            return
        has_trained = newest_attempt(manifest, topology.role) is not None
        is_free = has_trained or manifest.setdefault("claimed_by", job) == job

    while True:
        found.update_manifest(claim)
        if is_free:
            return found
        number += 1
        found = RunDir(f"{run_dir.base}-{number}").create()


def join_attempt(
    manifest: Manifest, topology: Topology, first_attempt: Callable[[str], int] = lambda role: 0
) -> int:
    """Add the rank to its attempt, or to a new one if it belongs to none yet; return the attempt's number."""
    attempts = [entry for entry in manifest["attempts"] if entry["role"] == topology.role]
    entry = choose_attempt(attempts, topology, now=time.time())
    if entry is None:
        entry = {
            "role": topology.role,
            "attempt": 1 + max(a["attempt"] for a in attempts) if attempts else first_attempt(topology.role),
            "incarnation": topology.incarnation,
            "world_size": topology.world_size,
            "started": time.time(),
            "ranks": {},
        }
        manifest["attempts"].append(entry)
        set_run_state(manifest, entry, "running")
    if entry["world_size"] != topology.world_size:
        others = ", ".join(sorted(entry["ranks"], key=int))
        raise WorldMismatchError(
            f"rank {topology.rank} says world_size {topology.world_size} (by {topology.source}), "
            f"but rank(s) {others} said {entry['world_size']}; start all ranks with one world size"
        )
    entry["ranks"][str(topology.rank)] = asdict(topology) | {"state": "running"}
    return int(entry["attempt"])


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
        attempts: the attempts of the rank's role, in the order of their numbers.
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
    others = newest["ranks"].values()
    running = [alive(other) for other in others if other["state"] == "running"]
    if newest["world_size"] != topology.world_size:
        may_join = True in running and False not in running  # otherwise these are two jobs
    elif running:
        may_join = False not in running
    else:
        have_finished = all(other["state"] in TRAINED for other in others)
        may_join = have_finished and now - newest.get("started", 0.0) < JOIN_WINDOW_S
    return newest if may_join else None


def leave_attempt(
    manifest: Manifest, topology: Topology, attempt: int, health: Mapping[str, int | str]
) -> None:
    """Mark the rank as finished, incomplete, failed or interrupted, and change the run's state accordingly.

    `health` may have, beside the rank's counters, `failed` or `interrupted` with `error` (what the training
    raised), and `missing` (why events are missing from the files). The attempt keeps its first failure.
    """
    refuse_stale(manifest, topology.role, attempt)
    entry = find_attempt(manifest, topology.role, attempt)
    if str(topology.rank) not in entry["ranks"]:
        raise InvalidValueError(
            f"rank {topology.rank} never joined attempt {attempt} of role {topology.role}; register it first"
        )
    told = (state for state, key in _STATE_KEYS.items() if health.get(key))
    state = next(told, "finished")
    entry["ranks"][str(topology.rank)] |= {"state": state, "health": dict(health)}
    if state == "failed":  # a rank tells its failure before its process ends and its peers fail because of it
        entry.setdefault("failure", {"rank": topology.rank, "error": str(health.get("error", ""))})
    if state in _STOPPED or is_complete(entry):
        set_run_state(manifest, entry, end_of(entry))


def set_run_state(manifest: Manifest, entry: Manifest, state: str) -> None:
    """Set the state of the run if the attempt decides it: the newest training or, without any, evaluation."""
    if entry is (newest_attempt(manifest) or newest_attempt(manifest, "eval")):
        manifest["state"] = state


def end_of(entry: Manifest) -> str:
    """How an attempt ended: failed or interrupted if one of its ranks did, else finished."""
    states = rank_states(entry).values()
    return next((state for state in _STOPPED if state in states), "finished")


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
    """Raise StaleAttemptError if the role has been started again since this attempt.

    A newer attempt of the same incarnation is not a restart: a faster rank has begun its next training.
    """
    newest = newest_attempt(manifest, role)
    if newest is None or attempt >= newest["attempt"]:
        return
    entry = find_attempt(manifest, role, attempt)
    if entry["incarnation"] != newest["incarnation"]:
        raise StaleAttemptError(
            f"attempt {attempt} of role {role} was superseded by attempt {newest['attempt']}; "
            "its messages are refused: end its processes"
        )


def rank_states(entry: Manifest) -> dict[str, str]:
    """Rank -> its state in an attempt.

    running; finished; incomplete: it finished, but events are missing from its files (a full disk; the reason
    is `missing` in its health); failed: its training raised; interrupted: Ctrl-C,
    a handler of a signal or sys.exit() ended it; lost: no sign of life.
    """
    return {rank: known["state"] for rank, known in entry["ranks"].items()}


def is_complete(entry: Manifest) -> bool:
    """Whether every rank of the attempt has joined and then reported its end."""
    states = rank_states(entry).values()
    return len(states) == entry["world_size"] and all(state in ENDED for state in states)


def note_aggregator(run_dir: RunDir) -> None:
    """Note in the manifest that this process is the run's aggregator; raises as `update_manifest`."""
    place = own_process() | {"host": platform.node()}
    run_dir.update_manifest(lambda manifest: manifest.update(aggregator=place))


def awaited_aggregator(manifest: Manifest) -> Manifest | None:
    """The place of another process that lives and will merge the run; None if there is none.

    Also None if that process is on another host: whether it lives cannot be known there.
    """
    place: Manifest = manifest.get("aggregator", {})
    is_own = all(place.get(key) == value for key, value in own_process().items())
    return place if place and not is_own and is_alive(place) and open_attempts(manifest) else None


def open_attempts(manifest: Manifest) -> list[Manifest]:
    """The newest attempt of each role, unless it is settled.

    An attempt is settled when none of its ranks runs and the merged run contains their final states and all
    later evaluations; an attempt of one rank needs no merge.
    """
    found = []
    for role in sorted({entry["role"] for entry in manifest["attempts"]}):
        entry = newest_attempt(manifest, role)
        if entry:
            states = rank_states(entry)
            is_merged = entry["world_size"] == 1 or (
                entry.get("merged") == states and not entry.get("evaluated")
            )
            if not is_merged or "running" in states.values():
                found.append(entry)
    return found
