"""batch_digest: a number that shows whether ranks are given the same data."""

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from distsummary.diagnosis.check_tags import halves
from distsummary.format.records import Array
from distsummary.frameworks.base import Computed, Pending, framework_of, tensors_in

MAX_BYTES = 1 << 20  # of a batch; of a larger one, pieces are taken
_PIECES = 256
_MAX_TENSORS = 8


def batch_digest(batch: object) -> "tuple[float | Pending, float | Pending] | None":
    """Two scalars made of the tensors of a batch; None if it has none.

    Tensors on devices are left out if there are some on the host. Else the first one is summed up there, and
    the scalars are on their way.
    """
    here: list[Array] = []
    there: list[Any] = []
    for tensor in tensors_in(batch):
        device = getattr(getattr(tensor, "device", None), "type", "cpu")
        if device != "cpu":
            there.append(tensor)
        elif len(here) < _MAX_TENSORS:
            here.append(_octets(tensor))
    if here:
        digest = hashlib.blake2b(digest_size=6)
        for octets in here:
            # With the sizes, bytes that move from one tensor to the next change the digest.
            digest.update(str(octets.size).encode())
            for piece in _pieces(octets, MAX_BYTES // len(here)):
                digest.update(piece.data)
        return halves(int.from_bytes(digest.digest(), "little"))
    if there and framework_of(there[0]).name == "torch":
        # This module imports torch, which the tensor's owner has imported already.
        from distsummary.collect.compare.torch_checksums import device_sum

        arriving = framework_of(there[0]).snapshot(device_sum(there[0].detach()))
        return Computed(arriving, partial(_half, 0)), Computed(arriving, partial(_half, 1))
    return None


def _half(place: int, bit_sum: Any) -> float:
    """One of the two scalars made of a bit sum."""
    total = int(np.asarray(bit_sum).reshape(-1)[0])
    # The remainder by a prime depends on all bits of the sum.
    return halves(total % ((1 << 48) - 59))[place]


def _octets(tensor: Any) -> Array:
    """The bytes of a tensor on the host, copied only if they have gaps."""
    if framework_of(tensor).name == "torch":
        # This module imports torch, which is imported already.
        from distsummary.collect.compare.torch_checksums import octets_of

        octets: Array = octets_of(tensor)
        return octets
    return np.ascontiguousarray(framework_of(tensor).to_numpy(tensor)).reshape(-1).view(np.uint8)


def _pieces(octets: Array, most: int) -> Iterator[Array]:
    """All bytes, or pieces of them at equal distances that have `most` bytes together."""
    if octets.size <= most:
        yield octets
        return
    size = most // _PIECES
    for start in np.linspace(0, octets.size - size, _PIECES).astype(np.int64).tolist():
        yield octets[start : start + size]
