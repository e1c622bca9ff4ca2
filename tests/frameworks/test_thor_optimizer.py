"""THOR as an optimizer of torch: rates, precision, compiled models, state, and unusual input."""

import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn

import distsummary as ds
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.thor import THOR, ConvertNetUtils
from tests.refusals import refused

torch._inductor.config.compile_threads = 1  # in this process: worker processes would stay


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3)
    )


def batch(step: int = 0, size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, 1, 6, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def train(
    net: nn.Module, optimizer: THOR, steps: range, call: Callable[..., Any] | None = None
) -> list[float]:
    losses = []
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy((call or net)(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def make(net: nn.Module, **others: Any) -> THOR:
    return THOR(net, **({"lr": 0.01, "damping": 0.1, "batch_size": 8, "frequency": 4} | others))


def equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def test_split_indices_change_nothing() -> None:
    nets = network(), network()
    for net, given in zip(nets, ({}, {"split_indices": [1, 2]}), strict=True):
        train(net, make(net, **given), range(5))
    assert equal(*nets)


# --- rates --------------------------------------------------------------------------------------------------


def test_rates_are_numbers_lists_functions_and_schedulers(caplog: pytest.LogCaptureFixture) -> None:
    of_steps = [0.1, 0.2, 0.3]
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(other, 1, gamma=0.5)
    net = network()
    optimizer = make(net, lr=torch.tensor(of_steps, dtype=torch.float64), damping=scheduler)
    seen = []
    for step in range(4):
        train(net, optimizer, range(step, step + 1))
        other.step()
        scheduler.step()
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["damping"]))
    assert seen == [(0.1, 1.0), (0.2, 0.5), (0.3, 0.25), (0.3, 0.125)]
    assert [one.message for one in caplog.records if "holds 3 numbers" in one.message] != []
    by_function = make(net, lr=lambda step: 0.1 / (step + 1))
    train(net, by_function, range(2))
    assert by_function.param_groups[0]["lr"] == 0.05


def test_bad_arguments_are_named() -> None:
    def made(net: nn.Module | None = None, **named: Any) -> Any:
        return lambda: make(net or network(), **named)

    wrong: Any = []
    refused(
        InvalidTypeError,
        (made(lr=None), "learning_rate is missing"),
        (made(damping="0.1"), "damping must be a number"),
        (made(batch_size=1.5), "batch_size"),
        (made(loss_scale="auto"), "loss_scale"),
        (made(decay_filter="bias"), "decay_filter"),
        (lambda: THOR(wrong, 0.1, 0.1), "net must be"),
        (lambda: ConvertNetUtils().convert_to_thor_net(wrong), "net must be"),
    )
    refused(
        InvalidValueError,
        (made(learning_rate=0.1), "another name"),
        (made(damping=-1), "damping must be finite and >= 0"),
        (made(damping=[]), "damping must hold"),
        (made(momentum=-0.1), "momentum"),
        (made(frequency=0), "frequency"),
        (made(loss_scale=0), "loss_scale"),
        (made(refresh="never"), "refresh"),
        (made(average="all"), "average"),
        (made(average="inverses", refresh="trace"), "leave one of them out"),
        (made(network().requires_grad_(False)), "net must have a parameter"),
        (made(nn.Sequential(nn.LazyLinear(3))), "call the network with a batch first"),
    )


# --- precision ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unscales", [False, True])
def test_a_grad_scaler_changes_no_step(unscales: bool) -> None:
    plain, scaled = network().double(), network().double()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizers = make(plain), make(scaled, loss_scale=scaler if unscales else 1.0)
    for step in range(8):
        x, y = batch(step)
        for net, optimizer in zip((plain, scaled), optimizers, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x.double()), y)
            if net is plain:
                loss.backward()
                optimizer.step()
                continue
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_scale_that_is_hidden_is_refused() -> None:
    net = network()
    optimizer, scaler = make(net), torch.amp.GradScaler("cpu")
    scaler.scale(net(batch()[0]).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(InvalidValueError, match="loss_scale=scaler"):
        scaler.step(optimizer)


def test_a_step_that_overflows_changes_nothing_and_leaves_no_factors() -> None:
    net = network()
    optimizer, scaler = make(net), torch.amp.GradScaler("cpu", init_scale=8.0)
    before = copy.deepcopy(net.state_dict())
    parameters = dict(net.named_parameters())
    scaler.scale((net(batch()[0]) * math.inf).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(before[name], parameters[name]) for name in parameters)
    assert scaler.get_scale() == 4.0
    for step in range(2):
        optimizer.zero_grad()
        x, y = batch(step)
        scaler.scale(nn.functional.cross_entropy(net(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert "inverse_a" in optimizer.state[net[4].weight]


def test_factors_are_float32_under_autocast_and_for_bfloat16() -> None:
    net = network()
    optimizer = make(net)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(net(batch()[0]), batch()[1])
        loss.backward()
    optimizer.step()
    assert optimizer.state[net[0].weight]["inverse_a"].dtype == torch.float32
    small = nn.Linear(6, 3).bfloat16()
    other = make(small)
    small(torch.randn(8, 6).bfloat16()).square().mean().backward()
    other.step()
    assert other.state[small.weight]["inverse_g"].dtype == torch.float32
    saved = copy.deepcopy(other.state_dict())
    other.load_state_dict(saved)
    assert torch.equal(other.state[small.weight]["inverse_g"], saved["state"][0]["inverse_g"])


# --- compiled, checkpointed, differentiated twice ----------------------------------------------------------


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of inductor itself
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_takes_the_same_steps(backend: str) -> None:
    plain, compiled = network().double(), network().double()
    optimizers = make(plain), make(compiled)
    call = torch.compile(compiled, backend=backend, fullgraph=True)
    losses = [
        train(net, optimizer, range(6), lambda x, run=run: run(x.double()))
        for net, optimizer, run in zip((plain, compiled), optimizers, (plain, call), strict=True)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-8)
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)
    assert all("inverse_a" in optimizers[1].state[compiled[at].weight] for at in (0, 4, 5))


def test_activation_checkpointing_is_observed_once() -> None:
    plain, spared = network(), network()
    optimizers = make(plain), make(spared)

    def call(x: Tensor) -> Tensor:
        for part in (spared[:2], spared[2:]):
            x = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
        return x

    train(plain, optimizers[0], range(6))
    train(spared, optimizers[1], range(6), call)
    for one, other in zip(plain.parameters(), spared.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_gradient_penalty_is_observed_in_the_last_backward_pass_alone() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer = make(net)
    x = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    out = net(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    layer = optimizer._layers[net[0].weight]
    assert layer.take() is None
    (out.square().mean() + slope.square().mean()).backward()
    assert layer._sums is not None
    optimizer.step()
    assert bool(net[0].weight.isfinite().all())


def test_what_has_no_backward_pass_is_not_observed() -> None:
    net = network()
    optimizer = make(net)
    with torch.no_grad():
        net(batch()[0])
    net(batch()[0])
    assert all(layer.take() is None for layer in optimizer._layers.values())


# --- state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refresh", ["frequency", "trace"])
def test_a_state_dict_continues_bit_for_bit(refresh: str) -> None:
    straight, first, second = network(), network(), network(1)
    train(straight, make(straight, refresh=refresh), range(12))
    optimizer = make(first, refresh=refresh)
    train(first, optimizer, range(6))
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict()))
    later = make(second, refresh=refresh)
    second.load_state_dict(saved[0])
    later.load_state_dict(saved[1])
    train(second, later, range(6, 12))
    assert equal(straight, second)


# --- unusual input ------------------------------------------------------------------------------------------


def test_a_closure_is_called_once_and_observed() -> None:
    net = network()
    optimizer, calls = make(net), []

    def closure() -> Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(batch()[0]), batch()[1])
        loss.backward()
        return loss

    net(batch()[0]).sum().backward()  # not of the step
    assert float(optimizer.step(closure).detach()) > 0
    assert len(calls) == 1
    other = network()
    train(other, make(other), range(1))
    net_parameters, others = dict(net.named_parameters()), dict(other.named_parameters())
    for name in others:
        torch.testing.assert_close(net_parameters[name], others[name])


def test_a_layer_without_input_or_gradient_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    net = Two()
    optimizer = make(net, frequency=1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    named = [one.message for one in caplog.records if "unused" in one.message]
    assert len(named) == 1
    assert "momentum SGD" in named[0]
    assert optimizer.curvature().skipped == {"unused": 3}
    optimizer.zero_grad()
    net.unused(torch.full((8, 4), math.nan)).sum().backward()
    optimizer.step()  # skipped for another reason, which counts as well
    assert optimizer.curvature().skipped == {"unused": 4, "used": 1}


def test_a_factor_with_nan_leaves_the_old_inverse(caplog: pytest.LogCaptureFixture) -> None:
    net = network()
    optimizer = make(net, frequency=1)
    train(net, optimizer, range(1))
    before = optimizer.state[net[0].weight]["inverse_a"].clone()
    optimizer.zero_grad()
    x, y = batch()
    nn.functional.cross_entropy(net(x * math.nan), y).backward()
    optimizer.step()
    assert torch.equal(optimizer.state[net[0].weight]["inverse_a"], before)
    assert optimizer.curvature().skipped == {"0": 1, "4": 1, "5": 1}
    assert [one.message for one in caplog.records if "NaN, infinite or singular" in one.message]


def test_a_singular_factor_is_skipped() -> None:
    net = nn.Linear(4, 2)
    optimizer = make(net, damping=0.0)
    net(torch.zeros(8, 4)).square().mean().backward()
    optimizer.step()
    assert "inverse_a" not in optimizer.state[net.weight]
    assert optimizer.curvature().skipped == {"Linear": 1}


def test_images_of_several_sizes_in_a_step_are_skipped() -> None:
    net = nn.Conv2d(1, 2, 3)
    optimizer = make(net)
    (net(torch.randn(4, 1, 5, 5)).mean() + net(torch.randn(4, 1, 6, 6)).mean()).backward()
    optimizer.step()
    assert "inverse_a" not in optimizer.state[net.weight]


def test_a_module_that_is_called_twice_adds_up_and_tied_kinds_have_no_factors() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.twice, self.out = (
                nn.Embedding(9, 4),
                nn.Linear(4, 4),
                nn.Linear(4, 9, bias=False),
            )
            self.out.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.twice(self.twice(self.words(ids)).tanh()))

    net = Tied()
    optimizer = make(net)
    assert [layer.name for layer in optimizer._layers.values()] == ["twice"]
    ids = torch.randint(0, 9, (8, 3))
    nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten()).backward()
    sums = optimizer._layers[net.twice.weight]._sums
    assert sums.count == 2 * 8 * 3
    optimizer.step()


def test_a_batch_of_another_size_than_batch_size_is_trained_on() -> None:
    net = network()
    optimizer = make(net, frequency=2)
    for size in (8, 3, 1, 5):
        net.eval() if size == 1 else net.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(batch(size, size)[0]), batch(size, size)[1]).backward()
        optimizer.step()
    assert all(bool(parameter.isfinite().all()) for parameter in net.parameters())


