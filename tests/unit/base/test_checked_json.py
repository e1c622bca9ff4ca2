"""JSON from files: bounded, finite and of the declared type, or DamagedFileError."""

import json
import threading
from typing import TypedDict

import pytest

from distsummary.base.checked_json import parse_json, read_json
from distsummary.errors import DamagedFileError
from distsummary.rundir.run_records import RunRecord

ATTEMPT = {"role": "train", "attempt": 0, "incarnation": "", "world_size": 2, "later": {"kept": 1}}
RUN = {"format": 2, "run_id": "0" * 16, "attempts": [ATTEMPT], "of a newer version": [1]}


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[" * 200 + "]" * 200,
     '{"a": 1e999}', '{"a": NaN}', '{"a": -Infinity}', '{"a": ' + "9" * 5000 + "}", "", "{",
     b"\xff\xfe\x00", "\ufeff{}", '"' + "x" * 2000 + '"'],
    ids=["deep", "nested", "large", "nan", "infinite", "digits", "empty", "cut", "bytes", "bom", "size"],
)  # fmt: skip
def test_whatever_is_no_finite_json_of_that_size_is_damage(text):
    limit = 10_000_000 if len(text) > 3000 else 1000
    with pytest.raises(DamagedFileError, match=r"^it (is not JSON|is nested|has more than)"):
        parse_json(text, name="it", most_bytes=limit)


def test_a_checkpoint_may_hold_numbers_that_are_not_finite():
    assert parse_json('{"best": Infinity}', name="it", is_finite=False) == {"best": float("inf")}


def test_a_record_keeps_what_a_newer_version_wrote(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    assert read_json(tmp_path / "run.json", RunRecord) == RUN


def test_a_command_that_is_no_unicode_is_read(tmp_path):
    run = RUN | {
        "attempts": [ATTEMPT | {"provenance": {"argv": ["train.py", "a\udcff"]}, "config": {"a": 10**40}}]
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert read_json(tmp_path / "run.json", RunRecord) == run


def test_names_that_are_no_unicode_are_damage():
    for attempt in ({"role": "\ud800"}, {"\ud800": 1}):
        with pytest.raises(DamagedFileError):
            parse_json(json.dumps(RUN | {"attempts": [ATTEMPT | attempt]}), RunRecord, name="it")


@pytest.mark.parametrize(
    ("field", "value"),
    [("world_size", 10**12), ("world_size", 0), ("world_size", True), ("attempt", -1), ("attempt", 1 << 63),
     ("role", "../../x"), ("started", -1.0), ("started", 1e300), ("first", {"rank": 0}), ("deals", [{}]),
     ("deaths", {"0": 3}), ("evaluated", [1 << 20])],
)  # fmt: skip
def test_a_field_beyond_its_bounds_is_damage_that_names_the_field(tmp_path, field, value):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(RUN | {"attempts": [ATTEMPT | {field: value}]}))
    with pytest.raises(
        DamagedFileError, match=rf"run\.json is not .*\$\.attempts\[0\]\.?{field}?.*; a remedy"
    ):
        read_json(path, RunRecord, remedy="a remedy")


_begun, _never = threading.Event(), threading.Event()


def _read_late() -> type:
    """Called while msgspec looks into Inner: a second thread may come meanwhile."""
    _begun.set()
    _never.wait(0.2)
    return int


class Inner(TypedDict):
    number: "_read_late()"  # type: ignore[valid-type]


class Outer(TypedDict):
    inner: Inner
    number: int


def test_two_threads_may_use_a_type_for_the_first_time_at_once():
    """Before 0.23, msgspec itself ends such a process."""
    found = []

    def read():
        found.append(parse_json('{"inner": {"number": 1}, "number": 2}', Outer, name="it"))

    first, second = (threading.Thread(target=read) for _ in range(2))
    first.start()
    assert _begun.wait(60)
    second.start()
    for one in (first, second):
        one.join()
    assert found == [{"inner": {"number": 1}, "number": 2}] * 2
