"""Judging: the verdicts on the ranks of a run, from their scalars, while they train and afterwards."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from distsummary.aggregate.norms import Meshes
from distsummary.aggregate.rank_files import RankFiles
from distsummary.aggregate.sick_ranks import SickRanks
from distsummary.aggregate.statistics import Rows
from distsummary.diagnosis.alerts import Alert, Key, Told, hangs_among, key_of, read_alerts, same_episode
from distsummary.diagnosis.judge import Judge, own_times
from distsummary.diagnosis.sentence import sentence
from distsummary.diagnosis.verdict import HANG, Verdict
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


class Alerts:
    """Tells each verdict once: in alerts.jsonl and in a line on stderr.

    A verdict that ends gets another line in the file, with its last step, and so does a hang that lasts after
    all; of lines with the same attempt, rank, cause and first step, the last one counts. A verdict that an
    earlier object told of other first steps, such as before a rank told what it was late with, is not told
    again: one that overlaps it, of the same attempt, rank and cause, is taken for the same.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._told: dict[Key, Alert] = {}  # the newest line of each
        self._unmatched: dict[Key, Alert] = {}  # of these, what only earlier objects told
        self._told_as: dict[Key, Key] = {}  # by which of these a verdict was told
        self._due: list[Alert] = []  # lines that the file does not have yet
        self._is_read = False

    def tell(self, attempt: int, verdict: Verdict) -> bool:
        """Tell a verdict, unless it was told; returns whether it is new.

        A line that cannot be written is kept for `write`.
        """
        with contextlib.suppress(OSError):  # the next call of `write` raises it
            self._read()
        is_new = self._note(attempt, verdict)
        if is_new:
            with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
                text = f"distsummary: {sentence(verdict)} More: distsummary why {self._run_dir.base}"
                print(text, file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):  # see above
            self.write()
        return is_new

    def _note(self, attempt: int, verdict: Verdict) -> bool:
        """Note what is to be written of a verdict; returns whether it is new."""
        alert = {"time": time.time(), "attempt": attempt, **verdict.as_json()}
        key = self._key_of(alert)
        known = self._told.get(key)
        if known is not None:
            lasts, lasted = verdict.until_step is None, known["until_step"] is None
            if lasts == lasted or (lasts and verdict.cause != HANG):
                return False
            alert = known | {"time": alert["time"], "until_step": verdict.until_step}
        self._told[key] = alert
        self._due.append(alert)
        return known is None

    def write(self) -> None:
        """Write what was told and could not be written; raises OSError if it still cannot be."""
        self._read()
        if self._due:
            lines = b"".join(json.dumps(alert).encode() + b"\n" for alert in self._due)
            _append(self._run_dir.alerts_path, lines)
            self._due.clear()

    def lasting_hangs(self) -> list[Told]:
        """The hangs that have not ended."""
        with contextlib.suppress(OSError):  # `write` raises it
            self._read()
        return hangs_among(alert for alert in self._told.values() if alert["until_step"] is None)

    def _read(self) -> None:
        """Learn what the file says, if that is not known; raises OSError."""
        if not self._is_read:
            found = {key_of(alert): alert for alert in read_alerts(self._run_dir)}
            self._is_read = True
            self._unmatched = {key: alert for key, alert in found.items() if key not in self._told}
            self._told = found | self._told

    def _key_of(self, alert: Alert) -> Key:
        """The key by which it was told, its own if it was not."""
        key = key_of(alert)
        if key not in self._told_as:
            found = same_episode(alert, self._unmatched)
            self._told_as[key] = key if found is None else found
            self._unmatched.pop(self._told_as[key], None)
        return self._told_as[key]


def _append(path: Path, lines: bytes) -> None:
    """Append lines to a file, all of them or nothing; raises OSError."""
    place = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(place).st_size
        if size and os.pread(place, 1, size - 1) != b"\n":  # a line that a process which died had begun
            lines = b"\n" + lines
        try:
            while lines:
                lines = lines[os.write(place, lines) :]
        except OSError:
            os.ftruncate(place, size)
            raise
    finally:
        os.close(place)
