"""A rank's collector actor and the writer that feeds it."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from distsummary import SummaryRecord
from distsummary.base.actor_calls import RayConnection
from distsummary.collect.remote.actor_writer import ATTEMPTS, RemoteWriter
from distsummary.collect.remote.collectors import Collectors
from distsummary.collect.remote.patience import Patience
from distsummary.events.async_writer import AsyncWriter
from distsummary.events.reader import read_directory
from distsummary.events.segments import segments
from distsummary.events.spec import WriterSpec
from distsummary.format.frames import read_frames
from distsummary.format.records import DIALECTS, Batch, Event, Value
from distsummary.format.wire import read_identity
from tests.conftest import ROOT
from tests.patience import PATIENCE_S
from tests.programs import run_python

RUN_ID = "00000000000000ab"
pytestmark = pytest.mark.usefixtures("ray_cluster")


def patient(**changes) -> Patience:
    """What is slow on a busy machine does not hang."""
    return Patience(**{"awaited_s": 60.0, "start_s": 60.0} | changes)


def open_remote(
    path, *, is_up: bool = True, patience=None, clock=time.monotonic, **options
) -> tuple[RemoteWriter, AsyncWriter]:
    spec = WriterSpec(directory=str(path), run_id=RUN_ID, interval_s=0.01)
    remote = RemoteWriter(spec, patience=patience or patient(), **options)
    if is_up:
        remote.start()
    return remote, AsyncWriter(remote, spec, clock=clock)


def batch_of(seq: int, array: np.ndarray) -> Batch:
    event = Event(seq, 0.0, [Value("tensor", "t", array)])
    return Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=seq, events=[event])


def values(path):
    return ((event, value) for event in read_directory(path) for value in event.values)


def collector_pid(remote: RemoteWriter) -> int:
    def pid(collector) -> int:
        return os.getpid()

    return ray.get(remote._actor.__ray_call__.remote(pid))


def steps(path, dialect) -> list[int]:
    return [event.step for event in read_directory(path, dialect)]


def seqs(path, dialect) -> list[int]:
    """Of every frame in every file: nothing is hidden by the reader's own de-duplication."""
    frames = [frame for segment in segments(path, dialect) for frame in read_frames(segment)]
    return [seq for frame in frames if (seq := read_identity(frame.payload).seq)]


def test_a_killed_collector_costs_no_event_and_doubles_none(tmp_path):
    remote, writer = open_remote(tmp_path)
    sent = 0
    for _ in range(2):
        for _ in range(200):
            writer.write(Event(sent, 0.0, [Value("scalar", "loss", float(sent))]))
            sent += 1
        writer.flush()
        os.kill(collector_pid(remote), signal.SIGKILL)
        for _ in range(200):
            writer.write(Event(sent, 0.0, [Value("scalar", "loss", float(sent))]))
            sent += 1
    writer.close()
    for dialect in DIALECTS:
        assert steps(tmp_path, dialect) == list(range(sent))
    health = writer.health()
    assert (health.dropped, health.events, health.last_seq) == ({}, sent, sent)


def test_collectors_start_while_every_cpu_is_reserved(tmp_path):
    group = placement_group([{"CPU": 1}] * 4)
    try:
        assert group.wait(PATIENCE_S)
        _, writer = open_remote(tmp_path)
        writer.write(Event(1, 0.0, [Value("scalar", "loss", 1.0)]))
        writer.close()
    finally:
        remove_placement_group(group)
    assert steps(tmp_path, "mindspore") == [1]


def test_a_collector_ends_with_its_trainer(tmp_path):
    @ray.remote(num_cpus=0)
    class Trainer:
        def open(self, path: str) -> int:
            self.remote, self.writer = open_remote(path)
            self.writer.write(Event(1, 0.0, [Value("scalar", "loss", 1.0)]))
            self.writer.flush()
            return collector_pid(self.remote)

    trainer = Trainer.remote()
    pid = ray.get(trainer.open.remote(str(tmp_path)))
    os.kill(pid, 0)
    ray.kill(trainer, no_restart=True)
    assert steps(tmp_path, "mindspore") == [1]
    # that the process ends is checked by the fixture that fails a test which leaves actors behind


