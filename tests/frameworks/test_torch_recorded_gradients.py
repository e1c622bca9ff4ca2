"""Histograms of gradients through ds.init and its files: what the optimizer saw, at the due steps."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import distsummary as ds
from distsummary.collect.values.torch_gradients import NO_STEP, SKIPPED
from distsummary.errors import InvalidTypeError, InvalidValueError, WriteError
from distsummary.events.reader import read_directory
from distsummary.format.histogram import count_histogram
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from tests.refusals import refused

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.ones(8, 1)


def network(**how) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to(**how)


def backward(model, factor=1.0):
    loss = (model(X) - Y).square().mean()
    (loss * factor).backward()


def recorded(path):
    """(step, name) -> the histogram of a gradient."""
    return {
        (event.step, value.tag.removeprefix("zz_gradient/")): value.data
        for event in read_directory(path)
        for value in event.values
        if value.tag.startswith("zz_gradient/")
    }


def steps_of(path):
    return sorted({step for step, _ in recorded(path)})


def assert_histogram(found, gradient):
    array = gradient.detach().float().numpy().reshape(-1)
    expected = count_histogram(array)
    assert found.counts.tolist() == expected.counts.tolist()
    assert (found.count, found.min, found.max) == (expected.count, expected.min, expected.max)


def train(run, model, optimizer, steps, *, prepare=lambda: None, every=1):
    """Train; returns (step, name) -> the gradient that the optimizer was about to use."""
    seen = {}
    for number in run.steps(range(steps)):
        backward(model)
        if number % every == every - 1:
            prepare()
            seen |= {(run.step, name): p.grad.clone() for name, p in model.named_parameters()}
            optimizer.step()
            optimizer.zero_grad()
    return seen


def test_gradients_are_recorded_as_the_optimizer_sees_them_at_the_steps_of_histograms(tmp_path):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    with ds.init(tmp_path, watch=model, gradients=".*") as run:
        clip = nn.utils.clip_grad_norm_
        seen = train(run, model, optimizer, 25, prepare=lambda: clip(model.parameters(), 0.1))
    found = recorded(tmp_path)
    assert sorted(found) == sorted(
        (step, name) for step in (1, 10, 20) for name, _ in model.named_parameters()
    )
    for key, histogram in found.items():
        assert_histogram(histogram, seen[key])
    assert (run.health().errors, run.health().dropped) == ({}, {})


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({"gradients": "2"}, ["2.bias", "2.weight"]),
        ({"gradients": ".*", "record": ds.Record(max_histograms=1)}, ["0.weight"]),
        ({}, []),
    ],
)
def test_a_pattern_chooses_at_every_collect_freq_steps(tmp_path, chosen, names):
    model = network()
    with ds.init(tmp_path, watch=model, collect_freq=2, **chosen) as run:
        train(run, model, torch.optim.SGD(model.parameters(), lr=0.1), 7)
    assert sorted(recorded(tmp_path)) == [(step, name) for step in (1, 2, 4, 6) for name in names]


def test_while_gradients_accumulate_those_of_the_step_that_the_optimizer_makes_are_recorded(tmp_path):
    model = network()
    with ds.init(tmp_path, watch=model, gradients=".*", collect_freq=10) as run:
        seen = train(run, model, torch.optim.SGD(model.parameters(), lr=0.1), 24, every=4)
        assert run.health().errors == {}
    assert steps_of(tmp_path) == [4, 12, 20]
    for key, histogram in recorded(tmp_path).items():
        assert_histogram(histogram, seen[key])


def test_accumulate_makes_one_step_of_several_batches(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ds.init(tmp_path, watch=model, gradients="2.bias", collect_freq=2) as run:
        for number in run.steps(range(8), accumulate=2):
            backward(model)
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    assert steps_of(tmp_path) == [1, 2, 4]


@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_scale_is_taken_out_and_a_skipped_step_is_counted(tmp_path, fused):
    model, plain = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ds.init(tmp_path, watch=model, gradients=".*", collect_freq=3) as run:
        for _ in run.steps(range(4)):
            optimizer.zero_grad()
            backward(model, scaler.scale(torch.tensor(math.inf if run.step == 1 else 1.0)))
            scaler.step(optimizer)
            scaler.update()
        errors = run.health().errors
    backward(plain)
    found = recorded(tmp_path)
    assert steps_of(tmp_path) == [2, 3]
    for name, parameter in plain.named_parameters():
        assert_histogram(found[2, name], parameter.grad)
    assert errors == ({SKIPPED: 1} if fused else {})


def test_where_no_optimizer_of_the_model_steps_that_is_said_and_counted(tmp_path):
    model = network()
    with ds.init(tmp_path, watch=model, gradients=".*", collect_freq=3) as run:
        train(run, model, torch.optim.SGD(network().parameters(), lr=0.1), 7)
        health = run.health()
    assert health.errors == {NO_STEP: 2}  # at steps 3 and 6
    assert health.dropped == {"histogram": 8}
    assert recorded(tmp_path) == {}


def test_that_all_parameters_are_frozen_is_said_and_nothing_is_dropped(tmp_path, caplog):
    model = network().requires_grad_(False)
    with ds.init(tmp_path, watch=model, gradients=".*", collect_freq=3) as run:
        for _ in run.steps(range(7)):
            run.log(loss=float(model(X).mean()))
        assert run.health().dropped == {}
        assert run.health().errors == {}
    assert caplog.text.count("all parameters of the model are frozen") == 1


def test_optimizers_of_parts_of_the_model_each_report_their_gradients(tmp_path):
    model = network()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))
    with ds.init(tmp_path, watch=model, gradients=".*", collect_freq=1) as run:
        for _ in run.steps(range(2)):
            model.zero_grad()
            backward(model)
            first.step()
            model[0].zero_grad()
            second.step()
            first.step()  # a second time: its gradients of this step are recorded already
    assert len(recorded(tmp_path)) == 8


def test_small_floats_scalars_missing_and_sparse_gradients(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(1000, 2, sparse=True)
            self.small = nn.Linear(2, 2, dtype=torch.bfloat16)
            self.number = nn.Parameter(torch.tensor(2.0))
            self.unused = nn.Linear(2, 2)

        def forward(self, tokens):
            return self.small(self.table(tokens).bfloat16()).sum() * self.number

    model = Odd()
    dense = [p for name, p in model.named_parameters() if name != "table.weight"]
    optimizers = torch.optim.SGD(dense, lr=0.0), torch.optim.SparseAdam(model.table.parameters())
    with ds.init(tmp_path, watch=model, gradients=".*") as run:
        for _ in run.steps(range(1)):
            model(torch.tensor([3, 3, 7])).backward()
            for optimizer in optimizers:
                optimizer.step()
        assert run.health().errors == {}
    found = {name: histogram for (_, name), histogram in recorded(tmp_path).items()}
    assert sorted(found) == ["number", "small.bias", "small.weight", "table.weight"]
    assert_histogram(found["small.weight"], model.small.weight.grad)
    assert_histogram(found["number"], model.number.grad)
    rows = model.table.weight.grad.coalesce().values()
    assert rows.shape == (2, 2)
    assert_histogram(found["table.weight"], rows)


def test_equal_gradients_are_divided_among_the_ranks(tmp_path):
    names = []
    for rank in range(2):
        model = network()
        topology = Topology(rank=rank, world_size=2)
        run_dir = tmp_path / str(rank)
        collector = ds.SummaryCollector(
            run_dir,
            gradients=".*",
            topology=topology,
            coordinator=ds.coordinator(RunDir(run_dir), Topology()),
        )
        with ds.Run(callbacks=collector, network=model, topology=topology) as run:
            train(run, model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
        names += [name for path in run_dir.rglob("rank*") if path.is_dir() for _, name in recorded(path)]
    assert sorted(names) == sorted(dict(network().named_parameters()))


def test_shards_of_fsdp2_are_recorded_also_if_optimizers_step_while_other_layers_are_whole(tmp_path):
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        model, whole = network(), []
        for part in (model[0], model[2], model):
            mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
            fully_shard(part, mesh=mesh, reshard_after_forward=False)
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)

            def step(p, optimizer=optimizer):
                whole.extend(name for name, p in model.named_parameters() if not isinstance(p, DTensor))
                optimizer.step()

            parameter.register_post_accumulate_grad_hook(step)
        topology = Topology(rank=1, world_size=2)
        coordinator = ds.coordinator(RunDir(tmp_path / "run"), Topology())
        collector = ds.SummaryCollector(
            tmp_path / "run", gradients=".*", topology=topology, coordinator=coordinator
        )
        with ds.Run(callbacks=collector, network=model, topology=topology) as run:
            for _ in run.steps(range(1)):
                backward(model)
        assert whole  # else this shows nothing
    finally:
        torch.distributed.destroy_process_group()
    [path] = RunDir(tmp_path / "run").rank_dirs().values()
    values = [v for event in read_directory(path) for v in event.values if v.tag.startswith("zz_gradient/")]
    shards = {value.tag: value.shard.global_shape for value in values}
    assert shards == {f"zz_gradient/{name}": p.shape for name, p in network().named_parameters()}


def test_model_records_them_too_also_in_sink_mode(tmp_path):
    for is_sink in (False, True):
        path, model = tmp_path / str(is_sink), network()
        collector = ds.SummaryCollector(path, collect_freq=2, gradients="2")
        trained = ds.Model(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
        trained.train(3, [(X, Y)] * 4, callbacks=[collector], dataset_sink_mode=is_sink)
        # in sink mode an epoch counts as a step, and is recorded at the last step that it has
        expected = [4, 8] if is_sink else [1, 2, 4, 6, 8, 10, 12]
        assert steps_of(path) == expected


def test_a_gradient_that_cannot_be_copied_is_counted_and_the_training_continues(tmp_path):
    model = nn.Linear(2, 1, dtype=torch.complex64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ds.init(tmp_path, watch=model, gradients=".*") as run:
        for _ in run.steps(range(1)):
            model(torch.ones(1, 2, dtype=torch.complex64)).abs().sum().backward()
            before = model.bias.clone()
            optimizer.step()
        errors = run.health().errors
    assert not torch.equal(model.bias, before)
    assert any("gradient of bias: InvalidTypeError" in reason for reason in errors)


def test_with_raise_exception_a_failure_is_raised_at_the_end_of_the_step_not_by_the_optimizer(tmp_path):
    model = nn.Linear(2, 1, dtype=torch.complex64)
    optimizer, done = torch.optim.SGD(model.parameters(), lr=0.1), []
    options = {"gradients": "bias", "record": ds.Record(raise_exception=True)}

    def fail():
        with ds.init(tmp_path, watch=model, **options) as run:
            for _ in run.steps(range(2)):
                model(torch.ones(1, 2, dtype=torch.complex64)).abs().sum().backward()
                optimizer.step()
                done.append(run.step)

    with pytest.raises(WriteError, match="gradient of"):
        fail()
    assert done == [1]


def test_what_a_step_begun_by_log_saw_is_dropped_and_counted(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ds.init(tmp_path, watch=model, gradients=".*", collect_freq=1)
    for step in range(1, 4):
        backward(model)
        optimizer.step()
        run.log(step=step, loss=1.0)
    dropped = run.health().dropped
    run.close()
    assert recorded(tmp_path) == {}
    assert dropped == {"histogram": 8}


class Plain:
    def __init__(self):
        self.parameters = {"w": np.ones(2)}


def test_what_cannot_be_chosen_is_refused_at_once(tmp_path):
    def chosen(watch, gradients):
        return lambda: ds.init(tmp_path, watch=watch, gradients=gradients)

    def collected():
        run = ds.Run(callbacks=ds.SummaryCollector(tmp_path, gradients=".*"), network=Plain())
        with run:
            next(iter(run.steps(range(1))))

    refused(
        InvalidValueError,
        (chosen(None, ".*"), r"gradients='.\*' looks into the watched model, got watch=None"),
        (chosen(nn.Linear(1, 1), "("), "gradients must be a regular expression"),
    )
    refused(
        InvalidTypeError,
        (chosen(Plain(), ".*"), "gradients looks into a torch.nn.Module, got a network of type Plain"),
        (chosen(nn.Linear(1, 1), True), "gradients must be a pattern .* got True of type bool"),
        (collected, r"gradients looks into a torch\.nn\.Module"),
    )
