"""The phases of a torch step: forward, backward, waiting and optimizer, each with what was done in it."""

import contextlib
import copy
import io
import itertools
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils.checkpoint import checkpoint

from distsummary.diagnosis.measured_steps import is_measured, next_measured
from distsummary.format.own_tags import EPOCH
from distsummary.rundir.topology import Topology
from distsummary.training.run import Run
from distsummary.training.timing.device_times import DeviceTimes
from distsummary.training.timing.phases import BACKWARD, FORWARD, OPTIMIZER, REST, UNKNOWN
from tests.unit.training.timing.test_phases import Keeps

BURN_MS = 20.0


@torch.compiler.disable
def burn(x: Tensor | None = None) -> None:
    """Take time on this thread, or on the GPU of `x`."""
    if x is not None and x.is_cuda:
        torch.cuda._sleep(20_000_000)
        return
    end = time.thread_time() + BURN_MS / 1e3
    while time.thread_time() < end:
        pass


class BurnsBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        burn(gradient)
        return gradient


class Net(nn.Module):
    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase = phase
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.phase == "forward":
            burn(x)
        x = self.first(x)
        if self.phase == "backward":
            x = BurnsBackward.apply(x)
        return self.last(x)


class Optimizer(torch.optim.SGD):
    burns = False

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        if self.burns:
            burn()
        super().step(closure)


def measured(
    phase: str, *, steps: int = 6, accumulate: int = 1, compile: bool = False
) -> list[dict[str, float]]:
    """What the steps of a loop log that takes BURN_MS longer in a phase."""
    net, keeps = Net(phase), Keeps()
    model = torch.compile(net, backend="eager") if compile else net
    optimizer = Optimizer(net.parameters(), lr=0.1)
    optimizer.burns = phase == "optimizer"

    def batches() -> Iterator[Tensor]:
        for _ in range(steps * accumulate):
            if phase == "data":
                burn()
            yield torch.ones(2, 4)

    with Run(callbacks=keeps, network=model, topology=Topology(rank=0, world_size=2)) as run:
        for number, x in enumerate(run.steps(batches(), accumulate=accumulate), 1):
            model(x).sum().backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return keeps.logged


def test_each_join_of_ddp_begins_an_epoch_in_a_loop_without_a_loader() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model, keeps = nn.parallel.DistributedDataParallel(nn.Linear(2, 1)), Keeps()
        with Run(callbacks=keeps, network=model, topology=Topology(rank=0, world_size=2)) as run:
            for count in (2, 3, 1):
                with model.join():
                    for _ in range(count):
                        with run.next_step():
                            model(torch.ones(1, 2)).sum().backward()
    finally:
        distributed.destroy_process_group()
    assert [EPOCH in logged for logged in keeps.logged] == [True, False, True, False, False, True]


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_phase_in_which_a_step_takes_longer_is_the_one_that_is_longer(phase: str, accumulate: int):
    *_, last = measured(phase, accumulate=accumulate)
    times = {
        name: last.get(f"zz_perf/phase/{name}/cpu_ms", 0.0)
        for name in ("data", "forward", "backward", "wait", "optimizer", "rest")
    }
    assert max(times, key=lambda name: times[name]) == phase
    burned = BURN_MS * (accumulate if phase != "optimizer" else 1)
    assert times[phase] >= burned
    assert sum(times.values()) - times[phase] < burned


