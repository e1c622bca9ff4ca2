"""Adds the norms of parameters up over the ranks that hold different parts, one of equal copies each."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.base.guard import guarded_log
from distsummary.format.norm_totals import norm_totals
from distsummary.format.norms import COLUMNS, ParameterNorms, ParameterTable
from distsummary.format.own_tags import NORMS_TAG
from distsummary.format.records import NORMS, Value

Ints = NDArray[np.int64]

logger = guarded_log(__name__)


class AddedNorms:
    """Makes the norms of a merged run, and their scalars, from those of its ranks, by rising steps.

    Ranks that hold the same elements of a parameter hold copies: of these, the lowest counts. The parts must
    have as many elements as the parameter: else its sums are NaN, since the norms of some rank are missing.

    Attributes:
        short: how many parameters had no norm at a step, summed over steps.
    """

    def __init__(self) -> None:
        self.short = 0
        self._tables: dict[int, tuple[bytes, bytes]] = {}  # of the ranks that `_plan` is for
        self._plan: _Plan | None = None

    def values(self, step: int, by_rank: Mapping[int, ParameterNorms]) -> list[Value]:
        """The merged norms of a step and their totals; empty if no rank has any."""
        if not by_rank:
            return []
        found = dict(sorted(by_rank.items()))
        tables = {rank: norms.table.encoded for rank, norms in found.items()}
        # The plan depends on the tables alone, which are the same at almost every step.
        if self._plan is None or tables != self._tables:
            self._tables = tables
            self._plan = _Plan([norms.table for norms in found.values()])
        plan = self._plan
        merged = plan.added(found.values())
        short = np.flatnonzero(plan.held != plan.table.sizes)
        if short.size:
            if not self.short:
                row = int(short[0])
                logger.warning(
                    "the norms of %d parameter(s) at step %d are NaN in the merged run; parts are missing: "
                    "of %r, ranks %s hold %d of %d elements. A rank did not write this step; further steps "
                    "are only counted",
                    short.size, step, plan.table.names[row], ", ".join(map(str, found)), plan.held[row],
                    plan.table.sizes[row],
                )  # fmt: skip
            self.short += int(short.size)
        return [Value(NORMS, NORMS_TAG, merged), *norm_totals(merged)]


class _Holder(NamedTuple):
    """Of which parameters a rank is the first to hold a part.

    `places` int64 (f,): their rows in the table of the rank; `rows` int64 (f,): in the merged table.
    """

    places: Ints
    rows: Ints


class _Plan:
    """How the norms of some ranks, given by rising ranks, add up to those of n whole parameters.

    Attributes:
        table: the whole parameters. held: how many elements of each the ranks hold, int64 (n,).
    """

    def __init__(self, tables: Sequence[ParameterTable]) -> None:
        shapes: dict[str, tuple[int, ...]] = {}
        for table in tables:
            for name, shape in zip(table.names, table.shapes, strict=True):
                shapes.setdefault(name, shape)
        row_of = {name: row for row, name in enumerate(shapes)}
        sizes = tuple(map(math.prod, shapes.values()))
        self.table = ParameterTable(tuple(shapes), tuple(shapes.values()), sizes, (0,) * len(shapes))
        self.held = np.zeros(len(shapes), np.int64)
        self._holders: list[_Holder] = []
        # Ranks that hold the same elements of a parameter hold copies, which count once.
        parts = set[tuple[int, int, int]]()  # row, start and size
        for table in tables:
            places, rows = [], []
            for place, (name, start, size) in enumerate(
                zip(table.names, table.starts, table.local_sizes, strict=True)
            ):
                row = row_of[name]
                if (row, start, size) not in parts:
                    parts.add((row, start, size))
                    places.append(place)
                    rows.append(row)
                    self.held[row] += size
            self._holders.append(_Holder(np.array(places, np.int64), np.array(rows, np.int64)))

    def added(self, found: Iterable[ParameterNorms]) -> ParameterNorms:
        """The norms of the whole parameters."""
        added = {name: np.zeros(len(self.held), dtype) for name, (dtype, _) in COLUMNS.items()}
        # The sums of a rank may be NaN or infinite, which is no error here.
        with np.errstate(all="ignore"):
            for (places, rows), norms in zip(self._holders, found, strict=True):
                for name, column in norms.columns.items():
                    # Sums and counts add up, bools by "or"; NaN, where a part was not measured, stays.
                    add = np.maximum if name == "update_max" else np.add
                    added[name][rows] = add(added[name][rows], column[places])
        # A sum over only a part of a parameter would look like a small norm, so it becomes NaN.
        is_short = self.held != self.table.sizes
        for name in ("weight_sums", "update_sums", "update_max"):
            added[name][is_short] = np.nan
        added["gradient_sums"][is_short & added["has_gradient"]] = np.nan
        return ParameterNorms(self.table, **added)
