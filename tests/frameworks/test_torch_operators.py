"""Operators in a torch network: each value arrives exactly once, and none ends a training."""

import copy
import gc
import io
import math
import os
import pickle
from pathlib import Path

import psutil
import pytest
import torch
import torch._inductor.config
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import distsummary as ds
from distsummary.collect.values import operators, torch_operators
from distsummary.errors import InvalidTypeError, InvalidValueError, NonFiniteError
from distsummary.events.reader import read_directory
from tests.frameworks.tapped_networks import KINDS, WAYS, faults, faults_of_ranks, run_way
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler warns of code of torch

torch._inductor.config.compile_threads = 1  # in this process: worker processes would stay
# Most ways are compiled by aot_eager, in a tenth of the time of inductor, and all kinds are in one network.
BY_INDUCTOR = ("fullgraph",)
# The kinds that compiled code records in this version of torch.
COMPILED = [kind for kind in KINDS if kind != "gradient histogram" or torch_operators._IS_KEPT_IN_BACKWARD]
OF_RANKS = ("DDP", "DDP, compile", "FSDP2", "FSDP2, checkpoint, compile")


@pytest.fixture(autouse=True)
def _no_one_listens_afterwards():
    yield
    gc.collect()
    assert not operators.is_listening()
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in BY_INDUCTOR)) for name in WAYS]
)
def test_each_value_arrives_exactly_once(name):
    way, plain = WAYS[name], None
    kinds = COMPILED if way.compiled else KINDS
    if name in BY_INDUCTOR:  # its C++ takes seconds to compile for each kernel
        kinds, plain = ("scalar", "histogram", "gradient"), run_way(way._replace(compiled=""), (), "")
    found = faults(way, kinds, "inductor" if name in BY_INDUCTOR else "aot_eager", plain)
    assert found == dict.fromkeys(kinds, "")


@pytest.mark.usefixtures("fork_server")
def test_each_value_arrives_exactly_once_on_every_rank():
    found = faults_of_ranks(OF_RANKS, COMPILED, "aot_eager", start_method="forkserver")
    assert found == {name: dict.fromkeys(COMPILED, "") for name in OF_RANKS}


@pytest.mark.parametrize("name", ["compile", "checkpoint, compile", "checkpoint of a compiled block"])
def test_where_a_backward_pass_takes_no_operator_the_others_are_recorded(name, monkeypatch):
    monkeypatch.setattr(torch_operators, "_IS_KEPT_IN_BACKWARD", False)
    monkeypatch.setattr(torch_operators, "_traced", {})
    found = faults(WAYS[name], KINDS, "aot_eager")
    assert found.pop("gradient histogram").startswith("dropped {'histogram': 1}; reported [0, 0")
    assert found == dict.fromkeys(found, "dropped {'histogram': 1}")


