"""Sketches of torch parameters: in place on the host, by a few kernels on a device."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from distsummary.checkpoints.sketch.count_sketch import BUCKETS, CHUNK, Sketcher, signs
from distsummary.checkpoints.sketch.sketch_file import Pending
from distsummary.checkpoints.sketch.sketching import SketchedPart, TakenSketch
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.torch import FRAMEWORK

GROUP = 16  # whole chunks at a time: 8 million elements, 65 MB of workspace
SUMMED = 64  # additions to sums of 32 bits, before these are added to sums of 64
LANES = 4  # sums of each bucket on the host: fewer and longer additions, which torch shares among its threads


class TorchSketching:
    """See `sketching.Sketching`. The parameters lie on one device at a time; they may be DTensors."""

    def __init__(self, parts: Iterable[SketchedPart], seed: int = 0) -> None:
        self._parts = parts
        self._sketcher = Sketcher(seed)
        self._signs = torch.from_numpy(signs(seed))
        self._host = _Host(self._sketcher, self._signs)

    def take(self) -> Pending:
        """See Sketching; raises InvalidValueError for parameters without values."""
        parts = list(self._parts)
        device = _local(parts[0].tensor).device if parts else torch.device("cpu")
        if device.type == "meta":
            raise InvalidValueError(f"{parts[0].name} is on the device meta and has no values")
        if device.type == "cpu":
            return TakenSketch(self._host.take(parts).numpy())
        if self._signs.device != device:
            self._signs = self._signs.to(device)
        return FRAMEWORK.snapshot(on_device(self._sketcher, self._signs, parts))


class _Host:
    """Sketches of parameters in the host's memory: additions of signed values to buckets, made ready once.

    What is ready looks at the parameters' memory, and is made anew for one that has other memory, another
    shape in it or another dtype. One that must be copied to be read (bfloat16, channels_last) is so each
    time. Sums are of 64 bits where a parameter is: steps that are small against it would be lost in their
    rounding.
    """

    def __init__(self, sketcher: Sketcher, table: Tensor) -> None:
        self._sketcher, self._table = sketcher, table
        self._sums = torch.zeros(LANES * BUCKETS)
        self._ready: dict[str, tuple[Tensor, list[_Addition]]] = {}  # what is added looks at the tensor

    def take(self, parts: Sequence[SketchedPart]) -> Tensor:
        """The sketch now (BUCKETS,), of 32 bits where few additions make it."""
        is_double = any(part.tensor.dtype == torch.float64 for part in parts)
        if is_double != (self._sums.dtype == torch.float64):
            self._sums, self._ready = self._sums.to(torch.float64 if is_double else torch.float32), {}
        total, count = None, 0
        self._sums.zero_()
        for part in parts:
            for buckets, values, flipping in self._additions(part, _local(part.tensor)):
                if count == SUMMED:
                    total, count = self._with_sums(total), 0
                    self._sums.zero_()
                buckets.addcmul_(values, flipping)
                count += 1
        return self._with_sums(total)

    def _with_sums(self, total: Tensor | None) -> Tensor:
        sums = self._sums.view(LANES, BUCKETS).sum(0)
        return sums if total is None else total.double().add_(sums)

    def _additions(self, part: SketchedPart, local: Tensor) -> "list[_Addition]":
        if part.name in self._ready:
            seen, additions = self._ready[part.name]
            if seen.dtype == local.dtype and seen.is_set_to(local):
                return additions
            del self._ready[part.name]
        flat = _flat(part.name, local)
        additions = list(self._make(part, flat))
        if flat.data_ptr() == local.data_ptr():
            self._ready[part.name] = local, additions
        return additions

    def _make(self, part: SketchedPart, flat: Tensor) -> "Iterator[_Addition]":
        for start, run in part.runs:
            for piece, place, _, where in self._sketcher.pieces(part.name, flat[run], start):
                flipping, at = self._table[where], 0
                while at < len(piece):
                    stop = min(at + len(self._sums) - place, len(piece))
                    yield self._sums[place : place + stop - at], piece[at:stop], flipping[at:stop]
                    at, place = stop, 0


_Addition: TypeAlias = tuple[Tensor, Tensor, Tensor]  # buckets, and what is added: values times signs


def watch(model: nn.Module) -> Callable[[], bool]:
    """What tells whether a model still has the modules and parameters of now, of equal shapes, trained alike.

    To ask for all parameters by name takes a third of a small model's sketch.
    """
    held = [(of, list(of), list(of.values())) for module in model.modules() for of in _held(module)]
    known = [(p, p.shape, p.requires_grad) for p in model.parameters()]

    def is_same() -> bool:
        return all(
            list(of) == names and all(map(operator.is_, of.values(), values)) for of, names, values in held
        ) and all(p.shape == shape and p.requires_grad == trained for p, shape, trained in known)

    return is_same


def _held(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return module._modules, module._parameters


def on_device(sketcher: Sketcher, table: Tensor, parts: Sequence[SketchedPart]) -> Tensor:
    """The sketch of the parts, float64 (BUCKETS,) on the device of `table`, which holds all signs.

    Without atomic additions, so that equal parameters have equal sketches.
    """
    total = torch.zeros(BUCKETS, dtype=torch.float64, device=table.device)
    windows = table.unfold(0, CHUNK, 1)  # the signs from each offset on; no memory
    for part in parts:
        flat = _flat(part.name, _local(part.tensor))
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
        folded = padded.view(rows, BUCKETS).sum(0)
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


def _flat(name: str, local: Tensor) -> Tensor:
    if local.is_complex():
        raise InvalidTypeError(
            f"sketches are of real numbers, {name} is complex; keep it as torch.view_as_real"
        )
    if local.layout != torch.strided:
        raise InvalidTypeError(
            f"sketches are of dense parameters, {name} is sparse ({local.layout}); keep it dense and call "
            "to_sparse() in forward(), or freeze it"
        )
    flat = local.reshape(-1)
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()


def _local(tensor: Tensor) -> Tensor:
    """The part that lies here, sharing its memory."""
    detached = tensor.detach()
    to_local = getattr(detached, "to_local", None)  # a DTensor's, whose class takes a second to import
    return detached if to_local is None else to_local()
