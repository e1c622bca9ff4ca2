"""Work on a GPU captured as CUDA graphs: all its operations become one launch."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

WARM_UPS = 3  # before a capture: libraries choose their kernels in them


class Captures:
    """Graphs on one GPU that take turns and share memory.

    Each may overwrite what another has left, so a result is copied before the next is replayed. They are
    captured on a stream of their own: with a graph torch drops cuBLAS's workspace of its stream, which graphs
    of others may still use. The first is kept, for torch knows no memory that no graph has.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """A graph that repeats `work`, and where it leaves the result."""
        pool = None if self._first is None else self._first.pool()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):  # the process's own may be another: nothing would be captured
            _warm_up(work, self._device)
            # The stream is entered here too: torch leaves it the current one where a capture's end raises.
            # Threads of a training that goes on meanwhile may take memory: "global" would let that fail.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"),
            ):
                readings = work()
        self._first = self._first or graph
        return graph, readings


def _warm_up(work: Callable[[], Tensor], device: torch.device) -> None:
    stream, caller = _stream(device), torch.cuda.current_stream()
    stream.wait_stream(caller)
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    caller.wait_stream(stream)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """To warm up on: always the same, since cuBLAS keeps memory for each that it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
