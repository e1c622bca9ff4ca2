"""On a GPU in name only: nothing mixes devices or waits where it must not.

What needs torch's own CUDA code, as captured graphs do, cannot be run so: its tests need a GPU.
"""

import warnings
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import distsummary as ds
from distsummary.frameworks.torch import FRAMEWORK, counted
from distsummary.landscapes.engines import torch_engines
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.graph import torch_program as captured
from distsummary.landscapes.engines.torch_hessian import TorchHessian
from distsummary.landscapes.model import torch_loan
from distsummary.landscapes.model.torch_loan import Loan, portable
from distsummary.landscapes.model.torch_memory import exceeds_device, is_full, worker_device
from distsummary.landscapes.model.user_code import BatchLoss
from tests.frameworks.landscape_nets import XS, YS, Cnn, Data, Mlp, engine_at, float64_losses, make_net
from tests.frameworks.named_gpu import GENERATORS, GPU, MEMORY_BYTES, Hurried, OnGpu, gpu, to_gpu

__all__ = ["gpu"]

EXACT = 5e-6

pytestmark = pytest.mark.usefixtures("gpu")


def test_an_engine_mixes_no_devices_and_waits_only_at_the_end_of_a_row(monkeypatch: pytest.MonkeyPatch):
    net, ends = make_net(Cnn), list[Tensor]()
    batches = net.batches()  # of two sizes
    expected = float64_losses(net, batches, normalization="layer")  # all moves
    engine = engine_at(to_gpu(net), batches, EngineChoice(engine="row"), normalization="layer")

    def on_host(readings: Tensor) -> Any:
        ends.append(readings)
        return np.zeros(readings.shape)

    assert engine.on_gpu
    try:
        losses = np.concatenate([engine.row_values(y, XS)[:, 0] for y in YS])
        monkeypatch.setattr(torch_engines, "on_host", on_host)
        with Hurried():
            engine.row_values(0.2, XS)
    finally:
        engine.close()
    np.testing.assert_allclose(losses, expected, rtol=EXACT)
    assert len(ends) == 1


def loss_of_items(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def loss_of_fields(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch.x), batch.y)


WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
WITH_WEIGHT = partial(nn.functional.cross_entropy, weight=WEIGHTED.weight)


@pytest.mark.parametrize(
    ("loss_fn", "kind"), [(loss_of_items, lambda x, y: UserDict(x=x, y=y)), (loss_of_fields, Data)]
)
def test_batches_of_every_kind_go_to_the_device(loss_fn: Any, kind: Any) -> None:
    def draw(net: Any) -> Any:
        batches = [kind(*batch) for batch in make_net(Mlp).batches()]
        plane, compute = ds.Plane(size=3), ds.Compute(workers=0, engine="row")
        return ds.landscape(net, batch_loss=loss_fn, batches=batches, plane=plane, compute=compute)

    np.testing.assert_allclose(draw(to_gpu(make_net(Mlp))).z, draw(make_net(Mlp)).z, rtol=EXACT)


def test_the_weights_of_criteria_and_metrics_go_to_the_device() -> None:
    def draw(net: Any) -> Any:
        given = ds.Evaluation(metrics={"again": WITH_WEIGHT})
        batches = make_net(Mlp).batches()
        return ds.landscape(
            net, WEIGHTED, batches, plane=ds.Plane(size=3), compute=ds.Compute(workers=0, engine="row"),
            evaluation=given,
        )  # fmt: skip

    grid = draw(to_gpu(make_net(Mlp)))
    np.testing.assert_allclose(grid.z, draw(make_net(Mlp)).z, rtol=EXACT)
    np.testing.assert_allclose(grid.quantities["again"], grid.z, rtol=EXACT)
    assert WEIGHTED.weight.device.type == "cpu"


