"""RunRow: one run of a table of runs, read from its files in two parts.

What run.json, the manifests of the ranks and alerts.jsonl say takes half a millisecond; what the event files
say (metrics, goodput) takes ten times as long.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distsummary.base.columns import numbered
from distsummary.diagnosis.alerts import hangs_among, read_reports
from distsummary.diagnosis.verdict import CAUSES, ERROR, WARNING
from distsummary.errors import DistSummaryError
from distsummary.events.newest import newest_events
from distsummary.events.segments import all_event_files, stamp_of
from distsummary.format.definitions import Definitions
from distsummary.format.own_tags import is_own
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.run_dir import MANIFEST, RunDir
from distsummary.rundir.run_records import MOST_S
from distsummary.rundir.states import AttemptState, RunState, read_run
from distsummary.runs.attempt_times import attempt_times
from distsummary.runs.cost import bill
from distsummary.runs.facts import Fact, flat
from distsummary.runs.labels import Labels, read_labels
from distsummary.runs.rank_files import MERGED, Rank, RankFiles, said
from distsummary.runs.recorded_run import NO_MANIFEST, open_run
from distsummary.runs.run_metrics import RunMetric, better, metric_of, spark_of
from distsummary.runs.show import interest, is_loss
from distsummary.runs.status import Status, as_recorded, read_status
from distsummary.runs.status_text import behind_ranks, by_gravity, causes, findings_of, stuck_in_short

MOST_TAGS = 64  # of a run that are columns, by interest
MOST_SETTINGS = 256  # of its config
COMMIT_DIGITS = 12
_MOST_HOSTS = 4
_NONE = NO_MANIFEST, "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run of the table.

    Attributes:
        path: relative to the directory that was searched. folder: the last part of the whole path.
        id: of run.json. label: the name that it was given; empty: none. group, tags, notes: see `Labels`.
        state: as `distsummary status` reports it; "no run.json" for files that a SummaryRecord wrote alone,
            "unreadable" if the run.json cannot be read.
        is_healthy: whether `distsummary status` exits with 0; None without a run.json.
        level: of what is wrong with it, "error", "warning" or empty. causes: of its findings, each once, the
            gravest first. finding: what is wrong, in words. lost_s: seconds that the findings cost.
        ranks: the world size. attempts: how many. step: the newest one. None if unknown.
        started: seconds since the epoch. duration_s: seconds from then to the last sign of life. rank_s: the
            seconds of all ranks together, over all attempts, without the time between attempts.
        goodput: the share of kept training in that; None if no step was timed.
        commit: its first 12 digits, with "+" if the working tree had changes. host: of its ranks.
        size_bytes: of all its files but indexes, which readers write.
        config: the settings by name, such as "config.lr". metrics: by tag, of the merged run or, before it is
            merged, of its lowest rank. spark: the curve of its loss, see `spark_of`.
        left_out: how many tags and settings there are beyond MOST_TAGS and MOST_SETTINGS.
        is_whole: whether its event files were read.
    """

    path: str
    folder: str
    state: str
    id: str = ""
    label: str = ""
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str = ""
    is_healthy: bool | None = None
    level: str = ""
    causes: tuple[str, ...] = ()
    finding: str = ""
    lost_s: float | None = None
    ranks: int | None = None
    attempts: int | None = None
    step: int | None = None
    started: float | None = None
    duration_s: float | None = None
    rank_s: float | None = None
    goodput: float | None = None
    commit: str | None = None
    host: str | None = None
    size_bytes: int = 0
    config: dict[str, Fact] = field(default_factory=dict)
    metrics: dict[str, RunMetric] = field(default_factory=dict)
    spark: tuple[float, ...] = ()
    left_out: int = 0
    is_whole: bool = False

    @property
    def name(self) -> str:
        """What the run is called: as it was named or, without a name, as its directory."""
        return self.label or self.folder


def read_first(path: str, place: Path, *, now: float, size_bytes: int = 0) -> RunRow:
    """The row without what event files say; whatever is wrong with the files hides no other run.

    Args:
        path: of the run in the table. place: its directory. now: seconds since the epoch. size_bytes: of all
            its files.
    """
    is_run = os.path.lexists(place / MANIFEST)
    row = RunRow(path=path, folder=place.name, state=NO_MANIFEST, size_bytes=size_bytes)
    try:
        return _of_run(row, place, now) if is_run else _of_records(row, place)
    except Exception as error:
        is_healthy = False if is_run else None
        return replace(row, state="unreadable", level=ERROR, is_healthy=is_healthy, finding=_why(error))


