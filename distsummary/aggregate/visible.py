"""Which ranks that have ended recorded more than their files show here yet.

A network file system caches the sizes of files: for up to a minute, a host may read less of a file than
its writer has written on another host (NFS: acregmax). The manifest of a rank that has ended has the
newest step that it recorded, so that a merge can wait for it.
"""

from distsummary.errors import DistSummaryError
from distsummary.events.newest import newest_step
from distsummary.rundir.run_dir import Manifest, RunDir


def hidden_ranks(run_dir: RunDir, entry: Manifest) -> list[int]:
    """The ranks of an attempt whose newest step their files do not show; `entry`: with its ranks.

    A rank that died or dropped values is none of them: what is in its files is not known.
    """
    return [
        int(rank)
        for rank, known in entry["ranks"].items()
        if known["state"] != "running" and _is_hidden(run_dir, entry, int(rank), known.get("health") or {})
    ]


def _is_hidden(run_dir: RunDir, entry: Manifest, rank: int, health: Manifest) -> bool:
    last = health.get("recorded_step")
    if last is None or health.get("dropped"):
        return False
    directory = run_dir.writer_dir(entry["role"], rank, entry["world_size"])
    try:
        seen = newest_step(directory, attempt=entry["attempt"])
    except (DistSummaryError, OSError):
        # The merge reports what cannot be read.
        return False
    return seen is not None and seen < last
