"""Runs next to each other, also in groups: what differs in config, code and data, and how their curves do."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np

from distsummary.base.checks import check_recorded
from distsummary.base.columns import aligned, cut, numbered, paragraph, printable, shortened, wrapped_rows
from distsummary.base.terminal import doing, duration
from distsummary.errors import InvalidValueError
from distsummary.events.segments import all_event_files
from distsummary.format.own_tags import ALERT_TAGS, OF_RANKS, SYSTEM_TAGS, is_own
from distsummary.rundir.run_dir import RunDir
from distsummary.runs import gate
from distsummary.runs.curves import (
    APART,
    Array,
    Curve,
    Parting,
    best_of,
    curve_of,
    mean_of,
    reached,
    smoothed,
    where_they_part,
)
from distsummary.runs.facts import Fact, facts
from distsummary.runs.recorded_run import NO_MANIFEST, RecordedRun, definitions_of
from distsummary.runs.run_metrics import better
from distsummary.runs.run_table import open_runs
from distsummary.runs.show import fact_text, interest, leading_scalars, verdict_text

MOST = 20  # groups
MEANING = (
    "apart from: the first step from which on a curve is, noise aside, farther from the other than "
    f"{APART:g} times its usual change from one step to the next; -: the two end together"
)
_MEANING = (
    "reaches, after: the step at which a curve, smoothed over 1 % of its points, is first as good as the "
    "value to reach (without --reach the best one that all come to), and the time since the run began; "
    f"between: the mean difference to the first over the steps of both; {MEANING}"
)
_HEAD = ("last", "best", "reaches", "after", "between", "apart from")
_ROWS = 40  # of the table of curves
_SHOWN = 20  # rows of the table of facts
_VERDICTS = 3  # of each run
# Facts that the config says again, mostly.
_AGAIN = ("learning rate", "epochs", "batch size", "devices", "ranks", "seed ")
_FIRST = ("config.", "seed ", "rank ", "code.", "data.")  # what differs first; results come last
_RESULTS = ("state", "attempts", "final loss", "metrics")


class Standing(NamedTuple):
    """How a group stands in a curve.

    Attributes:
        last, best, best_step: the last and the best value and its step, means over the runs of the group;
            None if not all have a finite one, or it is unknown which direction is better.
        reached_step, reached_s: when the mean of its curves reaches the value, as step and as seconds since
            the runs began; None: never.
        parting: how the mean of its curves goes apart from that of the first group; None for the first
            itself, and where one of the two has no curve.
    """

    last: float | None
    best: float | None
    best_step: float | None
    reached_step: int | None
    reached_s: float | None
    parting: Parting | None


class Row(NamedTuple):
    """A curve of all groups.

    Attributes:
        best: which direction is better, "min" or "max"; None if that is unknown.
        value: what the groups are to reach: by default the best value that the smoothed curves of all reach.
        standings: of each group; None if it has no such curve.
    """

    best: str | None
    value: float | None
    standings: tuple[Standing | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some runs that stand for one setting, such as its seeds: their paths and states, what was reported
    about their ranks in words, and what could not be read.
    """

    name: str
    paths: tuple[str, ...]
    states: tuple[str, ...]
    verdicts: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs between groups of runs.

    `differing`: fact -> the values in each group, each once; None where a run does not know it. `within`:
    those that differ in the same way within each group, such as seeds. `equal`: how many facts are the same.
    `curves`: by tag. `only`: the groups that have a tag which others have not. `decisions`: of the gate.
    """

    groups: tuple[Group, ...]
    differing: dict[str, tuple[tuple[Fact, ...], ...]]
    within: tuple[str, ...]
    equal: int
    curves: dict[str, Row]
    only: dict[str, tuple[str, ...]]
    decisions: tuple[gate.Decision, ...]


def compare(
    groups: Sequence[Sequence[RecordedRun]],
    *,
    conditions: Sequence[gate.Condition] = (),
    at: str = "last",
    values: Mapping[str, float] | None = None,
    tags: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Comparison:
    """Compare groups of runs with the first: their facts, curves and, with `conditions`, the gate.

    Args:
        groups: at least two of one or more runs, no run twice. conditions: see `gate.decide`.
        at: the point at which the gate compares, see `gate.value_at`.
        values: tag -> the value whose steps and seconds are asked for.
        tags: the curves that are wanted; None: all.
        names: of the groups; None: the parts of their paths in which they differ.

    Raises InvalidValueError: there are too few or too many groups, a run is there twice, or no run has a tag.
    """
    _refuse_wrong(groups)
    names = names or names_of([_common(group) for group in groups])
    runs = [run for group in groups for run in group]
    curves: dict[Path, dict[str, Curve]] = {}
    for count, run in enumerate(runs):
        doing("reading run", count + 1, len(runs))
        curves[run.path] = curves_of(run)[1]
    known = [*dict.fromkeys(tag for of_run in curves.values() for tag in of_run)]
    for asked in (*(values or ()), *(tags or ())):
        check_recorded(asked, known, "scalars")
    of_groups = [[curves[run.path] for run in group] for group in groups]
    wanted = sorted(known if tags is None else tags, key=interest)
    directions = directions_of(runs, wanted)
    rows = {tag: row_of(tag, of_groups, directions[tag], (values or {}).get(tag)) for tag in wanted}
    differing, within, equal = differences([[facts(run) for run in group] for group in groups])
    labels = run_names(runs)
    decisions = []
    for condition in conditions:
        condition = condition._replace(tag=gate.tag_of(condition, known))
        base, *others = (
            gate.side_of(
                name,
                {labels[run.path]: curves[run.path].get(condition.tag) for run in group},
                _doubts(group, labels),
                condition,
                at,
            )
            for name, group in zip(names, groups, strict=True)
        )
        decisions += [gate.decide(condition, base, other, at=at) for other in others]
    having = {
        tag: tuple(n for n, group in zip(names, of_groups, strict=True) if any(tag in c for c in group))
        for tag in known
    }
    return Comparison(
        groups=tuple(
            Group(
                name=name,
                paths=tuple(str(run.path) for run in group),
                states=tuple(run.state for run in group),
                verdicts=tuple(text for run in group for text in verdicts_of(run)),
                problems=tuple(
                    (f"{labels[run.path]}: " if len(group) > 1 else "") + line
                    for run in group
                    for line in run.problems
                ),
            )
            for name, group in zip(names, groups, strict=True)
        ),
        differing=differing,
        within=within,
        equal=equal,
        curves={tag: row for tag, row in rows.items() if _is_reported(tag, row)},
        only={tag: which for tag, which in having.items() if len(which) < len(groups)},
        decisions=tuple(decisions),
    )


def runs_in(paths: Sequence[str], where: str) -> list[str]:
    """The runs that paths stand for: a run for itself, and any other directory for the runs in it.

    Args:
        where: a filter of the runs in directories, see `RunTable.where`.

    Raises the errors of `open_runs` and `RunTable.where`.
    """
    found: list[str] = []
    for path in paths:
        has_files = Path(path).is_dir() and (
            RunDir(path).manifest_path.exists() or all_event_files(Path(path))
        )
        is_run = has_files or not Path(path).is_dir() or RunDir(path).rank_dirs()
        found += [path] if is_run else open_runs(path).where(where)["path"].tolist()
    return found


def grouped_by(column: str, paths: Sequence[str], where: str) -> dict[str, list[str]]:
    """The runs in directories by what they have in a column of the table of runs, the smallest first.

    Raises the errors of `runs_in`, and InvalidValueError if no run has the column.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        table = open_runs(path).where(where).sorted_by(column)
        for value, run in zip(table[column].tolist(), table["path"].tolist(), strict=True):
            text = "none" if value is None or value != value else fact_text(value)
            found.setdefault(f"{column} = {text}", []).append(run)
    return found


