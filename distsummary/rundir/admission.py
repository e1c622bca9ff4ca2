"""admit: which directory a training records in, decided once by the door that opens the run.

It decides, refuses and reserves before anything is trained; the attempt becomes visible in run.json when the
first step begins. What is refused: a run that another job is recording, a rank that another process is
already, and a run dir that is not shared.
"""

import os
import platform
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from distsummary.base.checks import check_choice
from distsummary.base.guard import guarded_log
from distsummary.base.processes import is_alive, own_place
from distsummary.base.publish import file_system_time
from distsummary.errors import RunDirError, WorldMismatchError
from distsummary.rundir.attempts import (
    PROCESS,
    PROTOCOL,
    TRAINED,
    Liveness,
    Registration,
    attempts_seen,
    choose_attempt,
    job_of,
    newest_attempt,
    now_for,
    spread,
)
from distsummary.rundir.rank_manifest import ranks_of
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.timeouts import FAR_S, SHARED_S, SILENT_S
from distsummary.rundir.topology import Topology

logger = guarded_log(__name__)

ON_EXISTING = (AUTO, NEW, ATTEMPT, ERROR) = ("auto", "new", "attempt", "error")
SHARED_POLL_S = 0.5
FAR_POLL_S = 0.5


class Admission:
    """The place that a training of this process was given, from the door that opens the run to its end.

    Args:
        run_dir: where it records. topology: this rank, as the run shows it.
        door: what opened the run, for messages.
        resumes: it replaces a training that failed and may still be open in this process.
    """

    _open: ClassVar[dict[tuple[str, int], "Admission"]] = {}  # trainings of this process that have begun
    _made: ClassVar[list[weakref.ref["Admission"]]] = []  # those that may have values before they begin

    def __init__(self, run_dir: RunDir, topology: Topology, *, door: str, resumes: bool) -> None:
        self.run_dir, self.topology = run_dir, topology
        self._door, self._resumes, self._pid = door, resumes, os.getpid()
        self._key = str(run_dir.base), topology.rank
        self._has_waiting: Callable[[], bool] = lambda: False

    def made(self, has_waiting: Callable[[], bool]) -> None:
        """Called when the training can take values; `has_waiting`: whether it has some, and has not begun."""
        if self.topology.role == "train":
            self._has_waiting = has_waiting
            self._made.append(weakref.ref(self, self._made.remove))

    def begin(self) -> None:
        """Called before the first step; raises RunDirError if another training was begun in the meantime."""
        if self.topology.role == "train":
            if not self._resumes:
                self._refuse(self._open.get(self._key))
            self._open[self._key] = self

    def end(self) -> None:
        """Make way for the next training; a second call does nothing."""
        if self._open.get(self._key) is self:
            del self._open[self._key]

    def refuse_open(self) -> None:
        """Raise RunDirError if this process has an open training of this rank in the run dir.

        The manifest cannot distinguish trainings of one process: it names the process of a rank.
        """
        made = [other for reference in [*self._made] if (other := reference()) is not None]
        waiting = [other for other in made if other._key == self._key and other._has_waiting()]
        self._refuse(self._open.get(self._key, waiting[-1] if waiting else None))

    def _refuse(self, found: "Admission | None") -> None:
        if found is not None and found._pid == os.getpid():
            raise RunDirError(
                f"the run {self.run_dir.base} is open in this process (by {found._door}); close it first: "
                'run.close(), or use "with ds.init(...) as run:", which closes it; or pass '
                'on_existing="new" to record next to it'
            )


