"""Table: rows as NumPy columns, for pandas, polars, Arrow or a notebook."""

import html
import time
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.base.checks import as_unicode, check_choice
from distsummary.base.columns import cut, numbered
from distsummary.base.extras import extra, require
from distsummary.errors import InvalidValueError
from distsummary.format.records import Histogram, Image

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Array: TypeAlias = NDArray[Any]

_SHOWN = 10  # rows at the beginning and at the end of a table in a notebook
_TIMES, _LAST_TIME = ("wall_time", "started", "ended"), 253402214400.0  # columns; the end of the year 9999
_MAX_TEXT = 80  # characters of a cell there
_GRIDS = 4  # different steps of ranks that are compared with those of the next rank


class Labels(NamedTuple):
    """A column of texts that come again and again: `codes` int32 (n,) are their numbers in `names`."""

    codes: Array
    names: tuple[str, ...]

    @property
    def array(self) -> Array:
        """The texts themselves, an array of objects (n,)."""
        return np.array([*self.names, ""], object)[self.codes]


Column: TypeAlias = Array | Labels
Columns: TypeAlias = Mapping[str, Column | Callable[[], Column]]  # a function makes one that is asked for


class Table:
    """Rows of a run as columns; it does not change when the run continues.

    `table["step"]` is a NumPy array (n,), `len(table)` is n, and `for row in table` gives named tuples.

    Columns of scalars: `rank` int32 (-1: the merged run), `attempt` and `step` int64, `wall_time` float64 in
    seconds since the epoch, `tag` texts, `value` float64.
    """

    def __init__(self, columns: Columns, *, title: str = "") -> None:
        self._columns = dict(columns)
        self._title = title

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    def __len__(self) -> int:
        # Columns that are functions are not made just to be counted.
        for column in self._columns.values():
            if not callable(column):
                return int((column.codes if isinstance(column, Labels) else column).size)
        return 0

    def __getitem__(self, name: str) -> Array:
        check_choice("a column", name, self.columns)
        column = self._column(name)
        return column.array if isinstance(column, Labels) else column

    def _column(self, name: str) -> Column:
        """A column, which is made when it is first asked for."""
        column = self._columns[name]
        if callable(column):
            column = self._columns[name] = column()
        return column

    def __iter__(self) -> Iterator[Any]:  # named tuples of the columns
        row = namedtuple("Row", self.columns, rename=True)  # type: ignore[misc]
        return map(row._make, zip(*(self[name].tolist() for name in self.columns), strict=True))

    def __repr__(self) -> str:
        return f"<{self._title or 'table'}: {numbered(len(self), 'row')} of {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the first and the last rows."""
        shown = [*range(len(self))]
        # -1 marks the place of the rows that are left out.
        if len(shown) > 2 * _SHOWN:
            shown = [*shown[:_SHOWN], -1, *shown[-_SHOWN:]]
        cells = [
            [_cell(self._at(name, row), name) if row >= 0 else "..." for name in self.columns]
            for row in shown
        ]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in cells)
        return f"<p>{html.escape(repr(self)[1:-1])}</p><table><tr>{head}</tr>{body}</table>"

    def _at(self, name: str, row: int) -> Any:  # a cell of any type
        column = self._column(name)
        return column.names[column.codes[row]] if isinstance(column, Labels) else column[row]

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas DataFrame; `tag` is categorical. Raises MissingExtraError without pandas."""
        pandas = extra("to_pandas()", "pandas")
        return pandas.DataFrame(
            {
                name: pandas.Categorical.from_codes(column.codes, column.names)
                if isinstance(column, Labels)
                else pandas.Series(column, dtype=object)
                if _has_odd_text(column)
                else column
                for name, column in ((name, self._column(name)) for name in self.columns)
            },
            copy=False,
        )

    def to_arrow(self) -> "pyarrow.Table":
        """A pyarrow Table; `tag` is a dictionary, images and histograms are structs.

        Raises MissingExtraError without pyarrow.
        """
        arrow = extra("to_arrow()", "pyarrow")

        def converted(column: Column) -> Any:
            if isinstance(column, Labels):
                names = arrow.array([*column.names], arrow.string())
                return arrow.DictionaryArray.from_arrays(arrow.array(column.codes), names)
            return arrow.array([*map(_plain, column)] if column.dtype == object else column)

        return arrow.table({name: converted(self._column(name)) for name in self.columns})

    def to_polars(self) -> "polars.DataFrame":
        """A polars DataFrame. Raises MissingExtraError without polars or pyarrow."""
        require("to_polars()", "polars", "pyarrow")
        return extra("to_polars()", "polars").from_arrow(self.to_arrow())


class Piece(NamedTuple):
    """The scalars of one rank and tag; arrays (n,) as in `recorded.ScalarPiece`."""

    rank: int
    tag: str
    attempts: Array
    steps: Array
    wall_times: Array
    values: Array


class ScalarTable(Table):
    """Scalars by rank and tag; some columns become arrays when they are first asked for.

    Args:
        pieces: what the table holds, in its order; one after the other is taken and copied.
        rows: at least as many as all pieces have; None: they are counted, and held together until then.
    """

    def __init__(self, pieces: Iterable[Piece], rows: int | None = None) -> None:
        if rows is None:
            pieces = [*pieces]
            rows = sum(piece.steps.size for piece in pieces)
        # Each column is one array, and the pieces become views of it: values are held once.
        blocks = [np.empty(rows, kind) for kind in (np.int64, np.int64, np.float64, np.float32)]
        self._pieces: list[Piece] = []
        end = 0
        for piece in pieces:
            start, end = end, end + piece.steps.size
            for block, column in zip(blocks, piece[2:], strict=True):
                block[start:end] = column
            if end > start:
                self._pieces.append(Piece(piece.rank, piece.tag, *(block[start:end] for block in blocks)))
        attempts, steps, wall_times, values = (block[:end] for block in blocks)
        sizes = [piece.steps.size for piece in self._pieces]

        def ranks() -> Column:
            return np.repeat(np.array([piece.rank for piece in self._pieces], np.int32), sizes)

        def tags() -> Column:
            of_pieces = labels([piece.tag for piece in self._pieces])
            return Labels(np.repeat(of_pieces.codes, sizes), of_pieces.names)

        columns: Columns = {
            "rank": ranks, "attempt": attempts, "step": steps, "wall_time": wall_times, "tag": tags,
            "value": lambda: values.astype(np.float64),
        }  # fmt: skip
        super().__init__(columns, title="scalars")

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, in the order of the table."""
        return tuple(dict.fromkeys(piece.tag for piece in self._pieces))

    def curves(self) -> dict[str, tuple[Array, Array]]:
        """Tag -> steps int64 (n,) and values float32 (n,), of a table of one rank or of the merged run.

        Raises InvalidValueError if there are several ranks.
        """
        if len({piece.rank for piece in self._pieces}) > 1:
            raise InvalidValueError("curves must be of one rank; read them with rank=0 or rank='merged'")
        return {piece.tag: (piece.steps, piece.values) for piece in self._pieces}

    def wall_times(self) -> dict[str, Array]:
        """Tag -> the wall times float64 (n,) of its curve, see `curves`; in seconds since the epoch."""
        return {piece.tag: piece.wall_times for piece in self._pieces}

    def matrix(self, tag: str | None = None) -> tuple[Array, Array, Array]:
        """One tag as steps int64 (S,), ranks int32 (R,) and values float32 (S, R), NaN where nothing is.

        Of a step that a rank has twice, as files of other programs may, the last value is taken.

        Args:
            tag: may be left out if the table has only one.
        """
        if tag is None and len(self.tags) == 1:
            [tag] = self.tags
        if tag not in self.tags:
            raise InvalidValueError(f"tag must be one of {sorted(self.tags)[:20]}, got {tag!r}")
        pieces = [piece for piece in self._pieces if piece.tag == tag]
        return matrix_of((piece.rank, piece.steps, piece.values) for piece in pieces)[:3]


