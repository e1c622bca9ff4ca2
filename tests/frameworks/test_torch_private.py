"""A private name of torch that is gone, or has another one in its place, costs its feature alone."""

import importlib
import logging
import pkgutil
from pathlib import Path

import pytest
import torch
from torch import nn

import distsummary as ds
from distsummary.base import health as names
from distsummary.frameworks import torch_private as private
from distsummary.training.timing.torch_waits import UNMEASURED
from tests import forked

CONV = nn.Conv2d(1, 2, 3)
AGAIN = "when it is computed again"
# A private name -> its use, what that returns without it, and what `health()` says; "": nothing is lost.
USED = {
    "torch._dynamo.symbolic_convert.InstructionTranslator": (private.is_fullgraph, (), True, ""),
    "torch._C._dynamo.eval_frame.get_eval_frame_callback": (private.is_in_compiled, (), False, "compiled"),
    "torch._guards.CompileContext": (private.compilation, (), None, "is not named"),
    "torch._guards.TracingContext": (private.is_traced_now, (), False, "once too often"),
    "torch._higher_order_ops.effects._register_effectful_op": (
        private.keep_in_order, ("distsummary::tap",), False, "",
    ),
    "torch._dynamo.callback_handler": (
        private.watch_compilations, (print, print), private.no_watch, "compiles again",
    ),
    "torch._C._current_graph_task_id": (private.is_in_backward, (), False, AGAIN),
    "torch._C._are_functorch_transforms_active": (private.is_transformed, (), False, "vmap"),
    "torch.distributed.distributed_c10d._world": (private.process_groups, (), {}, "stuck rank"),
    "torch._C._distributed_c10d._dump_fr_trace": (private.flight_records, (), [], "stuck rank"),
}  # fmt: skip
# Further ones that a training uses, and those that torch itself uses in each training.
IN_TRAINING = (
    "torch.distributed._broadcast_coalesced",
    "torch.distributed.Work",
    "torch._foreach_norm",
    "torch._C._nn",
)
BY_TORCH = {"torch._C._are_functorch_transforms_active", "torch.distributed.distributed_c10d._world"}
AT_IMPORT = (
    "torch.utils._python_dispatch.TorchDispatchMode", "torch.nn.modules.batchnorm._BatchNorm",
    "torch.ops.aten._unsafe_view", "torch.utils.data.dataloader._BaseDataLoaderIter",
    "torch.utils.tensorboard._convert_np.make_np", "torch.utils.tensorboard._utils._prepare_video",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_absences(monkeypatch):
    monkeypatch.setattr(names, "_absent", {})


@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "another"])
@pytest.mark.parametrize("path", USED)
def test_without_a_private_name_its_feature_is_off_and_named_once(path, is_there, monkeypatch, caplog):
    use, arguments, instead, lost = USED[path]
    if is_there:
        monkeypatch.setattr(path, object())
    else:
        monkeypatch.delattr(path)
    if "_dump_fr" in path:
        monkeypatch.delattr("torch._C._distributed_c10d._dump_nccl_trace", raising=False)
    assert [use(*arguments), use(*arguments)] == [instead, instead]
    assert [lost in reason for reason in names.absences().errors] == [True] * bool(lost)
    assert len(caplog.records) == bool(lost)


class Net(nn.Module):
    """Taps a number and a gradient."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        x = ds.summary.gradient("back", self.layers(x))
        ds.summary.scalar("mean", x.mean())
        return x


@pytest.mark.parametrize("path", [*sorted(USED.keys() - BY_TORCH), *IN_TRAINING])
def test_a_training_records_its_numbers_without_a_private_name(path, tmp_path, monkeypatch, caplog):
    monkeypatch.delattr(path)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ds.init(tmp_path / "run", watch=model, optimizer=optimizer, norms=True) as run:
        for _ in run.steps(range(3)):
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
    found = ds.open_run(tmp_path / "run").scalars()
    assert {"loss", "mean", "back"} <= {row.tag for row in found}
    assert len([row for row in found if row.tag == "loss"]) == 3
    lost = USED[path][3] if path in USED else ""
    errors = [*run.health().errors]
    assert all(lost in error if lost else UNMEASURED in error for error in errors), errors


def test_the_same_is_computed_without_torchs_private_functions(monkeypatch):
    pair = [torch.arange(6.0).reshape(2, 3), torch.ones(2)]

    def results():
        added = private.for_each("add", pair, pair, alpha=2.0)
        added += private.for_each("mul_", [one.clone() for one in pair], 3.0)
        part = nn.Sequential(CONV)[0].requires_grad_(True)
        private.apply_to_own(part, lambda held: held * 1)
        return [*added, *private.norms_of(pair), private.flattened(pair), part.weight.detach().clone()]

    before = results()
    for path in (
        "torch._foreach_add",
        "torch._foreach_mul_",
        "torch._foreach_norm",
        "torch.nn.Module._apply",
    ):
        monkeypatch.delattr(path)
    monkeypatch.delattr("torch._C._nn.flatten_dense_tensors")
    assert all(torch.equal(old, new) for old, new in zip(before, results(), strict=True))


def test_an_operator_counts_as_written_without_its_versions(monkeypatch):
    assert private.writes_to(tensor := torch.ones(1)) == private.writes_to(tensor)

    class Without:
        pass

    assert private.writes_to(Without()) != private.writes_to(Without())


@pytest.mark.usefixtures("fork_server")
def test_every_module_of_ours_is_imported_without_private_names(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from tests.frameworks.test_torch_private import import_all\nimport_all()\n")
    done = forked.run_script(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def import_all() -> None:
    """Import our modules that use torch in a process in which these names were removed."""
    logging.disable()
    for path in (*AT_IMPORT, *USED, *IN_TRAINING):
        owner, _, name = path.rpartition(".")
        try:
            holder = importlib.import_module(owner)
        except ImportError:  # a class, or a namespace of operators
            module, _, inner = owner.rpartition(".")
            holder = getattr(importlib.import_module(module), inner)
        delattr(holder, name)
    for module in pkgutil.walk_packages(ds.__path__, "distsummary."):
        last = module.name.rpartition(".")[2]
        if last.startswith("torch_") or last in (
            "summary",
            "torch",
            "follower",
            "zero_lines",
            "gradient_norm",
        ):
            importlib.import_module(module.name)