def test_captures_leave_the_stream_and_the_device_that_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model on the second GPU, also where torch's own end of a capture raises."""
    there, entered = torch.device("cuda:1"), list[Any]()
    warm, own = SimpleNamespace(wait_stream=lambda other: None), SimpleNamespace()

    @contextmanager
    def within(*what: Any, **options: Any) -> Iterator[None]:
        entered.append((*what, *options.values()))
        try:
            yield
        finally:
            entered.pop()

    @contextmanager
    def capturing(graph: Any, *what: Any, **options: Any) -> Iterator[None]:
        with within(*what, **options):
            yield
        raise RuntimeError("operation failed due to a previous error during capture")

    of_cuda = {
        "CUDAGraph": SimpleNamespace, "Stream": lambda device: own, "device": within, "stream": within,
        "graph": capturing,
    }  # fmt: skip
    monkeypatch.setattr(captured, "_warm_up_stream", lambda device: warm)
    for name, function in of_cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    seen = list[Any]()

    def work() -> Tensor:
        seen.append([*entered])
        return torch.zeros(())

    with pytest.raises(RuntimeError, match="during capture"):
        captured.Captures(there).capture(work)
    assert seen[:-1] == [[(there,), (warm,)]] * captured.WARM_UPS
    assert seen[-1] == [(there,), (own,), (None, own, "thread_local")]
    assert not entered


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_histograms_and_copies_of_tensors_on_the_device(dtype: torch.dtype) -> None:
    host = (torch.randn(3000, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    there = OnGpu(host.clone())
    with Hurried():
        histogram, copy = FRAMEWORK.histogram(there), FRAMEWORK.snapshot(there)
        transposed = FRAMEWORK.snapshot(OnGpu(host.reshape(60, 50).t()))
    there.host.zero_()
    expected = counted(host).result()
    found = histogram.result()
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_array_equal(found.left, expected.left)
    assert (found.min, found.max, found.sum) == (expected.min, expected.max, expected.sum)
    np.testing.assert_array_equal(copy.result(), FRAMEWORK.to_numpy(host))
    np.testing.assert_array_equal(transposed.result(), FRAMEWORK.to_numpy(host.reshape(60, 50).t()))


def test_random_numbers_begin_again_on_the_gpus_of_the_model_and_on_no_other() -> None:
    """The others' are not kept: a training that continues there would get the same numbers again."""
    net = make_net(Mlp)
    to_gpu(net, torch.device("cuda:1"))
    before = [generator.get_state() for generator in GENERATORS]
    loan = Loan(net, [name for name, _ in net.named_parameters()])
    with torch.random.fork_rng(devices=[]):
        loan.seed()
    after = [generator.get_state() for generator in GENERATORS]
    loan.give_back()
    assert [bool((one == other).all()) for one, other in zip(before, after, strict=True)] == [True, False]


class Recurrent(nn.Module):
    """What cuDNN has kernels of its own for, without second derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "is_by_cudnn"), [(Recurrent(), False), (nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), True)]
)
def test_second_derivatives_on_a_gpu_are_exact_and_of_what_has_some(model, is_by_cudnn, monkeypatch):
    """The tensors are on the host: torch differentiates none on a GPU in name only."""
    cudnn: Any = torch.backends.cudnn
    monkeypatch.setattr(torch_loan, "gpus_of", lambda tensors: [GPU])
    seen = []

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        seen.append((cudnn.enabled, cudnn.allow_tf32, cudnn.deterministic))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    batches = [(torch.randn(6, 3, 4), torch.arange(6) % 3)]
    names = [name for name, _ in model.named_parameters()]
    with cudnn.flags(enabled=True):
        with TorchHessian(
            model, BatchLoss(loss_fn), batches, names=names, centre=FRAMEWORK.state(model)
        ) as hessian:
            hessian.product(np.ones(sum(parameter.numel() for parameter in model.parameters())))
        assert seen == [(is_by_cudnn, False, True)]
        assert cudnn.enabled


def test_a_full_gpu_is_known_whoever_reports_of_it() -> None:
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"),
        RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    ):
        assert is_full(error)
    assert not is_full(RuntimeError("CUDA error: device-side assert triggered"))


def test_a_worker_with_a_share_of_a_gpu_keeps_to_that_share_of_its_memory() -> None:
    net, batches = make_net(Mlp), [torch.empty(MEMORY_BYTES // 3, dtype=torch.uint8)]
    assert worker_device(net, 0.0) == "cpu"
    assert worker_device(net, 1.0) == "cuda"
    assert not exceeds_device(batches, GPU)
    assert worker_device(net, 0.5) == "cuda"
    assert exceeds_device(batches, GPU)


class Copied(TorchDispatchMode):
    """Refuses new tensors on the GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        assert not isinstance(made, OnGpu) or func in (torch.ops.aten.detach.default,), func
        return made


def test_a_model_is_sent_from_a_gpu_that_has_no_room_for_another() -> None:
    net, plain = to_gpu(make_net(Cnn)), make_net(Cnn)  # some of it is frozen
    with Copied():
        sent, _ = portable(net, [])
    assert all(not isinstance(tensor, OnGpu) for tensor in (*sent.parameters(), *sent.buffers()))
    assert [p.requires_grad for p in sent.parameters()] == [p.requires_grad for p in net.parameters()]
    assert all(
        torch.equal(one, other) for one, other in zip(sent.parameters(), plain.parameters(), strict=True)
    )
    assert all(isinstance(tensor, OnGpu) for tensor in net.parameters())


def test_cudnn_does_not_warn_of_where_weights_are_on_loan() -> None:
    advice = "RNN module weights are not part of single contiguous chunk of memory. This means ..."
    engine = engine_at(to_gpu(make_net(Mlp)), make_net(Mlp).batches(), EngineChoice())
    try:
        warnings.warn(advice, UserWarning, stacklevel=1)
    finally:
        engine.close()
    with pytest.warns(UserWarning, match="contiguous chunk"):
        warnings.warn(advice, UserWarning, stacklevel=1)
