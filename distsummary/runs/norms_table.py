"""The norms of the parameters of a run as a table: one row for each parameter at each step."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from distsummary.errors import DistSummaryError, InvalidValueError
from distsummary.events.recorded import EventPlace
from distsummary.runs.rank_files import said
from distsummary.runs.table import Labels, Table

_REALS = ("weight", "gradient", "update", "update_max")


def norms_table(
    found: Iterable[tuple[int, EventPlace]], parameter: str | Sequence[str] | None, problems: dict[str, None]
) -> Table:
    """The norms at these places, by rank, in recording order; what cannot be read is put into `problems`.

    Raises InvalidValueError for a parameter that is nowhere.
    """
    numbers: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    wanted = None if parameter is None else {parameter} if isinstance(parameter, str) else {*parameter}
    for rank, place in found:
        try:
            norms = place.read().data
        except (DistSummaryError, OSError) as error:
            problems[said(error)] = None
            continue
        names = norms.table.names
        codes = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)
        kept = slice(None) if wanted is None else np.array([name in wanted for name in names], np.bool_)
        row = {
            "codes": codes,
            **norms.roots(),
            "update_max": norms.update_max.astype(np.float64),
            "nonfinite": norms.weight_nonfinite + norms.gradient_nonfinite,
        }
        rows.append(
            {name: column[kept] for name, column in row.items()}
            | {"rank": rank, "attempt": place.attempt, "step": place.step, "wall_time": place.wall_time}
        )
    if wanted is not None and (absent := sorted(wanted - numbers.keys())):
        near = get_close_matches(absent[0], numbers, 3)
        names_said = f"the nearest are {', '.join(near)}" if near else f"there are {len(numbers)}"
        raise InvalidValueError(f"parameter must be one with norms, got {absent[0]!r}; {names_said}")
    sizes = [row["codes"].size for row in rows]

    def repeated(name: str, dtype: type[np.generic]) -> Any:
        return np.repeat(np.array([row[name] for row in rows], dtype), sizes)

    def joined(name: str, dtype: type[np.generic]) -> Any:
        return np.concatenate([np.empty(0, dtype), *(row[name] for row in rows)], dtype=dtype)

    return Table(
        {
            "rank": repeated("rank", np.int32),
            "attempt": repeated("attempt", np.int64),
            "step": repeated("step", np.int64),
            "wall_time": repeated("wall_time", np.float64),
            "parameter": Labels(joined("codes", np.int32), tuple(numbers)),
            **{name: joined(name, np.float64) for name in _REALS},
            "nonfinite": joined("nonfinite", np.int64),
        },
        title="norms",
    )
