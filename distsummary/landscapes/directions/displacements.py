"""How far checkpoints lie from the last of them, block by block in float64, whatever they are kept in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.checkpoints.mapped import StoredState
from distsummary.landscapes.directions.array_rows import InRows, rows_of

Array = NDArray[Any]

BLOCK = 1 << 16  # elements: larger blocks leave the cache, 3 times slower
BLOCK_BYTES = 1 << 23  # of one block of all checkpoints, float64: of thousands it holds fewer elements


def displacements(
    states: Sequence[Mapping[str, Array]], names: Sequence[str]
) -> Iterator[tuple[str, slice, Array]]:
    """(name, slice of the flat parameter, theta_k - theta_n over it: float64 (n, elements)), block by block.

    The array is the caller's until the next one is asked for, to write to if he likes.
    """
    n = len(states)
    length = max(1, min(BLOCK, BLOCK_BYTES // (8 * n)))
    buffer = np.empty(n * length)
    for name in names:
        reads = [_reader(state, name) for state in states]
        size = int(np.prod(shape_of(states[-1], name), dtype=np.int64))
        for start in range(0, size, length):
            stop = min(start + length, size)
            block = buffer[: n * (stop - start)].reshape(n, stop - start)
            last = reads[-1](start, stop).astype(np.float64)
            for row, read in zip(block, reads, strict=True):
                np.subtract(read(start, stop), last, out=row)
            yield name, slice(start, stop), block


def shape_of(state: Mapping[str, Array], name: str) -> tuple[int, ...]:
    """The shape of a parameter, without reading it where it lies in a file or on a device."""
    return rows_of(state, name).shape if isinstance(state, StoredState | InRows) else np.shape(state[name])


def _reader(state: Mapping[str, Array], name: str) -> Callable[[int, int], Array]:
    """What gives elements start .. stop-1 of a parameter."""
    if isinstance(state, StoredState):
        return lambda start, stop: state.part(name, start, stop)
    flat = np.asarray(state[name]).reshape(-1)
    return lambda start, stop: flat[start:stop]
