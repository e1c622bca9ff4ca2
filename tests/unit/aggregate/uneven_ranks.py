"""Step rows of ranks, as files hold them, for the judges of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from distsummary.aggregate.judging import Judging
from distsummary.aggregate.rank_columns import RecordedScalars
from distsummary.diagnosis.verdict import Verdict
from distsummary.rundir.meshes import Meshes

Step = tuple[int, int, Mapping[str, float]]  # rank, step, tags


def rows_of(steps: Iterable[Step]) -> RecordedScalars:
    found = [(rank, step, tag, value) for rank, step, values in steps for tag, value in values.items()]
    tags = sorted({tag for _, _, tag, _ in found})
    number = {tag: place for place, tag in enumerate(tags)}
    which, ranks, at = (
        np.array(one, np.int64) for one in zip(*((number[t], r, s) for r, s, t, _ in found), strict=True)
    )
    return RecordedScalars(tags, which, ranks, at, np.array([value for *_, value in found]))


def judged(directory: Path, ranks: int, steps: Iterable[Step], *, window: int = 50) -> Judging:
    """The judging of ranks of one attempt; `window`: steps that are judged at a time."""
    judging = Judging(Meshes({rank: directory / f"rank_{rank:05}" for rank in range(ranks)}))
    ordered = sorted(steps, key=lambda one: one[1])
    last = ordered[-1][1]
    for low in range(0, last + 1, window):
        if part := [one for one in ordered if low <= one[1] < low + window]:
            judging.add(rows_of(part), 0)
    return judging


def verdicts(judging: Judging) -> list[Verdict]:
    return [verdict for _, verdict in judging.reported]
