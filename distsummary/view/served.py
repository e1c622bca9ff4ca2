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
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from distsummary.base.checks import check_keys
from distsummary.errors import MissingFileError
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.labels import change_labels
from distsummary.runs.recorded_run import RecordedRun, open_run
from distsummary.runs.run_row import RunRow
from distsummary.runs.run_rows import RunRows
from distsummary.runs.run_table import RunTable
from distsummary.runs.show import fact_text
from distsummary.view.compared_runs import refuse_others
from distsummary.view.packing import sent
from distsummary.view.page import page, rank_curve, step_anatomy, tag_curve
from distsummary.view.run_list import run_list

EVERY_S = 2.0  # at most so often the files are looked at
# After reading, a pause of so many times its duration follows: reading takes a fifth of the time at most.
PAUSE = 4
OPEN = 8  # runs that are kept open
_MOST_COLUMNS = 20  # by which runs are grouped
FIRST_S, LIST_S = 0.2, 2.0  # event files are read so long for the first answer with the list, and for others
T = TypeVar("T")
_Part: TypeAlias = tuple[str, str | int, int | None]  # "curve" and its tag, or "step" and its number; a rank
ALONE = "."  # the name of the run if the directory is itself one


class Response(NamedTuple):
    """`data`, compressed by gzip, and `version`, which differs if the data do."""

    data: bytes
    version: str


class UnknownRunError(KeyError):
    """Internal: no run of this name was found below the directory."""


class Served:
    """The runs below a directory, for any number of threads.

    Args:
        directory: one with run dirs in it or below, or anything that `open_run` takes.
        every_s: seconds; answers may be as old as that, and older if reading takes long; 0: none is old.
        make: makes the data of a page of a run and `others` with their `labels`, see `page`.

    Raises MissingFileError or NotADirectoryPathError if there is no such directory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_s: float = EVERY_S,
        make: Callable[..., dict[str, Any]] = page,
    ) -> None:
        self.path = Path(os.path.realpath(os.path.expanduser(directory)))
        self._every_s, self._make = every_s, make
        self._lock = threading.Lock()  # of `_opened`
        self._opened: OrderedDict[tuple[str, ...], _Run] = OrderedDict()
        self._names: set[str] = set()  # all that were ever listed
        self._listing, self._rows = _Kept[Response](every_s), RunRows(self.path)
        self._table = RunTable([])
        if not self.path.is_dir():
            # There is no such directory: this raises the error that says so.
            open_run(directory)

    def runs(self) -> Response:
        """The runs as JSON: `directory`, `note`, why there are none, and what `run_list` gives.

        A first answer comes before all event files are read; the next ones have more of them.

        A directory that is itself a run, and holds no others, has one row named `ALONE`.
        """
        answer = self._listing.get(self._list)
        if any(not row.is_whole for row in self._table.rows):
            # The next answer continues with the others.
            self._listing.expire()
        return answer

    def page(self, name: str, others: Sequence[str] = (), by: Sequence[str] = ()) -> Response:
        """The page of a run, next to others, as `packing.sent` writes it.

        Args:
            by: columns of the list; runs that have the same in them are a group. Empty: each run is alone.

        Raises UnknownRunError; MissingFileError if a run was removed; errors of `page`.
        """
        return self._run(name, *others, by=by).page()

    def curve(self, name: str, tag: str, rank: int | None = None) -> Response:
        """One tag of one rank, or of all together: of a long run what a drawing needs, with the extremes.

        Raises as `page`, and InvalidValueError for a tag or rank that is not there.
        """
        return self._run(name).part(("curve", tag, rank))

    def step(self, name: str, step: int, rank: int | None = None) -> Response:
        """Where each rank spent a measured step, see `step_anatomy`. Raises as `curve`."""
        return self._run(name).part(("step", step, rank))

    def filtered(self, text: str) -> Response:
        """The paths of the runs of the last list for which a filter holds, as JSON. Raises FilterError."""
        if not self._table.rows:
            self.runs()
        return _answer(json.dumps(self._table.where(text)["path"].tolist()).encode())

    def relabel(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change what a run is called; `changes`: arguments of `change_labels`.

        Raises UnknownRunError, InvalidTypeError for another argument, and the errors of `change_labels`.
        """
        check_keys("changes", changes, ("name", "group", "add", "remove", "notes"))
        if name not in self._names:
            raise UnknownRunError(name)
        change_labels(RunDir(self.path / name), **changes)
        # The next answer has it.
        self._listing.expire()

    def _list(self) -> Response:
        note = ""
        rows: list[RunRow] = []
        try:
            run = RunDir(self.path)
            if run.manifest_path.exists() or not run.rank_dirs():
                rows = self._rows.read(budget_s=LIST_S if self._table.rows else FIRST_S)
            else:
                # A run without a manifest: a search would list each of its ranks as a run.
                alone = open_run(self.path)
                rows = [
                    RunRow(
                        path=ALONE,
                        folder=self.path.name,
                        state=alone.state,
                        ranks=len(alone.ranks),
                        is_whole=True,
                    )
                ]
        except MissingFileError as error:
            note = str(error)
        self._table = RunTable(rows)
        self._names |= {row.path for row in rows}
        found = {"directory": os.fspath(self.path), "note": note, **run_list(self._table)}
        return _answer(json.dumps(found).encode())

    def _run(self, *names: str, by: Sequence[str] = ()) -> "_Run":
        for name in names:
            # A run may have begun after the list that is kept.
            if name not in self._names:
                # What is not there is refused at once: to list the runs may take long.
                if name and (self.path / name).is_dir():
                    self._list()
                if name not in self._names:
                    raise UnknownRunError(name)
        refuse_others(self.path / names[0], [self.path / name for name in names[1:]])
        labels = self._labels(names, by) if by and len(names) > 1 else ()
        with self._lock:
            paths = [self.path / name for name in names]
            # Put at the end of the order: the first one, which was unused for the longest time, is dropped.
            key = (*names, *labels)
            run = self._opened.pop(key, None) or _Run(paths, self._every_s, self._make, labels)
            self._opened[key] = run
            if len(self._opened) > OPEN:
                self._opened.popitem(last=False)
        return run

    def _labels(self, names: Sequence[str], by: Sequence[str]) -> tuple[str, ...]:
        """What each run has in some columns in which they differ, such as "lr 0.1, batch 64"."""
        if not self._table.rows:
            self.runs()
        cells = {row.path: self._table.cells(place) for place, row in enumerate(self._table.rows)}
        said = {
            column: [
                f"{column.removeprefix('config.')} {fact_text(cells.get(name, {}).get(column))}"
                for name in names
            ]
            for column in by[:_MOST_COLUMNS]
        }
        shown = [texts for texts in said.values() if len({*texts}) > 1] or [*said.values()]
        return tuple(map(", ".join, zip(*shown, strict=True)))


