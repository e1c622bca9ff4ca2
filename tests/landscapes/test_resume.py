"""A landscape that was stopped continues in parts of any size, and only if it is the same landscape."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distsummary import Evaluation, LossGrid
from distsummary.errors import LandscapeError
from distsummary.landscapes import generator
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.run.landscape_identity import landscape_identity
from tests.unit.landscapes.golden_mlp import Mlp, batches, cross_entropy
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


def test_another_landscape_of_the_same_run_has_its_own_journal(tmp_path, stop_at):
    stop_at(4)
    with pytest.raises(KeyboardInterrupt):
        draw(run_dir=tmp_path)
    stop_at(None)
    draw(run_dir=tmp_path, size=3)
    assert len(list(tmp_path.glob("landscape/journal-*"))) == 1


def test_two_at_once_of_the_same_landscape_are_refused(tmp_path):
    other: list[str] = []

    def meanwhile(*_: Any) -> None:
        if not other:
            with pytest.raises(LandscapeError, match="held by another process"):
                draw(run_dir=tmp_path)
            other.append("refused")

    draw(run_dir=tmp_path, progress=meanwhile)
    assert other == ["refused"]


def task(**changes: Any) -> Task:
    model = Mlp()
    plane = PlanePlan(
        states=[dict(model.parameters)],
        names=tuple(model.parameters),
        recipe=RandomDirections(names=tuple(model.parameters), seed=7),
        x=np.linspace(-1, 1, 3),
        y=np.linspace(-1, 1, 3),
        points=np.zeros((1, 2)),
    )
    given = {"model": model, "loss_fn": cross_entropy, "batches": batches(), "planes": [plane]}
    return Task(**(given | changes))


def test_the_same_task_has_the_same_hashes_and_a_changed_part_another():
    first = task()
    assert landscape_identity(first) == landscape_identity(task())
    [plane] = first.planes
    other_data = [(x + 1e-6, y) for x, y in first.batches]
    names = plane.names
    changed = {
        "data": task(batches=other_data),
        "mode": task(mode="mindspore"),
        "evaluation": task(evaluation=Evaluation(stderr=True)),
        "points": task(planes=[replace(plane, x=plane.x * 2)]),
        "directions": task(planes=[replace(plane, recipe=RandomDirections(names=names, seed=8))]),
        "checkpoints": task(planes=[replace(plane, states=[{n: a + 1 for n, a in plane.states[0].items()}])]),
        "loss_fn": task(loss_fn=generator.landscape),
    }
    for part, other in changed.items():
        hashes = landscape_identity(other)
        assert [name for name, found in landscape_identity(first).items() if found != hashes[name]] == [part]
    assert landscape_identity(first, 0.01)["refine"] != landscape_identity(first)["refine"]
