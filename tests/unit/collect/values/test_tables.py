"""Rows become a table of Markdown."""

import pytest

from distsummary.collect.values.checked_values import table_text
from distsummary.errors import InvalidTypeError, InvalidValueError


def test_columns_are_in_the_order_in_which_rows_name_them() -> None:
    rows = [{"epoch": 1, "loss": 0.123456789}, {"loss": 2.0, "note": "late"}]
    assert table_text("t", rows).splitlines() == [
        "| epoch | loss | note |", "| --- | --- | --- |", "| 1 | 0.123457 |  |", "|  | 2 | late |",
    ]  # fmt: skip


def test_a_cell_does_not_end_its_column_or_row() -> None:
    assert table_text("t", [{"a|b": "x\ny"}]).splitlines() == ["| a\\|b |", "| --- |", "| x<br>y |"]


@pytest.mark.parametrize("rows", ["abc", [1, 2], 3])
def test_other_things_are_refused_with_a_remedy(rows: object) -> None:
    with pytest.raises(InvalidTypeError, match=r"the table 't' must be a list of dicts.*to_dict"):
        table_text("the table 't'", rows)


@pytest.mark.parametrize("rows", [[], [{}]])
def test_a_table_needs_a_column(rows: object) -> None:
    with pytest.raises(InvalidValueError, match="at least one row with a column"):
        table_text("t", rows)
