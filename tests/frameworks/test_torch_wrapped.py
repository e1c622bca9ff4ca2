"""What is recorded of a model that is wrapped, compiled or scripted, or that cannot be compared or tested."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import distsummary as ds


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def refuse(*arguments):
    raise AssertionError("an object of the user's was tested for truth, length or equality")


class Opaque:
    """Objects that can only be used as what they are."""

    __bool__ = __len__ = __eq__ = __ne__ = __contains__ = refuse
    __hash__ = object.__hash__


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class OpaqueNet(Opaque, Net):
    pass


class OpaqueOptimizer(Opaque, torch.optim.SGD):
    pass


class OpaqueLoss(Opaque, nn.MSELoss):
    pass


class OpaqueSettings(Opaque):
    lr, depth = 0.1, 3


class OpaqueBatch(Opaque):
    x = torch.ones(8, 4)


class OpaqueLoader(Opaque):
    def __iter__(self):
        return iter([OpaqueBatch()] * 4)


class Falsy(Net):
    def __len__(self):
        return 0


def compiled(model):
    return torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def sharded(model):
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model.a, mesh=mesh)
    return fully_shard(model, mesh=mesh)


KINDS = {
    "plain": Net,
    "opaque": OpaqueNet,
    "falsy": Falsy,
    "compiled": lambda: compiled(Net()),
    "compiled opaque": lambda: compiled(OpaqueNet()),
    "compiled in place": lambda: compiled_in_place(Net()),
    "DDP": lambda: DistributedDataParallel(Net()),
    "compiled DDP": lambda: compiled(DistributedDataParallel(Net())),
    "DDP of compiled": lambda: DistributedDataParallel(compiled(Net())),
    "FSDP2": lambda: sharded(Net()),
    "compiled FSDP2": lambda: compiled(sharded(Net())),
    "traced": lambda: torch.jit.trace(Net(), torch.ones(8, 4)),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1)),
    "without parameters": lambda: nn.Sequential(nn.ReLU()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", ["modules", "ops"])
@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*lazy:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_everything_that_was_chosen_is_recorded_of_each_kind_of_model(tmp_path, kind, graph):
    torch._dynamo.reset()
    model, optimizer = KINDS[kind](), None
    held = [one for one in model.parameters() if not nn.parameter.is_lazy(one)]
    if held:
        optimizer = OpaqueOptimizer(held, lr=0.01)
    keeper = ds.ModelCheckpoint(
        directory=tmp_path / "saved", config=ds.CheckpointConfig(save_checkpoint_steps=2)
    )
    options = {name: ".*" for name in ("histograms", "gradients", "tensors")}
    with ds.init(
        tmp_path, watch=model, optimizer=optimizer, loss_fn=OpaqueLoss(), config=OpaqueSettings(),
        graph=graph, norms=bool(held), collect_freq=1, callbacks=keeper, rank=0, world_size=1, **options,
    ) as run:  # fmt: skip
        for batch in run.steps(OpaqueLoader()):
            loss = model(batch.x).square().mean()
            if kind == "lazy" and optimizer is None:
                optimizer = OpaqueOptimizer(model.parameters(), lr=0.01)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            run.log(loss=loss)
        with run.eval(OpaqueLoader()) as evaluation:
            evaluation.log(acc=1.0)
        assert (run.health().errors, run.health().dropped) == ({}, {})
    names = {"lazy": 4, "without parameters": 0}.get(kind, 4)
    tags = ds.open_run(tmp_path).tags
    assert len(tags.get("histogram", ())) == 2 * names
    assert len(tags.get("tensor", ())) == names
    assert ("norms" in tags) == bool(held)
    assert "graph" in tags
    assert len([*(tmp_path / "saved").iterdir()]) == 2


def test_a_part_that_cannot_be_recorded_is_a_finding_of_the_run_that_names_it(tmp_path, monkeypatch):
    def closed(self, *arguments):
        raise TypeError("no modules")

    monkeypatch.setattr(nn.Linear, "named_children", closed)
    with ds.init(tmp_path, watch=nn.Linear(4, 1), graph="modules", histograms=".*") as run:
        for _ in run.steps(range(2)):
            run.log(loss=1.0)
    assert list(ds.open_run(tmp_path).tags["histogram"]) == ["weight/auto", "bias/auto"]
    [found] = ds.open_run(tmp_path).verdicts
    assert (found.cause, found.level) == ("unrecorded", "warning")
    assert found.sentence == "Rank 0 does not record all that was chosen: no graph: TypeError: no modules."


def test_norms_of_a_model_that_no_optimizer_trains_are_missing_in_the_run(tmp_path):
    with ds.init(tmp_path, watch=Net(), norms=True) as run:
        for _ in run.steps(range(2)):
            run.log(loss=1.0)
    [found] = ds.open_run(tmp_path).verdicts
    assert "no norms: none were measured" in found.sentence