class Matrix(NamedTuple):
    """One tag of several ranks, see `ScalarTable.matrix`.

    `nans`: where NaN itself is a value, bool (S, R); None: nowhere.
    """

    steps: Array
    ranks: Array
    values: Array
    nans: Array | None


def matrix_of(curves: Iterable[tuple[int, Array, Array]]) -> Matrix:
    """The matrix of one tag.

    Args:
        curves: of each rank its number, the steps and the values. One after the other is taken, and of steps
            that ranks have in common one copy is kept.
    """
    grids: list[Array] = []
    rows: list[tuple[int, int, Array]] = []  # rank, number of its grid, values at the first steps of the grid
    for rank, steps, values in curves:
        # Most ranks have the same steps, so that only the newest grids are compared.
        for number in range(len(grids) - 1, max(-1, len(grids) - 1 - _GRIDS), -1):
            both = min(grids[number].size, steps.size)
            # A rank that is some steps behind has the beginning of a grid.
            if grids[number] is steps or (grids[number][:both] == steps[:both]).all():
                grids[number] = max(grids[number], steps, key=len)
                break
        else:
            number = len(grids)
            grids.append(steps)
        rows.append((rank, number, values))
    merged = np.unique(np.concatenate([np.empty(0, np.int64), *grids]))
    # A grid that has all steps is copied as a slice, which is quicker than by indices.
    places = [
        slice(None) if np.array_equal(grid, merged) else np.searchsorted(merged, grid) for grid in grids
    ]
    found = np.empty((len(rows), merged.size), np.float32)
    ranks = np.array([rank for rank, _, _ in rows], np.int32)
    nans: Array | None = None
    # Rows are taken from the list, so that each one's memory is free once it is copied.
    while rows:
        _, number, values = rows.pop()
        place = places[number]
        at = slice(0, values.size) if isinstance(place, slice) else place[: values.size]
        if values.size < merged.size:
            found[len(rows)] = np.nan
        found[len(rows), at] = values
        is_nan = np.isnan(values)
        if is_nan.any():
            nans = np.zeros(found.shape, np.bool_) if nans is None else nans
            nans[len(rows), at] = is_nan
    return Matrix(merged, ranks, found.T, None if nans is None else nans.T)


