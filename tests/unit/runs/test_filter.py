"""The filter of a table of runs: what holds, and errors that point at a character."""

import pytest

from distsummary.errors import FilterError, InvalidTypeError
from distsummary.runs.filter import MOST, Filter

ROW = {
    "config.lr": 0.1, "name": "Sweep-04", "state": "finished", "tags": ("baseline", "b [x]"), "n": 3,
    "amp": True,
    "eval acc": 0.9, "loss": float("nan"), "eval/loss": 0.5, "eval/loss:best": 0.25, "zero": 0, "notes": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("config.lr < 0.3 and name ~ 'sweep'", True),
        ("config.lr<0.3 AND NOT name~'SWEEP'", False),
        ("0.1 <= config.lr", True),
        ("config.lr == 1e-1", True),
        ("config.lr != 0.1", False),
        ("n >= 3 and n <= 3 and n == +3 and n > -1", True),
        ("'eval acc' > 0.8", True),
        ('"eval acc" > 0.8', True),
        ("eval/loss > eval/loss:best", True),
        ("state == 'failed' or state == 'lost' or n > 2 and n < 4", True),
        ("(state == 'failed' or n > 2) and n > 5", False),
        ("not n > 2", False),
        ("not (n > 5 or n < 1)", True),
        ("state in ('failed', 'finished')", True),
        ("state not in ('failed', 'finished')", False),
        ("config.lr in (0.1, 0.2)", True),
        ("'baseline' in tags", True),
        ("'base' in tags", False),
        ("'base' not in tags", True),
        ("'ish' in state", True),
        ("tags ~ 'BASE*'", True),
        ("name ~ 'sweep-0[1-4]'", True),
        ("name ~ '^sweep.*'", False),
        ("amp", True),
        ("not amp", False),
        ("amp == true", True),
        ("n == true", False),
        ("zero or loss or notes or absent", False),
        ("loss == nan", True),
        ("loss < 1 or loss >= 1", False),
        ("absent == none", True),
        ("absent != 3", True),
        ("absent < 3", False),
        ("name > 3", False),
        ("n < inf", True),
        ("name == 'it\\'s'", False),
        ("'b [x]' in tags", True),
    ],
)
def test_what_holds_for_a_row(text, expected):
    assert Filter(text).holds(ROW) is expected


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("n = 3", 2, "equal is =="),
        ("n > 3 && n < 5", 6, "write and"),
        ("n > 3 || n < 5", 6, "write or"),
        ("!n", 0, "write not"),
        ("n + 1 > 2", 2, "there is no arithmetic"),
        ("n -1 > 2", 2, "there is no arithmetic"),
        ("__import__('os')", 0, "there are no functions"),
        ("name == finished", 8, "a text stands in quotes: 'finished'"),
        ("config.lrr < 1", 0, "there is no column 'config.lrr'; the nearest are config.lr"),
        ("0 < n < 2", 6, "a comparison has two sides"),
        ("n >", 3, "expected a number, a text in quotes, or a column"),
        ("n > 1 and", 9, "expected a column"),
        ("n > 1 n", 6, "expected and, or, or the end, got 'n'"),
        ("(n > 1", 6, r"expected \)"),
        ("n > 1)", 5, "expected and, or, or the end"),
        ("name ~ 'a", 7, "the quote is not closed"),
        ("state in 'x'", 9, r"expected \( and a list"),
        ("state in ('x' 'y')", 14, r"expected , or \)"),
        ("state not 'x'", 10, "expected in"),
        ("'eval acc'", 10, "expected an operator"),
        ("n > 1.2.3", 4, "is no sign of a filter"),
        ("n > 1 and\n absent.a < 3", 11, "there is no column"),
        ("(" * 100_000, 0, "a filter may have 4000 characters"),
        ("(" * 90, 50, "nested deeper than 50 levels"),
        ("not " * 90 + "n", 200, "nested deeper than 50 levels"),
        ("n > 1; import os", 5, "is no sign of a filter"),
        ("[n for n in tags]", 0, r"a list stands in \( \)"),
        ("lambda: 0", 0, "there is no column"),
    ],
)
def test_an_error_points_at_the_character(text, at, message):
    with pytest.raises(FilterError, match=message) as raised:
        Filter(text, ROW)
    assert raised.value.at == at
    if len(text) <= MOST:
        assert f"character {at + 1} of the filter" in str(raised.value)
        *_, line, mark = str(raised.value).splitlines()
        start = text.rfind("\n", 0, at) + 1
        assert mark.index("^") - 2 == at - start
        assert line[2:] == text[start:].partition("\n")[0]


def test_columns_are_named_once_in_their_order():
    assert Filter("n > 1 or 'eval acc' < n and 'a' in tags").columns == ("n", "eval acc", "tags")
    with pytest.raises(InvalidTypeError, match="filter must be"):
        Filter(3)


def test_no_pattern_takes_long_on_any_text():
    row = {"name": "a" * 20_000}
    assert not Filter(f"name ~ '{'a*' * 200}b'").holds(row)
    assert not Filter("name ~ '(a+)+$'").holds(row)
