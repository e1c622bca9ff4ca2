"""FirstNonFinite: the rank, the step and the number at which a training was no longer finite."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.sentence import named_ranks
from distsummary.diagnosis.verdict import NAN, Verdict
from distsummary.format.own_tags import LAG, LOSS_TAG, NONFINITE_TAGS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LOSSES = frozenset(("loss", LOSS_TAG))  # reported even if they have never been finite
LISTED = 4  # other numbers that an evidence names
_NEVER = int(np.iinfo(np.int64).max)  # a step that never comes
# Where a number arises within a step, by its name; anything else is taken for an output of the model.
_INPUT, _LOSS, _OUTPUT, _GRADIENT, _NORM, _EVALUATION = range(6)
_STAGES = (
    (re.compile(r"(eval|val|valid|validation|test)[/_.]"), _EVALUATION),
    (re.compile(r".*norm"), _NORM),
    (re.compile(r".*loss"), _LOSS),
    (re.compile(r".*grad"), _GRADIENT),
    (re.compile(r".*(weight|param)"), _NORM),
)
_KINDS = {"input": _INPUT, "gradient": _GRADIENT, "weight": _NORM}  # of NONFINITE_TAGS


class FirstNonFinite:
    """Reports once the first step at which a number is infinite, and once the first at which one is NaN.

    It must have been finite before. After a NaN, which spreads, no infinity is reported; before it, one may
    be normal, as mixed precision makes gradients infinite now and then. A NaN at the step after a reported
    infinity of a loss follows from that.

    Of all that is not finite at that step, the origin is what is so on the fewest ranks, and of these what
    arises first: the input, the loss, gradients, norms, evaluations. The others are counted. With norms,
    ranks also report the first parameter of which the gradient or the weight is not finite, and whether
    their input was: these count as a NaN.

    Args:
        name: of a rank and the number of a parameter: how it is called.
    """

    def __init__(self, name: Callable[[int, int], str] = lambda rank, index: f"number {index + 1}") -> None:
        self._name = name
        self._finite: set[str] = set(LOSSES)  # tags that have been finite
        self._ranks: set[int] = set()  # that have recorded anything
        self._infinity: _Candidate | None = None  # that was reported
        self._has_nan = False  # it was reported

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
        self._ranks.update(np.unique(ranks).tolist())
        bad = self._bad(rows)
        is_nan = np.isnan(values[bad])
        infinite_at = int(steps[bad[~is_nan]].min(initial=_NEVER))
        nan_at = int(steps[bad[is_nan]].min(initial=_NEVER))
        # A NaN is recorded itself, or reported with the norms some steps later.
        parameters = self._parameters(rows)
        nan_at = min([nan_at, *(one.step for one in parameters)])
        found = []
        if infinite_at < nan_at and self._infinity is None:
            numbers = _numbers(rows, bad[steps[bad] == infinite_at])
            self._infinity = self._first(numbers)
            found.append(self._verdict(numbers))
        if nan_at == _NEVER:
            return found
        self._has_nan = True
        if self._infinity is not None and self._infinity.causes(nan_at):
            return found
        numbers = _numbers(rows, bad[steps[bad] == nan_at])
        return [*found, self._verdict([*numbers, *(one for one in parameters if one.step == nan_at)])]

    def _bad(self, rows: "_Rows") -> Ints:
        """The places of the numbers that are not finite, of tags that have been finite before."""
        is_bad = ~np.isfinite(rows.values)
        if not is_bad.any():
            self._finite.update(rows.tags[number] for number in np.unique(rows.which).tolist())
            return np.empty(0, np.int64)
        # A tag counts after its first finite number: -1 marks those that were finite before this call.
        first_finite = np.full(len(rows.tags), _NEVER)
        np.minimum.at(first_finite, rows.which[~is_bad], rows.steps[~is_bad])
        first_finite[[number for number, tag in enumerate(rows.tags) if tag in self._finite]] = -1
        self._finite.update(rows.tags[number] for number in np.unique(rows.which[~is_bad]).tolist())
        return np.flatnonzero(is_bad & (rows.steps > first_finite[rows.which]))

    def _parameters(self, rows: "_Rows") -> "list[_Candidate]":
        """What the ranks report of inputs and parameters that are not finite."""
        tags = list(rows.tags)
        by_name: dict[tuple[int, str, str], dict[int, int]] = {}  # step, kind and name -> rank -> reported at
        for kind, tag in NONFINITE_TAGS.items():
            lags = _by_place(rows, tags.index(tag + LAG)) if tag + LAG in tags else {}
            for (rank, at), value in (_by_place(rows, tags.index(tag)) if tag in tags else {}).items():
                name = (
                    f"tensor {int(value) + 1} of the input batch"
                    if kind == "input"
                    else f"the {kind} of the parameter {self._name(rank, int(value))}"
                )
                step = at - int(lags.get((rank, at), 0.0))
                by_name.setdefault((step, kind, name), {})[rank] = at
        return [
            _Candidate(
                step=step,
                stage=_KINDS[kind],
                name=name,
                ranks=tuple(sorted(by_rank)),
                value="not finite",
                reported=max(by_rank.values()),
                is_of_rank=True,
            )
            for (step, kind, name), by_rank in by_name.items()
        ]

    def _verdict(self, candidates: "Sequence[_Candidate]") -> Verdict:
        """The verdict on numbers that are not finite at the same step."""
        first = self._first(candidates)
        others = sorted((one for one in candidates if one is not first), key=self._order)
        also = [f"{one.name} {self._on(one.ranks)}" for one in others[:LISTED]]
        if len(others) > LISTED:
            also.append(f"and {len(others) - LISTED} more")
        return Verdict(
            rank=first.ranks[0],
            cause=NAN,
            since_step=first.step,
            until_step=None,
            evidence=f"{first.name} is {first.value}{self._elsewhere(first)}"
            + (f"; also {', '.join(also)}" if also else ""),
            reported_step=first.reported,
            ranks=first.ranks if len(first.ranks) > 1 else (),
        )

    def _first(self, candidates: "Iterable[_Candidate]") -> "_Candidate":
        return min(candidates, key=self._order)

    def _order(self, one: "_Candidate") -> tuple[bool, int, int, str]:
        """What is so on all ranks that recorded it may come from any of them."""
        count = len(one.ranks) if one.is_of_rank else len(self._ranks)
        return one.stage == _EVALUATION, count, one.stage, one.name

    def _elsewhere(self, one: "_Candidate") -> str:
        """How the number is on the other ranks."""
        if one.finite:
            return f", finite on {one.finite} other rank{'s' if one.finite > 1 else ''}"
        if len(one.ranks) > 1:
            return f" {self._on(one.ranks)}"
        return "" if len(self._ranks) == 1 or one.is_of_rank else ", and no other rank records it"

    def _on(self, ranks: Sequence[int]) -> str:
        if len(ranks) == len(self._ranks) > 1:
            return "on both ranks" if len(ranks) == 2 else f"on all {len(ranks)} ranks"
        return f"on {named_ranks(ranks)}"


class _Rows(NamedTuple):
    """N scalars of ranks, as `FirstNonFinite.add` takes them."""

    tags: Sequence[str]
    which: Ints
    ranks: Ints
    steps: Ints
    values: Floats


class _Candidate(NamedTuple):
    """A number that is not finite at a step, on these ranks in rising order.

    `reported`: the step at which it was recorded. `finite`: on how many other ranks it is. `is_of_rank`:
    whether it distinguishes the ranks on which it is so from others.
    """

    step: int
    stage: int
    name: str
    ranks: tuple[int, ...]
    value: str
    reported: int
    is_of_rank: bool
    finite: int = 0

    def causes(self, nan_at: int) -> bool:
        """Whether a NaN at this step follows from this infinity."""
        return self.stage == _LOSS and nan_at <= self.step + 1


def _numbers(rows: _Rows, bad: Ints) -> list[_Candidate]:
    """The numbers that are not finite, at these places of `rows` and all at one step."""
    found = []
    for number in np.unique(rows.which[bad]).tolist():
        places = bad[rows.which[bad] == number]
        # Where some ranks have NaN and others infinity, those with NaN are named.
        nan = places[np.isnan(rows.values[places])]
        sick = np.unique(rows.ranks[nan if len(nan) else places])
        step = int(rows.steps[places[0]])
        here = (rows.steps == step) & (rows.which == number) & np.isfinite(rows.values)
        values = {str(value) for value in rows.values[nan if len(nan) else places].tolist()}
        finite = len(np.setdiff1d(rows.ranks[here], sick))
        found.append(
            _Candidate(
                step=step,
                stage=_stage(rows.tags[number]),
                name=rows.tags[number],
                ranks=tuple(sick.tolist()),
                value=" or ".join(sorted(values)),
                reported=step,
                is_of_rank=finite > 0,
                finite=finite,
            )
        )
    return found


def _stage(tag: str) -> int:
    name = tag.lower()
    return next((stage for pattern, stage in _STAGES if pattern.match(name)), _OUTPUT)


def _by_place(rows: _Rows, number: int) -> dict[tuple[int, int], float]:
    """The values of a tag, by rank and step."""
    places = np.flatnonzero(rows.which == number)
    keys = zip(rows.ranks[places].tolist(), rows.steps[places].tolist(), strict=True)
    return dict(zip(keys, rows.values[places].tolist(), strict=True))
