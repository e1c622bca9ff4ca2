"""Alerts: what alerts.jsonl says, the verdicts that were told while the ranks trained."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from distsummary.diagnosis.stuck import STOOD
from distsummary.diagnosis.stuck_files import hung_ranks
from distsummary.diagnosis.verdict import HANG, Verdict
from distsummary.run_dir import RunDir
from distsummary.states import AttemptState

Key = tuple[int, int, str, int]
Alert = dict[str, Any]


def read_alerts(
    run_dir: RunDir, tell: Callable[[int, Exception], None] | None = None, *, is_growing: bool = False
) -> list[Alert]:
    """The alerts of a run: "time", "attempt" and what `Verdict.as_json` gives; the last line of each counts.

    A line that is no alert, such as one that was not written whole, is left out; `tell` is called with its
    number, from 1, and what is wrong with it. Of a run that goes on (`is_growing`), a last line without its
    end is still being written, and not told. Raises OSError if the file is there and cannot be read.
    """
    found: dict[Key, Alert] = {}
    try:
        data = run_dir.alerts_path.read_bytes()
    except FileNotFoundError:
        return []
    lines = data.splitlines()
    being_written = len(lines) if is_growing and not data.endswith(b"\n") else 0
    for number, line in enumerate(lines, 1):
        try:
            alert = json.loads(line)
            if alert["until_step"] is not None:
                int(alert["until_step"])
            found[key_of(alert)] = alert
        except (ValueError, KeyError, TypeError) as error:
            if tell is not None and number != being_written:
                tell(number, error)
    return [*found.values()]


class Told(NamedTuple):
    """A verdict that was told. `time_s`: when, in seconds since the epoch."""

    attempt: int
    verdict: Verdict
    time_s: float


def told_hangs(run_dir: RunDir) -> list[Told]:
    """The hangs in alerts.jsonl; raises OSError as `read_alerts`."""
    return hangs_among(read_alerts(run_dir))


def hangs_among(alerts: Iterable[Alert]) -> list[Told]:
    """Those of some alerts that tell a hang."""
    return [*filter(None, (_verdict_of(alert) for alert in alerts if alert["cause"] == HANG))]


def with_told(judged: Iterable[tuple[int, Verdict]], run_dir: RunDir) -> list[tuple[int, Verdict]]:
    """Verdicts on a run from its files, with what only alerts.jsonl tells, but for hangs; raises OSError.

    That is what was told of steps which a later attempt has repeated, or whose files are gone. Each verdict
    has its attempt; they come by attempt, then in the order in which they were told.
    """
    found = [*judged]
    left = {key_of(alert): alert for alert in read_alerts(run_dir) if alert["cause"] != HANG}
    own = [{"attempt": attempt, **verdict.as_json()} for attempt, verdict in found]
    for alert in [one for one in own if left.pop(key_of(one), None) is None]:
        if (same := same_episode(alert, left)) is not None:
            del left[same]
    found += [(one.attempt, one.verdict) for one in filter(None, map(_verdict_of, left.values()))]
    return sorted(found, key=lambda one: (one[0], one[1].first_told_step))


def all_hangs(
    run_dir: RunDir, attempt: AttemptState | None, stuck: Iterable[Verdict]
) -> list[tuple[int, Verdict]]:
    """The hangs of a run, each with its attempt: those that were told, then those that only its files show.

    What was told holds: it was seen while the ranks lived, and their files show no hang that has ended. Its
    evidence is the newest one, such as how long the others have waited.

    Args:
        attempt: the newest one. stuck: its ranks that hang, by `stuck_files.hung_ranks`.
    """
    now = {verdict.rank: verdict for verdict in stuck}
    hangs, is_told = [], False
    for number, hang, _ in told_hangs(run_dir):
        if attempt is not None and number == attempt.attempt and hang.until_step is None:
            is_told = True
            newer = now.pop(hang.rank, None)
            # of a rank that is dead, files say less, unless it told itself where it stood
            if newer is not None and (attempt.state == "running" or STOOD in newer.evidence):
                hang = replace(hang, evidence=newer.evidence)
        hangs.append((number, hang))
    has_ended = attempt is not None and attempt.state != "running"
    if attempt is None or (is_told and has_ended):
        return hangs
    return [*hangs, *((attempt.attempt, verdict) for verdict in now.values())]


def alerts_as_of_now(run_dir: RunDir, attempt: AttemptState | None, alerts: Iterable[Alert]) -> list[Alert]:
    """The alerts, those of hangs that last with the newest evidence, as `all_hangs`; raises OSError."""
    alerts = [*alerts]
    if attempt is None or not any(one["cause"] == HANG and one["until_step"] is None for one in alerts):
        return alerts
    now = {
        (number, one.rank, HANG, one.since_step): one.evidence
        for number, one in all_hangs(run_dir, attempt, hung_ranks(run_dir, attempt))
        if one.until_step is None
    }
    return [one | {"evidence": now.get(key_of(one), one.get("evidence"))} for one in alerts]


def key_of(alert: Mapping[str, Any]) -> Key:
    """What an alert is about; equal for the lines that say the same verdict."""
    attempt = int(alert.get("attempt", 0))
    return attempt, int(alert["rank"]), str(alert["cause"]), int(alert["since_step"])


def same_episode(alert: Alert, others: Mapping[Key, Alert]) -> Key | None:
    """The key of that of the others which tells the same, None if none does.

    If none has the same first step, it is one whose steps overlap those of the alert, and begin nearest. The
    steps of an episode are not the same in all tellings: some ranks tell late what they did.
    """
    key = key_of(alert)
    if key in others:
        return key
    same = [
        other
        for other, told in others.items()
        if other[:3] == key[:3] and other[3] <= _last_step(alert) and key[3] <= _last_step(told)
    ]
    return min(same, key=lambda other: abs(other[3] - key[3]), default=None)


def _verdict_of(alert: Alert) -> Told | None:
    """What an alert tells; None if a field is missing or wrong: no alert of ours."""
    with suppress(KeyError, TypeError, ValueError):
        verdict = Verdict.from_json(alert)
        return Told(int(alert.get("attempt", 0)), verdict, float(alert.get("time", 0.0)))
    return None


def _last_step(alert: Alert) -> float:
    return math.inf if alert["until_step"] is None else int(alert["until_step"])