def test_sparse_gradients_of_an_embedding_are_those_of_a_dense_one() -> None:
    nets = [nn.Sequential(nn.Embedding(7, 3, sparse=sparse), nn.Linear(3, 2)) for sparse in (False, True)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net in nets:
        optimizer = make(net)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.tensor([[1, 2, 2]] * 8)).square().mean().backward()
            optimizer.step()
    assert equal(*nets)


def test_other_parameters_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "distsummary"):
        make(network())
    [named] = [one.message for one in caplog.records if "momentum SGD updates" in one.message]
    assert "1.weight" in named
    assert "2 of 8" in named


def test_the_papers_rule_refreshes_what_changed_and_stops_the_rest() -> None:
    net = network()
    optimizer = make(net, lr=0.0, frequency=1, refresh="trace")
    for _ in range(3):  # the same batch with the same weights: the traces do not change
        optimizer.zero_grad()
        nn.functional.cross_entropy(net.eval()(batch()[0]), batch()[1]).backward()
        optimizer.step()
    states = [optimizer.state[weight] for weight in optimizer._layers]
    assert [(state["refreshes"], state["is_stopped"]) for state in states] == [(1, 1)] * 3
    assert not any(layer.is_due for layer in optimizer._layers.values())
    changing = network()
    other = make(changing, lr=0.01, frequency=1, refresh="trace")
    train(changing, other, range(4))
    assert sum(other.state[weight]["refreshes"] for weight in other._layers) > 3


