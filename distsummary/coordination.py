"""What a rank may ask of whoever makes one run out of all ranks."""

from dataclasses import dataclass
from typing import Protocol

from distsummary.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The answer to a rank that joins a run: `run_id` is 16 hex digits, `attempt` counts from 0."""

    run_id: str
    attempt: int


class Coordinator(Protocol):
    """One per run: the run dir itself (`run_dir.LocalCoordinator`) or the aggregator actor."""

    def register(self, topology: Topology) -> Registration:
        """Join the run; all ranks of one incarnation get the same attempt."""

    def lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        """Report this rank's lineage (`Lineage.to_bytes`); raises StaleAttemptError for an older attempt."""

    def finish(self, topology: Topology, attempt: int, health: dict[str, int]) -> None:
        """Leave the run, everything written; the last rank to leave may have the merged run written first."""
