"""Meshes: where the ranks of a run are in its mesh."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from distsummary.errors import DistSummaryError
from distsummary.rundir.rank_manifest import read_entries


class MeshPlace(NamedTuple):
    """A rank's coordinates in the mesh and the number of ranks; empty and 0 if that is not known."""

    coordinates: Mapping[str, int]
    world_size: int


NOWHERE = MeshPlace({}, 0)


class Meshes:
    """The places of ranks in the mesh, from their manifests.

    Args:
        directories: rank -> its directory.
    """

    def __init__(self, directories: Mapping[int, Path]) -> None:
        self.directories = directories
        self._known: dict[tuple[int, int], MeshPlace] = {}

    def place(self, attempt: int, rank: int) -> MeshPlace:
        """That of a rank in an attempt; not known without a manifest that can be read."""
        known = self._known.get((attempt, rank))
        if known is None:
            entry = None
            # A file that cannot be read is reported by fsck.
            with suppress(DistSummaryError):
                record = read_entries(self.directories[rank])
                entry = record and record.entry(attempt)
            if not entry:
                return NOWHERE
            mesh = entry.get("mesh") or {}
            coordinates = {axis: int(place[0]) for axis, place in sorted(mesh.items())}
            known = self._known[attempt, rank] = MeshPlace(coordinates, int(entry["world_size"]))
        return known
