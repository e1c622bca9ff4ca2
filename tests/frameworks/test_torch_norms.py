"""The norms of every parameter at every step, measured around the steps of real optimizers."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import distsummary as ds
from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.collect.values.torch_norms import TURNS, Norms, StepNorms
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.events.reader import read_directory
from distsummary.format.norms import ParameterNorms, ParameterTable
from distsummary.format.own_tags import NONFINITE_TEXT
from distsummary.frameworks.torch_step_hooks import listeners
from distsummary.training.callbacks import CallbackParams
from distsummary.training.finite import FiniteCheck
from distsummary.training.step_context import StepContext
from distsummary.training.timing.phases import OPTIMIZER, REST, Phases
from tests.frameworks.named_gpu import Hurried, NamedGpu, OnGpu, gpu, to_gpu

__all__ = ["gpu"]


class Loop:
    """A training of one rank, whose norms are taken at the end of each step."""

    def __init__(self, model: nn.Module, *, on_nan: str = "warn") -> None:
        self.model = model
        self.health = Health()
        failures = Failures(self.health, logging.getLogger("tests"))
        self.finite = FiniteCheck(on_nan, 3, lambda: failures)
        self.params, self.context = CallbackParams(cur_step_num=0), StepContext()
        self.norms = Norms(model, self.params, self.context, finite=self.finite, failures=failures)
        self.texts: list[str] = []

    def step(self, *optimizers: Callable[[], object], late: bool = False) -> ParameterNorms | None:
        """Call what steps the optimizers, and return the norms of the step."""
        self.params.cur_step_num += 1
        for step in optimizers:
            step()
        values = self.norms.values(self.params, self.params.cur_step_num, StepContext(ended_late=late))
        self.texts += [value.data for value in values if value.tag == NONFINITE_TEXT]
        found = [value.data for value in values if value.plugin == "norms"]
        return found[0].result() if found and isinstance(found[0], StepNorms) else (found or [None])[0]


@pytest.fixture
def loop() -> Iterator[Callable[..., Loop]]:
    loops: list[Loop] = []

    def make(*args: object, **kwargs: object) -> Loop:
        loops.append(Loop(*args, **kwargs))  # type: ignore[arg-type]
        return loops[-1]

    yield make
    for made in loops:
        made.norms.close()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 3))


def give_gradients(model: nn.Module, factor: float = 1.0) -> None:
    loss = model(torch.linspace(-1, 1, 80).reshape(2, 40)).square().sum() * factor
    loss.backward()


def squares(tensor: Tensor) -> float:
    return float(tensor.detach().double().square().sum())


def test_norms_are_those_of_the_gradient_before_and_the_weight_after_the_step(loop: Callable[..., Loop]):
    model = net()
    training = loop(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    give_gradients(model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    norms = training.step(optimizer.step)
    named = dict(model.named_parameters())
    assert norms.table == ParameterTable(
        names=tuple(named),
        shapes=((60, 40), (60,), (3, 60), (3,)),
        local_sizes=(2400, 60, 180, 3),
        starts=(0, 0, 0, 0),
    )
    gradients = [squares(one.grad) for one in named.values() if one.grad is not None]
    assert norms.gradient_sums.tolist() == pytest.approx(gradients, rel=1e-6)
    assert np.sqrt(norms.gradient_sums.sum()) == pytest.approx(0.5, rel=1e-4)  # the clipped one
    assert norms.weight_sums.tolist() == pytest.approx([squares(one) for one in named.values()], rel=1e-6)
    assert norms.has_gradient.all()
    assert not norms.gradient_nonfinite.any()
    assert not norms.weight_nonfinite.any()
    [place] = np.flatnonzero(np.isfinite(norms.update_sums))  # one of four parameters
    change = named[norms.table.names[place]].detach() - before[norms.table.names[place]]
    assert norms.update_sums[place] == pytest.approx(squares(change), rel=1e-6)
    assert norms.update_max[place] == pytest.approx(float(change.abs().max()))


def test_each_update_is_measured_at_every_eighth_step(loop: Callable[..., Loop]) -> None:
    model = net()
    training = loop(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = np.zeros(4, int)
    for _ in range(16):
        optimizer.zero_grad()
        give_gradients(model)
        before = [one.detach().clone() for one in model.parameters()]
        norms = training.step(optimizer.step)
        changes = [squares(one - old) for one, old in zip(model.parameters(), before, strict=True)]
        measured = ~np.isnan(norms.update_sums)
        assert measured.tolist() == (~np.isnan(norms.update_max)).tolist()
        assert norms.update_sums[measured].tolist() == pytest.approx(np.array(changes)[measured], rel=1e-5)
        seen += measured
    assert seen.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("every", [2, 7])
def test_an_optimizer_that_steps_once_in_several_steps_measures_all_updates(loop, every):
    model = net()
    training = loop(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = np.zeros(4, int)
    for step in range(1, 8 * every + 1):
        give_gradients(model)
        norms = training.step(*([optimizer.step] if step % every == 0 else []))
        assert (norms is not None) == (step % every == 0)
        seen += 0 if norms is None else ~np.isnan(norms.update_sums)
    assert seen.tolist() == [1, 1, 1, 1]


def test_ranks_measure_the_same_updates_also_after_one_missed_a_step(loop: Callable[..., Loop]) -> None:
    models = [net(), net()]
    ranks = [loop(model) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    seen: list[list[list[bool]]] = [[], []]
    for step in range(1, 3 * TURNS):
        for rank, (training, optimizer) in enumerate(zip(ranks, optimizers, strict=True)):
            give_gradients(training.model)
            is_missed = (step, rank) == (5, 1)  # as when GradScaler skips it on one rank
            norms = training.step(*([] if is_missed else [optimizer.step]))
            if norms is not None and step > 6:
                seen[rank].append(np.isnan(norms.update_sums).tolist())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_floats(loop: Callable[..., Loop], dtype: torch.dtype) -> None:
    model = net().to(dtype)
    training = loop(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for one in model.parameters():
        one.grad = torch.randn(one.shape).to(dtype)
    before = [one.detach().double() for one in model.parameters()]
    norms = training.step(optimizer.step)
    after = list(model.parameters())
    assert norms.weight_sums.tolist() == pytest.approx([squares(one) for one in after], rel=1e-5)
    changes = [squares(one - old) for one, old in zip(after, before, strict=True)]
    measured = ~np.isnan(norms.update_sums)
    assert measured.any()
    assert norms.update_sums[measured].tolist() == pytest.approx(np.array(changes)[measured], rel=1e-5)


def test_frozen_unused_and_tied_parameters(loop: Callable[..., Loop]) -> None:
    model = net()
    model.add_module("unused", nn.Linear(2, 2, bias=False))
    model.add_module("tied", nn.Linear(40, 60))
    model[0].bias.requires_grad_(False)
    assert isinstance(model.tied, nn.Linear)
    model.tied.weight = model[0].weight
    model.tied.bias = None  # type: ignore[assignment]
    training = loop(model)
    model[0](torch.ones(2, 40)).sum().backward()
    norms = training.step(
        torch.optim.SGD((one for one in model.parameters() if one.requires_grad), lr=1.0).step
    )
    assert norms.table.names == ("0.weight", "0.bias", "2.weight", "2.bias", "unused.weight")
    assert norms.has_gradient.tolist() == [True, False, False, False, False]
    assert norms.gradient_sums[1:].tolist() == [0, 0, 0, 0]
    assert (norms.weight_sums > 0).all()


def test_parameters_that_are_added_in_the_middle(loop: Callable[..., Loop]) -> None:
    model = net()
    training = loop(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    give_gradients(model)
    first = training.step(optimizer.step)
    model.requires_grad_(False)
    model.add_module("lora", nn.Linear(3, 3, bias=False))
    assert isinstance(model.lora, nn.Linear)
    optimizer.add_param_group({"params": [model.lora.weight]})
    optimizer.zero_grad()
    give_gradients(model)
    second = training.step(optimizer.step)
    third = training.step(optimizer.step)
    assert second.table.names == (*first.table.names, "lora.weight")
    assert second.has_gradient.tolist() == [False] * 4 + [True]
    assert third.table is second.table  # written once


def test_several_optimizers_and_steps(loop: Callable[..., Loop]) -> None:
    model = net()
    training = loop(model)
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)
    give_gradients(model)
    expected = [squares(one.grad) for one in model.parameters() if one.grad is not None]

    def change_and_step() -> None:  # what the second optimizer's loss adds to the first one's gradients
        for one in model[0].parameters():
            one.grad = torch.full_like(one, 100.0)
        second.step()

    norms = training.step(first.step, change_and_step)
    assert norms.gradient_sums.tolist() == pytest.approx(expected, rel=1e-5)
    assert norms.weight_sums.tolist() == pytest.approx([squares(one) for one in model.parameters()], rel=1e-6)
    assert training.step(lambda: None) is None  # no optimizer stepped
    norms = training.step(first.step, first.step)
    assert norms.has_gradient.tolist() == [True, True, False, False]
    assert norms.weight_sums.tolist() == pytest.approx([squares(one) for one in model.parameters()], rel=1e-6)


def test_a_step_that_raises_is_left_out(loop: Callable[..., Loop]) -> None:
    model = net()
    training = loop(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    give_gradients(model)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert training.step() is None
    assert training.step(optimizer.step) is not None


def test_an_end_of_a_step_that_was_seen_late_drops_the_norms(loop: Callable[..., Loop]) -> None:
    model = net()
    training = loop(model)
    give_gradients(model)
    assert training.step(torch.optim.SGD(model.parameters(), lr=0.1).step, late=True) is None
    assert training.health.dropped == {"norms": 1}


@pytest.mark.parametrize("foreach", [False, True])
def test_the_scale_of_the_loss_is_taken_out(loop: Callable[..., Loop], foreach: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = net()
    training = loop(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=not foreach)
    give_gradients(model)
    expected = [squares(one.grad) for one in model.parameters() if one.grad is not None]
    optimizer.zero_grad()
    give_gradients(model, float(scaler.scale(torch.tensor(1.0))))
    norms = training.step(lambda: scaler.step(optimizer))
    scaler.update()
    assert norms.gradient_sums.tolist() == pytest.approx(expected, rel=1e-5)
    first = next(model.parameters())
    first.grad[0, 0] = torch.inf
    assert training.step(lambda: scaler.step(optimizer)) is None  # the scaler leaves the step out
    assert not training.health.errors


def test_the_first_parameter_that_is_not_finite_is_named_once(loop: Callable[..., Loop]) -> None:
    model = net()
    training = loop(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for bad in (False, True, True):
        optimizer.zero_grad()
        give_gradients(model)
        if bad:
            model[2].weight.grad[0, :5] = torch.nan
        norms = training.step(optimizer.step)
    assert norms.gradient_nonfinite.tolist()[2] == 60  # of the third step: one output is not finite
    gradient = "the gradient of '2.weight' has 5 of 180 elements that are not finite at step 2 on rank 3"
    weight = "the weight of '2.weight' has 5 of 180 elements that are not finite at step 2 on rank 3"
    assert training.texts == [f"{gradient}\n\n{weight}"]
    assert training.health.errors == {gradient: 2, weight: 2}
    assert training.finite.error is None


def test_on_nan(loop: Callable[..., Loop]) -> None:
    def train(on_nan: str) -> Loop:
        model = net()
        training = loop(model, on_nan=on_nan)
        give_gradients(model, float("inf"))
        training.step(torch.optim.SGD(model.parameters(), lr=0.1).step)
        return training

    assert "rank 3 (and those of 3 other" in str(train("stop").finite.error)
    ignoring = train("ignore")
    assert not ignoring.texts
    assert not ignoring.health.errors


def test_what_has_no_norm_is_said_once(loop: Callable[..., Loop], caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    model.register_parameter("codes", nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False))
    training = loop(model)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    for _ in range(2):
        give_gradients(model)
        norms = training.step(optimizer.step)
        model.append(nn.Linear(3, 3))  # listed again
    assert "codes" not in norms.table.names
    loop(nn.ReLU())
    reported = [record.getMessage() for record in caplog.records]
    assert reported == [
        "norms: 'codes' is left out: torch.uint8 holds no real numbers",
        "norms: the model has no parameters, so there is nothing to measure",
    ]


def test_a_training_without_optimizer_is_said(loop: Callable[..., Loop]) -> None:
    training = loop(net())
    assert training.step(lambda: give_gradients(training.model)) is None
    training.norms.close()
    training.norms.close()
    [reason] = training.health.errors.items()
    assert "call optimizer.step() inside of run.steps" in reason[0]
    assert reason[1] == 1


def test_norms_need_a_torch_model(tmp_path: object) -> None:
    with pytest.raises(InvalidValueError, match=r"pass the model: ds.init\(..., watch=model"):
        ds.init(f"{tmp_path}/a", norms=True)
    arrays = type("Arrays", (), {"parameters": {"w": np.ones(3)}})()
    with pytest.raises(InvalidTypeError, match=r"norms looks into a torch\.nn\.Module"):
        ds.init(f"{tmp_path}/a", norms=True, watch=arrays)
    with pytest.raises(InvalidValueError, match="as network= to a Run of your own"):
        next(ds.Run(callbacks=[ds.SummaryCollector(f"{tmp_path}/a", norms=True)]).steps([1]))


@pytest.mark.parametrize("on_nan", ["warn", "stop"])
def test_a_run_records_norms_and_names_what_is_not_finite(tmp_path: Path, on_nan: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    stops = (
        pytest.raises(ds.NonFiniteError, match="at step 3 on rank 0") if on_nan == "stop" else nullcontext()
    )
    options = {"system_metrics": False, "quiet": True}
    with stops, ds.init(tmp_path / "a", watch=model, norms=True, on_nan=on_nan, **options) as run:  # type: ignore[arg-type]
        for step in run.steps(range(1, 5)):
            optimizer.zero_grad()
            give_gradients(model, torch.nan if step == 3 else 1.0)
            optimizer.step()
            expected.append(sum(squares(one) for one in model.parameters()))
    assert listeners() == []
    assert len(expected) == (3 if on_nan == "stop" else 4)
    values = [(e.step, value) for e in read_directory(tmp_path / "a") for value in e.values]
    norms = {step: value.data for step, value in values if value.plugin == "norms"}
    sums = [float(norms[step].weight_sums.sum()) for step in sorted(norms)]
    assert sums == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert norms[3].gradient_nonfinite.sum() > 0
    texts = [(step, value.data) for step, value in values if value.tag == NONFINITE_TEXT]
    [(step, text)] = texts
    assert step == 3
    assert re.findall("the (gradient|weight) of '0.weight' has", text) == ["gradient", "weight"]
    assert any("the gradient of '0.weight'" in reason for reason in run.health().errors)


class Codes(Tensor):
    """Says that it holds floats, and gives none of them, as some quantized tensors do."""

    @staticmethod
    def __new__(cls) -> "Codes":
        made: Codes = Tensor._make_wrapper_subclass(cls, (4,), dtype=torch.float32)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{func} of codes")


def test_a_parameter_that_does_not_give_its_elements_is_left_out(loop, caplog):
    model = net()
    model.register_parameter("codes", nn.Parameter(Codes(), requires_grad=False))
    training = loop(model)
    give_gradients(model)
    norms = training.step(torch.optim.SGD(model[0].parameters(), lr=0.1).step)
    assert norms.table.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert "'codes' is left out: a Codes does not give its elements" in caplog.text


@pytest.mark.usefixtures("gpu")
def test_nothing_waits_for_an_accelerator(loop: Callable[..., Loop]) -> None:
    model = net()
    twin = net()
    twin[2].bias.data = torch.zeros(3)
    model.load_state_dict(twin.state_dict())
    to_gpu(model)
    training, expected = loop(model), loop(twin)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, foreach=False) for one in (model, twin)]
    pending: list[Any] = []
    found = []
    for step in range(1, 10):
        for own, other in zip(twin.parameters(), model.parameters(), strict=True):
            own.grad = torch.randn(own.shape)
            if step == 9 and own.dim() == 2:
                own.grad[0, :4] = torch.inf
            other.grad = OnGpu(own.grad.clone())
        training.params.cur_step_num = step
        with NamedGpu(), Hurried():
            optimizers[0].step()
            pending += training.norms.values(training.params, step, StepContext())
        found.append(expected.step(optimizers[1].step))
    for value, there in zip(pending, found, strict=True):
        assert value.data.nbytes > 0
        norms = value.data.result()
        assert norms is value.data.result()
        for name in ("weight_sums", "gradient_sums", "update_sums", "update_max"):
            numbers = getattr(there, name).tolist()
            assert getattr(norms, name).tolist() == pytest.approx(numbers, rel=1e-6, nan_ok=True), name
        assert norms.has_gradient.all()
        at_least = np.minimum(there.gradient_nonfinite, 1)  # counted from the next step on
        assert norms.gradient_nonfinite.tolist() == at_least.tolist()
    assert "'0.weight' has 1 of 2400 elements" in next(iter(training.health.errors))
    training.params.cur_step_num = 10
    with NamedGpu(), Hurried():
        optimizers[0].step()
        [value, *texts] = training.norms.values(training.params, 10, StepContext())
        reported = {one.tag: one.data for one in texts[1:]}
    assert value.data.result().gradient_nonfinite.tolist() == [4, 0, 4, 0]
    assert texts[0].plugin == "text"  # of the step before, whose results came late
    assert reported == {
        "zz_check/nonfinite/gradient": 0.0,
        "zz_check/nonfinite/gradient/lag": 1.0,
        "zz_check/nonfinite/weight": 0.0,
        "zz_check/nonfinite/weight/lag": 1.0,
    }


class Fused(torch.optim.Optimizer):
    """Has what GradScaler gives to an optimizer that divides the gradients itself; changes nothing."""

    def __init__(self, model: nn.Module, overflow: float) -> None:
        super().__init__(model.parameters(), {})
        self.grad_scale, self.found_inf = OnGpu(torch.tensor(8.0)), OnGpu(torch.tensor(overflow))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("overflow", [0.0, 1.0])
def test_a_fused_optimizer_that_unscales_on_an_accelerator(loop: Callable[..., Loop], overflow: float):
    model = to_gpu(net())
    training = loop(model)
    optimizer = Fused(model, overflow)
    for one in model.parameters():
        one.grad = OnGpu(torch.full(one.shape, torch.inf if overflow else 16.0))
    training.params.cur_step_num = 1
    with NamedGpu(), Hurried():
        optimizer.step()
        [value] = training.norms.values(training.params, 1, StepContext())
    norms = value.data.result()
    assert norms.has_gradient.tolist() == [not overflow] * 4
    expected = [0.0 if overflow else 4.0 * size for size in (2400, 60, 180, 3)]
    assert norms.gradient_sums.tolist() == pytest.approx(expected)
    assert not training.health.errors


def test_what_norms_take_is_recording_and_not_the_optimizers(loop):
    model = nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = loop(model)
    model(torch.ones(1, 300)).sum().backward()
    with closing(Phases()) as phases:
        found.context.phases = phases
        phases.enter(OPTIMIZER)
        found.step(optimizer.step)
        took = phases.take(REST)
    assert phases.current == REST
    assert took["zz_perf/phase/recording/cpu_ms"] > 0
    assert took["zz_perf/phase/optimizer/cpu_ms"] > 0
