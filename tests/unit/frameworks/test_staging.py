"""Staged copies: the same values, memory that comes back, and never under an array that lives."""

import gc
import threading
import tracemalloc

import numpy as np
import pytest

from distsummary.frameworks.staging import KEPT_BYTES, is_frozen, size_class, staged

LARGE = 50_000


@pytest.mark.parametrize(
    "array",
    [
        np.arange(LARGE, dtype=np.float32), np.arange(LARGE * 2).reshape(2, LARGE)[:, ::-2],
        np.arange(LARGE, dtype=">f8"), np.asfortranarray(np.arange(LARGE * 2.0).reshape(100, -1)),
        np.arange(LARGE) > 7, np.arange(LARGE).astype("datetime64[s]"), np.zeros(LARGE, np.complex128),
        np.full(LARGE, "x"), np.zeros(LARGE, [("a", "<f4"), ("b", "<i8")]), np.float64(3.5).reshape(()),
        np.empty((0, 3)), np.array([None] * LARGE),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)  # fmt: skip
def test_a_copy_has_the_values_and_shares_no_memory(array):
    copy = staged(array)
    np.testing.assert_array_equal(copy, array)
    assert copy.shape == array.shape
    assert copy.dtype == array.dtype.newbyteorder("=")
    assert copy.flags.c_contiguous
    assert copy.flags.writeable
    assert not np.shares_memory(copy, array)


def test_memory_is_used_again_once_the_copy_and_its_views_are_gone():
    array = np.arange(LARGE)
    first = staged(array)
    place = first.ctypes.data
    view = first[10:20].reshape(2, 5)
    del first
    second = staged(array)
    assert second.ctypes.data != place  # the view still holds it
    np.testing.assert_array_equal(view.ravel(), array[10:20])
    del view
    assert staged(array).ctypes.data == place


def test_unused_memory_is_bounded():
    array = np.zeros(KEPT_BYTES // 4, np.uint8)
    tracemalloc.start()
    copies = [staged(array) for _ in range(6)]
    copies.clear()
    gc.collect()
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept <= KEPT_BYTES < most


def test_threads_never_share_a_block():
    wrong = []

    def work(number: int) -> None:
        for _ in range(50):
            copy = staged(np.full(LARGE, number))
            if not (copy == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("nbytes", [1, 9, 1000, 65536, 65537, 10**6, 64_000_000, 64 << 20])
def test_a_size_class_wastes_at_most_a_fifth(nbytes):
    assert nbytes <= size_class(nbytes) <= nbytes * 1.25


def test_an_array_is_frozen_when_neither_it_nor_its_owner_can_be_written():
    array = np.arange(10)
    view = array[:5]
    view.flags.writeable = False
    assert not is_frozen(array)
    assert not is_frozen(view)  # array can be written
    array.flags.writeable = False
    assert is_frozen(array)
    assert is_frozen(array[2:4])
    assert is_frozen(np.frombuffer(b"12345678", np.uint8))
    assert not is_frozen(np.frombuffer(bytearray(8), np.uint8))
