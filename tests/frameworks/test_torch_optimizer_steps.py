"""The moments before and after an optimizer's step: each once, for the optimizers of the model alone."""

import gc
import os
import weakref

import pytest
import torch
import torch.optim.optimizer as of_torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.frameworks.torch_optimizer import CAPTURED, UNSEEN, OptimizerSteps, as_seen, logger
from distsummary.frameworks.torch_step_hooks import listeners

# what torch imports to compile
COMPILES = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Reported(OptimizerSteps):
    """Keeps what was reported: ("before" or "after", the names, the value of the first bias)."""

    def __init__(self, model):
        self.calls = []
        self.health = Health()
        self.failures = Failures(self.health, logger)
        super().__init__(
            model,
            before=lambda: self.calls.append(("before", *self.current.names)),
            after=lambda: self.calls.append(("after", *self.current.names)),
            failures=self.failures,
        )


@pytest.fixture(autouse=True)
def hooks():
    """Lists what listens to all optimizers, of which a test leaves nothing."""
    yield listeners
    gc.collect()
    assert not listeners()
    assert len(of_torch._global_optimizer_pre_hooks) <= 1


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


NAMES = ("0.weight", "0.bias", "1.weight", "1.bias")
ONCE = [("before", *NAMES), ("after", *NAMES)]


def backward(model):
    model.zero_grad()
    model(torch.ones(4, 3)).sum().backward()


def trained(model, optimizer, steps=1):
    for _ in range(steps):
        backward(model)
        optimizer.step()


def test_a_step_is_reported_before_and_after_it_changed_the_parameters(model):
    seen = []
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    bias = model[1].bias
    bias.data.fill_(5)
    steps = OptimizerSteps(
        model, before=lambda: seen.append(bias.item()), after=lambda: seen.append(bias.item())
    )
    trained(model, optimizer)
    steps.close()
    assert seen == [5, 1]


class Doubled(torch.optim.Adam):
    """Calls the step of its class, as optimizers do that look at the gradients first."""

    def step(self, closure=None):
        return super().step(closure)


class Around(torch.optim.Optimizer):
    """Wraps an optimizer whose groups it shares."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        return self.inner.step(closure)


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.SGD,
        torch.optim.AdamW,
        lambda parameters: torch.optim.Adam(parameters, fused=True),
        lambda parameters: (torch.optim.Adam([nn.Parameter(torch.ones(1))]), Doubled(parameters))[1],
        lambda parameters: Around(torch.optim.SGD(parameters, lr=0.1)),
    ],
    ids=["SGD", "AdamW", "fused", "subclass", "wrapper"],
)
def test_each_step_is_reported_once(model, make):
    reported = Reported(model)
    trained(model, make(model.parameters()), steps=3)
    reported.close()
    assert reported.calls == 3 * ONCE
    assert not reported.health.errors


@pytest.mark.parametrize(
    "make", [torch.optim.LBFGS, torch.optim.Adam, Doubled], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("is_named", [False, True])
def test_gradients_that_a_closure_computes_are_there_before_the_step(model, make, is_named):
    optimizer, seen, calls = make(model.parameters()), [], []
    bias = model[1].bias
    steps = OptimizerSteps(
        model,
        before=lambda: seen.append((bias.item(), bias.grad.item())),
        after=lambda: seen.append(bias.item()),
    )
    bias.data.fill_(5)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        calls.append((bias.item(), bias.grad.item()))
        return loss

    loss = optimizer.step(closure=closure) if is_named else optimizer.step(closure)
    steps.close()
    assert loss > 0
    assert seen == [calls[0], bias.item()]
    assert seen[0][0] == 5
    assert bias.item() != 5


def test_optimizers_of_other_models_are_not_reported_and_several_of_one_model_are(model):
    reported, other = Reported(model), nn.Linear(3, 1)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[1], other, model[0])]
    for optimizer in optimizers:
        trained(model, optimizer)
    reported.close()
    assert reported.calls == [
        ("before", *NAMES[2:]), ("after", *NAMES[2:]), ("before", *NAMES[:2]), ("after", *NAMES[:2]),
    ]  # fmt: skip


def test_optimizers_that_step_during_backward_are_reported_one_by_one(model):
    reported = Reported(model)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda _, of=optimizer: of.step())
    model(torch.ones(4, 3)).sum().backward()
    reported.close()
    assert sorted(reported.calls) == sorted(
        (moment, name) for moment in ("before", "after") for name in NAMES
    )


def test_parameters_that_come_later_are_reported(model):
    reported = Reported(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained(model, optimizer)
    model.append(nn.Linear(1, 1, bias=False))
    optimizer.add_param_group({"params": model[2].parameters()})
    trained(model, optimizer)
    reported.close()
    assert reported.calls == [*ONCE, ("before", *NAMES, "2.weight"), ("after", *NAMES, "2.weight")]


def test_an_optimizer_whose_parameters_join_the_model_later_is_found(model):
    reported, late = Reported(model), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(late.parameters(), lr=0.1)
    trained(model, optimizer, steps=3)
    model.append(late)
    trained(model, optimizer, steps=2)
    reported.close()
    assert reported.calls == [("before", "2.weight", "2.bias"), ("after", "2.weight", "2.bias")] * 2


def test_a_fused_optimizer_reports_the_scale_and_that_it_skips(model):
    reported, optimizer = [], torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def before():
        reported.append((float(steps.current.scale), steps.current.is_skipped()))

    steps = OptimizerSteps(model, before=before, after=lambda: None)
    for factor in (1, float("inf")):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 3)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    steps.close()
    assert reported == [(8.0, False), (8.0, True)]


def test_a_step_that_the_scaler_leaves_out_is_not_reported(model):
    reported, optimizer = Reported(model), torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(4, 3)).sum() * float("inf")).backward()
    scaler.step(optimizer)
    reported.close()
    assert reported.calls == []


def test_a_step_that_raised_does_not_hide_the_next(model):
    reported = Reported(model)
    optimizer = Doubled(model.parameters())
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    optimizer.betas = optimizer.param_groups[0].pop("betas")
    with pytest.raises(KeyError):
        trained(model, optimizer)
    optimizer.param_groups[0]["betas"] = optimizer.betas
    trained(model, optimizer)
    reported.close()
    assert reported.calls == [ONCE[0], *ONCE]


def test_an_error_in_a_hook_is_counted_and_does_not_reach_the_training(model, caplog):
    health = Health()
    steps = OptimizerSteps(
        model, before=lambda: 1 / 0, after=lambda: [][1], failures=Failures(health, logger)
    )
    trained(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    steps.close()
    assert health.errors == {
        "before the optimizer's step: ZeroDivisionError: division by zero": 2,
        "after the optimizer's step: IndexError: list index out of range": 2,
    }


def test_no_hook_is_left_when_it_is_closed_or_forgotten(model, hooks):
    reported = Reported(model)
    assert len(hooks()) == 1
    reported.close()
    assert not hooks()
    reported.close()
    forgotten = weakref.ref(OptimizerSteps(model, before=print, after=print))
    gc.collect()
    assert forgotten() is None
    assert not hooks()


def test_a_forked_child_is_reported_nothing(model):
    reported, optimizer = Reported(model), torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    child = os.fork()
    if child == 0:
        optimizer.step()
        os._exit(len(reported.calls))
    assert os.waitpid(child, 0)[1] == 0
    reported.close()


@COMPILES
def test_a_compiled_step_is_reported_and_compiled_once(model):
    torch._dynamo.reset()
    reported, optimizer = Reported(model), torch.optim.SGD(model.parameters(), lr=0.1)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    step = torch.compile(optimizer.step, backend=backend)
    for _ in range(4):
        backward(model)
        step()
    reported.close()
    assert reported.calls == 4 * ONCE
    assert len(graphs) == 1


class Whole(torch.optim.Optimizer):
    """Can be compiled with fullgraph, unlike those of torch."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad)


