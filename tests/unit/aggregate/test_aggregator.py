"""The aggregator: when it merges, what it keeps of lineage, and that it ends."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest
from filelock import FileLock

from distsummary import Topology
from distsummary.aggregate.aggregator import Aggregator
from distsummary.aggregate.live import LiveMerge
from distsummary.aggregate.registrar import first_free_attempt
from distsummary.base.publish import publish
from distsummary.diagnosis.alerts import read_alerts
from distsummary.errors import RunDirError, StaleAttemptError
from distsummary.events.reader import read_directory, read_lineage
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.frames import frame
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.records import Batch, Event, Value
from distsummary.rundir.attempts import Registration, rank_states, with_ranks
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.deal import Deal, Heartbeat, Part, Share, Steps
from distsummary.rundir.rank_parts import write_parts
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import read_run
from distsummary.rundir.timeouts import LAUNCHER_S
from tests.disks import FULL, room_for
from tests.event_files import write_events
from tests.patience import PATIENCE_S, wait_for

RANKS = [Topology(rank=rank, world_size=2, incarnation="launch-1") for rank in range(2)]
NO_PROCESS = 0
NEXT = [Topology(rank=rank, world_size=2, incarnation="launch-2") for rank in range(2)]


class Life:
    """Aggregators of one run; each has to end itself.

    Their clock stands still while the test acts, however long that takes, and runs while the test waits.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self._started: list[tuple[Aggregator, threading.Event]] = []
        self._time = 0.0, 0.0, 0.0  # what the clock showed, since when it runs, and how fast

    def clock(self) -> float:
        shown_s, since_s, rate = self._time
        return shown_s + (time.monotonic() - since_s) * rate

    @contextmanager
    def time_passes(self, rate: float = 1000.0) -> Iterator[None]:
        """In the block, the clock runs `rate` times as fast as time."""
        self._time = self.clock(), time.monotonic(), rate
        try:
            yield
        finally:
            self._time = self.clock(), 0.0, 0.0

    def wait_for(self, holds: Callable[[], object], rate: float = 1000.0) -> None:
        with self.time_passes(rate):
            wait_for(lambda: bool(holds()))

    def start(self, *, grace_s: float = 50.0) -> Aggregator:
        ended = threading.Event()
        aggregator = Aggregator(
            str(self.run_dir.base), grace_s=grace_s, on_end=ended.set, round_s=0.01, clock=self.clock
        )
        self._started.append((aggregator, ended))
        return aggregator

    def kill(self, *, pid: int = NO_PROCESS, seconds_ago: float = 0.0) -> None:
        """Let the files of the ranks name a process that does not live, or another one."""
        for file in self.run_dir.base.glob("rank_*/manifest.json"):
            found = json.loads(file.read_text())
            for entry in found["attempts"]:
                entry["pid"] = pid
            publish(file, json.dumps(found).encode())
            seen = file.stat().st_mtime - seconds_ago
            os.utime(file, (seen, seen))

    def lapse(self) -> None:
        """An aggregator that finds no rank alive, from its start to its end."""
        self.kill()
        self.start(grace_s=0.0)
        self.end()
        self.kill(pid=os.getpid())

    def end(self) -> None:
        with self.time_passes():
            for _, ended in self._started:
                assert ended.wait(PATIENCE_S), "the aggregator did not end itself"

    def has_ended(self) -> bool:
        return all(ended.is_set() for _, ended in self._started)

    def states(self, attempt: int = 0) -> dict[str, str]:
        """What the ranks report in their files."""
        return rank_states(with_ranks(self.run_dir, self.run_dir.read_manifest()["attempts"][attempt]))

    def state(self) -> str:
        return str(self.run_dir.read_manifest()["state"])

    def merged_steps(self) -> list[int]:
        return [event.step for event in read_directory(self.run_dir.base)]

    def merged_files(self) -> set[str]:
        """The names of the merged files, of which each merge writes new ones."""
        return {file.name for file in self.run_dir.base.glob("events.*")}

    def close(self) -> None:
        """End those that would wait for ranks which the test left running."""
        self.run_dir.update_manifest(lambda manifest: manifest["attempts"].clear())
        for aggregator, ended in self._started:
            if not ended.is_set():
                aggregator.settle("")
        self.end()


