"""The runs below a directory as a table."""

import os

import numpy as np

from distsummary.runs.find_runs import find_runs
from distsummary.runs.table import Table, objects


def list_runs(directory: str | os.PathLike[str]) -> Table:
    """The runs in a directory and below, the newest first, as `distsummary runs` lists them.

    The columns: `path` (relative to the directory), `state`, `ranks` and `step` (-1: unknown), `started`
    (seconds since the epoch), `lasted_s` and `loss` (NaN: unknown), and `note`, what is wrong.

    Raises MissingFileError if there is no such directory, or no run in it.
    """
    rows = find_runs(directory)

    def reals(values: list[float | None]) -> np.typing.NDArray[np.float64]:
        return np.array([np.nan if value is None else value for value in values], np.float64)

    def whole(values: list[int | None]) -> np.typing.NDArray[np.int64]:
        return np.array([-1 if value is None else value for value in values], np.int64)

    columns = {
        "path": objects([row.name for row in rows]),
        "state": objects([row.state for row in rows]),
        "ranks": whole([row.ranks for row in rows]),
        "step": whole([row.step for row in rows]),
        "started": reals([row.started for row in rows]),
        "lasted_s": reals([row.lasted_s for row in rows]),
        "loss": reals([row.loss for row in rows]),
        "note": objects([row.note for row in rows]),
    }
    return Table(columns, title=f"runs in {os.fspath(directory)}")