def read_values(given: Sequence[str]) -> dict[str, float]:
    """Read TAG=VALUE; raises InvalidValueError."""
    found = {}
    for text in given:
        tag, sign, number = text.rpartition("=")
        try:
            # As it was recorded: 0.7 is reached by a curve that ends at 0.7.
            found[tag.strip()] = float(np.float32(number))
        except ValueError:
            sign = ""
        if not sign or not math.isfinite(found[tag.strip()]):
            raise InvalidValueError(f"--reach must be TAG=VALUE, such as loss=0.3, got {text!r}")
    return found


def directions_of(runs: Sequence[RecordedRun], tags: Iterable[str]) -> dict[str, str | None]:
    """Tag -> which direction is better, by the first run that defines it, else by its name; None: unknown."""
    defined = [definitions_of(run) for run in runs]
    said = {tag: [best for one in defined if (best := one.of(tag).best)] for tag in tags}
    return {tag: (found[0] if found else better(tag)) or None for tag, found in said.items()}


def is_reported(tag: str, one: Parting) -> bool:
    """Whether two curves are worth a row: samples of the machine that hardly share a step are not."""
    return one.common > 1 or not tag.startswith(SYSTEM_TAGS)


def verdicts_of(run: RecordedRun) -> tuple[str, ...]:
    """What was reported about the ranks of a run, such as "rank 3: forward, from step 502 on"."""
    return tuple(verdict_text(row._asdict()) for row in run.verdicts)


