"""The runs below a directory: as rows, as text for the command `distsummary runs`, and as a table."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from distsummary.base.columns import UNLIMITED, aligned, numbered, paragraph, printable, shortened
from distsummary.base.terminal import duration
from distsummary.errors import DistSummaryError, MissingFileError
from distsummary.events.newest import newest_events, newest_loss
from distsummary.events.segments import all_event_files, stamp_of
from distsummary.rundir.run_dir import MANIFEST, RunDir
from distsummary.rundir.run_records import MOST_S
from distsummary.runs.status import Status, read_status
from distsummary.runs.status_text import behind_ranks, causes, findings_of, stuck_in_short
from distsummary.runs.table import Table, table_of

DEPTH = 8  # directories below the given one that are looked into
_INSIDE = ("ckpt_dir", "landscape", "eval")  # directories of a run that hold no runs
LEAST = 12  # characters of a path that are shown
NOTE_LINES = 2
OLD_S = 300 * 86400.0  # from then on a date has its year
_COLUMNS = {  # of `list_runs`
    "path": object, "state": object, "ranks": np.int64, "step": np.int64, "started": np.float64,
    "lasted_s": np.float64, "loss": np.float64, "note": object,
}  # fmt: skip
_HEAD = ("run", "state", "ranks", "step", "began", "lasted", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run of the table.

    Attributes:
        name: the path relative to the directory that was searched.
        state: as `distsummary status` reports it; "no run.json" for files that a SummaryRecord wrote alone,
            "unreadable" if the run.json cannot be read.
        is_healthy: whether `distsummary status` exits with 0; None without a run.json.
        level, findings: the level of what is wrong with it ("error", "warning" or empty), and how many such
            findings there are.
        ranks: the world size. step: the newest one. Both None if unknown.
        started: seconds since the epoch. lasted_s: seconds from then to the last sign of life.
        loss: the newest one in the merged run or, before it is merged, in the files of rank 0; None without
            any.
        note: what is wrong, and whether it is a later attempt.
    """

    name: str
    state: str
    is_healthy: bool | None = None
    level: str = ""
    findings: int = 0
    ranks: int | None = None
    step: int | None = None
    started: float | None = None
    lasted_s: float | None = None
    loss: float | None = None
    note: str = ""


def find_runs(directory: str | os.PathLike[str]) -> list[RunRow]:
    """The runs in a directory and below, the newest first.

    Raises MissingFileError if there is no such directory, or no run in it.
    """
    base = Path(directory)
    if not base.is_dir():
        raise MissingFileError(f"{base} is {'a file' if base.exists() else 'missing'}; name a directory")
    rows = [_row(base, place) for place in _places(base, DEPTH)]
    if not rows:
        raise MissingFileError(
            f"{base} holds no runs: no directory with a {MANIFEST} or with event files in it or {DEPTH} "
            "levels below; name the directory that the run dirs are in"
        )
    return sorted(rows, key=lambda row: row.started or 0.0, reverse=True)


def list_runs(directory: str | os.PathLike[str]) -> Table:
    """The runs in a directory and below, the newest first, as `distsummary runs` lists them.

    The columns: `path` (relative to the directory), `state`, `ranks` and `step` (-1: unknown), `started`
    (seconds since the epoch), `lasted_s` and `loss` (NaN: unknown), and `note`, what is wrong.

    Raises MissingFileError if there is no such directory, or no run in it.
    """
    names = ("name", *list(_COLUMNS)[1:])
    rows = [[getattr(row, name) for name in names] for row in find_runs(directory)]
    return table_of(rows, _COLUMNS, title=f"runs in {os.fspath(directory)}")


def text_of(rows: Sequence[RunRow], *, width: int = UNLIMITED) -> str:
    """The table, in lines of at most `width` characters; what is wrong with a run is below it.

    Long paths are shortened in the middle.
    """
    cells = [
        (
            row.state,
            "-" if row.ranks is None else f"{row.ranks}",
            "-" if row.step is None else f"{row.step}",
            _when(row.started),
            "-" if row.lasted_s is None else duration(row.lasted_s),
            "-" if row.loss is None else f"{row.loss:.4g}",
        )
        for row in rows
    ]
    # The path gets the room that the other columns leave.
    sizes = [max(map(len, column)) for column in zip(_HEAD[1:], *cells, strict=True)]
    room = max(LEAST, width - sum(sizes) - 2 * len(sizes))
    named = [(shortened(printable(row.name), room), *cell) for row, cell in zip(rows, cells, strict=True)]
    head, *lines = aligned([_HEAD, *named], right=(2, 3, 5, 6), width=width)
    # Notes are inserted from the last row back, so that the numbers of the rows before stay right.
    for number, row in reversed([*enumerate(rows, 1)]):
        lines[number:number] = paragraph(f"    {printable(row.note)}", width, indent="    ", most=NOTE_LINES)
    return "\n".join([head, *lines])


