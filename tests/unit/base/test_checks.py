"""Argument checks let right values pass and name field, value and range of wrong ones."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from distsummary.base.checks import (
    anchored,
    as_unicode,
    check_choice,
    check_int,
    check_keys,
    check_number,
    check_type,
    is_int,
)
from distsummary.errors import InvalidTypeError, InvalidValueError
from tests.refusals import refused


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("runs/{time}", "/work/runs/{time}"), ("", "/work"), ("/a/../b/", "/b"), ("~/a", "/home/a"),
        ("s3://bucket/run", "s3://bucket/run"),
    ],
)  # fmt: skip
def test_a_path_that_is_used_later_is_absolute(path: str, expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home")
    monkeypatch.setattr("os.getcwd", lambda: "/work")
    assert anchored(path) == expected


def test_errors_name_field_value_and_range() -> None:
    expected = r"mode must be one of \['a', 'b'\], got "
    unequal = np.array(["a", "b"])  # compared with a choice, it is no bool
    refused(
        InvalidTypeError,
        (lambda: check_type("rate", "0.5", (int, float)), "rate must be int or float, got '0.5' of type str"),
        (lambda: check_type("rate", True, int), "rate must be int, got True of type bool"),
        (
            lambda: check_type("rate", [], str, optional=True),
            r"rate must be str or None, got \[\] of type list",
        ),
        (lambda: check_int("rank", 1.0), r"rank must be int, got 1\.0 of type float; write int\(...\)"),
        (lambda: check_int("rank", True), "rank must be int"),
        (lambda: check_keys("formats", {1: 1}, ("a",)), "a key of formats must be str, got 1"),
    )
    refused(
        InvalidValueError,
        (lambda: check_int("rank", -1, low=0), "rank must be >= 0, got -1"),
        (lambda: check_int("rank", 4, low=0, high=3), r"rank must be in \[0, 3\], got 4"),
        (lambda: check_int("rank", 4, high=3), "rank must be <= 3, got 4"),
        (lambda: check_choice("mode", "c", ("b", "a")), expected),
        (lambda: check_choice("mode", ["a"], {"b", "a"}), expected),
        (lambda: check_choice("mode", unequal, {"b": 1, "a": 2}), expected),
        (
            lambda: check_keys("formats", {"a": 1, "c": 2}, ("b", "a")),
            r"formats has the unknown key 'c'; known keys are \['a', 'b'\]",
        ),
    )


def test_halves_of_surrogate_pairs_become_question_marks() -> None:
    assert as_unicode("a\ud800b \U0001f600 \udcff") == "a?b \U0001f600 ?"


class Index:
    """As integers of other libraries."""

    def __index__(self) -> int:
        return 5


@pytest.mark.parametrize("value", [5, np.int64(5), np.uint8(5), np.array(5), Index()])
def test_integers_of_every_kind_become_int(value: object) -> None:
    found = check_int("step", value, low=0)
    assert (found, type(found)) == (5, int)
    assert is_int(value)


@pytest.mark.parametrize(
    "value",
    [5.0, "5", True, np.bool_(True), np.array(True), np.float32(5), Decimal(5), None, np.ones(2, int)],
)
def test_what_is_no_integer_is_refused(value: object) -> None:
    refused(InvalidTypeError, (lambda: check_int("step", value), "step must be int, got "))
    assert not is_int(value)


@pytest.mark.parametrize("value", [0.5, np.float16(0.5), np.array(0.5), Decimal("0.5"), Fraction(1, 2)])
def test_numbers_of_every_kind_become_float(value: object) -> None:
    found = check_number("rate", value)
    assert (found, type(found)) == (0.5, float)


@pytest.mark.parametrize(
    "value", ["0.5", True, 1j, np.complex64(1), np.bool_(True), np.ones(2), np.array("0.5"), None]
)
def test_what_is_no_number_is_refused(value: object) -> None:
    refused(InvalidTypeError, (lambda: check_number("rate", value), "rate must be int or float, got "))
