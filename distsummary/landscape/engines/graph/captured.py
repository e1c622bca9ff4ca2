"""Work on a GPU captured as a CUDA graph: all its operations become one launch."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

WARM_UPS = 3  # before a capture: libraries choose their kernels in them


def capture(
    work: Callable[[], Tensor], device: torch.device, other: torch.cuda.CUDAGraph | None = None
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph that repeats `work`, and where it leaves the result.

    `other`: one whose memory it shares. Graphs that share some take turns, and each may overwrite what
    another has left, so a result is copied before the next is replayed.
    """
    pool = None if other is None else other.pool()
    warm, capturing = _streams(device)
    with torch.cuda.device(device):  # the process's own may be another, and nothing of that would be captured
        caller = torch.cuda.current_stream()
        warm.wait_stream(caller)
        with torch.cuda.stream(warm):
            for _ in range(WARM_UPS):
                work()
        caller.wait_stream(warm)
        graph = torch.cuda.CUDAGraph()
        # The stream is entered here too: torch leaves it the current one where the end of a capture raises.
        # The threads of a training that goes on meanwhile may take memory: "global" would let that fail.
        with (
            torch.cuda.stream(capturing),
            torch.cuda.graph(graph, pool, capturing, capture_error_mode="thread_local"),
        ):
            readings = work()
    return graph, readings


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """To warm up and to capture: always the same, since cuBLAS keeps memory for each that it has seen."""
    made = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return next(made), next(made)