def admit(
    run_dir: RunDir, topology: Topology, *, on_existing: str = ATTEMPT, resumes: bool = False, door: str
) -> Admission:
    """Where a training, or an evaluation, of this rank records; all ranks of a job get the same directory.

    Restarts of the same start of a job and resumed trainings are the next attempt in `run_dir`, and so is a
    training after one that did not finish. `on_existing` decides about others.

    Args:
        run_dir: the directory that the user named; it exists.
        on_existing: "auto": after a finished training, the next free name (`-2`, `-3` ... appended), else the
            next attempt; "new": the next free name after any training; "attempt": the next attempt;
            "error": RunDirError after any training.
        resumes: the training continues at a later step.
        door: what opens the run, for messages.

    Raises RunDirError if another job records the run, or this process has a training open in it.
    """
    check_choice("on_existing", on_existing, ON_EXISTING)
    is_new = topology.role == "train" and not resumes
    if is_new and on_existing in (AUTO, NEW):
        given, run_dir = run_dir, _free_run_dir(run_dir, topology, on_existing)
        if run_dir.base != given.base and topology.rank == 0:
            logger.warning(
                "%s is taken; this training is recorded in %s (to continue the other one pass resume= or "
                'on_existing="attempt", to evaluate it role="eval")',
                given.base, run_dir.base,
            )  # fmt: skip
    newest = newest_attempt(run_dir.read_manifest(), topology.role)
    topology = replace(topology, after=int(newest["attempt"]) if newest else -1)
    admission = Admission(run_dir, topology, door=door, resumes=resumes)
    if is_new:
        admission.refuse_open()
    refuse_in_use(run_dir, topology)
    if is_new and on_existing == ERROR:
        newest = _newest_of_others(run_dir, run_dir.read_manifest(), topology)
        if newest is not None:
            raise RunDirError(
                f"the run {run_dir.base} holds a training (attempt {newest['attempt']}), and this training "
                'starts from step 0; pass on_existing="new" to record it next to that run, "attempt" to show '
                "it in place of that training, or resume= or initial_step= if it resumes that training"
            )
    return admission


def _free_run_dir(run_dir: RunDir, topology: Topology, on_existing: str) -> RunDir:
    """The first of `run_dir` and its siblings (`-2`, `-3` ... appended) in which all ranks may train.

    A directory that no training has begun in is reserved for this job in its manifest, as long as the process
    lives; except, with AUTO, `run_dir` itself: another job that starts there is refused.
    """
    number, found = 1, run_dir
    job, is_free = job_of(topology.incarnation), False

    def is_taken(manifest: Manifest) -> bool:
        newest = _newest_of_others(found, manifest, topology)
        if newest is None:
            return False
        return on_existing == NEW or is_finished(_with_all_ranks(found, newest), manifest, topology)

    def is_open(manifest: Manifest) -> bool:
        try:
            Admission(found, topology, door="", resumes=False).refuse_open()
            refuse_taken_run(found, manifest, topology)
        except RunDirError:
            return True
        return False

    def is_decided(manifest: Manifest) -> bool:
        nonlocal is_free
        if is_taken(manifest) or is_open(manifest):
            is_free = False
            return True
        # A directory in which a training has begun needs no reservation. One that a living job has reserved
        # is free for that job alone, and any other one gets reserved by `claim`.
        has_trained = newest_attempt(manifest, topology.role) is not None
        claimed = manifest.get("claimed_by")
        is_free = has_trained or (claimed is not None and claimed["job"] == job)
        return has_trained or (claimed is not None and (is_free or is_alive(claimed) is not False))

    def claim(manifest: Manifest) -> None:
        nonlocal is_free
        manifest["claimed_by"], is_free = own_place() | {"job": job}, True

    if on_existing == AUTO:
        if not is_taken(run_dir.read_manifest()):
            return run_dir
        number, found = 2, RunDir(f"{run_dir.base}-2").create()
    while True:
        # Of the ranks that ask at once, one reserves the directory, and the others find its mark.
        found.update_manifest(claim, is_done=is_decided)
        if is_free:
            return found
        number += 1
        found = RunDir(f"{run_dir.base}-{number}").create()


def _newest_of_others(run_dir: RunDir, manifest: Manifest, topology: Topology) -> Manifest | None:
    """The newest training in the run, unless this rank belongs to it or restarts it."""
    attempts = attempts_seen(run_dir, manifest, topology)
    if not attempts or choose_attempt(attempts, topology, now=now_for(run_dir, topology)):
        return None
    newest = _newest(attempts)
    # The launcher starts a job again under another incarnation of the same job.
    known, own = newest["incarnation"], topology.incarnation
    is_restart = topology.is_incarnation_unique and known != own and job_of(known) == job_of(own)
    return None if is_restart else newest


