"""Reads scalars as arrays, one series per tag. Not used yet: the public read API will use it."""

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from distsummary.format.records import Array
from distsummary.reading.reader import Damage, ReadEvent, files_of, read_once
from distsummary.reading.scalar_columns import ScalarColumns

_MAX_ROWS = 4096  # values collected before they become arrays


class ScalarSeries(NamedTuple):
    """The scalars of one tag in the order of the files; every array is (n,).

    `attempts`, `steps` int64, `wall_times` float64 in seconds since the epoch, `values` float64.
    """

    attempts: Array
    steps: Array
    wall_times: Array
    values: Array


def read_scalars(
    path: str | os.PathLike[str],
    dialect: str | None = None,
    mode: str = "strict",
    *,
    skipped: list[Damage] | None = None,
) -> dict[str, ScalarSeries]:
    """All scalars of a file, or of a directory's files in the order of their stamps: {tag: series}.

    The tags are in the order of their first values. The arguments, the errors and the choice of events are as
    in `reader.read_values`; values that are not scalars are skipped. The result takes 32 bytes of memory per
    scalar; reading takes three times as much.
    """
    table = _Table()
    for _, piece in read_once(files_of(path, dialect, mode), mode, skipped):
        if isinstance(piece, ScalarColumns):
            table.add_columns(piece)
        else:
            table.add_event(piece)
    return table.series()


class _Table:
    """Collects the scalars of all tags in five columns: the tag's number and the fields of a ScalarSeries."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._rows: list[tuple[Any, ...]] = []  # tag number, attempt, step, wall time, value
        self._chunks: tuple[list[Array], ...] = ([], [], [], [], [])  # earlier rows: arrays, by column

    def add_columns(self, columns: ScalarColumns) -> None:
        self._end_rows()
        numbers = np.array([self._number(tag) for tag in columns.tags], np.int32)
        events = (column.repeat(columns.counts) for column in (columns.steps, columns.wall_times))
        attempts = np.full(columns.numbers.size, columns.attempt, np.int64)
        self._add((numbers[columns.tag_numbers], attempts, *events, columns.numbers))

    def add_event(self, event: ReadEvent) -> None:
        for value in event.values:
            if value.plugin == "scalar":
                ids = (self._number(value.tag), event.attempt)
                self._rows.append((*ids, event.step, event.wall_time, value.data))
        if len(self._rows) >= _MAX_ROWS:
            self._end_rows()

    def _number(self, tag: str) -> int:
        return self._numbers.setdefault(tag, len(self._numbers))

    def _end_rows(self) -> None:
        if self._rows:
            dtypes = (np.int32, np.int64, np.int64, np.float64, np.float64)
            columns = zip(*self._rows, strict=True)
            self._add(map(np.array, columns, dtypes))
            self._rows.clear()

    def _add(self, columns: Iterable[Array]) -> None:
        for chunks, column in zip(self._chunks, columns, strict=True):
            chunks.append(column)

    def series(self) -> dict[str, ScalarSeries]:
        self._end_rows()
        if not self._chunks[0]:
            return {}
        numbers = np.concatenate(self._chunks[0])
        order = np.argsort(numbers, kind="stable")
        stops = np.cumsum(np.bincount(numbers, minlength=len(self._numbers)))
        places = np.split(order, stops)  # indices of each tag's values; the last array is empty
        found = [(tag, place) for tag, place in zip(self._numbers, places, strict=False) if place.size]
        found.sort(key=lambda one: int(one[1][0]))
        parts: dict[str, list[Array]] = {tag: [] for tag, _ in found}
        for chunks in self._chunks[1:]:
            column = np.concatenate(chunks)
            chunks.clear()
            for tag, place in found:
                parts[tag].append(column[place])
        return {tag: ScalarSeries(*columns) for tag, columns in parts.items()}
