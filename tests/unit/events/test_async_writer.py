import os
import re
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest

from distsummary.base import failures as health
from distsummary.base.health import Health
from distsummary.errors import ClosedError, WriteError
from distsummary.events import async_writer
from distsummary.events.async_writer import AT_ONCE, AsyncWriter
from distsummary.events.spec import DROP, WriterSpec
from distsummary.format.records import QUEUED, Batch, Event, Histogram, Scalars, Value
from distsummary.format.scalar_rows import ITEM_BYTES, NUMBER_BYTES, ROW_BYTES, events_of, row_struct
from tests.patience import PATIENCE_S
from tests.unit.format import samples


class Sink:
    """An inner writer that keeps what it gets; `gate` holds it up, `error` makes it fail.

    `permits`, if set, is how many batches it takes before it hangs.
    """

    def __init__(self, last_seq: int = 0) -> None:
        self.batches: list[Batch] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.closed = 0
        self.hurries: list[bool] = []
        self._health = Health(last_seq=last_seq)
        self.flushes = 0
        self.permits: threading.Semaphore | None = None

    def start(self) -> int:
        return self._health.last_seq

    def write(self, batch: Batch) -> None:
        if self.permits is not None:
            self.permits.acquire()
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    def flush(self) -> None:
        self.flushes += 1

    def progress(self) -> int:
        return len(self.batches)

    def close(self) -> None:
        self.closed += 1

    def health(self) -> Health:
        return self._health

    def hurry(self, *, is_closing: bool = False) -> None:
        self.hurries.append(is_closing)

    @property
    def events(self) -> list[Event]:
        """With an object for each value, packed or not."""
        items = [item for batch in self.batches for item in batch.events]
        return [e for item in items for e in ([item] if isinstance(item, Event) else events_of(item))]

    @property
    def steps(self) -> list[int]:
        return [event.step for event in self.events]


def event(step: int, *values: Value) -> Event:
    return Event(step, 0.0, list(values) or [Value("scalar", "loss", 1.0)])


def start(sink: Sink, **options) -> AsyncWriter:
    options = {"interval_s": 0.0, **options}
    clock = {"clock": options.pop("clock")} if "clock" in options else {}
    return AsyncWriter(sink, WriterSpec(directory="place", run_id="00000000000000ab", **options), **clock)


