"""What `distsummary serve` answers: the runs below a directory, their pages and single curves, as bytes.

Many tabs ask at the same time and again and again. Each run is opened once and read by one thread at a time;
who comes meanwhile gets what that one read.
"""

import gzip
import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distsummary.errors import MissingFileError
from distsummary.run_dir import RunDir
from distsummary.runs.recorded_run import RecordedRun, open_run
from distsummary.tools.runs import RunRow, find_runs
from distsummary.view.packing import sent
from distsummary.view.page import page, rank_curve

EVERY_S = 2.0  # at most so often the files are looked at
PAUSE = 4  # times as long as reading took, before it is done again: it takes a fifth of the time at most
OPEN = 8  # runs that are kept open
ALONE = "."  # the name of the run if the directory is itself one


class Answer(NamedTuple):
    """`data`, compressed by gzip, and `version`, which differs if the data do."""

    data: bytes
    version: str


class UnknownRunError(KeyError):
    """Internal: no run of this name was found below the directory."""


class Served:
    """The runs below a directory, for any number of threads.

    Args:
        directory: one with run dirs in it or below, or anything that `open_run` takes.
        every_s: seconds; answers may be as old as that, and older if reading takes long; None: `EVERY_S`.

    Raises MissingFileError or NotADirectoryPathError if there is no such directory.
    """

    def __init__(self, directory: str | os.PathLike[str], *, every_s: float | None = None) -> None:
        self.path = Path(os.path.realpath(os.path.expanduser(directory)))
        self._every_s = EVERY_S if every_s is None else every_s
        self._lock = threading.Lock()  # of `_opened`
        self._opened: OrderedDict[tuple[str, ...], _Run] = OrderedDict()
        self._names: set[str] = set()  # all that were ever listed
        self._listing = _Kept(self._every_s)
        if not self.path.is_dir():
            open_run(directory)  # the ranks of PREFIX0, PREFIX1 ...; raises

    def runs(self) -> Answer:
        """The runs as JSON: `directory`, `runs` (see `RunRow`) and `note`, why there are none.

        A directory that is itself a run, and holds no others, has one row named `ALONE`.
        """
        return self._listing.get(self._list)

    def page(self, name: str, others: Sequence[str] = ()) -> Answer:
        """The page of a run, beside others, as `packing.sent` writes it.

        Raises UnknownRunError; MissingFileError if a run was removed; errors of `page`.
        """
        return self._run(name, *others).page()

    def curve(self, name: str, tag: str, rank: int) -> Answer:
        """One tag of one rank: steps and values, of a long run those that a drawing needs, with the extremes.

        Raises as `page`, and InvalidValueError for a tag or rank that is not there.
        """
        return self._run(name).curve(tag, rank)

    def _list(self, old: Answer | None) -> Answer:
        note = ""
        rows: list[RunRow] = []
        try:
            run = RunDir(self.path)
            if run.manifest_path.exists() or not run.rank_dirs():
                rows = find_runs(self.path)
            else:  # its ranks, of which each would be listed
                rows = [_alone(self.path)]
        except MissingFileError as error:
            note = str(error)
            if not self.path.exists():  # the ranks of PREFIX0, PREFIX1 ... are one run
                rows = [_alone(self.path)]
        self._names |= {row.name for row in rows}
        found = {"directory": os.fspath(self.path), "runs": [row.as_json() for row in rows], "note": note}
        return _answer(json.dumps(found).encode())

    def _run(self, *names: str) -> "_Run":
        for name in names:
            if name not in self._names:
                self.runs()
                if name not in self._names:
                    raise UnknownRunError(name)
        with self._lock:
            run = self._opened.pop(names, None) or _Run([self.path / name for name in names], self._every_s)
            self._opened[names] = run
            if len(self._opened) > OPEN:
                self._opened.popitem(last=False)
        return run


class _Kept:
    """An answer that is made again only when it is old; one thread makes it, others wait for it."""

    def __init__(self, every_s: float) -> None:
        self.lock = threading.Lock()
        self._every_s = every_s
        self._answer: Answer | None = None
        self._next_s = 0.0

    def get(self, make: Callable[[Answer | None], Answer]) -> Answer:
        with self.lock:
            begin_s = time.monotonic()
            if self._answer is None or begin_s >= self._next_s:
                self._answer = make(self._answer)
                end_s = time.monotonic()
                self._next_s = end_s + max(self._every_s, PAUSE * (end_s - begin_s))
            return self._answer


class _Run:
    """A run that is shown, alone or beside others."""

    def __init__(self, paths: Sequence[Path], every_s: float) -> None:
        self._paths = paths
        self._kept = _Kept(every_s)
        self._opened: list[RecordedRun] = []
        self._stamp = ""

    def page(self) -> Answer:
        return self._kept.get(self._page)

    def curve(self, tag: str, rank: int) -> Answer:
        with self._kept.lock:
            return _answer(sent(rank_curve(self._runs()[0], tag, rank)))

    def _runs(self) -> list[RecordedRun]:
        if not self._opened:
            self._opened = [open_run(path) for path in self._paths]
        return self._opened

    def _page(self, old: Answer | None) -> Answer:
        try:
            run, *others = self._runs()
            stamp = " ".join(one.stamp() for one in [run, *others])
            if old is not None and stamp == self._stamp:
                return old
            found: dict[str, Any] = page(run, others=others)
        except MissingFileError:
            self._opened = []  # if it comes back, it is another one
            raise
        self._stamp = stamp
        return _answer(sent(found), version=stamp)


def _alone(path: Path) -> RunRow:
    run = open_run(path)
    return RunRow(name=ALONE, state=run.state, ranks=len(run.ranks))


def _answer(data: bytes, version: str | None = None) -> Answer:
    known = hashlib.blake2b(data, digest_size=16).hexdigest() if version is None else version
    return Answer(gzip.compress(data, 1, mtime=0), known)
