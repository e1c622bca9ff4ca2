"""What the norms of every parameter take in the files: bytes a step, CPU to write, send, read and merge them.

    python -m benchmarks.norms_files [--ranks 64] [--parameters 1000] [--steps 60]

Each figure is CPU time of this process (median of rounds), not wall time.
"""

import argparse
import json
import pickle
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from distsummary.aggregate.live import LiveMerge
from distsummary.aggregate.merge import merge_run
from distsummary.events.reader import read_directory
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.encode import EventEncoder
from distsummary.format.norm_totals import NormTotals
from distsummary.format.norms import NORMS_TAG, ParameterNorms, ParameterTable
from distsummary.format.records import MINDSPORE, NORMS, Batch, Event, Value
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology

RUN = "0" * 16
PARTS = ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj", "mlp.up", "mlp.down", "norm1", "norm2")


def table_of(parameters: int, ranks: int = 1, rank: int = 0) -> ParameterTable:
    """The parameters of a transformer on one of `ranks`, over which each is split evenly."""
    names = tuple(
        f"model.layers.{row // len(PARTS)}.{PARTS[row % len(PARTS)]}.weight" for row in range(parameters)
    )
    shapes = tuple((512,) if "norm" in name else (512, 512) for name in names)
    sizes = tuple(int(np.prod(shape)) // ranks for shape in shapes)
    return ParameterTable(names, shapes, sizes, tuple(rank * size for size in sizes))


def measured(table: ParameterTable, random: np.random.Generator, ranks: int = 1) -> ParameterNorms:
    """Sums of squares as in a training; each rank measures every eighth update, or with 8 ranks its share."""
    n = len(table.names)
    turn = np.arange(n) % 8 == 0
    return ParameterNorms(
        table,
        np.exp(random.normal(2, 1, n)),
        np.exp(random.normal(-6, 2, n)),
        np.ones(n, np.bool_),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.where(turn, np.exp(random.normal(-12, 2, n)), np.nan),
        np.where(turn, np.float32(1e-4), np.float32(np.nan)),
    )


def event(step: int, norms: ParameterNorms) -> Event:
    """Norms and a loss."""
    return Event(step, 1.0 + step, [Value("scalar", "loss", 1.0), Value(NORMS, NORMS_TAG, norms)])


def cpu_us(call: Callable[[], object], times: int = 200, rounds: int = 9) -> float:
    """CPU microseconds of a call, the median of rounds."""
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(times):
            call()
        taken.append((time.process_time() - begun) / times * 1e6)
    return statistics.median(taken)


def one_rank(parameters: int, steps: int) -> dict[str, float]:
    """Bytes and CPU of one rank, a step."""
    random = np.random.default_rng(0)
    table = table_of(parameters)
    events = [event(step, measured(table, random)) for step in range(1, steps + 1)]
    encoder, totals = EventEncoder(RUN, 0, (MINDSPORE, "tensorboard")), NormTotals()
    encoded = encoder.encode(1, events)
    nbytes = sum(framed.nbytes for framed in encoded.framed[MINDSPORE])
    place = iter(range(10**9))
    found: dict[str, float] = {
        "bytes": nbytes / steps,
        "bytes of the table": sum(map(len, table.encoded)),
        "encode us": cpu_us(lambda: encoder.encode(1, [events[next(place) % steps]])),
        "totals us": cpu_us(lambda: totals.add(events[next(place) % steps].values[1].data)),
        "pickle us": cpu_us(lambda: pickle.dumps(events[next(place) % steps], protocol=5)),
    }
    with tempfile.TemporaryDirectory() as directory:
        writer = RankWriter(WriterSpec(directory=directory, run_id=RUN, formats=(MINDSPORE,)))
        writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=1, events=events))
        writer.close()
        found["read us"] = cpu_us(lambda: sum(1 for _ in read_directory(directory)), 1) / steps
    return found


def many_ranks(ranks: int, parameters: int, steps: int, batch: int, *, has_norms: bool) -> dict[str, float]:
    """CPU milliseconds a step of merging ranks that each hold a part of every parameter."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        run = RunDir(Path(place) / "run").create()
        for rank in range(ranks):
            topology = Topology(
                rank=rank, world_size=ranks, incarnation="one", mesh={"dp_shard": (rank, ranks)}
            )
            run_id = LocalCoordinator(run).register(topology).run_id
        specs = [
            WriterSpec(directory=run.writer_dir("train", r, ranks), run_id=run_id, rank=r)
            for r in range(ranks)
        ]
        writers = [RankWriter(spec) for spec in specs]
        live = LiveMerge(run, role="train", attempt=0, world_size=ranks)
        live.poll()
        tables, taken = [table_of(parameters, ranks, rank) for rank in range(ranks)], 0.0
        for first in range(1, steps + 1, batch):
            for rank, writer in enumerate(writers):
                events = [event(step, measured(tables[rank], random)) for step in range(first, first + batch)]
                if not has_norms:
                    events = [one._replace(values=one.values[:1]) for one in events]
                sent = Batch(run_id=run_id, attempt=0, rank=rank, first_seq=first, events=events)
                writer.write(sent)
            begun = time.process_time()
            live.poll(1e9)
            live.advance(range(ranks), float(first))
            taken += time.process_time() - begun
        begun = time.process_time()
        live.close()
        taken += time.process_time() - begun
        for writer in writers:
            writer.close()
        for path in [p for p in run.base.iterdir() if p.is_file() and ".merged." in p.name]:
            path.unlink()
        begun = time.process_time()
        report = merge_run(run.base)
        offline = time.process_time() - begun
        assert report.short_norms == 0
        shutil.rmtree(run.base)
    return {"live ms": taken / steps * 1e3, "merge ms": offline / steps * 1e3}


def main() -> None:
    """Print one JSON object for each setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--parameters", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=2, help="steps in what a rank sends at a time")
    given = parser.parse_args()
    for parameters in (99, given.parameters):
        figures = one_rank(parameters, given.steps)
        print(json.dumps({"parameters": parameters} | {key: round(one, 1) for key, one in figures.items()}))
    for has_norms in (False, True):
        figures = many_ranks(given.ranks, given.parameters, given.steps, given.batch, has_norms=has_norms)
        print(
            json.dumps(
                {"ranks": given.ranks, "norms": has_norms}
                | {key: round(one, 2) for key, one in figures.items()}
            )
        )


if __name__ == "__main__":
    main()
