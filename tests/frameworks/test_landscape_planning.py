"""The planner on real models, and workers with the engine it chose."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx

from distsummary import Evaluation
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.engines import timing
from distsummary.landscapes.engines.chunks import Chunk, plan_chunks
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.engine_choice import (
    EXACT,
    EngineChoice,
    MemoryTooSmallError,
    Timing,
    piece,
)
from distsummary.landscapes.engines.timing import relative_difference
from distsummary.landscapes.engines.torch_engines import TorchEngine
from distsummary.landscapes.engines.torch_graph_engine import TorchGraphEngine
from distsummary.landscapes.engines.worker import LandscapeWorker
from distsummary.landscapes.model.user_code import BatchLoss
from tests.frameworks.landscape_nets import CRITERION, Cnn, Mlp, fingerprint, make_net
from tests.unit.landscapes import golden_mlp

MANY = 10**7  # points: timing candidates pays
choose_engine = partial(timing.choose_engine, can_compile=False)  # which takes half a minute at times


def task_of(net: Any, loss_fn: Any = CRITERION, size: int = 9, **more: Any) -> Task:
    state = framework_of(net).state(net)
    names = tuple(name for name, _ in framework_of(net).named_parameters(net))
    axis = np.linspace(-1, 1, size)
    recipe = RandomDirections(names=names)
    plane = PlanePlan(states=[state], names=names, recipe=recipe, x=axis, y=axis, points=np.zeros((1, 2)))
    return Task(model=net, loss_fn=loss_fn, batches=net.batches(), planes=[plane], **more)


def grid_of(task: Task, order: Any = list) -> Any:
    """The losses of the grid by a worker that gets the chunks in some order."""
    chunks = [c for c in plan_chunks(task.planes, grid_chunk=piece(task.choice, 2)) if c.kind == "grid"]
    found = np.full((9, 9), np.nan)
    worker = LandscapeWorker(task)
    try:
        for chunk in order(chunks):
            found[chunk.row, list(chunk.columns)] = worker.evaluate(chunk).measured[:, 0]
    finally:
        worker.close()
    return found


@pytest.mark.usefixtures("several_threads")
@pytest.mark.parametrize("kind", [Mlp, Cnn], ids=lambda kind: kind.__name__)
def test_the_choice_is_one_that_was_timed_and_is_exact(kind: type) -> None:
    net = make_net(kind)
    before = fingerprint(net)
    planned = choose_engine(task_of(net), points=MANY)
    timing = planned.timings[planned.choice]
    assert timing.error <= EXACT
    assert timing.point_s <= planned.timings[next(iter(planned.timings))].point_s
    assert len(planned.timings) + len(planned.refused) >= 5
    tried = {*planned.timings, *planned.refused}
    assert any("channels_last" in choice.options for choice in tried) == (kind is Cnn)
    assert fingerprint(net) == before
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("quantity", "is_refused"), [("test/loss", True), ("test/of/loss", False)])
def test_the_losses_of_every_data_set_must_agree_and_metrics_need_not(monkeypatch, quantity, is_refused):
    measured = TorchGraphEngine.row_values

    def wrong_in_one(engine: Any, y: float, xs: Any) -> Any:
        values = measured(engine, y, xs)
        if isinstance(engine, TorchGraphEngine) and y > 0:  # in the last row
            values[:, engine.quantities.index(quantity)] *= 1.001
        return values

    monkeypatch.setattr(TorchEngine, "row_values", wrong_in_one)
    monkeypatch.setattr(timing, "candidates", lambda *_, **__: [EngineChoice(engine="graph")])
    net, given = make_net(Mlp), Evaluation(metrics={"of/loss": CRITERION})
    task = task_of(net, evaluation=given)
    sets = {"train": net.batches(), "test": net.batches()}
    planned = choose_engine(replace(task, batches=sets), points=MANY)
    assert {choice.engine: timing.error > EXACT for choice, timing in planned.timings.items()} == {
        "row": False,
        "graph": is_refused,
    }
    assert not is_refused or planned.choice.engine == "row"


def test_any_worker_with_the_choice_gives_the_same_bits_in_any_order() -> None:
    for choice in (EngineChoice(engine="graph", chunk=3), EngineChoice(engine="graph"), None):
        grids = [grid_of(task_of(make_net(Mlp), choice=choice), order) for order in (list, reversed)]
        assert np.isfinite(grids[0]).all()
        assert grids[0].tobytes() == grids[1].tobytes()


def test_a_candidate_that_was_slowed_down_once_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row takes 10 ms a point, graph 6 ms the first time and 4 ms the second, chunks 5.5 ms."""
    reported = {"torch-row": [0.01], "torch-graph": [0.004, 0.006]}

    def timed(_: object, engine: Any, *__: object) -> Timing:
        times = reported.get(engine.name)
        return Timing(point_s=times.pop() if times else 0.0055)

    monkeypatch.setattr(timing._Bench, "_time", timed)
    ticks = iter(np.arange(0, 100, 1e-3))
    planned = choose_engine(task_of(make_net(Mlp)), points=MANY, clock=lambda: float(next(ticks)))
    assert planned.choice.label == "torch-graph"
    assert planned.timings[planned.choice].point_s == 0.004
    assert reported == {"torch-row": [], "torch-graph": []}


