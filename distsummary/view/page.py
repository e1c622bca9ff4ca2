"""The data of a run's page: overview, curves, ranks and timeline, and what other modules have of it.

What is drawn, and how, is the front end's; which numbers there are is decided here. Arrays are NumPy's until
`packing` writes them.
"""

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np

from distsummary.base.columns import as_ranges
from distsummary.base.terminal import doing
from distsummary.diagnosis.verdict import SLOW
from distsummary.errors import DistSummaryError, InvalidValueError
from distsummary.format.definitions import Definitions
from distsummary.format.own_tags import (
    ALERT_RANK,
    CHECK_TAGS,
    DATA_WAIT_MS,
    OF_RANKS,
    OWN_MS,
    PHASE_TAGS,
    SYSTEM_TAGS,
    WAIT_MS,
)
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.facts import facts
from distsummary.runs.rank_files import MERGED, MERGED_RANK
from distsummary.runs.recorded_run import RecordedRun, definitions_of, findings
from distsummary.runs.show import interest, is_loss
from distsummary.runs.status import removed_values
from distsummary.runs.status_text import removed_text
from distsummary.runs.table import Matrix
from distsummary.view.anatomy import Anatomy, phase_tags
from distsummary.view.answer import Numbers, answer
from distsummary.view.compared_runs import comparison, span
from distsummary.view.graph_nodes import graph
from distsummary.view.histograms import histograms
from distsummary.view.marks import marks
from distsummary.view.media import media
from distsummary.view.norm_rows import norms
from distsummary.view.packing import plain, small
from distsummary.view.rank_maps import rank_map, reference
from distsummary.view.reduce import Array, Band, band, columns, line_of
from distsummary.view.surfaces import landscapes

Page: TypeAlias = dict[str, Any]

WIDTH = 1000  # columns of a drawing
MAX_TAGS = 150
_LINES = 16  # ranks with a line of their own, if there are more than that
_POINTS = 300_000  # of all curves together
_FIRST_TAGS = 10  # share half of the points
_MAPS = (
    ("Own time", OWN_MS),
    ("Waiting for other ranks", WAIT_MS),
    ("Waiting for data", DATA_WAIT_MS),
)
_PHASE_MAPS = 4  # those that verdicts name, then these
_PHASES = ("forward", "backward", "optimizer")
_ENDS = ("since_step", "until_step")
_UNITS = {"_ms": "ms", "_percent": "%", "_gib": "GiB", "_mb_per_s": "MB/s", "_per_s": "/s", "_s": "s"}
# A merge leaves these out, although the ranks agree on them: they are no conflicts.
_LEFT_OUT = ({"nan"}, {"inf"}, {"-inf"})
_LAST = (PHASE_TAGS, SYSTEM_TAGS, ALERT_RANK, CHECK_TAGS)  # of the tags that are not the user's


def page(
    run: RecordedRun,
    *,
    ranks: Sequence[int] = (),
    tags: Sequence[str] | None = None,
    others: Sequence[RecordedRun] = (),
    labels: Sequence[str] = (),
) -> Page:
    """All that the page of a run shows.

    Args:
        run: the run.
        ranks: those that have lines of their own in any case; a run of up to 16 ranks has lines of all.
        tags: the scalars whose curves are there, besides those of the first screen; None: all, the first
            `MAX_TAGS` of them by interest.
        others: runs to show next to it. labels: of all of them the groups, see `comparison`.

    Raises InvalidValueError for a rank or a tag that is not there, and for others that cannot be compared;
    MissingFileError if a run was removed.
    """
    with ExitStack() as held:
        for one in (run, *others):
            held.enter_context(one.held())
        return _page(run, ranks, tags, others, labels)