# --- Model and its converter --------------------------------------------------------------------------------


def test_a_model_with_a_loss_scale_takes_the_same_steps() -> None:
    nets = [network().double() for _ in range(2)]
    data = [(x.double(), y) for x, y in map(batch, range(6))]
    for net, manager in zip(
        nets, (None, ds.FixedLossScaleManager(128, drop_overflow_update=False)), strict=True
    ):
        optimizer = make(net, loss_scale=1.0 if manager is None else 128.0)
        given = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": optimizer, "metrics": {"acc"}}
        model = ds.Model(net, **given)
        converted = ds.ConvertModelUtils.convert_to_thor_model(
            model=model, network=net, loss_scale_manager=manager, **given
        )
        assert converted is not model
        converted.fit(1, data, data[:2])
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_model_of_another_optimizer_is_returned_as_it_is() -> None:
    net = network()
    model = ds.Model(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), 0.1))
    convert = ds.ConvertModelUtils.convert_to_thor_model
    assert convert(model, net, optimizer=torch.optim.SGD(net.parameters(), 0.1)) is model
    with pytest.raises(InvalidTypeError, match="model must be"):
        convert(net, net)  # type: ignore[arg-type]


# --- the converter of networks ------------------------------------------------------------------------------


def test_a_converted_network_keeps_modules_state_and_outputs() -> None:
    net = network().eval()
    modules, state = [*net.modules()], copy.deepcopy(net.state_dict())
    x, _ = batch()
    before = net(x)
    ConvertNetUtils().convert_to_thor_net(net)
    ConvertNetUtils().convert_to_thor_net(net)
    assert [len(module._forward_hooks) for module in net] == [1, 0, 0, 0, 1, 1]
    optimizer = make(net)  # its first step is observed
    assert all(layer.is_due for layer in optimizer._layers.values())
    assert torch.equal(net(x), before)
    assert [*net.modules()] == modules
    torch.testing.assert_close(net.state_dict(), state, rtol=0, atol=0)
    ConvertNetUtils().convert_back(net)
    assert not any(module._forward_hooks for module in net)
    assert torch.equal(net(x), before)


def test_a_copy_of_a_converted_network_is_not_observed() -> None:
    net = network()
    optimizer = make(net)
    copied = copy.deepcopy(net)
    copied(batch()[0]).sum().backward()
    assert all(layer.take() is None for layer in optimizer._layers.values())


def test_layers_of_detection_networks_and_frozen_ones_are_left_out() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.deep, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

    assert [layer.name for layer in make(Named())._layers.values()] == ["deep"]
