import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from distsummary import Topology, merge_run
from distsummary.aggregate import ended_ranks, pending, rank_columns, receiver, step_events
from distsummary.aggregate.charts import LAYOUT_TAG
from distsummary.aggregate.ended_ranks import EndedRanks
from distsummary.aggregate.merged_files import MERGED
from distsummary.errors import (
    InvalidTypeError,
    InvalidValueError,
    MissingFileError,
    NotADirectoryPathError,
    RunDirError,
)
from distsummary.events.deduplicate import ends_of_attempts
from distsummary.events.reader import read_directory, read_lineage
from distsummary.events.segments import lineage_files, segments
from distsummary.format.frames import frame, read_frames
from distsummary.format.histogram import count_histogram
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.records import (
    DIALECTS,
    MINDSPORE,
    TENSORBOARD,
    TENSORBOARD_PLUGINS,
    Event,
    Image,
    Scalars,
    Shard,
    Value,
)
from distsummary.format.scalar_rows import row_struct
from distsummary.rundir import run_dir as run_dir_module
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from tests.disks import FullDisk
from tests.event_files import write_events
from tests.refusals import refused
from tests.unit.aggregate.live_ranks import scalar

NAN = float("nan")


class Run:
    """A run whose ranks write real files."""

    def __init__(self, path, world_size=2):
        self.run_dir = RunDir(path).create()
        self.world_size = world_size
        self.attempt = -1
        self.run_id = ""
        self.start(world_size)

    def start(self, world_size=None):
        """Begin an attempt with all its ranks."""
        self.world_size = world_size or self.world_size
        self.attempt += 1
        for rank in range(self.world_size):
            place = Topology(rank=rank, world_size=self.world_size, incarnation=f"start {self.attempt}")
            self.run_id = LocalCoordinator(self.run_dir).register(place).run_id

    def write(self, rank, events, role="train", **options):
        directory = self.run_dir.writer_dir(role, rank, self.world_size)
        write_events(directory, events, run_id=self.run_id, attempt=self.attempt, rank=rank, **options)

    def merge(self, **options):
        return merge_run(self.run_dir.base, **options)

    def decoded(self, dialect=MINDSPORE, directory=None):
        """The merged records, without what a second merge may change: file and offset."""
        read = read_directory(directory or self.run_dir.base, dialect)
        return [(e.run_id, e.attempt, e.seq, e.step, e.wall_time, plain(e.values)) for e in read]

    def summaries(self, dialect=MINDSPORE):
        """The merged events of both dialects: without those for a page of TensorBoard."""
        read = read_directory(self.run_dir.base, dialect)
        return [event for event in read if event.values[0].plugin not in TENSORBOARD_PLUGINS]

    def points(self, tag, dialect=MINDSPORE, directory=None):
        read = read_directory(directory or self.run_dir.base, dialect)
        return [(e.step, v.data) for e in read for v in e.values if v.tag == tag]


def plain(values):
    """Values that == compares: arrays as lists, NaN as text."""
    return [(value.plugin, value.tag, repr(value.data)) for value in values]


def tensor(step, tag, *numbers, shard=None):
    return Event(step, 100.0, [Value("tensor", tag, np.array(numbers, np.float32), shard)])


def names(path):
    return sorted(p.name for p in path.iterdir())


@pytest.fixture
def run(nasty_tmp_path):
    return Run(nasty_tmp_path / "run")


def test_scalars_are_merged_over_all_ranks_with_their_statistics(tmp_path):
    run = Run(tmp_path, world_size=3)
    for rank, loss in enumerate((1.0, 4.0, 2.5)):
        run.write(rank, [scalar(step, loss=loss * step, acc=rank + step) for step in (1, 2)])
    report = run.merge()
    assert run.points("loss") == [(1, 2.5), (2, 5.0)]
    assert run.points("zz_ranks/loss/min") == [(1, 1.0), (2, 2.0)]
    assert run.points("zz_ranks/loss/median") == [(1, 2.5), (2, 5.0)]
    assert run.points("zz_ranks/loss/max") == [(1, 4.0), (2, 8.0)]
    assert run.points("zz_ranks/loss/argmax_rank") == [(1, 1.0), (2, 1.0)]
    assert run.points("acc") == [(1, 2.0), (2, 3.0)]
    assert run.points("zz_ranks/acc/min") == [(1, 1.0), (2, 2.0)]
    assert run.points("zz_ranks/count") == [(1, 3.0), (2, 3.0)]
    assert (report.ranks, report.missing_ranks, report.steps) == ((0, 1, 2), (), 2)
    assert report.last_steps == {0: 2, 1: 2, 2: 2}
    assert sorted(path.name for path in report.files) == [n for n in names(tmp_path) if "merged" in n]


