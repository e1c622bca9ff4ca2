"""What people call a run: changed whole or not at all, also by two at the same time."""

import json
import threading

import pytest

import distsummary as ds
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError, RunDirError
from distsummary.rundir.labels import MOST_TAGS
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.labels import Labels, change_labels, read_labels
from tests.disks import room_for
from tests.patience import PATIENCE_S
from tests.refusals import refused


@pytest.fixture
def run_dir(tmp_path):
    with ds.init(tmp_path, quiet=True) as run:
        list(run.steps(range(1)))
    return RunDir(tmp_path)


GIVEN = {"name": "a", "group": "g", "tags": ["y", "x"], "notes": "n"}


def test_a_run_keeps_what_it_was_given_until_that_is_changed(run_dir):
    assert read_labels(run_dir, {}) == Labels()
    assert read_labels(run_dir, GIVEN) == Labels("a", "g", ("x", "y"), "n")
    assert change_labels(run_dir, name=" best ", add=["z", "x", "z"], remove=["gone"]).tags == ("x", "z")
    assert json.loads(run_dir.labels_path.read_text()) == {"name": "best", "tags": ["x", "z"]}
    assert read_labels(run_dir, GIVEN) == Labels("best", "g", ("x", "z"), "n")
    change_labels(run_dir, group="h", remove=["x"])
    assert change_labels(run_dir, group="", notes="") == Labels("best", None, ("z",), "")
    assert read_labels(run_dir, GIVEN) == Labels("best", None, ("z",), "")


def test_people_who_tag_at_once_lose_nothing(run_dir):
    def add(number):
        for place in range(5):
            change_labels(run_dir, add=[f"{number}-{place}"], notes=f"by {number}")

    people = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for one in people:
        one.start()
    for one in people:
        one.join(PATIENCE_S)
    assert len(read_labels(run_dir, {}).tags) == 20


def test_a_wrong_label_changes_nothing(run_dir):
    change_labels(run_dir, name="a", add=["x"])
    before = run_dir.labels_path.read_bytes()
    refused(
        InvalidValueError,
        (lambda: change_labels(run_dir, name=""), r"name must be 1 to 200 printable characters, got ''"),
        (lambda: change_labels(run_dir, name="a" * 201), "got 201 characters"),
        (lambda: change_labels(run_dir, add=["a\x1b"]), r"tag must be .*, got '\\x1b'"),
        (lambda: change_labels(run_dir, add=["  "]), "tag must be 1 to 100"),
        (lambda: change_labels(run_dir, notes="a" * 20_001), "notes must be 0 to 20,000"),
        (lambda: change_labels(run_dir, add=map(str, range(MOST_TAGS))), "a run may have 100 tags, got 101"),
    )
    refused(InvalidTypeError, (lambda: change_labels(run_dir, name=3), "name must be"))
    assert run_dir.labels_path.read_bytes() == before
    with room_for(0):
        refused(RunDirError, (lambda: change_labels(run_dir, name="b"), "labels.json cannot be written"))
    assert run_dir.labels_path.read_bytes() == before
    run_dir.labels_path.write_text("{")
    refused(
        DamagedFileError, (lambda: change_labels(run_dir, name="b"), "labels.json is not JSON.*remove it")
    )
