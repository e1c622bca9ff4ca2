"""SickRanks: all that is looked for in the scalars and the facts of ranks, apart from those that are slow."""

from typing import TYPE_CHECKING

from distsummary.aggregate.rank_columns import RecordedScalars
from distsummary.diagnosis.growth import Growth
from distsummary.diagnosis.loader import LoaderShare
from distsummary.diagnosis.sick import FirstNonFinite
from distsummary.diagnosis.verdict import Verdict
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.rank_facts import RankFacts, read_facts

if TYPE_CHECKING:
    from distsummary.aggregate.like_ranks import LikeRanks


class SickRanks:
    """Judges the ranks of one attempt by what they reported of it, step by step.

    Args:
        meshes: where the ranks are in the mesh, and their directories, which hold their facts.
        attempt: the attempt.
    """

    def __init__(self, meshes: Meshes, attempt: int) -> None:
        self._meshes, self._attempt = meshes, attempt
        self._facts: dict[int, RankFacts] = {}
        self._non_finite = FirstNonFinite(self._name)
        self._loader, self._growth = LoaderShare(), Growth()
        self._like = self._like_ranks() if len(meshes.directories) > 1 else None

    def _like_ranks(self) -> "LikeRanks":
        # A run of one rank is judged in its own process, and compares nothing.
        from distsummary.aggregate.like_ranks import LikeRanks

        return LikeRanks(self._meshes, self._attempt, self._of)

    def add(self, rows: RecordedScalars) -> list[Verdict]:
        """Judge all scalars of some steps, larger than those before; returns what is new or ends."""
        if not len(rows.steps):
            return []
        return [
            *self._non_finite.add(*rows),
            *(self._like.add(rows) if self._like is not None else ()),
            *self._loader.add(*rows),
            *self.add_samples(rows),
        ]

    def compare(self, alike: RecordedScalars, since: int) -> list[Verdict]:
        """Judge what all ranks have alike at the same step, as `SameSteps` returns it."""
        return [] if self._like is None else self._like.compare(alike, since)

    def settle(self) -> list[Verdict]:
        """What is found if no steps follow."""
        return [] if self._like is None else self._like.settle()

    def add_samples(self, rows: RecordedScalars) -> list[Verdict]:
        """Judge samples of the system, of any steps."""
        compared = [] if self._like is None else self._like.add_samples(rows)
        return [*compared, *self._growth.add(*rows)]

    def _of(self, rank: int) -> RankFacts | None:
        """The facts of a rank, None as long as it has not reported them."""
        if rank not in self._facts:
            directory = self._meshes.directories.get(rank)
            found = None if directory is None else read_facts(directory, self._attempt)
            if found is not None:
                self._facts[rank] = found
        return self._facts.get(rank)

    def _name(self, rank: int, index: int) -> str:
        facts = self._of(rank)
        is_known = facts is not None and 0 <= index < len(facts.names)
        return repr(facts.names[index]) if facts is not None and is_known else f"number {index + 1}"