@pytest.mark.parametrize("phase", ["rest", "forward"])
def test_steps_that_log_begins_have_the_phases_of_the_model_and_no_data(phase: str) -> None:
    net, keeps = Net(phase), Keeps()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Run(callbacks=keeps, network=net, topology=Topology(rank=0, world_size=2)) as run:
        for step in range(6):
            if phase == "rest":
                burn()  # to make a batch
            loss = net(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log({"loss": loss}, step=step)
        *_, last = keeps.logged
        assert run.context.step.phases.is_in_loop
    names = ("forward", "backward", "optimizer", "rest")
    times = {name: last[f"zz_perf/phase/{name}/cpu_ms"] for name in names}
    assert max(times, key=lambda name: times[name]) == phase
    assert sum(times.values()) - times[phase] < BURN_MS <= times[phase]
    assert "zz_perf/phase/data/cpu_ms" not in last


def test_where_a_step_that_log_begins_is_is_unknown_if_it_is_not_marked() -> None:
    with Run(network=Net("none"), topology=Topology(rank=0, world_size=2)) as run:
        run.log(loss=1.0, step=8)
        phases = run.context.step.phases
        phases.every = 4
        assert phases.current == REST
        run.log(loss=1.0, step=9)
        assert phases.current == UNKNOWN
        run.log(loss=1.0, step=next_measured(9, 4))
        assert phases.current == REST


def test_a_compiled_model_has_the_same_phases() -> None:
    with torch._dynamo.config.patch(error_on_recompile=True):
        *_, last = measured("forward", compile=True)
    assert last["zz_perf/phase/forward/cpu_ms"] >= BURN_MS
    assert {"zz_perf/phase/backward/cpu_ms", "zz_perf/phase/optimizer/cpu_ms"} <= last.keys()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_backward_pass_is_not_looked_into() -> None:
    net, keeps = Net("none"), Keeps()

    def train(x: Tensor) -> None:
        net(x).sum().backward()

    with (
        torch._dynamo.config.patch(compiled_autograd=True),
        Run(callbacks=keeps, network=net, topology=Topology(rank=0, world_size=2)) as run,
    ):
        compiled = torch.compile(train, backend="eager")
        for x in run.steps([torch.ones(2, 4)] * 3):
            compiled(x)
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert len(keeps.logged) == 3


@pytest.mark.parametrize("how", ["around", "inside", "in place"])
def test_steps_that_are_not_marked_leave_no_hook_and_compile_nothing_again(how: str) -> None:
    net, keeps = Net("none"), Keeps()
    torch.compiler.reset()
    if how == "in place":
        net.compile(backend="eager", fullgraph=True)
    model = net if how == "in place" else torch.compile(net, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def hooks() -> int:
        modules = (net, model)
        return sum(len(one._forward_pre_hooks) + len(one._forward_hooks) for one in modules)

    watched = model if how == "around" else net
    with Run(callbacks=keeps, network=watched, topology=Topology(rank=0, world_size=2)) as run:
        for number in run.steps(range(1, 30)):
            phases = run.context.step.phases
            if number == 4:
                phases.every = 4
            with torch._dynamo.config.patch(error_on_recompile=number > 2):
                model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert (hooks() > 0) == (number < 5 or is_measured(number, phases.every))
    marked = [number for number, logged in enumerate(keeps.logged, 1) if "zz_perf/own_ms" in logged]
    assert marked == [1, 2, 3, 4, *(number for number in range(5, 30) if is_measured(number, 4))]
    assert all("zz_perf/phase/forward/cpu_ms" in keeps.logged[number - 1] for number in marked)


def test_a_backward_pass_that_fails_ends_and_may_be_repeated() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context: object, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(context: object, gradient: Tensor) -> Tensor:
            burn()
            if next(fails):
                raise MemoryError
            return gradient

    class Retried(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(Fails.apply(self.first(x)))

    fails = itertools.chain([True], itertools.repeat(False))
    net, keeps = Retried("none"), Keeps()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Run(callbacks=keeps, network=net, topology=Topology(rank=0, world_size=2)) as run:
        for step in run.steps(range(2)):
            if step == 0:
                phases = run.context.step.phases
                with pytest.raises(MemoryError):
                    net(torch.ones(2, 4)).sum().backward()
                assert (phases.current, phases.is_in_backward) == (REST, False)
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    first, last = keeps.logged
    assert (
        first["zz_perf/phase/backward/cpu_ms"]
        >= 2 * BURN_MS
        > BURN_MS
        <= last["zz_perf/phase/backward/cpu_ms"]
    )


def test_a_backward_pass_within_another_one_and_of_another_model_is_backward_too() -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(checkpoint(self.first, x, use_reentrant=True))

    net, other, seen = Checkpointed("none"), Net("none"), list[str]()
    net.last.weight.register_hook(lambda _: seen.append(phases.current))
    net.first.weight.register_hook(lambda _: seen.append(phases.current))
    other.first.weight.register_hook(lambda _: seen.append(phases.current))
    with Run(network=net, topology=Topology(rank=0, world_size=2)) as run:
        for _ in run.steps(range(1)):
            phases = run.context.step.phases
            x = torch.ones(2, 4, requires_grad=True)
            loss = net(x).sum()
            assert phases.current == FORWARD
            torch.autograd.grad(x.sum(), x)
            assert phases.current == FORWARD
            loss.backward()
            assert (seen, phases.current) == ([BACKWARD] * 2, REST)
            other(x).sum().backward()
            assert (seen, phases.current) == ([BACKWARD] * 3, REST)


def test_a_closure_of_an_optimizer_has_forward_and_backward_of_its_own() -> None:
    net, seen = Net("none"), list[str]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def closure() -> Tensor:
        loss = net(torch.ones(2, 4)).sum()
        seen.append(phases.current)
        loss.backward()
        seen.append(phases.current)
        return loss

    with Run(network=net, topology=Topology(rank=0, world_size=2)) as run:
        for _ in run.steps(range(1)):
            phases = run.context.step.phases
            optimizer.step(closure)
            assert ([*seen, phases.current]) == [FORWARD, OPTIMIZER, REST]


def test_the_model_keeps_no_hook_after_the_run() -> None:
    net = Net("none")
    with (
        contextlib.suppress(ZeroDivisionError),
        Run(network=net, callbacks=Keeps(), topology=Topology(rank=0, world_size=2)) as run,
    ):
        for x in run.steps([torch.ones(2, 4)] * 2):
            net(x).sum().backward()
            raise ZeroDivisionError
    assert not net._forward_pre_hooks
    assert not net._forward_hooks
    assert all(not parameter._post_accumulate_grad_hooks for parameter in net.parameters())


def test_what_a_model_returns_may_be_its_parameter_or_hold_itself() -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> list[object]:
            found: list[object] = [self.own, {"product": x * self.own}]
            found.append(found)
            return found

    net, keeps = Returns(), Keeps()
    with Run(callbacks=keeps, network=net, topology=Topology(rank=0, world_size=2)) as run:
        for x in run.steps([torch.ones(2)] * 4):
            net(x)[1]["product"].sum().backward()
    assert not net.own._backward_hooks
    assert "zz_perf/phase/backward/cpu_ms" in keeps.logged[-1]


def test_copies_of_the_model_and_its_optimizer_know_nothing_of_the_run() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), torch.ones(2, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with Run(network=net, callbacks=Keeps(), topology=Topology(rank=0, world_size=2)) as run:
        for _ in run.steps(range(2)):
            output = net(x)
            torch.save((net, optimizer, output), saved := io.BytesIO())
            output.sum().backward()
            optimizer.step()
            twin, other = copy.deepcopy((net, optimizer))
            loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=False)[0]
            phases = run.context.step.phases
            phases.enter(REST)
            for model in (twin, loaded):
                model(x).sum().backward()
                assert phases.current == REST
    assert b"distsummary" not in saved.getvalue()
    parameters = [*twin.parameters(), *loaded.parameters(), *other.param_groups[0]["params"]]
    assert all(not one._post_accumulate_grad_hooks for one in parameters)
    whole = torch.compile(twin, backend="eager", fullgraph=True)
    assert torch.equal(whole(x), net(x))


class HostEvent:
    """An event of a device that does at once what it is asked to do."""

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "HostEvent") -> float:
        return 1e3 * (end.at_s - self.at_s)


def test_events_divide_a_step_at_the_last_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def device_times_of(devices: set[torch.device]) -> DeviceTimes:
        assert devices == {torch.device("cpu")}
        return DeviceTimes(HostEvent, lambda: False)

    monkeypatch.setattr("distsummary.training.timing.torch_phases.device_times_of", device_times_of)
    net, keeps = Net("backward"), Keeps()
    optimizer = Optimizer(net.parameters(), lr=0.1)
    with Run(callbacks=keeps, network=net, topology=Topology(rank=0, world_size=2)) as run:
        for step in run.steps(range(14)):
            if step == 7:
                net.first.requires_grad_(False)  # then another gradient is the last one
            net(torch.ones(2, 4, requires_grad=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    before, after = (
        {
            phase: logged[f"zz_perf/phase/{phase}/cpu_ms"] + logged[f"zz_perf/phase/{phase}/blocked_ms"]
            for phase in ("forward", "backward", "wait")
        }
        for logged in (keeps.logged[6], keeps.logged[-1])
    )
    assert before["backward"] >= BURN_MS > max(before["forward"], before["wait"])
    assert after["wait"] >= BURN_MS  # it burns after what is now the last gradient


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_what_takes_longer_on_a_gpu_is_reported_without_waiting_for_it(phase: str) -> None:
    net, keeps = Net(phase).cuda(), Keeps()
    optimizer = Optimizer(net.parameters(), lr=0.1)
    x = torch.ones(2, 4, device="cuda")
    with Run(callbacks=keeps, network=net, topology=Topology(rank=0, world_size=2)) as run:
        for number in run.steps(range(6)):
            if number == 4:
                torch.cuda.synchronize()  # from now on, the first steps' times are there
            net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    *_, last = keeps.logged
    times = {name: last[f"zz_perf/phase/{name}/blocked_ms"] for name in ("forward", "backward", "optimizer")}
    assert max(times, key=lambda name: times[name]) == phase
    assert times[phase] > 5.0  # 20 million cycles of at most 4 GHz


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_model_that_takes_no_hooks_is_trained_with_the_phases_data_and_body() -> None:
    net, keeps = torch.jit.script(nn.Linear(4, 1)), Keeps()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Run(callbacks=keeps, network=net, topology=Topology(rank=0, world_size=2)) as run:
        for x in run.steps([torch.ones(2, 4)] * 3):
            net(x).sum().backward()
            burn()
            optimizer.step()
    measured = {name.split("/")[2] for logged in keeps.logged for name in logged if "/phase/" in name}
    assert measured - {"python"} == {"data", "rest", "backward", "wait", "recording"}
    assert all(logged["zz_perf/phase/rest/cpu_ms"] >= BURN_MS for logged in keeps.logged)
    assert [times for reason, times in run.health().errors.items() if "takes no hooks" in reason] == [1]


def test_a_parameter_that_is_frozen_takes_no_hook_at_the_next_marked_step() -> None:
    net, keeps = Net("none"), Keeps()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Run(callbacks=keeps, network=net, topology=Topology(rank=0, world_size=2)) as run:
        for number in run.steps(range(1, 13)):
            run.context.step.phases.every = 4
            net.first.requires_grad_(number < 3)
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    marked = [number for number, logged in enumerate(keeps.logged, 1) if "zz_perf/own_ms" in logged]
    assert marked == [1, *(number for number in range(2, 13) if is_measured(number, 4))]