def test_tags_that_are_asked_for_get_all_statistics(run):
    run.write(0, [scalar(1, acc=0.5)])
    run.write(1, [scalar(1, acc=1.0)])
    run.merge(key_tags=["acc"])
    assert run.points("zz_ranks/acc/max") == [(1, 1.0)]
    with pytest.raises(InvalidTypeError, match="key_tags"):
        run.merge(key_tags="acc")


def test_the_charts_for_tensorboard_are_of_the_statistics_that_the_merge_made(run):
    run.write(
        0, [Event(1, 101.0, [Value("scalar", tag, 1.0) for tag in ("acc", "loss", "lr", "zz_ranks/lr/min")])]
    )
    run.write(0, [scalar(1, loss=0.5)], role="eval")
    run.merge(key_tags=["acc"])
    [(step, layout)] = run.points(LAYOUT_TAG, TENSORBOARD)
    assert (step, run.points(LAYOUT_TAG)) == (1, [])  # MindSpore's dialect has no place for it
    found = {category.title: [chart.title for chart in category.chart] for category in layout.category}
    loss = ["loss: rank of the max", "loss: median, min to max"]  # TensorBoard begins with the last one
    assert found == {  # the ranks recorded the min of lr: it is no limit of a band
        "loss and learning rate": loss,
        "perf": ["zz_ranks/count: on how many ranks a step stands"],
        "other": ["acc: rank of the max", "acc: median, min to max"],
    }
    [(_, layout)] = run.points(LAYOUT_TAG, TENSORBOARD, run.run_dir.base / "eval")
    assert [chart.title for chart in layout.category[0].chart] == loss


def test_steps_rise_and_each_is_one_event_with_the_wall_time_of_its_latest_rank(run):
    run.write(0, [scalar(5, 50.0, loss=1.0), scalar(1, 10.0, loss=2.0), tensor(1, "w", 1.0)])
    run.write(1, [scalar(3, 300.0, loss=3.0), scalar(1, 20.0, loss=4.0)])
    run.merge()
    for dialect in DIALECTS:
        events = run.summaries(dialect)
        assert [event.step for event in events] == [1, 3, 5]
        assert [event.wall_time for event in events] == [100.0, 300.0, 50.0]
        assert [event.seq for event in events] == [1, 2, 3]


def test_tensorboards_dialect_says_the_same_as_mindspores(run):
    histogram = Value("histogram", "h", np.arange(100.0))
    image = Value("image", "i", np.zeros((1, 1, 4, 4), np.float32))
    run.write(0, [Event(1, 101.0, [histogram, image]), scalar(1, loss=1.0), scalar(2, loss=2.0)])
    run.write(1, [scalar(1, loss=2.0), scalar(2, loss=NAN)])
    run.merge()
    mindspore, tensorboard = (run.summaries(dialect) for dialect in DIALECTS)
    for mine, theirs in zip(mindspore, tensorboard, strict=True):
        assert (mine.run_id, mine.attempt, mine.seq) == (theirs.run_id, theirs.attempt, theirs.seq)
        assert (mine.step, mine.wall_time) == (theirs.step, theirs.wall_time)
        mine, theirs = plain(mine.values), plain(theirs.values)
        assert [v[:2] for v in mine] == [v[:2] for v in theirs]
        assert [v for v in mine if v[0] != "histogram"] == [v for v in theirs if v[0] != "histogram"]
    (histogram,) = run.points("h", TENSORBOARD)
    assert histogram[1].count == 100


def test_a_running_tensorboard_forgets_what_it_read_in_the_replaced_files(run):
    run.write(0, [scalar(3, loss=1.0)])
    run.merge()
    (path,) = segments(run.run_dir.base, TENSORBOARD)
    session = [tensorboard_pb2.Event.FromString(f.payload) for f in read_frames(path)][1]
    assert (session.step, session.session_log.status) == (3, tensorboard_pb2.SessionLog.START)


def test_the_merged_files_begin_when_the_run_was_created_as_those_of_its_ranks_do(run):
    run.write(0, [scalar(3, loss=1.0)])
    run.merge()
    (path,) = segments(run.run_dir.base, TENSORBOARD)
    version = tensorboard_pb2.Event.FromString(next(read_frames(path)).payload)
    assert version.wall_time == run.run_dir.read_manifest()["created"] > 0


