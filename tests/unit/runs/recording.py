"""Runs of several ranks for the tests of reading, written by the writers themselves."""

from collections.abc import Callable, Sequence
from pathlib import Path

from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import Batch, Event, Value
from distsummary.rundir.run_dir import RunDir

RUN = "00000000000000ab"


def loss(step: int, rank: int) -> list[Value]:
    return [Value("scalar", "loss", step + rank / 4), Value("scalar", "lr", 0.5)]


def record(
    path: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    steps: Sequence[int] = range(1, 6),
    attempt: int = 0,
    first_seq: int = 1,
    values: Callable[[int, int], list[Value]] = loss,
    clock: Callable[[int, int], float] = lambda step, rank: 100.0 + step,
    **spec,
) -> Path:
    """Write steps of one rank; returns its directory."""
    directory = RunDir(path).writer_dir("train", rank, ranks)
    run_id = spec.pop("run_id", RUN)
    writer = RankWriter(WriterSpec(directory=directory, run_id=run_id, attempt=attempt, rank=rank, **spec))
    events = [Event(step, clock(step, rank), values(step, rank)) for step in steps]
    batch = Batch(run_id=run_id, attempt=attempt, rank=rank, first_seq=first_seq, events=events)
    writer.write(batch)
    writer.close()
    return directory
