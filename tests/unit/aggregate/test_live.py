"""The merged run of ranks that still train, compared with the merge of their files."""

import math
import random
import shutil
import threading

import numpy as np
import pytest

from distsummary.aggregate import receiver
from distsummary.aggregate.charts import LAYOUT_TAG
from distsummary.aggregate.live import LiveMerge
from distsummary.aggregate.merged_files import is_merged
from distsummary.errors import RunDirError
from distsummary.events.files import Files
from distsummary.events.rank_stream import RankStream
from distsummary.events.reader import read_directory
from distsummary.format.histogram import count_histogram
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.format.records import DIALECTS, MAX_TAG_BYTES, MINDSPORE, TENSORBOARD, Event, Shard, Value
from tests.disks import FullDisk
from tests.event_files import write_events
from tests.unit.aggregate.live_ranks import Ranks, scalar, series, tagged

SHARD = Shard(global_shape=(4,), offset=(2,))

ACROSS = {"loss": "mean:samples", "gro*": "sum", "rare": "max", "eval/*": "min", "flat": "sum"}


def points(ranks, tag, plugin="scalar", dialect=MINDSPORE):
    return [(step, eval(value)) for step, value in series(ranks.run_dir.base, dialect).get((plugin, tag), ())]


@pytest.fixture
def two(tmp_path):
    ranks = Ranks(tmp_path / "run", 2)
    yield ranks
    ranks.close()


def test_a_step_is_written_when_every_living_rank_has_reported_a_later_one(two):
    live = two.live()
    for step in (1, 2, 3):
        two.write(0, [scalar(step, loss=float(step))])
    assert live.advance({0, 1}, 0.0) == 0
    two.write(1, [scalar(1, loss=3.0), scalar(2, loss=4.0)])
    assert live.advance({0, 1}, 0.5) == 1
    assert points(two, "loss") == [(1, 2.0)]
    assert points(two, "zz_ranks/count") == [(1, 2.0)]
    live.close()
    assert points(two, "loss") == [(1, 2.0), (2, 3.0), (3, 3.0)]
    assert points(two, "zz_ranks/count") == [(1, 2.0), (2, 2.0), (3, 1.0)]


def test_the_newest_step_is_written_when_its_ranks_have_reported_nothing_more_for_two_seconds(two):
    live = two.live()
    two.write(0, [scalar(1, loss=1.0)])
    live.advance({0, 1}, 0.0)
    two.write(1, [scalar(1, loss=2.0)])
    assert [live.advance({0, 1}, now) for now in (1.0, 2.5, 3.0)] == [0, 0, 1]
    assert points(two, "loss") == [(1, 1.5)]
    two.write(0, [scalar(1, loss=9.0, acc=0.5)])  # acc can still be written, the loss cannot
    two.write(1, [scalar(2, loss=2.0)])
    assert live.advance({0, 1}, 4.0) == 0
    two.write(0, [scalar(2, loss=2.0)])
    assert live.advance({0, 1}, 4.5) == 0  # step 2 is not complete, but no one will report step 1 again
    assert points(two, "loss") == [(1, 1.5)]
    assert points(two, "acc") == [(1, 0.5)]
    report = live.close()
    assert (report.steps, report.late, report.short, report.is_exact) == (2, 1, 0, False)


