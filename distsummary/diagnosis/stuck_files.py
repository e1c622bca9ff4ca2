"""Reads what is known of the ranks of an attempt that may be stuck, from stuck.json and their states."""

import math
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from distsummary.base.checked_json import MOST_BYTES, parse_json
from distsummary.base.many_files import read_each
from distsummary.base.processes import are_busy, is_stopped
from distsummary.base.publish import file_system_time
from distsummary.diagnosis.crash import Crash, read_crash
from distsummary.diagnosis.stuck import RankReport, hung
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import DamagedFileError
from distsummary.rundir.run_dir import STUCK, RunDir
from distsummary.rundir.run_records import StuckRecord
from distsummary.rundir.states import AttemptState, RankState, unreached_text

FORMAT = 1
FRESH_S = 1.0  # what a rank reported may be older if it finds no processor; then it is no later than it said
STALE_S = 5.0  # a late rank reports every second; one that has not for so long cannot, or continued long ago
# A host that does not see the run dir sends every second. If it has not for so long, its ranks are silent
# because of that. No verdict on a rank comes earlier.
SENDS_S = 3.0
_PROCESSES: dict[bool | None, str] = {  # by `processes.is_stopped`
    True: "its process is stopped by a signal (SIGCONT lets it go on)",
    False: "its process lives, so that native code in it holds the interpreter lock, or its disk hangs",
}


def hung_ranks(run_dir: RunDir, attempt: AttemptState, *, now: float | None = None) -> list[Verdict]:
    """The verdicts of `stuck.hung` on the ranks of an attempt, from files alone.

    Args:
        now: seconds since the epoch; None asks the file system's clock, if any rank reports that it is late.
    """
    if attempt.role != "train":
        return []
    places = [run_dir.writer_dir(attempt.role, rank.rank, attempt.world_size) for rank in attempt.ranks]
    reported = [
        (found if found is not None and found[1].get("attempt") == attempt.attempt else None)
        for found in read_each(_read, places)
    ]
    # Most of the time all is well: then neither the file system's clock is asked nor a crash looked for.
    has_failed = any(rank.state == "failed" for rank in attempt.ranks)
    if not has_failed and not any(one is not None and not one[1]["is_over"] for one in reported):
        return []
    now = file_system_time(run_dir.base) if now is None else now
    newest_s = max((one[0] for one in reported if one is not None), default=0.0)
    sent = {host: run_dir.sent_at(host) for host in {rank.host for rank in attempt.ranks}}
    reports = [
        _report_of(rank, found, now, newest_s, sent[rank.host])
        if rank.state != "lost" or (crash := read_crash(place, attempt.attempt)) is None
        else _crashed(_report_of(rank, None, now, newest_s, None), crash)
        for rank, found, place in zip(attempt.ranks, reported, places, strict=True)
    ]
    known = sorted([*reports, *_starting(run_dir, attempt, now)], key=lambda one: one.rank)
    verdicts = hung(known)
    # A rank that is silent may compute in native code: those that do so are judged again as moving.
    named = {verdict.rank for verdict in verdicts}
    silent = {
        one.rank: rank.process
        for rank, one in zip(attempt.ranks, reports, strict=True)
        if one.rank in named and one.state == "running" and one.late_s is None
    }
    if silent and (busy := are_busy(silent)):
        verdicts = hung([replace(one, is_moving=True) if one.rank in busy else one for one in known])
    return verdicts


def _starting(run_dir: RunDir, attempt: AttemptState, now: float) -> list[RankReport]:
    """What ranks report now that have not registered: where they are before their first step."""
    there = run_dir.rank_dirs(attempt.role) if attempt.missing else {}
    places = [there[rank] for rank in attempt.missing if rank in there]
    found = []
    for one in read_each(_read, places):
        if one is not None and not one[1]["is_over"] and now - one[0] <= STALE_S:
            # The report may be of another version.
            with suppress(KeyError, TypeError, ValueError):
                found.append(RankReport.from_json(one[1]))
    return found


def _crashed(report: RankReport, crash: Crash) -> RankReport:
    return replace(report, crash=crash.error, line=crash.line, crashed_in=crash.collective)


def written_ns(run_dir: RunDir, rank: int, world_size: int) -> int:
    """When a rank last reported a long step, in nanoseconds; 0 if never. Takes a few microseconds."""
    try:
        return os.stat(run_dir.writer_dir("train", rank, world_size) / STUCK).st_mtime_ns
    except OSError:
        return 0


def went_on_at(run_dir: RunDir, attempt: AttemptState, after: float) -> float | None:
    """When a rank first reported, `after` that, that its late step had ended: seconds since the epoch by the
    file system's clock, like `after`; None: none did.
    """
    places = [run_dir.writer_dir(attempt.role, rank.rank, attempt.world_size) for rank in attempt.ranks]
    found = [one for one in read_each(_read, places) if one is not None and one[1]["is_over"]]
    times = [written for written, one in found if one.get("attempt") == attempt.attempt and written >= after]
    return min(times, default=None)


def _report_of(
    rank: RankState,
    found: tuple[float, dict[str, object]] | None,
    now: float,
    newest_s: float,
    sent_s: float | None,
) -> RankReport:
    """What a rank reported, where the newest report of a rank is of `newest_s`.

    `sent_s`: when its host sent something, if that does not see the run dir.

    One that reported long ago that it is late may be unable to write: on a busy host its thread finds no
    processor. What it had begun by then stays begun.
    """
    error = rank.reason if rank.state == "lost" else rank.error
    ended_s = math.inf if rank.state == "running" else rank.last_seen_s
    silent = RankReport(
        rank=rank.rank,
        step=rank.step or 0,
        phase=rank.phase,
        state=rank.state,
        error=error,
        ended_s=ended_s,
    )
    if found is not None:
        reported_s = max(0.0, now - found[0])
        if found[1]["is_over"]:
            silent = replace(silent, went_on_s=reported_s)
        else:
            try:
                report = RankReport.from_json(found[1])
            except (KeyError, TypeError, ValueError):
                # The report is of another version.
                return silent
            # A report of a rank that has ended stays true. One that runs repeats its report while it is late.
            if rank.state != "running" or newest_s - found[0] <= STALE_S:
                if rank.state == "running" and report.late_s is not None:
                    report = replace(report, late_s=report.late_s + min(reported_s, FRESH_S))
                return replace(report, state=rank.state, error=error, ended_s=ended_s)
            # It has not finished that step since: what it had begun by then stays begun.
            if (rank.step or 0) < report.step:
                silent = replace(report, late_s=None, is_moving=False, is_cut_off=False, error=error)
    if rank.state == "running":
        stopped = is_stopped(rank.process)
        process = _PROCESSES.get(stopped, rank.reason)
        is_cut = sent_s is not None and now - sent_s > SENDS_S
        if sent_s is not None and is_cut:
            process = unreached_text(rank.host, sent_s)
        silent = replace(silent, process=process, is_stopped=bool(stopped) or is_cut)
    return silent


def _read(directory: Path) -> tuple[float, dict[str, object]] | None:
    """When a rank's stuck.json was written, and what it holds; None if there is none that can be read."""
    try:
        with open(directory / STUCK, "rb") as file:
            written = os.fstat(file.fileno()).st_mtime
            data = file.read(MOST_BYTES + 1)
        # ended_s of a rank that runs is infinite
        found = parse_json(data, StuckRecord, name=STUCK, is_finite=False)
    except (OSError, DamagedFileError):
        # There is none, or the disk fails: what is known of the rank then is its state.
        return None
    return (written, found) if found["format"] == FORMAT else None