def _page(
    run: RecordedRun,
    ranks: Sequence[int],
    tags: Sequence[str] | None,
    others: Sequence[RecordedRun],
    labels: Sequence[str],
) -> Page:
    if absent := sorted({*ranks} - {*run.ranks}):
        raise InvalidValueError(f"rank must be one of {as_ranges(run.ranks)}, got {absent[0]}")
    bars = _bars(run)
    verdicts: list[dict[str, Any]] = [plain(row) for row in run.verdicts]
    shown = _shown(_known(run, tags), {row["cause"] for row in verdicts})
    tags = _known(run, None)
    compared = comparison(run, others, shown, width=WIDTH, labels=labels)
    # The ranks that a verdict names have lines of their own as well.
    named = [*dict.fromkeys([*(int(row["rank"]) for row in verdicts), *ranks])]
    definitions = definitions_of(run)
    numbers = Numbers(tags, definitions)
    of_ranks = _OfRanks(tags if len(run.ranks) > 1 else (), verdicts, named, definitions)
    merged = _merged_curves(run, [*shown, *numbers.wanted])
    order = [*dict.fromkeys([*shown, *numbers.wanted])]
    curves, first_steps, counts = dict[str, Page](), list[int](), None
    # Each is read once, and released before the next one: the matrix of 1,000 ranks takes 400 MB.
    wanted = [*dict.fromkeys([*of_ranks.first, *order, *of_ranks.wanted])]
    for place, tag in enumerate(wanted):
        doing("reducing curve", place + 1, len(wanted))
        matrix = Matrix(*run.matrix_and_nans(tag))
        of_all = band(matrix.ranks, matrix.values, matrix.nans)
        if tag in order:
            first_steps += matrix.steps[:1].tolist()
            # The first tags share half of the points, all others the rest.
            is_first = order.index(tag) < _FIRST_TAGS
            share = _POINTS / 2 / (min(len(shown), _FIRST_TAGS) if is_first else len(shown))
            curves[tag] = _curve(tag, matrix, of_all, named, share, merged.get(tag), definitions)
        # All steps of a tag may have been made again without it.
        if not matrix.steps.size:
            continue
        numbers.take(tag, matrix, of_all, merged.get(tag))
        of_ranks.take(tag, matrix, of_all)
        # The most interesting tag stands for the run in the counts of ranks.
        if counts is None or tag == order[0]:
            counts = _counts(matrix.steps, of_all)
        del matrix
    others_shown = {
        "landscapes": landscapes(run),
        "norms": norms(run),
        "graph": graph(run),
        "compare": compared,
        "histograms": histograms(run),
        "media": media(run),
    }
    steps = span(run, first_steps)
    on_axis, cost = marks(run, tags), run.cost()
    loss, saved = numbers.found["loss"], on_axis["checkpoints"]
    said = answer(run, verdicts, steps=steps, loss=loss, checkpoints=saved, cost=cost)
    # What could not be read is known when all else has been.
    return {
        "overview": _overview(run, verdicts, steps, _lasted_s(bars, on_axis["times"])),
        "answer": said | numbers.found,
        "cost": cost.as_json(),
        "tags": tags,
        "curves": [curves[tag] for tag in order],
        "maps": of_ranks.maps,
        "anatomy": of_ranks.anatomy and of_ranks.anatomy.as_dict(),
        "marks": on_axis,
        "timeline": {"bars": bars, "counts": counts},
        **others_shown,
    }


