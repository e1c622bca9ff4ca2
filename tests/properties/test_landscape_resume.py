"""A landscape that was stopped continues where it stood, to the same bits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distsummary import Evaluation, LossGrid
from distsummary.errors import LandscapeError
from distsummary.landscapes import generator
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.engines.worker import LandscapeWorker, Task
from distsummary.landscapes.run import runner
from distsummary.landscapes.run.landscape_identity import landscape_identity
from distsummary.rundir.run_dir import RunDir
from tests.unit.landscapes.golden_mlp import Mlp, batches, cross_entropy
from tests.unit.landscapes.test_generator import draw

pytestmark = pytest.mark.usefixtures("no_matplotlib")


@pytest.fixture
def evaluated(monkeypatch) -> list[Any]:
    """The chunks that workers evaluate; the run is stopped where the list says "stop"."""
    seen: list[Any] = []
    real = LandscapeWorker.evaluate

    def evaluate(self: LandscapeWorker, chunk: Any) -> Any:
        if len(seen) + 1 == stop_at[0]:
            raise KeyboardInterrupt
        seen.append(chunk)
        return real(self, chunk)

    monkeypatch.setattr(LandscapeWorker, "evaluate", evaluate)
    monkeypatch.setattr(runner, "call_size", lambda *_: 10**6)  # no chunk is cut, whatever it takes
    stop_at = [0]
    seen.append(stop_at)  # so that a test can set it
    return seen


def stopped(seen: list[Any], at: int, **arguments: Any) -> None:
    seen[0][0] = at
    with pytest.raises(KeyboardInterrupt):
        draw(**arguments)
    seen[0][0] = 0
    del seen[1:]


def bits(grids: dict[str, LossGrid]) -> list[bytes]:
    names = ("z", "path_loss", "true_loss", "path")
    return [getattr(grids[key], name).tobytes() for key in sorted(grids) for name in names]


def test_a_stopped_landscape_continues_and_is_the_undisturbed_one(tmp_path, evaluated):
    undisturbed = draw()
    whole = len(evaluated) - 1
    del evaluated[1:]
    run_dir = RunDir(tmp_path).create()
    stopped(evaluated, 5, run_dir=run_dir)
    [journal] = run_dir.landscape_dir.glob("journal-*")
    grids = draw(run_dir=run_dir)
    assert len(evaluated) - 1 == whole - 3
    assert bits(grids) == bits(undisturbed)
    assert not journal.exists()  # it is complete


def points(chunks: list[Any]) -> list[Any]:
    return [(chunk.row_key, column) for chunk in chunks for column in chunk.columns]


def test_it_continues_also_in_other_parts(tmp_path, evaluated, monkeypatch):
    undisturbed = draw()
    whole = points(evaluated[1:])
    del evaluated[1:]
    monkeypatch.setattr(runner, "call_size", lambda *_: 2)
    stopped(evaluated, 7, run_dir=tmp_path)
    monkeypatch.setattr(runner, "call_size", lambda *_: 3)
    grids = draw(run_dir=tmp_path)
    assert bits(grids) == bits(undisturbed)
    again = points(evaluated[1:])
    assert len(again) == len(set(again)) == len(whole) - 10


def test_it_begins_again_when_asked_to(tmp_path, evaluated):
    stopped(evaluated, 5, run_dir=tmp_path)
    draw(run_dir=tmp_path, resume=False)
    assert len(evaluated) - 1 > 5
    assert not list(tmp_path.glob("landscape/journal-*"))


def test_another_landscape_of_the_same_run_has_its_own_journal(tmp_path, evaluated):
    stopped(evaluated, 5, run_dir=tmp_path)
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
