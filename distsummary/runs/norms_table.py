"""The norms of the parameters of a run as a table: one row for each parameter at each step."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from distsummary.base.checks import check_recorded
from distsummary.errors import DistSummaryError
from distsummary.events.recorded import EventPlace
from distsummary.runs.rank_files import said
from distsummary.runs.table import Labels, Table

_COLUMNS = {
    "rank": np.int32, "attempt": np.int64, "step": np.int64, "wall_time": np.float64, "parameter": np.int32,
    "weight": np.float64, "gradient": np.float64, "update": np.float64, "update_max": np.float64,
    "nonfinite": np.int64,
}  # fmt: skip


def norms_table(
    found: Iterable[tuple[int, EventPlace]], parameter: str | Sequence[str] | None, problems: dict[str, None]
) -> Table:
    """The norms at these places, by rank, in recording order; what cannot be read is put into `problems`.

    Raises InvalidValueError for a parameter that is nowhere.
    """
    numbers: dict[str, int] = {}
    pieces: dict[str, list[Any]] = {name: [np.empty(0, dtype)] for name, dtype in _COLUMNS.items()}
    wanted = None if parameter is None else {parameter} if isinstance(parameter, str) else {*parameter}
    for rank, place in found:
        try:
            norms = place.read().data
        except (DistSummaryError, OSError) as error:
            problems[said(error)] = None
            continue
        names = norms.table.names
        kept = np.array([wanted is None or name in wanted for name in names], np.bool_)
        of_event = {
            "rank": rank, "attempt": place.attempt, "step": place.step, "wall_time": place.wall_time
        }  # fmt: skip
        columns = {
            **{name: np.full(len(names), number) for name, number in of_event.items()},
            "parameter": np.array([numbers.setdefault(name, len(numbers)) for name in names]),
            **norms.roots(),
            "update_max": norms.update_max,
            "nonfinite": norms.weight_nonfinite + norms.gradient_nonfinite,
        }
        for name, column in columns.items():
            pieces[name].append(column[kept].astype(_COLUMNS[name]))
    for name in sorted(wanted or ()):
        check_recorded(name, numbers, "norms", field="parameter")
    joined: dict[str, Any] = {name: np.concatenate(column) for name, column in pieces.items()}
    joined["parameter"] = Labels(joined["parameter"], tuple(numbers))
    return Table(joined, title="norms")
