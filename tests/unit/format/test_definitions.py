"""What is said of a tag: an exact name before globs, the last glob before earlier ones, each field apart."""

import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.definitions import Definitions, check_definitions
from tests.refusals import refused

FOUND = check_definitions(
    {
        "eval/loss": {"best": "min"},
        "*": {"across": "sum", "unit": "u"},
        "eval/*": {"best": "max", "across": None},
        "zz_perf/*_ms": {"across": "max"},
        "a[b]": {"unit": "own"},
    }
)


@pytest.mark.parametrize(
    ("tag", "across", "best", "unit"),
    [
        ("loss", "sum", None, "u"), ("eval/loss", "sum", "min", "u"), ("eval/a/b", "sum", "max", "u"),
        ("a[b]", "sum", None, "own"), ("ab", "sum", None, "own"), ("zz_perf/step_ms", "max", None, None),
        ("zz_perf/x", None, None, None),
    ],
)  # fmt: skip
def test_the_nearest_definition_counts(tag: str, across: str, best: str, unit: str) -> None:
    assert Definitions(FOUND).of(tag) == (across, best, unit)


def test_what_is_no_definition_is_refused() -> None:
    def of(**fields: object) -> object:
        return lambda: check_definitions({"loss": fields})

    refused(
        InvalidTypeError,
        (lambda: check_definitions(["loss"]), "define must be a dict"),
        (lambda: check_definitions({"loss": "sum"}), r"define\['loss'\] must be dict"),
        (lambda: check_definitions({3: {"best": "min"}}), "must be str"),
        (of(across=3), "across of 'loss' must be str"),
    )
    refused(
        InvalidValueError,
        (of(across="total"), "across of 'loss' must be one of .*'mean:TAG'"),
        (of(across="mean:"), "across of 'loss'"),
        (of(best="low"), "best of 'loss' must be one of"),
        (of(unit=""), "unit of 'loss' must have 1 to 40"),
        (of(unit="a\nb"), "unit of 'loss'"),
        (of(), "must say across, best or unit"),
        (of(goal="min"), "unknown key 'goal'"),
        (lambda: check_definitions({" ": {"best": "min"}}), "a tag or a glob"),
        (lambda: check_definitions({str(n): {"best": "min"} for n in range(1001)}), "at most 1000"),
    )
