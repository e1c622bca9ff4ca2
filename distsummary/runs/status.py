"""The states of a run at one moment, and what its merged run holds, read from files."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from distsummary.base.columns import quoted
from distsummary.base.health import Removed
from distsummary.base.publish import file_system_time
from distsummary.diagnosis.alerts import as_reported, is_finding, open_findings, read_reports, worst_level
from distsummary.diagnosis.ends import unreported_end
from distsummary.diagnosis.stuck_files import hung_ranks
from distsummary.diagnosis.verdict import AWAITED, ERROR, Verdict
from distsummary.errors import DistSummaryError, MissingFileError
from distsummary.rundir.run_dir import MANIFEST, Manifest, RunDir
from distsummary.rundir.states import AttemptState, RankState, RunState, is_over, read_run
from distsummary.rundir.timeouts import BEHIND_S, HIDDEN_S

GOOD = ("running", "finished")  # states of a run and of its ranks
EACH_RANK = 32  # up to so many ranks have a line each
BEHIND_STEPS = 10  # instead, where no rank reports its pace
NEWEST = 5  # merged steps that say on how many ranks the merged run stands now


class Merged(NamedTuple):
    """The merged run: its newest step, and how many ranks its newest steps have (None: they do not say)."""

    step: int
    ranks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A run at one moment.

    `now`: seconds since the epoch, by the file system's clock. `merged`: what the merged run holds; None if
    the run has one rank or nothing is merged. `stuck`: the ranks for which others wait, or that stand still.
    `findings`: what is wrong with the newest attempt, see `open_findings`. `earlier`: how many findings there
    are of other attempts; `distsummary why` has them.
    `loss`: the newest one in the merged run or, before it is merged, in the files of rank 0.
    `unread`: why what was reported of the run is not all there; empty if it is.
    `unmerged`: ranks that have recorded more than the merged run has of them -> their last merged step.
    `removed`: the bulk values that `keep_bytes` has removed from the files of the ranks and the merged run.
    `kept`: see `RunDir.kept`.
    """

    run: RunState
    now: float
    merged: Merged | None = None
    stuck: tuple[Verdict, ...] = ()
    findings: tuple[Verdict, ...] = ()
    earlier: int = 0
    loss: float | None = None
    unread: str = ""
    unmerged: Mapping[int, int] = field(default_factory=dict)
    removed: Removed = field(default_factory=Removed)
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def merged_step(self) -> int | None:
        """The newest step of the merged run; None without one."""
        return self.merged.step if self.merged else None

    @property
    def behind(self) -> dict[int, int]:
        """Rank -> by how many steps it is behind the first of the ranks that run; see `ranks_behind`."""
        return ranks_behind(self.run.newest.ranks) if self.run.newest else {}

    @property
    def level(self) -> str:
        """That of the findings: "error" if an error lasts, else "warning"; empty without any."""
        return worst_level(self.findings)

    @property
    def is_healthy(self) -> bool:
        """Whether the run continues or has finished, and so has each of its ranks, without an error."""
        newest = self.run.newest
        return (
            newest is not None
            and not self.stuck
            and self.level != ERROR
            and not self.unread
            and self.run.state in GOOD
            and all(rank.state in GOOD for rank in newest.ranks)
        )

    @property
    def exit_code(self) -> int:
        """0 if the run is healthy, else 1."""
        return 0 if self.is_healthy else 1

    @property
    def total(self) -> int | None:
        """How many steps the training will have; None if no rank knows."""
        ranks = self.run.newest.ranks if self.run.newest else ()
        return max((rank.total for rank in ranks if rank.total), default=None)

    @property
    def left_s(self) -> float | None:
        """The seconds that the steps still to be made take at the ranks' pace; None if that is unknown."""
        ranks = self.run.newest.ranks if self.run.newest else ()
        paces = [rank.step_s for rank in ranks if rank.state == "running" and rank.step_s]
        if not paces or not self.total or self.stuck:
            return None
        return max(0, self.total - (self.step or 0)) * statistics.median(paces)

    @property
    def step(self) -> int | None:
        """The newest step a rank has reported; while ranks run, that is merged, if it is newer; or None."""
        reported = newest_step(self.run.newest)
        if reported and self.run.state != "running":
            return reported
        return max(reported or 0, self.merged_step or 0) or None


