"""Adds the norms of parameters up over the ranks that hold different parts, one of equal copies each."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.format.norm_scalars import NormScalars
from distsummary.format.norms import NORMS_TAG, ParameterNorms, ParameterTable
from distsummary.format.records import NORMS, Value
from distsummary.rundir.meshes import NOWHERE, Meshes, MeshPlace

_MAX_PLANS = 4  # each needs 25 bytes for each rank and parameter
_UNKNOWN = "unknown"

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Holder:
    """What a rank holds of the k parameters in its table.

    `rows` int64 (k,): their rows in the merged table; None: the same rows. `parts` int64 (k,): ranks with the
    same number hold equal copies of a parameter. `is_first` bool (k,): whether this rank is the first of
    these. `sizes` int64 (k,): how many elements.
    """

    rank: int
    rows: Ints | None
    parts: Ints
    is_first: Bools
    sizes: Ints


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the norms of some ranks add up to those of n whole parameters, `table`.

    `is_known` bool (n,): whether it is known which ranks hold copies. `is_whole` bool (n,): whether, besides,
    the first copies have as many elements as the parameter. `parts`: one more than the highest number of one.
    """

    table: ParameterTable
    holders: tuple[_Holder, ...]
    is_known: Bools
    is_whole: Bools
    parts: int


class AddedNorms:
    """Makes the norms of a merged run, and their scalars, from those of its ranks, by rising steps.

    At each step the parts of a parameter are those of the ranks that differ in their coordinates on the axes
    that split it; of ranks that do not, the lowest counts, and of updates the lowest that measured it. The
    parts must have as many elements as the parameter: else its sums are NaN, since the norms of some rank
    are missing. If an axis is missing from the manifests, each rank counts as a part, provided that all ranks
    are there.

    Attributes:
        short: how many parameters had no norm at a step, summed over steps.
    """

    def __init__(self, meshes: Meshes) -> None:
        self.short = 0
        self._meshes = meshes
        self._plans: OrderedDict[tuple[Any, ...], _Plan] = OrderedDict()
        self._scalars = NormScalars()
        self._attempt = -1

    def recall(self, attempt: int, norms: ParameterNorms) -> None:
        """Note the norms of a step that is in the merged run already: they are the past of later ones."""
        self._scalars_of(attempt, norms)

    def values(self, step: int, attempt: int, by_rank: Mapping[int, Any]) -> list[Value]:
        """The merged norms of a step and their scalars; empty if no rank has any.

        Args:
            attempt: of the step; in a new one, the past that `NormScalars` looks at begins again.
            by_rank: what the ranks recorded; what has no table (UnnamedNorms) is missing.
        """
        found = {rank: norms for rank, norms in sorted(by_rank.items()) if isinstance(norms, ParameterNorms)}
        if not found:
            return []
        plan = self._plan(attempt, found)
        merged = _added(plan, found)
        short = np.flatnonzero(~plan.is_whole)
        if short.size:
            if not self.short:
                name, row = plan.table.names[short[0]], int(short[0])
                have = sum(_size_of(holder, row) for holder in plan.holders)
                logger.warning(
                    "the norms of %d parameter(s) at step %d are NaN in the merged run; parts are missing: "
                    "of %r, ranks %s hold %d of %d elements. Either a rank did not write this step, or the "
                    "device mesh is not known: pass mesh= on all ranks; further steps are only counted",
                    short.size, step, name, ", ".join(map(str, found)), have, plan.table.sizes[row],
                )  # fmt: skip
            self.short += int(short.size)
        return [Value(NORMS, NORMS_TAG, merged), *self._scalars_of(attempt, merged)]

    def _scalars_of(self, attempt: int, norms: ParameterNorms) -> list[Value]:
        if attempt != self._attempt:
            self._attempt, self._scalars = attempt, NormScalars()
        return self._scalars.add(norms)

    def _plan(self, attempt: int, found: Mapping[int, ParameterNorms]) -> _Plan:
        axes = set[str]().union(*(norms.table.axes for norms in found.values()))
        places = {rank: self._meshes.place(attempt, rank) if axes else NOWHERE for rank in found}
        key = tuple(
            (rank, norms.table.digest, places[rank].world_size, *places[rank].coordinates.items())
            for rank, norms in found.items()
        )
        plan = self._plans.get(key)
        if plan is None:
            tables = {rank: norms.table for rank, norms in found.items()}
            plan = self._plans[key] = planned(tables, places)
            if len(self._plans) > _MAX_PLANS:
                self._plans.popitem(last=False)
        return plan


