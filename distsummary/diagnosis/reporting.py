"""Alerts: reports each fact about a run once, in alerts.jsonl and on stderr, and at most so many an hour.

Any process of the run may do so: the aggregator, a rank, a merge.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from distsummary.base.columns import quoted
from distsummary.base.publish import open_own
from distsummary.base.terminal import cleaned
from distsummary.diagnosis.alerts import (
    HANGS,
    MUTED,
    SAID,
    SAYS_MORE,
    SMALL,
    Alert,
    Key,
    Reported,
    hangs_among,
    key_of,
    level_in,
    parsed,
    ranks_in,
    same_episode,
)
from distsummary.diagnosis.cost import intervals_of, is_small
from distsummary.diagnosis.diagnose import Diagnose
from distsummary.diagnosis.sentence import sentence
from distsummary.diagnosis.verdict import LEVELS, MESSAGE, SLOW, Interval, Verdict
from distsummary.errors import DistSummaryError
from distsummary.rundir.run_dir import RunDir

HOUR_S = 3600.0
MOST_MESSAGES = 10_000  # of the user, that a rank reports: each reader reads all of them
GROWTH = 1.05  # by which the cost of what lasts must be larger for another line
LOCK_S = 2.0  # a line that is appended without the lock may only be lost where others write at this moment
LOW, RATE = "level", "rate"  # of `held`, in addition to MUTED and SMALL


def held_back(count: int) -> str:
    """What is said of alerts that were more than `Diagnose.most_per_hour`."""
    are = "alert was" if count == 1 else "alerts were"
    return f"{count:,} more {are} held back, as too many came within an hour (ds.Diagnose(most_per_hour=))."


class Alerts:
    """Reports each fact once: in alerts.jsonl and, unless it is held back, in a line on stderr.

    A verdict that ends gets another line in the file, with its last step, and so does a hang that lasts after
    all, a rank that is slow again for the same cause, and what costs much more than before; of lines with the
    same key (`alerts.key_of`), the last one counts. A verdict that an earlier object reported of other first
    steps, such as before a rank wrote what it was late with, is not reported again: one that overlaps it, of
    the same attempt, rank and cause, is taken for the same.

    `Diagnose`, which rank 0 wrote into run.json, says what is held back: muted causes, levels that are too
    low, and more than so many alerts an hour, of which those of a lower level do not count. A slow rank is
    held back while what it has cost is little (`cost.is_small`). The file has all.

    Any thread may call the methods.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._lock = threading.RLock()
        self._newest: dict[Key, Alert] = {}  # the newest line of each
        self._unmatched: dict[Key, Alert] = {}  # of these, what only other objects reported
        self._reported_as: dict[Key, Key] = {}  # by which of these a verdict was reported
        self._due: list[Alert] = []  # lines that the file does not have yet
        self._reported: list[tuple[float, int]] = []  # when, and the level as a number, of what was not held
        self._held = 0  # by the rate, which was not said yet
        self._read_to = 0  # bytes of the file
        self._messages = 0  # of the user, that this object has reported
        self._began_s = time.time()

    def report(self, attempt: int, verdict: Verdict) -> bool:
        """Report a verdict, unless it was; returns whether it is new.

        A line that cannot be written is kept for `write`.
        """
        # A file that fails must not stop a training: the next call of `write` raises the error.
        with self._lock:
            if verdict.cause == MESSAGE:
                self._messages += 1
                if self._messages > MOST_MESSAGES:
                    if self._messages == MOST_MESSAGES + 1:
                        self._print(f"{MOST_MESSAGES:,} messages were reported; further ones are left out.")
                    return False
            with contextlib.suppress(OSError):
                self._read()
            alert = self._note(attempt, verdict)
            if alert is not None and (text := self._said(verdict, alert.get("held"))):
                self._print(text)
            with contextlib.suppress(OSError):
                self.write()
        return alert is not None

    def _said(self, verdict: Verdict, held: str | None) -> str:
        """What is printed of a new verdict, and of those that were held back; empty if nothing is."""
        # The first alert that is held back is announced; those after it are only counted.
        if held == RATE:
            self._held += 1
            most = self._diagnose().most_per_hour
            return f"{most:,} alerts came within an hour; more are only counted for a while." * (
                self._held == 1
            )
        if held is not None:
            return ""
        more = f" {held_back(self._held)}" if self._held else ""
        self._held = 0
        return f"{sentence(verdict)}{more}"

    def _print(self, text: str) -> None:
        # The terminal may be gone, or stderr be closed.
        with contextlib.suppress(OSError, ValueError):
            text = f"distsummary: {text} More: distsummary why {quoted(self._run_dir.base)}"
            print(cleaned(text), file=sys.stderr, flush=True)

    def _note(self, attempt: int, verdict: Verdict) -> Alert | None:
        """Note what is to be written of a verdict; returns its alert if it is new."""
        alert: Alert = {"time": time.time(), "attempt": attempt, **verdict.as_json()}
        key = self._key_of(alert)
        known = self._newest.get(key)
        if known is not None:
            newer = _newer(known, verdict)
            if newer == known or _costs_little_more(known, newer):
                return None
            alert = newer | {"time": alert["time"]}
            # What was held back because it had cost little is said once it has cost more.
            if alert.get("held") == SMALL and not self._is_small(alert):
                del alert["held"]
                known = None
                if held := self._why_held(alert):
                    alert["held"] = held
                self._count(alert)
        else:
            if held := self._why_held(alert):
                alert["held"] = held
            self._count(alert)
        self._newest[key] = alert
        self._due.append(alert)
        return alert if known is None else None

    def _why_held(self, alert: Alert) -> str | None:
        settings, level = self._diagnose(), LEVELS.index(level_in(alert))
        if alert["cause"] in settings.mute:
            return MUTED
        if level < LEVELS.index(settings.level):
            return LOW
        if self._is_small(alert):
            return SMALL
        if any(self._is_about_same(one, alert) for one in self._newest.values()):
            return SAID
        self._reported = [one for one in self._reported if one[0] > alert["time"] - HOUR_S]
        counted = sum(one >= level for _, one in self._reported)
        return RATE if counted >= settings.most_per_hour else None

    @staticmethod
    def _is_about_same(known: Alert, alert: Alert) -> bool:
        """Whether an alert that was said, of no lower level, says as much or more of the same ranks."""
        pair = known["cause"], alert["cause"]
        return (
            any({*pair} == {cause, less} for cause, (less, _) in SAYS_MORE.items())
            and known.get("attempt", 0) == alert["attempt"]
            and known.get("held") is None
            and bool(ranks_in(known) & ranks_in(alert))
            and LEVELS.index(level_in(known)) >= LEVELS.index(level_in(alert))
        )

    def _is_small(self, alert: Alert) -> bool:
        return is_small(alert["cause"], alert["lost_s"], time.time() - self._began_s)

    def _count(self, alert: Alert) -> None:
        if alert.get("held") is None and isinstance(alert.get("time"), (int, float)):
            self._reported.append((alert["time"], LEVELS.index(level_in(alert))))

    def _diagnose(self) -> Diagnose:
        """The settings of the newest training; the usual ones if they are not there."""
        try:
            attempts = self._run_dir.read_manifest()["attempts"]
            found = [one["diagnose"] for one in attempts if one["role"] == "train" and "diagnose" in one]
            return Diagnose(**found[-1]) if found else Diagnose()
        except (DistSummaryError, TypeError):
            return Diagnose()

    def write(self) -> None:
        """Write what was reported and could not be written; raises OSError if it still cannot be."""
        with self._lock:
            if not self._due:
                self._read()
                return
            with self._locked():
                self._read()
                lines = b"".join(json.dumps(alert).encode() + b"\n" for alert in self._due)
                _append(self._run_dir.alerts_path, lines)
            self._due.clear()

    def close(self) -> None:
        """Say how many alerts were held back since the last one that was not."""
        with self._lock:
            if self._held:
                self._print(held_back(self._held))
            self._held = 0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the file, which matters on network file systems, if it can be had."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(DistSummaryError):
                held.enter_context(self._run_dir.locked("alerts", timeout_s=LOCK_S))
            yield

    def lasting_hangs(self) -> list[Reported]:
        """The hangs that have not ended."""
        with self._lock:
            # An error is left to `write`, which raises it.
            with contextlib.suppress(OSError):
                self._read()
            return hangs_among(alert for alert in self._newest.values() if alert["until_step"] is None)

    def _read(self) -> None:
        """Read what was appended to the file; raises OSError."""
        try:
            if self._run_dir.alerts_path.stat().st_size == self._read_to:
                return
            with open(self._run_dir.alerts_path, "rb") as file:
                # A file that is shorter than what was read is another one.
                if os.fstat(file.fileno()).st_size < self._read_to:
                    self._read_to = 0
                file.seek(self._read_to)
                data = file.read()
        except FileNotFoundError:
            return
        # A line without its end is still being written; the next call reads it.
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        due = {key_of(alert) for alert in self._due}
        for _, alert in parsed(whole):
            if isinstance(alert, Exception):
                continue
            key = key_of(alert)
            if key not in self._newest:
                self._unmatched[key] = alert
                self._count(alert)
            # A line that this object has still to write is newer than what the file holds.
            if key not in due:
                self._newest[key] = alert

    def _key_of(self, alert: Alert) -> Key:
        """The key by which it was reported, its own if it was not."""
        key = key_of(alert)
        if key not in self._reported_as:
            found = same_episode(alert, self._unmatched)
            self._reported_as[key] = key if found is None else found
            self._unmatched.pop(self._reported_as[key], None)
        return self._reported_as[key]


