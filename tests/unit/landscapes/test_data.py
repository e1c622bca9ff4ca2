"""Which data is held in memory, and which is read again and again."""

from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.model.data import (
    batch_bytes,
    batch_facts,
    batch_rows,
    data_sets,
    host_bytes,
    mindspore_batches,
    read_data,
    warn_unweighted,
)
from distsummary.landscapes.model.repeatable_loader import Steady
from tests.refusals import refused

BATCH_BYTES = 8 * 4 + 8
COMPARED = 2  # first batches of a loader that is streamed


def batch() -> Any:
    return np.zeros(4), {"labels": np.zeros(1), "names": ["a"]}


class Loader:
    """Batches that can be read again; counts those that were read."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.count):
            self.read += 1
            yield batch()


class Sized(Loader):
    def __len__(self) -> int:
        return self.count


def test_the_arrays_of_a_batch_count() -> None:
    assert batch_bytes(batch()) == BATCH_BYTES


@dataclass
class Sample:
    number: int
    x: Any


class Held:
    """An object of no known kind, which says of what shape its pictures are."""

    def __init__(self, x: Any) -> None:
        self.shape, self.x = (28, 28), x


ROWS = np.zeros((5, 2))


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (ROWS, 5), ((ROWS, np.zeros(3)), 5), ([[ROWS, np.zeros(3)], np.zeros(4)], 5),
        ({"id": 7, "scale": np.float32(1), "x": ROWS}, 5), ({"names": ["a", "b"], "x": ROWS}, 5),
        (UserDict(id=7, x=ROWS), 5), (Sample(7, ROWS), 5), (Held([ROWS]), 5), ((["a", "b"], [0, 1]), 2),
        ([(), np.zeros((0, 3))], 0), ((1.0, 2.0), 1), (3, 1),
    ],
)  # fmt: skip
def test_rows_are_those_of_the_first_array_that_has_any(batch: Any, rows: int) -> None:
    assert batch_rows(batch) == rows


def test_arrays_count_wherever_they_lie() -> None:
    assert [batch_bytes(kind(7, ROWS)) for kind in (Sample, lambda _, x: Held(x))] == [ROWS.nbytes] * 2


def test_several_batches_without_rows_are_reported_by_the_name_of_their_data_set(caplog):
    warn_unweighted({"a": [(1.0, 2.0)], "b": [["x", "y"]] * 2, "c": [ROWS] * 2})
    assert not caplog.text
    warn_unweighted({"a": [(ROWS,)], "b": [(1.0, 2.0)] * 2})
    [message] = [record.message for record in caplog.records]
    assert message.startswith("batches of b hold no array whose rows could be counted: each batch")


def test_a_loader_is_held_where_it_fits_and_read_again_where_not() -> None:
    held, streamed = read_data(Loader(3), streamed=None, limit=3 * BATCH_BYTES)
    assert isinstance(held, list)
    assert (len(held), streamed) == (3, False)
    loader = Loader(30)
    assert read_data(loader, streamed=None, limit=3 * BATCH_BYTES) == (Steady(loader), True)
    assert loader.read == 4 + COMPARED


def test_a_length_reports_with_the_first_batch() -> None:
    loader = Sized(30)
    assert read_data(loader, streamed=None, limit=29 * BATCH_BYTES) == (Steady(loader), True)
    assert loader.read == 1 + COMPARED
    assert read_data(Sized(30), streamed=None, limit=30 * BATCH_BYTES)[1] is False


def test_what_is_in_memory_already_or_cannot_be_read_again_is_held() -> None:
    batches = [batch() for _ in range(9)]
    assert read_data(batches, streamed=None, limit=1) == (batches, False)
    held, streamed = read_data(iter(batches), streamed=None, limit=1)
    assert (held, streamed) == (batches, False)


def test_several_data_sets_are_held_or_streamed_together() -> None:
    small, large = Loader(1), Sized(50)
    data, streamed = read_data({"a": small, "b": large}, streamed=None, limit=9 * BATCH_BYTES)
    assert (data, streamed) == ({"a": Steady(small), "b": Steady(large)}, True)
    data, streamed = read_data({"a": small, "b": [batch()]}, streamed=None, limit=9 * BATCH_BYTES)
    assert not streamed
    assert [len(batches) for batches in data.values()] == [1, 1]


def test_what_is_asked_for_is_done() -> None:
    loader = Loader(2)
    assert read_data(loader, streamed=True, limit=10**9) == (Steady(loader), True)
    held, streamed = read_data(loader, streamed=False, limit=1)
    assert (len(held), streamed) == (2, False)


def test_data_that_is_none_is_refused() -> None:
    def read(batches: Any, streamed: bool | None = None) -> object:
        return read_data(batches, streamed=streamed, limit=1)

    empty = "batches of test must hold at least one batch, got none"
    refused(
        InvalidValueError,
        (lambda: read([]), "at least one batch"),
        (lambda: read({}), "at least one data set"),
        (lambda: read({"train": [batch()], "test": []}), empty),
        (lambda: read({"train": [batch()], "test": Sized(0)}, streamed=True), empty),
        (lambda: read({"train": [batch()], "test": Loader(0)}, streamed=True), empty),
    )
    refused(
        InvalidTypeError,
        (lambda: read(3), "must be iterable, got 3"),
        (lambda: read({0: [batch()]}), "the name of a data set must be str, got 0"),
        (lambda: read({"x": np.zeros((3, 2))}), r"got a ndarray for 'x'; .* is a batch, give \[batch\]"),
    )
    with pytest.raises(LandscapeError, match="a batch holds no rows; give batches with data"):
        batch_facts((np.zeros((0, 2)), np.zeros(0)), "standard")


def test_a_streamed_loader_of_unknown_length_is_no_empty_one(caplog: pytest.LogCaptureFixture) -> None:
    class Numbers:
        def __iter__(self) -> Iterator[float]:
            return iter([1.0, 2.0])

    data, _ = read_data(Numbers(), streamed=True, limit=1)
    assert list(data_sets(data, streamed=True)[""]) == [1.0, 2.0]
    warn_unweighted(data)
    assert "hold no array whose rows could be counted" in caplog.text


def test_a_loader_that_changes_is_refused_by_the_name_of_its_data_set() -> None:
    class Changing(Loader):
        def __iter__(self) -> Iterator[Any]:
            self.read += 1
            yield np.full(4, self.read)

    with pytest.raises(InvalidValueError, match="streamed batches of b must be the same each time"):
        read_data({"a": Loader(1), "b": Changing(1)}, streamed=True, limit=1)
    assert read_data(Changing(1), streamed=False, limit=1)[1] is False  # it is read once


def test_batches_count_by_their_rows_and_in_mode_mindspore_all_the_same() -> None:
    for rows in (1, 5):
        found = [batch_facts(np.zeros((rows, 2)), mode) for mode in ("standard", "mindspore")]
        assert [facts.weight for facts in found] == [rows, 1.0]
        assert [facts.rows for facts in found] == [rows, rows]


def test_mindspore_takes_as_many_whole_batches_as_there_are_samples() -> None:
    batches = [np.zeros((4, 2))] * 3
    assert [len(mindspore_batches(batches, samples)) for samples in (4, 7, 8, 100)] == [1, 1, 2, 3]
    with pytest.raises(InvalidValueError, match=r"must be at least the batch size 4, got 3"):
        mindspore_batches(batches, 3)


def test_the_memory_is_the_hosts_or_the_containers(tmp_path: Path) -> None:
    physical = host_bytes(())
    assert physical > 1 << 28
    limits = [tmp_path / name for name in ("absent", "unlimited", "limit")]
    limits[1].write_text("max\n")
    assert host_bytes(limits[:2]) == physical
    limits[2].write_text("1000000\n")
    assert host_bytes(limits) == 1_000_000