@pytest.fixture
def life(nasty_tmp_path: Path) -> Iterator[Life]:
    found = Life(RunDir(nasty_tmp_path / "run").create())
    yield found
    found.close()


def register(life: Life, aggregator: Aggregator, topology: Topology) -> Registration:
    """As a rank's client does it."""
    registration = aggregator.register(topology)
    LocalCoordinator(life.run_dir).claim(topology, registration.attempt)
    return registration


def finish(
    life: Life, aggregator: Aggregator, topology: Topology, attempt: int, health: dict[str, int | str]
) -> None:
    """As a rank's client does it."""
    LocalCoordinator(life.run_dir).leave(topology, attempt, health)
    aggregator.finish(topology, attempt, health)


def join(life: Life, ranks: list[Topology] = RANKS) -> None:
    for topology in ranks:
        LocalCoordinator(life.run_dir).register(topology)


def record(
    run_dir: RunDir, topology: Topology, steps: range, attempt: int = 0, *, optimizer: str = ""
) -> None:
    run_id = run_dir.read_manifest()["run_id"]
    directory = run_dir.writer_dir(topology.role, topology.rank, topology.world_size)
    writer = RankWriter(WriterSpec(directory=directory, run_id=run_id, attempt=attempt, rank=topology.rank))
    events = [Event(step, float(step), [Value("scalar", "loss", 1.0)]) for step in steps]
    if optimizer:
        hyper = lineage_pb2.TrainLineage.HyperParameters(optimizer=optimizer, batch_size=8)
        lineage = lineage_pb2.TrainLineage(hyper_parameters=hyper)
        events.append(Event(0, 0.0, [Value("train_lineage", "", lineage)]))
    first = writer.last_seq + 1
    writer.write(Batch(run_id=run_id, attempt=attempt, rank=topology.rank, first_seq=first, events=events))
    writer.close()


def test_a_merge_waits_for_files_that_do_not_show_all_that_was_recorded(life, caplog):
    aggregator = life.start()
    for topology in RANKS:
        register(life, aggregator, topology)
        record(life.run_dir, topology, range(1, 10))
    *_, file = sorted(life.run_dir.writer_dir("train", 1, 2).glob("*_MS"))
    whole = file.read_bytes()
    last = list(read_directory(file.parent))[-1]
    file.write_bytes(whole[: last.offset])  # as another host sees it that has cached its size
    for topology in RANKS:
        LocalCoordinator(life.run_dir).leave(topology, 0, {"recorded_step": last.step})
    life.wait_for(lambda: "the files of rank 1 do not show here yet" in caplog.text, rate=10.0)
    with file.open("ab") as growing:
        growing.write(whole[last.offset :])
    life.end()
    facts = life.run_dir.read_manifest()["merged"]["train"]
    assert facts["last_steps"] == {"0": 9, "1": 9}


def test_a_merge_does_not_wait_for_ever_for_files(life: Life) -> None:
    aggregator = life.start()
    for topology in RANKS:
        register(life, aggregator, topology)
        record(life.run_dir, topology, range(1, 10))
        with life.time_passes() if topology.rank == 1 else nullcontext():
            finish(life, aggregator, topology, 0, {"recorded_step": 1000})
    life.end()
    assert life.run_dir.read_manifest()["merged"]["train"]["last_steps"] == {"0": 9, "1": 9}


def test_the_last_rank_to_finish_has_the_run_merged_once(life: Life) -> None:
    aggregator = life.start()
    for topology in RANKS:
        register(life, aggregator, topology)
    for topology in RANKS:
        record(life.run_dir, topology, range(1, 4))
        finish(life, aggregator, topology, 0, {})
    assert life.merged_steps() == [1, 2, 3]
    files = life.merged_files()
    aggregator.settle("launch-1")
    life.lapse()
    assert life.merged_files() == files


