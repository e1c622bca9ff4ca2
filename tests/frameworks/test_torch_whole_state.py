"""A checkpoint holds the whole state of a model and its optimizer, or names what it leaves out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import distsummary as ds
from distsummary.errors import InvalidValueError

X = torch.ones(2, 4)


class Scaling(nn.Module):
    """A linear layer whose factor grows with each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.scale = nn.Linear(4, 1), 1.0

    def forward(self, x):
        self.scale *= 1.5
        return self.l(x) * self.scale


class Scaled(Scaling):
    """Keeps a number in its extra state, as FP8 modules do, in one of several forms."""

    form: Any = torch.tensor

    def get_extra_state(self):
        return type(self).form(self.scale)

    def set_extra_state(self, state):
        self.scale = float(state["scale"] if isinstance(state, dict) else state)


class OfDict(Scaled):
    @staticmethod
    def form(scale):
        return {"scale": torch.tensor(scale), "history": [None, 1, ("a", 2.5)]}


class OfBytes(Scaled):
    @staticmethod
    def form(scale):
        return str(scale).encode()

    def set_extra_state(self, state):
        self.scale = float(state.decode())


class OfText(OfBytes):
    @staticmethod
    def form(scale):
        return str(scale)

    def set_extra_state(self, state):
        self.scale = float(state)


class OwnSave(Scaling):
    """Adds to its state_dict by the method that bitsandbytes and torch's quantised modules replace."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "scale"] = torch.tensor(self.scale)

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.scale = float(state_dict.pop(prefix + "scale", 1.0))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Scaled(), nn.Identity())

    def forward(self, x):
        return self.body(x)


def plain() -> nn.Module:
    return nn.Linear(4, 1)


def compiled() -> nn.Module:
    return torch.compile(Scaled(), backend="eager")  # type: ignore[return-value]


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-4)


def lbfgs(parameters):
    return torch.optim.LBFGS(parameters, lr=0.01, max_iter=2)


def strong_wolfe(parameters):
    return torch.optim.LBFGS(parameters, lr=0.01, max_iter=2, history_size=2, line_search_fn="strong_wolfe")


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, place: Path, **options: Any
) -> list[float]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(X) - 1).square().mean()
        loss.backward()
        return loss

    losses = []
    with ds.init(place, watch=model, optimizer=optimizer, system_metrics=False, **options) as run:
        for _ in run.steps(range(steps)):
            losses.append(optimizer.step(closure).item())
        assert run.health().errors == {}
    return losses


def saving(place: Path, form: str = "safetensors") -> ds.ModelCheckpoint:
    config = ds.CheckpointConfig(save_checkpoint_steps=3, keep_checkpoint_max=1, format=form)
    return ds.ModelCheckpoint("m", place / "saved", config)


@pytest.mark.parametrize("form", ["safetensors", "ckpt", "dcp"])
@pytest.mark.parametrize(
    ("make", "optimize"),
    [
        *((kind, adam) for kind in (Scaled, OfDict, OfBytes, OfText, OwnSave, Inner, compiled)),
        (plain, lbfgs),
        (plain, strong_wolfe),
    ],
)
def test_a_resumed_training_continues_with_the_whole_state(tmp_path, make, optimize, form):
    model = make()
    optimizer = optimize(model.parameters())
    train(model, optimizer, 3, tmp_path / "run", callbacks=saving(tmp_path, form))
    other = make()
    resumed = ds.resume(tmp_path / "saved", other, other_optimizer := optimize(other.parameters()))
    rest = train(other, other_optimizer, 2, tmp_path / "rest", resume=resumed)
    assert rest == train(model, optimizer, 2, tmp_path / "whole")


class Odd(Scaled):
    form = staticmethod(lambda scale: {"handle": object()})


def test_a_state_that_cannot_be_saved_is_named_and_the_rest_is_saved(tmp_path, caplog):
    model = nn.Sequential(Odd(), nn.Identity())
    train(model, adam(model.parameters()), 3, tmp_path / "run", callbacks=saving(tmp_path))
    assert (
        "the own state of the module '0' is not saved: 0['_extra_state']['handle'] is a object" in caplog.text
    )
    other = nn.Sequential(Odd(), nn.Identity())
    ds.resume(tmp_path / "saved", other)
    assert "does not hold the own state of the modules ['0']" in caplog.text
    assert torch.equal(other[0].l.weight, model[0].l.weight)


def two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9), "an optimizer Adam, got SGD"),
        (lambda m: torch.optim.AdamW(m.parameters(), 0.1, amsgrad=True), "an optimizer Adam, got AdamW"),
        # of equal shapes
        (
            lambda m: adam([m[1].weight, m[0].weight, m[0].bias, *m[2].parameters()]),
            "got '1.weight' of shape",
        ),
        (lambda m: adam([*m[2].parameters(), *m[:2].parameters()]), "parameter 0 is '0.weight' of shape"),
        (lambda m: adam(m[1:].parameters()), "parameter 0 is '0.weight' of shape"),
        (lambda m: adam(m[:2].parameters()), "of 5 parameters, got one of 3"),
    ],
)
def test_the_state_of_another_optimizer_is_refused_before_anything_is_loaded(tmp_path, make, error):
    model = two()
    train(model, adam(model.parameters()), 3, tmp_path / "run", callbacks=saving(tmp_path))
    other = two()
    before = [one.detach().clone() for one in other.parameters()]
    optimizer = make(other)
    with pytest.raises(InvalidValueError, match=error):
        ds.resume(tmp_path / "saved", other, optimizer)
    assert all(torch.equal(one, old) for one, old in zip(other.parameters(), before, strict=True))
    assert not optimizer.state


def test_parameters_that_follow_at_the_end_begin_without_state(tmp_path: Path) -> None:
    model = two()
    train(model, adam(model[:2].parameters()), 3, tmp_path / "run", callbacks=saving(tmp_path))
    optimizer = adam([*model[:2].parameters(), *model[2].parameters()])
    ds.resume(tmp_path / "saved", model, optimizer)
    assert len(optimizer.state) == 3


class Rotary(nn.Module):
    """With a buffer that a .ckpt cannot hold."""

    def __init__(self, buffer: torch.Tensor) -> None:
        super().__init__()
        self.l = nn.Linear(4, 1)
        self.register_buffer("kept", buffer)

    def forward(self, x):
        return self.l(x)


BUFFERS = {
    "complex64": lambda: torch.polar(torch.ones(2), torch.arange(2.0)),
    "complex128": lambda: torch.ones(2, dtype=torch.complex128),
    "quint8": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
}


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.filterwarnings("ignore:.*uantiz")
def test_a_trajectory_leaves_out_buffers_that_its_files_cannot_hold(tmp_path, kind, caplog):
    model = Rotary(BUFFERS[kind]())
    record = ds.Record(collect_landscape={"intervals": [[1, 2, 3]]})
    train(model, torch.optim.SGD(model.parameters(), 0.1), 3, tmp_path / "run", record=record)
    assert caplog.text.count("leave out buffers") == 1
    assert f"kept ({kind}" in caplog.text.replace("torch.", "")
    paths = sorted((tmp_path / "run" / "ckpt_dir").glob("*.ckpt"))
    assert [set(ds.load_checkpoint(path)) for path in paths] == [{"l.weight", "l.bias"}] * 3
    if kind != "quint8":  # torch gives no array of it, for a landscape either
        options = {"around": paths[-1], "plane": ds.Plane(size=3), "directions": "random", "progress": False}
        grid = ds.landscape(model, nn.MSELoss(), [(X, torch.ones(2, 1))], **options)
        assert np.isfinite(grid.z).all()
