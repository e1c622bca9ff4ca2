"""Judging: the verdicts on the ranks of a run, from their scalars, while they train and afterwards."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from distsummary.aggregate.rank_columns import RecordedScalars
from distsummary.aggregate.sick_ranks import SickRanks
from distsummary.diagnosis.cost import Costs, is_small, joined, step_times
from distsummary.diagnosis.judge import Judge, own_times
from distsummary.diagnosis.same_steps import SameSteps
from distsummary.diagnosis.sentence import sentence
from distsummary.diagnosis.uneven import Unevenness
from distsummary.diagnosis.verdict import DRIFT, INFO, SLOW, UNEVEN, Verdict
from distsummary.format.own_tags import ALERT_RANK, ALERT_TEXT
from distsummary.format.records import Value
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.run_dir import RunDir

COMPARED = (*SLOW, DRIFT, UNEVEN)  # causes that are found by comparing the same step of ranks
_NO_INTS = np.zeros(0, np.int64)
_NOTHING = RecordedScalars([], _NO_INTS, _NO_INTS, _NO_INTS, np.zeros(0))


class Judging:
    """Judges the steps of all attempts of a training, in rising order; equal steps give equal verdicts.

    Args:
        meshes: where the ranks are in the mesh.
        on_verdict: called with the attempt and each verdict that is new, ends, or costs much more than
            before; of a slow rank, with all times at which it was so for that cause.
    """

    def __init__(self, meshes: Meshes, on_verdict: Callable[[int, Verdict], object] | None = None) -> None:
        self._meshes, self._on_verdict = meshes, on_verdict
        self._verdicts: dict[tuple[int, int, str, int], Verdict] = {}
        self._steps = self._abstained = 0  # of the attempts before
        self._begin(-1)

    def _begin(self, attempt: int) -> None:
        def coordinates(rank: int) -> Mapping[str, int]:
            return self._meshes.place(attempt, rank).coordinates

        self._attempt, self._sick = attempt, SickRanks(self._meshes, attempt)
        self._same, self._uneven = SameSteps(), Unevenness()
        self._judge, self._costs = Judge(coordinates, self._same.counted), Costs(coordinates)

    def add(self, rows: RecordedScalars, attempt: int) -> list[Verdict]:
        """Judge some steps of an attempt; returns the verdicts that are new, and those that end."""
        # Another attempt has other processes, perhaps on other hosts: its ranks are judged by themselves.
        if attempt != self._attempt:
            self._settle()
            self._verdicts |= {
                key: self._as_recorded(one) for key, one in self._verdicts.items() if key[0] == self._attempt
            }
            self._steps, self._abstained = self.steps, self.abstained
            self._begin(attempt)
        # Numbers as the files hold them give equal verdicts while the ranks train and afterwards.
        with np.errstate(over="ignore"):
            rows = rows._replace(values=rows.values.astype(np.float32).astype(np.float64))
        changed = [*self._sick.add(rows), *self._compare(RecordedScalars(*self._same.align(rows)))]
        self._report(changed, attempt)
        # A verdict that lasts is reported again when it costs much more than before.
        lasting = [
            one for key, one in self._verdicts.items() if key[0] == attempt and self._costs.has_grown(one)
        ]
        self._report(map(self._costs.note, lasting), attempt)
        return [*map(self._as_recorded, changed)]

    def _compare(self, alike: RecordedScalars) -> list[Verdict]:
        """Judge what the ranks of the newest attempt recorded at the same steps."""
        changed = self._sick.compare(alike, self._same.since)
        costs = {times.step: times for times in step_times(*alike)}
        for reported in own_times(*alike):
            found = self._judge.add(reported)
            # A step that some ranks did not measure is among those for which another one stands.
            if reported.step in costs and not self._judge.is_partial:
                counted = self._judge.counted(costs[reported.step])
                self._costs.add(counted)
                self._uneven.add(counted)
            changed += map(self._costs.note, found)
        return changed

    def _as_recorded(self, verdict: Verdict) -> Verdict:
        """A verdict with the steps that its rank counts, where those of the ranks are compared as others."""
        if verdict.cause not in COMPARED or not self._same.said:
            return verdict
        own = partial(self._same.own, verdict.rank)
        return replace(
            verdict,
            since_step=own(verdict.since_step),
            until_step=None if verdict.until_step is None else own(verdict.until_step),
            reported_step=own(verdict.reported_step),
            intervals=tuple(
                (own(since), None if until is None else own(until)) for since, until in verdict.intervals
            ),
        )

    def add_samples(self, rows: RecordedScalars, attempt: int) -> list[Verdict]:
        """Judge samples of the system that came when their steps had been judged."""
        if attempt != self._attempt:
            return []
        changed = self._sick.add_samples(rows)
        self._report(changed, attempt)
        return changed

    def _report(self, changed: Iterable[Verdict], attempt: int) -> None:
        for verdict in changed:
            self._verdicts[attempt, verdict.rank, verdict.cause, verdict.since_step] = verdict
            if self._on_verdict is None:
                continue
            # A slow rank is reported together with all earlier times at which it was slow for this cause, and
            # with other ranks that are in turns.
            if verdict.cause in SLOW:
                alike = joined(
                    one
                    for other, one in self._verdicts.items()
                    if (other[0], other[2]) == (attempt, verdict.cause)
                )
                verdict = next(one for one in alike if verdict.rank in (one.rank, *one.ranks))
            self._on_verdict(attempt, self._as_recorded(verdict))

    def _settle(self) -> None:
        """Note what the verdicts of the attempt cost that last, and how often ranks have stalled by now."""
        left = RecordedScalars(*self._same.align(_NOTHING, is_end=True))
        self._report([*self._compare(left), *self._sick.settle()], self._attempt)
        for now in self._judge.lasting:
            key = self._attempt, now.rank, now.cause, now.since_step
            if key in self._verdicts and self._verdicts[key].until_step is None:
                self._verdicts[key] = replace(self._verdicts[key], evidence=now.evidence)
        for key, verdict in self._verdicts.items():
            if key[0] == self._attempt:
                self._verdicts[key] = self._costs.of(verdict)

    @property
    def steps(self) -> int:
        """At how many steps ranks have been compared, to find slow ones."""
        return self._steps + self._judge.steps

    @property
    def abstained(self) -> int:
        """At how many of these no verdict could begin, since their processors were too busy."""
        return self._abstained + self._judge.abstained

    @property
    def apart(self) -> str:
        """Where ranks of the newest attempt are compared at other steps than they count; or empty."""
        return self._same.said

    @property
    def reported(self) -> list[tuple[int, Verdict]]:
        """All so far, each with its attempt, with what they cost so far; of each rank, one for a cause."""
        self._settle()
        found: dict[int, list[Verdict]] = {}
        for key in sorted(self._verdicts, key=lambda key: (key[0], self._verdicts[key].reported_step)):
            found.setdefault(key[0], []).append(self._verdicts[key])
        said = [(attempt, one) for attempt, verdicts in found.items() for one in joined(verdicts)]
        # What has cost little is an info, when it is known what it has cost in all.
        said = [
            (attempt, replace(one, level=INFO))
            if attempt == self._attempt and is_small(one.cause, one.lost_s, self._uneven.wall_s)
            else (attempt, one)
            for attempt, one in said
        ]
        said = [
            (attempt, self._as_recorded(one) if attempt == self._attempt else one) for attempt, one in said
        ]
        explained_s = sum(one.lost_s for attempt, one in said if attempt == self._attempt)
        uneven = self._uneven.verdict(explained_s)
        return said if uneven is None else [*said, (self._attempt, uneven)]


def judged_files(run_dir: RunDir) -> Judging:
    """Judges a run by the files of its ranks, which may still be written.

    Raises DamagedFileError or OSError if they cannot be read.
    """
    # A rank that is judged while it trains needs no module that reads those that have ended.
    from distsummary.aggregate.ended_ranks import EndedRanks

    directories = run_dir.rank_dirs("train") or {0: run_dir.writer_dir("train", 0, 1)}
    judging = Judging(Meshes(directories))
    for window in EndedRanks(directories).windows():
        judging.add(window.scalars, window.attempt)
    return judging


def alert_values(changed: Iterable[Verdict], least: int = 0) -> Mapping[int, list[Value]]:
    """What the merged run shows of new verdicts: step -> a text for all, and the rank of the first.

    `least`: a verdict that was reported before this step is shown here.
    """
    reported: dict[int, list[Verdict]] = {}
    for verdict in changed:
        if verdict.until_step is None:
            reported.setdefault(max(least, verdict.reported_step), []).append(verdict)
    return {
        step: [
            Value("text", ALERT_TEXT, "\n\n".join(sentence(verdict) for verdict in verdicts)),
            Value("scalar", ALERT_RANK, float(verdicts[0].rank)),
        ]
        for step, verdicts in reported.items()
    }