class Net(nn.Module):
    """Taps values of every kind."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scalar, self.histogram = ds.ScalarSummary(), ds.HistogramSummary()
        self.tensor, self.image = ds.TensorSummary(), ds.ImageSummary()

    def forward(self, x):
        self.scalar("input", x.mean())
        x = self.layer(x)
        self.histogram("hidden", x)
        self.tensor("whole", x)
        self.image("picture", x)
        return ds.summary.gradient("gradient", x)


def recorded(directory: Path) -> dict[str, dict[int, float]]:
    """Tag -> step -> the number, or NaN for another kind of value."""
    found: dict[str, dict[int, float]] = {}
    for event in read_directory(directory):
        for value in event.values:
            number = value.data if value.plugin == "scalar" else math.nan
            found.setdefault(value.tag, {})[event.step] = number
    return found


def batch(step):
    return torch.full((2, 4), float(step))


def network(way):
    net = Net()
    return net if way == "eager" else torch.compile(net, backend="aot_eager", fullgraph=True)


ALL = ("input", "hidden", "whole", "picture", "gradient")
both_ways = pytest.mark.parametrize("way", ["eager", "compiled"])


@both_ways
def test_a_run_records_each_step_as_planned_and_leaves_out_evaluations(tmp_path, way):
    net = network(way)
    net(batch(99))  # before the run: not recorded, and not compiled again for it
    with ds.init(tmp_path, quiet=True, collect_freq=3, record=ds.Record(tensor_freq=4)) as run:
        for step in run.steps(range(1, 9)):
            net(batch(step)).sum().backward()
            if step in (2, 3):
                with run.eval() as evaluation:
                    net(batch(1000))
                    evaluation.log(accuracy=1.0)
            if step == 5:
                with pytest.raises(RuntimeError), run.eval():
                    raise RuntimeError("in the evaluation")
        assert run.health().dropped == {}
    found = recorded(tmp_path)
    assert found["input"] == {step: float(step) for step in range(1, 9)}
    assert found["gradient"] == dict.fromkeys(range(1, 9), pytest.approx(math.sqrt(8)))
    assert found["hidden"].keys() == found["picture"].keys() == {1, 3, 6}
    assert found["whole"].keys() == {1, 4, 8}
    assert counters["frames"]["total"] <= 1 or way == "eager"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_gradient_of_a_checkpointed_function_is_tapped_once(tmp_path, caplog, use_reentrant):
    layer, found = nn.Linear(4, 4), []

    def function(x):
        x = ds.summary.gradient("input", x)
        return ds.summary.gradient("inner", layer(x)).relu()

    with ds.init(tmp_path, quiet=True) as run:
        for _ in run.steps(range(3)):
            x = torch.rand(2, 4, requires_grad=True) * 1
            x.register_hook(lambda gradient: found.append(float(gradient.norm())))
            checkpoint(function, x, use_reentrant=use_reentrant).sum().backward()
    assert "several times" not in caplog.text
    numbers = recorded(tmp_path)
    assert numbers["input"] == {step: pytest.approx(norm) for step, norm in enumerate(found, 1)}
    assert len(numbers["inner"]) == len(found) == 3


@both_ways
def test_a_loop_that_only_logs_has_each_value_at_its_step(tmp_path, way):
    net = network(way)
    with ds.init(tmp_path, quiet=True, collect_freq=3, record=ds.Record(tensor_freq=3)) as run:
        for step in range(1, 8):
            loss = net(batch(step)).sum()
            loss.backward()
            run.log(loss=loss)
    found = recorded(tmp_path)
    assert found["input"] == {step: float(step) for step in range(1, 8)}
    assert found["hidden"].keys() == found["whole"].keys() == {1, 3, 6}


def test_in_a_loop_of_model_values_are_recorded_where_the_loss_is(tmp_path):
    net = Net()
    model = ds.Model(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    data = [(batch(step), batch(0)) for step in range(1, 8)]
    model.train(1, data, callbacks=[ds.SummaryCollector(tmp_path, 3)])
    found = recorded(tmp_path)
    assert {found[tag].keys() == {1, 3, 6} for tag in ALL} == {True}
    assert found["input"] == {1: 1.0, 3: 3.0, 6: 6.0}


def test_in_sink_mode_a_step_is_an_epoch(tmp_path):
    net = Net()
    model = ds.Model(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    data = [(batch(step), batch(0)) for step in (1, 2)]
    model.train(5, data, callbacks=[ds.SummaryCollector(tmp_path, 2)], dataset_sink_mode=True)
    assert recorded(tmp_path)["hidden"].keys() == {2, 4, 8}  # epochs 1, 2 and 4


@both_ways
def test_a_record_takes_what_was_tapped_since_the_last_one(tmp_path, way):
    net = network(way)
    with ds.SummaryRecord(tmp_path) as record:
        # In a compiled model of torch 2.8, what needs no gradient is recorded by the backward pass.
        net(batch(1)).sum().backward()
        record.add_value("scalar", "given", 0.5)
        record.add_value("histogram", "hidden", [1.0, 2.0])  # goes before the tapped one
        record.record(1)
        record.set_mode("eval")
        net(batch(2))
        record.record(2)
        record.set_mode("train")
        record.record(3)
        net(batch(4)).sum().backward()
        record.record(4, plugin_filter=lambda plugin: plugin == "scalar")
        net(batch(5))
    net(batch(6))
    found = recorded(tmp_path)
    assert found["input"] == {1: 1.0, 4: 4.0}
    assert found["given"] == {1: 0.5}
    assert found["hidden"].keys() == found["whole"].keys() == found["picture"].keys() == {1}
    [first] = [v for e in read_directory(tmp_path) for v in e.values if v.tag == "hidden"]
    assert first.data.count == 2


def test_a_tapped_nan_stops_a_training_that_is_to_stop(tmp_path):
    run = ds.init(tmp_path, quiet=True, on_nan="stop")
    steps, net = run.steps(range(3)), Net()
    net(batch(next(steps)))
    net(batch(next(steps) * math.nan))
    with pytest.raises(NonFiniteError, match=r"'input' is nan at step 2"):
        next(steps)


def test_a_numbers_precision_and_device_dtypes(tmp_path):
    values = {
        "half": torch.tensor(0.5, dtype=torch.float16), "brain": torch.tensor([0.5], dtype=torch.bfloat16),
        "double": torch.tensor(0.5, dtype=torch.float64), "count": torch.tensor(3),
        "flag": torch.tensor(True), "nan": torch.tensor(math.nan), "infinite": torch.tensor(-math.inf),
    }  # fmt: skip
    tap = torch.compile(
        lambda: [ds.summary.scalar(name, value) for name, value in values.items()], backend="aot_eager"
    )
    with ds.SummaryRecord(tmp_path) as record:
        for step in (1, 2):
            tap()
            record.record(step)
        record.record(3)  # nothing: a value does not stay
    found = recorded(tmp_path)
    for name, value in values.items():
        assert found[name] == {step: pytest.approx(float(value), nan_ok=True) for step in (1, 2)}


def test_more_names_than_one_page_of_the_buffer(tmp_path):
    def tap(x):
        for index in range(70):
            ds.summary.scalar(f"many{index}", x[index])
        return x.sum()

    compiled = torch.compile(tap, backend="aot_eager", fullgraph=True)
    with ds.SummaryRecord(tmp_path) as record:
        compiled(torch.arange(70.0))
        record.record(1)
    assert [recorded(tmp_path)[f"many{index}"][1] for index in range(70)] == [*range(70)]


def test_the_state_of_a_network_has_nothing_of_its_taps():
    assert Net().state_dict().keys() == {"layer.weight", "layer.bias"}
    assert [name for name, _ in Net().named_buffers()] == []


def test_a_gradient_of_a_leaf_and_of_a_tensor_that_is_changed_in_place(tmp_path):
    weight = torch.ones(4, requires_grad=True)
    with ds.SummaryRecord(tmp_path) as record:
        for step in (1, 2):
            ds.summary.gradient("leaf", weight).sum().backward()
            x = ds.summary.gradient("changed", weight * 1)
            x.add_(1).mul_(3)
            x.sum().backward()
            record.record(step)
    found = recorded(tmp_path)
    assert found["leaf"] == {1: 2.0, 2: 2.0}
    assert found["changed"] == {1: 6.0, 2: 6.0}  # with respect to what was tapped
    assert not weight._backward_hooks


# --- bad input ----------------------------------------------------------------------------------------------

FUNCTIONS = (
    ds.summary.scalar, ds.summary.tensor, ds.summary.image, ds.summary.histogram, ds.summary.gradient,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
@both_ways
def test_a_value_that_is_no_tensor_and_a_bad_name_raise_at_the_call(function, way):
    call = function if way == "eager" else torch.compile(lambda *given: function(*given), backend="eager")
    one = torch.ones(1)
    refused(
        InvalidTypeError,
        (lambda: call("name", 0.5), r"must be a torch\.Tensor"),
        (lambda: function(torch.rand(3), "swapped"), r"got a Tensor; the order is \(name, "),
        (lambda: call(3, one), "name of a tapped value must be str"),
    )
    refused(
        InvalidValueError,
        (lambda: call(" ", one), "name of a value"),
        (lambda: call("x" * 2000, one), "name of a value"),
    )


def test_shapes_that_mindspore_refuses_raise_at_the_call():
    refused(
        InvalidValueError,
        (lambda: ds.ScalarSummary()("name", torch.ones(2, 2)), "no or one dimension"),
        (lambda: ds.TensorSummary()("name", torch.tensor(1.0)), "at least one dimension"),
        (
            lambda: ds.summary.gradient("name", torch.ones(1), "mean"),
            r"kind must be one of .* for the gradient ",
        ),
    )


def counted(directory, tap):
    """What is dropped if `tap` is called while a record is open, and the reasons."""
    with ds.SummaryRecord(directory) as record:
        tap()
        record.record(1)
        health = record.health()
    return health.dropped, " ".join(health.errors)


@both_ways
def test_values_that_cannot_be_recorded_are_counted(tmp_path, way):
    bad = {"meta": torch.ones(3, device="meta"), "complex": torch.ones(3, dtype=torch.complex64)}
    if way == "eager":  # torch does not compile sparse tensors
        bad["sparse"] = torch.ones(3, 3).to_sparse()

    def tap():
        for name, value in bad.items():
            ds.summary.tensor(name, value)
            ds.summary.histogram(name, value)
            ds.summary.image(name, value)
        ds.summary.scalar("several", torch.ones(3))
        ds.summary.scalar("imaginary", torch.tensor(1j))
        ds.summary.scalar("nowhere", torch.ones((), device="meta"))
        ds.summary.image("picture", torch.ones(1, 2, 3, 4, 5))

    call = tap if way == "eager" else torch.compile(tap, backend="aot_eager")
    dropped, _ = counted(tmp_path, call)
    assert dropped == {"tensor": len(bad), "histogram": len(bad), "image": len(bad) + 1, "scalar": 3}


@pytest.mark.parametrize("function", [ds.summary.tensor, ds.summary.histogram, ds.summary.image])
def test_a_value_of_a_billion_elements_is_counted_without_a_copy(tmp_path, function):
    huge = torch.zeros(1).expand(1, 1, 1_000, 1_000_000)
    before = psutil.Process().memory_info().rss
    dropped, why = counted(tmp_path, lambda: function("huge", huge))
    assert list(dropped.values()) == [1]
    assert "more than the" in why
    assert psutil.Process().memory_info().rss - before < 1e8


def test_a_gradient_that_cannot_be_recorded_is_counted_and_the_backward_pass_continues(tmp_path):
    weight = torch.ones(3, requires_grad=True)

    def tap():
        ds.summary.gradient("picture", weight * 2, "image").sum().backward()

    dropped, _ = counted(tmp_path, tap)
    assert dropped == {"image": 1}
    assert weight.grad.tolist() == [2.0] * 3


def test_transformed_functions_continue_and_what_they_hide_is_counted(tmp_path):
    def loss(x):
        ds.summary.scalar("hidden", x.sum())
        ds.summary.histogram("hidden histogram", x)
        return ds.summary.gradient("hidden gradient", x).sum()

    def tap():
        torch.vmap(loss)(torch.ones(2, 3))

    dropped, _ = counted(tmp_path, tap)
    assert dropped["scalar"] == 1
    assert torch.func.grad(loss)(torch.ones(3)).tolist() == [1.0] * 3


def ran(directory, net):
    """The tags that a network records in one forward and backward pass."""
    with ds.SummaryRecord(directory) as record:
        out = net(batch(1))
        if out.requires_grad:
            out.sum().backward()
        record.record(1)
        assert record.health().dropped == {}
    return recorded(directory).keys()


def test_a_copied_pickled_and_quantized_network_is_tapped(tmp_path):
    net = Net()
    assert ran(tmp_path / "copied", copy.deepcopy(net)) == set(ALL)
    assert ran(tmp_path / "pickled", pickle.loads(pickle.dumps(net))) == set(ALL)
    quantized = torch.ao.quantization.quantize_dynamic(net, {nn.Linear})
    assert ran(tmp_path / "quantized", quantized) == set(ALL) - {"gradient"}  # it has no gradients


@pytest.mark.parametrize("how", ["traced", "scripted", "exported", "symbolically traced"])
def test_a_network_that_becomes_a_graph_is_the_same_network_without_taps(tmp_path, how):
    net = Net()
    with ds.SummaryRecord(tmp_path / "making") as record:
        if how == "traced":
            made = torch.jit.trace(net, batch(1))
        elif how == "scripted":
            made = torch.jit.script(net)
        elif how == "exported":
            made = torch.export.export(net, (batch(1),)).module()
        else:
            made = torch.fx.symbolic_trace(net)
        record.record(1)
    assert ran(tmp_path / "made", made) == set()
    assert torch.equal(made(batch(1)), net(batch(1)))
    if how in ("traced", "scripted"):
        torch.jit.save(made, file := io.BytesIO())
        file.seek(0)
        assert torch.equal(torch.jit.load(file)(batch(1)), net(batch(1)))


def test_a_forked_child_taps_nothing(tmp_path):
    with ds.SummaryRecord(tmp_path):
        child = os.fork()
        if not child:
            os._exit(operators.is_listening())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert operators.is_listening()


def test_a_record_that_is_forgotten_does_not_listen_for_ever(tmp_path):
    record = ds.SummaryRecord(tmp_path)
    assert operators.is_listening()
    record.close()
    assert not operators.is_listening()
