import os
import signal
import threading
from collections import Counter

import numpy as np
import pytest

from distsummary.errors import ClosedError, WriteError
from distsummary.format.records import QUEUED, Batch, Event, Health, Scalars, Value
from distsummary.format.scalar_rows import ITEM_BYTES, MAX_ROW_BYTES, events_of, row_struct
from distsummary.writing import async_writer
from distsummary.writing.async_writer import AT_ONCE, AsyncWriter
from distsummary.writing.spec import WriterSpec
from tests.unit.format import samples


class Sink:
    """An inner writer that keeps what it gets; `gate` holds it up, `error` makes it fail."""

    def __init__(self, last_seq: int = 0) -> None:
        self.batches: list[Batch] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.closed = 0
        self.hurries: list[bool] = []
        self._health = Health(last_seq=last_seq)
        self.flushes = 0

    def start(self) -> int:
        return self._health.last_seq

    def write(self, batch: Batch) -> None:
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    def flush(self) -> None:
        self.flushes += 1

    def close(self) -> str:
        self.closed += 1
        return ""

    def health(self) -> Health:
        return self._health

    def hurry(self, *, is_closing: bool = False) -> None:
        self.hurries.append(is_closing)

    def pending(self) -> Counter[str]:
        return Counter()

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
    return AsyncWriter(sink, WriterSpec(directory="", run_id="00000000000000ab", **options))


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
    dropped = writer.health().dropped["tensor"]
    assert dropped == 5 - sum(v.plugin == "tensor" for v in values)
    assert dropped > 0


def test_a_full_budget_keeps_norms_as_it_does_scalars_until_they_do_not_fit_either(monkeypatch):
    monkeypatch.setattr(async_writer, "BLOCK_S", 0.01)
    sink = Sink()
    sink.gate.clear()
    norms = samples.norms(tuple(f"parameter {row}" for row in range(100)))
    writer = start(sink, budget_bytes=40_000)
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


def test_what_the_writer_cannot_take_now_is_kept_and_written_later_with_the_same_number():
    sink = Sink()
    sink.error = OSError(28, "No space left on device")
    writer = start(sink, retry_s=0.001)
    writer.write(event(1))
    assert not writer.flush(timeout_s=0.05)
    writer.write(event(2))
    sink.error = None
    assert writer.flush()
    assert writer.close() == ""
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


def test_a_disk_that_stays_full_ends_the_writer_in_time_and_is_counted(monkeypatch):
    monkeypatch.setattr("distsummary.writing.async_writer.CLOSE_REFUSED_S", 0.05)
    sink = Sink()
    sink.error = OSError(28, "No space left on device")
    writer = start(sink, retry_s=0.001)
    for step in range(3):
        writer.write(event(step))
    missing = "events were dropped: OSError: [Errno 28] No space left on device; free some space"
    assert missing.endswith(writer.close())
    assert missing in writer.health().errors
    assert writer.health().dropped == {"scalar": 3}
    assert sink.closed == 1
    assert writer.close() == missing


def test_flush_gives_a_full_disk_half_a_second_and_raises_if_asked_for(monkeypatch):
    monkeypatch.setattr("distsummary.writing.async_writer.REFUSED_S", 0.01)
    sink = Sink()
    sink.error = OSError(28, "No space left on device")
    writer = start(sink, retry_s=0.001, raise_exception=True)
    writer.write(event(1))
    with pytest.raises(WriteError, match=r"could not be flushed: OSError.*No space left.*; free some space"):
        writer.flush(timeout_s=3600.0)
    sink.error = None
    writer.close()
    assert sink.steps == [1]


def test_flush_waits_for_a_collector_that_is_being_restarted(monkeypatch):
    monkeypatch.setattr("distsummary.writing.async_writer.REFUSED_S", 0.01)

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


def test_a_stalled_writer_holds_the_training_up_once_not_at_every_step(monkeypatch):
    waits = []
    sink = Sink()
    sink.gate.clear()
    writer = start(sink, budget_bytes=3 * (64 + ITEM_BYTES))
    real = writer._changed.wait_for
    monkeypatch.setattr(writer._changed, "wait_for", lambda p, timeout=None: waits.append(timeout) or p())
    for step in range(20):
        writer.write(event(step))
    monkeypatch.setattr(writer._changed, "wait_for", real)
    assert [timeout for timeout in waits if timeout] == [0.5]
    sink.gate.set()
    writer.close()
    assert len(sink.steps) + writer.health().dropped["scalar"] == 20


