"""The ends of event files."""

import pytest

from distsummary.events.newest import newest_events, step_since
from distsummary.events.segments import segments
from distsummary.format.records import DIALECTS, Event, Value
from tests.event_files import write_events

RUN = "00000000000000ab"


def written(path, steps, formats=DIALECTS, attempt=0):
    events = [Event(step, 0.0, [Value("scalar", "loss", 1.0 / step)]) for step in steps]
    write_events(path, events, run_id=RUN, formats=formats, attempt=attempt)


def test_only_the_end_is_read_and_it_is_whole(tmp_path):
    for dialect in DIALECTS:
        written(tmp_path / dialect, range(1, 1001), (dialect,))
        steps = [event.step for event in newest_events(tmp_path / dialect, tail_bytes=1000)]
        assert 1 < len(steps) < 100
        assert steps == list(range(1001 - len(steps), 1001))


def test_a_torn_end_and_an_empty_file_are_passed_over(tmp_path):
    written(tmp_path, range(1, 11))
    [file] = segments(tmp_path, DIALECTS[0])
    file.write_bytes(file.read_bytes()[:-3])
    stamp = int(file.name.split("summary.")[1][:10])
    (tmp_path / file.name.replace(str(stamp), str(stamp + 1))).write_bytes(b"")
    assert max(event.step for event in newest_events(tmp_path)) == 9


def test_a_directory_without_event_files_has_none(tmp_path):
    assert newest_events(tmp_path) == []


def test_an_earlier_attempt_is_found_behind_a_later_one(tmp_path):
    written(tmp_path, range(1, 31))
    written(tmp_path, range(1, 6), attempt=1)
    assert [max(e.step for e in newest_events(tmp_path, attempt=n)) for n in (0, 1, None)] == [30, 5, 5]
    assert newest_events(tmp_path, attempt=2) == []


STEPS = 2000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A file with two scalars a step, and at each tenth step an event of its own that says something else."""
    place = tmp_path_factory.mktemp("run")
    events = []
    for step in range(1, STEPS + 1):
        if step % 10 == 0:
            events.append(Event(step - 5, 0.0, [Value("text", "note", "x" * 10_000)]))
        events.append(Event(step, 0.0, [Value("scalar", "a", float(step)), Value("scalar", "b", 0.0)]))
    write_events(place, events, run_id=RUN)
    return place


@pytest.mark.parametrize("since", [1, 2, 700, 1337, STEPS, None])
def test_the_step_since_which_something_holds_is_found_in_few_places(place, since):
    asked = []

    def holds(event):
        asked.append(event.step)
        values = [value.data for value in event.values if value.tag == "a"]
        return values[0] >= (since or STEPS + 1) if values else None

    assert step_since(place, holds) == since
    assert len(asked) < STEPS / 10


def test_a_directory_without_events_has_no_such_step(tmp_path):
    assert step_since(tmp_path, lambda event: True) is None
