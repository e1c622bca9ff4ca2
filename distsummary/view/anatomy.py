"""The anatomy of steps: where each rank spent its time at some of the measured steps, phase by phase."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from distsummary.format.own_tags import OWN_MS, PHASE_TAGS, WAIT_MS
from distsummary.runs.table import Matrix
from distsummary.view.packing import rounded, small
from distsummary.view.reduce import Array, spread

_RANKS = 64  # of more ranks: those that are named or take longest, then others
_WORST, _OTHERS = 20, 100  # steps: those at which a rank stands out most, and evenly spread ones
_CELLS = 60_000  # steps times ranks of each phase
_CHUNK = 1 << 21  # values that are looked at together
_MEASURED = ("cpu_ms", "blocked_ms", "queue_ms")


def phase_tags(tags: Sequence[str]) -> list[str]:
    """The scalars of a run that say what its steps consist of."""
    found = [tag for tag in tags if tag.startswith(PHASE_TAGS) and tag.endswith(_MEASURED)]
    return found or [tag for tag in (OWN_MS, WAIT_MS) if tag in tags]


class Anatomy:
    """Collects the phases of chosen steps while the tags of a run are read one after the other.

    Args:
        own: the own times of the ranks. middle: (S,), of the ranks at each step.
        named: ranks that are there in any case. steps: of verdicts, which are there too.
    """

    def __init__(self, own: Matrix, middle: Array, *, named: Sequence[int], steps: Sequence[int]) -> None:
        of_ranks, of_steps = _above(own.values, middle)
        dearest = np.argsort(-of_ranks, kind="stable")
        order = [*dict.fromkeys([*named, *own.ranks[dearest].tolist()])]
        self._ranks = np.array([rank for rank in order if rank in set(own.ranks.tolist())][:_RANKS], np.int32)
        most = max(1, _CELLS // self._ranks.size)
        nearest = np.clip(np.searchsorted(own.steps, np.array(steps, np.int64)), 0, own.steps.size - 1)
        worst = np.argsort(-of_steps, kind="stable")[:_WORST]
        chosen = [*nearest.tolist(), *worst.tolist(), *spread(own.steps.size, _OTHERS)]
        places = sorted([*dict.fromkeys(chosen)][:most])
        self._steps: Array = own.steps[places]
        self._phases: dict[str, Array] = {}

    def take(self, tag: str, matrix: Matrix) -> None:
        """The values of one of the `phase_tags`."""
        name = {OWN_MS: "own", WAIT_MS: "wait"}.get(tag) or tag.removeprefix(PHASE_TAGS).split("/")[0]
        steps, ranks, values, _ = matrix
        rows = np.clip(np.searchsorted(steps, self._steps), 0, steps.size - 1)
        place = {int(rank): number for number, rank in enumerate(ranks)}
        found = np.zeros((self._steps.size, self._ranks.size), np.float32)
        for number, rank in enumerate(self._ranks.tolist()):
            if rank in place:
                found[:, number] = np.nan_to_num(values[rows, place[rank]], posinf=0.0, neginf=0.0)
        found[steps[rows] != self._steps] = 0.0
        self._phases[name] = self._phases.get(name, 0.0) + found

    def as_dict(self) -> dict[str, Any] | None:
        """`steps` (S,), `ranks` (R,) and `phases`: name -> milliseconds float32 (S, R); None without any."""
        phases = {name: rounded(values) for name, values in self._phases.items() if values.any()}
        if not phases:
            return None
        return {"steps": small(self._steps), "ranks": self._ranks, "phases": phases}


def _above(values: Array, middle: Array) -> tuple[Array, Array]:
    """How far each rank is above the middle in all (R,), and the farthest rank at each step (S,).

    Block by block, since the values of 1,000 ranks take hundreds of MB.
    """
    of_ranks, of_steps = np.zeros(values.shape[1]), np.zeros(values.shape[0])
    each = max(1, _CHUNK // max(1, values.shape[1]))
    for start in range(0, values.shape[0], each):
        rows = slice(start, start + each)
        with np.errstate(invalid="ignore"):
            above = np.nan_to_num(values[rows] - middle[rows, None], posinf=0.0, neginf=0.0)
        of_ranks += above.sum(axis=0, dtype=np.float64)
        of_steps[rows] = above.max(axis=1)
    return of_ranks, of_steps
