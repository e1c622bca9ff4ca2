"""Judging: the verdicts on the ranks of a run, from their scalars, while they train and afterwards."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from distsummary.aggregate.norms import Meshes
from distsummary.aggregate.rank_files import RankFiles
from distsummary.aggregate.sick_ranks import SickRanks
from distsummary.aggregate.statistics import Rows
from distsummary.diagnosis.alerts import key_of, read_alerts
from distsummary.diagnosis.judge import Judge, own_times
from distsummary.diagnosis.verdict import Verdict
from distsummary.format.records import ALERT_TAGS, Value
from distsummary.run_dir import RunDir

TEXT_TAG, RANK_TAG = ALERT_TAGS


class Judging:
    """Judges the steps of all attempts of a training, in rising order; equal steps give equal verdicts.

    Args:
        meshes: where the ranks are in the mesh.
        tell: called with the attempt and each verdict that is new or ends.
    """

    def __init__(self, meshes: Meshes, tell: Callable[[int, Verdict], None] | None = None) -> None:
        self._meshes, self._tell = meshes, tell
        self._attempt = -1
        self._judge, self._sick = self._of(-1)
        self._verdicts: dict[tuple[int, int, str, int], Verdict] = {}

    def _of(self, attempt: int) -> tuple[Judge, SickRanks]:
        judge = Judge(lambda rank: self._meshes.place(attempt, rank).coordinates)
        return judge, SickRanks(self._meshes, attempt)

    def add(self, rows: Rows, attempt: int) -> list[Verdict]:
        """Judge some steps of an attempt; returns the verdicts that are new, and those that end."""
        if attempt != self._attempt:  # other processes, perhaps on other hosts
            self._attempt = attempt
            self._judge, self._sick = self._of(attempt)
        with np.errstate(over="ignore"):  # as the files hold them
            rows = rows._replace(values=rows.values.astype(np.float32).astype(np.float64))
        changed = self._sick.add(rows)
        for told in own_times(*rows):
            changed += self._judge.add(told)
        return self._tell_all(changed, attempt)

    def add_samples(self, rows: Rows, attempt: int) -> list[Verdict]:
        """Judge samples of the system that came when their steps had been judged."""
        return self._tell_all(self._sick.add_samples(rows), attempt) if attempt == self._attempt else []

    def _tell_all(self, changed: list[Verdict], attempt: int) -> list[Verdict]:
        for verdict in changed:
            self._verdicts[attempt, verdict.rank, verdict.cause, verdict.since_step] = verdict
            if self._tell is not None:
                self._tell(attempt, verdict)
        return changed

    @property
    def verdicts(self) -> list[Verdict]:
        """All so far, in the order in which they were told; those that have ended as they ended."""
        return [
            self._verdicts[key]
            for key in sorted(self._verdicts, key=lambda key: (key[0], self._verdicts[key].first_told_step))
        ]


def judge_files(run_dir: RunDir, role: str = "train") -> list[Verdict]:
    """The verdicts on a run from the files of its ranks, which may still be written.

    Raises DamagedFileError or OSError if they cannot be read.
    """
    directories = run_dir.rank_dirs(role)
    ranks = RankFiles(directories)
    judging = Judging(Meshes(directories))
    for window in ranks.windows():
        for rows, attempt in by_attempt(ranks, window.scalars):
            judging.add(rows, attempt)
    return judging.verdicts


def by_attempt(ranks: RankFiles, rows: Rows) -> Iterable[tuple[Rows, int]]:
    """The scalars of each attempt among those of some steps, in the order of the attempts."""
    if not len(rows.steps):
        return
    low, high = int(rows.steps.min()), int(rows.steps.max())
    first, last = ranks.attempt_of(low), ranks.attempt_of(high)
    if first == last:
        yield rows, first
        return
    for attempt in ranks.attempts:
        keep = ranks.of_attempt(attempt, rows.steps)
        if keep.any():
            which, numbers, steps = (column[keep] for column in (rows.which, rows.ranks, rows.steps))
            yield Rows(rows.tags, which, numbers, steps, rows.values[keep]), attempt


def alert_values(changed: Iterable[Verdict], least: int = 0) -> Mapping[int, list[Value]]:
    """What the merged run shows of new verdicts: step -> a text for all, and the rank of the first.

    `least`: a verdict that was told before this step is shown here.
    """
    told: dict[int, list[Verdict]] = {}
    for verdict in changed:
        if verdict.until_step is None:
            told.setdefault(max(least, verdict.first_told_step), []).append(verdict)
    return {
        step: [
            Value("text", TEXT_TAG, "\n\n".join(line(verdict) for verdict in verdicts)),
            Value("scalar", RANK_TAG, float(verdicts[0].rank)),
        ]
        for step, verdicts in told.items()
    }


def line(verdict: Verdict) -> str:
    """A verdict in one line."""
    until = "" if verdict.until_step is None else f" to {verdict.until_step:,}"
    return (
        f"rank {verdict.rank}: {verdict.cause} since step {verdict.since_step:,}{until}: {verdict.evidence}"
    )


class Alerts:
    """Tells each verdict once: in alerts.jsonl and in a line on stderr.

    A verdict that ends gets another line in the file, with its last step; of lines with the same attempt,
    rank, cause and first step, the last one counts.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._told = {key_of(alert): alert["until_step"] for alert in read_alerts(run_dir)}

    def tell(self, attempt: int, verdict: Verdict) -> None:
        """Tell a verdict, unless it was told; raises OSError if the file cannot be written."""
        alert = {"time": time.time(), "attempt": attempt, **verdict.as_json()}
        key = key_of(alert)
        is_new = key not in self._told
        if not is_new and (verdict.until_step is None or self._told[key] is not None):
            return
        self._told[key] = verdict.until_step
        data = json.dumps(alert).encode() + b"\n"
        place = os.open(
            self._run_dir.alerts_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        try:
            os.write(place, data)
        finally:
            os.close(place)
        if is_new:
            with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
                text = f"distsummary: {line(verdict)}; more: distsummary why {self._run_dir.base}"
                print(text, file=sys.stderr, flush=True)