def with_events(row: RunRow, place: Path, *, now: float, uses_index: bool = True) -> RunRow:
    """The row with its metrics and goodput; `uses_index`: see `open_run`."""
    if row.state == "unreadable":
        return replace(row, is_whole=True)
    try:
        return _with_events(row, place, now, uses_index)
    except Exception as error:
        return replace(_noting(row, f"event files: {_why(error)}"), is_whole=True)


def row_of(row: RunRow, status: Status) -> RunRow:
    """The row with what the states of its ranks say."""
    run, newest = status.run, status.run.newest
    if newest is None:
        return replace(
            row, id=run.run_id, state=run.state, is_healthy=False, finding="no rank has registered"
        )
    notes = [line.strip() for line in causes(status)]
    if newest.failure is not None and not notes:
        notes.append(f"rank {newest.failure.rank} failed: {newest.failure.error}")
    # Where ranks wait for a stuck one, it need not be said that they are behind.
    if stuck := stuck_in_short(status):
        notes.insert(0, stuck)
    else:
        notes += behind_ranks(status)
    notes += filter(None, [findings_of(status), f"not judged: {status.unread}" if status.unread else ""])
    if status.earlier:
        notes.append(f"{numbered(status.earlier, 'finding')} of earlier attempts")
    began = min(attempt.started for attempt in run.attempts)
    hosts = sorted({rank.host for rank in newest.ranks if rank.host})
    more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
    return replace(
        row,
        id=run.run_id,
        state=run.state,
        is_healthy=status.is_healthy,
        level=status.level,
        causes=tuple(dict.fromkeys(one.cause for one in by_gravity(status.findings))),
        finding="; ".join(notes),
        lost_s=sum(one.lost_s for one in status.findings),
        ranks=newest.world_size,
        attempts=sum(one.role == newest.role for one in run.attempts),
        step=status.step,
        started=_seconds(began),
        duration_s=_seconds(max(0.0, _ended(newest, status.now) - began)),
        rank_s=_seconds(
            sum(one.world_size * max(0.0, _ended(one, status.now) - one.started) for one in run.attempts)
        ),
        host=", ".join(hosts[:_MOST_HOSTS]) + more or None,
    )


def _of_run(row: RunRow, place: Path, now: float) -> RunRow:
    run_dir = RunDir(place)
    manifest = run_dir.read_manifest()
    status = read_status(run_dir, now=now, manifest=manifest, reads_events=False)
    row = row_of(row, status)
    newest = status.run.newest
    entry: dict[str, Any] = next(
        (
            one
            for one in manifest["attempts"]
            if newest and (one["role"], one["attempt"]) == (newest.role, newest.attempt)
        ),
        {},
    )
    settings = dict(flat(entry.get("config") or {}, "config"))
    git = (entry.get("provenance") or {}).get("git") or {}
    commit = str(git.get("commit") or "")[:COMMIT_DIGITS]
    labels, problem = Labels(), ""
    try:
        labels = read_labels(run_dir, manifest)
    except (DistSummaryError, OSError) as error:
        problem = _why(error)
    row = replace(
        row,
        config=dict([*settings.items()][:MOST_SETTINGS]),
        left_out=max(0, len(settings) - MOST_SETTINGS),
        commit=f"{commit}{'+' if git.get('dirty') else ''}" if commit else None,
        **_fields_of(labels),
    )
    return _noting(row, problem) if problem else row


def _of_records(row: RunRow, place: Path) -> RunRow:
    """Event files without a run.json, as a SummaryRecord writes them."""
    stamps = [stamp_of(file.name) or 0 for file in all_event_files(place)]
    labels = read_labels(RunDir(place), {})
    return replace(row, started=_seconds(float(min(stamps, default=0))), **_fields_of(labels))