def test_a_rank_that_misses_a_step_does_not_count_there(run):
    run.write(0, [scalar(1, loss=1.0), scalar(2, loss=3.0)])
    run.write(1, [scalar(1, loss=2.0)])
    report = run.merge()
    assert run.points("loss") == [(1, 1.5), (2, 3.0)]
    assert report.last_steps == {0: 2, 1: 1}


def test_a_rank_without_a_directory_is_named(tmp_path):
    run = Run(tmp_path, world_size=3)
    run.write(2, [scalar(1, loss=1.0)])
    for rank in (0, 1):
        shutil.rmtree(run.run_dir.writer_dir("train", rank, 3))
    report = run.merge()
    assert (report.ranks, report.missing_ranks) == ((2,), (0, 1))
    assert run.points("zz_ranks/loss/argmax_rank") == [(1, 2.0)]


def test_a_step_recorded_twice_counts_as_recorded_last(run):
    run.write(0, [scalar(1, loss=1.0), tensor(1, "w", 1.0), scalar(1, loss=5.0), tensor(1, "w", 2.0)])
    run.merge()
    assert run.points("loss") == [(1, 5.0)]
    assert [(step, data.tolist()) for step, data in run.points("w")] == [(1, [2.0])]


def test_a_restart_voids_the_older_steps_from_its_first_step_on(run):
    for rank in (0, 1):
        run.write(rank, [scalar(step, loss=1.0, old=1.0) for step in range(1, 7)])
        run.write(rank, [tensor(step, "w", 1.0) for step in (2, 4, 6)])
    run.start()
    run.write(0, [scalar(step, loss=3.0) for step in (4, 5)])
    run.write(0, [tensor(4, "w", 3.0)])
    run.write(1, [scalar(5, loss=5.0)])  # it did not come to step 4, and its old one is void as well
    report = run.merge()
    assert run.points("loss") == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 3.0), (5, 4.0)]
    assert run.points("old") == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert [(step, data.tolist()) for step, data in run.points("w")] == [(2, [1.0]), (4, [3.0])]
    assert report.attempts == (0, 1)
    assert report.superseded == 2 * (3 + 2)
    assert report.last_steps == {0: 5, 1: 5}
    assert {record[1] for record in run.decoded()} == {1}


@pytest.mark.parametrize("formats", [[DIALECTS, (TENSORBOARD,)], [(TENSORBOARD,), DIALECTS]])
def test_attempts_in_different_dialects_are_one_run(run, formats):
    for attempt, dialects in enumerate(formats):
        for rank in (0, 1):
            first = 1 + 2 * attempt
            histogram = Value("histogram", "h", np.full(3, float(attempt)))
            events = [scalar(first, loss=rank), Event(first, 1.0, [histogram]), scalar(first + 1, loss=rank)]
            run.write(rank, events, formats=dialects)
        run.start()
    report = run.merge()
    assert run.points("loss") == [(step, 0.5) for step in (1, 2, 3, 4)]
    assert [(step, histogram.min) for step, histogram in run.points("h")] == [(1, 0.0), (3, 1.0)]
    assert (report.attempts, report.superseded, report.damage) == ((0, 1), 0, ())


def test_damage_and_events_of_other_programs_are_reported_of_the_files_that_count(run):
    run.write(0, [scalar(1, loss=1.0), scalar(2, loss=1.0)])
    rank_dir = run.run_dir.rank_dirs()[0]
    [twin] = segments(rank_dir, TENSORBOARD)
    twin.write_bytes(twin.read_bytes()[:-2] + b"??")  # MindSpore's dialect holds the attempt
    foreign = b"".join(frame(tensorboard_pb2.Event(
        step=9, summary=tensorboard_pb2.Summary(value=[{"tag": "other", "simple_value": 1.0}])
    ).SerializeToString()) for _ in range(2))  # fmt: skip
    (rank_dir / "events.out.tfevents.0000000001.host").write_bytes(foreign)
    run.start()
    run.write(0, [scalar(3, loss=1.0), scalar(4, loss=1.0)], formats=(TENSORBOARD,))
    [last] = set(segments(rank_dir, TENSORBOARD)) - {twin, rank_dir / "events.out.tfevents.0000000001.host"}
    last.write_bytes(last.read_bytes()[:-2] + b"??")
    report = run.merge()
    assert [step for step, _ in run.points("loss")] == [1, 2, 3]
    assert run.points("other") == []
    assert [damage.file for damage in report.damage] == [last]