class Ticking:
    """A clock that advances by 50 ms with each look at it."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.05
        return self.now


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    monkeypatch.setattr(health, "LOOK_S", 0.001)
    return Ticking()


def adds_up(writer: AsyncWriter, **given: int) -> None:
    found = writer.health()
    assert found.given == given
    assert Counter(found.written) + Counter(found.dropped) == Counter(given)


def test_events_arrive_in_order_with_consecutive_numbers():
    sink = Sink(last_seq=40)
    writer = start(sink)
    for step in range(100):
        writer.write(event(step))
    writer.close()
    assert sink.steps == list(range(100))
    seqs = [seq for b in sink.batches for seq in range(b.first_seq, b.last_seq + 1)]
    assert seqs == list(range(41, 141))
    assert sink.closed == 1


def test_what_comes_while_a_batch_is_written_waits_for_the_next_one():
    class Slow(Sink):
        def write(self, batch: Batch) -> None:
            super().write(batch)
            if len(self.batches) < 4:
                writer.write_row(LOSS, row(len(self.batches), 0.5))

    sink = Slow()
    writer = start(sink, interval_s=3600.0)
    writer.write_row(LOSS, row(0, 0.5))
    for count in (1, 2, 3):
        assert writer.flush()
        assert [batch.size for batch in sink.batches] == [1] * count
    writer.close()


def test_flush_returns_when_everything_is_with_the_inner_writer():
    sink = Sink()
    writer = start(sink, interval_s=3600.0)
    for step in range(10):
        writer.write(event(step))
    writer.flush()
    assert sink.steps == list(range(10))
    assert sink.flushes == 1
    writer.flush()
    assert sink.flushes == 2
    writer.close()


def test_graph_and_summary_of_one_call_are_two_events():
    sink = Sink()
    writer = start(sink)
    writer.write(event(1, Value("scalar", "loss", 1.0), Value("graph", "g", b"")))
    writer.close()
    assert [[v.plugin for v in e.values] for e in sink.events] == [["graph"], ["scalar"]]


def test_a_full_budget_drops_bulk_values_and_counts_them():
    sink = Sink()
    sink.gate.clear()
    writer = start(sink, budget_bytes=10_000)
    for step in range(5):
        writer.write(
            event(step, Value("tensor", "t", np.zeros(1000, np.float32)), Value("scalar", "loss", 1.0))
        )
    sink.gate.set()
    writer.close()
    values = [v for e in sink.events for v in e.values]
    assert sum(v.plugin == "scalar" for v in values) == 5
    adds_up(writer, tensor=5, scalar=5)
    dropped = writer.health().dropped["tensor"]
    assert dropped == 5 - sum(v.plugin == "tensor" for v in values)
    assert dropped > 0


def test_a_full_budget_keeps_norms_as_it_does_scalars_until_they_do_not_fit_either(ticking):
    sink = Sink()
    sink.gate.clear()
    norms = samples.norms(tuple(f"parameter {row}" for row in range(100)))
    writer = start(sink, budget_bytes=40_000, clock=ticking)
    for step in range(8):
        writer.write(event(step, Value("tensor", "t", np.zeros(3000, np.float32)), norms))
    sink.gate.set()
    writer.close()
    kept = Counter(v.plugin for e in sink.events for v in e.values)
    dropped = writer.health().dropped
    assert kept["norms"] + dropped["norms"] == kept["tensor"] + dropped["tensor"] == 8
    assert kept["tensor"] < kept["norms"] < 8  # they take 4,500 bytes each, too


def test_an_event_above_the_budget_is_taken_alone_and_leaves_room_for_scalars():
    sink = Sink()
    sink.gate.clear()
    writer = start(sink, budget_bytes=100_000, interval_s=3600.0)
    large = Value("tensor", "t", np.zeros(100_000, np.float64))
    writer.write_row(LOSS, row(1, 0.5))  # a scalar that waits is no hindrance
    writer.write(event(2, large))
    for step in range(3, 20):
        writer.write_row(LOSS, row(step, 0.5))
    writer.write(event(20, large, Value("scalar", "loss", 1.0)))  # a second large one finds the budget full
    sink.gate.set()
    writer.flush()
    writer.write(event(21, large))
    writer.close()
    assert [(e.step, v.plugin) for e in sink.events for v in e.values if v.plugin == "tensor"] == [
        (2, "tensor"),
        (21, "tensor"),
    ]
    assert sink.steps == list(range(1, 22))
    assert writer.health().dropped == {"tensor": 1}


def test_a_failed_device_copy_costs_its_value():
    class Copy:
        def __init__(self, value: float | None) -> None:
            self.value = value

        def result(self) -> float:
            if self.value is None:
                raise RuntimeError("the device is gone")
            return self.value

    sink = Sink()
    writer = start(sink)
    writer.write(event(1, Value("scalar", "bad", Copy(None)), Value("scalar", "good", Copy(2.0))))
    writer.close()
    assert [(v.tag, v.data) for e in sink.events for v in e.values] == [("good", 2.0)]
    assert writer.health().dropped == {"scalar": 1}
    adds_up(writer, scalar=2)


def test_histograms_are_counted_before_they_are_passed_on():
    sink = Sink()
    writer = start(sink)
    values = np.linspace(0.0, 1.0, 100_000, dtype=np.float32)
    writer.write(event(1, Value("histogram", "h", values), Value("histogram", "bad", np.array(["a"]))))
    writer.close()
    [[passed]] = [one.values for one in sink.events]
    assert isinstance(passed.data, Histogram)
    assert (passed.data.counts.sum(), passed.data.max) == (100_000, 1.0)
    assert passed.data.counts.size < 1000
    assert writer.health().dropped == {"histogram": 1}
    adds_up(writer, histogram=2)


def test_what_the_writer_cannot_take_now_is_kept_and_written_later_with_the_same_number():
    sink = Sink()
    sink.error = OSError(28, "No space left on device")
    writer = start(sink, retry_s=0.001)
    writer.write(event(1))
    assert not writer.flush(timeout_s=0.05)
    writer.write(event(2))
    sink.error = None
    assert writer.flush()
    writer.close()
    assert writer.health().missing == ""
    assert sink.steps == [1, 2]
    assert sink.batches[0].first_seq == 1
    assert writer.health().dropped == {}
    assert any("No space" in reason for reason in writer.health().errors)


def test_what_the_writer_refuses_for_good_is_dropped_and_counted():
    sink = Sink()
    sink.error = ValueError("no such thing")
    writer = start(sink)
    writer.write(event(1))
    writer.flush()
    sink.error = None
    writer.write(event(2))
    writer.close()
    assert sink.steps == [2]
    assert writer.health().dropped == {"scalar": 1}
    adds_up(writer, scalar=2)


def test_a_disk_that_stays_full_ends_the_writer_in_time_and_is_counted():
    sink = Sink()
    sink.error = OSError(28, "No space left on device")
    writer = start(sink, retry_s=0.001, clock=lambda: 1000 * time.monotonic())
    for step in range(3):
        writer.write(event(step))
    missing = "events were dropped: OSError: [Errno 28] No space left on device; free some space"
    writer.close()
    assert writer.health().missing == missing
    assert missing in writer.health().errors
    assert writer.health().dropped == {"scalar": 3}
    adds_up(writer, scalar=3)
    assert sink.closed == 1
    writer.close()
    assert writer.health().missing == missing


@pytest.fixture
def soon_refused(monkeypatch):
    monkeypatch.setattr(async_writer, "REFUSED_S", 0.01)


def test_flush_gives_a_full_disk_half_a_second_and_raises_if_asked_for(soon_refused):
    sink = Sink()
    sink.error = OSError(28, "No space left on device")
    writer = start(sink, retry_s=0.001, raise_exception=True)
    writer.write(event(1))
    with pytest.raises(WriteError, match=r"could not be flushed: OSError.*No space left.*; free some space"):
        writer.flush(timeout_s=3600.0)
    sink.error = None
    writer.close()
    assert sink.steps == [1]


def test_flush_waits_for_a_collector_that_is_being_restarted(soon_refused):
    class Restarting(Sink):
        left = 20

        def write(self, batch: Batch) -> None:
            self.left -= 1
            if self.left:
                raise ConnectionError("the collector is being restarted")
            super().write(batch)

    sink = Restarting()
    writer = start(sink, retry_s=0.001)
    writer.write(event(1))
    assert writer.flush(timeout_s=3600.0)
    writer.close()


def test_a_disk_that_stays_full_is_tried_ever_more_rarely_but_at_once_for_a_flush(monkeypatch):
    sink = Sink()
    sink.error = OSError(28, "No space left on device")
    pauses = []
    monkeypatch.setattr(
        AsyncWriter, "_pause", lambda self, pause_s: pauses.append(pause_s) or pauses_end(self)
    )

    def pauses_end(writer: AsyncWriter) -> bool:
        if len(pauses) == 6:
            sink.error = None
        return len(pauses) == 5

    writer = start(sink, retry_s=0.25)
    writer.write(event(1))
    writer.close()
    assert pauses == [0.25, 0.5, 1.0, 1.25, 1.25, 0.25]
    assert sink.steps == [1]


def test_a_stalled_writer_holds_the_training_up_once_not_at_every_step(ticking, caplog):
    waits: list[float] = []
    sink = Sink()
    sink.gate.clear()
    writer = start(sink, budget_bytes=3 * (64 + ITEM_BYTES), clock=ticking)
    for step in range(20):
        begun = ticking.now
        writer.write(event(step))
        waits.append(ticking.now - begun)
    assert [seconds >= 2.0 for seconds in waits].count(True) == 1
    assert sum(waits) < 2.5 + 20 * 0.2  # a call that does not wait looks at the clock, too
    assert "whole steps are dropped and counted from now on" in caplog.text
    assert writer.health().given == {"scalar": 20}  # whatever the thread does meanwhile
    assert sum(writer.health().dropped.values()) == 17
    sink.gate.set()
    writer.close()
    assert len(sink.steps) == 3
    assert "17 step(s) with 17 values were dropped" in caplog.text
    assert "rank=0 dropped 17 of 20 values (scalar 17): nothing was" in caplog.text
    adds_up(writer, scalar=20)


def test_a_writer_that_makes_progress_holds_the_training_up_and_loses_nothing():
    sink = Sink()
    sink.permits = threading.Semaphore(0)
    writer = start(sink, budget_bytes=4 * (ROW_BYTES + NUMBER_BYTES), batch_bytes=1)
    is_over = threading.Event()

    def permit() -> None:  # a batch now and then
        while not is_over.wait(0.001):
            sink.permits.release()

    thread = threading.Thread(target=permit)
    thread.start()
    for step in range(100):
        writer.write_row(LOSS, row(step, 0.5))
        if step % 10 == 0:
            writer.write(event(step, Value("train_lineage", "", None)))
    writer.close()
    is_over.set()
    thread.join()
    assert writer.health().missing == ""
    assert writer.health().dropped == {}
    adds_up(writer, scalar=100, train_lineage=10)


def test_a_writer_that_moves_again_is_waited_for_again(ticking: Ticking, caplog: pytest.LogCaptureFixture):
    sink = Sink()
    sink.permits = threading.Semaphore(0)
    writer = start(sink, budget_bytes=4 * (ROW_BYTES + NUMBER_BYTES), batch_bytes=1, clock=ticking)
    for step in range(10):  # the fifth waits in vain
        writer.write_row(LOSS, row(step, 0.5))
    sink.permits.release(4)
    while len(sink.batches) < 4:
        threading.Event().wait(0.001)
    for step in range(10, 20):
        writer.write_row(LOSS, row(step, 0.5))
    sink.permits.release(100)
    writer.close()
    assert sink.steps[:4] == [0, 1, 2, 3]
    assert sink.steps[4] == 10
    assert caplog.text.count("whole steps are dropped and counted from now on") == 2
    adds_up(writer, scalar=20)


def test_steps_are_dropped_without_a_wait_if_asked_for(caplog: pytest.LogCaptureFixture):
    def refuse(self: health.BoundedWait, *args: object) -> bool:
        raise AssertionError("it waited")

    sink = Sink()
    sink.gate.clear()
    writer = start(sink, budget_bytes=3 * (2 * NUMBER_BYTES + ROW_BYTES), overload=DROP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health.BoundedWait, "wait_for", refuse)
        for step in range(10):
            writer.write_row(("a", "b"), row(step, 0.5, 0.25))
        writer.write(event(10, Value("tensor", "t", np.zeros(3)), Value("scalar", "loss", 1.0)))
    sink.gate.set()
    writer.close()
    assert sink.steps == [0, 1, 2]
    assert writer.health().dropped == {"scalar": 15, "tensor": 1}
    assert "8 step(s) with 16 values were dropped" in caplog.text
    adds_up(writer, scalar=21, tensor=1)


def test_ctrl_c_in_a_wait_for_room_drops_its_step_and_is_raised():
    class Interrupted(Sink):
        def progress(self) -> int:  # the first look of a wait
            raise KeyboardInterrupt

    sink = Interrupted()
    sink.gate.clear()
    writer = start(sink, budget_bytes=NUMBER_BYTES + ROW_BYTES)
    writer.write_row(LOSS, row(1, 0.5))
    with pytest.raises(KeyboardInterrupt):
        writer.write_row(LOSS, row(2, 0.5))
    sink.gate.set()
    with pytest.raises(KeyboardInterrupt):  # which ends the wait of `close` for the thread, too
        writer.close()
    adds_up(writer, scalar=2)


def test_a_loop_that_waits_for_most_of_its_time_is_reported_so_once(ticking, monkeypatch, caplog):
    class Obliging(Sink):
        def progress(self) -> int:  # the first look of a wait
            self.permits.release()
            return super().progress()

    monkeypatch.setattr(health.Slowdown, "waited", lambda self, seconds: 0.6)
    sink = Obliging()
    sink.permits = threading.Semaphore(0)
    writer = start(sink, budget_bytes=2 * NUMBER_BYTES + ROW_BYTES, clock=ticking)
    for step in range(5):
        writer.write_row(("a", "b"), row(step, 0.5, 1.5))
    writer.close()
    assert sink.steps == [0, 1, 2, 3, 4]
    reported = [line for line in caplog.messages if "slows the training down" in line]
    assert len(reported) == 1
    assert "for 60 % of the time it waits till its values are written (2 in this step)" in reported[0]
    assert "only those of every 3. step (for example: if run.step % 3 == 0)" in reported[0]


def test_a_background_failure_is_raised_on_the_next_call_if_asked_for():
    sink = Sink()
    sink.error = ValueError("refused")
    writer = start(sink, raise_exception=True)
    writer.write(event(1))
    for call in (writer.flush, lambda: writer.write(event(2))):
        with pytest.raises(WriteError, match="refused"):
            call()
    writer.close()


def test_a_writer_that_cannot_start_hangs_no_one_and_counts_what_it_loses():
    class Broken(Sink):
        def start(self) -> int:
            raise RuntimeError("the collector did not come up")

    sink = Broken()
    writer = start(sink)
    writer._thread.join()
    writer.write(event(1))
    assert not writer.flush()
    writer.close()
    assert writer.health().missing.endswith(
        "the writer thread stopped: RuntimeError: the collector did not come up"
    )
    assert writer.health().dropped == {"scalar": 1}
    assert sink.closed == 1


def test_what_a_stuck_thread_holds_is_counted_once_when_close_gives_up(ticking, monkeypatch):
    monkeypatch.setattr(async_writer, "CUT_S", 0.001)

    sink = Sink()
    sink.gate.clear()
    writer = start(sink, clock=ticking)
    writer.write(event(1, Value("scalar", "a", 1.0), Value("scalar", "b", 1.0)))
    for step in (2, 3):
        writer.write_row(LOSS, row(step, 0.5))
    writer.close()
    missing = writer.health().missing
    assert re.fullmatch(
        r"4 value\(s\) are not in the files: the disk of place took nothing for 20 s \(the writer is at "
        r"test_async_writer.py:\d+ < async_writer.py:.*\); check that it works",
        missing,
    )
    assert writer.health().dropped == {"scalar": 4}
    adds_up(writer, scalar=4)
    sink.gate.set()
    writer._thread.join()
    assert writer.health().dropped == {"scalar": 4}
    assert writer.health().errors == {missing: 1}


def start_permitted(batches: int, steps: int, ticking: Ticking):
    """A sink that may write so many batches, and its writer, which has some steps, each a batch."""
    sink = Sink()
    sink.permits = threading.Semaphore(batches)
    writer = start(sink, batch_bytes=1, clock=ticking)
    for step in range(steps):
        writer.write_row(LOSS, row(step, 0.5))
    return sink, writer


def test_close_waits_as_long_as_the_writer_gets_on(ticking: Ticking):
    sink, writer = start_permitted(0, 50, ticking)
    is_over = threading.Event()

    def permit() -> None:
        while not is_over.wait(0.002):
            sink.permits.release()

    thread = threading.Thread(target=permit)
    thread.start()
    writer.close()
    assert writer.health().missing == ""
    is_over.set()
    thread.join()
    assert sink.steps == list(range(50))
    adds_up(writer, scalar=50)


def test_what_is_left_at_the_deadline_is_dropped_and_counted(ticking: Ticking):
    sink, writer = start_permitted(3, 10, ticking)
    while len(sink.batches) < 3:
        threading.Event().wait(0.001)
    writer.end_within(2.0, "the process has to end")
    writer.end_within(10.0, "this one is later")
    threading.Timer(0.1, sink.permits.release, [1]).start()  # the batch that is being written then
    writer.close()
    assert writer.health().missing == "6 value(s) are not in the files: the process has to end"
    assert sink.steps == [0, 1, 2, 3]
    assert sink.closed == 1
    assert writer.health().dropped == {"scalar": 6}
    adds_up(writer, scalar=10)


def test_flush_is_true_only_if_everything_since_the_last_flush_is_in_the_files():
    class Sparing(Sink):
        spares = False

        def write(self, batch: Batch) -> None:
            super().write(batch)
            if self.spares:
                self._health.drop("scalar", reason="the disk is nearly full")

    sink = Sparing()
    writer = start(sink)
    for step, sink.spares in ((1, True), (2, False)):
        writer.write(event(step))
        assert writer.flush() is not sink.spares
    writer.close()
    sink = Sparing()
    sink.spares = True
    strict = start(sink, raise_exception=True)
    strict.write(event(3))
    with pytest.raises(WriteError, match=r"1 value\(s\) are not in the files: the disk is nearly full"):
        strict.flush()
    assert strict.flush()
    strict.close()
    for each in (writer, strict):
        assert each.health().missing == "the disk is nearly full"


def test_a_flush_answers_for_what_was_given_and_dropped_while_the_flush_before_it_waited():
    asked, is_writing = threading.Event(), threading.Event()

    class Sparing(Sink):
        def write(self, batch: Batch) -> None:
            is_writing.set()
            super().write(batch)
            if self.steps[-1] == 2:
                self._health.drop("scalar", reason="the disk is nearly full")

        def hurry(self, *, is_closing: bool = False) -> None:
            asked.set()

    sink = Sparing()
    writer = start(sink)
    sink.gate.clear()
    writer.write(event(1))
    assert is_writing.wait(PATIENCE_S)
    answers: list[bool] = []
    flushing = threading.Thread(target=lambda: answers.append(writer.flush(PATIENCE_S)))
    flushing.start()
    assert asked.wait(PATIENCE_S)
    writer.write(event(2))  # goes with the flush into one batch
    sink.gate.set()
    flushing.join()
    assert answers == [False]
    assert not writer.flush()
    assert writer.flush()
    writer.close()


def test_the_inner_writer_learns_that_a_caller_waits():
    sink = Sink()
    writer = start(sink)
    writer.write(event(1))
    writer.flush()
    writer.close()
    assert sink.hurries == [False, True]


def row(step: int, *numbers: float) -> bytes:
    return row_struct(len(numbers)).pack(1.5, step, *numbers)


LOSS = ("loss",)


def test_rows_and_events_keep_the_order_of_their_calls_and_rows_travel_packed():
    sink = Sink()
    writer = start(sink, interval_s=3600.0)
    for step in range(1, 11):
        writer.write_row(LOSS, row(step, 0.5))
        if step % 5 == 0:
            writer.write(event(100 + step, Value("tensor", "t", np.zeros(1))))
    writer.close()
    assert sink.steps == [1, 2, 3, 4, 5, 105, 6, 7, 8, 9, 10, 110]
    assert [item.size for b in sink.batches for item in b.events if isinstance(item, Scalars)] == [5, 5]
    assert sink.batches[-1].last_seq == 12


def test_a_burst_of_rows_is_handed_over_in_pieces_that_hold_no_one_up():
    sink = Sink()
    writer = start(sink, interval_s=3600.0)
    for step in range(3 * AT_ONCE):
        writer.write_row(LOSS, row(step, 0.5))
    writer.flush()
    assert [batch.size for batch in sink.batches] == [AT_ONCE] * 3
    writer.close()
    assert sink.steps == list(range(3 * AT_ONCE))


@pytest.mark.parametrize("tags", [1, 100, 10_000])
def test_rows_of_any_width_count_with_their_bytes(tags: int, ticking: Ticking):
    names = tuple(f"t{n}" for n in range(tags))
    sink = Sink()
    sink.gate.clear()
    writer = start(sink, budget_bytes=5 * (tags * NUMBER_BYTES + ROW_BYTES), clock=ticking)
    for step in range(8):
        writer.write_row(names, row(step, *[0.5] * tags))
    sink.gate.set()
    writer.close()
    assert sink.steps == [0, 1, 2, 3, 4]
    adds_up(writer, scalar=8 * tags)


def test_a_batch_of_wide_rows_is_not_larger_than_asked_for():
    names = tuple(f"t{n}" for n in range(1000))
    sink = Sink()
    writer = start(sink, interval_s=3600.0, batch_bytes=100_000)
    for step in range(40):
        writer.write_row(names, row(step, *[0.5] * 1000))
    writer.close()
    assert max(batch.size for batch in sink.batches) <= 13
    adds_up(writer, scalar=40_000)


def test_a_row_above_the_budget_is_taken_alone(ticking: Ticking):
    names = tuple(f"t{n}" for n in range(1000))
    sink = Sink()
    writer = start(sink, budget_bytes=2000, clock=ticking)
    writer.write_row(names, row(1, *[0.5] * 1000))
    writer.close()
    assert [len(e.values) for e in sink.events] == [1000]


def test_an_idle_thread_is_woken_by_a_row():
    sink = Sink()
    writer = start(sink)
    while not writer._is_asleep:
        threading.Event().wait(0.001)
    writer.write_row(LOSS, row(1, 0.5))
    writer.flush()
    assert sink.steps == [1]
    writer.close()


def test_rows_meet_the_same_refusals_as_events():
    sink = Sink()
    sink.error = ValueError("refused")
    writer = start(sink, raise_exception=True)
    writer.write_row(LOSS, row(1, 0.5))
    for call in (writer.flush, lambda: writer.write_row(LOSS, row(2, 0.5))):
        with pytest.raises(WriteError, match="refused"):
            call()
    sink.error = None
    writer.write_row(LOSS, row(3, 0.5))
    writer.close()
    with pytest.raises(ClosedError):
        writer.write_row(LOSS, row(4, 0.5))
    assert sink.steps == [3]


def test_the_queued_level_tries_nothing_twice():
    sink = Sink()
    sink.error = OSError(28, "No space left on device")
    writer = start(sink, delivery=QUEUED)
    writer.write_row(LOSS, row(1, 0.5))
    writer.flush()
    sink.error = None
    writer.write_row(LOSS, row(2, 0.5))
    writer.close()
    assert sink.steps == [2]
    assert writer.health().dropped == {"scalar": 1}


def test_a_signal_handler_may_close_the_writer_also_inside_of_a_call():
    sink = Sink()
    writer = start(sink, interval_s=3600.0)
    previous = signal.signal(signal.SIGUSR1, lambda *_: writer.close())
    try:
        with writer._changed:  # where `write` stands when the signal comes
            writer.write_row(LOSS, row(1, 0.5))
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert sink.steps == [1]
    assert not writer._thread.is_alive()


def test_a_forked_child_is_refused_at_every_call():
    sink = Sink()
    writer = start(sink, interval_s=3600.0)
    writer.write_row(LOSS, row(1, 0.5))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # no assertion in here: the child must end at once
        refused = 0
        for call in (
            lambda: writer.write_row(LOSS, row(2, 0.5)),
            lambda: writer.write(event(2)),
            writer.flush,
        ):
            try:
                call()
            except ClosedError:
                refused += 1
        writer.close()
        os.write(write, bytes([refused]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"\x03"
    os.close(read)
    os.close(write)
    writer.close()
    assert sink.steps == [1]


@pytest.mark.parametrize("method", ["start", "write", "flush"])
@pytest.mark.parametrize(
    "error", [SystemError("recursion depth mismatch"), MemoryError(), RuntimeError("once")]
)
def test_what_a_writer_raises_once_loses_nothing(error, method, monkeypatch):
    sink = Sink()
    errors, call = [error], getattr(sink, method)

    def failing(*args):
        if errors:
            raise errors.pop()
        return call(*args)

    monkeypatch.setattr(sink, method, failing)
    writer = start(sink)
    writer.write(event(1))
    assert writer.flush()
    writer.close()
    assert (sink.steps, errors) == ([1], [])
    adds_up(writer, scalar=1)


@pytest.mark.parametrize("error", [ProcessLookupError(3, "no such process"), AttributeError("no clock")])
def test_a_writer_thread_needs_no_clock_of_its_own(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_it(ident: int) -> int:
        raise error

    monkeypatch.setattr(time, "pthread_getcpuclockid", raise_it)
    sink = Sink()
    writer = start(sink)
    writer.write(event(1))
    writer.close()
    assert sink.steps == [1]


def test_close_waits_for_no_directory_that_was_removed(tmp_path) -> None:
    sink = Sink()
    sink.error = FileNotFoundError(2, "No such file or directory")
    writer = AsyncWriter(sink, WriterSpec(directory=tmp_path / "gone", interval_s=0.0))
    writer.write(event(1))
    writer.close()  # or it would take 20 s
    adds_up(writer, scalar=1)
    [reason, _] = sorted(writer.health().errors)
    assert "No such file" in reason
