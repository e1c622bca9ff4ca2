"""What a loop tells its callbacks under MindSpore's names, and how it knows."""

from typing import Any

from distsummary.topology import DATA_AXES, Topology


def common_params(callbacks: object, network: object, topology: Topology) -> dict[str, Any]:
    """The parameters that training and evaluation have in common."""
    return {
        "batch_num": 0,  # unknown
        "dataset_sink_mode": False,
        "device_number": topology.world_size,
        "list_callback": callbacks,
        "logged": {},
        "net_outputs": None,
        "network": network,
        "parallel_mode": parallel_mode(topology),
        "topology": topology,
    }


def parallel_mode(topology: Topology) -> str:
    """MindSpore's word for how the ranks share the work."""
    if topology.world_size == 1:
        return "stand_alone"
    splits = [axis for axis, (_, extent) in topology.mesh.items() if extent > 1 and axis not in DATA_AXES]
    return "hybrid_parallel" if splits else "data_parallel"


def length(loader: object) -> int:
    """Steps of a loader, 0 when it does not know."""
    try:
        return len(loader)  # type: ignore[arg-type]  # asked of anything iterable, answered or not
    except (TypeError, NotImplementedError):
        return 0
