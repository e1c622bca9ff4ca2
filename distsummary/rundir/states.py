"""The states of a run, its attempts and its ranks, derived by the reader from run.json and the ranks' files.

A rank reports its own state in its file: running, finished, incomplete (finished, but events are missing
from its files), failed (its training raised) or interrupted. No one writes that a rank is dead; who reads
the run concludes it. Of a rank that reported no end:

- superseded: a later start of the job has replaced it;
- lost: its launcher noted its death, or its process is gone from this machine, or its file was not written
  for LOST_S seconds by the file system's clock, although a heartbeat writes it every few seconds;
- running: otherwise.

Ranks that never registered are `missing`, not lost: a training may record on one of its ranks only. Nothing
follows from the silence of an aggregator, from an evaluation next to the training, or from older attempts.
"""

import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from distsummary.base.processes import is_alive
from distsummary.base.publish import file_system_time
from distsummary.rundir.attempts import TRAINED, newest_attempt
from distsummary.rundir.consequences import follows_from_another
from distsummary.rundir.deal import LongStep
from distsummary.rundir.rank_manifest import RankEntries, read_ranks
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.timeouts import SILENT_S, UNREACHED_S

LOST_S = SILENT_S
NO_END = "it recorded no end"
TERMINATED = "Terminated: "  # the error of a rank that SIGTERM or SIGHUP ended
GONE, SILENT = "its process is gone from", "its heartbeats stopped"  # why a rank is lost, if not reported
REBUILT = "its state was made from event files, which do not say how its training ended"
MORE, MORE_GIB = 1.5, 0.5  # a lost rank that held so much more memory than its peers may have run out of it
STATES = ("failed", "interrupted", "running", "lost", "superseded", "unknown")  # of an attempt, first first