def test_files_that_grow_while_they_are_merged_move_nothing(run):
    def histogram(step):
        return Event(step, 1.0, [Value("histogram", "h", np.ones(3))])

    run.write(0, [histogram(1), histogram(2)], formats=(TENSORBOARD,))
    run.start()
    run.write(0, [histogram(3)])
    ranks = EndedRanks(run.run_dir.rank_dirs())
    run.write(0, [histogram(4)])
    assert [bulk.step for window in ranks.windows() for bulk in window.bulk] == [1, 2, 3, 4]


def test_an_attempt_ends_where_any_later_one_starts():
    attempts, steps = np.array([0, 0, 1, 1, 2, 2]), np.array([1, 9, 7, 8, 4, 5])
    assert ends_of_attempts(attempts, steps) == {0: 4.0, 1: 4.0, 2: np.inf}


def test_a_restart_with_fewer_ranks_leaves_out_the_lineage_of_those_that_are_gone(tmp_path):
    run = Run(tmp_path, world_size=3)
    for rank in range(3):
        run.write(rank, [scalar(1, loss=float(rank)), lineage_event(optimizer="Adam")])
    run.start(world_size=2)
    for rank in range(2):
        run.write(rank, [scalar(2, loss=float(rank)), lineage_event(optimizer="SGD")])
    report = run.merge()
    assert run.points("loss") == [(1, 1.0), (2, 0.5)]
    hyper = read_lineage(tmp_path).train.hyper_parameters
    assert (hyper.optimizer, hyper.device_num) == ("SGD", 2)
    assert report.conflicts == ()


def test_tensors_are_the_union_of_the_ranks_and_the_lowest_rank_wins(run):
    run.write(0, [tensor(1, "a", 1.0), tensor(3, "a", 2.0), tensor(1, "b", 3.0)])
    run.write(1, [tensor(2, "a", 4.0), tensor(1, "b", 5.0), tensor(1, "c", 6.0)])
    report = run.merge()
    assert [(step, data.tolist()) for step, data in run.points("a")] == [(1, [1.0]), (2, [4.0]), (3, [2.0])]
    assert [(step, data.tolist()) for step, data in run.points("b")] == [(1, [3.0])]
    assert [(step, data.tolist()) for step, data in run.points("c")] == [(1, [6.0])]
    assert (report.steps, report.sharded) == (3, 0)


def test_images_and_histograms_come_as_the_rank_wrote_them(run):
    picture = Image(height=2, width=2, encoded=b"\x89PNG rank 0")
    other = Image(height=2, width=2, encoded=b"\x89PNG rank 1")
    weights = np.random.default_rng(0).normal(size=500)
    run.write(0, [Event(1, 1.0, [Value("image", "i", picture), Value("histogram", "h", weights)])])
    run.write(1, [Event(1, 1.0, [Value("image", "i", other), Value("histogram", "h", weights + 9)])])
    run.merge()
    assert run.points("i") == [(1, picture)]
    rank_dir = run.run_dir.rank_dirs()[0]
    for dialect in DIALECTS:
        assert repr(run.points("h", dialect)) == repr(run.points("h", dialect, rank_dir))


def test_parts_of_a_tensor_are_counted_and_left_to_the_files_of_the_ranks(run):
    shard = Shard(global_shape=(4,), offset=(0,))
    run.write(0, [tensor(1, "w", 1.0, 2.0, shard=shard), scalar(1, loss=1.0)])
    run.write(1, [tensor(1, "w", 3.0, 4.0, shard=Shard(global_shape=(4,), offset=(2,)))])
    report = run.merge()
    assert report.sharded == 2
    assert run.points("w") == []
    assert run.points("loss") == [(1, 1.0)]


@pytest.mark.parametrize("formats", [DIALECTS, (TENSORBOARD,)])
def test_histograms_of_shards_are_put_together_where_all_shards_are_there(run, formats):
    weights = np.random.default_rng(0).normal(size=(4, 9))
    for rank in (0, 1):
        shard = Shard(global_shape=(4, 9), offset=(2 * rank, 0))
        parts = {step: weights[2 * rank : 2 * rank + 2] * step for step in (1, 2)[: 2 - rank]}
        events = [Event(s, 1.0, [Value("histogram", "w", part, shard)]) for s, part in parts.items()]
        run.write(rank, events, formats=formats)
    report = run.merge()
    assert (report.steps, report.sharded) == (1, 1)  # rank 1 did not come to step 2
    for dialect in DIALECTS:
        [(step, whole)] = run.points("w", dialect)
        assert (step, whole.count, whole.min, whole.max) == (1, 36, weights.min(), weights.max())
        assert whole.counts.tolist() == count_histogram(weights, fixed=True).counts.tolist()


