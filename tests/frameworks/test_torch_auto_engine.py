"""`landscape(engine="auto")`: the engine that timing chose gives the losses of the row engine."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

import distsummary as ds
from distsummary.errors import InvalidValueError
from distsummary.landscapes.engines import engine_choice as planner
from distsummary.landscapes.model.torch_loan import Loan
from tests.landscape_arguments import grouped


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    data = [(torch.randn(256, 16), torch.randint(0, 4, (256,))) for _ in range(2)]
    return model, nn.CrossEntropyLoss(), data


@pytest.mark.timeout(300)
def test_the_engine_chosen_agrees_with_the_row_engine_and_is_named(monkeypatch):
    monkeypatch.setattr(planner, "LEAST_PLAN_S", 0.0)  # else too short to be planned
    grids = {
        e: ds.landscape(
            *parts(), plane=ds.Plane(size=15), compute=ds.Compute(workers=0, engine=e), progress=False
        )
        for e in ("row", "auto")
    }
    assert grids["row"].engine == "torch-row"
    assert grids["auto"].engine.startswith("torch-")
    np.testing.assert_allclose(grids["auto"].z, grids["row"].z, rtol=5e-6)


def test_another_engine_is_refused_by_name():
    with pytest.raises(InvalidValueError, match="engine"):
        ds.landscape(*parts(), compute=ds.Compute(engine="fastest"))


def test_the_engine_of_a_grid_can_be_asked_for_again():
    label = "torch-graph x5 channels_last"
    first, second = (
        ds.landscape(
            *parts(), plane=ds.Plane(size=9), compute=ds.Compute(workers=0, engine=label), progress=False
        )
        for _ in "ab"
    )
    assert first.engine == second.engine == label
    assert first.z.tobytes() == second.z.tobytes()
    assert "torch" in first.hardware


def too_small_for_recordings(model, batch):
    """A loss for which memory does not suffice while it is recorded."""
    outputs = model(batch[0])
    if _get_current_dispatch_mode() is not None:
        raise MemoryError("too small")
    return nn.functional.cross_entropy(outputs, batch[1])


def test_too_little_memory_continues_with_a_smaller_engine_from_the_start(tmp_path, caplog):
    model, _, data = parts()
    arguments = {"size": 7, "workers": 0, "progress": False}
    arguments |= {"batch_loss": too_small_for_recordings, "batches": data}
    grid = ds.landscape(model, **grouped(engine="torch-graph x4", run_dir=tmp_path, **arguments))
    row = ds.landscape(model, **grouped(engine="row", **arguments))
    assert grid.engine == "torch-row"
    assert grid.z.tobytes() == row.z.tobytes()
    labels = ("torch-graph x2", "torch-graph", "torch-row")
    assert [f"continuing with {label}" in caplog.text for label in labels] == [True] * 3


def test_reduced_precision_is_reported_with_its_error():
    arguments = {"size": 5, "workers": 0, "progress": False}
    grid = ds.landscape(*parts(), **grouped(evaluation=ds.Evaluation(precision="bf16"), **arguments))
    assert 1e-6 < grid.precision_error < 0.05
    assert grid.rounding["x"] > ds.landscape(*parts(), **grouped(**arguments)).rounding["x"]


def test_memory_inference_gives_the_bits_of_the_row_engine():
    arguments = {"size": 5, "workers": 0, "progress": False}
    row = ds.landscape(*parts(), **grouped(engine="row", **arguments))
    inference = ds.landscape(*parts(), **grouped(memory="inference", **arguments))
    assert inference.engine == "torch-inference"
    assert inference.z.tobytes() == row.z.tobytes()


@pytest.mark.parametrize("engine", ["auto", "row"])
def test_where_memory_does_not_hold_a_copy_the_models_own_is_written_to(monkeypatch, caplog, engine):
    lend = Loan.__init__

    def full(self, *arguments, in_place=False, **more):
        if not in_place:
            raise MemoryError("for a copy of the model")
        lend(self, *arguments, in_place=in_place, **more)

    monkeypatch.setattr(Loan, "__init__", full)
    grid = ds.landscape(
        *parts(), plane=ds.Plane(size=5), compute=ds.Compute(workers=0, engine=engine), progress=False
    )
    assert grid.engine == "torch-inference"
    assert "model's own memory" in caplog.text or "continuing with torch-inference" in caplog.text
