"""StuckRanks: reports while the ranks train which of them is stuck, and when it continues."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from distsummary.base.publish import file_system_time
from distsummary.diagnosis.alerts import HANGS
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.stuck_files import hung_ranks, went_on_at, written_ns
from distsummary.diagnosis.verdict import AWAITED, Verdict
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import AttemptState, is_over

ACTIVE_S = 3.0  # after a rank has reported something; one that is late reports again every second
LOOKED_AT = 64  # ranks of which one look checks whether they report a late step


class StuckRanks:
    """Looks at the files of the ranks; one look costs a few microseconds while no step is late.

    Of many ranks, each look takes the next LOOKED_AT: where one is stuck, the others are late too.

    Args:
        alerts: reports what is found; None: an object of its own does.
    """

    def __init__(self, run_dir: RunDir, alerts: Alerts | None = None) -> None:
        self._run_dir = run_dir
        self._alerts = Alerts(run_dir) if alerts is None else alerts
        self._next = 0
        self._written: dict[tuple[int, int], int] = {}  # attempt and rank -> when its stuck.json was written
        self._active_until_s = 0.0
        # Rank and step of hangs -> when it was, by the file system's clock.
        self._reported_s: dict[tuple[int, int], float] = {}
        # Attempt and rank of the hangs that the last look did not see.
        self._unseen: set[tuple[int, int]] = set()

    def look(self, attempt: AttemptState) -> list[Verdict]:
        """Report which ranks of an attempt are stuck, and which no longer are; returns the new hangs.

        A hang has ended when its rank has finished a later step, or when two looks in a row do not see it.
        Raises OSError if files cannot be read, or alerts.jsonl could not be written before; where a look
        finds what is new, the next one raises that.
        """
        ranks = [rank.rank for rank in attempt.ranks]
        some = (ranks + ranks)[self._next : self._next + min(LOOKED_AT, len(ranks))]
        self._next = (self._next + LOOKED_AT) % max(1, len(ranks))
        has_ended = is_over(attempt)
        if self._has_news(attempt, some):
            self._active_until_s = time.monotonic() + ACTIVE_S
        lasting = {
            hang.verdict.rank: hang.verdict
            for hang in self._alerts.lasting_hangs()
            if hang.attempt == attempt.attempt
        }
        new = []
        # What ranks report of a hang is read only while something of it may change.
        if lasting or has_ended or time.monotonic() < self._active_until_s:
            new = self._report(attempt, lasting, has_ended=has_ended)
        if not new:
            self._alerts.write()
        return new

    def _report(
        self, attempt: AttemptState, lasting: Mapping[int, Verdict], *, has_ended: bool
    ) -> list[Verdict]:
        """Report which hangs began, and which of the `lasting` ones, by rank, ended; returns the new ones."""
        number = attempt.attempt
        found = {verdict.rank: verdict for verdict in hung_ranks(self._run_dir, attempt)}
        new = []
        for rank, verdict in found.items():
            reported = lasting.get(rank)
            if reported is not None:
                # This is the same hang: the steps of ranks that wait for each other differ by one at most. A
                # rank that was only waited for hangs after a while.
                is_same = verdict.since_step <= reported.since_step + 1
                if is_same and verdict.cause in (reported.cause, AWAITED):
                    continue
                self._alerts.report(number, self._ended(reported, attempt))
            if self._alerts.report(number, verdict) and verdict.cause in HANGS:
                self._reported_s[rank, verdict.since_step] = file_system_time(self._run_dir.base)
                new.append(verdict)
        steps = {rank.rank: rank.step or 0 for rank in attempt.ranks}
        # At the end of a run, those are over whose step all ranks have passed.
        passed = min(steps.values(), default=0) if has_ended else -1
        unseen = {
            rank: reported
            for rank, reported in lasting.items()
            if rank not in found and (not has_ended or passed > reported.since_step)
        }
        # One look that does not see a hang may be wrong, unless its rank has finished a later step.
        for rank, reported in unseen.items():
            if steps.get(rank, 0) > reported.since_step or (number, rank) in self._unseen:
                self._alerts.report(number, self._ended(reported, attempt))
        others = {key for key in self._unseen if key[0] != number}
        self._unseen = others | {(number, rank) for rank in unseen}
        return new

    def _ended(self, hang: Verdict, attempt: AttemptState) -> Verdict:
        """A hang that has ended, with its length: until a rank reported that it went on, or until now."""
        now = file_system_time(self._run_dir.base)
        reported_s = self._reported_s.pop((hang.rank, hang.since_step), now)
        ended_s = went_on_at(self._run_dir, attempt, reported_s) or now
        return replace(hang, until_step=hang.since_step, lost_s=hang.lost_s + max(0.0, ended_s - reported_s))

    def _has_news(self, attempt: AttemptState, ranks: Iterable[int]) -> bool:
        """Whether one of these ranks has written its stuck.json since the last look at it."""
        has_news = False
        for rank in ranks:
            key = attempt.attempt, rank
            written = written_ns(self._run_dir, rank, attempt.world_size)
            if written != self._written.get(key, 0):
                self._written[key] = written
                has_news = True
        return has_news
