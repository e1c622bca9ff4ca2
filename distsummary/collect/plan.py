"""Decides which rank records which values at which steps. Its functions are pure, so all ranks agree.

Which rank records a value depends on where the value is:

- replicated (equal on all data-parallel ranks): the ranks divide the work, so that each of W ranks does 1/W;
- sharded: every rank records its own part, at the same steps;
- local (loss, images, timings): every rank records it.
"""

import heapq
import math
from collections.abc import Collection, Mapping

from distsummary.base.checks import check_int
from distsummary.errors import InvalidValueError
from distsummary.rundir.deal import Group, Steps
from distsummary.rundir.topology import DATA_AXES, Topology

DEALS = ("parameters", "steps", "all")  # how ranks divide replicated parameters; see `SummaryCollector`


def tensor_range(total: int, freq: int, tensor_freq: int | None = None) -> range:
    """The steps at which tensors are recorded, as in MindSpore (callers skip the 0 and add step 1).

    Args:
        total: steps of the whole training, >= 0. freq: collect_freq, >= 1.
        tensor_freq: collect_tensor_freq, >= 1; None spreads about 20 steps over the training.
    """
    total = check_int("total", total, low=0)
    freq = check_int("freq", freq, low=1)
    tensor_freq = check_int("tensor_freq", tensor_freq, low=1, optional=True)
    if tensor_freq is not None:
        return range(0, total + 1, tensor_freq)
    if len(range(0, total + 1, freq)) <= 20:
        return range(0, total + 1, freq)
    spread = total // 19
    return range(0, total + 1, spread)[:20] if spread > 1 else range(0, total + 1)[:21]


def regular_steps(freq: int) -> Steps:
    """The steps at which everything except tensors is recorded."""
    return Steps(every=freq)


def tensor_steps(total: int | None, freq: int, tensor_freq: int | None = None) -> Steps:
    """The steps for tensors. Without `total`: multiples of `tensor_freq`, or 1, 2, 4 ... times `freq`."""
    if total is not None:
        members = tensor_range(total, freq, tensor_freq)
        return Steps(every=members.step, stop=members.stop)
    return Steps(every=freq, doubling=True) if tensor_freq is None else Steps(every=tensor_freq)


# The group of a rank that a deal leaves out because it was taken for dead: no share is its own.
LEFT_OUT = Group(index=-1)


def dealing_group(topology: Topology) -> Group:
    """The ranks that hold the same replicated values as this one.

    Without a mesh these are all ranks. With a mesh they are the ranks whose coordinates differ only along
    data axes. A value that is also equal on tensor-parallel ranks is then recorded by each of these, but no
    value that differs between them is left out.

    Raises InvalidValueError for a mesh that does not fit into the world.
    """
    if not topology.mesh:
        return Group(index=topology.rank, size=topology.world_size)
    for axis, (coordinate, extent) in topology.mesh.items():
        check_int(f"the size of mesh axis {axis!r}", extent, low=1)
        check_int(f"the coordinate along mesh axis {axis!r}", coordinate, low=0, high=extent - 1)
    ranks = math.prod(extent for _, extent in topology.mesh.values())
    if topology.world_size % ranks:
        raise InvalidValueError(
            f"mesh {dict(topology.mesh)} has {ranks} ranks, but world_size is {topology.world_size}; "
            "the product of the axis sizes must divide the world size"
        )
    return group_along(topology.mesh, DATA_AXES)


def group_along(mesh: Mapping[str, tuple[int, int]], axes: Collection[str]) -> Group:
    """The ranks whose coordinates in the mesh differ from this rank's along `axes` only."""
    index, size = 0, 1
    for _, (coordinate, extent) in sorted(item for item in mesh.items() if item[0] in axes):
        index = index * extent + coordinate
        size *= extent
    return Group(index=index, size=size)


def share(sizes: Mapping[str, int], group: Group) -> frozenset[str]:
    """The parameters that this rank records, balanced by bytes; one rank of the group records each.

    Assigns the largest parameter first, each to the rank with the fewest bytes so far (Graham 1969: no rank
    gets over 4/3 of the optimum). A parameter never changes its rank: within the group, each tag is in the
    files of one rank only.

    Args:
        sizes: parameter name -> bytes; the order does not matter.
    """
    loads = [(0, rank) for rank in range(group.size)]  # a heap: the least loaded rank first
    mine = []
    # By size and then by name, so that every rank finds the same order.
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        load, rank = loads[0]
        # Empty parameters count as one byte, so that they are spread, too.
        heapq.heapreplace(loads, (load + max(size, 1), rank))
        if rank == group.index:
            mine.append(name)
    return frozenset(mine)
