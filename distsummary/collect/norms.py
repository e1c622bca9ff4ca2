"""What norms=... means, and which rank measures which update at which step; imports no framework."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from distsummary.collect.options import refuse_without_torch
from distsummary.collect.plan import Group, share
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.norms import ParameterTable

PRECISIONS = ("float32", "float64")
SPREAD = 8  # with fewer replicas, each parameter's update is measured at every 8th step at least


def check_norms(norms: object) -> str | None:
    """The precision of the norms, None if they are not recorded; raises for anything but bool and text."""
    if isinstance(norms, bool):
        return PRECISIONS[0] if norms else None
    if not isinstance(norms, str):
        raise InvalidTypeError(
            f'norms must be True, False, "float32" or "float64", got {norms!r} of type {type(norms).__name__}'
        )
    if norms not in PRECISIONS:
        raise InvalidValueError(
            f'norms must be True, False, "float32" or "float64", got {norms!r}; True means "float32"'
        )
    return norms


def refuse_unmeasured(model: object) -> None:
    """Raise InvalidValueError or InvalidTypeError unless this is a model whose norms can be measured."""
    if model is None:
        raise InvalidValueError(
            "norms=... measures the parameters of the watched model, got watch=None; pass the model: "
            "ds.init(..., watch=model, norms=True), as network= to a Run of your own, or leave norms out"
        )
    refuse_without_torch("norms", model)
    module: Any = model  # a torch.nn.Module
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
        raise InvalidValueError(
            "norms=... cannot tell which parameter a rank's part of FullyShardedDataParallel (FSDP1) "
            "belongs to; shard the model by torch.distributed.fsdp.fully_shard (FSDP2), or leave norms out"
        )


class UpdateDeal:
    """Which updates this rank measures: of each parameter one of its replicas does, at its turn.

    The ranks that hold the same part of a parameter divide such parameters by size. If they are fewer than
    SPREAD, they also spread them over steps, so that nobody copies more than 1 / SPREAD of the parameters at
    a step. Ranks that hold different parts of a parameter measure it at the same steps.

    Args:
        table: the parameters.
        group: the ranks that have equal whole parameters. mesh: of this rank, see `Topology`.
    """

    def __init__(self, table: ParameterTable, group: Group, mesh: Mapping[str, tuple[int, int]]) -> None:
        self._turns: dict[int, list[list[int]]] = {}  # how many turns -> the places in the table at each
        for split in sorted(set(table.split)):
            replicas = _replicas(split, mesh) if split else group
            turns = -(-SPREAD // replicas.size)
            sizes = {
                name: math.prod(shape)
                for name, shape, axes in zip(table.names, table.shapes, table.split, strict=True)
                if axes == split
            }
            places = {name: place for place, name in enumerate(table.names)}
            dealt = self._turns.setdefault(turns, [[] for _ in range(turns)])
            for turn, mine in enumerate(dealt):
                bin_of_turn = Group(index=replicas.index * turns + turn, size=replicas.size * turns)
                mine += [places[name] for name in share(sizes, bin_of_turn)]
                mine.sort()

    def due(self, step: int) -> Sequence[int]:
        """The places of the parameters whose update this rank measures at a step, in the table's order."""
        dealt = [places[(step - 1) % turns] for turns, places in self._turns.items()]
        return dealt[0] if len(dealt) == 1 else sorted(place for places in dealt for place in places)


def _replicas(split: tuple[str, ...], mesh: Mapping[str, tuple[int, int]]) -> Group:
    """The ranks that hold the same part of what is split over some axes of the mesh."""
    index, size = 0, 1
    for _, (coordinate, extent) in sorted(item for item in mesh.items() if item[0] not in split):
        index = index * extent + coordinate
        size *= extent
    return Group(index=index, size=size)
