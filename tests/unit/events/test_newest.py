"""The ends of event files."""

from distsummary.events.newest import newest_events
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
