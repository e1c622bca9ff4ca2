"""Adds the norms of parameters up over the ranks that hold different parts, one of equal copies each."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.format.norm_totals import NormTotals
from distsummary.format.norms import COLUMNS, NORMS_TAG, ParameterNorms, ParameterTable
from distsummary.format.records import NORMS, Value

# The columns that add up; that of bools by "or".
_SUMMED = ("weight_sums", "gradient_sums", "has_gradient", "weight_nonfinite", "gradient_nonfinite")

Ints = NDArray[np.int64]

logger = logging.getLogger(__name__)


class AddedNorms:
    """Makes the norms of a merged run, and their scalars, from those of its ranks, by rising steps.

    Ranks that hold the same elements of a parameter hold copies: of these, the lowest counts, and of updates
    the lowest that measured it. The parts must have as many elements as the parameter: else its sums are NaN,
    since the norms of some rank are missing.

    Attributes:
        short: how many parameters had no norm at a step, summed over steps.
    """

    def __init__(self) -> None:
        self.short = 0
        self._tables: dict[int, tuple[bytes, bytes]] = {}  # of the ranks that `_plan` is for
        self._plan: _Plan | None = None
        self._totals = NormTotals()
        self._attempt = -1

    def recall(self, attempt: int, totals: NormTotals) -> None:
        """Continue after steps that are in the merged run already: later totals depend on them."""
        self._attempt, self._totals = attempt, totals

    def values(self, step: int, attempt: int, by_rank: Mapping[int, ParameterNorms]) -> list[Value]:
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
        # Totals continue within one attempt; another attempt begins its own.
        if attempt != self._attempt:
            self.recall(attempt, NormTotals())
        return [Value(NORMS, NORMS_TAG, merged), *self._totals.add(merged)]


class _Holder(NamedTuple):
    """What a rank holds of the k parameters in its table.

    `rows` int64 (k,): their rows in the merged table. `parts` int64 (k,): ranks with the same number hold
    equal copies of a parameter. `firsts` int64 (f,): of which of the k this rank is the first to hold such a
    copy. `sizes` int64 (k,): how many elements.
    """

    rows: Ints
    parts: Ints
    firsts: Ints
    sizes: Ints


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
        # Ranks that hold the same elements of a parameter hold copies. These have one number, and count once.
        numbers: list[dict[tuple[int, int], int]] = [{} for _ in shapes]  # start and size -> number of a part
        for table in tables:
            rows = [row_of[name] for name in table.names]
            parts, firsts = [], []
            for place, (row, start, size) in enumerate(
                zip(rows, table.starts, table.local_sizes, strict=True)
            ):
                if (start, size) not in numbers[row]:
                    firsts.append(place)
                    self.held[row] += size
                parts.append(numbers[row].setdefault((start, size), len(numbers[row])))
            columns = rows, parts, firsts, table.local_sizes
            self._holders.append(_Holder(*(np.array(column, np.int64) for column in columns)))
        self._parts = max(map(len, numbers), default=1)

    def added(self, found: Iterable[ParameterNorms]) -> ParameterNorms:
        """The norms of the whole parameters."""
        n = len(self.table.names)
        added = {name: np.zeros(n, dtype) for name, (dtype, _) in COLUMNS.items()}
        is_taken = np.zeros((self._parts, n), np.bool_)
        measured = np.zeros(n, np.int64)  # elements whose update was measured
        # The sums of a rank may be NaN or infinite, which is no error here.
        with np.errstate(all="ignore"):
            for holder, norms in zip(self._holders, found, strict=True):
                columns = norms.columns
                # Of equal copies, the weights and gradients of the first rank count.
                rows = holder.rows[holder.firsts]
                for name in _SUMMED:
                    added[name][rows] += columns[name][holder.firsts]
                # Of updates, the first rank that measured one counts, perhaps not the first with a copy.
                turn = np.flatnonzero(~np.isnan(columns["update_sums"]))
                turn = turn[~is_taken[holder.parts[turn], holder.rows[turn]]]
                rows = holder.rows[turn]
                is_taken[holder.parts[turn], rows] = True
                added["update_sums"][rows] += columns["update_sums"][turn]
                added["update_max"][rows] = np.fmax(added["update_max"][rows], columns["update_max"][turn])
                measured[rows] += holder.sizes[turn]
        # A sum over only a part of a parameter would look like a small norm, so it becomes NaN.
        is_short = self.held != self.table.sizes
        added["weight_sums"][is_short] = np.nan
        added["gradient_sums"][is_short & added["has_gradient"]] = np.nan
        is_unmeasured = ~is_taken.any(axis=0) | (measured != self.table.sizes)
        added["update_sums"][is_unmeasured] = added["update_max"][is_unmeasured] = np.nan
        return ParameterNorms(self.table, **added)
