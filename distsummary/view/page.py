"""The data of a run's page: overview, curves, heat maps and timeline, and what other modules have of it.

What is drawn, and how, is the front end's; which numbers there are is decided here. Arrays are NumPy's until
`packing` writes them.
"""

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np

from distsummary.base.columns import as_ranges
from distsummary.base.terminal import doing
from distsummary.diagnosis.alerts import worst_level
from distsummary.diagnosis.verdict import SLOW
from distsummary.errors import DistSummaryError, InvalidValueError
from distsummary.format.own_tags import (
    ALERT_RANK,
    AUTO,
    CHECK_TAGS,
    DATA_WAIT_MS,
    OF_RANKS,
    OWN_MS,
    PHASE_TAGS,
    STEP_MS,
    SYSTEM_TAGS,
    WAIT_MS,
)
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.facts import facts
from distsummary.runs.rank_files import MERGED, MERGED_RANK
from distsummary.runs.recorded_run import RecordedRun, findings
from distsummary.runs.show import interest
from distsummary.runs.status_text import findings_in_short
from distsummary.runs.table import Matrix
from distsummary.view.compared_runs import comparison, span
from distsummary.view.histograms import histograms
from distsummary.view.media import media
from distsummary.view.norm_rows import norms
from distsummary.view.packing import offsets, plain, rounded, small
from distsummary.view.reduce import Array, Band, band, columns, heat_map, line_of
from distsummary.view.surfaces import landscapes

Page: TypeAlias = dict[str, Any]

WIDTH = 1000  # columns of a drawing
MAX_TAGS = 150
_LINES = 16  # ranks with a line of their own, if there are more than that
_POINTS = 300_000  # of all curves together
_CELLS = 320_000  # of all heat maps together
_FIRST_TAGS = 10  # share half of the points
_MAPS = (
    ("Step time", STEP_MS),
    ("Own time", OWN_MS),
    ("Waiting for other ranks", WAIT_MS),
    ("Waiting for data", DATA_WAIT_MS),
)
_PHASE_MAPS = 4  # of the phases that verdicts name
_UNITS = {"_ms": "ms", "_percent": "%", "_gib": "GiB", "_mb_per_s": "MB/s", "_s": "s"}
_LOSS = re.compile(rf"(?:.*[/_])?loss(?:{AUTO})?", re.IGNORECASE)
# A merge leaves these out, although the ranks agree on them: they are no conflicts.
_LEFT_OUT = ({"nan"}, {"inf"}, {"-inf"})
_LAST = (PHASE_TAGS, SYSTEM_TAGS, ALERT_RANK, CHECK_TAGS)  # of the tags that are not the user's


def page(
    run: RecordedRun,
    *,
    ranks: Sequence[int] = (),
    tags: Sequence[str] | None = None,
    others: Sequence[RecordedRun] = (),
) -> Page:
    """All that the page of a run shows.

    Args:
        run: the run.
        ranks: those that have lines of their own in any case; a run of up to 16 ranks has lines of all.
        tags: the scalars to show; None: all, the first `MAX_TAGS` of them by interest.
        others: runs to show next to it, see `comparison`.

    Raises InvalidValueError for a rank or a tag that is not there, and for others that cannot be compared;
    MissingFileError if a run was removed.
    """
    with ExitStack() as held:
        for one in (run, *others):
            held.enter_context(one.held())
        return _page(run, ranks, tags, others)


