"""A gate for CI: does a group of runs stay within a limit of another, does it not, or is that unclear?

Runs of one setting differ by their seeds. What holds for the settings is therefore concluded from the means
of the two groups by Welch's t interval, for groups of different spread and size (B. L. Welch, Biometrika 34,
1947). A condition fails if the whole interval is beyond the limit, and holds if all of it is within: two
one-sided tests at 5 % each (D. J. Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987), thus an
interval of 90 %. If the limit is inside of the interval, it is unclear: the
seeds spread too much, or are too few.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distsummary.base.checks import check_recorded
from distsummary.base.columns import numbered, paragraph, printable
from distsummary.errors import InvalidValueError
from distsummary.format.own_tags import OWN
from distsummary.runs.curves import Array, Curve, best_of

HOLDS, FAILS, UNCLEAR = "holds", "fails", "unclear"
EXIT_CODES = {HOLDS: 0, FAILS: 1, UNCLEAR: 3}
ONE_SIDED = 0.05  # how often a decision at the limit may be wrong
_CONDITION = re.compile(
    r"\s*(?P<tag>.*?\S)\s*(?P<sign>[<>])\s*(?P<limit>[+-]\s*(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<share>%?)\s*"
)
_MEAN = re.compile(r"mean:([1-9]\d{0,8})", re.ASCII)
_MOST_RUNS = 100  # that are advised
_MOST_FREEDOM = 1000.0  # degrees; beyond, the t distribution is a normal one


class Condition(NamedTuple):
    """Such as `loss > +2%`: the change against the baseline at which the gate fails.

    Attributes:
        text: as it was given. tag: whose values are compared.
        is_more: whether larger changes than the limit fail, or smaller ones.
        limit: the change; if `is_share`, as a share of the baseline (0.02).
    """

    text: str
    tag: str
    is_more: bool
    limit: float
    is_share: bool


class Side(NamedTuple):
    """The runs on one side of a gate: their names, the value of each at the point asked for, and its step.

    `doubts`: why a run's value does not count, one text each.
    """

    name: str
    runs: tuple[str, ...]
    values: tuple[float, ...]
    steps: tuple[int, ...]
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a condition came to.

    Attributes:
        outcome: "holds", "fails" or "unclear". reason: why it is unclear; or why it fails without
            an interval.
        change, low, high: the change of the mean against the baseline and the ends of its interval of 90 %,
            in units of the tag or, of a condition in percent, as a share of the baseline; None without any.
        base, new: the values that it was concluded from.
    """

    condition: Condition
    at: str
    outcome: str
    reason: str
    change: float | None
    low: float | None
    high: float | None
    base: Side
    new: Side


