"""The data of a page that shows a run next to others: what differs, and their curves on top of each other."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distsummary.errors import InvalidValueError
from distsummary.runs.compare import (
    curves_of,
    differences,
    directions_of,
    is_reported,
    names_of,
    row_of,
    verdicts_of,
)
from distsummary.runs.curves import Curve, difference_of, mean_of, range_of
from distsummary.runs.facts import facts
from distsummary.runs.recorded_run import RecordedRun, findings
from distsummary.view.packing import plain, small
from distsummary.view.reduce import spread, thinned

MOST = 19  # other runs
_POINTS = 36_000  # of all curves together
_FIRST_TAGS = 10  # share half of the points
_EPOCHS = 1000  # steps with an epoch; those between are between these
_NAMED = 500  # tags that not all runs have


def refuse_others(run: Path, others: Sequence[Path]) -> None:
    """Raise InvalidValueError if there are more than `MOST` others, or the same run twice; opens none."""
    if len(others) > MOST:
        raise InvalidValueError(f"a run can be shown with up to {MOST} others, got {len(others)}")
    paths = [path.resolve() for path in (run, *others)]
    for path in paths:
        if paths.count(path) > 1:
            raise InvalidValueError(f"runs to compare must be different ones, got {os.fspath(path)} twice")


def comparison(
    run: RecordedRun,
    others: Sequence[RecordedRun],
    tags: Sequence[str],
    *,
    width: int,
    labels: Sequence[str] = (),
) -> dict[str, Any] | None:
    """A run next to others, also in groups; None without any.

    Of each run: its name, unlike those of the others, path, state, ranks, steps, verdicts in words, of which
    rank its curves are (-1: the merged run), and its group. Of each group: its name, how many runs it has,
    and its epochs (`steps` and `values` of a tag named epoch; None without one); without `labels`, each run
    is one. Of each fact that differs: the values in each group, each once, None
    where it is not known; `within`: the facts that differ within each group alike. Of each tag: the curve of
    each group and its difference to that of the first, None where one has none; which direction is better,
    the value to reach, and how each group stands, see `distsummary.runs.compare.Row`. The curve of a group
    is the mean of its runs at the steps that all of them have, with the `low` and the `high` one. `seconds`:
    since the first value of the run.

    Args:
        run: the first one. others: see `refuse_others`. tags: those whose curves are wanted, by interest.
        width: columns of a drawing. labels: of each run the name of its group; empty: none has one.
    """
    if not others:
        return None
    refuse_others(run.path, [one.path for one in others])
    runs = [run, *others]
    paths = [one.path.resolve() for one in runs]
    names = names_of(paths)
    labels = labels or names
    groups = [*dict.fromkeys(labels)]
    members = [[place for place, label in enumerate(labels) if label == group] for group in groups]
    differing, within, equal = differences([[facts(runs[place]) for place in group] for group in members])
    sources, of_runs = zip(*(curves_of(one) for one in runs), strict=True)
    curves = [*map(_from_first_value, of_runs)]
    shown = [tag for tag in tags if any(tag in of_run for of_run in curves)]
    directions, found = directions_of(runs, shown), []
    for place, tag in enumerate(shown):
        # The first tags share half of the points, all others the rest.
        share = _POINTS / 2 / (min(len(shown), _FIRST_TAGS) if place < _FIRST_TAGS else len(shown))
        columns = int(min(width, max(20, share / (3 * len(groups)))))
        of_groups = [[curves[place] for place in group] for group in members]
        found.append(_tag(tag, of_groups, directions[tag], columns))
    not_in_all = [
        [tag, [tag in of_run for of_run in curves]]
        for tag in dict.fromkeys(tag for of_run in curves for tag in of_run)
        if not all(tag in of_run for of_run in curves)
    ]
    return {
        "runs": [
            {
                "name": name, "path": os.fspath(path), "state": one.state, "ranks": len(one.ranks),
                "level": wrong.level, "findings": len(wrong.verdicts),
                "steps": span(one, (int(one.steps[0]) for one in of_run.values() if one.steps.size)),
                "source": source, "verdicts": verdicts_of(one), "problems": list(one.problems),
                "group": groups.index(label),
            }
            for name, path, one, source, of_run, wrong, label in zip(
                names, paths, runs, sources, curves, map(findings, runs), labels, strict=True
            )
        ],
        "groups": [
            {"name": name, "runs": len(group), "epochs": _epochs([curves[place] for place in group])}
            for name, group in zip(groups, members, strict=True)
        ],
        "differing": [
            [name, [[*map(plain, values)] for values in each]] for name, each in differing.items()
        ],
        "within": within,
        "equal": equal,
        "tags": found,
        "not_in_all": not_in_all[:_NAMED],
        "left_out": max(0, len(not_in_all) - _NAMED),
    }  # fmt: skip


def _epochs(group: Sequence[Mapping[str, Curve]]) -> dict[str, Any] | None:
    """In which epoch each step of a group is, the mean of its runs; None if one does not say."""
    tags = (next((tag for tag in one if tag.split("/")[-1] == "epoch"), None) for one in group)
    found = [
        one[tag] for one, tag in zip(group, tags, strict=True) if tag is not None and one[tag].steps.size
    ]
    curve = mean_of(found) if len(found) == len(group) else None
    if curve is None or not curve.steps.size:
        return None
    kept = spread(curve.steps.size, _EPOCHS)
    return {"steps": small(curve.steps[kept]), "values": curve.values[kept].astype(np.float64)}


def span(run: RecordedRun, first_steps: Iterable[int]) -> list[int] | None:
    """The first and the last step of a run; a step 0 before all curves has only the settings it began with.

    Args:
        first_steps: of the curves.
    """
    if run.steps is None:
        return None
    first, last = run.steps
    return [min(first_steps, default=0) if first == 0 else first, last]


def _from_first_value(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """The curves of a run with the seconds since its first value."""
    first_s = min((float(one.seconds.min()) for one in curves.values() if one.seconds.size), default=0.0)
    return {tag: one._replace(seconds=one.seconds - first_s) for tag, one in curves.items()}


def _tag(
    tag: str, groups: Sequence[Sequence[Mapping[str, Curve]]], best: str | None, columns: int
) -> dict[str, Any]:
    """The curves of a tag, and how the groups stand in it."""
    row = row_of(tag, groups, best)
    partings = [one.parting for one in row.standings if one and one.parting]
    having = [[one[tag] for one in group if tag in one and one[tag].steps.size] for group in groups]
    means = [mean_of(curves) if curves else None for curves in having]
    first = means[0]
    return {
        "tag": tag,
        "lines": [_line(mean, columns, curves) for mean, curves in zip(means, having, strict=True)],
        "differences": [
            _line(difference_of(first, mean), columns // 2) if first and mean else None for mean in means[1:]
        ],
        "is_reported": any(is_reported(tag, one) for one in partings) or len(groups) == 1,
        **plain(row),
    }


def _line(curve: Curve | None, columns: int, of: Sequence[Curve] = ()) -> dict[str, Any] | None:
    """The points of a curve that a drawing needs; `of`: the curves that it is the mean of."""
    if curve is None:
        return None
    places = thinned(curve.steps, curve.values, max(1, columns))
    found = {"steps": small(curve.steps[places]), "values": curve.values[places].astype(np.float32)}
    found["seconds"] = curve.seconds[places]
    if len(of) > 1:
        low, high = range_of(of, curve.steps[places])
        found |= {"low": low.astype(np.float32), "high": high.astype(np.float32)}
    return found
