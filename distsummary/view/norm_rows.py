"""Norms of the parameters of a run as maps of parameters and steps, small enough for a page.

A row is a parameter or, of many, the parameters of a module; a cell is the highest value of its parameters
and steps. The lowest and the highest value of each row are exact, with their place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from distsummary.base.columns import without_middle
from distsummary.errors import DistSummaryError
from distsummary.format.norms import ParameterNorms
from distsummary.format.own_tags import NORMS_TAG
from distsummary.format.records import NORMS
from distsummary.runs.rank_files import MERGED
from distsummary.runs.recorded_run import RecordedRun
from distsummary.runs.table import ValueTable
from distsummary.view.packing import offsets, rounded, small
from distsummary.view.reduce import Array, columns, first_of_each

# Which signs of `bad` are about the values of a map: 1 gradient, 2 weight, 4 update.
QUANTITIES = {"gradient": 1, "weight": 2, "update": 2 | 4, "ratio": 2 | 4, "nonfinite": 0}
_ROWS = 160
_CELLS = 28_000  # of each map
_WIDTH = 1000  # columns at most
_CHUNK = 1 << 21  # values that are looked at together
_NAMES = 100_000  # characters of the names that cells have
_NAME = 300  # characters of one of them


def norms(run: RecordedRun) -> dict[str, Any] | None:
    """The maps of weight, gradient and update norms, update by weight, and elements that are not finite.

    Norms become float32: one above 3.4e38 counts as infinite.

    Returns None if no norms were recorded, else

    - `rank`: None for norms of whole parameters, else the rank of whose elements they are; `steps`,
      `parameters`: how many there are; `unread`: of how many steps the norms could not be read;
    - `first_steps` (C,) and `last_step`: the columns; `labels` and `sizes`, lists of R: the rows, and how
      many parameters each holds;
    - `first_bad`: the first `step` at which not all is finite; of it the first parameter by the model's
      order, `name`, whether it is its gradient or its weight, `kind`, and `elements`, how many; `others`: how
      many more parameters are not finite there. Or None;
    - `bad` uint8 (R, C): which are not finite, see QUANTITIES; or None;
    - `maps`: quantity -> `values` float32 (R, C), NaN where there is none, `at_step` (R, C): how many steps
      after the first of its column; `at_name` (R, C): how many after the place `first_name` (R,) in `names`
      its parameter is, or None if the names are too long; `lowest` and `highest`, each `values`, `steps` and
      `names` (R,). Quantities of which there is nothing are left out.
    """
    with run.held():
        table, rank = _recorded(run)
    order = np.argsort(table["step"], kind="stable")
    steps = table["step"][order]
    names = next((one.table.names for at in order if (one := _read(table, at)) is not None), ())
    if not names:
        return None
    # Names are collected while the steps are read; mostly the first one has them all, and one pass is enough.
    while True:
        rows = module_rows(names, _ROWS)
        edges = columns(steps, max(1, min(_WIDTH, _CELLS // len(rows))))
        reduced = _Reduced(names, rows, edges.size - 1)
        size = max(1, _CHUNK // len(names))
        unread, new = 0, dict[str, None]()
        for column, (start, end) in enumerate(pairwise(edges.tolist())):
            for first in range(start, end, size):
                places = range(first, min(end, first + size))
                part = [
                    (int(steps[at]), one) for at in places if (one := _read(table, order[at])) is not None
                ]
                unread += len(places) - len(part)
                new |= {name: None for _, one in part for name in reduced.unknown(one)}
                # After a new name, the rest of the pass only looks for further ones: its maps are dropped.
                if part and not new:
                    reduced.add(column, part)
        if not new:
            break
        # Parameters that came later need rows of their own: begin again with all names.
        names = (*names, *new)
    return {
        "rank": rank,
        "steps": int(steps.size),
        "parameters": len(names),
        "unread": unread,
        "first_steps": small(steps[edges[:-1]]),
        "last_step": int(steps[-1]),
        "labels": [without_middle(row.label, _NAME) for row in rows],
        "sizes": [row.end - row.start for row in rows],
        "first_bad": reduced.first_bad,
        "bad": reduced.bad if reduced.bad.any() else None,
        **reduced.maps(steps[edges[:-1]]),
    }


@dataclass(frozen=True, slots=True)
class NormRow:
    """The parameters at the places `start` to `end` of the model's order, and what they are called."""

    start: int
    end: int
    label: str


