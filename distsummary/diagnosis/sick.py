"""FirstNonFinite: the first steps, ranks and tags or parameters at which a number is NaN, or infinite."""

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
_NEVER = int(np.iinfo(np.int64).max)  # a step that never comes


class FirstNonFinite:
    """Tells once the first step at which a number is infinite, and once the first at which one is NaN.

    It must have been finite before. After a NaN, which spreads, no infinity is told; before it, one may be
    normal, as mixed precision makes gradients infinite now and then. A rank that has it while others do not
    is named; if all that recorded the tag have it, the lowest is. With norms, ranks also tell the first
    parameter of which the gradient or the weight is not finite; that counts as a NaN.

    Args:
        name: of a rank and the number of a parameter: how it is called.
    """

    def __init__(self, name: Callable[[int, int], str] = lambda rank, index: f"number {index + 1}") -> None:
        self._name = name
        self._known: set[str] = set(LOSSES)  # tags that have been finite
        self._has_infinity = self._has_nan = False  # told

    def add(
        self, tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
    ) -> list[Verdict]:
        """Look at N scalars of all ranks at some steps, which must be larger than those before.

        Args:
            tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
        """
        if self._has_nan or not len(steps):
            return []
        rows = _Rows(tags, which, ranks, steps, values)
        bad = self._bad(rows)
        is_nan = np.isnan(values[bad])
        infinite_at = steps[bad[~is_nan]].min(initial=_NEVER)
        nan_at = steps[bad[is_nan]].min(initial=_NEVER)
        parameters = _parameters(*rows)
        parameter_at = parameters[0].step if parameters else _NEVER
        found = []
        if infinite_at < min(nan_at, parameter_at) and not self._has_infinity:
            self._has_infinity = True
            found += _numbers(rows, bad[~is_nan & (steps[bad] == infinite_at)])
        if min(nan_at, parameter_at) == _NEVER:
            return found
        self._has_nan = True
        if nan_at < parameter_at:
            return [*found, *_numbers(rows, bad[is_nan & (steps[bad] == nan_at)])]
        here = bad[is_nan if nan_at == parameter_at else ~is_nan]
        numbers = _numbers(rows, here[steps[here] == parameter_at])
        return [*found, *self._sick([one for one in parameters if one.step == parameter_at], numbers)]

    def _bad(self, rows: "_Rows") -> Ints:
        """The places of the numbers that are not finite, of tags that have been finite before."""
        is_bad = ~np.isfinite(rows.values)
        if not is_bad.any():
            self._known.update(rows.tags[number] for number in np.unique(rows.which).tolist())
            return np.empty(0, np.int64)
        first_finite = np.full(len(rows.tags), _NEVER)
        np.minimum.at(first_finite, rows.which[~is_bad], rows.steps[~is_bad])
        first_finite[[number for number, tag in enumerate(rows.tags) if tag in self._known]] = -1
        self._known.update(rows.tags[number] for number in np.unique(rows.which[~is_bad]).tolist())
        return np.flatnonzero(is_bad & (rows.steps > first_finite[rows.which]))

    def _sick(self, parameters: "Sequence[_Parameter]", numbers: list[Verdict]) -> list[Verdict]:
        """The verdicts on parameters, sorted, and on numbers of the same step, if any."""
        first: dict[int, _Parameter] = {}  # by rank
        for one in parameters:
            first.setdefault(one.rank, one)
        if numbers:
            return [
                replace(verdict, evidence=f"{verdict.evidence}; so is {self._called(first[verdict.rank])}")
                if verdict.rank in first
                else verdict
                for verdict in numbers
            ]
        rank = min(first)
        others = (
            f"; ranks {', '.join(map(str, sorted(first)[1:NAMED]))} tell it too" if len(first) > 1 else ""
        )
        return [
            Verdict(
                rank=rank,
                cause=NAN,
                since_step=first[rank].step,
                until_step=None,
                evidence=f"{self._called(first[rank])} is not finite on rank {rank} at step "
                f"{first[rank].step}{others}",
                first_told_step=first[rank].told,
            )
        ]

    def _called(self, parameter: "_Parameter") -> str:
        return f"the {parameter.kind} of the parameter {self._name(parameter.rank, parameter.number)}"


class _Rows(NamedTuple):
    """N scalars of ranks, as `FirstNonFinite.add` takes them."""

    tags: Sequence[str]
    which: Ints
    ranks: Ints
    steps: Ints
    values: Floats


def _numbers(rows: _Rows, bad: Ints) -> list[Verdict]:
    """The verdicts on numbers that are not finite, at these places of `rows` and all at one step."""
    tags, which, ranks, steps, values = rows
    if not len(bad):
        return []
    step = int(steps[bad[0]])
    number = min(which[bad].tolist(), key=lambda number: (tags[number] not in LOSSES, tags[number]))
    sick = np.unique(ranks[bad[which[bad] == number]])
    here = (steps == step) & (which == number)
    told, finite = np.unique(ranks[here]), np.unique(ranks[here & np.isfinite(values)])
    value = float(values[bad[(which[bad] == number) & (ranks[bad] == sick[0])][-1]])
    if len(sick) == len(told) > 1:
        others, named = f"on all {len(told)} ranks that recorded it", sick[:1]
    else:
        others, named = f"finite on {len(finite)} others", sick[:NAMED]
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