def planned(tables: Mapping[int, ParameterTable], places: Mapping[int, MeshPlace]) -> _Plan:
    """How the norms of ranks add up; `tables` and `places`: by rising ranks."""
    shapes: dict[str, tuple[int, ...]] = {}
    for table in tables.values():
        for name, shape in zip(table.names, table.shapes, strict=True):
            shapes.setdefault(name, shape)
    names = tuple(shapes)
    row_of = {name: row for row, name in enumerate(names)}
    whole = ParameterTable(
        names,
        tuple(shapes.values()),
        tuple(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values()),
        ((),) * len(names),
    )
    part_of: list[dict[Any, int]] = [{} for _ in names]  # what ranks hold -> its number
    have = np.zeros(len(names), np.int64)
    are_all_there = all(place.world_size == len(tables) for place in places.values())
    is_known = np.ones(len(names), np.bool_)
    holders = []
    for rank, table in tables.items():
        coordinates = places[rank].coordinates
        held: dict[tuple[str, ...], Any] = {}  # the axes that split a parameter -> which part this rank has
        for split in set(table.split):
            is_placed = coordinates.keys() >= {*split}
            held[split] = tuple(coordinates[axis] for axis in split) if is_placed else (_UNKNOWN, rank)
        parts, firsts = [], []
        for name, split in zip(table.names, table.split, strict=True):
            known = part_of[row_of[name]]
            part = (split, held[split])
            firsts.append(part not in known)
            parts.append(known.setdefault(part, len(known)))
            if held[split] == (_UNKNOWN, rank) and not are_all_there:
                is_known[row_of[name]] = False
        rows = np.array([row_of[name] for name in table.names], np.int64)
        holder = _Holder(
            rank,
            None if table.names == names else rows,
            np.array(parts, np.int64),
            np.array(firsts, np.bool_),
            np.array(table.local_sizes, np.int64),
        )
        have[rows[holder.is_first]] += holder.sizes[holder.is_first]
        holders.append(holder)
    most = max((len(known) for known in part_of), default=1)
    return _Plan(whole, tuple(holders), is_known, is_known & (have == whole.sizes), most)


def _added(plan: _Plan, found: Mapping[int, ParameterNorms]) -> ParameterNorms:
    n = len(plan.table.names)
    weights, gradients, updates = np.zeros(n), np.zeros(n), np.zeros(n)
    weight_bad, gradient_bad = np.zeros(n, np.int64), np.zeros(n, np.int64)
    has_gradient = np.zeros(n, np.bool_)
    largest = np.zeros(n, np.float32)
    is_taken = np.zeros((plan.parts, n), np.bool_)
    measured = np.zeros(n, np.int64)  # elements whose update was measured
    with np.errstate(all="ignore"):  # the sums may be NaN or infinite
        for holder in plan.holders:
            norms = found[holder.rank]
            chosen = holder.is_first
            if chosen.any():
                rows: Any = chosen if holder.rows is None else holder.rows[chosen]
                weights[rows] += norms.weight_sums[chosen]
                gradients[rows] += norms.gradient_sums[chosen]
                has_gradient[rows] |= norms.has_gradient[chosen]
                weight_bad[rows] += norms.weight_nonfinite[chosen]
                gradient_bad[rows] += norms.gradient_nonfinite[chosen]
            turn = np.flatnonzero(~np.isnan(norms.update_sums))
            if turn.size:
                rows = turn if holder.rows is None else holder.rows[turn]
                parts = holder.parts[turn]
                is_new = ~is_taken[parts, rows]
                is_taken[parts, rows] = True
                turn, rows = turn[is_new], rows[is_new]
                updates[rows] += norms.update_sums[turn]
                largest[rows] = np.fmax(largest[rows], norms.update_max[turn])
                measured[rows] += holder.sizes[turn]
    is_measured = plan.is_known & is_taken.any(axis=0) & (measured == plan.table.sizes)
    return ParameterNorms(
        plan.table,
        np.where(plan.is_whole, weights, np.nan),
        np.where(plan.is_whole | ~has_gradient, gradients, np.nan),
        has_gradient,
        weight_bad,
        gradient_bad,
        np.where(is_measured, updates, np.nan),
        np.where(is_measured, largest, np.float32(np.nan)),
    )


def _size_of(holder: _Holder, row: int) -> int:
    """How many elements of a parameter a rank adds."""
    at = np.flatnonzero((np.arange(len(holder.sizes)) if holder.rows is None else holder.rows) == row)
    return int((holder.sizes[at] * holder.is_first[at]).sum())
