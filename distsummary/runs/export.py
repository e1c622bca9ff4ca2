"""Writes the scalars of a run as Parquet or CSV, one rank and tag after the other."""

import csv
import os
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from distsummary.base.checks import check_choice
from distsummary.base.extras import extra, require
from distsummary.base.publish import check_writable, refuse_unlike_files, replacing
from distsummary.base.terminal import doing
from distsummary.errors import InvalidValueError
from distsummary.runs.rank_files import Rank, Tags
from distsummary.runs.recorded_run import open_run
from distsummary.runs.table import ScalarTable

FORMATS = ("parquet", "csv")
_ROWS = 1 << 20  # of a row group
_CSV_ROWS = 1 << 16  # that become texts at once


def export(
    run: str | os.PathLike[str],
    to: str,
    *,
    out: str | os.PathLike[str] | None = None,
    tag: Tags = None,
    rank: Rank = None,
) -> tuple[Path, int]:
    """Write the scalars of a run to one file; returns it and how many rows it has.

    The columns are those of `RecordedRun.scalars`. An older file of that name is replaced when the new one is
    whole.

    Args:
        run: the run dir. to: "parquet" (needs pyarrow) or "csv".
        out: the file; None: the name of the run with .parquet or .csv, in the current directory.
        tag, rank: as in `RecordedRun.scalars`.

    Raises MissingExtraError without pyarrow, RunDirError if the file cannot be written, and the errors of
    `open_run` and `scalars`; InvalidValueError if there is nothing to write.
    """
    check_choice("to", to, FORMATS)
    if to == "parquet":
        require("a Parquet file", "pyarrow")
    opened = open_run(run)
    table = opened.scalars(tag, rank)
    if not len(table):
        what = "" if rank is None else f" of rank {rank}; leave rank= out for all ranks"
        raise InvalidValueError(f"{opened.path} has no scalars{what}")
    path = Path(out if out is not None else f"{opened.path.name}.{to}")
    refuse_unlike_files(path)
    check_writable(path.parent)
    with replacing(path, is_durable=False) as temporary:
        if to == "parquet":
            _write_parquet(table, temporary)
        else:
            with open(temporary, "w", newline="", encoding="utf-8") as file:
                _write_csv(table, file)
    return path, len(table)


def _write_parquet(table: ScalarTable, path: Path) -> None:
    """Values as byte streams, steps as differences: about half the size of zstd alone."""
    extra("a Parquet file", "pyarrow.parquet").write_table(
        table.to_arrow(),
        path,
        row_group_size=_ROWS,
        compression="zstd",
        use_dictionary=["tag"],
        column_encoding={
            "rank": "DELTA_BINARY_PACKED",
            "attempt": "DELTA_BINARY_PACKED",
            "step": "DELTA_BINARY_PACKED",
            "wall_time": "BYTE_STREAM_SPLIT",
            "value": "BYTE_STREAM_SPLIT",
        },
    )


def _write_csv(table: ScalarTable, file: TextIO) -> None:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(table.columns)
    columns = [table[name] for name in table.columns]
    for start in range(0, len(table), _CSV_ROWS):
        doing("rows", start, len(table))
        *given, values = (column[start : start + _CSV_ROWS] for column in columns)
        # They were recorded as float32: the fewest digits that give that number back.
        texts = values.astype(np.float32).astype(str).tolist()
        rows.writerows(zip(*(map(_no_formula, column.tolist()) for column in given), texts, strict=True))


def _no_formula(cell: Any) -> Any:
    """A tag that a spreadsheet would compute as a formula, after an apostrophe, which makes it text."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
