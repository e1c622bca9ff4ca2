"""The collectors in one process: whose files they hold open, and when the process may end."""

import pytest

from distsummary.base.processes import own_process
from distsummary.collect.remote.collectors import LINGER_S, Collectors
from distsummary.events.reader import read_directory
from distsummary.events.segment import has_live_writer
from distsummary.events.spec import WriterSpec
from distsummary.format.records import Batch, Event, Value

RUN_ID = "00000000000000ab"
DEAD = {**own_process(), "pid_start": "0"}  # has ended: its pid is another process's


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def open_writer(collectors: Collectors, key: str, path, owner) -> None:
    collectors.ready(key, owner)
    collectors.hello(key, WriterSpec(directory=str(path), run_id=RUN_ID), owner)


def batch_of(seq: int) -> Batch:
    events = [Event(seq, 0.0, [Value("scalar", "loss", 1.0)])]
    return Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=seq, events=events)


def steps(path) -> list[int]:
    return [event.step for event in read_directory(path)]


def test_each_writer_has_its_own_directory(tmp_path, clock):
    collectors = Collectors(clock)
    for key in "ab":
        open_writer(collectors, key, tmp_path / key, own_process())
        assert collectors.write(key, batch_of(1)).last_seq == 1
    assert collectors.close("a").events == 1
    collectors.write("b", batch_of(2))
    assert collectors.write("b", batch_of(2)).events == 2  # sent again, it is not written again
    collectors.close("b")
    assert [steps(tmp_path / key) for key in "ab"] == [[1], [1, 2]]


def test_it_is_needed_while_a_writer_is_open_or_about_to_come_and_a_little_longer(tmp_path, clock):
    collectors = Collectors(clock)
    clock.now += LINGER_S
    assert not collectors.look()  # the first rank may be about to come
    collectors.ready("a", own_process())
    clock.now += 1000.0
    assert not collectors.look()
    open_writer(collectors, "a", tmp_path, own_process())
    clock.now += 1000.0
    assert not collectors.look()
    collectors.close("a")
    collectors.ready("b", own_process())
    collectors.leave("b")
    clock.now += LINGER_S
    assert not collectors.look()
    clock.now += 0.1
    assert collectors.look()


def test_what_a_process_left_open_is_closed_when_it_has_ended(tmp_path, clock):
    collectors = Collectors(clock)
    open_writer(collectors, "a", tmp_path, DEAD)
    collectors.write("a", batch_of(1))
    assert has_live_writer(tmp_path, "0")
    open_writer(collectors, "b", tmp_path / "other", own_process())  # looks, too
    assert not has_live_writer(tmp_path, "0")
    assert steps(tmp_path) == [1]
    collectors.close("b")
