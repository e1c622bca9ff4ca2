"""Waits: calls in which a thread waits in torch.distributed are measured, whoever makes them and however."""

import functools
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import _distributed_c10d as c10d
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_reduce
from torch.nn.parallel import DistributedDataParallel

from distsummary.format.own_tags import WAIT_MS
from distsummary.rundir.topology import Topology
from distsummary.training.run import Run
from distsummary.training.timing.phases import BACKWARD, RECORDING, TAGS, Phases
from distsummary.training.timing.torch_waits import TorchWaits

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
SHORT = timedelta(milliseconds=1)


class Counted(Phases):
    """Counts the calls, in place of looking at clocks."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.ended = 0

    def begin_wait(self) -> None:
        self.begun += 1

    def end_wait(self) -> None:
        self.ended += 1

    def take_calls(self) -> int:
        """Those since the last call."""
        assert self.begun == self.ended
        calls, self.begun, self.ended = self.begun, 0, 0
        return calls


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def phases() -> Iterator[Counted]:
    phases = Counted()
    waits = TorchWaits(phases)
    yield phases
    waits.close()
    phases.close()


def replaced() -> list[object]:
    wait_tensor = torch.ops._c10d_functional.wait_tensor
    methods = [vars(c10d.Work)["wait"], vars(torch._C.Future)["wait"]]
    return [*methods, vars(dist)["_broadcast_coalesced"], wait_tensor._op, wait_tensor.default._op]


def exchange_objects() -> None:
    dist.all_gather_object([None], {"a": 1})


def send_async() -> None:
    dist.all_reduce(torch.ones(2), async_op=True).wait()


def wait_by_future() -> None:
    dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()


def reduce_functionally() -> None:
    functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD) + 1


@pytest.mark.parametrize(
    "call",
    [
        functools.partial(all_reduce, torch.ones(2)),
        functools.partial(dist.broadcast, torch.ones(2), 0),
        functools.partial(dist.all_gather_into_tensor, torch.ones(2), torch.ones(2)),
        functools.partial(dist.reduce_scatter_tensor, torch.ones(2), torch.ones(2)),
        dist.barrier,
        functools.partial(dist.monitored_barrier),
        exchange_objects,
        send_async,
        wait_by_future,
        reduce_functionally,
    ],
)
def test_a_collective_is_waiting_whoever_has_imported_it_before(phases: Counted, call: Any) -> None:
    call()
    assert phases.take_calls() >= 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_ddp_waits_in_forward_for_its_buffers_and_zero_in_the_optimizer(phases: Counted) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns

    normed = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    phases.take_calls()
    normed(torch.ones(2, 4))
    assert phases.take_calls() == 1  # the buffers are broadcast
    plain = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = ZeroRedundancyOptimizer(plain.parameters(), torch.optim.SGD, lr=0.1)
    phases.take_calls()
    plain(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert phases.take_calls() >= 1


@pytest.mark.parametrize("kind", ["gradient", "module", "accumulated"])
def test_a_hook_of_the_last_gradient_is_no_waiting_and_what_ddp_waits_for_is(kind: str) -> None:
    def late(*arguments: Any) -> None:
        time.sleep(0.02)

    def exchange(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        found: torch.futures.Future[Tensor] = torch.futures.Future()
        threading.Timer(0.05, found.set_result, [bucket.buffer()]).start()
        return found

    layer = nn.Linear(4, 4)
    model = DistributedDataParallel(nn.Sequential(layer, nn.Linear(4, 4)))
    model.register_comm_hook(None, exchange)
    if kind == "gradient":
        layer.weight.register_hook(late)
    elif kind == "module":
        layer.register_full_backward_hook(late)
    else:
        layer.weight.register_post_accumulate_grad_hook(late)
    phases = Phases()
    waits = TorchWaits(phases)
    try:
        for step in range(3):
            phases.begin_step(step)
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
            found = phases.take(RECORDING)
            assert found[TAGS[BACKWARD][1]] >= 20
            assert found[WAIT_MS] >= 20  # the last gradient of the exchange may come before the hook
    finally:
        waits.close()
        phases.close()


def test_compiled_code_waits_without_a_graph_break_and_is_not_compiled_again() -> None:
    torch.compiler.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def reduced(x: Tensor) -> Tensor:
        return functional.all_reduce(x, "sum", dist.group.WORLD) * 2

    assert torch.equal(reduced(torch.ones(2)), torch.full((2,), 2.0))
    phases = Counted()
    waits = TorchWaits(phases)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert torch.equal(reduced(torch.ones(2)), torch.full((2,), 2.0))
        assert phases.take_calls() == 1
        waits.close()
        reduced(torch.ones(2))
        assert phases.take_calls() == 0
    torch.compiler.reset()
    waits = TorchWaits(phases)  # now compiled meanwhile
    assert torch.equal(reduced(torch.ones(2)), torch.full((2,), 2.0))
    assert phases.take_calls() >= 1
    waits.close()
    phases.close()


def test_the_calls_are_replaced_while_a_run_of_several_ranks_measures_and_then_restored() -> None:
    before = replaced()
    place = Topology(rank=0, world_size=2)
    with Run(network=nn.Linear(1, 1), topology=place) as outer:
        for _ in outer.steps(range(2)):
            assert not any(map(lambda now, old: now is old, replaced(), before))
            with Run(network=nn.Linear(1, 1), topology=place) as inner:
                list(inner.steps(range(2)))
            assert not any(map(lambda now, old: now is old, replaced(), before))
    assert all(map(lambda now, old: now is old, replaced(), before))
    with Run(network=nn.Linear(1, 1), topology=Topology(rank=0, world_size=1)) as alone:
        for _ in alone.steps(range(2)):
            assert all(map(lambda now, old: now is old, replaced(), before))


def test_all_runs_of_a_thread_are_reported_and_other_threads_are_not_measured(phases: Counted) -> None:
    inner = Counted()
    waits = TorchWaits(inner)
    dist.barrier()
    waits.close()
    assert (phases.take_calls(), inner.take_calls()) == (1, 1)
    thread = threading.Thread(target=dist.barrier)
    thread.start()
    thread.join()
    assert phases.take_calls() == 0
    inner.close()


def test_nothing_that_goes_wrong_reaches_the_collective_and_then_only_cpu_time_counts() -> None:
    class Broken(Counted):
        def begin_wait(self) -> None:
            raise ZeroDivisionError("clock")

    phases, reported = Broken(), list[str]()
    phases.on_failure = reported.append
    waits = TorchWaits(phases)
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.all_reduce(x)
    waits.close()
    phases.close()
    assert phases.is_computing_shared
    [reason] = reported
    assert "waiting for other ranks cannot be measured: ZeroDivisionError: clock" in reason


def test_what_a_collective_raises_is_raised(phases: Counted) -> None:
    with pytest.raises(TypeError):
        c10d.Work.wait(3)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="rank"):
        dist.broadcast(torch.ones(2), 5)
    dist.all_reduce(torch.ones(2))
    phases.take_calls()


def test_works_and_process_groups_that_are_written_in_python_continue(phases: Counted) -> None:
    class Inherits(c10d.Work):
        pass

    class Waits(c10d.Work):
        def wait(self, timeout: timedelta = SHORT) -> bool:
            return super().wait(timeout)

    class Group(c10d.ProcessGroup):
        def __init__(self) -> None:
            super().__init__(0, 1)
            self.inner = dist.group.WORLD

        def allreduce(self, tensors: list[Tensor], options: object = None) -> c10d.Work:
            return self.inner.allreduce(tensors)

    for kind in (Inherits, Waits):
        with pytest.raises(RuntimeError, match="timed out"):
            kind().wait(SHORT)
    phases.take_calls()
    Group().allreduce([torch.ones(2)]).wait()
    assert phases.take_calls() == 1


def test_a_group_in_python_that_waits_where_it_begins_a_collective_is_measured() -> None:
    class Waiting(c10d.ProcessGroup):
        def allreduce(self, tensors: list[Tensor], options: object = None) -> str:
            return "reduced"

    phases = Counted()
    waits = TorchWaits(phases)
    assert Waiting(0, 1).allreduce([]) == "reduced"
    assert phases.take_calls() == 1
    waits.close()
    phases.close()


def test_a_forked_child_is_not_measured(phases: Counted) -> None:
    child = os.fork()
    if child == 0:
        work = torch.futures.Future[int]()
        work.set_result(1)
        os._exit(0 if work.wait() == 1 and phases.begun == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_operators_are_found_as_before(phases: Counted, tmp_path: Path) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    wait_tensor = torch.ops._c10d_functional.wait_tensor
    assert {wait_tensor.default: 1}[torch.ops._c10d_functional.wait_tensor.default] == 1
    assert wait_tensor.default._op == wait_tensor.default._op
    graph = make_fx(lambda x: functional.all_reduce(x, "sum", dist.group.WORLD) + 1)(torch.ones(2))
    assert wait_tensor.default in {node.target for node in graph.graph.nodes}
    torch.save(graph, tmp_path / "graph.pt")
