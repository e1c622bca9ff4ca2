"""The displacements of checkpoints from the last checkpoint, in float64 blocks, and products of blocks.

Products run in BLAS on one thread. Two threads that synchronise after every block wait by spinning: for 40
checkpoints, they would use five times the CPU time of one thread and not finish earlier. BLAS libraries start
threads for products above a certain size, so larger products are computed in strips of columns that are small
enough. As a result the sums are also the same for any number of threads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.checkpoints.mapped import StoredState
from distsummary.landscapes.directions.array_rows import shape_of

Array = NDArray[Any]

BLOCK = 1 << 16  # elements; larger blocks exceed the cache and are 3 times slower
BLOCK_BYTES = 1 << 23  # limit for the float64 blocks of all checkpoints together
# The largest product, in multiplications, for which OpenBLAS uses one thread (interface/gemm.c:
# SMP_THRESHOLD_MIN * GEMM_MULTITHREAD_THRESHOLD).
_SERIAL = 1 << 18
_NARROWEST = 32  # least width of a strip; for narrower strips, the calls cost more than threads would


def displacements(
    states: Sequence[Mapping[str, Array]], names: Sequence[str]
) -> Iterator[tuple[str, slice, Array]]:
    """Yields (name, slice of the flat parameter, theta_k - theta_n in this slice) for each block.

    theta_1 .. theta_n are the `states`, and the displacements are float64 (n, elements). The caller may
    modify this array; it is valid until the next block is requested.
    """
    n = len(states)
    length = max(1, min(BLOCK, BLOCK_BYTES // (8 * n)))
    buffer = np.empty(n * length)
    for name in names:
        reads: list[Callable[[int, int], Array]] = []  # elements start .. stop-1 of the parameter
        for state in states:
            if isinstance(state, StoredState):
                reads.append(partial(state.part, name))
            else:
                reads.append(partial(_elements, np.asarray(state[name]).reshape(-1)))
        size = int(np.prod(shape_of(states[-1], name), dtype=np.int64))
        for start in range(0, size, length):
            stop = min(start + length, size)
            block = buffer[: n * (stop - start)].reshape(n, stop - start)
            last = reads[-1](start, stop).astype(np.float64)
            for row, read in zip(block, reads, strict=True):
                np.subtract(read(start, stop), last, out=row)
            yield name, slice(start, stop), block


def _elements(flat: Array, start: int, stop: int) -> Array:
    return flat[start:stop]


def inner(a: Array, b: Array) -> Array:
    """a @ b.T, float64 (m, n), for a of shape (m, k) and b of shape (n, k)."""
    m, n, wide = len(a), len(b), a.shape[1]
    strip = _SERIAL // max(1, m * n)
    if strip < _NARROWEST or wide <= strip:
        return np.asarray(a @ b.T)
    count, whole = wide // strip, wide - wide % strip
    stack_a, stack_b = (x[:, :whole].reshape(len(x), count, strip).swapaxes(0, 1) for x in (a, b))
    total = (stack_a @ stack_b.swapaxes(1, 2)).sum(axis=0)
    return np.asarray(total + a[:, whole:] @ b[:, whole:].T)


def combine_rows(weights: Array, rows: Array) -> Array:
    """weights @ rows, float64 (m, k), for weights of shape (m, n) and rows of shape (n, k)."""
    m, n = weights.shape
    strip = max(_NARROWEST, _SERIAL // max(1, m * n))
    out = np.empty((m, rows.shape[1]))
    for start in range(0, rows.shape[1], strip):
        out[:, start : start + strip] = weights @ rows[:, start : start + strip]
    return out
