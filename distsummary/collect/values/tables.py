"""Writes rows with named columns as a table of Markdown, which viewers of texts show as one."""

from collections.abc import Mapping, Sequence
from typing import Any

from distsummary.errors import InvalidTypeError, InvalidValueError


def table_text(field: str, rows: Any) -> str:
    """The rows as a table, whose columns are in the order in which the rows name them first.

    Args:
        field: names the table in messages.
        rows: a list of dicts, column -> value; a row without a column has an empty cell there. Real numbers
            that are no integers have six digits.

    Raises InvalidTypeError if `rows` is no such list, InvalidValueError if it names no column.
    """
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidTypeError(
            f'{field} must be a list of dicts, column -> value, such as [{{"epoch": 1, "loss": 0.5}}], got '
            f"{type(rows).__name__}; of a data frame, pass frame.to_dict('records')"
        )
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if not columns:
        raise InvalidValueError(f"{field} must have at least one row with a column, got {len(rows)} row(s)")
    lines = [[_cell(column) for column in columns], ["---"] * len(columns)]
    lines += [[_cell(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")