class _Kept(Generic[T]):
    """An answer or an error that is made again only when it is old; one thread makes it, others wait."""

    def __init__(self, every_s: float) -> None:
        self._lock, self._every_s, self._next_s = threading.Lock(), every_s, 0.0
        self._found: T | Exception | None = None

    def get(self, make: Callable[[], T]) -> T:
        """The answer, which `make` gives or raises."""
        with self._lock:
            if self._found is None or time.monotonic() >= self._next_s:
                with self.work():
                    self._found = _tried(make)
            return _given(self._found)

    def expire(self) -> None:
        """Make the answer again when it is asked for next."""
        with self._lock:
            self._next_s = 0.0

    @contextmanager
    def work(self) -> Iterator[None]:
        """Reading, which is followed by a pause, also if it fails."""
        begin_s = time.monotonic()
        try:
            yield
        finally:
            end_s = time.monotonic()
            if self._every_s:
                self._next_s = end_s + max(self._every_s, PAUSE * (end_s - begin_s))


class _Run:
    """A run that is shown, alone or with others; between two looks at the files, all that is asked for is
    of the moment of the first.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        every_s: float,
        make: Callable[..., dict[str, Any]],
        labels: Sequence[str],
    ) -> None:
        self._paths, self._make, self._labels = paths, make, labels
        self._lock, self._look = threading.Lock(), _Kept[str](every_s)
        self._runs: list[RecordedRun] = []
        self._held = ExitStack()
        self._stamp = ""  # of the page and the curves
        self._page: Response | Exception | None = None
        self._parts: dict[_Part, Response] = {}

    def page(self) -> Response:
        with self._lock:
            stamp = self._look.get(self._read_on)
            if self._page is None:
                with self._look.work():
                    run, *others = self._runs
                    self._page = _tried(
                        lambda: _answer(
                            sent(self._make(run, others=others, labels=self._labels)), version=stamp
                        )
                    )
            return _given(self._page)

    def part(self, part: _Part) -> Response:
        with self._lock:
            self._look.get(self._read_on)
            if part not in self._parts:
                run = self._runs[0]
                match part:
                    case "step", int(step), rank:
                        found = step_anatomy(run, step, rank)
                    case _, tag, None:
                        found = tag_curve(run, str(tag))
                    case _, tag, int(rank):
                        found = rank_curve(run, str(tag), rank)
                self._parts[part] = _answer(sent(found))
            return self._parts[part]

    def _read_on(self) -> str:
        """Read what the runs have recorded since; returns a text that is another one if they have."""
        try:
            if not self._runs:
                self._runs = [open_run(path) for path in self._paths]
            stamp = " ".join(one.stamp() for one in self._runs)
            if stamp != self._stamp or isinstance(self._page, Exception):
                self._held.close()
                for one in self._runs:
                    self._held.enter_context(one.held())
                self._stamp, self._page, self._parts = stamp, None, {}
        except MissingFileError:
            self._held.close()
            # If a run comes back in this place, it is another one.
            self._runs, self._stamp = [], ""
            raise
        return stamp


def _tried(make: Callable[[], T]) -> T | Exception:
    """What it returns or raises: an error is kept like an answer, for it took as long."""
    try:
        return make()
    except Exception as error:
        # The frames of a kept error would hold what was read, hundreds of MB of a long run.
        traceback.clear_frames(error.__traceback__)
        return error


def _given(found: T | Exception) -> T:
    if isinstance(found, Exception):
        raise found
    return found


def _answer(data: bytes, version: str | None = None) -> Response:
    known = hashlib.blake2b(data, digest_size=16).hexdigest() if version is None else version
    return Response(gzip.compress(data, 1, mtime=0), known)