def curves_of(run: RecordedRun) -> tuple[int, dict[str, Curve]]:
    """The curves of a run by tag, and of which rank they are: of the merged run (-1), or before it is merged,
    of its lowest rank. Without the statistics of ranks and without alerts, which are no curves.
    """
    rank, table = leading_scalars(run)
    times = table.wall_times()
    started = [attempt.started for attempt in run.attempts if attempt.role == run.role]
    began = min([*started, *(float(one.min()) for one in times.values() if one.size)], default=0.0)
    return rank, {
        tag: curve_of(*curve, times[tag] - began)
        for tag, curve in table.curves().items()
        if tag not in ALERT_TAGS and not tag.startswith(OF_RANKS)
    }


def names_of(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as make each unlike the others."""
    parts = [path.parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def run_names(runs: Iterable[RecordedRun]) -> dict[Path, str]:
    """Path -> a name of the run that is unlike those of the others."""
    paths = [run.path for run in runs]
    return dict(zip(paths, names_of(paths), strict=True))


def _common(group: Sequence[RecordedRun]) -> Path:
    """The path of a run; of several, what their paths have in common, as in runs/new-*."""
    paths = [str(run.path) for run in group]
    return Path(paths[0] if len(paths) == 1 else f"{os.path.commonprefix(paths)}*")  # noqa: RUF071  # a part of a name, too


def _refuse_wrong(groups: Sequence[Sequence[RecordedRun]]) -> None:
    if not 2 <= len(groups) <= MOST:
        raise InvalidValueError(
            f"runs to compare must be 2 to {MOST}, or as many groups of runs, got {len(groups)}; a group of "
            "any size begins with --with"
        )
    if not all(groups):
        raise InvalidValueError("each group must have at least one run; widen --where")
    paths = [run.path for group in groups for run in group]
    for path in paths:
        if paths.count(path) > 1:
            raise InvalidValueError(f"runs to compare must be different ones, got {path} twice")


def _doubts(group: Sequence[RecordedRun], labels: Mapping[Path, str]) -> list[str]:
    """Why a gate cannot trust what it reads of these runs."""
    found = []
    for run in group:
        state = run.state
        if state not in ("finished", NO_MANIFEST):
            found.append(f"{labels[run.path]} is {state}")
        found += [f"{labels[run.path]}: {line}" for line in run.problems]
    return found


def differences(
    known: Sequence[Sequence[Mapping[str, Fact]]],
) -> tuple[dict[str, tuple[tuple[Fact, ...], ...]], tuple[str, ...], int]:
    """`differing`, `within` and `equal` of a Comparison, of the facts of each run of each group."""
    names = [*dict.fromkeys(name for group in known for one in group for name in one)]
    # NaN does not equal itself, but as a setting it is the same.
    values = {
        name: tuple(
            tuple(dict.fromkeys("nan" if one.get(name) != one.get(name) else one.get(name) for one in group))
            for group in known
        )
        for name in names
    }
    differing = {n: each for n, each in values.items() if any(set(one) != set(each[0]) for one in each)}
    within = tuple(n for n, each in values.items() if n not in differing and len(each[0]) > 1)
    settings = {each for name, each in differing.items() if name.startswith("config.")}
    shown = {n: e for n, e in differing.items() if not (n.startswith(_AGAIN) and e in settings)}
    return (
        {name: shown[name] for name in sorted(shown, key=_order)},
        within,
        len(names) - len(differing) - len(within),
    )


def _order(name: str) -> int:
    if name in _RESULTS:
        return len(_FIRST) + 1
    return next((place for place, start in enumerate(_FIRST) if name.startswith(start)), len(_FIRST))


def row_of(
    tag: str, groups: Sequence[Sequence[Mapping[str, Curve]]], best: str | None, value: float | None = None
) -> Row:
    """A curve of groups of runs, of each of which its curves by tag are given; see `Row`."""
    # A group has the curves of its runs that have the tag; those without are named in `only` or by the gate.
    found = [[one[tag] for one in group if tag in one and one[tag].steps.size] for group in groups]
    means = [mean_of(curves) if curves else None for curves in found]
    if value is None and best is not None:
        value = _common_value([smoothed(mean) for mean in means if mean is not None], best)
    return Row(
        best,
        value,
        tuple(
            _standing(curves, mean, means[0] if place else None, best, value) if mean is not None else None
            for place, (curves, mean) in enumerate(zip(found, means, strict=True))
        ),
    )


def _common_value(curves: Sequence[Array], best: str) -> float | None:
    """The best value that all curves come to, those without a finite value aside."""
    finite = [one for curve in curves if (one := curve[np.isfinite(curve)]).size]
    if best == "min":
        return max((float(one.min()) for one in finite), default=None)
    return min((float(one.max()) for one in finite), default=None)


def _standing(
    curves: Sequence[Curve], mean: Curve, first: Curve | None, best: str | None, value: float | None
) -> Standing:
    places = [best_of(curve, best) if best else None for curve in curves]
    bests = [(c.values[p], float(c.steps[p])) for c, p in zip(curves, places, strict=True) if p is not None]
    all_have = len(bests) == len(curves)
    at = reached(mean, value, best) if best and value is not None else None
    return Standing(
        last=float(np.mean([curve.values[-1] for curve in curves])),
        best=float(np.mean([one for one, _ in bests])) if all_have else None,
        best_step=float(np.mean([step for _, step in bests])) if all_have else None,
        reached_step=None if at is None else int(mean.steps[at]),
        reached_s=None if at is None else float(mean.seconds[at]),
        parting=None if first is None else where_they_part(first, mean),
    )


def _is_reported(tag: str, row: Row) -> bool:
    partings = [one.parting for one in row.standings if one is not None and one.parting is not None]
    return bool(partings) and any(is_reported(tag, one) for one in partings)


def text_of(found: Comparison, *, width: int) -> str:
    """What differs, the curves and the gate, in lines of at most `width` characters."""
    names = [printable(group.name) for group in found.groups]
    sizes = [f" ({len(group.paths)} runs)" if len(group.paths) > 1 else "" for group in found.groups]
    labels = [f"{name}{size}" for name, size in zip(names, sizes, strict=True)]
    lines = []
    rows = [(printable(name), *map(_values, each)) for name, each in found.differing.items()]
    if any(group.verdicts for group in found.groups):
        rows = [
            *rows[:_SHOWN],
            ("verdicts", *(_verdicts(group.verdicts) for group in found.groups)),
            *rows[_SHOWN:],
        ]
    if rows:
        lines += _facts(labels, rows[: _SHOWN + 1], width)
        lines += _more(len(rows) - _SHOWN - 1)
    if found.within:
        lines.append(cut(f"differ within each group alike: {', '.join(map(printable, found.within))}", width))
    lines += [f"equal: {numbered(found.equal, 'fact')} of config, code and data", ""]
    lines += _curves(found.curves, labels, width)
    for some in dict.fromkeys(found.only.values()):
        tags = [printable(tag) for tag, having in found.only.items() if having == some]
        of = shortened(", ".join(map(printable, some)), max(24, width // 3))
        lines.append(cut(f"only in {of}: {', '.join(tags)}", width))
    for name, group in zip(names, found.groups, strict=True):
        for line in group.problems[:3]:
            text = f"problem in {shortened(name, width // 3)}: {printable(line)}"
            lines += paragraph(text, width, indent="    ")
        lines += _more(len(group.problems) - 3)
    for decision in found.decisions:
        lines += ["", *gate.text_of(decision, width=width)]
    return "\n".join(lines)


def _facts(labels: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A table; where it has too many columns for the width, the groups are listed by value."""
    if len(labels) * 12 < width - width // 3:
        return wrapped_rows([("", *labels), *rows], width=width)
    lines = []
    for name, *texts in rows:
        groups = {
            text: [one for one, own in zip(labels, texts, strict=True) if own == text] for text in texts
        }
        lines += paragraph(
            f"{name}: " + "; ".join(f"{t} ({', '.join(which)})" for t, which in groups.items()), width
        )
    return lines


def _curves(curves: Mapping[str, Row], labels: Sequence[str], width: int) -> list[str]:
    """A table with a line for each group of each curve; the user's own curves, or else all."""
    if not curves:
        return ["no curve is in the first run and in another"]
    shown = [tag for tag in curves if not is_own(tag)] or [*curves]
    shown = shown[: max(3, _ROWS // (len(labels) + 1))]
    cells = [_cells(own) for tag in shown for own in curves[tag].standings]
    # The name gets the room that the other columns leave.
    sizes = [max(map(len, column)) for column in zip(_HEAD, *cells, strict=True)]
    room = max(12, width - sum(sizes) - 2 * len(sizes))
    named = [(shortened(f"  {label}", room), *own) for label, own in zip(cycle(labels), cells, strict=False)]
    head, *table = aligned([("", *_HEAD), *named], right=range(1, 7), width=width)
    lines = [head]
    for place, tag in enumerate(shown):
        one = curves[tag]
        word = {"min": "lower is better", "max": "higher is better", None: "better: unknown"}[one.best]
        value = "" if one.value is None else f", to reach: {one.value:.4g}"
        lines.append(cut(f"{printable(tag)} ({word}{value})", width))
        lines += table[place * len(labels) : (place + 1) * len(labels)]
    return [*lines, *_more(len(curves) - len(shown)), *paragraph(_MEANING, width, indent="    ")]


def _cells(one: Standing | None) -> tuple[str, ...]:
    if one is None:
        return ("-",) * len(_HEAD)
    parting = one.parting or Parting(0, None, None, None)
    return (
        *("-" if value is None else f"{value:.4g}" for value in (one.last, one.best)),
        "-" if one.reached_step is None else f"{one.reached_step:,}",
        "-" if one.reached_s is None else duration(max(0.0, one.reached_s)),
        "-" if parting.between is None else f"{parting.between:+.3g}",
        "-" if parting.parts_at is None else f"{parting.parts_at:,}",
    )


def _values(values: Sequence[Fact]) -> str:
    """The values of a fact in a group: one, or how many and between which."""
    if len(values) == 1:
        return fact_text(values[0])
    numbers = [one for one in values if isinstance(one, (int, float)) and not isinstance(one, bool)]
    ends = (min(numbers), max(numbers)) if len(numbers) == len(values) else (values[0], values[-1])
    return f"{len(values)} values, {fact_text(ends[0])} to {fact_text(ends[1])}"


def _verdicts(reported: tuple[str, ...]) -> str:
    more = [f"{len(reported) - _VERDICTS} more"] if len(reported) > _VERDICTS else []
    return "; ".join([*reported[:_VERDICTS], *more]) or "none"


def _more(count: int) -> list[str]:
    return [f"  and {count} more: --json"] if count > 0 else []