class Failure(NamedTuple):
    """A failure in an attempt: what `rank` raised, or why it died.

    `time`: seconds since the epoch.
    """

    rank: int
    error: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """How a rank of an attempt is.

    Attributes:
        state: running, finished, incomplete, failed, interrupted, lost, superseded, or unknown (rebuilt by
            fsck, or its file cannot be read).
        step, phase, step_s: the newest step, what the process did, and seconds a step, by its last heartbeat;
            the step is None if there was no heartbeat.
        total: how many steps the training will have; None if unknown.
        own_ms, wait_ms: milliseconds a step that it worked by itself and that it waited for others, likewise;
            None if they were not measured.
        last_seen_s: seconds since the rank last reported anything.
        lost_since: of a lost rank, when it last reported anything, in seconds since the epoch; else None.
        error: what its training raised: the type and the message's first line.
        unreached_since: if its host does not see the run dir and has sent nothing for UNREACHED_S: when it
            last did, in seconds since the epoch; else None.
        reason: why it is lost, or what else is known about its end; of a superseded rank, what the later
            attempt hides.
        host, pid: its process. process: the same for `processes.is_alive`.
        seen: where it was in its newest long steps, by its last heartbeat.
        health: its counters, reported at its end; before, `dropped` and those of SPENT alone, by its last
            heartbeat.
    """

    role: str
    rank: int
    attempt: int
    state: str
    step: int | None = None
    phase: str = ""
    step_s: float = 0.0
    total: int | None = None
    own_ms: float | None = None
    wait_ms: float | None = None
    last_seen_s: float = 0.0
    lost_since: float | None = None
    unreached_since: float | None = None
    error: str = ""
    reason: str = ""
    host: str = ""
    pid: int = 0
    process: Mapping[str, Any] = field(default_factory=dict, repr=False)
    seen: tuple[LongStep, ...] = ()
    health: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def dropped(self) -> int | None:
        """How many values it has dropped; None if it has not reported it."""
        count = self.health.get("dropped")
        return count if isinstance(count, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """How an attempt is: one start of the job.

    Attributes:
        state: failed or interrupted as soon as one rank is (interrupted, if the others failed only because
            of that one; lost, if the others got SIGTERM after one had died); running while a rank runs; lost
            if a rank is lost and none runs; superseded; unknown; else finished.
        started: seconds since the epoch.
        ranks: those that registered, by rising number. missing: those that never did.
        is_settled: whether an aggregator has judged and merged it to its end.
        failure: the first one in time, but a cause before its consequences, such as the broken connections
            of other ranks; None if no one reported a failure or a death: of ranks that only fell silent,
            no one knows which one was the first.
    """

    role: str
    attempt: int
    state: str
    world_size: int
    started: float
    ranks: tuple[RankState, ...]
    missing: tuple[int, ...]
    failure: Failure | None
    is_settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How a run is: as its newest training or, without any, its newest evaluation; unknown without both.

    `attempts` are in the order in which they began, of all roles; `newest` is the one that decides.
    """

    path: Path
    run_id: str
    state: str
    attempts: tuple[AttemptState, ...]
    newest: AttemptState | None


def read_run(
    run_dir: RunDir | str | os.PathLike[str], *, now: float | None = None, manifest: Manifest | None = None
) -> RunState:
    """Read the states of a run from its files; needs neither Ray nor any process of the run.

    Args:
        run_dir: the run dir.
        now: seconds since the epoch; None asks the file system's clock, by a temporary file in the run dir
            (or this machine's clock, if the directory cannot be written).
        manifest: what run.json says; None: it is read.

    Raises DamagedFileError or RunDirError if run.json is damaged, of another version, or cannot be read.
    """
    run = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    manifest = run.read_manifest() if manifest is None else manifest
    if not manifest["run_id"]:
        run.refuse_removed_manifest()
    entries: list[Manifest] = manifest["attempts"]
    record: dict[tuple[str, bool], dict[int, RankEntries]] = {}
    for role, is_alone in {(entry["role"], entry["world_size"] == 1) for entry in entries}:
        record[role, is_alone] = read_ranks(run, role, 1 if is_alone else 2)
    now = file_system_time(run.base) if now is None else now
    attempts = tuple(
        _attempt(entry, entries, record[entry["role"], entry["world_size"] == 1], now, run.sent_at)
        for entry in entries
    )
    deciding = newest_attempt(manifest) or newest_attempt(manifest, "eval")
    newest = attempts[entries.index(deciding)] if deciding else None
    return RunState(
        path=run.base,
        run_id=manifest["run_id"],
        state=newest.state if newest else "unknown",
        attempts=attempts,
        newest=newest,
    )


def living(run_dir: RunDir | str | os.PathLike[str], role: str, attempt: int) -> set[int]:
    """The ranks of an attempt that run; none if the attempt is unknown."""
    for found in read_run(run_dir).attempts:
        if (found.role, found.attempt) == (role, attempt):
            return {rank.rank for rank in found.ranks if rank.state == "running"}
    return set()


def is_over(attempt: AttemptState) -> bool:
    """Whether none of the ranks that registered runs any more, and some rank did register."""
    return bool(attempt.ranks) and all(rank.state != "running" for rank in attempt.ranks)


def _attempt(
    entry: Manifest,
    entries: list[Manifest],
    record: Mapping[int, RankEntries],
    now: float,
    sent_at: Callable[[str], float | None],
) -> AttemptState:
    later = [
        other for other in entries if other["role"] == entry["role"] and other["attempt"] > entry["attempt"]
    ]
    is_replaced = any(other["incarnation"] != entry["incarnation"] for other in later)
    deaths: Mapping[str, Any] = entry.get("deaths") or {}
    beats = {rank: (one.entry(entry["attempt"]) or {}).get("heartbeat", {}) for rank, one in record.items()}
    held = {rank: float(beat.get("memory_gib") or 0.0) for rank, beat in beats.items()}
    ranks, failures = [], []
    for rank, one in sorted(record.items()):
        found = one.entry(entry["attempt"])
        if rank >= entry["world_size"] or (found is None and not one.error):
            continue
        death = deaths.get(str(rank)) or {}
        if found is None:
            state = RankState(
                role=entry["role"], rank=rank, attempt=entry["attempt"], state="unknown", reason=one.error
            )
        else:
            state = _rank(entry, found, one, death, is_replaced, now, sent_at)
            if state.state == "lost":
                state = replace(state, reason=state.reason + _memory(held, rank))
        ranks.append(state)
        if state.state == "failed":
            failures.append(Failure(rank, state.error, float((found or {}).get("ended") or 0.0)))
        elif is_silent(state) and death:
            failures.append(Failure(rank, state.reason, float(death.get("time", 0.0))))
    if noted := entry.get("failure"):
        failures.append(Failure(int(noted["rank"]), str(noted["error"]), float(noted.get("time", 0.0))))
    # A rank whose death was not seen may be the cause of the failures and interruptions that were.
    unseen = {one.rank for one in ranks if is_silent(one) and str(one.rank) not in deaths}
    if failures or any(one.state == "interrupted" for one in ranks):
        silent = [one for one in ranks if one.rank in unseen]
        failures += [Failure(one.rank, one.reason, now - one.last_seen_s) for one in silent]

    def precedence(failure: Failure) -> tuple[bool, bool, float]:
        """What follows from the end of another rank comes last, also if reported before that end was seen.

        Of a death that no one saw, only the last heartbeat is known, not the time.
        """
        return follows_from_another(failure.error), failure.rank in unseen, failure.time

    ending = _state_of(entry, ranks, is_replaced=is_replaced, now=now)
    failure = min(failures, key=precedence, default=None)
    # If the attempt was interrupted, connections that broke then are no failure.
    if failure is not None and ending == "interrupted" and follows_from_another(failure.error):
        failure = None
    registered = {one.rank for one in ranks}
    return AttemptState(
        role=entry["role"],
        attempt=entry["attempt"],
        state=ending,
        world_size=entry["world_size"],
        started=float(entry.get("started", 0.0)),
        ranks=tuple(ranks),
        missing=tuple(rank for rank in range(entry["world_size"]) if rank not in registered),
        failure=failure,
        is_settled=bool(entry.get("merged")),
    )


def _state_of(entry: Manifest, ranks: Collection[RankState], *, is_replaced: bool, now: float) -> str:
    # The first rank enters the attempt in run.json, then itself in its own file: there may be no rank yet.
    if not ranks:
        if is_replaced:
            return "superseded"
        first: Mapping[str, Any] = entry.get("first") or {}
        is_beginning = now - float(entry.get("started", 0.0)) < LOST_S
        return "running" if is_beginning and (not first or is_alive(first) is not False) else "unknown"
    states = {one.state for one in ranks}
    # Ranks that only lost the connection to an interrupted one did not fail.
    if "interrupted" in states and all(
        follows_from_another(one.error) for one in ranks if one.state == "failed"
    ):
        states.discard("failed")
    # Ranks that got SIGTERM after another one had died were ended by their launcher because of it.
    stopped = [one for one in ranks if one.state == "interrupted"]
    silent_s = max((one.last_seen_s for one in ranks if is_silent(one)), default=0.0)
    if all(one.error.startswith(TERMINATED) and one.last_seen_s < silent_s for one in stopped):
        states.discard("interrupted")
    return next((state for state in STATES if state in states), "finished")


def _rank(
    entry: Manifest,
    found: Manifest,
    record: RankEntries,
    death: Mapping[str, Any],
    is_replaced: bool,
    now: float,
    sent_at: Callable[[str], float | None],
) -> RankState:
    beat: Mapping[str, Any] = found["heartbeat"]
    is_newest = found is record.attempts[-1]
    recorded = float(found.get("ended") or beat.get("time") or found.get("started") or 0.0)
    # If this is not the newest attempt, the file has been written since: its time says nothing of this one.
    last_seen = record.last_seen if is_newest else recorded
    last_seen_s = max(0.0, now - last_seen)
    state, reason = found["state"], str(death.get("reason", ""))
    unreached = None
    # No rank reports its own death: the reader concludes it, from the surest sign to the weakest.
    if state == "running":
        if is_replaced or not is_newest:
            gone = is_alive(found) is False
            state, reason = "superseded", reason or (_gone(found) if gone else NO_END)
        elif death:
            state = str(death.get("state", "lost"))
        elif is_alive(found) is False:
            state, reason = "lost", _gone(found)
        else:
            sent = sent_at(found["host"]) if last_seen_s > UNREACHED_S else None
            unreached = sent if sent is not None and now - sent > UNREACHED_S else None
            reason = "" if unreached is None else unreached_text(found["host"], unreached)
            if last_seen_s > LOST_S:
                state, reason = "lost", reason or SILENT
    elif state in TRAINED:
        reason = str(found["health"].get("missing", ""))
    elif state == "unknown":
        reason = REBUILT
    # In a copy of the run, files are newer than what they record.
    if state != "running" and 0 < recorded < last_seen:
        last_seen, last_seen_s = recorded, max(0.0, now - recorded)
    return RankState(
        role=entry["role"],
        rank=found["rank"],
        attempt=entry["attempt"],
        state=state,
        step=beat.get("step"),
        phase=str(beat.get("phase", "")),
        step_s=float(beat.get("step_s") or 0.0),
        total=beat.get("total"),
        own_ms=beat.get("own_ms"),
        wait_ms=beat.get("wait_ms"),
        last_seen_s=last_seen_s,
        lost_since=last_seen if state == "lost" else None,
        unreached_since=unreached,
        error=str(found.get("error") or ""),
        reason=reason,
        host=found["host"],
        pid=found["pid"],
        process={name: found[name] for name in ("pid", "pid_space", "pid_start")},
        seen=tuple(LongStep(*one) for one in beat.get("seen", ())),
        health=found["health"]
        or {name: beat[name] for name in ("dropped",) if name in beat} | beat.get("spent_ms", {}),
    )


def _memory(held: Mapping[int, float], rank: int) -> str:
    """What a lost rank held of memory, if its peers held much less."""
    own = held[rank]
    usual = statistics.median([gib for other, gib in held.items() if other != rank and gib] or [own])
    if own < MORE * usual or own < usual + MORE_GIB:
        return ""
    return f"; it held {own:.1f} GiB of memory, its peers {usual:.1f} GiB; look for out of memory in dmesg"


def is_silent(rank: RankState) -> bool:
    """Whether a rank is known to have died without reporting its end."""
    return rank.state == "lost" or (rank.state == "superseded" and rank.reason != NO_END)


def unreached_text(host: str, since: float) -> str:
    """What is said of a host that does not see the run dir and has sent nothing since a time in seconds."""
    return f"host {host} is not reached since {time.strftime('%H:%M:%S', time.localtime(since))}"


def _gone(found: Manifest) -> str:
    return f"{GONE} {found['host']}"
