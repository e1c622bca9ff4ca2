"""RankView: the tables of one rank, or of the merged run."""

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

from distsummary.runs.rank_files import Rank, Tags
from distsummary.runs.table import ScalarTable, Table, ValueTable


class Reader(Protocol):
    """What reads the values of a rank: a `RecordedRun`."""

    def scalars(self, tag: Tags, rank: Rank) -> ScalarTable:
        """See `RecordedRun.scalars`."""

    def histograms(self, tag: Tags, rank: Rank) -> ValueTable:
        """See `RecordedRun.histograms`."""

    def tensors(self, tag: Tags, rank: Rank) -> ValueTable:
        """See `RecordedRun.tensors`."""

    def images(self, tag: Tags, rank: Rank) -> ValueTable:
        """See `RecordedRun.images`."""

    def text(self, tag: Tags, rank: Rank) -> ValueTable:
        """See `RecordedRun.text`."""

    def norms(self, parameter: Tags, rank: Rank) -> Table:
        """See `RecordedRun.norms`."""


class RankView:
    """What one rank of a run recorded: each call is that of `RecordedRun` with this `rank`.

    Attributes:
        rank: its number, or "merged".
    """

    def __init__(self, run: Reader, rank: int | Literal["merged"]) -> None:
        self._run, self.rank = run, rank

    def __repr__(self) -> str:
        return f"{self._run!r}.{self.rank if isinstance(self.rank, str) else f'ranks[{self.rank}]'}"

    def scalars(self, tag: Tags = None) -> ScalarTable:
        """See `RecordedRun.scalars`."""
        return self._run.scalars(tag, self.rank)

    def histograms(self, tag: Tags = None) -> ValueTable:
        """See `RecordedRun.histograms`."""
        return self._run.histograms(tag, self.rank)

    def tensors(self, tag: Tags = None) -> ValueTable:
        """See `RecordedRun.tensors`."""
        return self._run.tensors(tag, self.rank)

    def images(self, tag: Tags = None) -> ValueTable:
        """See `RecordedRun.images`."""
        return self._run.images(tag, self.rank)

    def text(self, tag: Tags = None) -> ValueTable:
        """See `RecordedRun.text`."""
        return self._run.text(tag, self.rank)

    def norms(self, parameter: Tags = None) -> Table:
        """See `RecordedRun.norms`."""
        return self._run.norms(parameter, self.rank)


class RankViews(Mapping[int, RankView]):
    """The ranks of a run that have a directory, in rising order: rank -> RankView."""

    def __init__(self, run: Reader, ranks: tuple[int, ...]) -> None:
        self._run, self._ranks = run, ranks

    def __repr__(self) -> str:
        return f"{self._run!r}.ranks of {self._ranks}"

    def __getitem__(self, rank: int) -> RankView:
        if rank not in self._ranks:
            raise KeyError(rank)
        return RankView(self._run, rank)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)
