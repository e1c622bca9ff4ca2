"""Parameters in rows: what is made row by row is what is made at once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Directions
from distsummary.checkpoints.mindspore_ckpt import map_ckpt, write_ckpt
from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.array_rows import Rows, array_rows, rows_of
from distsummary.landscapes.directions.normalization import NORMALIZATIONS, FilterAxis
from distsummary.landscapes.directions.recipe import RandomDirections

SHAPES: list[tuple[int, ...]] = [(), (0, 4), (7,), (9, 10), (40, 3, 5, 5), (6, 70_000), (300, 1001)]


def weights_of(shape: tuple[int, ...]) -> Any:
    return np.asarray(np.random.default_rng(7).standard_normal(shape), np.float32)


def in_pieces(rows: Rows, step: int) -> Any:
    """All rows, so many at a time, beginning with the last."""
    starts = range(0, max(1, len(rows)), step)
    pieces = {start: rows(start, min(start + step, len(rows))) for start in reversed(starts)}
    return np.concatenate([pieces[start] for start in starts]).reshape(rows.shape)


@pytest.mark.parametrize("how", NORMALIZATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_directions_in_rows_are_the_directions_bit_for_bit(shape: tuple[int, ...], how: str) -> None:
    weights = weights_of(shape)
    recipe = RandomDirections(names=("a.weight",), seed=4, normalization=how)
    whole = recipe.make({"a.weight": weights}).y["a.weight"]
    rows = recipe.rows(1, "a.weight", array_rows(weights))
    assert rows.shape == whole.shape == shape
    for step in (1, 4, max(1, len(rows))):
        assert in_pieces(rows, step).tobytes() == whole.tobytes()
    assert rows.whole().tobytes() == whole.tobytes()
    assert rows.is_zero == ((how == "filter" and len(shape) < 2) or (how != "none" and 0 in shape))


@pytest.mark.parametrize("axis", [1, -1, (1, 2)], ids=str)
def test_filters_that_lie_along_another_axis_too(axis: FilterAxis) -> None:
    weights = weights_of((40, 3, 5, 5))
    recipe = RandomDirections(names=("a",), normalization="filter", filter_axes={"a": axis})
    whole = recipe.make({"a": weights}).x["a"]
    assert in_pieces(recipe.rows(0, "a", array_rows(weights)), 7).tobytes() == whole.tobytes()
    norms = [np.sqrt((x.astype(float).reshape(2, 20, 3, 25) ** 2).sum(axis=(1, 3))) for x in (whole, weights)]
    if axis == (1, 2):
        np.testing.assert_allclose(norms[0], norms[1], rtol=1e-6)


def test_given_directions_in_rows_are_slices_of_them() -> None:
    array = weights_of((9, 10))
    given = Directions(x={"a": array, "b": np.zeros((2, 2), np.float32)}, y={})
    assert np.shares_memory(given.rows(0, "a", array_rows(array))(2, 4), array)
    assert not given.rows(0, "a", array_rows(array)).is_zero
    assert given.rows(0, "b", array_rows(np.ones((2, 2)))).is_zero


def test_rows_without_a_norm_are_refused_when_they_are_read() -> None:
    weights = weights_of((9, 10))
    weights[6, 3] = np.nan
    rows = RandomDirections(names=("a",)).rows(0, "a", array_rows(weights))
    assert np.isfinite(rows(0, 6)).all()
    with pytest.raises(LandscapeError, match="a holds NaN or Inf"):
        rows(6, 7)
    with pytest.raises(LandscapeError, match="a holds NaN or Inf"):
        RandomDirections(names=("a",), normalization="layer").rows(0, "a", array_rows(weights))


def test_blocks_are_whole_rows_of_about_a_size() -> None:
    def blocks(shape: tuple[int, ...], *ends: int) -> list[tuple[int, int]]:
        return list(replace(array_rows(weights_of(shape)), block=25).blocks(*ends))

    assert blocks((7, 10)) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert blocks((7, 10), 3, 6) == [(3, 5), (5, 6)]
    assert blocks((2, 100)) == [(0, 1), (1, 2)]
    assert blocks(()) == [(0, 1)]


def test_of_a_checkpoint_file_only_the_rows_are_read_and_the_memory_goes_back(nasty_tmp_path: Path) -> None:
    state = {"w": weights_of((40, 3, 5)), "k": weights_of(()), "n": np.arange(5)}
    write_ckpt(nasty_tmp_path / "a.ckpt", state)
    mapped = map_ckpt(nasty_tmp_path / "a.ckpt")
    for name, array in state.items():
        rows = rows_of(mapped, name)
        assert rows.shape == array.shape
        assert in_pieces(rows, 3).tobytes() == np.asarray(array).tobytes()
    held = mapped["w"]
    mapped.release("w")
    assert held.tobytes() == mapped["w"].tobytes() == state["w"].tobytes()
