"""Argument checks let right values pass and name field, value and range of wrong ones."""

import re

import numpy as np
import pytest

from distsummary.base.checks import as_unicode, check_choice, check_int, check_keys, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError


def test_check_type_lets_the_expected_types_pass() -> None:
    check_type("rate", 0.5, (int, float))
    check_type("rate", 1, (int, float))
    check_type("flag", True, bool)
    check_type("path", None, str, optional=True)


@pytest.mark.parametrize(
    ("value", "expected", "optional", "message"),
    [
        ("0.5", (int, float), False, "rate must be int or float, got '0.5' of type str"),
        (True, int, False, "rate must be int, got True of type bool"),
        (None, int, False, "rate must be int, got None of type NoneType"),
        ([], str, True, "rate must be str or None, got [] of type list"),
    ],
)
def test_check_type_names_field_value_and_types(
    value: object, expected: type | tuple[type, ...], optional: bool, message: str
) -> None:
    with pytest.raises(InvalidTypeError, match=re.escape(message)):
        check_type("rate", value, expected, optional=optional)


def test_check_int_lets_the_bounds_pass() -> None:
    check_int("rank", 0, low=0, high=3)
    check_int("rank", 3, low=0, high=3)
    check_int("rank", None, low=0, optional=True)
    check_int("rank", -(10**30))


@pytest.mark.parametrize(
    ("value", "low", "high", "message"),
    [
        (-1, 0, None, "rank must be >= 0, got -1"),
        (4, 0, 3, "rank must be in [0, 3], got 4"),
        (-1, 0, 3, "rank must be in [0, 3], got -1"),
        (4, None, 3, "rank must be <= 3, got 4"),
    ],
)
def test_check_int_names_the_range(value: int, low: int | None, high: int | None, message: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        check_int("rank", value, low=low, high=high)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_check_int_refuses_what_is_no_int(value: object) -> None:
    with pytest.raises(InvalidTypeError, match="rank must be int"):
        check_int("rank", value, low=0)


@pytest.mark.parametrize("choices", [("b", "a"), {"b", "a"}, {"b": 1, "a": 2}])
@pytest.mark.parametrize("value", ["c", 1, None, ["a"], {}, np.array(["a", "b"])])
def test_check_choice_names_the_choices_whatever_the_value_is(choices: object, value: object) -> None:
    with pytest.raises(InvalidValueError, match=re.escape("mode must be one of ['a', 'b'], got ")):
        check_choice("mode", value, choices)  # type: ignore[arg-type]  # a union of collections


def test_check_choice_lets_a_choice_pass() -> None:
    check_choice("mode", "a", {"a", "b"})
    check_choice("mode", None, (None, "a"))


def test_check_keys_names_the_unknown_key_and_the_known_ones() -> None:
    check_keys("formats", {"a": 1}, ("a", "b"))
    with pytest.raises(
        InvalidValueError, match=re.escape("formats has the unknown key 'c'; known keys are ['a', 'b']")
    ):
        check_keys("formats", {"a": 1, "c": 2}, ("b", "a"))
    with pytest.raises(InvalidTypeError, match="a key of formats must be str, got 1"):
        check_keys("formats", {1: 1}, ("a",))


def test_halves_of_surrogate_pairs_become_question_marks() -> None:
    assert as_unicode("a\ud800b \U0001f600 \udcff") == "a?b \U0001f600 ?"
