"""The attempts in a run's manifest: how they begin, which one a rank belongs to, and how they end.

An attempt is one start of the job; a restart gets the next number.
"""

import platform
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from distsummary.base.processes import is_alive, own_place
from distsummary.base.publish import file_system_time
from distsummary.base.redaction import redacted
from distsummary.errors import StaleAttemptError
from distsummary.rundir.deal import Deal
from distsummary.rundir.rank_manifest import entries_of, ranks_of, read_ranks
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.timeouts import JOIN_WINDOW_S
from distsummary.rundir.topology import Topology

PROTOCOL = 4  # of the calls between driver, ranks and aggregator; raise it when they change
LOOKED_AT = 16  # other ranks that a rank looks at before it joins
TRAINED = ("finished", "incomplete")  # states of a rank whose training ended by itself
ENDED = (*TRAINED, "failed", "interrupted")
STOPPED = ("failed", "interrupted")  # states of a rank whose training an exception ended; the worse first
_STATE_KEYS = {
    "failed": "failed",
    "interrupted": "interrupted",
    "incomplete": "missing",
}  # in a rank's health
PROCESS = ("pid", "pid_space", "pid_start")  # the fields of a Topology that identify a process
_FIRST = ("rank", "host", *PROCESS, "session", "source")  # what run.json says of the rank that came first
_STRONGER = {  # state of a run -> the states that it does not replace
    "failed": ("failed",),
    "interrupted": ("failed", "interrupted"),
    "finished": ("failed", "interrupted", "finished"),
    "lost": ("failed", "interrupted", "finished", "lost"),
}
OF_RUN = ("name", "group", "tags", "notes", "define", "keep_bytes")  # fields of a note that belong to the run
Key: TypeAlias = tuple[str, int]  # role and attempt
Liveness = Callable[[Mapping[str, Any]], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a rank learns when it joins a run: `run_id` is 16 hex digits, `attempt` counts from 0.

    `created` is when the run was created, in seconds since the epoch; 0: unknown. `nonce` is that of the
    manifest on the host where the rank was registered, so that the rank can check whether it sees the same.
    `protocol` is that of the aggregator, `now` the time there. `deals` are those of the attempt so far.
    """

    run_id: str
    attempt: int
    created: float = 0.0
    nonce: str = ""
    host: str = field(default_factory=platform.node)
    protocol: int = field(default_factory=lambda: PROTOCOL)
    now: float = field(default_factory=time.time, compare=False)
    deals: tuple[Deal, ...] = ()


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


def note_deaths(
    run_dir: RunDir, role: str, attempt: int, deaths: Mapping[int, str], *, state: str = "lost"
) -> None:
    """Note why ranks died without reporting it themselves, such as "killed by signal 9 (SIGKILL)".

    For launchers and others that see it. The first reason is kept. Of a rank that reported its end, its own
    word holds. Raises StaleAttemptError for an unknown attempt, and as `update_manifest`.

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

    def note(manifest: Manifest) -> None:
        found = {str(rank): {"reason": redacted(why), **died} for rank, why in deaths.items()}
        noted(manifest).update(found | noted(manifest))

    run_dir.update_manifest(
        note,
        is_done=lambda manifest: all(str(rank) in noted(manifest) for rank in deaths),
    )


def attempts_seen(run_dir: RunDir, manifest: Manifest, topology: Topology) -> list[Manifest]:
    """The attempts of a rank's role, each with its `ranks` as far as this rank looks at them.

    These are the rank itself and, where that does not say its attempt, ranks spread over the newest attempt
    and over the newest of the same start.
    """
    attempts = [entry | {"ranks": {}} for entry in manifest["attempts"] if entry["role"] == topology.role]
    shown = {
        is_alone: read_ranks(run_dir, topology.role, 1 if is_alone else 2, [topology.rank])
        for is_alone in {entry["world_size"] == 1 for entry in attempts}
    }
    for entry in attempts:
        entry["ranks"] = entries_of(entry, shown[entry["world_size"] == 1])
    same_start = [entry for entry in attempts if entry["incarnation"] == topology.incarnation]
    own = str(topology.rank)
    # An attempt of this start without the rank is the one to join, if the incarnation is unique.
    if topology.is_incarnation_unique and any(own not in entry["ranks"] for entry in same_start):
        return attempts
    looked_at = {entry["attempt"]: entry for entry in (*attempts[-1:], *same_start[-1:])}
    for entry in looked_at.values():
        entry["ranks"] |= ranks_of(run_dir, entry, spread(entry["world_size"]))
        # The first rank enters itself in its own file a moment after the attempt in run.json.
        first = entry.get("first")
        if first:
            entry["ranks"].setdefault(str(first["rank"]), first | {"state": "running"})
    return attempts


def spread(number: int) -> range:
    """At most LOOKED_AT indices of `number` things, spread over them."""
    return range(0, number, max(1, -(-number // LOOKED_AT)))


def now_for(run_dir: RunDir, topology: Topology) -> float:
    """The file system's time where `choose_attempt` may need it."""
    return 0.0 if topology.is_incarnation_unique else file_system_time(run_dir.base)


def key_of(entry: Manifest) -> Key:
    """The role and the number of an attempt."""
    return entry["role"], entry["attempt"]


def note_fields(run_dir: RunDir, key: Key, fields: Mapping[str, object]) -> None:
    """Write fields of an attempt into run.json; raises StaleAttemptError, and as `update_manifest`.

    The labels of the run and its definitions belong to all attempts; definitions join those that are there.
    """
    of_run: dict[str, Any] = {name: value for name, value in fields.items() if name in OF_RUN}

    def note(manifest: Manifest) -> None:
        find_attempt(manifest, *key).update((name, fields[name]) for name in fields.keys() - of_run.keys())
        if "define" in of_run:
            of_run["define"] = defined_later(manifest.get("define", {}), of_run["define"])
        manifest.update(of_run)

    run_dir.update_manifest(note)


def defined_later(before: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Definitions by name, in the order in which they count: the last one of a name, the later ones last."""
    return {name: found for name, found in before.items() if name not in later} | dict(later)


def note_state(run_dir: RunDir, role: str, attempt: int, state: str) -> None:
    """Set the state of the run, if the attempt decides it and no stronger state is set."""

    def is_done(manifest: Manifest) -> bool:
        entry = find_attempt(manifest, role, attempt)
        return not decides(manifest, entry) or manifest["state"] in _STRONGER[state]

    run_dir.update_manifest(lambda manifest: manifest.update(state=state), is_done=is_done)


def job_of(incarnation: str) -> str:
    """The part of an incarnation that stays the same when the launcher restarts the job."""
    return incarnation.partition("+")[0]


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
    # Living ranks with another world size belong to this job; otherwise there are two jobs.
    if newest["world_size"] != topology.world_size:
        may_join = True in running and False not in running
    elif running:
        may_join = False not in running
    else:
        # All have left: a short training may be over before its slowest rank joins it.
        have_finished = all(other["state"] in TRAINED for other in others)
        may_join = have_finished and now - newest.get("started", 0.0) < JOIN_WINDOW_S
    return newest if may_join else None


def end_of_rank(health: Mapping[str, int | str]) -> str:
    """How a rank ended, by its health: failed, interrupted, incomplete or finished."""
    shown = (state for state, key in _STATE_KEYS.items() if health.get(key))
    return next(shown, "finished")


def end_of(states: Collection[str]) -> str:
    """How an attempt ended whose ranks have these states; one that still runs is taken for lost."""
    found = next((state for state in STOPPED if state in states), "finished")
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
    """Rank -> the state that it reported, of an attempt with its ranks (see `with_ranks`).

    running; finished; incomplete: it finished, but events are missing from its files (a full disk; the reason
    is `missing` in its health); failed: its training raised; interrupted: Ctrl-C,
    a handler of a signal or sys.exit() ended it; unknown. See `states` for ranks that died.
    """
    return {rank: known["state"] for rank, known in entry["ranks"].items()}


def with_ranks(run_dir: RunDir, entry: Manifest) -> Manifest:
    """The manifest's entry of an attempt, and in `ranks` what each of its ranks reports in its own file."""
    return entry | {"ranks": ranks_of(run_dir, entry)}


def is_complete(entry: Manifest) -> bool:
    """Whether every rank of the attempt (with its ranks) has joined and then reported its end."""
    states = rank_states(entry).values()
    return len(states) == entry["world_size"] and all(state in ENDED for state in states)


def note_aggregator(run_dir: RunDir) -> None:
    """Note in the manifest that this process is the run's aggregator; raises as `update_manifest`."""
    run_dir.update_manifest(lambda manifest: manifest.update(aggregator=own_place()))


def awaited_aggregator(run_dir: RunDir) -> Manifest | None:
    """The place of another process that lives and will merge the run; None if there is none.

    Also None if that process is on another host: whether it lives cannot be known there.
    """
    manifest = run_dir.read_manifest()
    place: Manifest = manifest.get("aggregator", {})
    is_own = place == own_place()
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
