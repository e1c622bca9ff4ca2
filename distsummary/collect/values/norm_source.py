"""What norms=... means, and which rank measures which update at which step; imports no framework."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distsummary.base.guard import check
from distsummary.collect.plan import group_along, share
from distsummary.errors import InvalidValueError
from distsummary.format.norms import ParameterTable
from distsummary.frameworks.base import refuse_without_torch
from distsummary.rundir.deal import Group

FLOAT32, FLOAT64 = PRECISIONS = ("float32", "float64")
SPREAD = 8  # with fewer replicas, each parameter's update is measured at every 8th step at least


@check()
def refuse_unmeasured(model: Any) -> None:
    """Raise InvalidValueError or InvalidTypeError unless this is a model whose norms can be measured."""
    if model is None:
        raise InvalidValueError(
            "norms=... measures the parameters of the watched model, got watch=None; pass the model: "
            "ds.init(..., watch=model, norms=True), as network= to a Run of your own, or leave norms out"
        )
    refuse_without_torch("norms", model)
    # This module imports torch, which is imported already.
    from distsummary.frameworks.torch_modules import has_fsdp1

    if has_fsdp1(model):
        raise InvalidValueError(
            "norms=... cannot find which parameter a rank's part of FullyShardedDataParallel (FSDP1) "
            "belongs to; shard the model by torch.distributed.fsdp.fully_shard (FSDP2), or leave norms out"
        )


class UpdateDeal:
    """Which updates this rank measures: of each parameter one of its replicas does, at its turn.

    The ranks that hold the same part of a parameter divide such parameters by size. If they are fewer than
    SPREAD, they also spread them over steps, so that no rank copies more than 1 / SPREAD of the parameters at
    a step. Ranks that hold different parts of a parameter measure it at the same steps.

    Args:
        table: the parameters. splits: the axes of the mesh that split each of them.
        group: the ranks that have equal whole parameters. mesh: of this rank, see `Topology`.
    """

    def __init__(
        self,
        table: ParameterTable,
        splits: Sequence[tuple[str, ...]],
        group: Group,
        mesh: Mapping[str, tuple[int, int]],
    ) -> None:
        self._rounds: list[list[frozenset[int]]] = []  # for each way of splitting: the places at each turn
        for split in sorted(set(splits)):
            whole_along = [axis for axis in mesh if axis not in split]
            replicas = group_along(mesh, whole_along) if split else group
            places = {name: at for at, name in enumerate(table.names) if splits[at] == split}
            sizes = {name: math.prod(table.shapes[at]) for name, at in places.items()}
            # With fewer replicas than SPREAD, each of them divides its share among several turns.
            turns = -(-SPREAD // replicas.size)
            own = (
                Group(index=replicas.index * turns + turn, size=replicas.size * turns)
                for turn in range(turns)
            )
            self._rounds.append([frozenset(places[name] for name in share(sizes, mine)) for mine in own])

    def due(self, turn: int, places: Iterable[int]) -> list[int]:
        """Those of `places` in the table whose update this rank measures; `turn` counts from 0."""
        mine = [turns[turn % len(turns)] for turns in self._rounds]
        return [place for place in places if any(place in one for one in mine)]
