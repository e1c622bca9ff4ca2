"""FirstNonFinite: the first step, rank and tag or parameter at which a number is NaN or infinite."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.verdict import NAN, Verdict
from distsummary.format.check_tags import LAG, NONFINITE_TAGS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LOSSES = frozenset(("loss", "loss/auto"))  # told even if they have never been finite
NAMED = 8  # ranks in a message


class FirstNonFinite:
    """Tells once, of the first step at which a number is not finite that has been finite before.

    A rank that has it while others do not is named; if all that recorded the tag have it, the lowest is.
    With norms, ranks also tell the first parameter of which the gradient or the weight is not finite.

    Args:
        name: of a rank and the number of a parameter: how it is called.
    """

    def __init__(self, name: Callable[[int, int], str] = lambda rank, index: f"number {index + 1}") -> None:
        self._name = name
        self._known: set[str] = set(LOSSES)  # tags that have been finite
        self._is_over = False

    def add(
        self, tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
    ) -> list[Verdict]:
        """Look at N scalars of all ranks at some steps, which must be larger than those before.

        Args:
            tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
        """
        if self._is_over or not len(steps):
            return []
        found = self._numbers(tags, which, ranks, steps, values)
        parameters = _parameters(tags, which, ranks, steps, values)
        if not parameters or (found and found[0].since_step < parameters[0].step):
            return found
        self._is_over = True
        step = parameters[0].step
        first: dict[int, _Parameter] = {}  # by rank
        for one in parameters:
            if one.step == step:
                first.setdefault(one.rank, one)
        if found and found[0].since_step == step:
            return [
                replace(verdict, evidence=f"{verdict.evidence}; so is {self._called(first[verdict.rank])}")
                if verdict.rank in first
                else verdict
                for verdict in found
            ]
        rank = min(first)
        others = (
            f"; ranks {', '.join(map(str, sorted(first)[1:NAMED]))} tell it too" if len(first) > 1 else ""
        )
        return [
            Verdict(
                rank=rank,
                cause=NAN,
                since_step=step,
                until_step=None,
                evidence=f"{self._called(first[rank])} is not finite on rank {rank} at step {step}{others}",
                first_told_step=parameters[0].told,
            )
        ]

    def _called(self, parameter: "_Parameter") -> str:
        return f"the {parameter.kind} of the parameter {self._name(parameter.rank, parameter.number)}"

    def _numbers(
        self, tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
    ) -> list[Verdict]:
        """The verdict on the first recorded number that is not finite."""
        is_bad = ~np.isfinite(values)
        if not is_bad.any():
            self._known.update(tags[number] for number in np.unique(which).tolist())
            return []
        first_finite = np.full(len(tags), np.iinfo(np.int64).max)
        np.minimum.at(first_finite, which[~is_bad], steps[~is_bad])
        first_finite[[number for number, tag in enumerate(tags) if tag in self._known]] = -1
        found = np.flatnonzero(is_bad & (steps > first_finite[which]))
        self._known.update(tags[number] for number in np.unique(which[~is_bad]).tolist())
        if not len(found):
            return []
        self._is_over = True
        step = int(steps[found].min())
        here = found[steps[found] == step]
        number = min(which[here].tolist(), key=lambda number: (tags[number] not in LOSSES, tags[number]))
        sick = np.unique(ranks[here[which[here] == number]])
        told = np.unique(ranks[(steps == step) & (which == number)])
        value = float(values[here[(which[here] == number) & (ranks[here] == sick[0])][-1]])
        if len(sick) == len(told) > 1:
            others, named = f"on all {len(told)} ranks that recorded it", sick[:1]
        else:
            others, named = f"finite on {len(told) - len(sick)} others", sick[:NAMED]
        return [
            Verdict(
                rank=rank,
                cause=NAN,
                since_step=step,
                until_step=None,
                evidence=f"{tags[number]} is {value} on rank {rank} at step {step}, {others}",
                first_told_step=step,
            )
            for rank in named.tolist()
        ]


class _Parameter(NamedTuple):
    """The first parameter of a rank that is not finite at a step, which was recorded at the step `told`."""

    step: int
    rank: int
    kind: str
    number: int
    told: int


def _parameters(
    tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
) -> list[_Parameter]:
    """What the ranks tell of parameters that are not finite, by step, rank and kind."""
    found = []
    for kind, tag in NONFINITE_TAGS.items():
        if tag not in tags:
            continue
        told: dict[str, dict[tuple[int, int], int]] = {}
        for name in (tag, tag + LAG):
            rows = np.flatnonzero(which == (list(tags).index(name) if name in tags else -1))
            keys = zip(ranks[rows].tolist(), steps[rows].tolist(), strict=True)
            told[name] = dict(zip(keys, values[rows].astype(np.int64).tolist(), strict=True))
        for (rank, step), index in told[tag].items():
            lag = told[tag + LAG].get((rank, step), 0)
            found.append(_Parameter(step - lag, rank, kind, index, step))
    return sorted(found)