def test_a_step_is_merged_while_its_ranks_train(life: Life) -> None:
    aggregator = life.start()
    for topology in RANKS:
        register(life, aggregator, topology)
    for topology in RANKS:
        record(life.run_dir, topology, range(1, 4))
    # A rank may still add to its newest step.
    life.wait_for(lambda: life.merged_steps() == [1, 2], rate=10.0)
    files = life.merged_files()
    for topology in RANKS:
        finish(life, aggregator, topology, 0, {})
    assert life.merged_steps() == [1, 2, 3]
    assert life.merged_files() >= files
    assert life.run_dir.read_manifest()["merged"]["train"]["last_steps"] == {"0": 3, "1": 3}


def test_the_ranks_that_live_divide_the_work(life: Life) -> None:
    join(life)
    living = [*RANKS]

    def deals() -> tuple[Deal, ...]:
        beats = {one.rank: Heartbeat(step=3, total=100 + one.rank) for one in living}
        coordinator = LocalCoordinator(life.run_dir)
        seen = [coordinator.beat(topology, 0, beats[topology.rank]) for topology in living]
        return seen[0]

    life.start()
    whole = Deal(version=1, total=None, groups=((0, 1),), since=1)
    life.wait_for(lambda: deals() == (whole, Deal(version=2, total=100, groups=((0, 1),), since=4)))
    LocalCoordinator(life.run_dir).finish(RANKS[1], 0, {})
    living.pop()
    life.wait_for(lambda: deals()[2:] == (Deal(version=3, total=100, groups=((0,),), since=4),))


def test_a_rank_that_has_not_begun_its_loop_changes_no_deal(life: Life) -> None:
    join(life)
    coordinator = LocalCoordinator(life.run_dir)

    def beat(*beats: Heartbeat) -> tuple[Deal, ...]:
        deals = [coordinator.beat(rank, 0, one) for rank, one in zip(RANKS, beats, strict=True)]
        return deals[0]

    life.start()
    beat(Heartbeat(), Heartbeat())
    whole = Deal(version=1, total=100, groups=((0, 1),), since=1)
    life.wait_for(lambda: beat(Heartbeat(step=3, total=100), Heartbeat()) == (whole,))
    parts = [Part(1, 1, 100, (Share("tensor", (name,), Steps(every=5)),)) for name in "ab"]
    for rank, part in enumerate(parts):
        write_parts(life.run_dir.writer_dir("train", rank, 2), 0, [part])
    stored = life.run_dir.read_manifest
    life.wait_for(lambda: {*stored()["attempts"][0]["deals"][0]["ranks"]} == {"0", "1"})
    assert beat(Heartbeat(step=4, total=100), Heartbeat(step=1, total=100)) == (whole,)


