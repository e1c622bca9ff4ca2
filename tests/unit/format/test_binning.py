"""Both ways of counting against np.histogram, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distsummary.format import binning
from distsummary.format.histogram import bin_edges

WAYS = ("sorted", "placed")


def edges_of(values: np.ndarray, bins: int = 90) -> np.ndarray:
    """As the histogram rule makes them, of the finite values."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    small_float = values.dtype.kind == "f" and values.itemsize <= 4
    dtype = np.dtype(np.float32 if small_float else np.float64)
    return bin_edges(float(finite.min()), float(finite.max()), bins * 10, dtype)


def count(values: np.ndarray, edges: np.ndarray, way: str) -> np.ndarray | None:
    """None where places are in doubt."""
    if way == "sorted":
        return binning._count_sorted(values, edges)
    placing = binning._placing(values, edges)
    return None if placing is None else binning._count_placed(values, edges, placing)


def expected(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return np.histogram(finite.astype(np.result_type(finite, edges)), edges)[0]


def check(values: np.ndarray, edges: np.ndarray) -> int:
    """How many ways could count."""
    found = [count(values, edges, way) for way in WAYS]
    for counts in found:
        if counts is not None:
            np.testing.assert_array_equal(counts, expected(values, edges))
    return sum(counts is not None for counts in found)


RANDOM = np.random.default_rng(7)
NORMAL = RANDOM.standard_normal(70_000).astype(np.float32)
SAMPLES = {
    "normal": NORMAL,
    "float64": RANDOM.standard_normal(40_000),
    "half of them zero": np.maximum(NORMAL, 0),
    "zeros on an edge": np.where(NORMAL > 1.5, NORMAL, 0) - (np.arange(NORMAL.size) == 0) * NORMAL.max(),
    "whole numbers": RANDOM.integers(0, 256, 40_000).astype(np.float32),
    "integers": RANDOM.integers(-1000, 1000, 40_000),
    "large integers": RANDOM.integers(-(2**62), 2**62, 4_000),
    "float16": NORMAL[:5000].astype(np.float16),
    "rounded to bfloat16": (NORMAL.view(np.uint32) & 0xFFFF0000).view(np.float32),
    "with NaN and infinities": np.where(RANDOM.random(NORMAL.size) < 0.01, np.float32(np.inf), NORMAL) * 1,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_both_ways_count_what_numpy_counts(name: str):
    values = np.asarray(SAMPLES[name])
    assert check(values, edges_of(values)) == 2


def test_the_edges_themselves_and_their_neighbours_are_counted_right():
    edges = np.linspace(-0.3, 0.7, 91, dtype=np.float32)
    around = [np.nextafter(edges, np.float32(-9)), edges, np.nextafter(edges, np.float32(9))]
    values = np.concatenate(around).clip(edges[0], edges[-1])
    assert check(values, edges) == 2


@pytest.mark.parametrize(
    "values",
    [
        np.float32(1e6) + RANDOM.random(1000, np.float32),  # edges closer than their rounding
        np.arange(256, dtype=np.uint8),
        np.array([0, 5e-324, 1e-323]),
        np.array([-1.7e308, 1.7e308]),
    ],
)
def test_where_places_are_in_doubt_numbers_are_sorted(values: np.ndarray):
    edges = edges_of(values)
    assert count(values, edges, "placed") is None
    np.testing.assert_array_equal(binning.bin_counts(values, edges), expected(values, edges))


@settings(max_examples=40)
@given(
    hnp.arrays(
        st.sampled_from(["float16", "float32", "float64", "int32", "int64", "uint16"]), st.integers(1, 80)
    ),
    st.sampled_from([1, 3, 90]),
)
def test_any_numbers_are_counted_as_numpy_does(values: np.ndarray, bins: int):
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if finite.size:
        check(values, edges_of(values, bins))


def test_the_faster_way_is_chosen_once_and_counts_the_same():
    assert binning._sorts_fast() in (True, False)
    values = SAMPLES["normal"]
    edges = edges_of(values)
    np.testing.assert_array_equal(binning.bin_counts(values, edges), expected(values, edges))