def _page(
    run: RecordedRun, ranks: Sequence[int], tags: Sequence[str] | None, others: Sequence[RecordedRun]
) -> Page:
    if absent := sorted({*ranks} - {*run.ranks}):
        raise InvalidValueError(f"rank must be one of {as_ranges(run.ranks)}, got {absent[0]}")
    verdicts: list[dict[str, Any]] = [plain(row) for row in run.verdicts]
    shown, left_out = _shown(run, tags, {row["cause"] for row in verdicts})
    planes = landscapes(run)
    compared = comparison(run, others, shown, width=WIDTH)
    # The ranks that a verdict names have lines of their own as well.
    named = [*dict.fromkeys([*ranks, *(int(row["rank"]) for row in verdicts)])]
    maps = _map_tags(shown, verdicts) if len(run.ranks) > 1 else {}
    merged = _merged_curves(run, shown)
    curves, pictures, first_steps = [], [], []
    timeline: Page = {"bars": _bars(run), "starts": [], "counts": None}
    for place, tag in enumerate(shown):
        doing("reducing curve", place + 1, len(shown))
        matrix = Matrix(*run.matrix_and_nans(tag))
        first_steps += matrix.steps[:1].tolist()
        of_all = band(matrix.ranks, matrix.values, matrix.nans)
        lines = _lines(matrix.ranks, named, of_all)
        # The first tags share half of the points, all others the rest; the more lines, the fewer columns.
        share = _POINTS / 2 / (min(len(shown), _FIRST_TAGS) if place < _FIRST_TAGS else len(shown))
        width = int(min(WIDTH, max(40, share / (3 * (len(lines) + 2)))))
        curves.append(
            _curve(tag, matrix, of_all, lines, width)
            | {"merged": line_of(*merged[tag], width) if tag in merged else None}
        )
        # The most interesting tag, which is the first one, stands for the run in the timeline.
        if place == 0:
            starts = _starts(run, tag, int(matrix.ranks[0]))
            timeline |= {"starts": starts, "counts": _counts(matrix.steps, of_all)}
        if tag in maps:
            pictures += _pictures(maps[tag], tag, matrix, of_all, _CELLS // len(maps))
        # Released before the next one is read: the matrices of 1,000 ranks take 400 MB.
        del matrix
    order = [*maps]
    pictures.sort(key=lambda one: order.index(one["tag"]))
    return {
        "overview": _overview(run, verdicts, left_out, span(run, first_steps)),
        "curves": curves,
        "maps": pictures,
        "timeline": timeline,
        "landscapes": planes,
        "norms": norms(run),
        "compare": compared,
        "histograms": histograms(run),
        "media": media(run),
    }


def rank_curve(run: RecordedRun, tag: str, rank: int) -> Page:
    """The curve of one rank as `page` has those of chosen ranks, in up to `WIDTH` columns.

    Raises InvalidValueError for a rank or a tag that is not there; MissingFileError if the run was removed.
    """
    table = run.scalars(tag, rank=rank)
    order = np.argsort(table["step"], kind="stable")
    return {"rank": rank} | line_of(table["step"][order], table["value"][order], WIDTH)


def _shown(run: RecordedRun, tags: Sequence[str] | None, causes: Collection[str]) -> tuple[list[str], int]:
    """The scalars to show, by interest, of phases the causes of verdicts first; and how many are left out."""
    known = [tag for tag in run.tags.get("scalar", {}) if not tag.startswith(OF_RANKS)]
    if tags is not None:
        if absent := [tag for tag in tags if tag not in known]:
            # This raises the error, which names the nearest tag.
            run.scalars(absent[0])
        known = [tag for tag in known if tag in set(tags)]

    def by_interest(tag: str) -> Any:
        is_other_phase = (
            tag.startswith(PHASE_TAGS) and tag.removeprefix(PHASE_TAGS).split("/")[0] not in causes
        )
        return [tag.startswith(start) for start in reversed(_LAST)], is_other_phase, *interest(tag)

    known.sort(key=by_interest)
    return known[:MAX_TAGS], max(0, len(known) - MAX_TAGS)


def _map_tags(shown: Sequence[str], verdicts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Tag -> title of its heat map, in the order of the page."""
    found = {tag: title for title, tag in _MAPS if tag in shown}
    phases = [*dict.fromkeys(row["cause"] for row in verdicts if row["cause"] in SLOW)]
    for phase in phases[:_PHASE_MAPS]:
        for kind, words in (("cpu_ms", "on the processor"), ("blocked_ms", "blocked")):
            if (tag := f"{PHASE_TAGS}{phase}/{kind}") in shown:
                found[tag] = f"Phase {phase}, {words}"
    losses = [tag for tag in shown if _LOSS.fullmatch(tag)]
    return found | {tag: "Loss" for tag in losses[:1]}


def _lines(having: Array, named: Sequence[int], of_all: Band) -> list[int]:
    """The places of the ranks with lines of their own: all; of many those that are named or often extreme."""
    if having.size <= _LINES:
        return [*range(having.size)]
    # Of many ranks, those that were named come first, then those that are often the highest or lowest.
    extreme = [*_most_often(of_all.high_rank), *_most_often(of_all.low_rank)]
    chosen = [*dict.fromkeys([*named, *extreme, *having.tolist()])]
    place = {int(rank): number for number, rank in enumerate(having)}
    return sorted(place[rank] for rank in chosen[: max(_LINES, len(named))] if rank in place)


def _most_often(ranks: Array) -> list[int]:
    found, counts = np.unique(ranks[ranks >= 0], return_counts=True)
    return [int(rank) for rank in found[np.argsort(-counts, kind="stable")][:3]]


def _curve(tag: str, matrix: Matrix, of_all: Band, lines: Sequence[int], width: int) -> dict[str, Any]:
    """One tag: its band over the ranks in columns, the median, and the ranks with lines of their own."""
    steps, having, values, nans = matrix
    edges = columns(steps, width)
    starts = edges[:-1]
    bands: dict[str, Any] = {"steps": small(steps[starts])}
    for name, missing, reduce in (("low", np.inf, np.minimum), ("high", -np.inf, np.maximum)):
        # The extreme of each column, with the first step that has it and the rank it is of.
        extremes = getattr(of_all, name)
        filled = np.where(np.isnan(extremes), missing, extremes)
        found = reduce.reduceat(filled, starts) if starts.size else filled
        number = np.repeat(np.arange(starts.size), np.diff(edges))
        same = np.flatnonzero(filled == found[number])
        places = same[np.flatnonzero(np.diff(number[same], prepend=-1))]
        bands[name] = np.where(np.isfinite(found), found, np.nan).astype(np.float32)
        bands[f"{name}_steps"] = small(steps[places])
        bands[f"{name}_ranks"] = getattr(of_all, f"{name}_rank")[places].astype(np.int32)
    bad = np.flatnonzero(of_all.not_finite)
    own = []
    for at in lines:
        # A NaN in the matrix means that nothing was recorded, unless `nans` says that NaN itself was.
        recorded = np.isfinite(values[:, at]) | np.isinf(values[:, at])
        if nans is not None:
            recorded |= nans[:, at]
        own.append({"rank": int(having[at])} | line_of(steps[recorded], values[recorded, at], width))
    return {
        "tag": tag,
        "unit": _unit(tag),
        "ranks": int(having.size),
        "points": int(of_all.count.sum()),
        "columns": int(starts.size),
        "steps": int(steps.size),
        "median": line_of(steps, of_all.median, width) if having.size > 1 else None,
        "band": bands if having.size > 1 else None,
        "lines": own,
        "not_finite": int(of_all.not_finite.sum()),
        "first_not_finite": int(steps[bad[0]]) if bad.size else None,
    }


def _unit(tag: str) -> str:
    return next((unit for end, unit in _UNITS.items() if tag.endswith(end)), "")


def _pictures(title: str, tag: str, matrix: Matrix, of_all: Band, cells: int) -> list[dict[str, Any]]:
    """The heat maps of one tag: its values, and if their median is positive, their ratio to it."""
    steps, ranks, values, nans = matrix
    found = []
    kinds: dict[str, Array | None] = {"value": None}
    # The median of two ranks is their mean: a ratio to it would not show which of them is unusual.
    if ranks.size > 2 and (of_all.median > 0).any():
        kinds["ratio"] = of_all.median
    for kind, by in kinds.items():
        one = heat_map(steps, ranks, values, cells=cells // 2, width=WIDTH, by=by, nans=nans)
        found.append(
            {
                "title": title,
                "tag": tag,
                "unit": _unit(tag),
                "kind": kind,
                "ranks": ranks.astype(np.int32),
                "group": one.group,
                "first_steps": small(one.first_steps),
                "last_step": one.last_step,
                "rows": one.values.shape[0],
                "columns": one.values.shape[1],
                "values": one.values if kind == "value" else rounded(one.values),
                "at_step": offsets(one.steps - one.first_steps),
                "at_rank": offsets(np.maximum(one.ranks - ranks[:: one.group, None], 0)),
                "bad": one.bad if one.bad.any() else None,
            }
        )
    return found


def _counts(steps: Array, of_all: Band) -> dict[str, Any]:
    """How many ranks recorded each step, at its fewest in each column."""
    starts = columns(steps, WIDTH)[:-1]
    fewest = np.minimum.reduceat(of_all.count, starts) if starts.size else of_all.count
    return {"steps": small(steps[starts]), "ranks": fewest.astype(np.int32)}


def _merged_curves(run: RecordedRun, shown: Sequence[str]) -> dict[str, tuple[Array, Array]]:
    if len(run.ranks) == 1:
        return {}
    table = run.scalars(rank=MERGED)
    # A run that is not merged has no such rows, or those of its ranks in their place.
    if not len(table) or (table["rank"] != MERGED_RANK).any():
        return {}
    wanted = {*shown}
    return {tag: curve for tag, curve in table.curves().items() if tag in wanted}


def _overview(
    run: RecordedRun, verdicts: list[dict[str, Any]], left_out: int, steps: list[int] | None
) -> dict[str, Any]:
    attempts: list[dict[str, Any]] = [plain(row) for row in run.attempts if row.role == run.role]
    known, found = facts(run), findings(run)
    return {
        "made": time.time(),
        "name": run.path.name,
        "path": os.fspath(run.path.resolve()),
        "state": run.state,
        "level": worst_level(found),
        "findings": len(found),
        "found": findings_in_short(found, is_over=run.state != "running"),
        "ranks": list(run.ranks),
        "world_size": int(known.get("ranks") or len(run.ranks)),
        "steps": steps,
        "started": min((row["started"] for row in attempts), default=None),
        "attempts": attempts,
        "health": [plain(row) for row in run.health if row.role == run.role],
        "facts": {name: plain(value) for name, value in known.items() if not name.startswith("config.")},
        "config": {name[7:]: plain(value) for name, value in known.items() if name.startswith("config.")},
        "counts": {kind: len(tags) for kind, tags in run.tags.items()},
        "verdicts": verdicts,
        "conflicts": _conflicts(run),
        "problems": list(run.problems),
        "left_out": left_out,
    }


def _conflicts(run: RecordedRun) -> list[dict[str, Any]]:
    """What the ranks disagree on, by the last merge: the field and each rank's value."""
    try:
        merged = RunDir(run.path).read_manifest().get("merged") or {}
    except (DistSummaryError, OSError):
        # The problems of the run name this error.
        return []
    found = (merged.get(run.role) or {}).get("conflicts") or []
    said = [
        {"field": one["field"], "by_rank": {rank: plain(value) for rank, value in one["by_rank"].items()}}
        for one in found
    ]
    return [one for one in said if {*map(str, one["by_rank"].values())} not in _LEFT_OUT]


def _bars(run: RecordedRun) -> list[dict[str, Any]]:
    """When each rank of each attempt ran, in seconds since the epoch."""
    now = time.time()
    began = {row.attempt: float(row.started) for row in run.attempts if row.role == run.role}
    bars = []
    for row in run.health:
        if row.role != run.role:
            continue
        begin = began[row.attempt]
        end = now if row.state == "running" else max(begin, now - row.last_seen_s)
        bars.append(
            {
                "rank": int(row.rank), "attempt": int(row.attempt), "role": row.role, "state": row.state,
                "step": int(row.step), "begin": begin, "end": float(end), "host": row.host,
                "error": row.error,
            }
        )  # fmt: skip
    return bars


def _starts(run: RecordedRun, tag: str, rank: int) -> list[dict[str, int]]:
    """The first and the last step of each attempt, by a tag of one rank."""
    table = run.scalars(tag, rank=rank)
    found = []
    for attempt in np.unique(table["attempt"]):
        steps = table["step"][table["attempt"] == attempt]
        found.append({"attempt": int(attempt), "first_step": int(steps.min()), "last_step": int(steps.max())})
    return found
