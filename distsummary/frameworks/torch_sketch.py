"""Sketches of torch parameters: in place on the host, by a few kernels on a device."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from distsummary.checkpoints.sketch import BUCKETS, CHUNK, Sketcher, signs
from distsummary.checkpoints.sketch_file import Pending
from distsummary.frameworks.sketching import SketchedPart, TakenSketch, add_part
from distsummary.frameworks.torch import FRAMEWORK

GROUP = 16  # whole chunks at a time: 8 million elements, 65 MB of workspace
_NUMPY_FLOATS = (torch.float32, torch.float64)


class TorchSketching:
    """See `sketching.Sketching`. The parameters lie on one device; they may be DTensors."""

    def __init__(self, parts: Sequence[SketchedPart], seed: int = 0) -> None:
        self._parts = parts
        self._sketcher = Sketcher(seed)
        self._device = _local(parts[0].tensor).device if parts else torch.device("cpu")
        if self._device.type != "cpu":
            self._signs = torch.from_numpy(signs(seed)).to(self._device)

    def take(self) -> Pending:
        """See Sketching."""
        if self._device.type != "cpu":
            return FRAMEWORK.snapshot(on_device(self._sketcher, self._signs, self._parts))
        total = np.zeros(BUCKETS)
        for part in self._parts:
            add_part(self._sketcher, total, part, _flat(part.tensor).numpy())
        return TakenSketch(total)


def on_device(sketcher: Sketcher, table: Tensor, parts: Sequence[SketchedPart]) -> Tensor:
    """The sketch of the parts, float64 (BUCKETS,) on the device of `table`, which holds all signs.

    Without atomic additions, so that equal parameters have equal sketches.
    """
    total = torch.zeros(BUCKETS, dtype=torch.float64, device=table.device)
    windows = table.unfold(0, CHUNK, 1)  # the signs from each offset on; no memory
    for part in parts:
        flat = _flat(part.tensor)
        for start, run in part.runs:
            _add_run(total, sketcher, table, windows, part.name, flat[run], start)
    return total


def _add_run(
    total: Tensor, sketcher: Sketcher, table: Tensor, windows: Tensor, name: str, flat: Tensor, start: int
) -> None:
    whole: list[tuple[Tensor, int, int]] = []  # chunks that follow each other: values, bucket, offset

    def add_whole() -> None:
        if whole:
            values = torch.cat([piece for piece, _, _ in whole]) if len(whole) > 1 else whole[0][0]
            places, offsets = (_numbers(tuple(of), table.device) for of in list(zip(*whole, strict=True))[1:])
            _add_chunks(total, values, places, windows.index_select(0, offsets))
            whole.clear()

    for piece, place, _, where in sketcher.pieces(name, flat, start):
        if len(piece) == CHUNK:
            whole.append((piece, place, where.start))
            if len(whole) == GROUP:
                add_whole()
            continue
        rows = -(-len(piece) // BUCKETS)
        padded = torch.zeros(rows * BUCKETS, dtype=piece.dtype, device=table.device)
        padded[: len(piece)] = piece * table[where]
        folded = padded.view(rows, BUCKETS).sum(0).double()
        total += torch.roll(folded, place)
    add_whole()


@cache
def _numbers(values: tuple[int, ...], device: torch.device) -> Tensor:
    """They are the same at every step, and to take them to a device is to wait for it."""
    return torch.tensor(values).to(device)


def _add_chunks(total: Tensor, values: Tensor, places: Tensor, flipping: Tensor) -> None:
    """Add whole chunks (n * CHUNK,) with their signs (n, CHUNK), each from its own bucket on."""
    count = len(places)
    folded = (values.view(count, CHUNK) * flipping).view(count, -1, BUCKETS).sum(1)
    turned = (torch.arange(BUCKETS, device=total.device) - places[:, None]) % BUCKETS
    total += folded.gather(1, turned).sum(0, dtype=torch.float64)


def _flat(tensor: Tensor) -> Tensor:
    local = _local(tensor).reshape(-1)
    return local if local.dtype in _NUMPY_FLOATS else local.float()


def _local(tensor: Tensor) -> Tensor:
    """The part that lies here, sharing its memory."""
    detached = tensor.detach()
    to_local = getattr(detached, "to_local", None)  # a DTensor's, whose class takes a second to import
    return detached if to_local is None else to_local()