def _with_events(row: RunRow, place: Path, now: float, uses_index: bool) -> RunRow:
    run_dir = RunDir(place)
    goodput, defined, state = None, None, None
    if row.state == NO_MANIFEST:
        events = newest_events(place)
        ends = [one.wall_time for one in events] or [one.stat().st_mtime for one in all_event_files(place)]
        settings = dict(flat(open_run(place, index=uses_index).config, "config"))
        row = replace(
            row,
            duration_s=_seconds(max(0.0, max(ends) - (row.started or 0.0))),
            config=dict([*settings.items()][:MOST_SETTINGS]),
            left_out=max(0, len(settings) - MOST_SETTINGS),
        )
    else:
        manifest = run_dir.read_manifest()
        state = read_run(run_dir, now=now, manifest=manifest)
        defined = Definitions(manifest.get("define", {}))
    role = state.newest.role if state and state.newest else "train"
    files = RankFiles(run_dir, role, uses_index=uses_index)

    def read() -> RunRow:
        # Of the merged run or, before it is merged, of the lowest rank.
        sources: list[Rank] = [MERGED, *[*files.ranks][:1]]
        for source in sources:
            chosen, until = files.chosen(source)
            recorded = next(iter(chosen.values()), None)
            tags = [tag for tag in recorded.tags() if not is_own(tag)] if recorded else []
            if tags:
                break
        tags.sort(key=interest)
        curves = {tag: recorded.curve(tag, until) for tag in tags[:MOST_TAGS]} if recorded else {}
        lasts = {rank: (one.steps() or (0, 0))[1] for rank, one in files.ranks.items()}
        return replace(
            _with_ends(row, state, lasts),
            metrics={
                tag: metric_of(*curve, better(tag, defined)) for tag, curve in curves.items() if curve[1].size
            },
            spark=next((spark_of(values) for tag, (_, values) in curves.items() if is_loss(tag)), ()),
            left_out=row.left_out + max(0, len(tags) - MOST_TAGS),
            step=max(filter(None, (row.step, *lasts.values())), default=None),
        )

    with files.held():
        row = files.read(read)
        if state is not None:
            attempts = [one for one in state.attempts if one.role == role]
            meshes = Meshes(files.directories())
            times = files.read(lambda: attempt_times(files.ranks, attempts, meshes, now=now))
            verdicts = hangs_among(read_reports(run_dir, state.newest).alerts, CAUSES)
            goodput = bill(times, [(one.attempt, one.verdict) for one in verdicts]).goodput
    damage = [one for recorded in files.all() for one in recorded.damage]
    problems = [*files.gone.values(), *(f"{one.file.name}: {one.reason}" for one in damage)]
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        row = _noting(row, f"damaged: {problems[0]}{more}")
    return replace(row, goodput=goodput, is_whole=True)


def _with_ends(row: RunRow, state: RunState | None, lasts: Mapping[int, int]) -> RunRow:
    """The row with what ranks recorded and their files lack; `lasts`: rank -> newest step in its files."""
    ranks = state.newest.ranks if state and state.newest else ()
    seen = [as_recorded(rank, lasts.get(rank.rank, 0)) for rank in ranks if rank.state == "finished"]
    cut = [f"rank {one.rank}: {one.reason}" for one in seen if one.state != "finished"]
    if not cut:
        return row
    more = f", and so {len(cut) - 1} more" if len(cut) > 1 else ""
    return _noting(replace(row, is_healthy=False), f"{cut[0]}{more}")


def _ended(attempt: AttemptState, now: float) -> float:
    """Until when an attempt lasted: now, or else its last sign of life; in seconds since the epoch."""
    return now - (
        0.0 if attempt.state == "running" else min((one.last_seen_s for one in attempt.ranks), default=0.0)
    )


def _fields_of(labels: Labels) -> dict[str, Any]:
    return {"label": labels.name, "group": labels.group, "tags": labels.tags, "notes": labels.notes}


def _noting(row: RunRow, problem: str) -> RunRow:
    """The row with what could not be read, which may be anything."""
    return replace(row, finding="; ".join(filter(None, [row.finding, problem])), level=row.level or WARNING)


def _why(error: Exception) -> str:
    is_known = isinstance(error, (DistSummaryError, OSError))
    return said(error) if is_known else f"{type(error).__name__}: {error}"


def _seconds(found: float) -> float | None:
    """None for a number that is no time."""
    return found if 0 <= found <= MOST_S else None