class _OfRanks:
    """What is shown of the ranks next to each other, noted while the tags are read: heat maps, and where each
    rank spent a step.

    Attributes:
        first, wanted: the tags that this needs; `first` are to be read before the others.
        anatomy: None until the own times of the ranks were read.
    """

    def __init__(
        self,
        tags: Sequence[str],
        verdicts: Sequence[Mapping[str, Any]],
        named: Sequence[int],
        definitions: Definitions,
    ) -> None:
        self._titles, self._named = _map_tags(tags, verdicts), named
        self._definitions = definitions
        self._steps = [int(row[name]) for row in verdicts for name in _ENDS if row[name] >= 0]
        self.first = [OWN_MS] if OWN_MS in self._titles else []
        self._phases = phase_tags(tags) if self.first else []
        self.wanted = [*self._titles, *self._phases]
        self._maps: dict[str, Page] = {}
        self._known, self._times = np.zeros(0, np.int64), np.zeros(0)
        self.anatomy: Anatomy | None = None

    def take(self, tag: str, matrix: Matrix, of_all: Band) -> None:
        """Note a tag that has steps."""
        middle = reference(of_all, matrix.ranks.size)
        if tag in self.first:
            self.anatomy = Anatomy(matrix, middle, named=self._named, steps=self._steps)
            self._known, self._times = matrix.steps, np.where(middle > 0, middle, np.nan)
        if tag in self._titles:
            step_of = None if is_loss(tag) or tag == OWN_MS else self._times_at(matrix.steps)
            found = rank_map(
                self._titles[tag], _unit(tag, self._definitions), tag, matrix, middle, step_of, self._named
            )
            self._maps |= {tag: found} if found else {}
        if self.anatomy is not None and tag in self._phases:
            self.anatomy.take(tag, matrix)

    def _times_at(self, steps: Array) -> Array | None:
        """The own time of the median rank at these steps, or at the nearest before each; None: unknown."""
        places = np.searchsorted(self._known, steps, side="right") - 1
        return self._times[np.maximum(places, 0)] if self._known.size else None

    @property
    def maps(self) -> list[Page]:
        """The heat maps, in the order of the page."""
        return [self._maps[tag] for tag in self._titles if tag in self._maps]


def tag_curve(run: RecordedRun, tag: str) -> Page:
    """The curve of a tag that the page of a run does not have, as `page` has those that it has.

    Raises InvalidValueError for a tag that is not there; MissingFileError if the run was removed.
    """
    matrix = Matrix(*run.matrix_and_nans(tag))
    of_all = band(matrix.ranks, matrix.values, matrix.nans)
    merged = _merged_curves(run, [tag]).get(tag)
    return _curve(tag, matrix, of_all, [], _POINTS / 2, merged, definitions_of(run))


def rank_curve(run: RecordedRun, tag: str, rank: int) -> Page:
    """The curve of one rank as `page` has those of chosen ranks, in up to `WIDTH` columns.

    Raises InvalidValueError for a rank or a tag that is not there; MissingFileError if the run was removed.
    """
    table = run.scalars(tag, rank=rank)
    order = np.argsort(table["step"], kind="stable")
    return {"rank": rank} | line_of(table["step"][order], table["value"][order], WIDTH)


def step_anatomy(run: RecordedRun, step: int, rank: int | None = None) -> Page:
    """Where each rank spent the first measured step from `step` on, or the last one, as `anatomy`.

    `rank` is there in any case. Raises InvalidValueError for a run without own times of its ranks;
    MissingFileError if the run was removed.
    """
    own = Matrix(*run.matrix_and_nans(OWN_MS))
    at = min(int(np.searchsorted(own.steps, step)), own.steps.size - 1)
    one = Matrix(own.steps[at : at + 1], own.ranks, own.values[at : at + 1], None)
    middle = reference(band(one.ranks, one.values), one.ranks.size)
    anatomy = Anatomy(one, middle, named=[] if rank is None else [rank], steps=[])
    for tag in phase_tags(_known(run, None)):
        anatomy.take(tag, Matrix(*run.matrix_and_nans(tag)))
    return {"anatomy": anatomy.as_dict()}


def _known(run: RecordedRun, tags: Sequence[str] | None) -> list[str]:
    """The scalars of the ranks by interest, those of distsummary last."""
    known = [tag for tag in run.tags.get("scalar", {}) if not tag.startswith(OF_RANKS)]
    if tags is not None:
        if absent := [tag for tag in tags if tag not in known]:
            # This raises the error, which names the nearest tag.
            run.scalars(absent[0])
        known = [tag for tag in known if tag in set(tags)]
    return sorted(known, key=interest)


def _shown(tags: Sequence[str], causes: Collection[str]) -> list[str]:
    """The scalars whose curves are on the page, of phases the causes of verdicts first."""

    def by_interest(tag: str) -> Any:
        is_other_phase = (
            tag.startswith(PHASE_TAGS) and tag.removeprefix(PHASE_TAGS).split("/")[0] not in causes
        )
        return [tag.startswith(start) for start in reversed(_LAST)], is_other_phase, *interest(tag)

    return sorted(tags, key=by_interest)[:MAX_TAGS]


