"""From the sums of a step to the inverses of the layers' factors, on one rank or divided among several.

With `average="factors"` the ranks add their sums: each layer's on the rank that inverts it, which sends the
inverses to the others. Layers are dealt by cost. With `average="inverses"`, as in MindSpore, each rank
inverts the factors of its own batch, and the inverses are averaged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from distsummary.thor import torch_blocks as blocks
from distsummary.thor.torch_layers import Layer, Sums

# The trace-based rule of the paper (Chen et al., THOR, AAAI-21) has three ranges of the change of the trace:
# refresh, keep, and never look again. These are the limits between them, relative to the trace.
KEEP, STOP = 0.01, 0.001
_FIGURES = 6  # numbers of an outcome


class RefreshStatus(IntEnum):
    """What a refresh did with a layer."""

    MISSING = 0  # it had no input or no gradient in this step
    SIZES = 1  # a convolution had images of several sizes in this step
    SINGULAR = 2  # a factor is not finite or not positive definite
    KEPT = 3  # its trace changed too little
    STOPPED = 4  # its trace changed so little that it is not looked at again
    REFRESHED = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a refresh for one layer.

    Attributes:
        figures: (6,): the status, the traces of A and G, the conditions of the damped A and G, and the
            positions, see `torch_layers.Factors`.
        a, g: the inverses, multiplied as MindSpore does; None unless the status is REFRESHED.
    """

    figures: Tensor
    a: Tensor | None = None
    g: Tensor | None = None

    @property
    def status(self) -> RefreshStatus:
        """What was done."""
        return RefreshStatus(int(self.figures[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The numbers that the factors and inverses of a step depend on.

    Attributes:
        batch: the samples of a rank, B. scale: B^2 / s^2. damping: lambda.
        by_trace: whether the paper's rule decides which layers are refreshed.
    """

    batch: int
    scale: float
    damping: float
    by_trace: bool = False

    def outcome(self, layer: Layer, sums: Sums | None, before: Tensor | None) -> Outcome:
        """Invert the factors of a layer.

        Args:
            sums: of the step; None: nothing was observed. before: the figures of its last refresh.
        """
        if sums is None or not sums.count:
            return _without(RefreshStatus.MISSING, layer)
        if sums.size[0] < 0:
            return _without(RefreshStatus.SIZES, layer)
        factors = layer.factors(sums, batch=self.batch, scale=self.scale)
        damping = math.sqrt(self.damping / factors.positions)
        trace_a = factors.a.sum() if factors.a.dim() == 1 else blocks.trace(factors.a)
        trace_g = blocks.trace(factors.g)
        if self.by_trace and before is not None:
            change = _change(layer, damping, (trace_a, trace_g), (before[1], before[2]))
            if change <= KEEP:
                return _without(RefreshStatus.STOPPED if change < STOP else RefreshStatus.KEPT, layer)
        if factors.a.dim() == 1:
            a = blocks.diagonal_inverse(factors.a, damping)
        else:
            a = blocks.damped_inverse(factors.a, damping, layer.inputs)
        g = blocks.damped_inverse(factors.g, damping, layer.outputs)
        if not bool(a.is_regular & g.is_regular):
            return _without(RefreshStatus.SINGULAR, layer, device=factors.a.device)
        gain = math.sqrt(1 / factors.positions)
        status, positions = trace_a.new_tensor([float(RefreshStatus.REFRESHED), float(factors.positions)])
        figures = torch.stack([status, trace_a, trace_g, a.condition, g.condition, positions])
        return Outcome(figures, a.blocks * gain, g.blocks * gain)


class Ranks:
    """The ranks that share their factors; each method is a collective operation of all of them.

    Args:
        group: a process group of torch.distributed; None: this process is alone.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def gathered(self, table: Tensor) -> list[Tensor]:
        """The table of each rank."""
        tables = [torch.empty_like(table) for _ in range(self.size)]
        dist.all_gather(tables, table, group=self._group)
        return tables

    def add(self, tensor: Tensor) -> None:
        """Add the tensors of all ranks, in place."""
        dist.all_reduce(tensor, group=self._group)

    def added(self, parts: Sequence[Tensor]) -> Tensor:
        """The sum over the ranks of the part for this rank, of one flat part for each rank.

        Each rank receives its parts alone, and adds them in the order of the ranks.
        """
        own, sent = parts[self.rank].numel(), torch.cat(list(parts))
        received = sent.new_empty(own * self.size)
        dist.all_to_all_single(
            received,
            sent,
            [own] * self.size,
            [part.numel() for part in parts],
            group=self._group,
        )
        return received.view(self.size, own).sum(0)

    def all_of(self, part: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """The flat part of each rank, whose sizes all know."""
        # all_gather takes tensors of equal size, so the parts are padded.
        padded = part.new_zeros(max(sizes))
        padded[: part.numel()] = part
        return [one[:size] for one, size in zip(self.gathered(padded), sizes, strict=True)]


def refresh(
    layers: Sequence[Layer],
    sums: Sequence[Sums | None],
    before: Sequence[Tensor | None],
    formula: Formula,
    ranks: Ranks,
    *,
    average: str,
    device: torch.device,
) -> list[Outcome]:
    """The outcome for each layer: the same on all ranks, which call this together.

    Args:
        layers: equal on all ranks. sums: of this rank's batch. before: the figures of the last refresh, if
        any.
        average: "factors" or "inverses". device: of what the ranks exchange.
    """
    if ranks.size == 1:
        return [formula.outcome(*one) for one in zip(layers, sums, before, strict=True)]
    if average == "inverses":
        own = [formula.outcome(*one) for one in zip(layers, sums, before, strict=True)]
        return _averaged(layers, own, ranks, device)
    owners = deal([layer.cost for layer in layers], ranks.size)
    totals = _totals(layers, sums, owners, ranks, device)
    # The sums are now those of all ranks, and so is the number of samples.
    formula = replace(formula, batch=formula.batch * ranks.size)
    own = [
        formula.outcome(layer, total, old) if owner == ranks.rank else _without(RefreshStatus.MISSING, layer)
        for layer, total, old, owner in zip(layers, totals, before, owners, strict=True)
    ]
    return _sent(layers, own, owners, ranks, device)


def deal(costs: Sequence[int], ranks: int) -> list[int]:
    """The rank for each cost: the costliest goes first, each to the rank with the smallest sum so far."""
    loads, owners = [0] * ranks, [0] * len(costs)
    # The place of a cost decides between equal ones, so that all ranks deal alike.
    for at in sorted(range(len(costs)), key=lambda at: (-costs[at], at)):
        owners[at] = loads.index(min(loads))
        loads[owners[at]] += costs[at]
    return owners


def _totals(
    layers: Sequence[Layer],
    sums: Sequence[Sums | None],
    owners: Sequence[int],
    ranks: Ranks,
    device: torch.device,
) -> list[Sums | None]:
    """The sums over all ranks of the layers that this rank owns, and None for others."""
    # Ranks may have seen different numbers of samples, or none, so they first agree on counts and sizes.
    rows = [[one.count, *one.size] if one is not None else [0, 0, 0] for one in sums]
    tables = ranks.gathered(torch.tensor(rows, dtype=torch.int64, device=device))
    of_ranks = torch.stack(tables).tolist()
    agreed: list[tuple[int, tuple[int, int]]] = []  # count and size of each layer
    for at in range(len(layers)):
        found = [(row[at][0], (row[at][1], row[at][2])) for row in of_ranks if row[at][0]]
        sizes = {size for _, size in found}
        agreed.append((sum(count for count, _ in found), sizes.pop() if len(sizes) == 1 else (-1, -1)))
    present = [at for at in range(len(layers)) if agreed[at][0] and agreed[at][1][0] >= 0]
    # A rank that has seen nothing of a layer adds zeros.
    sent = {at: sums[at] or layers[at].nothing(agreed[at][1], device) for at in present}
    by_owner = [[at for at in present if owners[at] == owner] for owner in range(ranks.size)]
    own = by_owner[ranks.rank]
    dtype = _widest(layers)
    flat = [_flat([t for at in of for t in (sent[at].a, sent[at].g)], dtype, device) for of in by_owner]
    added = iter(_unflat(ranks.added(flat), [t for at in own for t in (sent[at].a, sent[at].g)]))
    # Images of several sizes have a count without sums, so that `outcome` can name the reason.
    none = torch.empty(0, dtype=dtype, device=device)
    totals: list[Sums | None] = [
        None if not count else Sums(none, none, count, size) for count, size in agreed
    ]
    for at in own:
        totals[at] = Sums(next(added), next(added), *agreed[at])
    return totals


def _sent(
    layers: Sequence[Layer],
    own: Sequence[Outcome],
    owners: Sequence[int],
    ranks: Ranks,
    device: torch.device,
) -> list[Outcome]:
    """The outcomes of the owners, on all ranks."""
    dtype = _widest(layers)
    # Each rank fills the rows of its own layers, so the sum over the ranks is the whole table.
    table = torch.zeros(len(layers), _FIGURES, dtype=dtype, device=device)
    for at, outcome in enumerate(own):
        if owners[at] == ranks.rank:
            table[at] = outcome.figures
    ranks.add(table)
    outcomes = [Outcome(row.to(layer.dtype)) for row, layer in zip(table, layers, strict=True)]
    fresh = [at for at, outcome in enumerate(outcomes) if outcome.status is RefreshStatus.REFRESHED]
    by_owner = [[at for at in fresh if owners[at] == owner] for owner in range(ranks.size)]
    sizes = [sum(_size(layers[at]) for at in of) for of in by_owner]
    if not fresh:
        return outcomes
    mine = [own[at] for at in by_owner[ranks.rank]]
    inverses = [inverse for one in mine for inverse in (one.a, one.g) if inverse is not None]
    buffer = _flat(inverses, dtype, device)
    for of, received in zip(by_owner, ranks.all_of(buffer, sizes), strict=True):
        shapes = [shape for at in of for shape in (layers[at].shape_a, layers[at].shape_g)]
        parts = iter(torch.split(received, [math.prod(shape) for shape in shapes]))
        for at in of:
            layer = layers[at]
            a, g = (next(parts).view(shape).to(layer.dtype) for shape in (layer.shape_a, layer.shape_g))
            outcomes[at] = replace(outcomes[at], a=a, g=g)
    return outcomes


def _averaged(
    layers: Sequence[Layer], own: Sequence[Outcome], ranks: Ranks, device: torch.device
) -> list[Outcome]:
    """The mean of the ranks' inverses and figures; a rank that could not invert a layer does not count."""
    dtype = _widest(layers)
    parts: list[Tensor] = []
    # What a rank could not invert is sent as zeros, because all ranks must send buffers of one layout.
    for layer, outcome in zip(layers, own, strict=True):
        is_fresh = outcome.status is RefreshStatus.REFRESHED
        parts.append(outcome.figures if is_fresh else torch.zeros(_FIGURES, dtype=layer.dtype, device=device))
        for inverse, shape in ((outcome.a, layer.shape_a), (outcome.g, layer.shape_g)):
            parts.append(torch.zeros(shape, dtype=layer.dtype, device=device) if inverse is None else inverse)
    buffer = _flat(parts, dtype, device)
    ranks.add(buffer)
    added = iter(_unflat(buffer, parts))
    outcomes: list[Outcome] = []
    for layer, outcome in zip(layers, own, strict=True):
        figures, a, g = (next(added).to(layer.dtype) for _ in range(3))
        # Each rank that has inverted the layer added its status, REFRESHED, so the sum counts these ranks.
        count = round(float(figures[0]) / RefreshStatus.REFRESHED)
        outcomes.append(Outcome(figures / count, a / count, g / count) if count else outcome)
    return outcomes


def _without(status: RefreshStatus, layer: Layer, device: torch.device | str = "cpu") -> Outcome:
    figures = torch.zeros(_FIGURES, dtype=layer.dtype, device=device)
    figures[0] = float(status)
    return Outcome(figures)


def _change(layer: Layer, damping: float, now: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor]) -> float:
    """The relative change of the trace of the damped Kronecker product."""
    sizes = (
        layer.groups * layer.inputs if len(layer.shape_a) > 1 else layer.inputs,
        layer.groups * layer.outputs,
    )
    new, old = (float((a + damping * sizes[0]) * (g + damping * sizes[1])) for a, g in (now, before))
    return abs(new - old) / old if old else math.inf


def _size(layer: Layer) -> int:
    """The elements of both inverses."""
    return math.prod(layer.shape_a) + math.prod(layer.shape_g)


def _widest(layers: Sequence[Layer]) -> torch.dtype:
    dtype = torch.float32
    for layer in layers:
        dtype = torch.promote_types(dtype, layer.dtype)
    return dtype


def _flat(tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    # The empty tensor gives the result its dtype and device if there are no others.
    empty = torch.empty(0, dtype=dtype, device=device)
    return torch.cat([empty, *[tensor.reshape(-1).to(device, dtype) for tensor in tensors]])


def _unflat(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a flat buffer, in the shapes and dtypes of the tensors that it was made of."""
    parts = torch.split(buffer, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, like, strict=True)]