def test_a_step_that_is_too_large_for_one_event_is_several(run, monkeypatch):
    monkeypatch.setattr(step_events, "EVENT_BUDGET", 3000)
    big = {rank: np.full(500, float(rank), np.float32) for rank in (0, 1)}
    for rank, data in big.items():
        run.write(rank, [Event(1, 1.0, [Value("tensor", f"w{rank}", data), Value("scalar", "loss", 1.0)])])
    report = run.merge()
    events = list(read_directory(run.run_dir.base))
    assert [event.step for event in events] == [1, 1]
    assert report.steps == 1
    assert report.refused == ()
    assert [run.points(f"w{rank}")[0][1].tolist() for rank in big] == [data.tolist() for data in big.values()]


def test_the_graph_is_that_of_the_lowest_rank_and_comes_first(run):
    for rank in (1, 0):
        graph = anf_ir_pb2.GraphProto(name=f"rank {rank}").SerializeToString()
        run.write(rank, [Event(0, 100.0 + rank, [Value("graph", "", graph)]), scalar(7, loss=1.0)])
    report = run.merge()
    first, *rest = read_directory(run.run_dir.base)
    assert anf_ir_pb2.GraphProto.FromString(first.values[0].data).name == "rank 0"
    assert [event.step for event in rest] == [7]
    assert report.steps == 1


def lineage_event(metric=None, **hyper):
    if metric is not None:
        return Event(0, 1.0, [Value("eval_lineage", "", lineage_pb2.EvaluationLineage(metric=metric))])
    train = lineage_pb2.TrainLineage(hyper_parameters=lineage_pb2.TrainLineage.HyperParameters(**hyper))
    return Event(0, 1.0, [Value("train_lineage", "", train)])


def test_the_lineage_of_the_run_is_one_file_and_its_conflicts_stand_in_the_manifest(run):
    for rank, optimizer in enumerate(("Adam", "SGD")):
        run.write(
            rank,
            [
                scalar(1, loss=1.0),
                lineage_event(optimizer=optimizer, epoch=2),
                lineage_event(metric=f'{{"acc": {rank}, "loss": {"NaN" if rank else 1.0}}}'),
            ],
        )
    report = run.merge()
    lineage = read_lineage(run.run_dir.base)
    assert len(lineage_files(run.run_dir.base)) == 1
    assert lineage.train.hyper_parameters.device_num == 2
    assert lineage.train.hyper_parameters.optimizer == "Adam"
    assert lineage.evaluation.metric == '{"acc": 0.5}'
    entry = json.loads(run.run_dir.manifest_path.read_text(), parse_constant=pytest.fail)["merged"]["train"]
    assert entry["conflicts"][0] == {
        "field": "hyper_parameters.optimizer",
        "by_rank": {"0": "Adam", "1": "SGD"},
    }
    assert entry["last_steps"] == {"0": 1, "1": 1}
    assert entry["merged_at"] > 0
    assert [c.field for c in report.conflicts] == ["hyper_parameters.optimizer", "metric.loss"]


def test_the_lineage_of_the_run_is_that_of_its_newest_attempt(run):
    def custom(key):
        return Event(
            0, 1.0, [Value("custom_lineage_data", "", lineage_pb2.UserDefinedInfo(map_str={key: key}))]
        )

    for rank in (0, 1):
        run.write(rank, [scalar(1, loss=1.0), custom("first")])
    run.start()
    run.merge()  # the newest attempt has recorded nothing yet
    assert read_lineage(run.run_dir.base).custom.user_info[0].map_str == {"first": "first"}
    run.write(0, [scalar(1, loss=2.0), custom("second")])  # rank 1 died before its first step
    run.merge()
    assert [[*one.map_str] for one in read_lineage(run.run_dir.base).custom.user_info] == [["second"]]


