"""Reads torch's flight recorder: which collectives of each process group this rank has begun and not ended.

torch records them by default for gloo and NCCL (TORCH_FR_BUFFER_SIZE > 0); nothing synchronises.
"""

import pickle
from typing import Any

import torch.distributed
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from distsummary.diagnosis.stuck import Collective, Group

NEWEST = 32  # collectives of a group that are told, besides those that go on
ON, OFF = "on", "off"


def read_groups() -> tuple[str, tuple[Group, ...]]:
    """Whether it is ON or OFF, or empty without process groups; and the groups of this rank."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return "", ()
    world = distributed_c10d._world
    members = {
        str(world.pg_names[group]): tuple(sorted(ranks)) for group, ranks in world.pg_group_ranks.items()
    }
    dump = getattr(_distributed_c10d, "_dump_fr_trace", None)
    if dump is None:
        return OFF, ()
    # our own process wrote it; without stacks, and with what has ended, as gloo marks nothing as active
    found: dict[str, Any] = pickle.loads(dump(True, False, False))
    entries: dict[str, list[dict[str, Any]]] = {}
    for entry in found.get("entries", ()):
        if not entry["is_p2p"]:  # these have numbers of their own, one for each pair
            entries.setdefault(entry["process_group"][0], []).append(entry)
    if not found.get("entries"):
        return OFF, ()
    return ON, tuple(
        Group(name, members[name], _collectives(listed))
        for name, listed in entries.items()
        if name in members
    )


def _collectives(entries: list[dict[str, Any]]) -> tuple[Collective, ...]:
    """The newest by rising number, and those before that go on."""
    first = len(entries) - NEWEST
    return tuple(
        Collective(
            entry["collective_seq_id"],
            entry["profiling_name"].rpartition(":")[2],
            tuple(map(tuple, entry["input_sizes"])),
            not entry["retired"],
        )
        for number, entry in enumerate(entries)
        if number >= first or not entry["retired"]
    )
