"""RunTable: the runs below a directory as a table, filtered and sorted; `open_runs` opens it."""

import math
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from distsummary.base.checks import check_choice
from distsummary.base.columns import UNLIMITED, aligned, cut, paragraph, printable, shortened
from distsummary.base.terminal import duration
from distsummary.runs.filter import Filter
from distsummary.runs.run_metrics import BETTER
from distsummary.runs.run_row import RunRow
from distsummary.runs.run_rows import RunRows
from distsummary.runs.show import interest
from distsummary.runs.table import Column, Table, objects

BEST, BEST_STEP, NAN_STEP = ":best", ":best_step", ":nan_step"  # after the tag of a metric
SCALAR = "scalar/"  # before a tag that is called as another column
# Of RunRow, in their order.
FIXED = (
    "name", "path", "state", "is_healthy", "level", "causes", "finding", "lost_s", "group", "tags", "notes",
    "ranks", "attempts", "step", "started", "duration_s", "rank_s", "goodput", "commit", "host",
    "size_bytes", "id",
)  # fmt: skip
LEAST = 12  # characters of a path that are shown
NOTE_LINES = 2
OLD_S = 300 * 86400.0  # from then on a date has its year
_USUAL = ("path", "state", "ranks", "step", "started", "duration_s")  # and the loss
_HEADS = {"path": "run", "started": "began", "duration_s": "lasted"}


def open_runs(directory: str | os.PathLike[str], *, index: bool = True) -> "RunTable":
    """The runs in a directory and below as a table, a run a row, the newest first.

    Its columns, which are those of a filter and of `to_pandas()`, too:

    - name, path (`open_run` takes it as it is), id, group, tags, notes;
    - state, is_healthy (`distsummary status` exits with 0), level ("error", "warning" or empty), causes (of
      the findings, the gravest first), finding (what is wrong, in words), lost_s (what that cost);
    - ranks, attempts, step, started (seconds since the epoch), duration_s, rank_s (of all ranks together),
      goodput (the share of kept training), commit (12 digits, "+" for a changed working tree), host,
      size_bytes;
    - each setting, such as `config.lr`;
    - each metric: `eval/accuracy` is its last value, `eval/accuracy:best` its best one,
      `eval/accuracy:best_step` the step of that, and `eval/accuracy:nan_step`, if a run has one, the step of
      the first value that is NaN or infinite.

    Where nothing is, a column of numbers has NaN, any other None. Metrics are those of the merged run or,
    before it is merged, of its lowest rank: the user's own tags, up to 64 of a run. What is better is in
    run.json or follows from the words of a name: loss and error are low, accuracy and f1 high; a tag of which
    that is unknown has no best.

    Args:
        directory: the run dirs are in it or below.
        index: keep the rows of runs that are over next to their files, in `seg-row.idx`, and the columns of
            event files, see `open_run`.

    Raises MissingFileError if there is no such directory, or no run in it.
    """
    return RunTable(RunRows(directory, uses_index=index).read(), directory)


class RunTable(Table):
    """Runs as rows; see `open_runs`. It does not change when the runs continue.

    Attributes:
        rows: all that is known of each run, in the order of the table.
        problems: what is not in the table, one line each.
    """

    def __init__(self, rows: Iterable[RunRow], directory: str | os.PathLike[str] = "") -> None:
        self.rows = tuple(rows)
        self._directory = directory
        self._cells = [cells_of(row, directory) for row in self.rows]
        self.better = _directions(self.rows)
        names = [*FIXED, *dict.fromkeys(name for cells in self._cells for name in cells if name not in FIXED)]
        names = [*FIXED, *sorted(names[len(FIXED) :], key=self._order)]
        columns = {name: _column([cells.get(name) for cells in self._cells]) for name in names}
        super().__init__(columns, title=f"runs in {os.fspath(directory)}")

    @property
    def problems(self) -> list[str]:
        """What is not in the table, one line each; [] if all is."""
        return [
            f"{row.path}: {row.left_out:,} tags or settings are no columns; read them with ds.open_run"
            for row in self.rows
            if row.left_out
        ]

    def where(self, text: str) -> "RunTable":
        """The runs for which a filter holds, such as "config.lr < 0.3 and name ~ 'sweep'".

        The grammar is in docs/runs.md. Raises FilterError, which points at the character that is wrong.
        """
        wanted = Filter(text, self.columns)
        return self._of(place for place, cells in enumerate(self._cells) if wanted.holds(cells))

    def sorted_by(self, column: str) -> "RunTable":
        """The runs by a column, the smallest first, but the best first in that of a metric of which high is
        better; where nothing is there, last. Runs that are alike keep their order.

        Raises InvalidValueError if there is no such column.
        """
        check_choice("a column", column, self.columns)
        falls = self.better.get(column) == "max"
        places = range(len(self.rows))
        there = [place for place in places if _is_there(self._cells[place].get(column))]
        there.sort(key=lambda place: _key(self._cells[place][column]), reverse=falls)
        return self._of([*there, *sorted({*places}.difference(there))])

    def reversed(self) -> "RunTable":
        """The runs in the other order."""
        return self._of(reversed(range(len(self.rows))))

    def cells(self, row: int) -> dict[str, Any]:
        """What is in a row, by column, without those in which nothing is."""
        return dict(self._cells[row])

    def _of(self, places: Iterable[int]) -> "RunTable":
        return RunTable((self.rows[place] for place in places), self._directory)

    @staticmethod
    def _order(name: str) -> tuple[bool, Any]:
        """Settings in their order, then metrics by interest, the best of each after its last value."""
        if name.startswith("config."):
            return False, 0
        tag = name.removesuffix(NAN_STEP).removesuffix(BEST_STEP).removesuffix(BEST)
        return True, (*interest(tag), len(name))


