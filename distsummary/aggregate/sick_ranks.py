"""SickRanks: all that is looked for in the scalars and the facts of ranks, apart from those that are slow."""

from distsummary.aggregate.statistics import RecordedScalars
from distsummary.diagnosis.drift import Drift
from distsummary.diagnosis.growth import Growth
from distsummary.diagnosis.loader import LoaderShare
from distsummary.diagnosis.memory import MemoryImbalance
from distsummary.diagnosis.settings import different_settings
from distsummary.diagnosis.shard import SameBatches
from distsummary.diagnosis.sick import FirstNonFinite
from distsummary.diagnosis.verdict import Verdict
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.rank_facts import RankFacts, read_facts

PATIENCE = 20  # steps until the settings of the ranks that reported theirs are compared without the others


class SickRanks:
    """Judges the ranks of one attempt by what they reported of it, step by step.

    Args:
        meshes: where the ranks are in the mesh, and their directories, which hold their facts.
        attempt: the attempt.
    """

    def __init__(self, meshes: Meshes, attempt: int) -> None:
        self._meshes, self._attempt = meshes, attempt
        self._facts: dict[int, RankFacts] = {}
        self._seen: set[int] = set()
        self._first_step: int | None = None
        self._is_compared = False
        self._non_finite = FirstNonFinite(self._name)
        self._drift = Drift(self._coordinates, self._names)
        self._batches = SameBatches(self._coordinates)
        self._loader = LoaderShare()
        self._memory, self._growth = MemoryImbalance(), Growth()

    def add(self, rows: RecordedScalars) -> list[Verdict]:
        """Judge all scalars of some steps, larger than those before; returns what is new or ends."""
        if not len(rows.steps):
            return []
        found = self._settings(rows) if not self._is_compared else []
        return [
            *found,
            *self._non_finite.add(*rows),
            *self._drift.add(*rows),
            *self._batches.add(*rows),
            *self._loader.add(*rows),
            *self.add_samples(rows),
        ]

    def add_samples(self, rows: RecordedScalars) -> list[Verdict]:
        """Judge samples of the system, of any steps."""
        return [*self._memory.add(*rows), *self._growth.add(*rows)]

    def _coordinates(self, rank: int) -> dict[str, int]:
        return dict(self._meshes.place(self._attempt, rank).coordinates)

    def _settings(self, rows: RecordedScalars) -> list[Verdict]:
        """Compare the settings of the ranks, once: when all have reported theirs, or after PATIENCE steps."""
        if self._first_step is None:
            self._first_step = int(rows.steps.min())
        self._seen.update(rows.ranks.tolist())
        size = max(self._meshes.place(self._attempt, rank).world_size for rank in self._seen)
        reported = [rank for rank in sorted(self._seen) if self._of(rank) is not None]
        if len(reported) < size and int(rows.steps.max()) < self._first_step + PATIENCE:
            return []
        self._is_compared = True
        return different_settings({rank: self._facts[rank] for rank in reported}, self._first_step)

    def _of(self, rank: int) -> RankFacts | None:
        """The facts of a rank, None as long as it has not reported them."""
        if rank not in self._facts:
            directory = self._meshes.directories.get(rank)
            found = None if directory is None else read_facts(directory, self._attempt)
            if found is not None:
                self._facts[rank] = found
        return self._facts.get(rank)

    def _names(self, rank: int, group: str) -> list[str]:
        facts = self._of(rank)
        return [] if facts is None else facts.names_of(group)

    def _name(self, rank: int, index: int) -> str:
        facts = self._of(rank)
        is_known = facts is not None and 0 <= index < len(facts.names)
        return repr(facts.names[index]) if facts is not None and is_known else f"number {index + 1}"