def test_merging_again_replaces_the_files_with_the_same_records(run):
    for rank in (0, 1):
        run.write(rank, [scalar(1, loss=rank + 0.1, acc=NAN), tensor(1, "w", 1.0), lineage_event(epoch=3)])
    first = run.merge()
    records = {dialect: run.decoded(dialect) for dialect in DIALECTS}
    lineage = read_lineage(run.run_dir.base)
    second = run.merge()
    assert {dialect: run.decoded(dialect) for dialect in DIALECTS} == records
    assert read_lineage(run.run_dir.base) == lineage
    assert set(first.files).isdisjoint(second.files)
    assert not any(path.exists() for path in first.files)
    assert all(path.exists() for path in second.files)


@pytest.mark.parametrize("left", range(7))
def test_a_merge_that_fails_leaves_the_older_merged_run_as_it_was(run, left):
    run.write(0, [scalar(step, loss=1.0) for step in (1, 2)])
    run.merge()
    records = run.decoded()
    run.write(1, [scalar(step, loss=3.0) for step in (1, 2)])
    run.write(1, [lineage_event(epoch=2)])
    before = names(run.run_dir.base)
    with pytest.raises(OSError, match="No space"):
        run.merge(files=FullDisk(left))
    assert names(run.run_dir.base) == before
    assert run.decoded() == records


def test_the_report_counts_the_steps_that_the_merged_run_did_not_have_or_had_of_fewer_ranks(run):
    run.write(0, [scalar(step, loss=1.0) for step in (1, 2, 3)])
    run.write(1, [scalar(1, loss=2.0)])
    assert run.merge().completed == 0  # there was none
    assert run.merge().completed == 0
    run.write(1, [scalar(step, loss=2.0) for step in (2, 4)])
    assert run.merge().completed == 2
    assert run.points("zz_ranks/count") == [(1, 2.0), (2, 2.0), (3, 1.0), (4, 1.0)]


def test_many_steps_are_compared_too(run):
    run.write(0, [scalar(step, loss=1.0) for step in range(300)])
    run.merge()
    run.write(1, [scalar(step, loss=1.0) for step in range(100, 400)])
    assert run.merge().completed == 300


def test_a_merge_that_would_lose_what_ranks_recorded_is_refused(run):
    for rank in (0, 1):
        run.write(rank, [scalar(step, loss=1.0) for step in (1, 2, 3)])
    run.merge()
    shutil.move(run.run_dir.rank_dirs()[1], run.run_dir.base / "elsewhere")
    before = {path: path.read_bytes() for path in run.run_dir.base.iterdir() if path.is_file()}
    with pytest.raises(RunDirError, match=r"holds 3 steps \(the first is 1\).*move the merged event files"):
        run.merge()
    assert {path: path.read_bytes() for path in run.run_dir.base.iterdir() if path.is_file()} == before
    shutil.move(run.run_dir.base / "elsewhere", run.run_dir.writer_dir("train", 1, 2))
    assert run.merge().completed == 0


def test_a_later_attempt_may_have_fewer_ranks_and_fewer_steps(run):
    for rank in (0, 1):
        run.write(rank, [scalar(step, loss=1.0) for step in (1, 2, 3, 4)])
    run.merge()
    run.start(world_size=2)
    run.write(0, [scalar(3, loss=2.0)])
    assert run.merge().completed == 0
    assert run.points("zz_ranks/count") == [(1, 2.0), (2, 2.0), (3, 1.0)]


def test_a_tag_of_the_user_with_the_name_of_ours_compares_nothing(run):
    run.write(0, [Event(1, 1.0, [Value("scalar", "zz_ranks/count", 9.0)])])
    run.merge()
    run.write(0, [Event(1, 1.0, [Value("scalar", "zz_ranks/count", 3.0)])])
    assert run.merge().completed == 0
    assert run.points("zz_ranks/count") == [(1, 3.0)]


def test_what_a_merge_left_that_died_while_publishing_goes_with_the_next(run):
    run.write(0, [scalar(1, loss=1.0), lineage_event(epoch=1)])
    first = run.merge()
    kept = {path: path.read_bytes() for path in first.files}
    run.merge()
    for path, data in kept.items():  # as if it had died before the older files were removed
        path.write_bytes(data)
    run.merge()
    merged = [name for name in names(run.run_dir.base) if "merged" in name]
    assert len(merged) == 3
    assert run.points("loss") == [(1, 1.0)]


def test_a_foreign_temporary_directory_is_not_touched(run):
    foreign = run.run_dir.base / ".tmp-of-somebody"
    foreign.mkdir()
    (foreign / "data").touch()
    run.write(0, [scalar(1, loss=1.0)])
    run.merge()
    assert (foreign / "data").exists()