def test_a_value_that_cannot_be_sent_is_counted_not_raised(tmp_path):
    _, writer = open_remote(tmp_path)
    for step, value in enumerate((1.0, threading.Lock(), 3.0)):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", value)]))
        writer.flush()
    writer.close()
    assert steps(tmp_path, "mindspore") == [0, 2]
    assert writer.health().dropped == {"scalar": 1}


def test_a_collector_that_cannot_write_gets_the_same_batches_again(tmp_path):
    _, writer = open_remote(tmp_path / "run")
    writer.write(Event(0, 0.0, [Value("scalar", "loss", 0.0)]))
    writer.flush()
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()  # a file where the directory was: every write fails
    for step in range(1, 50):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
    assert not writer.flush()
    *reasons, flushed = writer.health().errors
    assert flushed == f"flush returned before everything was written: {reasons[-1]}"
    assert "\n" not in "".join(reasons)  # no stack of the collector
    (tmp_path / "run").unlink()
    (tmp_path / "run").mkdir()  # the writers make no directory again that is gone
    writer.close()
    for dialect in DIALECTS:
        assert steps(tmp_path / "run", dialect) == list(range(1, 50))
    assert writer.health().dropped == {}


def test_the_largest_events_arrive(tmp_path):
    spec = WriterSpec(directory=str(tmp_path), run_id=RUN_ID, formats=("mindspore",))
    remote = RemoteWriter(spec, patience=patient())
    remote.start()
    elements = (255 << 20) // 4
    for seq in (1, 2):
        array = np.zeros(elements, np.float32)
        array[-1] = seq
        remote.write(batch_of(seq, array))
    remote.flush()
    remote.close()
    found = [(event.seq, value.data.size, value.data[-1]) for event, value in values(tmp_path)]
    assert found == [(1, elements, 1.0), (2, elements, 2.0)]


def test_a_stopped_collector_is_replaced_and_no_one_hangs(tmp_path):
    patience = patient()
    remote, writer = open_remote(tmp_path, patience=patience)
    writer.write(Event(0, 0.0, [Value("scalar", "loss", 0.0)]))
    writer.flush()
    os.kill(collector_pid(remote), signal.SIGSTOP)
    patience.answer_s = 1.0
    for step in range(1, 20):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
    writer.close()
    for dialect in DIALECTS:
        assert steps(tmp_path, dialect) == list(range(20))
    assert writer.health().dropped == {}


def test_a_collector_that_hangs_at_the_end_costs_no_event(tmp_path):
    patience = patient()
    remote, writer = open_remote(tmp_path, patience=patience)
    writer.write(Event(0, 0.0, [Value("scalar", "loss", 0.0)]))
    writer.flush()
    process = psutil.Process(collector_pid(remote))
    process.suspend()
    patience.awaited_s = 0.5
    for step in range(1, 200):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
    writer.close()
    assert writer.health().missing == ""
    for dialect in DIALECTS:
        assert seqs(tmp_path, dialect) == list(range(1, 201))
    assert writer.health().dropped == {}
    assert any("writes its files itself" in reason for reason in writer.health().errors)
    # otherwise it might write once more when it continues; a zombie is dead, and not reaped yet
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_collector_that_hangs_keeps_no_flush_waiting(tmp_path):
    patience = patient()
    remote, writer = open_remote(tmp_path, patience=patience)
    for step in range(50):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
        if step == 20:
            writer.flush()
            os.kill(collector_pid(remote), signal.SIGSTOP)
            patience.awaited_s = 0.5
    assert writer.flush()
    for dialect in DIALECTS:
        assert seqs(tmp_path, dialect) == list(range(1, 51))
    writer.write(Event(50, 0.0, [Value("scalar", "loss", 50.0)]))
    writer.close()
    assert steps(tmp_path, "mindspore") == list(range(51))
    assert writer.health().events == 51


