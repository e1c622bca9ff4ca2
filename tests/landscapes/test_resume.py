"""A landscape that was stopped continues in parts of any size, and only if it is the same landscape."""

from typing import Any

import pytest

from distsummary import LossGrid
from tests.unit.landscapes.test_generator import draw

pytestmark = pytest.mark.usefixtures("no_matplotlib")


def bits(grids: dict[str, LossGrid]) -> list[bytes]:
    names = ("z", "path_loss", "true_loss", "path")
    return [getattr(grids[key], name).tobytes() for key in sorted(grids) for name in names]


def points(chunks: list[Any]) -> list[Any]:
    return [(chunk.row_key, column) for chunk in chunks for column in chunk.columns]


def test_it_continues_also_in_other_parts(tmp_path, stop_at, cut_calls):
    seen = stop_at(None)
    undisturbed = draw()
    whole = points(seen)
    cut_calls(2)
    stop_at(5)
    with pytest.raises(KeyboardInterrupt):
        draw(run_dir=tmp_path)
    cut_calls(3)
    seen = stop_at(None)
    grids = draw(run_dir=tmp_path)
    assert bits(grids) == bits(undisturbed)
    again = points(seen)
    assert len(again) == len(set(again)) == len(whole) - 10
