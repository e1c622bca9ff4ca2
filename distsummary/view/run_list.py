"""The data of the page of many runs: the columns of their table, which the page sorts and groups."""

import math
from collections.abc import Sequence
from typing import Any

from distsummary.runs.run_row import RunRow
from distsummary.runs.run_table import RunTable
from distsummary.view.compared_runs import MOST


def run_list(table: RunTable) -> dict[str, Any]:
    """The table for JSON; of R runs, each list has R elements.

    `columns`: name -> values, None where nothing is. `better`: column -> "min" or "max". `spark`: the curve
    of the loss. `pending`: how many rows are without what the event files say. `problems`: what is no column.
    `most`: how many runs can be compared.
    """
    cells = [table.cells(place) for place in range(len(table))]
    rows: Sequence[RunRow] = table.rows
    return {
        "columns": {name: [_plain(one.get(name)) for one in cells] for name in table.columns},
        "better": table.better,
        "spark": [[_plain(value) for value in row.spark] for row in rows],
        "pending": sum(not row.is_whole for row in rows),
        "problems": table.problems,
        "most": MOST + 1,
    }


def _plain(value: Any) -> Any:
    """JSON has neither NaN nor infinities: they are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