def test_a_collector_that_dies_again_and_again_is_started_a_few_times_then_done_without(tmp_path):
    started = []

    class Dying(Collectors):
        def hello(self, *args):
            os._exit(1)

    def start(scope):
        started.append(scope)
        return ray.remote(Dying).options(num_cpus=0).remote()

    _, writer = open_remote(tmp_path, is_up=False, start=start)
    for step in range(50):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
    while not any("itself" in reason for reason in writer.health().errors):
        time.sleep(0.01)
    assert writer.flush()
    assert steps(tmp_path, "mindspore") == list(range(50))
    writer.close()
    gave_up, died = writer.health().errors
    assert started == ["rank"] * ATTEMPTS
    assert died.startswith("CollectorError: the collector has died: ActorDiedError: The actor died")
    assert "pid:" not in died
    assert gave_up == "the rank writes its files itself: the collector has died 5 times in a row"


def test_a_rank_is_without_a_collector_for_a_bounded_time_whatever_the_starts_take(tmp_path):
    started = []

    class Dying(Collectors):
        def ready(self, *args):
            time.sleep(0.7)
            os._exit(1)

    def start(scope):
        started.append(scope)
        return ray.remote(Dying).options(num_cpus=0).remote()

    _, writer = open_remote(tmp_path, is_up=False, patience=patient(start_s=1.0), start=start)
    writer.write(Event(1, 0.0, [Value("scalar", "loss", 1.0)]))
    assert writer.flush()
    assert len(started) < ATTEMPTS
    assert any("itself: no collector is up after 1 s" in reason for reason in writer.health().errors)
    assert steps(tmp_path, "mindspore") == [1]
    writer.close()


def test_a_rank_whose_directory_cannot_be_opened_counts_everything_and_says_why(tmp_path):
    (tmp_path / "rank").touch()
    _, writer = open_remote(tmp_path / "rank", is_up=False, clock=lambda: 100 * time.monotonic())
    for step in range(100):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
    assert not writer.flush()
    writer.close()
    assert "rank must be a directory, but it or a parent is a file" in writer.health().missing
    assert writer.health().dropped == {"scalar": 100}
    assert writer.health().events == 0


def test_what_the_collector_cannot_open_the_rank_writes_itself_when_it_can(tmp_path):
    (tmp_path / "rank").touch()
    _, writer = open_remote(tmp_path / "rank", is_up=False)
    for step in range(100):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
    while not any("itself" in reason for reason in writer.health().errors):
        time.sleep(0.01)
    assert not writer.flush()
    (tmp_path / "rank").unlink()
    writer.close()
    assert writer.health().missing == ""
    assert steps(tmp_path / "rank", "mindspore") == list(range(100))


def test_what_is_on_its_way_when_ray_ends_is_written_by_the_rank(tmp_path):
    class Ended(RayConnection):
        def is_open(self) -> bool:
            return False

    remote, writer = open_remote(tmp_path)
    for step in range(50):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
        if step == 20:
            writer.flush()
            pid = collector_pid(remote)
            remote._ray = Ended()
    writer.close()
    assert writer.health().missing == ""
    for dialect in DIALECTS:
        assert seqs(tmp_path, dialect) == list(range(1, 51))
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_what_a_collector_wrote_without_acknowledging_is_counted_once(tmp_path):
    class Dying(Collectors):
        def write(self, key, batch):
            found = super().write(key, batch)
            if batch.last_seq > 1:
                os._exit(1)
            return found

    kinds = [Collectors, Dying]

    def start(scope):
        return ray.remote(kinds.pop()).options(num_cpus=0).remote()

    _, writer = open_remote(tmp_path, start=start)
    for step in (1, 2):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", 1.0)]))
        assert writer.flush()
    writer.close()
    assert not kinds
    assert writer.health().missing == ""
    assert writer.health().events == 2
    assert seqs(tmp_path, "mindspore") == [1, 2]