def _when(began: float | None) -> str:
    """Such as 11-23 14:34, or 2025-11-23 if it is long ago."""
    if began is None:
        return "-"
    is_old = abs(time.time() - began) > OLD_S
    return time.strftime("%Y-%m-%d" if is_old else "%m-%d %H:%M", time.localtime(began))


def _places(directory: Path, depth: int) -> Iterator[Path]:
    """The run dirs, and directories with event files outside of runs; links are not followed."""
    try:
        if (directory / MANIFEST).exists() or all_event_files(directory):
            yield directory
            is_run = True
        else:
            is_run = False
        children = sorted(child for child in directory.iterdir() if child.is_dir() and not child.is_symlink())
    except OSError:
        # What may not be read hides no other run.
        return
    for child in children:
        is_hidden = child.name.startswith(".")
        # A run may lie in the directory of another, but the directories of its ranks are no runs.
        is_part = is_run and (
            child.name in _INSIDE or "rank_" in child.name or child.name.startswith("export_")
        )
        if depth and not is_hidden and not is_part:
            yield from _places(child, depth - 1)


def _row(base: Path, place: Path) -> RunRow:
    """One run; whatever is wrong with its files hides no other run."""
    name, is_run = str(place.relative_to(base)), (place / MANIFEST).exists()
    try:
        row = _run(name, place) if is_run else _records(name, place)
        return replace(row, started=_seconds(row.started), lasted_s=_seconds(row.lasted_s))
    except Exception as error:
        is_known = isinstance(error, (DistSummaryError, OSError))
        note = str(error) if is_known else f"{type(error).__name__}: {error}"
        return RunRow(name=name, state="unreadable", is_healthy=False if is_run else None, note=note)


def _seconds(found: float | None) -> float | None:
    """None for a number that is no time."""
    return found if found is not None and 0 <= found <= MOST_S else None


def _run(name: str, place: Path) -> RunRow:
    status = read_status(place)
    first = RunDir(place).rank_dirs().get(0, place)
    events = newest_events(place) or newest_events(first)
    step = max((event.step for event in events), default=0) or None
    return row_of(name, status, step=step, loss=status.loss)


def row_of(name: str, status: Status, *, step: int | None, loss: float | None) -> RunRow:
    """The row of a run with this status; `step`: of the newest event, for a run without heartbeats."""
    newest = status.run.newest
    if newest is None:
        return RunRow(name=name, state=status.run.state, is_healthy=False, note="no rank has registered")
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
    if earlier := newest.attempt:
        notes.append(f"attempt {earlier}")
    began = min(attempt.started for attempt in status.run.attempts)
    # A run that has ended lasted until its last sign of life.
    last_seen = status.now - min((rank.last_seen_s for rank in newest.ranks), default=0.0)
    return RunRow(
        name=name,
        state=status.run.state,
        is_healthy=status.is_healthy,
        level=status.level,
        findings=len(status.findings),
        ranks=newest.world_size,
        step=status.step or step,
        started=began,
        lasted_s=max(0.0, (status.now if status.run.state == "running" else last_seen) - began),
        loss=loss,
        note="; ".join(notes),
    )


def _records(name: str, place: Path) -> RunRow:
    """Event files without a run.json, as a SummaryRecord writes them."""
    files = all_event_files(place)
    events = newest_events(place)
    loss = newest_loss(place)
    started = float(min(stamp_of(file.name) or 0 for file in files))
    ends = [event.wall_time for event in events] or [file.stat().st_mtime for file in files]
    lasted_s = max(0.0, max(ends) - started)
    return RunRow(
        name=name,
        state=f"no {MANIFEST}",
        step=max((event.step for event in events), default=None),
        started=started,
        lasted_s=lasted_s,
        loss=loss,
    )