def read_status(
    path: RunDir | str | os.PathLike[str],
    *,
    now: float | None = None,
    manifest: Manifest | None = None,
    reads_events: bool = True,
) -> Status:
    """Read the states of a run from its files.

    Args:
        now: seconds since the epoch; None: by the clock of the run's file system.
        manifest: what run.json says; None: it is read.
        reads_events: look into event files, too, which takes ten times as long; without, `merged`, `loss`
            `unmerged` and `removed` stay empty, and the steps of ranks are those of their last heartbeats.

    Raises:
        MissingFileError: it is no run; the message says what it is.
        DamagedFileError, RunDirError: run.json is damaged, of another version, or cannot be read.
    """
    run_dir = path if isinstance(path, RunDir) else RunDir(path)
    if manifest is None:
        _check_is_run(run_dir.base, os.fspath(path))
    now = file_system_time(run_dir.base) if now is None else now
    run, recorded = read_run(run_dir, now=now, manifest=manifest), dict[int, int]()
    unmerged, merged, loss = dict[int, int](), None, None
    if reads_events:
        run, recorded = with_recorded_steps(run_dir, run)
        unmerged = _unmerged(run_dir, run.newest, recorded) if run.newest else {}
        merged = _merged(run_dir.base, run.newest) if run.newest and run.newest.world_size > 1 else None
        loss = _loss(run_dir, run.newest)
    alerts, unread = read_reports(run_dir, run.newest)
    stuck = hung_ranks(run_dir, run.newest, now=now) if run.newest else []
    if run.newest is not None:
        stuck = as_reported(stuck, alerts, run.newest)
    findings = open_findings(alerts, run.newest, stuck)
    findings += unreported_end(findings, run.newest)
    number = run.newest.attempt if run.newest else -1
    earlier = sum(is_finding(one) and one.get("attempt", 0) != number for one in alerts)
    return Status(
        run=run,
        now=now,
        merged=merged,
        stuck=tuple(one for one in stuck if one.cause != AWAITED),
        findings=tuple(findings),
        earlier=earlier,
        loss=loss,
        unread=unread,
        kept=run_dir.kept(),
        unmerged=unmerged,
        removed=removed_values(run_dir) if reads_events else Removed(),
    )


def removed_values(run_dir: RunDir) -> Removed:
    """See `Status.removed`; raises what `RunDir.read_manifest` raises."""
    total = Removed()
    if run_dir.read_manifest().get("keep_bytes") is not None:
        # Imported here, as it loads NumPy, which a running rank does not need.
        from distsummary.events.retention import removed_in

        of_ranks = (path for role in ("train", "eval") for path in run_dir.rank_dirs(role).values())
        for directory in (run_dir.base, run_dir.base / "eval", *of_ranks):
            total = total.plus(removed_in(directory))
    return total


def _loss(run_dir: RunDir, newest: AttemptState | None) -> float | None:
    """See `Status.loss`."""
    # Imported here, as it loads NumPy, which a running rank does not need.
    from distsummary.events.newest import newest_loss

    if newest is None:
        return None
    try:
        return newest_loss(run_dir.base, *filter(None, [run_dir.rank_dirs().get(0)]))
    except (DistSummaryError, OSError):
        # `distsummary fsck` names what cannot be read.
        return None


def with_recorded_steps(run_dir: RunDir, run: RunState) -> tuple[RunState, dict[int, int]]:
    """The run, with the steps in the files of ranks that have ended: they may have recorded more than their
    last heartbeats said, or a file is missing or cut off. And these steps of the newest attempt, by rank.
    """
    of_newest: dict[int, int] = {}
    attempts = []
    for attempt in run.attempts:
        is_newest = attempt is run.newest
        recorded = _recorded_steps(run_dir, attempt, EACH_RANK if is_newest else 1)
        if is_newest:
            of_newest = {rank: step for rank, step in recorded.items() if step}
        ranks = (
            as_recorded(rank, recorded[rank.rank]) if rank.rank in recorded else rank
            for rank in attempt.ranks
        )
        attempts.append(replace(attempt, ranks=tuple(ranks)))
    newest = None if run.newest is None else attempts[run.attempts.index(run.newest)]
    return replace(run, attempts=(*attempts,), newest=newest), of_newest


def as_recorded(rank: RankState, step: int) -> RankState:
    """A rank that has ended, with the newest step in its files (0: none), which may lack what it recorded."""
    last = rank.health.get("recorded_step")
    rank = replace(rank, step=max(rank.step or 0, step) or None)
    # On a network file system, files may show their ends later than the rank's own end.
    if rank.state != "finished" or not isinstance(last, int) or step >= last or rank.last_seen_s < HIDDEN_S:
        return rank
    found = f"end at step {step:,}" if step else "show no step"
    reason = f"it recorded step {last:,}, but its files {found}: distsummary fsck names what is damaged"
    return replace(rank, state="incomplete", reason=reason)


