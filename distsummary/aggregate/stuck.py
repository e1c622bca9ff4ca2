"""StuckRanks: tells while the ranks train which of them is stuck, and when it goes on."""

import time
from collections.abc import Iterable
from dataclasses import replace

from distsummary.aggregate.judging import Alerts
from distsummary.diagnosis.alerts import told_hangs
from distsummary.diagnosis.stuck_files import hung_ranks, written_ns
from distsummary.diagnosis.verdict import Verdict
from distsummary.run_dir import RunDir
from distsummary.states import AttemptState, is_over

ACTIVE_S = 3.0  # after a rank has told something; one that is late tells it again every second
LOOKED_AT = 64  # ranks of which it is seen in one look whether they tell that a step is late


class StuckRanks:
    """Looks at the files of the ranks; one look costs a few microseconds while no step is late.

    Of many ranks, each look takes the next LOOKED_AT: where one is stuck, the others are late too.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._alerts = Alerts(run_dir)
        self._next = 0
        self._written: dict[tuple[int, int], int] = {}  # attempt and rank -> when its stuck.json was written
        self._active_until_s = 0.0
        self._open = {  # attempt and rank -> what was told, and lasts
            (hang.attempt, hang.verdict.rank): hang.verdict
            for hang in told_hangs(run_dir)
            if hang.verdict.until_step is None
        }

    def look(self, attempt: AttemptState) -> list[Verdict]:
        """Tell which ranks of an attempt are stuck, and which are no longer; raises OSError.

        Returns the verdicts that are new.
        """
        ranks = [rank.rank for rank in attempt.ranks]
        some = (ranks + ranks)[self._next : self._next + min(LOOKED_AT, len(ranks))]
        self._next = (self._next + LOOKED_AT) % max(1, len(ranks))
        number = attempt.attempt
        has_ended = is_over(attempt)
        if self._has_news(attempt, some):
            self._active_until_s = time.monotonic() + ACTIVE_S
        is_open = any(key[0] == number for key in self._open)
        if not (is_open or has_ended or time.monotonic() < self._active_until_s):
            return []
        found = {(number, verdict.rank): verdict for verdict in hung_ranks(self._run_dir, attempt)}
        new = []
        for key, verdict in found.items():
            told = self._open.get(key)
            if told is not None:
                if verdict.since_step <= told.since_step + 1:  # steps of ranks that wait differ by one
                    continue
                self._alerts.tell(number, replace(told, until_step=told.since_step))
            self._alerts.tell(number, verdict)
            self._open[key] = verdict
            new.append(verdict)
        for key, verdict in list(self._open.items()):
            if key[0] == number and key not in found and not has_ended:
                self._alerts.tell(key[0], replace(verdict, until_step=verdict.since_step))
                del self._open[key]
        return new

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
