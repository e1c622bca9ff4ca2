"""RankFiles: what the event files of all ranks and of the merged run hold; reads on when it is asked."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

import numpy as np

from distsummary.base.checks import check_int, check_recorded, check_type
from distsummary.base.columns import as_ranges
from distsummary.base.terminal import doing
from distsummary.errors import DistSummaryError, InvalidValueError, MissingFileError, reason
from distsummary.events.deduplicate import ends_of_attempts
from distsummary.events.index import DamagedIndexError
from distsummary.events.recorded import EventPlace, Recorded
from distsummary.events.segments import source_of
from distsummary.rundir.run_dir import RunDir

Result = TypeVar("Result")
Rank: TypeAlias = int | Literal["merged"] | None
Tags: TypeAlias = str | Sequence[str] | None

MERGED: Final = "merged"
MERGED_RANK = -1  # in the column `rank`
_RANK_NAME = re.compile(r"(?:[a-z]+_)?rank_(\d{5,})")


class RankFiles:
    """The event files of a run, by rank.

    Args:
        run: the run. role: of its ranks. uses_index: see `Recorded`.

    Attributes:
        ranks: rank -> what it recorded. merged: what the merge wrote; None: there is none, or one rank alone.
        gone: rank -> why it cannot be read; MERGED_RANK: the merged run.
    """

    def __init__(self, run: RunDir, role: str, *, uses_index: bool) -> None:
        self.ranks: dict[int, Recorded] = {}
        self.merged: Recorded | None = None
        self.gone: dict[int, str] = {}
        self._run_dir, self._role, self._uses_index = run, role, uses_index
        self._holds = 0  # of `held`

    def directories(self) -> dict[int, Path]:
        """Rank -> its directory."""
        if found := self._run_dir.rank_dirs(self._role):
            return found
        alone = self._run_dir.writer_dir(self._role, 0, 1)
        name = _RANK_NAME.fullmatch(alone.name)
        return {int(name[1]) if name else 0: alone}

    def read(self, read: Callable[[], Result]) -> Result:
        """What `read` gives after reading on; once more if an index was damaged or replaced meanwhile.

        Raises MissingFileError if the run was removed.
        """
        must_refresh = not self._holds
        while True:
            try:
                if must_refresh:
                    self._refresh()
                    must_refresh = False
                return read()
            except DamagedIndexError as error:
                # Each reader is asked, hence the list; if none mends its index, the files are read again.
                must_refresh |= not any([recorded.mend(error) for recorded in self.all()])

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it is open, `read` does not read on, which takes 0.1 s for 1,000 ranks."""
        self.read(lambda: None)
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def _refresh(self) -> None:
        directories = self.directories()
        base = self._run_dir.writer_dir(self._role, 0, 1)
        is_alone = [*directories.values()] == [base]
        if is_alone and not self._run_dir.base.is_dir():
            raise MissingFileError(f"the run {self._run_dir.base} was removed while it was read")
        # Reasons from earlier calls stay, until the directory is there again.
        self.gone = {
            rank: f"its directory {recorded.directory} was removed"
            for rank, recorded in self.ranks.items()
            if rank not in directories
        } | {rank: why for rank, why in self.gone.items() if rank not in directories and rank != MERGED_RANK}
        self.ranks = {
            rank: self.ranks.get(rank) or Recorded(directory, uses_index=self._uses_index)
            for rank, directory in directories.items()
        }
        if is_alone:
            self.merged = None
        elif self.merged is None and base.is_dir():
            self.merged = Recorded(
                base, belongs=lambda path: source_of(path.name) == MERGED, uses_index=self._uses_index
            )
        for count, (rank, recorded) in enumerate([*self.ranks.items()]):
            doing("looking through rank", count + 1, len(directories))
            try:
                recorded.refresh()
            except (DistSummaryError, OSError) as error:
                # What failed may have read a part: a new object reads the rank from the beginning.
                self.gone[rank] = said(error)
                self.ranks[rank] = Recorded(recorded.directory, uses_index=self._uses_index)
        if self.merged is not None:
            try:
                self.merged.refresh()
            except (DistSummaryError, OSError) as error:
                self.gone[MERGED_RANK] = said(error)
                self.merged = None

    def all(self) -> list[Recorded]:
        """Those of the ranks, then that of the merge."""
        return [*self.ranks.values(), *([self.merged] if self.merged is not None else [])]

    def chosen(self, rank: Rank) -> tuple[dict[int, Recorded], dict[int, float]]:
        """The directories to read by rank, and the ends of their attempts."""
        if rank == MERGED and self.merged is not None:
            return {MERGED_RANK: self.merged}, ends([self.merged])
        until = ends(self.ranks.values())
        # Of one rank alone, its files are the run.
        if rank is None or (rank == MERGED and len(self.ranks) == 1):
            return self.ranks, until
        # There is no merged run yet, or it cannot be read.
        if rank == MERGED:
            return {}, {}
        rank = rank if isinstance(rank, str) else check_int("rank", rank)
        if isinstance(rank, str) or rank not in self.ranks:
            there = as_ranges(self.ranks)
            raise InvalidValueError(f"rank must be 'merged', None or one of {there}, got {rank!r}")
        return {rank: self.ranks[rank]}, until

    def places(self, plugin: str, tag: Tags, rank: Rank) -> list[tuple[int, EventPlace]]:
        """Rank and place of the values of a plugin that count; raises what `chosen` and `wanted` raise."""

        def find() -> list[tuple[int, EventPlace]]:
            chosen, until = self.chosen(rank)
            names: Sequence[str | None] = [None]
            if tag is not None:
                known = [name for one in chosen.values() for kind, name in one.kinds() if kind == plugin]
                names = wanted(tag, [*dict.fromkeys(known)], plugin)
            return [
                (number, place)
                for number, recorded in chosen.items()
                for name in names
                for place in recorded.places(plugin, name, until)
            ]

        return self.read(find)


def ends(recorded: Iterable[Recorded]) -> dict[int, float]:
    """Attempt -> the step from which on a later attempt has repeated it."""
    lows = [low for one in recorded for low in one.lows().items()]
    attempts, steps = (np.array([low[column] for low in lows]) for column in (0, 1))
    return ends_of_attempts(attempts.astype(np.int64), steps)


def said(error: Exception) -> str:
    """In one line why something cannot be read."""
    if isinstance(error, OSError) and not isinstance(error, DistSummaryError) and error.filename:
        return f"{error.filename} cannot be read: {reason(error)}"
    return str(error)


@contextmanager
def noting(problems: dict[str, None]) -> Iterator[None]:
    """Within it, what cannot be read is left out, and `problems` get a line about it."""
    try:
        yield
    except (DistSummaryError, OSError) as error:
        problems[said(error)] = None


def wanted(tag: Tags, known: Sequence[str], what: str) -> list[str]:
    """The tags that were asked for; raises InvalidValueError for one that is not there."""
    if tag is None:
        return [*known]
    check_type("tag", tag, (str, list, tuple), optional=True)
    names = [tag] if isinstance(tag, str) else [*tag]
    there = set(known)
    for one in names:
        check_recorded(one, there, what)
    return names