def test_two_merges_at_once_are_refused_by_the_lock(run, monkeypatch):
    monkeypatch.setattr(run_dir_module, "LOCK_TIMEOUT_S", 0.0)
    run.write(0, [scalar(1, loss=1.0)])
    with run.run_dir.locked("merge"), pytest.raises(RunDirError, match="lock"):
        run.merge()
    run.merge()
    assert run.points("loss") == [(1, 1.0)]


def test_damage_of_a_rank_is_left_out_and_reported(run):
    run.write(0, [scalar(1, loss=1.0)])
    run.write(1, [scalar(1, loss=3.0), scalar(2, loss=4.0)], formats=(MINDSPORE,))
    (path,) = segments(run.run_dir.rank_dirs()[1], MINDSPORE)
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    report = run.merge()
    assert [damage.file for damage in report.damage] == [path]
    assert run.points("loss") == [(1, 2.0)]
    entry = run.run_dir.read_manifest()["merged"]["train"]
    assert entry["damage"][0]["file"] == str(path)


def test_a_run_of_one_rank_has_nothing_to_merge(tmp_path):
    run = Run(tmp_path, world_size=1)
    run.write(0, [scalar(1, loss=1.0)])
    before = names(tmp_path)
    report = run.merge()
    assert "one rank" in report.note
    assert (report.files, report.ranks) == ((), (0,))
    assert names(tmp_path) == before


def test_evaluating_ranks_are_merged_into_a_directory_of_their_own(run):
    run.write(0, [scalar(1, loss=1.0)])
    for rank in (0, 1):
        run.write(rank, [scalar(9, acc=float(rank)), lineage_event(metric='{"acc": 1}')], role="eval")
    report = run.merge()
    assert run.points("acc") == []
    target = run.run_dir.base / "eval"
    assert run.points("acc", directory=target) == [(9, 0.5)]
    assert read_lineage(target).evaluation.metric == '{"acc": 1}'
    assert report.evaluation.role == "eval"
    assert set(run.run_dir.read_manifest()["merged"]) == {"train", "eval"}


def test_a_run_without_a_manifest_is_merged_and_gets_one(run):
    run.write(0, [scalar(1, loss=1.0)])
    run.run_dir.manifest_path.unlink()
    with pytest.raises(RunDirError, match="fsck --repair"):  # it was removed
        run.merge()
    for path in run.run_dir.base.glob("rank_*/manifest.json"):
        path.unlink()
    run.merge()
    assert run.run_dir.read_manifest()["run_id"] == run.run_id
    records = run.decoded()
    run.merge()
    assert run.decoded() == records


def test_a_rank_that_has_written_nothing_yet_is_no_error(run):
    assert (run.run_dir.base / "rank_00000").is_dir()  # it has registered
    report = run.merge()
    assert (report.files, report.steps, report.last_steps) == ((), 0, {})


def test_tags_that_one_merge_declares_have_statistics_in_the_next_ones_too(run):
    for rank in (0, 1):
        run.write(rank, [scalar(1, acc=float(rank), val=float(rank))])
    run.merge(key_tags=["acc"])
    run.merge(key_tags=["val"])
    run.merge()
    assert run.points("zz_ranks/acc/max") == run.points("zz_ranks/val/max") == [(1, 1.0)]
    assert run.run_dir.read_manifest()["key_tags"] == ["acc", "val"]


def test_a_tag_that_no_rank_has_is_refused_with_the_nearest_and_the_run_stays(run):
    for rank in (0, 1):
        run.write(rank, [scalar(1, val_loss=float(rank), acc=0.0)])
    run.write(0, [scalar(1, score=2.0)], role="eval")
    run.merge(key_tags=["score"])
    before = {path: path.read_bytes() for path in run.run_dir.base.rglob("*") if path.is_file()}
    with pytest.raises(InvalidValueError, match=r"key_tags .* got 'val_los'; the nearest are val_loss$"):
        run.merge(key_tags=["acc", "val_los"])
    with pytest.raises(InvalidValueError, match=r"got 'xyz'; the nearest are acc, score, val_loss$"):
        run.merge(key_tags=["xyz"])
    assert {path: path.read_bytes() for path in run.run_dir.base.rglob("*") if path.is_file()} == before


def empty(directory):
    for path in directory.iterdir():
        path.unlink()