def test_a_background_failure_is_raised_on_the_next_call_if_asked_for():
    sink = Sink()
    sink.error = ValueError("refused")
    writer = start(sink, raise_exception=True)
    writer.write(event(1))
    writer.flush()
    with pytest.raises(WriteError, match="refused"):
        writer.write(event(2))
    writer.close()


def test_a_writer_that_cannot_start_hangs_nobody_and_counts_what_it_loses():
    class Broken(Sink):
        def start(self) -> int:
            raise RuntimeError("the collector did not come up")

    sink = Broken()
    writer = start(sink)
    writer._thread.join()
    writer.write(event(1))
    assert not writer.flush()
    assert writer.close() == "the writer thread stopped: RuntimeError: the collector did not come up"
    assert writer.health().dropped == {"scalar": 1}
    assert sink.closed == 1


def test_what_a_stuck_thread_holds_is_counted_once_when_close_gives_up(monkeypatch):
    monkeypatch.setattr("distsummary.writing.async_writer.CLOSE_S", 0.05)
    monkeypatch.setattr("distsummary.writing.async_writer.BLOCK_S", 0.05)

    class Buffering(Sink):
        def pending(self) -> Counter[str]:
            return Counter(scalar=5)  # accepted, but not acknowledged

    sink = Buffering()
    sink.gate.clear()
    writer = start(sink)
    writer.write(event(1, Value("scalar", "a", 1.0), Value("scalar", "b", 1.0)))
    while not writer._in_progress:
        threading.Event().wait(0.001)
    writer.write(event(2))
    missing = "the inner writer neither accepted nor refused the last events"
    assert writer.close() == missing
    assert writer.health().dropped == {"scalar": 2 + 1 + 5}
    sink.gate.set()
    writer._thread.join()
    assert writer.health().dropped == {"scalar": 8}
    assert writer.health().errors == {missing: 2}


def test_a_writer_that_lost_batches_says_so_when_it_closes():
    class Losing(Sink):
        def close(self) -> str:
            return "the collector did not acknowledge it in time"

    assert start(Losing()).close() == "the collector did not acknowledge it in time"


def test_the_inner_writer_learns_that_a_caller_waits():
    sink = Sink()
    writer = start(sink)
    writer.write(event(1))
    writer.flush()
    writer.close()
    assert sink.hurries == [False, True]


def test_close_is_idempotent_and_ends_the_thread():
    sink = Sink()
    writer = start(sink)
    writer.close()
    writer.close()
    assert sink.closed == 1
    assert not writer._thread.is_alive()
    with pytest.raises(ClosedError):
        writer.write(event(1))


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


def test_a_burst_of_rows_is_handed_over_in_pieces_that_hold_nobody_up():
    sink = Sink()
    writer = start(sink, interval_s=3600.0)
    for step in range(3 * AT_ONCE):
        writer.write_row(LOSS, row(step, 0.5))
    writer.flush()
    assert [batch.size for batch in sink.batches] == [AT_ONCE] * 3
    writer.close()
    assert sink.steps == list(range(3 * AT_ONCE))


def test_rows_of_a_stalled_writer_are_bounded_then_dropped_and_counted(monkeypatch):
    monkeypatch.setattr("distsummary.writing.async_writer.BLOCK_S", 0.001)
    sink = Sink()
    sink.gate.clear()
    writer = start(sink, budget_bytes=100 * ITEM_BYTES)
    for step in range(1000):
        writer.write_row(LOSS, row(step, 0.5))
    assert len(writer._queue) <= 100
    sink.gate.set()
    writer.close()
    assert len(sink.steps) + writer.health().dropped["scalar"] == 1000
    assert len(sink.steps) >= 90


def test_a_long_row_counts_with_its_bytes():
    tags = tuple(f"t{n}" for n in range(MAX_ROW_BYTES // 8))
    sink = Sink()
    sink.gate.clear()
    writer = start(sink, budget_bytes=20_000)
    writer.write_row(tags, row(1, *[0.5] * len(tags)))
    sink.gate.set()
    writer.close()
    assert [len(e.values) for e in sink.events] == [len(tags)]


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
    writer.flush()
    with pytest.raises(WriteError, match="refused"):
        writer.write_row(LOSS, row(2, 0.5))
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