def test_ranks_that_never_begin_are_named_once(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    join(life, RANKS[:1])
    life.start()
    life.wait_for(lambda: "missing" in life.run_dir.read_manifest()["attempts"][0])
    assert life.run_dir.read_manifest()["attempts"][0]["missing"]["ranks"] == [1]
    [message] = [one for one in caplog.messages if "have not begun to record here" in one]
    assert "of 2 ranks, rank(s) 1 have not begun to record here within 30 s" in message


def test_a_run_in_which_a_rank_failed_is_failed_after_its_merge(life: Life) -> None:
    aggregator = life.start()
    for topology in RANKS:
        register(life, aggregator, topology)
        record(life.run_dir, topology, range(1, 4))
    finish(life, aggregator, RANKS[1], 0, {"failed": 1, "error": "ValueError: no"})
    aggregator.settle("launch-1")
    manifest = life.run_dir.read_manifest()
    assert life.states() == {"0": "running", "1": "failed"}
    assert manifest["state"] == "failed"
    assert manifest["attempts"][0]["merged"] == {"failed": 1, "running": 1}
    assert life.merged_steps() == [1, 2, 3]


def test_the_end_of_a_lost_rank_is_of_the_step_in_its_files(life: Life) -> None:
    join(life)  # no heartbeat has a step
    life.start()
    for topology in RANKS:
        record(life.run_dir, topology, range(1, 41))
    life.kill()
    lost: list[int] = []
    life.wait_for(
        lambda: (
            lost.extend(one["since_step"] for one in read_alerts(life.run_dir) if one["cause"] == "lost")
            or lost
        )
    )
    assert set(lost) == {40}


def test_ranks_that_come_back_after_a_lapse_are_merged_to_their_end(life: Life) -> None:
    join(life)
    for topology in RANKS:
        record(life.run_dir, topology, range(1, 4))
    life.lapse()
    assert life.states() == {"0": "running", "1": "running"}  # no one else writes into their files
    assert life.state() == "lost"
    assert life.merged_steps() == [1, 2, 3]
    aggregator = life.start()
    for topology in RANKS:
        record(life.run_dir, topology, range(4, 7))
        finish(life, aggregator, topology, 0, {})
    assert life.merged_steps() == [1, 2, 3, 4, 5, 6]
    assert life.state() == "finished"


def test_a_rank_that_comes_back_alone_is_merged_after_the_next_lapse(life: Life) -> None:
    join(life)
    life.lapse()
    record(life.run_dir, RANKS[0], range(1, 4))
    LocalCoordinator(life.run_dir).finish(RANKS[0], 0, {})
    life.lapse()
    assert life.states() == {"0": "finished", "1": "running"}
    assert life.state() == "lost"
    assert life.merged_steps() == [1, 2, 3]


def test_an_aggregator_whose_disk_is_full_ends_when_its_ranks_have_left(life, caplog):
    aggregator = life.start()
    for topology in RANKS:
        register(life, aggregator, topology)
    finish(life, aggregator, RANKS[0], 0, {})
    with ExitStack() as full:
        with FileLock(life.run_dir.base / ".lock"):  # the aggregator settles nothing yet
            LocalCoordinator(life.run_dir).leave(RANKS[1], 0, {})
            full.enter_context(room_for(0))
        with pytest.raises(RunDirError, match=f"{FULL}; .*; then run: distsummary merge"), life.time_passes():
            aggregator.finish(RANKS[1], 0, {})
        life.end()
        assert "merged" not in life.run_dir.read_manifest()["attempts"][0]
    assert "could not be merged: " in caplog.text


def test_a_merge_that_failed_is_tried_again(life: Life) -> None:
    join(life)
    for topology in RANKS:
        record(life.run_dir, topology, range(1, 4))
        LocalCoordinator(life.run_dir).finish(topology, 0, {})
    write_events(life.run_dir.base, [Event(1, 1.0, [])], run_id="f" * 16)
    files = life.merged_files()
    life.start(grace_s=0.0)
    life.wait_for(lambda: life.state() == "finished")
    for name in files:
        (life.run_dir.base / name).unlink()
    life.end()
    assert life.merged_steps() == [1, 2, 3]


def test_an_aggregator_without_its_run_dir_ends_and_lets_a_launch_end(life: Life) -> None:
    join(life)
    aggregator = life.start()
    life.run_dir.base.rename(life.run_dir.base.with_name("gone"))  # at once: it may be writing a file there
    assert not aggregator.serves("launch-1")
    aggregator.settle("launch-1")
    life.end()
    life.run_dir.create()


def test_after_the_end_of_a_launch_it_waits_for_no_other_word(life: Life) -> None:
    join(life)
    life.start(grace_s=1e9).settle("launch-1")
    life.end()


def test_it_stays_until_ds_launch_has_reported_why_a_rank_died(life: Life) -> None:
    join(life, [Topology(rank=rank, world_size=2, incarnation="launch abc+0") for rank in range(2)])
    life.kill()
    aggregator = life.start(grace_s=0.0)
    life.wait_for(lambda: life.state() == "lost")
    aggregator.settle("launch of another job")  # returns after a round
    assert not life.has_ended()
    aggregator.settle("launch abc", {0: "exit code 3", 1: "killed by signal 9"})
    life.end()
    reasons = [rank.reason for rank in read_run(life.run_dir).attempts[0].ranks]
    assert reasons == ["exit code 3", "killed by signal 9"]


def test_it_waits_a_limited_time_for_what_ds_launch_reports(life: Life) -> None:
    join(life, [Topology(rank=rank, world_size=2, incarnation="launch abc+0") for rank in range(2)])
    life.kill(seconds_ago=LAUNCHER_S)
    life.start(grace_s=0.0)
    life.end()


def test_only_the_launch_that_ended_is_settled(life: Life) -> None:
    join(life)
    aggregator = life.start()
    assert (aggregator.serves("launch-1"), aggregator.serves("launch-2")) == (True, False)
    aggregator.settle("launch-2")
    assert life.state() == "running"
    aggregator.settle("launch-1")
    assert life.state() == "lost"


def test_a_rank_that_finished_before_a_newer_attempt_does_not_end_that_one(life: Life) -> None:
    join(life)
    join(life, NEXT[:1])
    with pytest.raises(StaleAttemptError):
        finish(life, life.start(), RANKS[0], 0, {})
    assert life.states(1) == {"0": "running"}


def test_lineage_is_merged_when_all_ranks_have_reported_theirs(life: Life) -> None:
    join(life)
    life.start()
    record(life.run_dir, RANKS[0], range(1, 2), optimizer="SGD")
    record(life.run_dir, RANKS[1], range(1, 2), optimizer="SGD")

    def optimizer() -> str:
        merged = read_lineage(life.run_dir.base)
        return merged.train.hyper_parameters.optimizer if merged.train else ""

    life.wait_for(lambda: optimizer() == "SGD")


def test_a_removed_manifest_does_not_let_attempts_begin_again(life: Life) -> None:
    join(life)
    join(life, NEXT)
    for topology in NEXT:
        record(life.run_dir, topology, range(1, 4), attempt=1)
    life.run_dir.manifest_path.unlink()
    assert register(life, life.start(), RANKS[0]).attempt == 2
    assert first_free_attempt(life.run_dir, "eval") == 0


def test_files_of_other_writers_hold_no_attempt(life: Life) -> None:
    (life.run_dir.base / "events.out.tfevents.1600000000.host").write_bytes(b"")
    (life.run_dir.base / "events.out.tfevents.1600000001.host").write_bytes(frame(b"\xff\xff"))
    (life.run_dir.base / "events.out.tfevents.1600000002.host").write_bytes(frame(b"") + b"torn")
    assert first_free_attempt(life.run_dir, "train") == 0


def test_the_last_rank_that_evaluates_a_finished_training_has_the_run_merged_again(life: Life) -> None:
    join(life)
    aggregator = life.start()
    for topology in RANKS:
        record(life.run_dir, topology, range(1, 3))
        finish(life, aggregator, topology, 0, {})
    life.end()
    assert life.merged_steps() == [1, 2]
    aggregator = life.start()
    for topology in NEXT:  # 9 stands for what the evaluation adds
        record(life.run_dir, topology, range(9, 10))
        aggregator.evaluated(topology, 0)
        assert life.merged_steps() == ([1, 2] if topology.rank == 0 else [1, 2, 9])
    files = life.merged_files()
    assert len(life.run_dir.read_manifest()["attempts"]) == 1
    life.lapse()
    assert life.merged_files() == files


def test_an_evaluation_that_not_all_ranks_finished_is_merged_after_a_while(life: Life) -> None:
    join(life)
    aggregator = life.start()
    for topology in RANKS:
        record(life.run_dir, topology, range(1, 3))
        finish(life, aggregator, topology, 0, {})
    life.end()
    record(life.run_dir, NEXT[1], range(9, 10))
    life.start().evaluated(NEXT[1], 0)
    life.lapse()
    assert life.merged_steps() == [1, 2, 9]
    assert life.states() == {"0": "finished", "1": "finished"}


def test_an_aggregator_that_fails_releases_whoever_waits(life, monkeypatch, caplog):
    class Unclosable(LiveMerge):
        def abandon(self) -> None:
            raise OSError(5, "Input/output error")

    join(life)
    live = LiveMerge(life.run_dir, role="train", attempt=0, world_size=2)
    live.__class__ = Unclosable

    def failing(self: Aggregator) -> None:
        self._live = live
        raise RuntimeError("a fault")

    monkeypatch.setattr(Aggregator, "_look", failing)
    aggregator = life.start()
    with pytest.raises(RunDirError, match="failed: RuntimeError: a fault; run: distsummary merge"):
        aggregator.settle("launch-1")
    # The steps of the end that come after the one that failed are done, too.
    life.end()
    assert "the merged run: OSError" in caplog.text
    LiveMerge.abandon(live)