class Reporter(Protocol):
    """Has alerts reported on the node on which the run is whole."""

    def report(self, attempt: int, verdict: Verdict) -> bool:
        """As `Alerts.report`; raises OSError if that node does not answer."""


class SentAlerts:
    """Alerts of a rank whose host does not see the run dir; what did not arrive is kept for `write`."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._due: list[tuple[int, Verdict]] = []

    def report(self, attempt: int, verdict: Verdict) -> None:
        """Have a verdict reported."""
        self._due.append((attempt, verdict))
        with contextlib.suppress(OSError):
            self.write()

    def write(self) -> None:
        """Send what has not arrived; raises OSError."""
        while self._due:
            self._reporter.report(*self._due[0])
            self._due.pop(0)


def _newer(alert: Alert, verdict: Verdict) -> Alert:
    """An alert with what a verdict on the same says now.

    What has ended lasts again only if it is a hang: whoever judges the files once more finds first that it
    lasts. What was reported of a slow rank at other steps stays, and so does the first step of an interval.
    """
    newer = alert | {"lost_s": max(alert.get("lost_s") or 0.0, verdict.lost_s)}
    if len(verdict.ranks) > len(alert.get("ranks") or ()):
        newer["ranks"] = [*verdict.ranks]
    if verdict.cause not in SLOW:
        lasts, lasted = verdict.until_step is None, alert["until_step"] is None
        return (
            newer
            if lasts == lasted or (lasts and verdict.cause not in HANGS)
            else newer | {"until_step": verdict.until_step}
        )
    # An interval that ended stays ended: whoever judges the files again finds it open at first.
    known = [tuple(one) for one in alert.get("intervals") or [(alert["since_step"], alert["until_step"])]]
    now = intervals_of(verdict)
    if verdict.until_step is None and any(
        until is not None and since <= now[-1][0] <= until for since, until in known
    ):
        return newer
    # Intervals at other steps stay. Of those that overlap a known one, the first keeps its first step.
    intervals = [one for one in known if not any(_overlap(one, each) for each in now)]
    after = -1
    for since, until in now:
        begun = (one[0] for one in known if one[0] > after and _overlap(one, (since, until)))
        intervals.append((next(begun, since), until))
        after = since if until is None else until
    intervals.sort(key=lambda one: one[0])
    if verdict.lost_s > (alert.get("lost_s") or 0.0):
        newer["evidence"] = verdict.evidence
    return newer | {
        "since_step": intervals[0][0],
        "until_step": intervals[-1][1],
        "intervals": [[*one] for one in intervals] if len(intervals) > 1 else [],
    }


def _costs_little_more(known: Alert, newer: Alert) -> bool:
    """Whether an alert on what lasts says only that it costs hardly more; that grows all the time."""
    alike = {"lost_s": 0.0, "evidence": ""}
    return (
        newer["until_step"] is None
        and newer | alike == known | alike
        and newer["lost_s"] < GROWTH * (known.get("lost_s") or 0.0)
    )


def _overlap(one: Interval, other: Interval) -> bool:
    (since, until), (other_since, other_until) = one, other
    return (until is None or other_since <= until) and (other_until is None or since <= other_until)


def _append(path: Path, lines: bytes) -> None:
    """Append lines to a file, all of them or nothing; raises OSError."""
    place = open_own(path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(place).st_size
        # A process that died may have left a line without its end: the new lines must not continue it.
        if size and os.pread(place, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        try:
            while lines:
                lines = lines[os.write(place, lines) :]
        except OSError:
            # Remove what was written of the lines, so that `write` can try again without writing them twice.
            os.ftruncate(place, size)
            raise
    finally:
        os.close(place)
