"""Judging: the verdicts on the ranks of a run, from their scalars, while they train and afterwards."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from distsummary.aggregate.norms import Meshes
from distsummary.aggregate.rank_files import RankFiles
from distsummary.aggregate.sick_ranks import SickRanks
from distsummary.aggregate.statistics import Rows
from distsummary.diagnosis.judge import Judge, own_times
from distsummary.diagnosis.sentence import sentence
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

    def __init__(self, meshes: Meshes, tell: Callable[[int, Verdict], object] | None = None) -> None:
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
    def told(self) -> list[tuple[int, Verdict]]:
        """All so far, each with its attempt, as they were told; those that have ended as they ended."""
        return [
            (key[0], self._verdicts[key])
            for key in sorted(self._verdicts, key=lambda key: (key[0], self._verdicts[key].first_told_step))
        ]


def judge_files(run_dir: RunDir, role: str = "train") -> list[Verdict]:
    """The verdicts on a run from the files of its ranks, as `judged_files` without the attempts."""
    return [verdict for _, verdict in judged_files(run_dir, role)]


def judged_files(run_dir: RunDir, role: str = "train") -> list[tuple[int, Verdict]]:
    """The verdicts on a run from the files of its ranks, which may still be written, each with its attempt.

    Raises DamagedFileError or OSError if they cannot be read.
    """
    directories = run_dir.rank_dirs(role)
    ranks = RankFiles(directories)
    judging = Judging(Meshes(directories))
    for window in ranks.windows():
        for rows, attempt in by_attempt(ranks, window.scalars):
            judging.add(rows, attempt)
    return judging.told


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
            Value("text", TEXT_TAG, "\n\n".join(sentence(verdict) for verdict in verdicts)),
            Value("scalar", RANK_TAG, float(verdicts[0].rank)),
        ]
        for step, verdicts in told.items()
    }
