"""Reads torch's flight recorder: which collectives of each process group this rank has begun, and not ended.

torch records them by default for gloo and NCCL (TORCH_FR_BUFFER_SIZE > 0); nothing synchronises.
"""

from itertools import chain
from typing import Any

import torch.distributed

from distsummary.diagnosis.stuck import Collective, ProcessGroup
from distsummary.frameworks.torch_private import flight_records, process_groups

NEWEST = 32  # collectives of a group that are reported, in addition to the pending ones
ON, OFF = "on", "off"


def read_groups(*, is_broken: bool = False) -> tuple[str, tuple[ProcessGroup, ...]]:
    """Whether it is ON or OFF, or empty without process groups; and the groups of this rank.

    `is_broken`: the newest collective has raised, and counts as a pending one.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return "", ()
    # The records are with what has ended, since gloo marks nothing as active.
    members, found = process_groups(), flight_records()
    if not any(found):
        return OFF, ()
    if is_broken:
        # The newest entry is the collective that has raised.
        max(chain.from_iterable(found), key=lambda entry: int(entry["time_created_ns"]))["retired"] = False
    entries: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in chain.from_iterable(found):
        name, backend = entry["process_group"][0], entry["profiling_name"].partition(":")[0]
        # Sends and receives are counted apart for each pair of ranks, collectives for each backend.
        if name in members and not entry["is_p2p"]:
            entries.setdefault((name, backend), []).append(entry)
    return ON, tuple(
        ProcessGroup(f"{name} ({backend})", members[name], _collectives(listed))
        for (name, backend), listed in entries.items()
    )


def _collectives(entries: list[dict[str, Any]]) -> tuple[Collective, ...]:
    """The newest by rising number, and the pending ones before them."""
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