def module_rows(names: Sequence[str], limit: int) -> list[NormRow]:
    """The parameters in at most `limit` rows, in their order; those that share one are of one module.

    The largest modules are divided first, those of equal size all or none. Only a module with far too many
    children has rows of several children.
    """
    parts = [name.split(".") for name in names]
    rows = [(0, len(names), 0)]  # start, end, how many parts of their names are the same

    def children(row: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
        start, end, depth = row
        for _, group in groupby(range(start, end), lambda at: parts[at][: depth + 1][depth:]):
            found = [*group]
            yield found[0], found[-1] + 1, depth + 1

    def label(row: tuple[int, int, int]) -> str:
        start, end, depth = row
        return names[start] if end - start == 1 else ".".join([*parts[start][:depth], "*"])

    while (largest := max(end - start for start, end, _ in rows)) > 1:
        divided = [[*children(row)] if row[1] - row[0] == largest else [row] for row in rows]
        count = sum(map(len, divided))
        if count <= limit:
            rows = [row for some in divided for row in some]
            continue
        # With more than half of the rows in use, the map is fine enough without splitting modules.
        if len(rows) > limit // 2:
            break
        # A module has so many children that they do not fit: several of them share a row.
        kept = len(rows)
        room = (limit - kept) / max(1, count - kept)
        found = []
        for some in divided:
            each = -(-len(some) // max(1, int(len(some) * room)))
            for first in range(0, len(some), each):
                one, last = some[first], some[min(first + each, len(some)) - 1]
                text = label(one) if one == last else f"{label(one)} to {label(last)}"
                found.append(NormRow(one[0], last[1], text))
        return found
    return [NormRow(row[0], row[1], label(row)) for row in rows]


def _recorded(run: RecordedRun) -> tuple[ValueTable, int | None]:
    """The norms of the merged run or, before it is merged, of the lowest rank that has some."""
    having = run.ranks_of(NORMS).get(NORMS_TAG, ())
    if not having or len(run.ranks) == 1:
        return run.norms_by_step(min(run.ranks)), None
    if len(table := run.norms_by_step(MERGED)) and table["rank"][0] < 0:
        return table, None
    return run.norms_by_step(having[0]), having[0]


def _read(table: ValueTable, row: Any) -> ParameterNorms | None:
    """The norms of a step; None if they cannot be read."""
    try:
        found: ParameterNorms = table.value(int(row))
    except (DistSummaryError, OSError):
        return None
    return found


class _Extremes:
    """The highest values of an array, with their steps and parameters; NaN and -1 where there is none."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.values = np.full(shape, np.nan, np.float32)
        self.steps = np.full(shape, -1, np.int64)
        self.parameters = np.full(shape, -1, np.int64)

    def put(self, at: Any, values: Array, steps: Array, parameters: Array) -> None:
        """Take those that are higher than what stands at the place `at`; -inf: there is none."""
        old = self.values[at]
        higher = (values > -np.inf) & ~(old >= values)
        for mine, new in ((self.values, values), (self.steps, steps), (self.parameters, parameters)):
            mine[at] = np.where(higher, new, mine[at])


class _Reduced:
    """The maps of P parameters in R rows and C columns, filled column by column."""

    def __init__(self, names: Sequence[str], rows: Sequence[NormRow], width: int) -> None:
        self._names = names
        self._places = {name: place for place, name in enumerate(names)}
        self._starts = np.array([row.start for row in rows])
        self._row_of = np.repeat(np.arange(len(rows)), [row.end - row.start for row in rows])
        self._highest = {name: _Extremes((len(rows), width)) for name in QUANTITIES}
        self._lowest = {name: _Extremes((len(rows),)) for name in QUANTITIES}  # of the negated values
        self._known: dict[tuple[bytes, bytes], Array] = {}  # the table of a step, encoded -> places
        self.bad = np.zeros((len(rows), width), np.uint8)
        self.first_bad: dict[str, Any] | None = None

    def unknown(self, norms: ParameterNorms) -> list[str]:
        """The names of the parameters that have no row."""
        if norms.table.encoded in self._known:
            return []
        found = [name for name in norms.table.names if name not in self._places]
        if not found:
            self._known[norms.table.encoded] = np.array([self._places[name] for name in norms.table.names])
        return found

    def add(self, column: int, part: Sequence[tuple[int, ParameterNorms]]) -> None:
        """Enter norms of rising steps of one column."""
        steps = np.array([step for step, _ in part])
        shape = len(part), len(self._names)
        values = {name: np.full(shape, np.nan, np.float32) for name in QUANTITIES}
        bad = np.zeros(shape, np.uint8)
        for line, (step, one) in enumerate(part):
            at = self._known[one.table.encoded]
            with np.errstate(all="ignore"):
                found = {name: norm.astype(np.float32) for name, norm in one.roots().items()}
                weight, gradient, update = found.values()
                found["ratio"] = update / weight
            counts = one.weight_nonfinite + one.gradient_nonfinite
            found["nonfinite"] = np.where(counts > 0, counts, np.nan).astype(np.float32)
            for name, norm in found.items():
                values[name][line, at] = norm
            signs = np.isinf(update) * np.uint8(4)
            for sign, norm, count in (
                (1, gradient, one.gradient_nonfinite), (2, weight, one.weight_nonfinite)
            ):  # fmt: skip
                is_bad = (count > 0) | np.isinf(norm)
                signs |= is_bad * np.uint8(sign)
                # Steps come in their order, so that the first one found is the first of the run.
                if self.first_bad is None and is_bad.any():
                    first = int(np.flatnonzero(is_bad)[0])
                    kind = "gradient" if sign == 1 else "weight"
                    any_bad = (counts > 0) | np.isinf(gradient) | np.isinf(weight)
                    self.first_bad = {
                        "step": step, "name": without_middle(one.table.names[first], _NAME), "kind": kind,
                        "elements": int(count[first]), "others": int(any_bad.sum()) - 1,
                    }  # fmt: skip
            bad[line, at] = signs
        self.bad[:, column] |= np.bitwise_or.reduceat(np.bitwise_or.reduce(bad, 0), self._starts)
        for name, block in values.items():
            # The lowest value is found as the highest of the negated values.
            for sign, extremes, place in ((1, self._highest, (slice(None), column)), (-1, self._lowest, ...)):
                filled = np.where(np.isfinite(block), sign * block, -np.inf)
                lines = filled.argmax(axis=0)
                best = np.take_along_axis(filled, lines[None], 0)[0]
                of_rows = np.maximum.reduceat(best, self._starts)
                parameters = first_of_each(np.flatnonzero(best == of_rows[self._row_of]), self._row_of)
                extremes[name].put(place, of_rows, steps[lines[parameters]], parameters)

    def _used(self, parameters: Sequence[Array]) -> tuple[Array, list[str]]:
        """The parameters among these, each once in ascending order, and their names."""
        used = np.unique(np.concatenate([np.zeros(0, np.int64), *(one.reshape(-1) for one in parameters)]))
        used = used[used >= 0]
        return used, [without_middle(self._names[place], _NAME) for place in used]

    def maps(self, first_steps: Array) -> dict[str, Any]:
        """`maps`, `names` and `first_name`, as `norms` returns them."""
        measured = [name for name in QUANTITIES if not np.isnan(self._lowest[name].values).all()]
        ends: dict[str, dict[str, tuple[Array, Array, Array]]] = {}
        for name in measured:
            low, high = self._lowest[name], self._highest[name]
            at = np.argmax(np.where(np.isnan(high.values), -np.inf, high.values), axis=1)[:, None]
            values, steps, parameters = (
                np.take_along_axis(one, at, 1)[:, 0] for one in (high.values, high.steps, high.parameters)
            )
            ends[name] = {
                "lowest": (-low.values, low.steps, low.parameters),
                "highest": (values, steps, parameters),
            }
        of_ends = [one[2] for both in ends.values() for one in both.values()]
        used, names = self._used([*of_ends, *(self._highest[name].parameters for name in measured)])
        # If the names of all cells are too long together, only those of the rows' extremes are kept.
        has_names = sum(map(len, names)) <= _NAMES
        if not has_names:
            used, names = self._used(of_ends)
        first_name = np.searchsorted(used, self._starts)
        return {
            "names": names,
            "first_name": small(first_name),
            "maps": {
                name: {
                    "values": rounded(self._highest[name].values),
                    "at_step": offsets(self._highest[name].steps - first_steps),
                    "at_name": offsets(
                        np.searchsorted(used, self._highest[name].parameters) - first_name[:, None]
                    )
                    if has_names
                    else None,
                    **{
                        end: {
                            "values": values,
                            "steps": small(steps),
                            "names": np.searchsorted(used, places).astype(np.int32),
                        }
                        for end, (values, steps, places) in ends[name].items()
                    },
                }
                for name in measured
            },
        }
