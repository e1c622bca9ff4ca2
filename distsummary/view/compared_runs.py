"""The data of a page that shows a run next to others: what differs, and their curves on top of each other."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from distsummary.runs.curves import Curve, difference_of
from distsummary.runs.facts import facts
from distsummary.runs.recorded_run import RecordedRun, findings
from distsummary.view.packing import plain
from distsummary.view.reduce import line_of

MOST = 19  # other runs
_POINTS = 36_000  # of all curves together
_FIRST_TAGS = 10  # share half of the points
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
    run: RecordedRun, others: Sequence[RecordedRun], tags: Sequence[str], *, width: int
) -> dict[str, Any] | None:
    """A run next to others; None without any.

    Of each run: its name, unlike those of the others, path, state, ranks, steps, verdicts in words, and of
    which rank its curves are (-1: the merged run). Of each fact that differs: the value of each run, None
    where it is not known. Of each tag: the curve of each run and its difference to that of the first, None
    where one has none; which direction is better, the value to reach, and how each run stands, see
    `distsummary.runs.compare.Row`.

    Args:
        run: the first one. others: see `refuse_others`. tags: those whose curves are wanted, by interest.
        width: columns of a drawing.
    """
    if not others:
        return None
    refuse_others(run.path, [one.path for one in others])
    runs = [run, *others]
    paths = [one.path.resolve() for one in runs]
    differing, _, equal = differences([[facts(one)] for one in runs])
    sources, curves = zip(*(curves_of(one) for one in runs), strict=True)
    shown = [tag for tag in tags if any(tag in of_run for of_run in curves)]
    directions, found = directions_of(runs, shown), []
    for place, tag in enumerate(shown):
        # The first tags share half of the points, all others the rest.
        share = _POINTS / 2 / (min(len(shown), _FIRST_TAGS) if place < _FIRST_TAGS else len(shown))
        columns = int(min(width, max(20, share / (3 * len(runs)))))
        found.append(_tag(tag, curves, directions[tag], columns))
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
            }
            for name, path, one, source, of_run, wrong in zip(
                names_of(paths), paths, runs, sources, curves, map(findings, runs), strict=True
            )
        ],
        "differing": [[name, [plain(value) for (value,) in each]] for name, each in differing.items()],
        "equal": equal,
        "tags": found,
        "not_in_all": not_in_all[:_NAMED],
        "left_out": max(0, len(not_in_all) - _NAMED),
    }  # fmt: skip


def span(run: RecordedRun, first_steps: Iterable[int]) -> list[int] | None:
    """The first and the last step of a run; a step 0 before all curves has only the settings it began with.

    Args:
        first_steps: of the curves.
    """
    if run.steps is None:
        return None
    first, last = run.steps
    return [min(first_steps, default=0) if first == 0 else first, last]


def _tag(tag: str, curves: Sequence[Mapping[str, Curve]], best: str | None, columns: int) -> dict[str, Any]:
    """The curves of a tag, and how the runs stand in it."""
    row = row_of(tag, [[of_run] for of_run in curves], best)
    partings = [one.parting for one in row.standings if one and one.parting]
    first = curves[0].get(tag)
    return {
        "tag": tag,
        "lines": [_line(of_run.get(tag), columns) for of_run in curves],
        "differences": [
            _line(difference_of(first, of_run[tag]), columns // 2) if first and tag in of_run else None
            for of_run in curves[1:]
        ],
        "is_reported": any(is_reported(tag, one) for one in partings),
        **plain(row),
    }


def _line(curve: Curve | None, columns: int) -> dict[str, Any] | None:
    return None if curve is None else line_of(curve.steps, curve.values, max(1, columns))
