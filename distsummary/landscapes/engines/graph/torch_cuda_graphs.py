"""Work on a GPU captured as CUDA graphs: all its operations become one launch."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from distsummary.landscapes.model.torch_memory import Flat

WARM_UPS = 3  # before a capture: libraries choose their kernels in them


class DeviceFlat(Flat):
    """Slots of one point; its place is read on the device, as a captured CUDA graph needs it."""

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
    """Graphs on one GPU that take turns and share memory.

    Each may overwrite what another has left, so a result is copied before the next is replayed. They are
    captured on a stream of their own: after a capture torch drops cuBLAS's workspace of its stream, which
    graphs of others may still use. The first graph is kept, because a memory pool lives only with a graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """A graph that repeats `work`, and where it leaves the result."""
        pool = None if self._first is None else self._first.pool()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):  # with another current device nothing would be captured
            warm, caller = _warm_up_stream(self._device), torch.cuda.current_stream()
            warm.wait_stream(caller)
            with torch.cuda.stream(warm):
                for _ in range(WARM_UPS):
                    work()
            caller.wait_stream(warm)
            # The stream is entered here too: torch leaves it the current one where a capture's end raises.
            # Threads of a training that goes on meanwhile may take memory: "global" would let that fail.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"),
            ):
                readings = work()
        self._first = self._first or graph
        return graph, readings


@cache
def _warm_up_stream(device: torch.device) -> torch.cuda.Stream:
    """Always the same stream, since cuBLAS keeps memory for each that it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
