"""Sketches of torch parameters, computed where the parameters are: in host memory or on a device."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

from distsummary.checkpoints.sketch.count_sketch import BUCKETS, CHUNK, Sketcher, signs
from distsummary.checkpoints.sketch.parts import SketchedPart
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import Pending
from distsummary.frameworks.numpy import HostCopy
from distsummary.frameworks.torch import FRAMEWORK, local_part

GROUP = 16  # chunks added at a time on a device: 8 million elements, 65 MB of workspace
SUMMED = 64  # additions to the float32 sums before those sums are added to float64 totals
LANES = 4  # partial sums per bucket on the host; with 4, torch spreads each (longer) addition over threads

_Addition: TypeAlias = tuple[Tensor, Tensor, Tensor]  # buckets, values, signs: buckets += values * signs


class TorchSketching:
    """See `keeper.Sketching`. All parameters must be on one device at a time; they may be DTensors."""

    def __init__(self, parts: Iterable[SketchedPart], seed: int = 0) -> None:
        self._parts = parts
        self._sketcher = Sketcher(seed)
        self._signs = torch.from_numpy(signs(seed))
        self._host = _HostSketcher(self._sketcher, self._signs)

    def take(self) -> Pending:
        """See `Sketching.take`; raises InvalidValueError for parameters without values."""
        parts = list(self._parts)
        device = local_part(parts[0].tensor).device if parts else torch.device("cpu")
        if device.type == "meta":
            raise InvalidValueError(
                f"{parts[0].name} is on the device meta and has no values; materialize it first"
            )
        if device.type == "cpu":
            return HostCopy(self._host.take(parts).numpy())
        if self._signs.device != device:
            self._signs = self._signs.to(device)
        return FRAMEWORK.snapshot(on_device(self._sketcher, self._signs, parts))


class _HostSketcher:
    """Sketches parameters in host memory; prepares the additions of signed values once and repeats them.

    A prepared addition is a view of a parameter's memory; it is prepared again when the parameter
    moves to other memory or has another shape or dtype. A parameter that must be copied to be read (bfloat16,
    channels_last) is copied and prepared each time. Sums are float64 if any parameter is float64, because
    rounding to float32 would lose small changes.
    """

    def __init__(self, sketcher: Sketcher, table: Tensor) -> None:
        self._sketcher, self._table = sketcher, table
        self._sums = torch.zeros(LANES * BUCKETS)
        self._prepared: dict[str, tuple[Tensor, list[_Addition]]] = {}

    def take(self, parts: Sequence[SketchedPart]) -> Tensor:
        """The current sketch (BUCKETS,); float32 if no parameter is float64 and SUMMED additions suffice."""
        is_double = any(part.tensor.dtype == torch.float64 for part in parts)
        # The prepared additions are views of the sums, so both are made again.
        if is_double != (self._sums.dtype == torch.float64):
            self._sums, self._prepared = self._sums.to(torch.float64 if is_double else torch.float32), {}
        total, count = None, 0
        self._sums.zero_()
        for part in parts:
            for buckets, values, flips in self._additions(part):
                # float32 sums become inexact: from time to time they go into float64 totals.
                if count == SUMMED:
                    total, count = self._plus_sums(total), 0
                    self._sums.zero_()
                buckets.addcmul_(values, flips)
                count += 1
        return self._plus_sums(total)

    def _plus_sums(self, total: Tensor | None) -> Tensor:
        sums = self._sums.view(LANES, BUCKETS).sum(0)
        return sums if total is None else total.double().add_(sums)

    def _additions(self, part: SketchedPart) -> list[_Addition]:
        """The additions for this part; prepares them unless those from an earlier sketch are still valid."""
        local = local_part(part.tensor)
        if part.name in self._prepared:
            seen, additions = self._prepared[part.name]
            if seen.dtype == local.dtype and seen.is_set_to(local):
                return additions
            del self._prepared[part.name]
        flat, additions = _flat(part.name, local), []
        for start, run in part.runs:
            for piece, place, _, where in self._sketcher.pieces(part.name, flat[run], start):
                flips, at = self._table[where], 0
                # An addition ends where the sums end; the next one continues at their beginning.
                while at < len(piece):
                    stop = min(at + len(self._sums) - place, len(piece))
                    additions.append((self._sums[place : place + stop - at], piece[at:stop], flips[at:stop]))
                    at, place = stop, 0
        # A copy shows only the values of now, so its additions are not kept.
        if flat.data_ptr() == local.data_ptr():
            self._prepared[part.name] = local, additions
        return additions


def on_device(sketcher: Sketcher, table: Tensor, parts: Sequence[SketchedPart]) -> Tensor:
    """The sketch of the parts, float64 (BUCKETS,), on the device of `table`, which holds all signs.

    Atomic additions, whose order varies, are not used: equal parameters must give equal sketches.
    """
    total = torch.zeros(BUCKETS, dtype=torch.float64, device=table.device)
    for part in parts:
        flat = _flat(part.name, local_part(part.tensor))
        for start, run in part.runs:
            whole: list[tuple[Tensor, int, int]] = []  # whole chunks collected so far: values, bucket, offset
            for piece, place, _, where in sketcher.pieces(part.name, flat[run], start):
                # Whole chunks have one length and are added together, other pieces one by one.
                if len(piece) == CHUNK:
                    whole.append((piece, place, where.start))
                    continue
                rows = -(-len(piece) // BUCKETS)
                padded = torch.zeros(rows * BUCKETS, dtype=piece.dtype, device=table.device)
                padded[: len(piece)] = piece * table[where]
                total += torch.roll(padded.view(rows, BUCKETS).sum(0), place)
            for at in range(0, len(whole), GROUP):
                _add_chunks(total, table, whole[at : at + GROUP])
    return total


def _add_chunks(total: Tensor, table: Tensor, chunks: Sequence[tuple[Tensor, int, int]]) -> None:
    """Add whole chunks of equal length, each starting at its own bucket, to the sketch `total`."""
    pieces, buckets, offsets = zip(*chunks, strict=True)
    values = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    # `unfold` copies nothing; only the signs of these chunks are copied.
    flips = table.unfold(0, CHUNK, 1).index_select(0, _on(table.device, offsets))
    folded = (values.view(len(pieces), CHUNK) * flips).view(len(pieces), -1, BUCKETS).sum(1)
    # Turn the sums of each chunk to its first bucket before they are added up.
    turned = (torch.arange(BUCKETS, device=total.device) - _on(table.device, buckets)[:, None]) % BUCKETS
    total += folded.gather(1, turned).sum(0, dtype=torch.float64)


@cache
def _on(device: torch.device, values: tuple[int, ...]) -> Tensor:
    """The values on the device; cached, because each sketch needs them and copying waits for the device."""
    return torch.tensor(values).to(device)


def _flat(name: str, local: Tensor) -> Tensor:
    if local.is_complex():
        raise InvalidTypeError(
            f"a sketch needs real numbers, but {name} is complex; store it as torch.view_as_real"
        )
    if local.layout != torch.strided:
        raise InvalidTypeError(
            f"a sketch needs dense parameters, but {name} is sparse ({local.layout}); keep it dense and call "
            "to_sparse() in forward(), or freeze it"
        )
    flat = local.reshape(-1)
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
