"""Name, group, tags and notes of a run are checked when they are given."""

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.rundir.labels import check_labels
from tests.refusals import refused


def test_only_what_is_given_is_said() -> None:
    assert check_labels() == {}
    assert check_labels(" a ", tags="one") == {"name": "a", "tags": ["one"]}
    assert check_labels(tags={"b", "a"}, notes="") == {"tags": ["a", "b"], "notes": ""}


def test_secrets_are_replaced() -> None:
    assert "hunter2" not in str(check_labels("password=hunter2", notes="a\npassword=hunter2"))


def test_what_is_no_label_is_refused() -> None:
    wrong_type = (
        (lambda: check_labels(3), "name must be str, got 3"),
        (lambda: check_labels(tags={"a": 1}), "tags must be a list"),
        (lambda: check_labels(tags=["a", 2]), "tag must be str"),
        (lambda: check_labels(notes=2), "notes must be str"),
    )
    refused(InvalidTypeError, *wrong_type)
    refused(
        InvalidValueError,
        (lambda: check_labels(""), "name must be 1 to 200 printable"),
        (lambda: check_labels(group="a\nb"), "group must be"),
        (lambda: check_labels("x" * 201), "name must be"),
        (lambda: check_labels(tags=["\ud800"]), "tag must be Unicode"),
        (lambda: check_labels(notes="x" * 20_001), "0 to 20,000"),
        (lambda: check_labels(tags=[str(n) for n in range(101)]), "a run may have 100 tags, got 101"),
    )