def test_a_step_waits_thirty_seconds_for_a_rank_that_hangs(two):
    live = two.live()
    two.write(0, [scalar(1, loss=1.0), scalar(2, loss=1.0)])
    two.write(1, [scalar(1, loss=1.0)])
    assert live.advance({0, 1}, 100.0) == 0
    two.write(0, [scalar(3, loss=1.0)])
    assert [live.advance({0, 1}, now) for now in (101.0, 102.5, 129.9, 130.1, 132.0)] == [0, 1, 0, 1, 1]
    two.write(1, [scalar(2, loss=2.0), scalar(4, loss=2.0)])
    report = live.close()
    assert points(two, "zz_ranks/count") == [(1, 2.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert (report.steps, report.short, report.late) == (4, 2, 1)


def test_ranks_that_have_not_joined_are_awaited_for_thirty_seconds_after_the_first_step(tmp_path):
    ranks = Ranks(tmp_path, 3)
    live = ranks.live()
    for step in (1, 2):
        ranks.write(0, [scalar(step, loss=1.0)])
        ranks.write(1, [scalar(step, loss=1.0)])
    assert [live.advance({0, 1}, now) for now in (0.0, 10.0, 29.0, 30.0)] == [0, 0, 0, 2]
    ranks.write(0, [scalar(3, loss=1.0), scalar(4, loss=1.0)])
    ranks.write(1, [scalar(3, loss=1.0), scalar(4, loss=1.0)])
    assert live.advance({0, 1}, 31.0) == 1
    ranks.close()


def test_a_rank_that_has_died_is_not_awaited_once_its_files_have_been_read(two):
    live = two.live()
    two.write(0, [scalar(step, loss=1.0) for step in (1, 2, 3, 4)])
    two.write(1, [scalar(1, loss=3.0)])
    assert live.advance({0, 1}, 0.0) == 0
    two.write(1, [scalar(2, loss=3.0)])
    assert LiveMerge.advance(live, {0}, 0.5) == 0
    assert live.advance({0}, 1.0) == 3
    assert points(two, "loss") == [(1, 2.0), (2, 2.0), (3, 1.0)]
    live.close()


def test_the_files_of_ranks_may_come_late(tmp_path):
    ranks = Ranks(tmp_path, 2)
    for writer in ranks.writers:
        shutil.rmtree(writer.directory)
    live = ranks.live()
    for writer in ranks.writers:
        writer.directory.mkdir()
    ranks.write(0, [scalar(1, loss=1.0), scalar(2, loss=1.0)])
    assert live.advance({0, 1}, 0.0) == 0
    ranks.write(1, [scalar(1, loss=2.0), scalar(2, loss=1.0)])
    assert live.advance({0, 1}, 0.5) == 1
    assert live.advance({0, 1}, 2.5) == 1
    assert points(ranks, "loss") == [(1, 1.5), (2, 1.0)]
    ranks.close()


def test_a_slow_disk_is_read_by_several_threads(tmp_path, monkeypatch):
    ranks = Ranks(tmp_path, 6)
    used = set()
    read = RankStream.read

    def noted_read(self, limit):
        used.add(threading.get_ident())
        yield from read(self, limit)

    monkeypatch.setattr(RankStream, "read", noted_read)
    monkeypatch.setattr(receiver, "SLOW_S", -1.0)  # any disk is slow
    live = ranks.live()
    for step in range(1, 6):
        for rank in range(6):
            ranks.write(rank, [scalar(step, loss=float(rank))])
        live.poll(budget_s=0.0)  # not the time for all ranks
        live.advance(range(6), float(step))
    report = live.close()
    assert len(used) > 1
    assert (report.steps, report.is_exact) == (5, True)
    assert points(ranks, "loss") == [(step, 2.5) for step in range(1, 6)]
    ranks.close()


def test_samples_of_the_system_wait_until_no_rank_can_sample_at_their_step(two):
    tag = "zz_system/process/memory_gib"
    live = two.live()
    for rank in (0, 1):
        two.write(rank, [scalar(1, loss=1.0), tagged(1, {tag: 1.0})])
    live.advance({0, 1}, 0.0)
    assert live.advance({0, 1}, 2.0) == 1
    assert points(two, "loss") == [(1, 1.0)]
    assert points(two, tag) == []
    for rank in (0, 1):
        two.write(rank, [tagged(1, {tag: 2.0 + rank})])
    live.poll()
    for rank in (0, 1):
        two.write(rank, [scalar(2, loss=1.0)])
    live.advance({0, 1}, 40.0)
    assert points(two, tag) == [(1, 2.5)]
    assert points(two, f"zz_ranks/{tag}/max") == [(1, 3.0)]
    assert live.close().is_exact


def test_bulk_values_come_from_the_lowest_rank_that_has_them(two):
    live = two.live()
    graph = anf_ir_pb2.GraphProto(name="net").SerializeToString()
    both = [
        [
            Event(0, 99.0, [Value("graph", "", graph)]),
            scalar(1, loss=1.0),
            Event(
                1, 101.0, [Value("text", "first", "of 0"), Value("tensor", "weight", np.zeros(2, np.float32))]
            ),
            Event(1, 101.5, [Value("text", "first", "of 0 again")]),
            scalar(2, loss=1.0),
        ],
        [
            Event(1, 105.0, [Value("text", "first", "of 1"), Value("text", "only", "of 1")]),
            Event(1, 105.0, [Value("tensor", "part", np.zeros(2, np.float32), SHARD)]),
            scalar(1, loss=1.0),
            Event(2, 106.0, [Value("text", "first", "of 1")]),
            scalar(3, loss=1.0),
        ],
    ]
    for rank in (1, 0):
        two.write(rank, both[rank])
    live.advance({0, 1}, 0.0)
    assert points(two, "first", "text") == [(1, "of 0 again")]
    live.advance({0}, 0.0)
    live.advance({0}, 2.0)
    assert points(two, "first", "text") == [(1, "of 0 again"), (2, "of 1")]
    assert points(two, "only", "text") == [(1, "of 1")]
    report = live.close()
    assert (report.sharded, report.late) == (1, 0)
    events = [e for e in read_directory(two.run_dir.base) if is_merged(e.file)]
    assert [(e.step, e.values[0].plugin) for e in events][:2] == [(0, "graph"), (1, "scalar")]
    assert [e.wall_time for e in events if e.step == 1] == [105.0]


class TearingDisk(FullDisk):
    """Takes every third write only in part."""

    def write(self, descriptor, parts):
        half = [parts[0][: max(1, len(parts[0]) // 2)]]
        return super().write(descriptor, half if self.left % 3 == 1 else parts)


@pytest.mark.parametrize("left", [0, 4, 10])
def test_a_full_disk_delays_the_merged_run_and_nothing_is_missing_or_there_twice(left, two, caplog):
    disk = TearingDisk(left)
    live = two.live(files=disk)
    for step in range(1, 9):
        for rank in (0, 1):
            two.write(rank, [scalar(step, loss=float(rank))])
        live.advance({0, 1}, float(step))
    assert "the merged run cannot be written now" in caplog.text
    with pytest.raises(OSError, match="No space"):
        live.close()
    disk.left = 10**6
    assert live.close().is_exact
    for dialect in DIALECTS:
        assert points(two, "loss", dialect=dialect) == [(step, 0.5) for step in range(1, 9)]


class NearlyFullDisk(Files):
    def free_space(self, directory):
        return 1 << 20, 1 << 40


def test_bulk_values_that_a_nearly_full_disk_has_no_room_for_are_left_to_a_later_merge(two):
    live = two.live(files=NearlyFullDisk())
    for rank in (0, 1):
        two.write(rank, [scalar(1, loss=1.0), Event(1, 101.0, [Value("text", "note", "x")])])
    report = live.close()
    assert points(two, "loss") == [(1, 1.0)]
    assert points(two, "note", "text") == []
    assert (report.late, report.is_exact) == (1, False)


def test_a_statistic_whose_name_would_be_too_long_is_left_out(two, caplog):
    tag = "x" * (MAX_TAG_BYTES - len("zz_ranks//min"))  # there is room for its min, but not for its median
    live = two.live(key_tags=[tag])
    for rank in (0, 1):
        two.write(rank, [tagged(1, {tag: 1.0 + rank})])
    assert live.close().is_exact
    names = {name.replace(tag, "tag") for _, name in series(two.run_dir.base)}
    assert names == {"tag", "zz_ranks/tag/min", "zz_ranks/tag/max", "zz_ranks/count"}
    assert caplog.text == ""


class Killed(BaseException):
    """Ends a process that has the `Files` below."""


class Dying(Files):
    """Writes `left` bytes; then its process is dead, and does nothing any more but close its files."""

    def __init__(self, left):
        self.left = left
        self.descriptors = set()

    def create(self, path):
        descriptor = super().create(path)
        self.descriptors.add(descriptor)
        return descriptor

    def close(self, descriptor):
        self.descriptors.discard(descriptor)
        super().close(descriptor)

    def end(self):
        """As the kernel does it after the process."""
        for descriptor in [*self.descriptors]:
            self.close(descriptor)

    def write(self, descriptor, parts):
        data = b"".join(parts)
        self.left -= len(data)
        if self.left <= 0:
            super().write(descriptor, [data[: max(0, self.left + len(data))]])
            raise Killed
        return super().write(descriptor, parts)

    def truncate(self, descriptor, length):
        if self.left <= 0:
            raise Killed
        super().truncate(descriptor, length)


@pytest.mark.parametrize("seed", range(6))
def test_an_aggregator_that_is_killed_at_any_byte_is_followed_by_one_that_continues(seed, two):
    rng = random.Random(seed)
    live, deaths, dying = None, 0, Dying(rng.randrange(3000))
    for step in range(1, 13):
        for rank in (0, 1):
            note = [Value("text", "note", f"{rank} at {step}")] if step % 3 == 0 else []
            event = scalar(step, loss=float(rank), only=1.0 * step)
            two.write(rank, [event._replace(values=[*event.values, *note])])
        try:
            live = live or two.live(files=dying)
            live.advance({0, 1}, float(step))
        except Killed:
            deaths += 1
            dying.end()
            live, dying = None, Dying(rng.randrange(3000))
    dying.end()
    two.lives.clear()
    assert deaths > 1
    report = two.live().close()
    # What came late to those that were killed is unknown.
    assert (report.late, report.is_continued, report.is_exact) == (0, True, False)
    for dialect in DIALECTS:
        assert points(two, "loss", dialect=dialect) == [(step, 0.5) for step in range(1, 13)]
        assert points(two, "only", dialect=dialect) == [(step, 1.0 * step) for step in range(1, 13)]
        assert points(two, "note", "text", dialect=dialect) == [(s, f"0 at {s}") for s in (3, 6, 9, 12)]
    assert len(points_of_layouts(two)) == 1


def test_the_charts_are_written_again_when_a_statistic_is_new(two):
    live = two.live()
    for step, grown in ((1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)):
        two.write(0, [scalar(step, loss=1.0, grown=1.0)])
        two.write(1, [scalar(step, loss=1.0, grown=grown)])
        live.advance({0, 1}, float(step))
    live.close()
    layouts = points_of_layouts(two)
    assert [step for step, _ in layouts] == [1, 3]
    assert ["grown" in str(layout) for _, layout in layouts] == [False, True]
    two.live().close()
    assert points_of_layouts(two) == layouts


def points_of_layouts(ranks):
    read = read_directory(ranks.run_dir.base, TENSORBOARD)
    return [(event.step, value.data) for event in read for value in event.values if value.tag == LAYOUT_TAG]


def test_a_later_attempt_is_written_to_files_of_its_own(two):
    live = two.live()
    for rank in (0, 1):
        two.write(rank, [scalar(step, loss=1.0) for step in (1, 2, 3)])
    live.close()
    two.close()
    second = Ranks(two.run_dir.base, 2, attempt=1)
    live = second.live()
    for rank in (0, 1):
        second.write(rank, [scalar(step, loss=5.0) for step in (2, 3, 4)])
    live.advance({0, 1}, 0.0)
    assert series(two.run_dir.base, attempt=1)["scalar", "loss"] == [(2, "5.0"), (3, "5.0")]
    report = live.close()
    assert (report.steps, report.last_step, report.is_exact) == (3, 4, True)
    second.close()


def test_a_directory_with_files_of_another_writer_is_refused(two):
    write_events(two.run_dir.base, [scalar(1, loss=1.0)], run_id=two.run_id)
    with pytest.raises(RunDirError, match="that no merge wrote"):
        two.live()


def events_of_rank(rng, rank, world_size, steps):
    """What a rank records, in its order: ranks agree in some tags, do not have some, and report some late."""
    events, older = [], []
    for step in steps:
        values = {"loss": rng.random(), "lr": 0.1 * step, "flat": 1.0}
        if rng.random() < 0.9:
            values["samples"] = rng.random()
        if step > 3:
            values["grown"] = rng.choice([1.0, float(rank)])
        if rng.random() < 0.1:
            values["loss"] = float("nan")
        if rng.random() < 0.3:
            values["rare"] = rng.random()
        events.append(tagged(step, values))
        if rng.random() < 0.1:
            events.append(tagged(step, {"loss": rng.random(), "twice": 1.0}))
        if rng.random() < 0.4:
            events.append(
                Event(step, 100.5 + step, [Value("text", f"note/{rng.randrange(2)}", f"{rank} at {step}")])
            )
        if rng.random() < 0.2:
            events.append(
                Event(
                    step,
                    101.0,
                    [Value("tensor", "weight", np.full(3, rank, np.float32)), Value("scalar", "other", 2.0)],
                )
            )
        if step % 4 == 0:
            histogram = count_histogram(np.array([0.1 * step, rank], np.float32), fixed=True)
            shard = Shard(global_shape=(2 * world_size,), offset=(2 * rank,))
            events.append(Event(step, 100.6 + step, [Value("histogram", "sharded", histogram, shard)]))
        if rng.random() < 0.5:
            events.append(
                tagged(step, {"zz_system/process/memory_gib": rng.random(), "zz_system/node/load": rank})
            )
        if step % 5 == 0:
            older.append(step)
        if older and rng.random() < 0.5 and step > older[0]:
            events.append(tagged(older.pop(0), {"eval/acc": rng.random()}))
    return events


def follow_at_random(seed, path):
    """Ranks of unequal pace that are merged while they write, and afterwards, give the same; some die."""
    rng = random.Random(seed)
    ranks = Ranks(path / "run", rng.randint(1, 4) + 1)
    ranks.define({name: {"across": how} for name, how in ACROSS.items()})
    left = {}
    for rank in range(ranks.world_size):
        steps = range(1, rng.choice([6, 20, 20, 20]))  # some ranks die
        left[rank] = events_of_rank(rng, rank, ranks.world_size, steps)
    now, live = 0.0, ranks.live()
    hurries, most = rng.random() < 0.3, rng.choice([6, 30])
    while left:
        rank = rng.choice(list(left))
        count = rng.randint(1, most)
        ranks.write(rank, left[rank][:count])
        del left[rank][:count]
        if not left[rank]:
            del left[rank]
        now += rng.random() * rng.choice([0.2, 0.2, 2.0])
        if rng.random() < 0.5:
            live.poll(0.0 if hurries else math.inf)
        if rng.random() < 0.7:
            LiveMerge.advance(live, left.keys(), now)
        if rng.random() < 0.02:
            live = ranks.live()
    report = live.close()
    ranks.close()
    offline = ranks.offline(path / "offline")
    for dialect in DIALECTS:
        found = series(ranks.run_dir.base, dialect)
        for key, values in found.items():
            steps = [step for step, _ in values]
            assert steps == sorted(set(steps)), key
            assert set(steps) <= {step for step, _ in offline[key]}, key
        if report.is_exact:
            expected = offline if dialect == MINDSPORE else series(path / "offline", dialect)
            assert found.keys() == expected.keys()
            for key in expected:
                assert found[key] == expected[key], key
    assert report.steps == len(offline["scalar", "zz_ranks/count"])
    return report.is_exact


@pytest.mark.parametrize("seed", range(6))
def test_ranks_of_unequal_pace_and_restarts_give_what_a_merge_of_the_files_gives(seed, tmp_path):
    follow_at_random(seed, tmp_path)


@pytest.mark.long
def test_300_schedules_give_what_a_merge_of_the_files_gives(tmp_path):
    exact = [follow_at_random(seed, tmp_path / str(seed)) for seed in range(100, 400)]
    assert sum(exact) > 150  # else little was compared
