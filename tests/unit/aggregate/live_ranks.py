"""Ranks that write real files, for tests of the merged run while they train."""

import math
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np

from distsummary import Topology, merge_run
from distsummary.aggregate.judging import judged_files
from distsummary.aggregate.live import LiveMerge
from distsummary.aggregate.merged_files import is_merged
from distsummary.aggregate.rank_columns import RecordedScalars
from distsummary.events.reader import read_directory
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import MINDSPORE, TENSORBOARD_PLUGINS, Batch, Event, Scalars, Value
from distsummary.format.scalar_rows import row_of
from distsummary.rundir.attempts import note_fields
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir


class UnhurriedMerge(LiveMerge):
    """One that reads all there is, however long a busy machine takes for it."""

    def advance(self, living, now):
        self.poll(math.inf)
        return super().advance(living, now)


class Ranks:
    """The ranks of one attempt, which write real files."""

    def __init__(self, path: Path, world_size: int, attempt: int = 0, **options) -> None:
        self.run_dir = RunDir(path).create()
        self.world_size, self.attempt, self.options = world_size, attempt, options
        for rank in range(world_size):
            start = f"start {attempt}"
            place = Topology(rank=rank, world_size=world_size, incarnation=start)
            self.run_id = LocalCoordinator(self.run_dir).register(place).run_id
        self.lives: list[LiveMerge] = []
        self.writers = [self.writer(rank) for rank in range(world_size)]

    def writer(self, rank: int) -> RankWriter:
        directory = self.run_dir.writer_dir("train", rank, self.world_size)
        ids = {"run_id": self.run_id, "attempt": self.attempt, "rank": rank}
        return RankWriter(WriterSpec(directory=directory, **ids, **self.options))

    def write(self, rank, events):
        writer = self.writers[rank]
        items = [Scalars(*row) if (row := row_of(event)) else event for event in events]
        batch = Batch(
            run_id=self.run_id, attempt=self.attempt, rank=rank, first_seq=writer.last_seq + 1, events=items
        )
        writer.write(batch)

    def live(self, **options):
        live = UnhurriedMerge(
            self.run_dir, role="train", attempt=self.attempt, world_size=self.world_size, **options
        )
        self.lives.append(live)
        return live

    def define(self, definitions):
        note_fields(self.run_dir, ("train", self.attempt), {"define": definitions})

    def close(self):
        for live in self.lives:  # also those that a test left as a killed process leaves them
            live.abandon()
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


def judge_files(run_dir):
    """The verdicts on a run by the files of its ranks."""
    return [verdict for _, verdict in judged_files(run_dir).reported]


def merged(rule, *rows, is_late=False):
    """step -> tag -> value, by a rule of what was recorded: (tag, rank, step, value)."""
    tags = list(dict.fromkeys(row[0] for row in rows))
    which = np.array([tags.index(row[0]) for row in rows])
    ranks, steps = (np.array([row[at] for row in rows], np.int64) for at in (1, 2))
    scalars = RecordedScalars(tags, which, ranks, steps, np.array([row[3] for row in rows], np.float64))
    found = (rule.add_late if is_late else rule.add)(scalars)
    return {step: {value.tag: value.data for value in values} for step, values in found}
