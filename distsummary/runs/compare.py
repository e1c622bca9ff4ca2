"""Two runs next to each other: what differs in config, code and data, and where their curves part."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.base.columns import aligned, cut, numbered, paragraph, printable, shortened, wrapped_rows
from distsummary.format.own_tags import ALERT_TAGS, OF_RANKS, SYSTEM_TAGS
from distsummary.runs.facts import Fact, facts
from distsummary.runs.recorded_run import RecordedRun
from distsummary.runs.show import fact_text, interest, leading_scalars, verdict_text

APART = 3.0  # times their own change from step to step; curves that are so far apart have parted
MEANING = (
    "apart from: the first step from which on a curve is, noise aside, farther from the other than "
    f"{APART:g} times its usual change from one step to the next; -: the two end together"
)
_SHARE, _LEAST = 50, 10  # the end of two curves: the last 2 % of their common steps, or 10 if that is more
_SHOWN = 20  # rows of each table
_VERDICTS = 3  # of each run

Array = NDArray[Any]


class Parting(NamedTuple):
    """How two curves go apart.

    `common`: at how many steps both have a value. `first_difference`: the first of these at which the values
    are not the same, None if they all are. `parts_at`: the step from which on they are apart, None if they
    end together, see `where_they_part`. `last`: the values at the last common step.
    """

    common: int
    first_difference: int | None
    parts_at: int | None
    last: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs between two runs.

    `differing`: fact -> its values, None where a run does not know it. `equal`: how many facts are the same.
    `curves`: by tag. `only`: the tags that one of them alone has. `verdicts`: what was reported about the
    ranks of each run, in words.
    """

    paths: tuple[str, str]
    differing: dict[str, tuple[Fact, Fact]]
    equal: int
    curves: dict[str, Parting]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    verdicts: tuple[tuple[str, ...], tuple[str, ...]]
    problems: tuple[tuple[str, ...], tuple[str, ...]]