def _newest(attempts: list[Manifest]) -> Manifest:
    return max(attempts, key=lambda entry: int(entry["attempt"]))


def _with_all_ranks(run_dir: RunDir, entry: Manifest) -> Manifest:
    """An attempt, with all its ranks if one of those that were looked at has trained."""
    if not {known["state"] for known in entry["ranks"].values()} & {*TRAINED}:
        return entry
    return entry | {"ranks": ranks_of(run_dir, entry)}


def is_finished(
    entry: Manifest, manifest: Manifest, topology: Topology, *, alive: Liveness = is_alive
) -> bool:
    """Whether the newest attempt, with its ranks, has finished.

    For a rank of the same start, which trains again, the slower ranks do not count.
    """
    if manifest["state"] == "finished":
        return True
    unfinished = sum(
        known["state"] not in TRAINED and not _is_slower_peer(entry, rank, known, topology, alive)
        for rank, known in entry["ranks"].items()
    )
    return not unfinished and len(entry["ranks"]) == entry["world_size"]


def _is_slower_peer(
    entry: Manifest, rank: str, known: Mapping[str, Any], topology: Topology, alive: Liveness
) -> bool:
    is_same_start = bool(topology.incarnation) and entry["incarnation"] == topology.incarnation
    is_other = rank != str(topology.rank)
    return is_same_start and is_other and known["state"] == "running" and bool(alive(known))


def refuse_other_version(run_dir: RunDir, registration: Registration) -> None:
    """Raise RunDirError if the aggregator that registered the rank is of a version with other calls."""
    # An older version has no such field.
    found = getattr(registration, "protocol", 0)
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
        # NFS looks for new files when a directory is opened.
        with suppress(OSError):
            os.listdir(run_dir.base)


def refuse_other_world(run_dir: RunDir, entry: Manifest, topology: Topology) -> None:
    """Raise WorldMismatchError if the ranks of the attempt said another world size."""
    if entry["world_size"] != topology.world_size:
        known = entry["ranks"] | ranks_of(run_dir, entry, spread(entry["world_size"]))
        others = ", ".join(sorted(known, key=int)) or str(entry.get("first", {}).get("rank", "?"))
        raise WorldMismatchError(
            f"rank {topology.rank} says world_size {topology.world_size} (by {topology.source}), "
            f"but rank(s) {others} said {entry['world_size']}; start all ranks with one world size"
        )


def refuse_in_use(
    run_dir: RunDir, topology: Topology, *, far_s: float = FAR_S, sleep: Callable[[float], None] = time.sleep
) -> None:
    """See `refuse_taken`; for a rank that has not joined the run. Also sees jobs on other machines.

    Whether a process on another machine lives, cannot be asked. If one was seen lately, this waits `far_s`
    seconds for its next heartbeat; if its host sends what it writes, until it counts as dead, since what is
    sent may be late.
    """
    manifest = run_dir.read_manifest()
    refuse_taken_run(run_dir, manifest, topology)
    attempts = attempts_seen(run_dir, manifest, topology) if topology.role == "train" else []
    if not attempts or choose_attempt(attempts, topology, now=now_for(run_dir, topology)):
        return
    newest = _newest(attempts)
    if job_of(newest["incarnation"]) == job_of(topology.incarnation):
        return
    now = file_system_time(run_dir.base)
    # Ranks on other machines that were seen lately: only their next heartbeat shows whether they live.
    far = {
        rank: known
        for rank, known in newest["ranks"].items()
        if known["state"] == "running"
        # Its launcher saw it die; the rank itself may not know, on a host that is cut off.
        and rank not in newest.get("deaths", {})
        and is_alive(known) is None
        and now - known.get("last_seen", 0.0) < SILENT_S
        if not known.get("source") == topology.source == "ray.train"
    }
    sent = [known for known in far.values() if run_dir.sent_at(str(known["host"])) is not None]
    unknown_s = max([far_s, *(SILENT_S - (now - known.get("last_seen", 0.0)) for known in sent)])
    until = time.monotonic() + unknown_s
    while far and time.monotonic() < until:
        sleep(FAR_POLL_S)
        for rank, known in ranks_of(run_dir, newest, [int(rank) for rank in far]).items():
            if known["state"] == "running" and known["last_seen"] > far[rank].get("last_seen", 0.0):
                raise RunDirError(_in_use(run_dir, rank, known, topology, newest["attempt"]))