def newest_step(attempt: AttemptState | None) -> int | None:
    """The newest step that a rank of the attempt has reported; None if none has."""
    return max((rank.step for rank in attempt.ranks if rank.step), default=None) if attempt else None


def ranks_behind(ranks: Sequence[RankState]) -> dict[int, int]:
    """Rank -> by how many steps it is behind the first, of ranks that run and miss the steps of BEHIND_S."""
    running = [rank for rank in ranks if rank.state == "running"]
    paces = [rank.step_s for rank in running if rank.step_s]
    # Ranks report at different times, so that a distance of two steps means nothing.
    allowed = max(2.0, BEHIND_S / statistics.median(paces)) if paces else BEHIND_STEPS
    first = max((rank.step or 0 for rank in running), default=0)
    return {rank.rank: first - (rank.step or 0) for rank in running if first - (rank.step or 0) > allowed}


def _check_is_run(base: Path, given: str) -> None:
    """Raise MissingFileError unless the directory has a run.json, RunDirError if that was removed."""
    if os.path.lexists(base / MANIFEST):
        return
    if not base.is_dir():
        kind = "a file" if base.exists() else "missing"
        raise MissingFileError(f"{given} is {kind}; {RunDir(base).remedy_if_missing()}")
    remedy = (
        "name the directory that ds.init was given, which has one as soon as a rank has registered; "
        "files of a SummaryWriter or SummaryRecord alone are shown by: distsummary show"
    )
    if (base.parent / MANIFEST).exists():
        remedy = f"it belongs to the run {base.parent}"
    elif any((child / MANIFEST).exists() for child in base.iterdir()):
        remedy = f"it holds runs: distsummary runs {quoted(given)}"
    else:
        RunDir(base).refuse_removed_manifest()
    raise MissingFileError(f"{given} is not a run, for it has no {MANIFEST}; {remedy}")


def _recorded_steps(run_dir: RunDir, attempt: AttemptState, most: int) -> dict[int, int]:
    """Rank -> the newest step in its files, 0 without any, of the first `most` ranks that have ended.

    Each costs the reading of an event file's end.
    """
    # Imported here, as it loads NumPy, which a running rank does not need.
    from distsummary.events import newest

    found = {}
    for rank in [rank for rank in attempt.ranks if rank.state != "running"][:most]:
        place = run_dir.writer_dir(attempt.role, rank.rank, attempt.world_size)
        try:
            step = newest.newest_step(place, attempt=attempt.attempt)
        except (DistSummaryError, OSError):
            # `distsummary fsck` names what cannot be read.
            step = -1
        if step is not None:
            found[rank.rank] = max(0, step)
    return found


def _unmerged(run_dir: RunDir, attempt: AttemptState, recorded: Mapping[int, int]) -> dict[int, int]:
    """See `Status.unmerged`; empty while the first merge may still come."""
    merged = run_dir.read_manifest().get("merged", {}).get(attempt.role)
    if attempt.world_size == 1 or not recorded:
        return {}
    if merged is None:
        # Its aggregator ended before: what it wrote while the ranks trained is without their ends.
        is_due = is_over(attempt) and min(rank.last_seen_s for rank in attempt.ranks) > HIDDEN_S
        return dict.fromkeys(recorded, 0) if is_due else {}
    last = {rank: merged.get("last_steps", {}).get(str(rank), 0) for rank in recorded}
    return {rank: last[rank] for rank, step in recorded.items() if step > last[rank]}


def _merged(base: Path, newest: AttemptState) -> Merged | None:
    """What the ends of the merged files say; None without any."""
    # Imported here, as both load NumPy.
    from distsummary.events.newest import newest_events
    from distsummary.format.own_tags import ALERT_TAGS, RANKS_TAG

    try:
        # An alert may be shown at a step that no rank has ended.
        events = [
            event
            for event in newest_events(base)
            if any(value.tag not in ALERT_TAGS for value in event.values)
        ]
        if not events:
            return None
        step = max(event.step for event in events)
        reported = [
            int(value.data)
            for event in events
            if event.attempt == newest.attempt
            for value in event.values
            if value.tag == RANKS_TAG
        ]
        # The newest steps may still be without ranks that are a little late: the best of them counts.
        return Merged(step, max(reported[-NEWEST:], default=None))
    except (DistSummaryError, OSError):
        # `distsummary fsck` names what cannot be read.
        return None