def where_they_part(steps: Array, values: Array, other_steps: Array, other_values: Array) -> Parting:
    """Compare two curves at the steps that both have; of a step that one has twice, the last value counts.

    Far: farther from each other than APART times the usual change, the larger median of |v[t] - v[t-1]|.
    Two curves end apart if the median of their difference over the last 2 % of the common steps is far; at
    least 10 steps, at most half of them. They are apart from the step that best divides the steps into those
    that are not far, before, and those that are far, in the direction of the end: the minimum of the
    cumulative sum of (difference - far), in which no step counts for more than `far`, so that a few outliers
    move it little (CUSUM; E. S. Page, Biometrika 41, 1954).

    Args:
        steps, other_steps: int64 (n,) and (m,). values, other_values: floats (n,) and (m,).
    """
    (steps, values), (other_steps, other_values) = (
        _by_step(steps, values), _by_step(other_steps, other_values)
    )  # fmt: skip
    common, mine, others = np.intersect1d(steps, other_steps, assume_unique=True, return_indices=True)
    if not common.size:
        return Parting(0, None, None, None)
    a, b = values[mine].astype(np.float64), other_values[others].astype(np.float64)
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    first = None if is_same.all() else int(common[is_same.argmin()])
    with np.errstate(invalid="ignore"):
        difference = np.where(is_same, 0.0, a - b)
    is_finite = np.isfinite(difference)
    # Where one of the values is NaN or infinite, they are far apart in any direction.
    difference[~is_finite] = np.inf
    far = APART * max(_usual_change(a), _usual_change(b))
    end = min(max(_LEAST, common.size // _SHARE), (common.size + 1) // 2)
    at_end = float(np.median(difference[-end:]))
    parts_at = None
    # A single step says nothing of a usual change.
    if common.size > 1 and abs(at_end) > far:
        # Only what differs in the direction of the end counts as far.
        towards = difference if at_end > 0 else np.where(is_finite, -difference, np.inf)
        steps_far = np.clip(towards / far, 0, 2) - 1 if far else np.where(towards > 0, 1.0, -1.0)
        # Each sum is that of the steps before; far steps begin at the last of the smallest sums.
        sums = np.concatenate(([0.0], np.cumsum(steps_far)[:-1]))
        parts_at = int(common[sums.size - 1 - sums[::-1].argmin()])
    return Parting(int(common.size), first, parts_at, (float(a[-1]), float(b[-1])))


def compare(run: RecordedRun, other: RecordedRun) -> Comparison:
    """Compare two runs: their facts, and the curves of the merged run or, before it is merged, of a rank."""
    known, others = facts(run), facts(other)
    names = [*known, *(name for name in others if name not in known)]
    differing = {n: (known.get(n), others.get(n)) for n in names if known.get(n) != others.get(n)}
    (_, curves), (_, other_curves) = (curves_of(one) for one in (run, other))
    both = sorted((tag for tag in curves if tag in other_curves), key=interest)
    partings = {tag: where_they_part(*curves[tag], *other_curves[tag]) for tag in both}
    return Comparison(
        paths=(str(run.path), str(other.path)),
        differing=differing,
        equal=len(names) - len(differing),
        curves={tag: one for tag, one in partings.items() if is_reported(tag, one)},
        only=(
            tuple(tag for tag in curves if tag not in other_curves),
            tuple(tag for tag in other_curves if tag not in curves),
        ),
        verdicts=(verdicts_of(run), verdicts_of(other)),
        problems=(tuple(run.problems), tuple(other.problems)),
    )


def is_reported(tag: str, one: Parting) -> bool:
    """Whether two curves are worth a row: samples of the machine that hardly share a step are not."""
    return one.common > 1 or not tag.startswith(SYSTEM_TAGS)


def verdicts_of(run: RecordedRun) -> tuple[str, ...]:
    """What was reported about the ranks of a run, such as "rank 3: forward, from step 502 on"."""
    return tuple(verdict_text(row._asdict()) for row in run.verdicts)


def curves_of(run: RecordedRun) -> tuple[int, dict[str, tuple[Array, Array]]]:
    """The curves of a run by tag, as steps and values, and of which rank they are: of the merged run (-1), or
    before it is merged, of its lowest rank. Steps rise; of one that is there twice, the last value counts.
    Without the statistics of ranks and without alerts, which are no curves.
    """
    rank, table = leading_scalars(run)
    return rank, {
        tag: _by_step(*curve)
        for tag, curve in table.curves().items()
        if tag not in ALERT_TAGS and not tag.startswith(OF_RANKS)
    }


def text_of(found: Comparison, *, width: int) -> str:
    """Two tables, in lines of at most `width` characters."""
    names = [printable(path) for path in found.paths]
    lines = []
    rows = [(printable(name), *map(fact_text, pair)) for name, pair in found.differing.items()]
    verdicts = [("verdicts", *map(_verdicts, found.verdicts))] if any(found.verdicts) else []
    if rows or verdicts:
        lines += [*wrapped_rows([("", *names), *rows[:_SHOWN], *verdicts], width=width), *_more(len(rows))]
    lines += [f"equal: {numbered(found.equal, 'fact')} of config, code and data", ""]
    rows = [(cut(printable(tag), 40), *_parting(one)) for tag, one in found.curves.items()]
    if rows:
        head = ("curve", "differ from", "apart from", "steps of both", "last: first run", "second run")
        lines += [*aligned([head, *rows[:_SHOWN]], right=range(1, 6), width=width), *_more(len(rows))]
        lines += paragraph(MEANING, width, indent="    ")
    else:
        lines.append("no curve is in both runs")
    for name, tags in zip(names, found.only, strict=True):
        if tags:
            lines.append(
                cut(f"only in {shortened(name, width // 3)}: {', '.join(map(printable, tags))}", width)
            )
    for name, problems in zip(names, found.problems, strict=True):
        for line in problems[:3]:
            text = f"problem in {shortened(name, width // 3)}: {printable(line)}"
            lines += paragraph(text, width, indent="    ")
    return "\n".join(lines)


def _by_step(steps: Array, values: Array) -> tuple[Array, Array]:
    # The order is stable, so that the last of equal steps is the one that was recorded last.
    order = np.argsort(steps, kind="stable")
    last = order[np.append(np.diff(steps[order]) != 0, True)] if steps.size else order
    return steps[last], values[last]


def _usual_change(values: Array) -> float:
    with np.errstate(invalid="ignore"):
        changes = np.abs(np.diff(values))
    changes = changes[np.isfinite(changes)]
    return float(np.median(changes)) if changes.size else 0.0


def _verdicts(reported: tuple[str, ...]) -> str:
    more = [f"{len(reported) - _VERDICTS} more"] if len(reported) > _VERDICTS else []
    return "; ".join([*reported[:_VERDICTS], *more]) or "none"


def _parting(one: Parting) -> tuple[str, ...]:
    if one.last is None:
        return ("-", "-", "0", "-", "-")
    first = "same" if one.first_difference is None else f"step {one.first_difference:,}"
    apart = "-" if one.parts_at is None else f"step {one.parts_at:,}"
    return (first, apart, f"{one.common:,}", *(f"{value:.5g}" for value in one.last))


def _more(count: int) -> list[str]:
    return [f"  and {count - _SHOWN} more: --json"] if count > _SHOWN else []
