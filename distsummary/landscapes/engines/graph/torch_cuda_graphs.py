"""Captures GPU work as CUDA graphs, so that one launch runs all of its operations."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from distsummary.landscapes.model.torch_memory import Flat

WARM_UPS = 3  # runs before a capture; in them libraries choose their kernels


class DeviceFlat(Flat):
    """The slots (see `torch_affine`) at a point; x is in device memory, where captured work can read it."""

    def __init__(self, outlines: Mapping[str, Tensor], device: torch.device) -> None:
        super().__init__(outlines, device)
        self._step = torch.zeros((), dtype=self._row.dtype, device=device)

    def load(self, xs: Sequence[float]) -> None:
        """Set the next point."""
        self._step.fill_(xs[0])

    def move(self) -> None:
        """Compute the slots at this point."""
        torch.addcmul(self._row, self._x, self._step, out=self._point)


class Captures:
    """The CUDA graphs of one GPU, which are replayed one after another and share a memory pool.

    A replay may overwrite the result of another graph, so a result is copied before the next replay. Captures
    run on a stream of their own, because after a capture torch drops the stream's cuBLAS workspace: on a
    shared stream, graphs captured by other code might still use it. The first graph is kept because the pool
    lives only as long as a graph that uses it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Capture `work`; returns the graph and the tensor that each replay writes its result to."""
        pool = None if self._first is None else self._first.pool()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):  # with another current device nothing would be captured
            warm, caller = _warm_up_stream(self._device), torch.cuda.current_stream()
            warm.wait_stream(caller)
            with torch.cuda.stream(warm):
                for _ in range(WARM_UPS):
                    work()
            caller.wait_stream(warm)
            # torch.cuda.graph leaves the stream current if ending a capture raises; this `with` resets it.
            # With the error mode "global", allocations by other threads (a running training) would fail.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"),
            ):
                readings = work()
        self._first = self._first or graph
        return graph, readings


@cache
def _warm_up_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream of a GPU for warm-ups: cuBLAS keeps memory for each stream that it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