@COMPILES
def test_a_step_compiled_as_one_graph_still_runs_and_says_that_it_is_not_seen(model):
    torch._dynamo.reset()
    reported, optimizer = Reported(model), Whole(model.parameters(), {})
    step = torch.compile(optimizer.step, backend="eager", fullgraph=True)
    model[1].bias.data.fill_(5)
    backward(model)
    step()
    reported.close()
    assert model[1].bias.item() == 1
    assert reported.calls == []
    assert [*reported.health.errors] == [UNSEEN]


def test_a_gradient_is_seen_unscaled_and_of_a_sparse_one_its_rows():
    half = torch.tensor([65504.0, 6e-8], dtype=torch.float16)
    assert as_seen(half, torch.tensor([1024.0])).tolist() == (half.double() / 1024).tolist()
    assert as_seen(half, None).dtype == torch.float16
    rows = torch.sparse_coo_tensor(
        [[3, 1, 3]], torch.tensor([[1.0], [2.0], [4.0]]), (5, 1), check_invariants=True
    )
    assert as_seen(rows, None).tolist() == [[2], [5]]
    assert as_seen(rows, torch.tensor(2.0)).tolist() == [[1], [2.5]]


def test_the_shard_of_a_scaled_gradient_stays_a_shard():
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shards",))
        sharded = distribute_tensor(torch.arange(5.0), mesh, [Shard(0)], src_data_rank=None)
        seen = as_seen(sharded, torch.tensor(2.0))
        assert seen.to_local().tolist() == [1.5, 2]
        assert (seen.shape, seen.placements) == ((5,), (Shard(0),))
    finally:
        torch.distributed.destroy_process_group()


def test_a_step_that_is_not_due_is_not_reported(model):
    calls = []
    steps = OptimizerSteps(model, before=lambda: calls.append(1), is_due=lambda: len(calls) < 2)
    trained(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=4)
    steps.close()
    assert calls == [1, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_step_that_a_cuda_graph_captures_is_not_reported(model):
    model.cuda()
    reported, optimizer = Reported(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    reported.close()
    assert reported.calls == []
    assert [*reported.health.errors] == [CAPTURED]