def steps_of_all(grids: Iterable[Array]) -> Array:
    """The steps int64 (n,) that are in any of some arrays, all rising; most ranks have the same steps."""
    found = np.empty(0, np.int64)
    for steps in grids:
        both = min(found.size, steps.size)
        if not np.array_equal(found[:both], steps[:both]):
            places = np.minimum(np.searchsorted(found, steps), found.size - 1)
            if (found[places] != steps).any():
                found = np.union1d(found, steps)
        elif steps.size > both:
            found = steps
    return found


class ValueTable(Table):
    """Values that are no scalars; they are read from the files when they are asked for.

    `for row in table` reads one value after the other, `table["value"]` all of them, `table.value(3)` one.
    The columns: `rank`, `attempt`, `step`, `wall_time`, `tag` and `value`.

    Args:
        columns: all but `value`.
        read: gives the value of a row.
    """

    def __init__(self, columns: Columns, read: Callable[[int], Any], *, title: str) -> None:
        super().__init__(
            {**columns, "value": lambda: objects([read(row) for row in range(len(self))])}, title=title
        )
        self._read = read

    def value(self, row: int) -> Any:
        """The value of one row, counted from 0; it is read from its file."""
        return self._read(range(len(self))[row])

    def __iter__(self) -> Iterator[Any]:
        row = namedtuple("Row", self.columns, rename=True)  # type: ignore[misc]
        given = zip(*(self[name].tolist() for name in self.columns[:-1]), strict=True)
        return (row._make((*cells, self._read(number))) for number, cells in enumerate(given))

    def _at(self, name: str, row: int) -> Any:
        return self._read(row) if name == "value" else super()._at(name, row)


def table_of(rows: Sequence[Sequence[Any]], kinds: Mapping[str, type], *, title: str) -> Table:
    """Rows as a table; None in a column of numbers becomes -1, of floats NaN.

    Args:
        kinds: the columns and their kinds: `object`, or one of NumPy's numbers.
    """
    columns: dict[str, Array] = {}
    for place, (name, kind) in enumerate(kinds.items()):
        values = [row[place] for row in rows]
        if kind is object:
            columns[name] = objects(values)
        else:
            missing = np.nan if issubclass(kind, np.floating) else -1
            columns[name] = np.array([missing if value is None else value for value in values], kind)
    return Table(columns, title=title)


def labels(texts: Sequence[str]) -> Labels:
    """Texts as a column."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    return Labels(codes, tuple(numbers))


def objects(values: Sequence[Any]) -> Array:
    """Values of any type as a column (n,)."""
    column = np.empty(len(values), object)
    for number, value in enumerate(values):
        column[number] = value
    return column


def _cell(value: Any, column: str) -> str:
    if column in _TIMES and isinstance(value, float) and 0 <= value <= _LAST_TIME:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, Histogram):
        low, high = ("-" if end is None else f"{end:.4g}" for end in (value.min, value.max))
        return f"{value.count:,} values from {low} to {high}"
    if isinstance(value, Image):
        return f"{value.width} x {value.height}"
    return cut(f"{value:.6g}" if isinstance(value, float) else str(value), _MAX_TEXT)


def _has_odd_text(column: Array) -> bool:
    """Whether a text is no UTF-8, as paths may be: pandas makes a column of Arrow of texts, which is."""
    return column.dtype == object and any(
        isinstance(one, str) and not one.isascii() and as_unicode(one) != one for one in column
    )


def _plain(value: Any) -> Any:
    """A value for Arrow."""
    if isinstance(value, Histogram):
        names = ("count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max", "sum")
        bins = {name: getattr(value, name).tolist() for name in ("left", "width", "counts")}
        return {**{name: getattr(value, name) for name in names}, **bins}
    if isinstance(value, Image):
        return {"height": value.height, "width": value.width, "encoded": value.encoded}
    if isinstance(value, np.ndarray):
        flat = np.ma.filled(value, np.nan) if isinstance(value, np.ma.MaskedArray) else value
        return {"shape": [*value.shape], "dtype": str(value.dtype), "values": flat.reshape(-1).tolist()}
    return value