def _map_tags(tags: Sequence[str], verdicts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Tag -> title of its heat map, in the order of the page."""
    found = {tag: title for title, tag in _MAPS if tag in tags}
    blamed = dict.fromkeys(row["cause"] for row in verdicts if row["cause"] in SLOW)
    for phase in [*dict.fromkeys([*blamed, *_PHASES])][:_PHASE_MAPS]:
        if (tag := f"{PHASE_TAGS}{phase}/cpu_ms") in tags:
            found[tag] = phase.capitalize()
        if phase in blamed and (tag := f"{PHASE_TAGS}{phase}/blocked_ms") in tags:
            found[tag] = f"{phase.capitalize()}, blocked"
    losses = [tag for tag in tags if is_loss(tag)]
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


def _curve(
    tag: str,
    matrix: Matrix,
    of_all: Band,
    named: Sequence[int],
    share: float,
    merged: tuple[Array, Array] | None,
    definitions: Definitions,
) -> dict[str, Any]:
    """One tag: the merged run, which is `across` the ranks in words; the band over the ranks in columns;
    their median, and the ranks with lines of their own.

    `share`: how many points it may have; the more lines, the fewer columns.
    """
    steps, having, values, nans = matrix
    lines = _lines(having, named, of_all)
    width = int(min(WIDTH, max(40, share / (3 * (len(lines) + 2)))))
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
        "unit": _unit(tag, definitions),
        "ranks": int(having.size),
        "points": int(of_all.count.sum()),
        "columns": int(starts.size),
        "steps": int(steps.size),
        "median": line_of(steps, of_all.median, width) if having.size > 1 else None,
        "band": bands if having.size > 1 else None,
        "lines": own,
        "merged": line_of(*merged, width) if merged else None,
        "across": definitions.of(tag).of_ranks,
        "not_finite": int(of_all.not_finite.sum()),
        "first_not_finite": int(steps[bad[0]]) if bad.size else None,
    }


def _unit(tag: str, definitions: Definitions) -> str:
    return definitions.of(tag).unit or next((unit for end, unit in _UNITS.items() if tag.endswith(end)), "")


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
    run: RecordedRun, verdicts: list[dict[str, Any]], steps: list[int] | None, lasted_s: float | None
) -> dict[str, Any]:
    attempts: list[dict[str, Any]] = [plain(row) for row in run.attempts if row.role == run.role]
    known, found = facts(run), findings(run)
    return {
        "made": time.time(),
        "name": run.path.name,
        "path": os.fspath(run.path.resolve()),
        "state": run.state,
        "level": found.level,
        "findings": len(found.verdicts),
        "found": found.text,
        "ranks": list(run.ranks),
        "world_size": int(known.get("ranks") or len(run.ranks)),
        "steps": steps,
        "lasted_s": lasted_s,
        "started": min((row["started"] for row in attempts), default=None),
        "attempts": attempts,
        "health": [plain(row) for row in run.health if row.role == run.role],
        "facts": {name: plain(value) for name, value in known.items() if not name.startswith("config.")},
        "config": {name[7:]: plain(value) for name, value in known.items() if name.startswith("config.")},
        "counts": {kind: len(tags) for kind, tags in run.tags.items()},
        "verdicts": verdicts,
        "conflicts": _conflicts(run),
        "problems": list(run.problems),
        "removed": _removed(run),
    }


def _removed(run: RecordedRun) -> str:
    """Which bulk values are not there any more; empty if all are."""
    try:
        found = removed_values(RunDir(run.path))
    except (DistSummaryError, OSError):
        # The problems of the run name this error.
        return ""
    return removed_text(found) if found.values else ""


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


def _lasted_s(bars: Sequence[Mapping[str, Any]], times: Mapping[str, Array] | None) -> float | None:
    """How long the run took so far; without a run.json, from the first recorded step to the last."""
    if bars:
        return float(max(bar["end"] for bar in bars) - min(bar["begin"] for bar in bars))
    if times is None or times["seconds"].size < 2:
        return None
    return float(np.nanmax(times["seconds"]) - np.nanmin(times["seconds"]))