def test_no_other_process_is_killed_that_has_the_pid_now(tmp_path):
    remote, writer = open_remote(tmp_path)
    writer.write(Event(0, 0.0, [Value("scalar", "loss", 0.0)]))
    writer.close()
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            remote._process = {**remote._process, "pid": other.pid}
            remote._end_collector()
            assert other.poll() is None
        finally:
            other.kill()


def slow_start(up: Path):
    """Starts a collector that is not up before the file `up` is there."""

    class Slow(Collectors):
        def ready(self, *args):
            while not up.exists():
                time.sleep(0.01)
            return super().ready(*args)

    return lambda scope: ray.remote(Slow).options(num_cpus=0).remote()


def test_what_comes_while_a_collector_starts_waits_for_it_and_so_does_a_flush(tmp_path):
    run, up = tmp_path / "run", tmp_path / "up"
    _, writer = open_remote(run, is_up=False, start=slow_start(up))
    for step in range(2000):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
    assert not writer.flush(0.5)
    assert not run.exists()
    up.touch()
    assert writer.flush()
    assert (len(segments(run, "tensorboard")), own_files(run)) == (1, 0)
    writer.close()
    for dialect in DIALECTS:
        assert seqs(run, dialect) == list(range(1, 2001))
    assert (writer.health().events, writer.health().dropped) == (2000, {})


def test_who_closes_does_not_wait_for_a_collector_that_starts_and_writes_everything(tmp_path):
    run, up = tmp_path / "run", tmp_path / "up"
    _, writer = open_remote(run, is_up=False, start=slow_start(up))
    for step in range(50):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
    writer.close()
    for dialect in DIALECTS:
        assert seqs(run, dialect) == list(range(1, 51))
    assert not writer.health().errors


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (
            {"resources": {"nowhere": 1}},
            "no collector is up after 0 s: it needs neither a CPU nor a GPU of its own",
        ),
        (
            {"label_selector": {"ray.io/node-id": "0" * 56}},
            # Ray says of some versions that no node will ever take it, and of others nothing.
            "(the collector does not start: ActorUnschedulableError: |no collector is up after 0 s)",
        ),
    ],
)
def test_a_node_without_a_place_for_the_collector_is_named_once_and_the_rank_writes(
    tmp_path, caplog, place, line
):
    def start(scope):
        return ray.remote(Collectors).options(num_cpus=0, **place).remote()

    _, writer = open_remote(tmp_path, is_up=False, patience=patient(start_s=0.0), start=start)
    for step in range(3):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", 1.0)]))
    assert writer.flush()
    assert steps(tmp_path, "mindspore") == [0, 1, 2]
    writer.close()
    [found] = [r.message for r in caplog.records if "itself" in r.message]
    assert re.match(f"rank=0 writes its files itself from now on: {line}", found)


def test_writers_of_one_process_share_an_actor_which_ends_with_the_last(tmp_path):
    opened = [open_remote(tmp_path / name) for name in ("a", "b")]
    pids = {collector_pid(remote) for remote, _ in opened}
    assert len(pids) == 1
    for step in range(10):
        for _, writer in opened:
            writer.write(Event(step, 0.0, [Value("scalar", "loss", 1.0)]))
    opened[0][1].close()
    opened[1][1].write(Event(10, 0.0, [Value("scalar", "loss", 1.0)]))
    opened[1][1].close()
    assert [steps(tmp_path / name, "mindspore") for name in ("a", "b")] == [[*range(10)], [*range(11)]]
    assert not any(writer.health().errors for _, writer in opened)


