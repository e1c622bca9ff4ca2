"""Who may record a run: refuses second jobs, second processes of a rank, and a run dir that is not shared."""

import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from distsummary.base.guard import check
from distsummary.base.processes import is_alive
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
from distsummary.rundir.identity import as_recorded
from distsummary.rundir.rank_manifest import ranks_of
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.timeouts import FAR_S, SHARED_S, SILENT_S
from distsummary.rundir.topology import Topology, masked

SHARED_POLL_S = 0.5
FAR_POLL_S = 0.5


class OpenTraining:
    """A training of this process, which may not begin while another one of the same rank is open in the run.

    The manifest cannot distinguish these: it names the process of a rank.

    Args:
        place: the line that made the run. resumes: it replaces one that failed and may still be open.
    """

    _known: ClassVar[dict[tuple[str, int], "OpenTraining"]] = {}

    def __init__(self, run_dir: RunDir, topology: Topology, place: str, *, resumes: bool) -> None:
        self._run_dir, self._topology = run_dir, topology
        self._place, self._resumes, self._pid = place, resumes, os.getpid()

    @check()
    def begin(self) -> None:
        """Raise RunDirError if another one is open; see `refuse_open`."""
        if self._topology.role == "train":
            if not self._resumes:
                refuse_open(self._run_dir, self._topology)
            self._known[_key(self._run_dir, self._topology)] = self

    def end(self) -> None:
        """Make way for the next one."""
        if self._known.get(key := _key(self._run_dir, self._topology)) is self:
            del self._known[key]

    @classmethod
    def find(cls, run_dir: RunDir, topology: Topology) -> str:
        """The line that made the open training of the rank; empty if this process has none."""
        found = cls._known.get(_key(run_dir, topology))
        return found._place if found is not None and found._pid == os.getpid() else ""


def _key(run_dir: RunDir, topology: Topology) -> tuple[str, int]:
    return str(run_dir.base), topology.rank


def refuse_open(run_dir: RunDir, topology: Topology) -> None:
    """Raise RunDirError if this process has an open training of this rank in the run dir."""
    if topology.role == "train" and (place := OpenTraining.find(run_dir, topology)):
        raise RunDirError(
            f"the run {run_dir.base} is open in this process (by the run made at {place}); close it first: "
            'run.close(), or use "with ds.init(...) as run:", which closes it; or pass exists="new" to '
            "record next to it"
        )


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


def refuse_other_world(run_dir: RunDir, entry: Manifest, topology: Topology) -> None:
    """Raise WorldMismatchError if the ranks of the attempt said another world size."""
    if entry["world_size"] != topology.world_size:
        known = entry["ranks"] | ranks_of(run_dir, entry, spread(entry["world_size"]))
        others = ", ".join(sorted(known, key=int)) or str(entry.get("first", {}).get("rank", "?"))
        raise WorldMismatchError(
            f"rank {topology.rank} says world_size {topology.world_size} (by {topology.source}), "
            f"but rank(s) {others} said {entry['world_size']}; start all ranks with one world size"
        )


def refuse_reuse(run_dir: RunDir, topology: Topology, *, refuse_finished: bool) -> None:
    """See `refuse_taken`; for a rank that has not joined the run. Also sees jobs on other machines.

    Whether a process on another machine lives, cannot be asked. If one was seen lately, this waits FAR_S for
    its next heartbeat.
    """
    manifest = run_dir.read_manifest()
    refuse_reuse_of(run_dir, manifest, topology, refuse_finished=refuse_finished)
    attempts = attempts_seen(run_dir, manifest, topology) if topology.role == "train" else []
    if not attempts or choose_attempt(attempts, topology, now=now_for(run_dir, topology)):
        return
    newest = max(attempts, key=lambda entry: int(entry["attempt"]))
    if job_of(newest["incarnation"]) == job_of(topology.incarnation):
        return
    now = file_system_time(run_dir.base)
    far = {
        rank: known
        for rank, known in newest["ranks"].items()
        if known["state"] == "running"
        and rank not in newest.get("deaths", {})  # its launcher saw it die; it may not know on a cut-off host
        and is_alive(known) is None
        and now - known.get("last_seen", 0.0) < SILENT_S
        if not known.get("source") == topology.source == "ray.train"
    }
    until = time.monotonic() + FAR_S
    while far and time.monotonic() < until:
        time.sleep(FAR_POLL_S)
        for rank, known in ranks_of(run_dir, newest, [int(rank) for rank in far]).items():
            if known["state"] == "running" and known["last_seen"] > far[rank].get("last_seen", 0.0):
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
        attempts, topology, run_dir, refuse_finished=refuse_finished, now=now_for(run_dir, topology),
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
        same_process = all(known.get(key) == getattr(topology, key) for key in PROCESS)
        same_job = job_of(newest["incarnation"]) == job_of(topology.incarnation)
        is_peer = same_job and (rank != own or not is_same_start)
        # Ray Train replaces failed workers under a new incarnation, while the old ones may still be ending.
        is_replaced = known.get("source") == topology.source == "ray.train"
        if not is_running or same_process or is_peer or is_replaced:
            continue
        if is_same_start:
            raise RunDirError(claimed_twice(run_dir, known, topology, number))
        raise RunDirError(_in_use(run_dir, rank, known, topology, number))
    is_finished |= not unfinished and len(newest["ranks"]) == newest["world_size"]
    if refuse_finished and is_finished:
        raise RunDirError(
            f"the run {run_dir.base} holds a finished training (attempt {number}), and this training starts "
            'from step 0; pass exists="new" to record it next to that run, exists="attempt" to show it in '
            "place of that training, or resume= or initial_step= if it resumes that training"
        )


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


def next_run_dir(run_dir: RunDir, topology: Topology) -> RunDir:
    """The first of `run_dir` and its siblings (`-2`, `-3` ... appended) in which all ranks may train."""
    number, found = 1, run_dir
    is_free = False

    def mark(manifest: Manifest) -> str:
        """The job, in a form that names no one."""
        return job_of(masked(topology, str(manifest["run_id"])).incarnation)

    def is_decided(manifest: Manifest) -> bool:
        nonlocal is_free
        try:
            refuse_open(found, topology)
            refuse_reuse_of(found, manifest, as_recorded(found, topology), refuse_finished=True)
        except RunDirError:
            is_free = False
            return True
        has_trained = newest_attempt(manifest, topology.role) is not None
        is_free = has_trained or manifest.get("claimed_by") == mark(manifest)
        return has_trained or "claimed_by" in manifest

    def claim(manifest: Manifest) -> None:
        nonlocal is_free
        manifest["claimed_by"], is_free = mark(manifest), True

    while True:
        found.update_manifest(claim, is_done=is_decided)
        if is_free:
            return found
        number += 1
        found = RunDir(f"{run_dir.base}-{number}").create()