def test_a_short_landscape_gets_the_row_engine_after_a_glance() -> None:
    net, calls = make_net(Mlp), []
    net.register_forward_hook(lambda *_: calls.append(1))
    planned = choose_engine(task_of(net), clock=iter(np.arange(0, 1, 1e-6)).__next__)
    assert planned.choice.engine == "row"
    assert not planned.timings
    assert len(calls) == 3 + 2 * 4  # the first batch is tried three times, two points see four batches


def test_where_nothing_is_gained_the_row_engine_stays() -> None:
    """A clock that ticks once a look: every candidate takes the same."""
    ticks = iter(range(10**6))
    planned = choose_engine(task_of(make_net(Mlp)), points=MANY, clock=lambda: float(next(ticks)))
    assert planned.choice.engine == "row"
    assert len(planned.timings) > 1


def test_a_loss_that_cannot_be_recorded_is_left_to_the_row_engine() -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        loss = CRITERION(model(batch[0]), batch[1])
        return loss if loss < 1.0 else loss * 2

    planned = choose_engine(task_of(make_net(Mlp), BatchLoss(loss_fn)), points=MANY)
    assert planned.choice.engine == "row"
    assert all("CannotTraceError" in why or "no time" in why for why in planned.refused.values())
    assert planned.refused


def test_where_nothing_can_be_compiled_an_engine_without_is_chosen_and_the_reason_is_on_record(monkeypatch):
    def failing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("no C++ compiler")

    monkeypatch.setattr(fx.GraphModule, "compile", failing)
    net = make_net(Mlp)
    before = fingerprint(net)
    planned = choose_engine(task_of(net), points=MANY, can_compile=True)
    assert "compile" not in planned.choice.options
    (why,) = (why for choice, why in planned.refused.items() if "compile" in choice.options)
    assert "cannot compile the loss: no C++ compiler" in why
    assert fingerprint(net) == before


def test_an_engine_that_was_asked_for_is_not_timed() -> None:
    choice = EngineChoice(engine="graph", chunk=3)
    planned = choose_engine(task_of(make_net(Mlp), choice=choice), points=MANY)
    assert (planned.choice, planned.timings) == (choice, {})


def test_where_memory_does_not_hold_the_row_engine_layers_move_one_by_one() -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        raise MemoryError

    planned = choose_engine(task_of(make_net(Mlp), BatchLoss(loss_fn)), points=MANY)
    assert planned.choice == EngineChoice(engine="inference")


def test_what_the_models_own_code_raises_is_raised() -> None:
    net = make_net(Mlp)
    before = fingerprint(net)
    with pytest.raises(ZeroDivisionError):
        choose_engine(task_of(net, BatchLoss(lambda model, batch: 1 / 0)), points=MANY)
    assert fingerprint(net) == before


def test_autocast_is_reported_with_its_error() -> None:
    task = task_of(make_net(Mlp), choice=EngineChoice(), evaluation=Evaluation(precision="bf16"))
    assert 1e-5 < choose_engine(task, points=MANY).choice.precision_error < 3e-2
    task = task_of(make_net(Mlp), choice=EngineChoice())
    assert choose_engine(task, points=MANY).choice.precision_error == 0.0


def test_numpy_models_have_the_naive_engine() -> None:
    model = golden_mlp.Mlp()
    task = Task(model=model, loss_fn=golden_mlp.cross_entropy, batches=golden_mlp.batches(), planes=[])
    assert choose_engine(task).choice.engine == "naive"


def test_too_little_memory_names_the_engine_to_continue_with() -> None:
    full: list[bool] = []

    def loss_fn(model: Any, batch: Any) -> Any:
        if full:
            raise MemoryError
        return CRITERION(model(batch[0]), batch[1])

    point = Chunk(plane=0, kind="path", row=0, columns=(0,))
    for choice, smaller in (
        (EngineChoice(engine="graph", chunk=4), "torch-graph x2"),
        (EngineChoice(), "torch-inference"),
        (EngineChoice(engine="inference"), ""),
    ):
        full.clear()
        worker = LandscapeWorker(task_of(make_net(Mlp), BatchLoss(loss_fn), choice=choice))
        full.append(True)
        with pytest.raises(MemoryTooSmallError if smaller else MemoryError) as caught:
            worker.evaluate(point)
        worker.close()
        if smaller:
            assert caught.value.smaller.label == smaller  # type: ignore[union-attr]  # it is the first error


def test_differences_are_reported_relative_to_what_a_loss_can_show() -> None:
    base = np.array([2.0, 1.0, 1e-9, np.inf])
    assert relative_difference(base * (1 + 1e-6), base) == pytest.approx(1e-6)
    assert relative_difference(np.array([2.0, 1.0, 2e-9, np.inf]), base) < 1e-8
    assert relative_difference(np.array([2.0, 1.0, 1e-9, 5.0]), base) == np.inf
    assert relative_difference(np.array([np.nan]), np.array([np.inf])) == 0.0