def cells_of(row: RunRow, directory: str | os.PathLike[str] = "") -> dict[str, Any]:
    """The cells of a row by column, without those in which nothing is; `path` begins with the directory."""
    cells = {name: value for name in FIXED if (value := getattr(row, name)) is not None}
    cells["path"] = os.path.normpath(os.path.join(directory, row.path)) if directory else row.path
    cells |= {name: value for name, value in row.config.items() if value is not None}
    for tag, metric in row.metrics.items():
        name = f"{SCALAR}{tag}" if tag in FIXED or tag.startswith("config.") else tag
        cells[name] = metric.last
        if metric.best is not None:
            cells |= {f"{name}{BEST}": metric.best, f"{name}{BEST_STEP}": metric.best_step}
        if metric.nan_step is not None:
            cells[f"{name}{NAN_STEP}"] = metric.nan_step
    return cells


def _directions(rows: Iterable[RunRow]) -> dict[str, str]:
    """Column -> "min" or "max", which of two values is better; without those of which that is unknown."""
    found: dict[str, str] = {"goodput": "max"}
    for row in rows:
        for tag, metric in row.metrics.items():
            if metric.better in BETTER:
                found |= {tag: metric.better, f"{tag}{BEST}": metric.better}
    return found


def _column(values: Sequence[Any]) -> Column:
    """A column (n,): numbers of one kind as such, NaN where none is; all else as objects."""
    kinds = {type(value) for value in values}
    if kinds <= {bool} and kinds:
        return np.array(values, np.bool_)
    if kinds <= {int} and kinds and all(abs(value) < 2**63 for value in values):
        return np.array(values, np.int64)
    if kinds <= {int, float, type(None)} and kinds != {type(None)}:
        return np.array([math.nan if value is None else float(value) for value in values], np.float64)
    return objects(values)


def _is_there(value: Any) -> bool:
    return value is not None and value == value and value != "" and value != ()


def _key(value: Any) -> tuple[bool, Any]:
    """Numbers come before texts, by their size."""
    is_number = isinstance(value, (int, float))
    return not is_number, value if is_number else str(value).casefold()


def text_of(table: RunTable, *, columns: Sequence[str] | None = None, width: int = UNLIMITED) -> str:
    """The table, in lines of at most `width` characters; what is wrong with a run is below it.

    Args:
        columns: None: where and how each run is, and its loss. A long path is shortened in the middle.

    Raises InvalidValueError if there is no such column.
    """
    for name in columns or ():
        check_choice("a column", name, table.columns)
    cells = [table.cells(place) for place in range(len(table))]
    if columns is None:
        heads = [*(_HEADS.get(name, name) for name in _USUAL), "loss"]
        rows = [[_text(name, one.get(name)) for name in _USUAL] for one in cells]
        for row, run in zip(rows, table.rows, strict=True):
            loss = next((m.last for tag, m in run.metrics.items() if m.better == "min"), None)
            row[0] = printable(run.path)
            row.append(_text("loss", loss))
    else:
        heads = [*columns]
        rows = [[_text(name, one.get(name)) for name in columns] for one in cells]
    first = [row[0] for row in rows]
    sizes = [max(map(len, column)) for column in zip(heads, *rows, strict=True)][1:]
    # The first column gets the room that the others leave.
    room = max(LEAST, width - sum(sizes) - 2 * len(sizes))
    rows = [[shortened(name, room), *row[1:]] for name, row in zip(first, rows, strict=True)]
    numbers = [
        place
        for place in range(1, len(heads))
        if all(row[place] == "-" or row[place][:1] in "0123456789+-.ni" for row in rows)
    ]
    head, *lines = aligned([heads, *rows], right=numbers, width=width)
    if columns is None or "finding" not in columns:
        # Notes are inserted from the last row back, so that the numbers of the rows before stay right.
        for number, run in reversed([*enumerate(table.rows, 1)]):
            note = "; ".join(filter(None, [run.finding, _attempt(run)]))
            lines[number:number] = paragraph(f"    {printable(note)}", width, indent="    ", most=NOTE_LINES)
    return "\n".join([head, *lines, *(cut(printable(line), width) for line in table.problems[:3])])


def as_json(table: RunTable, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """For JSON: the columns of each run, None in those of `columns` in which nothing is; None: all others."""
    rows = [table.cells(place) for place in range(len(table))]
    if columns is not None:
        rows = [{name: cells.get(name) for name in columns} for cells in rows]
    return {"runs": rows, "problems": table.problems}


def _attempt(run: RunRow) -> str:
    return f"attempt {run.attempts - 1}" if run.attempts and run.attempts > 1 else ""


def _text(name: str, value: Any) -> str:
    """A cell in a terminal."""
    if value is None or value == "" or value == ():
        return "-"
    if name == "started":
        return _when(float(value))
    if name.endswith("_s") and isinstance(value, (int, float)):
        return duration(float(value))
    if name == "size_bytes":
        return f"{value / 1e6:.1f} MB"
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(", ".join(value) if isinstance(value, tuple) else str(value))


def _when(began: float) -> str:
    """Such as 11-23 14:34, or 2025-11-23 if it is long ago."""
    is_old = abs(time.time() - began) > OLD_S
    return time.strftime("%Y-%m-%d" if is_old else "%m-%d %H:%M", time.localtime(began))
