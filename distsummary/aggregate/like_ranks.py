"""LikeRanks: what is compared between the ranks of one attempt, apart from how fast they are."""

from collections.abc import Callable

from distsummary.aggregate.rank_columns import RecordedScalars
from distsummary.diagnosis.drift import Drift
from distsummary.diagnosis.memory import MemoryImbalance
from distsummary.diagnosis.settings import different_settings
from distsummary.diagnosis.shard import SameBatches
from distsummary.diagnosis.verdict import Verdict
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.rank_facts import RankFacts

PATIENCE = 20  # steps until the settings of the ranks that reported theirs are compared without the others


class LikeRanks:
    """Compares settings, parameters, batches and memory of ranks, step by step.

    Args:
        meshes: where the ranks are in the mesh. attempt: the attempt.
        facts: returns those of a rank, None as long as it has not reported them.
    """

    def __init__(self, meshes: Meshes, attempt: int, facts: Callable[[int], RankFacts | None]) -> None:
        self._meshes, self._attempt, self._facts = meshes, attempt, facts
        self._seen: set[int] = set()
        self._first_step: int | None = None
        self._is_compared = False
        self._drift = Drift(self._coordinates, facts)
        self._batches = SameBatches(self._coordinates)
        self._memory = MemoryImbalance()

    def add(self, rows: RecordedScalars) -> list[Verdict]:
        """Compare some steps, larger than those before; returns what is new or ends."""
        found = [] if self._is_compared else self._settings(rows)
        return [*found, *self._batches.add(*rows)]

    def compare(self, alike: RecordedScalars, since: int) -> list[Verdict]:
        """Compare the parameters at the same steps, and `since` when these are aligned, see `SameSteps`."""
        return self._drift.add(*alike, aligned=since)

    def settle(self) -> list[Verdict]:
        """What is found if no steps follow."""
        return self._drift.settle()

    def add_samples(self, rows: RecordedScalars) -> list[Verdict]:
        """Compare samples of the system, of any steps."""
        return self._memory.add(*rows)

    def _coordinates(self, rank: int) -> dict[str, int]:
        return dict(self._meshes.place(self._attempt, rank).coordinates)

    def _settings(self, rows: RecordedScalars) -> list[Verdict]:
        """Compare the settings of the ranks, once: when all have reported theirs, or after PATIENCE steps."""
        if self._first_step is None:
            self._first_step = int(rows.steps.min())
        self._seen.update(rows.ranks.tolist())
        size = max(self._meshes.place(self._attempt, rank).world_size for rank in self._seen)
        reported = {rank: facts for rank in sorted(self._seen) if (facts := self._facts(rank)) is not None}
        if len(reported) < size and int(rows.steps.max()) < self._first_step + PATIENCE:
            return []
        self._is_compared = True
        return different_settings(reported, self._first_step)
