"""The merged run of ranks that still train, beside the merge of their files."""

import random
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from distsummary import Topology, merge_run
from distsummary.aggregate.live import LiveMerge
from distsummary.aggregate.merged_files import is_merged
from distsummary.coordination import LocalCoordinator
from distsummary.format.digest import digest_of
from distsummary.format.records import (
    DIALECTS,
    MINDSPORE,
    TENSORBOARD_PLUGINS,
    Batch,
    Event,
    Scalars,
    Value,
)
from distsummary.format.scalar_rows import row_of
from distsummary.reading.reader import read_directory
from distsummary.run_dir import RunDir
from distsummary.writing.spec import WriterSpec
from distsummary.writing.writer import RankWriter


class Ranks:
    """The ranks of one attempt, which write real files; each `write` returns its digest."""

    def __init__(self, path: Path, world_size: int, attempt: int = 0) -> None:
        self.run_dir = RunDir(path).create()
        self.world_size, self.attempt = world_size, attempt
        for rank in range(world_size):
            place = Topology(rank=rank, world_size=world_size, incarnation=f"start {attempt}")
            self.run_id = LocalCoordinator(self.run_dir).register(place).run_id
        self.writers = [self.writer(rank) for rank in range(world_size)]

    def writer(self, rank: int) -> RankWriter:
        directory = self.run_dir.writer_dir("train", rank, self.world_size)
        return RankWriter(
            WriterSpec(directory=directory, run_id=self.run_id, attempt=self.attempt, rank=rank)
        )

    def write(self, rank, events, *, is_placed=True):
        writer = self.writers[rank]
        items = [Scalars(*row) if (row := row_of(event)) else event for event in events]
        batch = Batch(
            run_id=self.run_id,
            attempt=self.attempt,
            rank=rank,
            first_seq=writer.last_seq + 1,
            events=items,
        )
        writer.write(batch)
        path = writer.path(MINDSPORE)
        place = (path.name, path.stat().st_size) if is_placed and path.exists() else ()
        return digest_of(batch, "train", *place)

    def live(self, **options):
        return LiveMerge(
            self.run_dir,
            role="train",
            attempt=self.attempt,
            world_size=self.world_size,
            **options,
        )

    def close(self):
        for writer in self.writers:
            writer.close()

    def offline(self, path):
        """The merged series of the rank files."""
        shutil.copytree(self.run_dir.base, path)
        for merged in filter(is_merged, [p for p in path.iterdir() if p.is_file()]):
            merged.unlink()
        merge_run(path)
        return series(path)


def series(directory, dialect=MINDSPORE, attempt=None):
    """(plugin, tag) -> [(step, value)] in the order of the file; values as text, so that NaN equals NaN."""
    found = defaultdict(list)
    for event in read_directory(directory, dialect):
        if is_merged(event.file) and attempt in (None, event.attempt):
            for value in event.values:
                if value.plugin not in TENSORBOARD_PLUGINS and value.plugin != "graph":
                    found[value.plugin, value.tag].append((event.step, repr(value.data)))
    return dict(found)


def scalar(step, wall_time=None, **values):
    wall_time = 100.0 + step if wall_time is None else wall_time
    return Event(step, wall_time, [Value("scalar", tag, value) for tag, value in values.items()])


def tagged(step, values):
    return Event(step, 100.0 + step, [Value("scalar", tag, value) for tag, value in values.items()])


def points(ranks, tag, plugin="scalar", dialect=MINDSPORE):
    return [(step, eval(value)) for step, value in series(ranks.run_dir.base, dialect).get((plugin, tag), ())]


@pytest.fixture
def two(tmp_path):
    ranks = Ranks(tmp_path / "run", 2)
    yield ranks
    ranks.close()


def test_a_step_is_written_when_every_living_rank_has_told_a_later_one(two):
    live = two.live()
    live.poll()
    for step in (1, 2, 3):
        live.add(two.write(0, [scalar(step, loss=float(step))]))
    assert live.advance({0, 1}, 0.0) == 0
    live.add(two.write(1, [scalar(1, loss=3.0), scalar(2, loss=4.0)]))
    assert live.advance({0, 1}, 0.5) == 1
    assert points(two, "loss") == [(1, 2.0)]
    assert points(two, "perf/ranks") == [(1, 2.0)]
    live.close()
    assert points(two, "loss") == [(1, 2.0), (2, 3.0), (3, 3.0)]
    assert points(two, "perf/ranks") == [(1, 2.0), (2, 2.0), (3, 1.0)]


def events_of_rank(rng, rank, steps):
    """What a rank records, in its order: ranks agree in some tags, lack some, and tell some late."""
    events, older = [], []
    for step in steps:
        values = {"loss": rng.random(), "lr": 0.1 * step, "flat": 1.0}
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
                    [Value("tensor", "weight", np.full(3, rank, np.float32)), Value("scalar", "beside", 2.0)],
                )
            )
        if rng.random() < 0.5:
            events.append(tagged(step, {"system/process/memory_gib": rng.random(), "system/node/load": rank}))
        if step % 5 == 0:
            older.append(step)
        if older and rng.random() < 0.5 and step > older[0]:
            events.append(tagged(older.pop(0), {"eval/acc": rng.random()}))
    return events


@pytest.mark.parametrize("seed", range(6))
def test_ranks_of_unequal_pace_lost_digests_and_restarts_give_what_a_merge_of_the_files_gives(seed, tmp_path):
    rng = random.Random(seed)
    ranks = Ranks(tmp_path / "run", rng.randint(1, 4) + 1)
    sends = rng.random() < 0.7
    is_placed = rng.random() < 0.8
    left = {}
    for rank in range(ranks.world_size):
        steps = range(1, rng.choice([6, 20, 20, 20]))  # some ranks die
        left[rank] = events_of_rank(rng, rank, steps)
    late, now, live = [], 0.0, ranks.live()
    live.poll()
    restarts = 0
    while left:
        rank = rng.choice(list(left))
        count = rng.randint(1, 6)
        digest = ranks.write(rank, left[rank][:count], is_placed=is_placed)
        del left[rank][:count]
        if not left[rank]:
            del left[rank]
        if sends:
            fate = rng.random()
            if fate < 0.1:
                late.append(digest)
            elif fate > 0.2:  # the others are lost
                for _ in range(rng.choice([1, 1, 2])):
                    live.add(digest)
        if late and rng.random() < 0.1:
            live.add(late.pop(0))
        now += rng.random() * 0.2
        if rng.random() < 0.5:
            live.poll()
        if rng.random() < 0.7:
            live.advance(left.keys(), now)
        if rng.random() < 0.05:
            restarts += 1
            live = ranks.live()
    report = live.close()
    ranks.close()
    offline = ranks.offline(tmp_path / "offline")
    base = ranks.run_dir.base
    for dialect in DIALECTS:
        found = series(base, dialect)
        for key, values in found.items():
            steps = [step for step, _ in values]
            assert steps == sorted(set(steps)), key
            assert set(steps) <= {step for step, _ in offline[key]}, key
        if report.is_exact:
            expected = offline if dialect == MINDSPORE else series(tmp_path / "offline", dialect)
            assert found.keys() == expected.keys()
            for key in expected:
                if key[0] == "scalar" or not restarts:
                    assert found[key] == expected[key], key
    assert report.steps == len(offline["scalar", "perf/ranks"])
