"""Tensors of every sort given to a Run, and what TensorBoard's own reader shows of them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import distsummary as ds
from distsummary.errors import NonFiniteError
from distsummary.events.reader import read_directory, read_lineage
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.records import Histogram
from tests.programs import run_python

LENGTH = 1 << 20


@pytest.fixture
def run(nasty_tmp_path: Path) -> Iterator[ds.Run]:
    run = ds.init(nasty_tmp_path / "run", rank=0, world_size=1)
    yield run
    run.close()


def values_of(run: ds.Run, plugin: str, dialect: str = "mindspore") -> dict[str, list[Any]]:
    """What the files of a closed run hold of a plugin: tag -> (step, data) in their order."""
    found: dict[str, list[Any]] = {}
    for event in read_directory(run.dir, dialect):
        for value in event.values:
            if value.plugin == plugin:
                found.setdefault(value.tag, []).append((event.step, value.data))
    return found


def tensors() -> dict[str, torch.Tensor]:
    memory = torch.arange(6.0)
    return {
        "bfloat16": memory.to(torch.bfloat16),
        "gradient": memory.clone().requires_grad_(),
        "conjugate": torch.view_as_real(torch.arange(3) * (1 + 1j)).conj(),
        "shared": memory[::2],
        "the same memory": memory.view(2, 3),
        "negative": torch._neg_view(-memory),
        "inference": torch.inference_mode()(lambda: memory + 0)(),
        "bool": memory > 2,
        "empty": memory[:0],
    }


def test_tensors_of_every_layout_are_recorded_as_they_were(run: ds.Run):
    given = tensors()
    expected = {name: tensor.detach().resolve_neg().float().numpy().copy() for name, tensor in given.items()}
    for _ in run.steps([1]):
        for name, tensor in given.items():
            run.tensor(name, tensor)
            run.histogram(name, tensor)
        with torch.no_grad():
            given["the same memory"].fill_(7)  # other tensors share it
    run.close()
    assert run.health().errors == {}
    found, histograms = values_of(run, "tensor"), values_of(run, "histogram")
    for name, array in expected.items():
        [(step, data)] = found[name]
        assert step == 1
        np.testing.assert_array_equal(data, array, err_msg=name)
        [(_, histogram)] = histograms[name]
        assert isinstance(histogram, Histogram)
        assert histogram.count == array.size


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
def test_tensors_without_numbers_are_counted_and_named(run: ds.Run):
    bad = {
        "meta": torch.empty(3, device="meta"),
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        "complex": torch.ones(3, dtype=torch.complex64),
        "sparse": torch.eye(3).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "no dimension": torch.tensor(1.0),
    }
    for _ in run.steps(range(2)):
        for name, tensor in bad.items():
            run.histogram(name, tensor)
            run.log({name: tensor} if tensor.dim() else {})
        run.log(good=torch.ones(1, 1, requires_grad=True))
    run.close()
    health = run.health()
    assert health.dropped == {"histogram": 12, "scalar": 10}
    assert set(health.errors.values()) == {2}
    assert all(any(name in reason for reason in health.errors) for name in bad)
    [reported] = [
        reason for reason in health.errors if "sparse_coo" in reason and "histogram 'sparse'" not in reason
    ]
    assert (
        "got torch.sparse_coo of shape (3, 3); convert it: value.to_dense(), and log its mean, or" in reported
    )
    assert values_of(run, "scalar")["good"] == [(1, 1.0), (2, 1.0)]


def test_every_kind_stands_in_tensorboards_reader(run: ds.Run):
    picture = torch.zeros(3, 8, 6, dtype=torch.uint8)
    lineage = lineage_pb2.UserDefinedInfo()
    lineage.user_info.add().map_str["team"] = "blue"
    text = "x" * LENGTH
    for number in run.steps(range(3)):
        run.log({"loss": 0.5, "name with / and \u00e9 \U0001f600": torch.tensor(2.0)})
        if number == 1:
            run.histogram("weights", torch.arange(4.0))
            run.image("picture", picture)
            run.image("list", [[0.0, 1.0], [0.5, 0.5]])
            run.tensor("matrix", torch.ones(2, 2))
            run.text("note", text)
            run.add_value("custom_lineage_data", None, lineage)
            break
    run.close()
    assert run.health().errors == {}
    shown = EventAccumulator(str(run.dir), size_guidance={"images": 0, "histograms": 0, "scalars": 0})
    shown.Reload()
    assert [event.step for event in shown.Scalars("loss")] == [1, 2]
    assert [event.value for event in shown.Scalars("name with / and \u00e9 \U0001f600")] == [2.0, 2.0]
    assert [event.step for event in shown.Histograms("weights")] == [2]
    assert [(event.step, event.height, event.width) for event in shown.Images("picture")] == [(2, 8, 6)]
    assert [(event.step, event.height, event.width) for event in shown.Images("list")] == [(2, 2, 2)]
    [(step, matrix)] = values_of(run, "tensor")["matrix"]  # TensorBoard has no place for it
    assert (step, matrix.tolist()) == (2, [[1.0, 1.0], [1.0, 1.0]])
    [note] = shown.Tensors("note")
    assert note.tensor_proto.string_val[0] == text.encode()
    assert values_of(run, "text")["note"] == [(2, text)]
    custom = read_lineage(run.dir).custom
    assert {"team": "blue"} in [dict(info.map_str) for info in custom.user_info]


def test_a_tensor_that_no_file_of_the_run_can_hold_is_counted(tmp_path: Path):
    with ds.init(tmp_path, rank=0, world_size=1, record=ds.Record(formats=("tensorboard",))) as run:
        for _ in run.steps([1]):
            run.tensor("matrix", torch.ones(2, 2))
    assert run.health().dropped == {"tensor": 1}
    [reason] = run.health().errors
    assert "'matrix'" in reason
    assert "formats=" in reason


@pytest.mark.parametrize("on_nan", ["warn", "stop"])
def test_nan_in_a_tensor_is_named_with_its_step_once_it_is_known(tmp_path: Path, on_nan: str):
    with ds.init(tmp_path / on_nan, rank=0, world_size=1, on_nan=on_nan) as other:
        steps = 10**6 if on_nan == "stop" else 5

        def train() -> None:
            for number in other.steps(range(steps)):
                other.log(loss=torch.tensor(float("nan") if number > 1 else 0.5))

        if on_nan == "stop":
            with pytest.raises(NonFiniteError, match="'loss' is nan at step 3 on rank 0"):
                train()
        else:
            train()
    found = other.health().errors["'loss' is nan at step 3 on rank 0"]
    assert found == 3 if on_nan == "warn" else found >= 1


def test_a_model_that_changes_in_the_middle_leaves_the_values_of_the_user_alone(tmp_path: Path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight  # they share memory
    with ds.init(tmp_path, rank=0, world_size=1, watch=model, histograms=".*", collect_freq=1) as run:
        for number in run.steps(range(4)):
            if number == 2:
                model[0] = nn.Linear(2, 3)
            run.histogram("mine", model[0].weight)
            run.log(rows=model[0].weight.shape[0])
    assert [data for _, data in values_of(run, "scalar")["rows"]] == [2.0, 2.0, 3.0, 3.0]
    assert [data.count for _, data in values_of(run, "histogram")["mine"]] == [4, 4, 6, 6]


def test_a_run_that_only_evaluates_records_its_values_with_the_training(tmp_path: Path):
    def init(role: str = "eval") -> ds.Run:
        return ds.init(tmp_path, role=role, rank=0, world_size=1)

    with init("train") as run:
        for _ in run.steps(range(5)):
            run.log(loss=0.5)
    with init() as run:
        with run.eval() as evaluation:
            for number in range(3):
                run.image("sample", torch.full((4, 4), number / 3))
            evaluation.log(accuracy=0.5)
        run.text("note", "good")
        run.log(images=3)
    assert run.health().errors == {}
    assert [step for step, _ in values_of(run, "image")["sample"]] == [5]
    assert values_of(run, "text")["note"] == [(5, "good")]
    scalars = values_of(run, "scalar")
    assert (scalars["eval/accuracy"], scalars["images"]) == ([(5, 0.5)], [(5, 3.0)])
    with init() as run, run.eval():
        run.log(again=1)
    assert values_of(run, "scalar")["again"] == [(5, 1.0)]
    with ds.init(tmp_path, rank=0, world_size=1, initial_step=4) as run, run.eval():
        run.log(before=1)
    assert values_of(run, "scalar")["before"] == [(4, 1.0)]


def test_values_of_a_run_that_fails_before_its_first_step_are_recorded(tmp_path: Path):
    run = ds.init(tmp_path, rank=0, world_size=1)
    with contextlib.suppress(ZeroDivisionError), run:
        run.text("note", "begin")
        run.log(a=1, b=2)
        raise ZeroDivisionError
    assert not run.health().dropped
    found = values_of(run, "scalar")
    assert (found["a"], found["b"]) == ([(0, 1.0)], [(0, 2.0)])
    assert values_of(run, "text")["note"] == [(0, "begin")]


def test_the_values_of_the_step_that_failed_are_recorded(tmp_path: Path):
    run = ds.init(tmp_path, rank=0, world_size=1)
    with contextlib.suppress(ZeroDivisionError), run:
        for number in run.steps(range(3)):
            run.image("sample", torch.zeros(4, 4))
            1 / (1 - number)
    assert [step for step, _ in values_of(run, "image")["sample"]] == [1, 2]


LONG_RUN = """
import sys

import psutil
import torch

import distsummary as ds

torch.set_num_threads(1)
process = psutil.Process()
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, picture = torch.randn(16, 32), torch.rand(3, 16, 16)
options = {"histograms": ".*", "graph": "modules", "config": {"lr": 0.01}, "quiet": True}
with ds.init(sys.argv[1], watch=model, optimizer=optimizer, **options) as run:
    for i in run.steps(range(12_000)):
        loss = (model(x) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log({"accuracy": 0.5}, loss=loss, lr=0.01)
        if i % 20 == 0:
            run.histogram("gradients", model[0].weight.grad)
            run.image("picture", picture)
            run.tensor("weight", model[0].weight)
            run.text("said", f"step {i}")
        if i == 7_000:  # buffers have their size, which one of them may reach late
            before = process.memory_info().rss
    grown = process.memory_info().rss - before
health = run.health()
assert not health.dropped and health.events > 8_000, health
print(grown)
"""


@pytest.mark.long
def test_the_memory_of_a_long_run_with_all_kinds_is_flat(tmp_path: Path) -> None:
    done = run_python("-c", LONG_RUN, tmp_path / "run")
    assert int(done.stdout) < 4 << 20  # the steps since then wrote 8 MB