def damage(directory):
    for path in directory.iterdir():
        path.write_bytes(b"damaged")


@pytest.mark.parametrize(
    ("ruin", "role"), [(shutil.rmtree, "train"), (empty, "train"), (damage, "train"), (damage, "eval")]
)
def test_a_merge_that_could_only_remove_the_merged_run_is_refused(run, role, ruin):
    for one in ("train", "eval"):
        run.write(0, [scalar(1, loss=1.0), lineage_event(epoch=1)], role=one)
    run.merge()
    target = run.run_dir.writer_dir(role, 0, 1)
    ruin(run.run_dir.rank_dirs(role)[0])
    with pytest.raises(RunDirError, match="put the directories of the ranks back"):
        run.merge()
    assert run.points("loss") == run.points("loss", directory=target) == [(1, 1.0)]
    for directory in run.run_dir.rank_dirs().values():
        shutil.rmtree(directory)
    with pytest.raises(RunDirError, match="put the directories of the ranks back"):
        run.merge()


def test_a_merged_lineage_stays_until_a_rank_has_recorded_something(run):
    assert (run.run_dir.base / "rank_00000").is_dir()  # it has registered
    event = lineage_event(epoch=1)  # what the aggregator writes at the start
    write_events(run.run_dir.base, [event], run_id=run.run_id, source=MERGED)
    run.merge()
    assert read_lineage(run.run_dir.base).train is not None


def test_a_merge_by_hand_is_refused_while_another_process_aggregates_the_run(run):
    for rank in (0, 1):
        run.write(rank, [scalar(1, loss=float(rank))])
    code = "import sys; from distsummary.aggregate.aggregator import Aggregator; Aggregator(sys.argv[1])"
    started = f"{code}; print('lives', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", started, str(run.run_dir.base)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"lives\n"
        with pytest.raises(RunDirError, match=rf"aggregator \(process {process.pid} on .*wait for that"):
            run.merge()
        assert run.points("loss") == []
        process.kill()
        process.wait()
        run.merge()
    assert run.points("loss") == [(1, 0.5)]


def test_event_files_of_others_in_the_run_dir_are_not_mixed_with_the_merged(run):
    run.write(0, [scalar(1, loss=1.0)])
    write_events(run.run_dir.base, [scalar(1, loss=2.0)], run_id=run.run_id)
    with pytest.raises(RunDirError, match="move those"):
        run.merge()


def test_what_is_no_run_is_refused_with_its_path(tmp_path):
    (tmp_path / "file").touch()
    refused(MissingFileError, (lambda: merge_run(tmp_path / "absent"), r"no run dir .*absent"))
    refused(RunDirError, (lambda: merge_run(tmp_path), "is no run"))
    refused(NotADirectoryPathError, (lambda: merge_run(tmp_path / "file"), "file"))
    assert os.listdir(tmp_path) == ["file"]


def rows(steps, factor):
    """A loss at each of so many steps, packed."""
    packed = [row_struct(1).pack(1.0, step, factor * step) for step in range(steps)]
    return Scalars(("loss",), b"".join(packed))


@pytest.mark.parametrize("steps", [6_000, 12_000])
def test_a_merge_holds_a_window_of_the_steps_at_a_time(run, monkeypatch, steps):
    for module in (receiver, ended_ranks, rank_columns):
        monkeypatch.setattr(module, "WINDOW", 1000)
    held = []

    class Buffer(rank_columns.ColumnBuffer):
        def add(self, part):
            super().add(part)
            held.append(self.size)

    monkeypatch.setattr(pending, "ColumnBuffer", Buffer)
    for rank in (0, 1):
        # The first half of the steps is recorded again.
        run.write(rank, [rows(steps, 1.0), rows(steps // 2, 2.0)])
    windows = [*EndedRanks(run.run_dir.rank_dirs()).windows()]
    assert sum(len(window.scalars.steps) for window in windows) == 2 * (steps + steps // 2)
    assert max(len(window.scalars.steps) for window in windows) < 4000
    assert max(held) < 20_000  # of 6 a step; each lane gives up to some thousands of them at a time
    losses = np.concatenate([window.scalars.values for window in windows])
    assert losses.max() == steps - 1
    assert run.merge().steps == steps
    merged = np.array(run.points("loss"))
    assert merged[:, 0].tolist() == [*range(steps)]
    assert (merged[:, 1] == merged[:, 0] * np.where(merged[:, 0] < steps // 2, 2, 1)).all()