def read_condition(text: str) -> Condition:
    """Read a condition such as `loss > +2%` or `eval/accuracy < -0.01`; raises InvalidValueError."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InvalidValueError(
            f"--fail-if must be a tag, > or <, and a change with its sign, in percent of the baseline or in "
            f"units of the tag, such as 'loss > +2%' or 'eval/accuracy < -0.01'; got {text!r}"
        )
    number, is_share = float(found["limit"].replace(" ", "")), bool(found["share"])
    if not math.isfinite(number):
        raise InvalidValueError(f"the limit of --fail-if must be finite, got {text!r}")
    return Condition(
        text.strip(), found["tag"], found["sign"] == ">", number / 100 if is_share else number, is_share
    )


def check_at(at: str) -> str:
    """The point at which values are compared; raises InvalidValueError unless there is such a one."""
    if at not in ("last", "best") and not _MEAN.fullmatch(at):
        raise InvalidValueError(
            f"--at must be last, best, or mean:N, the mean of the last N values, such as mean:100; got {at!r}"
        )
    return at


def tag_of(condition: Condition, known: Sequence[str]) -> str:
    """The tag that a condition is about; those of distsummary itself may be named without their `zz_`.

    Raises InvalidValueError, which names the nearest, if no run has it.
    """
    if condition.tag not in known and OWN + condition.tag in known:
        return OWN + condition.tag
    check_recorded(condition.tag, known, "scalars", field="the tag of --fail-if")
    return condition.tag


def value_at(curve: Curve, at: str, *, best: str) -> tuple[float, int]:
    """The value of a curve with at least one point, and its step: the last value, the best one ("min" or
    "max"), or the mean of the last N (of all, if there are fewer). NaN if one of them is.
    """
    if at == "best":
        place = best_of(curve, best)
        return (
            (math.nan, int(curve.steps[-1])) if place is None else (curve.values[place], curve.steps[place])
        )
    count = 1 if at == "last" else int(at.removeprefix("mean:"))
    with np.errstate(invalid="ignore"):
        return float(curve.values[-count:].mean()), int(curve.steps[-1])


def side_of(
    name: str, curves: Mapping[str, Curve | None], doubts: Sequence[str], condition: Condition, at: str
) -> Side:
    """One side of a gate.

    Args:
        curves: by the name of a run; None: it has none of the tag. doubts: of these runs anyway.
    """
    best = "min" if condition.is_more else "max"
    found = {
        run: value_at(curve, at, best=best) for run, curve in curves.items() if curve and curve.steps.size
    }
    missing = [f"{run} has no {condition.tag}" for run in curves if run not in found]
    values, steps = (tuple(one[place] for one in found.values()) for place in (0, 1))
    return Side(name, tuple(found), values, tuple(map(int, steps)), (*doubts, *missing))


def decide(condition: Condition, base: Side, new: Side, *, at: str = "last") -> Decision:
    """Decide whether a change stays within a condition, from the values of the runs on both sides."""
    a, b = np.array(base.values, np.float64), np.array(new.values, np.float64)

    def decision(outcome: str, reason: str = "", ends: tuple[float, float, float] | None = None) -> Decision:
        change, low, high = ends or (None, None, None)
        return Decision(
            condition=condition, at=at, outcome=outcome, reason=reason, change=change, low=low, high=high,
            base=base, new=new,
        )  # fmt: skip

    if doubts := [*base.doubts, *new.doubts]:
        return decision(UNCLEAR, "; ".join(doubts))
    if not np.isfinite(a).all():
        return decision(UNCLEAR, f"the baseline is not finite in {_those(base, a)}")
    if not np.isfinite(b).all():
        return decision(FAILS, f"it is not finite in {_those(new, b)}")
    mean = float(a.mean())
    unit = abs(mean) if condition.is_share else 1.0
    if unit == 0:
        return decision(
            UNCLEAR, "the baseline is 0, of which there is no percentage: write the limit without %"
        )
    # The baseline is moved by the limit, so that the question is whether the new runs are beyond it.
    moved = (
        a * (1 + math.copysign(condition.limit, condition.limit * mean))
        if condition.is_share
        else a + condition.limit
    )
    beyond, half = welch(moved, b)
    change = (float(b.mean()) - mean) / unit
    if half is None:
        more = "one run on each side shows no spread of the seeds: give two or more, with other seeds"
        return decision(UNCLEAR, more, (change, -math.inf, math.inf))
    ends = (change, change - half / unit, change + half / unit)
    if not condition.is_more:
        beyond = -beyond
    if beyond > half:
        return decision(FAILS, "", ends)
    if beyond <= -half:
        return decision(HOLDS, "", ends)
    # The interval shrinks with the root of the number of runs.
    variance = float(np.mean([one.var(ddof=1) for one in (moved, b) if one.size > 1]))
    advised = math.inf if beyond == 0 else 2 * variance * (1.75 / beyond) ** 2
    count = f"about {max(3, math.ceil(advised))}" if advised <= _MOST_RUNS else f"more than {_MOST_RUNS}"
    return decision(
        UNCLEAR,
        "the limit is within the spread of the seeds: if the change stays as it is, it takes "
        f"{count} runs on each side",
        ends,
    )


def welch(first: Array, second: Array) -> tuple[float, float | None]:
    """The difference of the means of two samples, second minus first, and half of its interval of 90 %.

    Welch's, whose degrees of freedom are those of Satterthwaite. A sample of one value is taken to spread
    as the other does (Student's interval); None if both have one value.

    Args:
        first, second: floats (n,) and (m,).
    """
    difference = float(second.mean() - first.mean())
    sizes = np.array([first.size, second.size], np.float64)
    if sizes.max() == 1:
        return difference, None
    variances = np.array([one.var(ddof=1) if one.size > 1 else np.nan for one in (first, second)])
    if np.isnan(variances).any():
        freedom, variances = float(sizes.sum() - 2), np.full(2, np.nanmax(variances))
        parts = variances / sizes
    else:
        parts = variances / sizes
        weights = parts / parts.sum() if parts.sum() else np.full(2, 0.5)
        freedom = float(1 / (weights**2 / (sizes - 1)).sum())
    return difference, student(freedom) * math.sqrt(parts.sum())


@functools.lru_cache(1000)
def student(freedom: float) -> float:
    """The quantile 1 - ONE_SIDED of Student's t distribution, by its density over the angle.

    With t = sqrt(f) tan(angle), the density is proportional to cos(angle) ** (f - 1).
    """
    freedom = min(freedom, _MOST_FREEDOM)
    angles = np.linspace(0, np.pi / 2, 4001)
    density = np.cos(angles) ** (freedom - 1)
    shares = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    angle = np.interp((1 - 2 * ONE_SIDED) * shares[-1], shares, angles)
    return float(math.sqrt(freedom) * np.tan(angle))


def exit_code(decisions: Sequence[Decision]) -> int:
    """0 if all hold, 1 if one fails, else 3."""
    outcomes = {one.outcome for one in decisions}
    return EXIT_CODES[next((one for one in (FAILS, UNCLEAR) if one in outcomes), HOLDS)]


def text_of(one: Decision, *, width: int) -> list[str]:
    """A decision and the numbers that it was made of, in lines."""
    shown = {"last": "the last value", "best": "the best value"}.get(
        one.at
    ) or f"the mean of the last {one.at[5:]} values"
    lines = [f"{one.outcome}: fail if {printable(one.condition.text)}, of {shown} of each run"]
    for side in (one.base, one.new):
        values = np.array(side.values)
        spread = f", standard deviation {values.std(ddof=1):.3g}" if values.size > 1 else ""
        mean = f"mean {values.mean():.6g}{spread}" if values.size else "no values"
        ends = sorted({min(side.steps), max(side.steps)}) if side.steps else []
        at = f" at step {' to '.join(f'{step:,}' for step in ends)}" if ends else ""
        each = " ".join(f"{value:.6g}" for value in values)
        line = f"  {printable(side.name)} ({numbered(len(side.runs), 'run')}): {mean}{at}; {each}"
        lines += paragraph(line, width, indent="    ")
    if one.change is not None and one.low is not None and one.high is not None:
        scale, unit = (100, " %") if one.condition.is_share else (1, "")
        change, low, high, limit = (
            f"{scale * number:+.3g}{unit}" for number in (one.change, one.low, one.high, one.condition.limit)
        )
        interval = f"90 % interval {low} to {high}, " if math.isfinite(one.low) else ""
        lines += paragraph(f"  change {change}, {interval}limit {limit}", width, indent="    ")
    return lines + (paragraph(f"  {printable(one.reason)}", width, indent="    ") if one.reason else [])


def _those(side: Side, values: Array) -> str:
    return ", ".join(name for name, value in zip(side.runs, values, strict=True) if not math.isfinite(value))
