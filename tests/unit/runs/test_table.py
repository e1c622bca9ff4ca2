"""Tables of runs: columns, data frames and notebooks."""

import time
from itertools import chain

import numpy as np
import pytest

from distsummary.errors import InvalidValueError, MissingExtraError
from distsummary.runs.table import Piece, ScalarTable, Table, objects, steps_of_all


def piece(rank, tag, steps, values):
    steps = np.array(steps, np.int64)
    return Piece(
        rank, tag, np.zeros_like(steps), steps, steps / 2, np.array(values, np.float32)
    )  # fmt: skip


@pytest.fixture
def table():
    return ScalarTable(
        [
            piece(0, "loss", [1, 2], [1.5, 2.5]),
            piece(1, "loss", [2, 3], [3.5, np.nan]),
            piece(0, "lr", [1], [0.5]),
        ]
    )


def test_the_libraries_get_the_same_rows(table):
    frame, arrow, polars = table.to_pandas(), table.to_arrow(), table.to_polars()
    for name in table.columns:
        expected = table[name].tolist()
        for found in (frame[name].tolist(), arrow[name].to_pylist(), polars[name].to_list()):
            assert repr(found) == repr(expected)
    assert str(frame["tag"].dtype) == "category"
    assert {name: str(kind) for name, kind in frame.dtypes.items() if name != "tag"} == {
        "rank": "int32", "attempt": "int64", "step": "int64", "wall_time": "float64", "value": "float64",
    }  # fmt: skip
    assert [(row.rank, row.step, row.tag) for row in table] == [
        (0, 1, "loss"), (0, 2, "loss"), (1, 2, "loss"), (1, 3, "loss"), (0, 1, "lr"),
    ]  # fmt: skip


def test_an_empty_table_has_its_columns():
    empty = ScalarTable([])
    assert (len(empty), list(empty)) == (0, [])
    assert [*empty.to_pandas().columns] == [*empty.columns]
    assert empty.to_arrow().num_rows == empty.to_polars().height == 0
    assert "0 rows" in empty._repr_html_()


@pytest.mark.parametrize("name", ["pandas", "polars", "pyarrow"])
def test_a_library_that_is_missing_is_named_with_its_pip_line(table, name, hide_package):
    hide_package(name)
    use = {"pandas": table.to_pandas, "polars": table.to_polars, "pyarrow": table.to_arrow}
    with pytest.raises(MissingExtraError, match=f"needs {name}, .*; run: pip install {name}$"):
        use[name]()


def test_a_notebook_shows_text_of_others_as_text_and_a_bounded_number_of_rows():
    nasty = "<script>alert(1)</script>"
    shown = ScalarTable([piece(0, nasty, range(1000), range(1000))])._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert shown.count("<tr>") == 22  # a head, ten rows, dots, ten rows
    assert "&lt;b&gt;" in Table({"note": objects(["<b>"])}, title="<i>")._repr_html_()


def test_a_notebook_shows_times_as_dates_and_numbers_that_are_no_times_as_they_are():
    times = np.array([1.8e9, 1e300, np.nan])
    shown = Table({"wall_time": times, "value": times})._repr_html_()
    assert shown.count(f"<td>{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(1.8e9))}</td>") == 1
    assert (shown.count("<td>1e+300</td>"), shown.count("<td>nan</td>")) == (2, 2)


def test_a_matrix_has_a_row_for_each_step_and_nan_where_a_rank_has_nothing(table):
    steps, ranks, values = table.matrix("loss")
    assert (steps.tolist(), ranks.tolist()) == ([1, 2, 3], [0, 1])
    assert repr(values.tolist()) == "[[1.5, nan], [2.5, 3.5], [nan, nan]]"
    with pytest.raises(InvalidValueError, match="tag must be one of"):
        table.matrix()


def test_a_matrix_of_ranks_that_are_behind_fall_or_have_a_step_twice():
    curves = [
        (0, [2, 4, 6], [1, 2, 3]), (1, [2, 4], [4, 5]), (2, [2, 4, 6, 8], [6, 7, 8, 9]), (3, [4], [10]),
        (4, [8, 4, 2, 6], [11, 12, 13, 14]), (5, [4, 4], [15, 16]), (6, [1], [17]),
        (7, [], []), (8, [2], [18]),
    ]  # fmt: skip
    found = ScalarTable([piece(rank, "a", steps, values) for rank, steps, values in curves]).matrix("a")
    expected = {(step, rank): value for rank, *both in curves for step, value in zip(*both, strict=True)}
    steps, ranks, values = found
    assert (steps.tolist(), ranks.tolist()) == ([1, 2, 4, 6, 8], [0, 1, 2, 3, 4, 5, 6, 8])
    reported = {
        (step, rank): float(values[row, column])
        for row, step in enumerate(steps.tolist())
        for column, rank in enumerate(ranks.tolist())
        if not np.isnan(values[row, column])
    }
    assert reported == expected


@pytest.mark.parametrize(
    "grids",
    [
        [], [[1, 2, 3]] * 3, [[1, 2], [1, 2, 3], [1]], [[2, 4], [1, 4], [3]], [[], [5]], [[5], []],
        [[1, 9], [9]],
    ],
)  # fmt: skip
def test_the_steps_of_all_ranks_are_each_there_once(grids):
    arrays = [np.array(grid, np.int64) for grid in grids]
    assert steps_of_all(arrays).tolist() == sorted({*chain.from_iterable(grids)})


def test_a_column_that_is_not_there_is_named(table):
    with pytest.raises(InvalidValueError, match="'steps'"):
        table["steps"]
