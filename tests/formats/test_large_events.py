"""Events up to the bound of 256 MiB: written through every writer, read by every reader, with few copies."""

import sys
from pathlib import Path

import numpy as np
import pytest

import distsummary as ds
from distsummary.cli.convert import convert
from distsummary.cli.dump import dump
from distsummary.cli.fsck import fsck
from distsummary.events.async_writer import AsyncWriter
from distsummary.events.reader import read_directory
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.frames import frame
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.records import Event, Value
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from tests.formats.test_memory import peak_kib
from tests.programs import run_python
from tests.unit.events.test_reader import TENSORBOARD

MIB = 1 << 20
LARGE, LARGEST = 100 * MIB, 255 * MIB
COPIES = 1.25  # the writer's copy of the tensor, and what the interpreter takes meanwhile


def tensor(nbytes: int) -> np.ndarray:
    """Numbers at both ends of pages that the system has not filled yet."""
    array = np.zeros(nbytes // 4, np.float32)
    array[[0, -1]] = 1.5, -2.5
    return array


def is_tensor(found: np.ndarray, nbytes: int) -> bool:
    return found.shape == (nbytes // 4,) and (found[0], found[-1], found[1:-1].any()) == (1.5, -2.5, False)


@pytest.mark.parametrize("nbytes", [64 * MIB, LARGEST])
def test_a_large_tensor_is_recorded_next_to_other_values(tmp_path: Path, nbytes: int):
    with ds.SummaryRecord(tmp_path) as record:
        for step in (1, 2, 3):
            record.scalars(step, {"loss": 0.5})
            if step == 2:
                record.add_value("tensor", "t", tensor(nbytes))
                record.record(step)
        record.flush()
        assert record.health().dropped == {}
    found = [(event.step, value) for event in read_directory(tmp_path) for value in event.values]
    assert [(step, value.tag) for step, value in found] == [(1, "loss"), (2, "loss"), (2, "t"), (3, "loss")]
    assert is_tensor(found[2][1].data, nbytes)


@pytest.mark.long
def test_the_largest_event_goes_through_every_tool(tmp_path: Path):
    run_dir = RunDir(tmp_path / "run").create()
    for rank in range(2):
        topology = Topology(rank=rank, world_size=2, incarnation="job", source="test")
        joined = LocalCoordinator(run_dir).register(topology)
        spec = WriterSpec(
            directory=run_dir.writer_dir("train", rank, 2), run_id=joined.run_id, rank=rank,
            formats=("mindspore",),
        )  # fmt: skip
        writer = AsyncWriter(RankWriter(spec), spec)
        if rank == 0:
            writer.write(Event(1, 1.0, [Value("tensor", "t", tensor(LARGEST))]))
        writer.write(Event(1, 1.0, [Value("scalar", "loss", float(rank))]))
        writer.close()
        LocalCoordinator(run_dir).finish(topology, joined.attempt, {})
    merged = ds.merge_run(run_dir.base)
    assert not merged.refused
    [event] = [e for e in read_directory(run_dir.base) if e.values[0].plugin == "tensor"]
    assert is_tensor(event.values[0].data, LARGEST)
    del event
    lines = list(dump(run_dir.base))
    assert [line["value"]["shape"] for line in lines if line["plugin"] == "tensor"] == [[LARGEST // 4]] * 2
    assert not fsck(run_dir.base).findings


def test_a_large_tensor_of_another_program_is_converted(tmp_path: Path):
    event = tensorboard_pb2.Event(wall_time=1.0, step=1)
    stored = event.summary.value.add(tag="t").tensor
    stored.dtype = 1  # float32
    stored.tensor_shape.dim.add(size=LARGE // 4)
    stored.tensor_content = tensor(LARGE).tobytes()
    (tmp_path / TENSORBOARD.format(1)).write_bytes(frame(event.SerializeToString()))
    del event, stored
    [converted] = convert(tmp_path, to="mindspore").converted
    assert (converted.events, converted.refused, converted.damage) == (1, 0, [])
    [found] = read_directory(tmp_path)
    assert is_tensor(found.values[0].data, LARGE)


def copies() -> None:
    """Print how many times a large tensor lies in memory, besides the caller's, while it is written."""
    array = np.ones(LARGE // 4, np.float32)
    with ds.SummaryRecord(sys.argv[1]) as record:
        record.scalars(0, {"loss": 0.5})
        record.flush()
        before = peak_kib()
        record.add_value("tensor", "t", array)
        record.record(1)
        record.flush()
    print((peak_kib() - before) * 1024 / LARGE)


def test_a_large_tensor_is_copied_once(tmp_path: Path):
    child = run_python("-m", "tests.formats.test_large_events", tmp_path)
    assert float(child.stdout) < COPIES


if __name__ == "__main__":
    copies()