def test_the_ranks_of_a_node_share_an_actor_that_outlives_the_one_that_started_it(tmp_path, monkeypatch):
    monkeypatch.setattr("distsummary.collect.remote.collectors.LINGER_S", 0.0)

    @ray.remote(num_cpus=0)
    class Trainer:
        def open(self, path: str) -> int:
            spec = WriterSpec(directory=path, run_id=RUN_ID, interval_s=0.01)
            self.remote = RemoteWriter(spec, scope="node")
            self.remote.start()
            self.writer = AsyncWriter(self.remote, spec)
            return collector_pid(self.remote)

        def record(self, step: int) -> bool:
            self.writer.write(Event(step, 0.0, [Value("scalar", "loss", 1.0)]))
            return self.writer.flush()

        def close(self) -> dict:
            self.writer.close()
            return self.writer.health().errors

    trainers = [Trainer.remote() for _ in range(2)]
    pids = [ray.get(one.open.remote(str(tmp_path / f"{n}"))) for n, one in enumerate(trainers)]
    assert pids[0] == pids[1]
    assert all(ray.get([one.record.remote(1) for one in trainers]))
    ray.kill(trainers[0], no_restart=True)
    assert all(ray.get([trainers[1].record.remote(step) for step in range(2, 50)]))
    assert ray.get(trainers[1].close.remote()) == {}
    assert steps(tmp_path / "0", "mindspore") == [1]
    assert steps(tmp_path / "1", "mindspore") == [*range(1, 50)]
    # that the actor ends is checked by the fixture that fails a test which leaves actors behind


def own_files(path) -> int:
    return sum(f".{os.getpid()}." in file.name for file in segments(path, "tensorboard"))


def test_without_memory_for_a_collector_a_line_gives_the_reason_and_the_rank_writes(
    tmp_path, monkeypatch, caplog
):
    size = 10 << 30
    monkeypatch.setattr(ray._private.utils, "get_system_memory", lambda: size)
    monkeypatch.setattr(ray._private.utils, "get_used_memory", lambda: int(0.95 * size) - (100 << 20))
    with SummaryRecord(tmp_path, collectors="rank") as record:
        record.scalars(1, {"loss": 1.0})
    assert steps(tmp_path, "mindspore") == [1]
    assert not record.health().errors
    assert [r.message for r in caplog.records if r.name.startswith("distsummary")] == [
        "rank=0 writes its files in its own process: 100 MiB of memory are free until Ray begins to kill "
        "processes, and a collector needs 128"
    ]


SHUT_DOWN = """
import os, sys, time
from pathlib import Path
import ray
from ray.util import list_named_actors
import distsummary as ds

ray.init(address=sys.argv[1], log_to_driver=False)
place, when = sys.argv[2:]

def is_there():
    if when == "it starts":
        return any(one["name"].startswith("collector-") for one in list_named_actors(all_namespaces=True))
    return any(f".{os.getpid()}." not in path.name for path in Path(place).glob("*tfevents*"))

with ds.init(place, system_metrics=False, record=ds.Record(collectors="rank")) as run:
    for _ in run.steps(range(40)):
        run.log(loss=float(run.step))
        if run.step == 20:
            while not is_there():
                time.sleep(0.05)
            ray.shutdown()
print(run.health().dropped, ray.is_initialized())
"""


@pytest.mark.parametrize("when", ["it starts", "it is up"])
def test_ray_may_be_shut_down_before_the_run_is_closed(tmp_path, when):
    address = ray.get_runtime_context().gcs_address
    done = run_python("-c", SHUT_DOWN, address, tmp_path / "run", when, cwd=ROOT)
    assert done.stdout.splitlines()[-1:] == ["{} False"], done.stderr
    reason = "writes its files itself from now on: Ray was shut down before the run was closed"
    assert done.stderr.count(reason) == 1
    found = {e.step: v.data for e, v in values(tmp_path / "run") if v.tag == "loss"}
    assert found == {step: float(step) for step in range(1, 41)}
