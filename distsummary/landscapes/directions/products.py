"""Products of wide float64 matrices by BLAS on one thread.

Two threads that meet after every block wait for each other by spinning: 40 checkpoints cost five times the
CPU of one thread, and take no less time. BLAS libraries start threads from a size on, so the wide axis is cut
into strips below it. The sums are then also the same for any number of threads.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Multiplications in one product; OpenBLAS (interface/gemm.c: SMP_THRESHOLD_MIN * GEMM_MULTITHREAD_THRESHOLD)
# takes one thread up to here.
_SERIAL = 1 << 18
_NARROWEST = 32  # a strip: below, calls cost more than threads (from 90 rows on), and those have enough to do


def inner(a: Array, b: Array) -> Array:
    """a @ b.T, float64 (m, n), of a (m, k) and b (n, k)."""
    m, n, wide = len(a), len(b), a.shape[1]
    strip = _SERIAL // max(1, m * n)
    if strip < _NARROWEST or wide <= strip:
        return np.asarray(a @ b.T)
    count, whole = wide // strip, wide - wide % strip
    stack_a, stack_b = (x[:, :whole].reshape(len(x), count, strip).swapaxes(0, 1) for x in (a, b))
    total = (stack_a @ stack_b.swapaxes(1, 2)).sum(axis=0)
    return np.asarray(total + a[:, whole:] @ b[:, whole:].T)


def combine_rows(weights: Array, rows: Array) -> Array:
    """weights @ rows, float64 (m, k), of weights (m, n) and rows (n, k)."""
    m, n = weights.shape
    strip = max(_NARROWEST, _SERIAL // max(1, m * n))
    out = np.empty((m, rows.shape[1]))
    for start in range(0, rows.shape[1], strip):
        out[:, start : start + strip] = weights @ rows[:, start : start + strip]
    return out