def refuse_taken_run(run_dir: RunDir, manifest: Manifest, topology: Topology) -> None:
    """See `refuse_taken`; the run has this manifest."""
    attempts = attempts_seen(run_dir, manifest, topology)
    refuse_taken(attempts, topology, run_dir, now=now_for(run_dir, topology))


def refuse_taken(
    attempts: list[Manifest],
    topology: Topology,
    run_dir: RunDir,
    *,
    now: float,
    alive: Liveness = is_alive,
) -> None:
    """Raise RunDirError if another job records the run.

    Only the role train is checked. All ranks of a job, its restarts by the launcher, and other trainings in
    the same process count as one job. A rank of one start that another living process is already is refused.

    Args:
        attempts: those of the rank's role, with their ranks (see `attempts_seen`).
        now: seconds since the epoch.
    """
    if topology.role != "train" or not attempts or choose_attempt(attempts, topology, now=now, alive=alive):
        return
    newest = _newest(attempts)
    own, number = str(topology.rank), newest["attempt"]
    is_same_start = bool(topology.incarnation) and newest["incarnation"] == topology.incarnation
    for rank, known in newest["ranks"].items():
        is_alive_now = alive(known)
        # Of a process on another machine, only a beginning after this rank was admitted shows that it lives.
        is_rival = is_alive_now is None and topology.after is not None and number > topology.after
        is_running = known["state"] == "running" and (bool(is_alive_now) or is_rival)
        same_process = all(known.get(key) == getattr(topology, key) for key in PROCESS)
        # Ranks of one job may join each other, but not two processes as the same rank of one start.
        same_job = job_of(newest["incarnation"]) == job_of(topology.incarnation)
        is_peer = same_job and (rank != own or not is_same_start)
        # Ray Train replaces failed workers under a new incarnation, while the old ones may still be ending.
        is_replaced = known.get("source") == topology.source == "ray.train"
        if not is_running or same_process or is_peer or is_replaced:
            continue
        if is_same_start:
            raise RunDirError(claimed_twice(run_dir, known, topology, number))
        raise RunDirError(_in_use(run_dir, rank, known, topology, number))


def _in_use(run_dir: RunDir, rank: str, known: Mapping[str, Any], topology: Topology, attempt: int) -> str:
    return (
        f"the run {run_dir.base} is in use: rank {rank} of attempt {attempt} runs as process {known['pid']} "
        f"on {known['host']}, and another job starts rank {topology.rank} as process {topology.pid} on "
        f"{topology.host}; {_as_ranks(topology)}wait for its end, or name another directory; to evaluate "
        'during a training use ds.init(..., role="eval")'
    )


def _as_ranks(topology: Topology) -> str:
    """The advice for processes that no launcher made ranks of one job, such as actors on Ray."""
    if topology.world_size > 1:
        return ""
    return "if both are ranks of one training, pass ds.init(..., rank=, world_size=); else "


def claimed_twice(run_dir: RunDir, known: Mapping[str, Any], topology: Topology, attempt: int) -> str:
    """That two processes claim a rank: both, by host and pid, and the remedy."""
    return (
        f"rank {topology.rank} of the run {run_dir.base} is claimed twice: by process {known['pid']} on "
        f"{known['host']}, which joined attempt {attempt} first, and by process {topology.pid} on "
        f"{topology.host} (by {topology.source}); give each process a rank of its own, or end the one that "
        "should not run"
    )
