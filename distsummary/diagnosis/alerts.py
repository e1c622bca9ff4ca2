"""Alerts: what alerts.jsonl says: the findings, messages and ends that were reported while the ranks trained.

A line is JSON: `time` (seconds since the epoch), `attempt`, the fields of a `Verdict`, and, of an alert that
was neither printed nor passed on, `held`: "mute", "level", "rate", "cost" or "said".
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from distsummary.base.checked_json import parse_json
from distsummary.diagnosis.sentence import with_line
from distsummary.diagnosis.stuck import says_where
from distsummary.diagnosis.stuck_files import hung_ranks
from distsummary.diagnosis.verdict import (
    AWAITED,
    CONFIG,
    DRIFT,
    DROPPED,
    ERROR,
    FAILED,
    GROWTH,
    HANG,
    INFO,
    INTERRUPTED,
    LOST,
    MEMORY,
    MESSAGE,
    OF_THE_RUN,
    SLOW,
    STOPPED,
    WARNING,
    Verdict,
    level_of,
)
from distsummary.errors import DamagedFileError
from distsummary.rundir.attempts import TRAINED
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.run_records import AlertRecord
from distsummary.rundir.states import AttemptState

Key = tuple[int, int, str, int]
Alert = dict[str, Any]
HANGS = (HANG, AWAITED)
# Of `held`: the user wants no alerts of this cause; a slow rank has cost little so far; another alert is
# about the same, see SAYS_MORE.
MUTED, SMALL, SAID = "mute", "cost", "said"
# Findings that say more of a rank than others, which are about the same; how the evidence of these follows.
SAYS_MORE = {GROWTH: (MEMORY, "it has"), DRIFT: (CONFIG, "its settings differ:")}


def read_alerts(
    run_dir: RunDir, report: Callable[[int, Exception], None] | None = None, *, is_growing: bool = False
) -> list[Alert]:
    """The alerts of a run: "time", "attempt" and what `Verdict.as_json` gives; the last line of each counts.

    A line that is no alert, such as one that was not written whole, is left out; `report` is called with its
    number, from 1, and what is wrong with it. Of a run that continues (`is_growing`), a last line without its
    end is still being written, and not reported. Raises OSError if the file is there and cannot be read.
    """
    found: dict[Key, Alert] = {}
    try:
        data = run_dir.alerts_path.read_bytes()
    except FileNotFoundError:
        return []
    being_written = data.count(b"\n") + 1 if is_growing and not data.endswith(b"\n") else 0
    for number, alert in parsed(data):
        if not isinstance(alert, Exception):
            found[key_of(alert)] = alert
        elif report is not None and number != being_written:
            report(number, alert)
    return [*found.values()]


def parsed(data: bytes) -> Iterator[tuple[int, Alert | Exception]]:
    """The lines of alerts.jsonl with their numbers from 1: an alert, or why a line is none."""
    for number, line in enumerate(data.splitlines(), 1):
        try:
            alert = parse_json(line, AlertRecord, name="the line")
            # Raises KeyError for a message without evidence, which the type of the record does not require.
            key_of(alert)
        except (DamagedFileError, KeyError) as error:
            yield number, error
        else:
            yield number, alert


def level_in(alert: Mapping[str, Any]) -> str:
    """The level of an alert; older versions wrote none."""
    return str(alert.get("level") or level_of(str(alert["cause"])))


class Reports(NamedTuple):
    """The alerts of a run, and why what was reported of it is not all there; empty if it is."""

    alerts: list[Alert]
    unread: str = ""


def read_reports(run_dir: RunDir, attempt: AttemptState | None) -> Reports:
    """The alerts of a run whose newest attempt this is; never raises.

    A rank says at its end whether it was judged: then the beginning of the attempt, at least, was reported.
    """
    broken: list[str] = []

    def report(number: int, error: Exception) -> None:
        broken.append(f"line {number}: {error}")

    name = run_dir.alerts_path.name
    is_growing = attempt is not None and attempt.state == "running"
    try:
        alerts = read_alerts(run_dir, report, is_growing=is_growing)
    except OSError as error:
        return Reports([], f"{name} cannot be read: {error.strerror or error}")
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        return Reports(alerts, f"{name} is damaged ({broken[0]}{more})")
    if attempt is None or is_growing or any(one.get("attempt", 0) == attempt.attempt for one in alerts):
        return Reports(alerts)
    is_judged = any(rank.health.get("judged") for rank in attempt.ranks)
    if is_judged and (attempt.is_settled or attempt.world_size == 1):
        return Reports(alerts, f"{name} has nothing of attempt {attempt.attempt}: it was removed or cut")
    return Reports(alerts)


def is_finding(alert: Mapping[str, Any]) -> bool:
    """Whether an alert says that something is wrong."""
    return level_in(alert) != INFO and alert["cause"] != INTERRUPTED


def ranks_in(alert: Mapping[str, Any]) -> set[int]:
    """The ranks that an alert is about."""
    return {*(alert.get("ranks") or [alert["rank"]])}


def each_fact_once(alerts: Iterable[Alert]) -> list[Alert]:
    """The alerts; those that say more of the same ranks than others have the evidence of these, which go."""
    left = [*alerts]
    for cause, (included, words) in SAYS_MORE.items():
        for less in [one for one in left if one["cause"] == included]:
            more = [
                one
                for one in left
                if one["cause"] == cause and one.get("held") != MUTED and ranks_in(one) & ranks_in(less)
                if one.get("attempt", 0) == less.get("attempt", 0)
            ]
            # An alert that is also about other ranks stays.
            if ranks_in(less) <= set[int]().union(*map(ranks_in, more)):
                for one in more:
                    left[left.index(one)] = one | {
                        "evidence": f"{one['evidence']}; {words} {less['evidence']}",
                        "lost_s": max(one.get("lost_s") or 0.0, less.get("lost_s") or 0.0),
                    }
                left.remove(less)
    return [one for one in left if not any(_was_before(one, other) for other in left)]


def _was_before(alert: Alert, other: Alert) -> bool:
    """Whether an alert is what was said of the same before more of it was seen.

    Ranks that are slow in turns each had an alert, and those that hang were awaited.
    """
    if alert.get("attempt", 0) != other.get("attempt", 0):
        return False
    if (alert["cause"], other["cause"]) == (AWAITED, HANG):
        return alert["since_step"] == other["since_step"] and ranks_in(alert) <= ranks_in(other)
    return alert["cause"] == other["cause"] and alert["cause"] in SLOW and ranks_in(alert) < ranks_in(other)


def holds(alert: Mapping[str, Any], attempt: AttemptState | None) -> bool:
    """Whether what was reported still is so: no lost or failed rank runs again or has finished since."""
    is_end = attempt is not None and alert["cause"] in (LOST, FAILED)
    if attempt is None or not is_end or alert.get("attempt", 0) != attempt.attempt:
        return True
    well = {rank.rank for rank in attempt.ranks if rank.state in ("running", *TRAINED)}
    return not well.issuperset(ranks_in(alert))


def as_reported(hung: Iterable[Verdict], alerts: Iterable[Alert], attempt: AttemptState) -> list[Verdict]:
    """What stopped ranks, from files, at the steps at which it was reported; without a report, a rank was
    lost or failed at its own newest step.
    """
    own = {rank.rank: rank.step for rank in attempt.ranks if rank.step}
    steps = {(rank, cause): step for rank, step in own.items() for cause in (LOST, FAILED)} | {
        (one.verdict.rank, one.verdict.cause): one.verdict.since_step
        for one in hangs_among(alerts, STOPPED)
        if one.attempt == attempt.attempt and one.verdict.until_step is None
    }
    return [replace(one, since_step=steps.get((one.rank, one.cause), one.since_step)) for one in hung]


def open_findings(
    alerts: Iterable[Alert], attempt: AttemptState | None, stuck: Iterable[Verdict] = ()
) -> list[Verdict]:
    """What is wrong with an attempt, without what is muted, or has cost little; of a slow rank with its line.

    Args:
        alerts: of the run. attempt: the newest one; None: of a run without run.json, all count.
        stuck: the ranks of the attempt that hang now, by `stuck_files.hung_ranks`.
    """
    listed = each_fact_once(alert for alert in alerts if is_finding(alert) and holds(alert, attempt))
    shown = (one for one in listed if one.get("held") not in (MUTED, SMALL))
    reported = [*filter(None, map(_verdict_of, shown))]
    if attempt is None:
        return [one.verdict for one in reported]
    if attempt.role != "train":
        return []
    steps = {rank.rank: rank.step or 0 for rank in attempt.ranks}
    is_over = attempt.state == "finished"
    found = [one.verdict for one in reported if one.attempt == attempt.attempt]
    # A hang is over once its rank has made a later step, or the attempt has finished.
    found = [
        replace(one, until_step=one.since_step)
        if one.cause in HANGS and (is_over or steps.get(one.rank, 0) > one.since_step)
        else one
        for one in found
    ]
    # Files may show what no alert has reported yet.
    lasting = {(one.rank, one.cause) for one in found if one.cause in HANGS and one.until_step is None}
    stopped = {one.rank for one in found if one.cause in STOPPED and one.until_step is None}
    found += [one for one in stuck if (one.rank, one.cause) not in lasting and one.rank not in stopped]
    # Ranks may have dropped more values since that was reported: the current counts replace the alert.
    dropped = {rank.rank: count for rank in attempt.ranks if (count := rank.dropped)}
    is_muted = any(one["cause"] == DROPPED and one.get("held") == MUTED for one in listed)
    if dropped and not is_muted:
        step = max((rank.step or 0 for rank in attempt.ranks), default=0)
        found = [*(one for one in found if one.cause != DROPPED), values_dropped(dropped, step)]
    seen = {rank.rank: rank.seen for rank in attempt.ranks}
    return [with_line(one, seen.get(one.rank, ())) for one in found]


def values_dropped(counts: Mapping[int, int], step: int) -> Verdict:
    """The verdict on ranks that have dropped values; `counts`: rank -> how many. `step`: the newest."""
    values = f"{sum(counts.values()):,} value{'s' if sum(counts.values()) > 1 else ''}"
    return Verdict(
        rank=min(counts),
        cause=DROPPED,
        since_step=step,
        until_step=None,
        evidence=f"{values} by step {step:,}; the log names each reason once",
        reported_step=step,
        ranks=(*sorted(counts),) if len(counts) > 1 else (),
    )


def worst_level(findings: Iterable[Verdict]) -> str:
    """The level of a run with these findings: "error" if an error lasts, else "warning"; empty: none."""
    levels = {
        WARNING if one.until_step is not None and one.cause != MESSAGE else one.level for one in findings
    }
    return ERROR if ERROR in levels else WARNING if levels else ""


class Reported(NamedTuple):
    """A verdict that was reported. `time_s`: when, in seconds since the epoch."""

    attempt: int
    verdict: Verdict
    time_s: float


def reported_hangs(run_dir: RunDir) -> list[Reported]:
    """The hangs in alerts.jsonl, also those that were no error yet; raises OSError as `read_alerts`."""
    return hangs_among(read_alerts(run_dir))


def hangs_among(alerts: Iterable[Alert], causes: Collection[str] = HANGS) -> list[Reported]:
    """The alerts about hangs, or of other `causes`, as verdicts."""
    return [*filter(None, (_verdict_of(alert) for alert in alerts if alert["cause"] in causes))]


def with_reported(judged: Iterable[tuple[int, Verdict]], run_dir: RunDir) -> list[tuple[int, Verdict]]:
    """Verdicts on a run from its files, with what only alerts.jsonl has, except hangs; raises OSError.

    That is what was reported of steps which a later attempt has repeated, or whose files are gone. Each
    verdict has its attempt; they come by attempt, then in the order in which they were reported.
    """
    left = {
        key_of(alert): alert
        for alert in read_alerts(run_dir)
        if alert["cause"] not in (*STOPPED, AWAITED) and is_finding(alert)
    }
    own = [{"attempt": attempt, **verdict.as_json()} for attempt, verdict in judged]
    # Exact keys go first, so that no alert is taken for a neighboring episode before its own is found.
    for alert in [one for one in own if left.pop(key_of(one), None) is None]:
        if (same := same_episode(alert, left)) is not None:
            del left[same]
    whole = filter(None, map(_verdict_of, each_fact_once([*own, *left.values()])))
    found = [(one.attempt, one.verdict) for one in whole]
    return sorted(found, key=lambda one: (one[0], one[1].reported_step))


def all_hangs(
    run_dir: RunDir, attempt: AttemptState | None, stuck: Iterable[Verdict]
) -> list[tuple[int, Verdict]]:
    """What stopped a run (hangs, lost and failed ranks), each with its attempt: the alerts, then the files.

    What was reported holds: it was seen while the ranks lived, and their files show no hang that has ended.
    Its evidence is the newest one, such as how long the others have waited.

    Args:
        attempt: the newest one. stuck: its ranks that hang, by `stuck_files.hung_ranks`.
    """
    alerts = read_alerts(run_dir)
    if attempt is not None:
        stuck = as_reported(stuck, alerts, attempt)
    now = {verdict.rank: verdict for verdict in stuck}
    hangs, is_reported = [], False
    for number, hang, _ in hangs_among(each_fact_once(alerts), (*STOPPED, AWAITED)):
        if attempt is not None and number == attempt.attempt and hang.until_step is None:
            is_reported |= hang.cause == HANG
            newer = now.get(hang.rank)
            if newer is not None and newer.cause in (hang.cause, LOST, FAILED):
                del now[hang.rank]
            if newer is not None and newer.cause == hang.cause:
                # Of a rank that is dead, the files say less, unless the rank itself reported where it was.
                if hang.cause != HANG or attempt.state == "running" or says_where(newer):
                    hang = replace(hang, evidence=newer.evidence)
                hang = replace(hang, lost_s=max(hang.lost_s, newer.lost_s))
        hangs.append((number, hang))
    # What was reported while the attempt ran is the reason why it ended: its files add nothing to that.
    has_ended = attempt is not None and attempt.state != "running"
    if attempt is None or (is_reported and has_ended):
        return hangs
    return [*hangs, *((attempt.attempt, verdict) for verdict in now.values())]


def alerts_as_of_now(run_dir: RunDir, attempt: AttemptState | None, alerts: Iterable[Alert]) -> list[Alert]:
    """The alerts, what stopped ranks with the newest evidence, and what only files show of that, as
    `all_hangs`; raises OSError.
    """
    if attempt is None:
        return [*alerts]
    found = [
        {"attempt": number, **one.as_json()}
        for number, one in all_hangs(run_dir, attempt, hung_ranks(run_dir, attempt))
        if one.until_step is None
    ]
    now = {key_of(one): one for one in found}
    known = [
        one | {name: now[key][name] for name in ("evidence", "lost_s")}
        if (key := key_of(one)) in now
        else one
        for one in alerts
    ]
    left = now.keys() - {key_of(one) for one in known}
    return [*known, *(one for key, one in now.items() if key in left)]


def key_of(alert: Mapping[str, Any]) -> Key:
    """What an alert is about; equal for the lines that report the same fact."""
    attempt, rank, cause = int(alert.get("attempt", 0)), int(alert["rank"]), str(alert["cause"])
    if cause in OF_THE_RUN:
        return attempt, 0, cause, 0
    # All times at which the rank was slow for that cause share one alert.
    if cause in SLOW:
        return attempt, rank, cause, 0
    if cause == MESSAGE:
        cause = f"{MESSAGE} {alert['evidence']}"
    return attempt, rank, cause, int(alert["since_step"])


def same_episode(alert: Alert, others: Mapping[Key, Alert]) -> Key | None:
    """The key of the alert among `others` that reports the same episode, None if none does.

    If none has the same first step, it is one whose steps overlap those of the alert, and begin nearest. The
    steps of an episode are not the same in all reports: some ranks report late what they did.
    """
    key = key_of(alert)
    if key in others:
        return key
    same = [
        other
        for other, reported in others.items()
        if other[:3] == key[:3] and other[3] <= _last_step(alert) and key[3] <= _last_step(reported)
    ]
    return min(same, key=lambda other: abs(other[3] - key[3]), default=None)


def _verdict_of(alert: Alert) -> Reported | None:
    """What an alert reports; None if a field is missing or wrong: no alert of ours."""
    with suppress(KeyError, TypeError, ValueError):
        verdict = Verdict.from_json(alert)
        return Reported(int(alert.get("attempt", 0)), verdict, float(alert.get("time", 0.0)))
    return None


def _last_step(alert: Alert) -> float:
    return math.inf if alert["until_step"] is None else int(alert["until_step"])
