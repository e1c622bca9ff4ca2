"""A journal knows its torch landscape again and no other: architecture, criterion, metrics, shuffled data."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import distsummary as ds
from distsummary import Evaluation, Progress
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.run.landscape_identity import landscape_identity
from tests.landscape_arguments import grouped

CRITERION = nn.CrossEntropyLoss()


class Net(nn.Module):
    """A net with plain attributes; it counts its calls and keeps its last outputs."""

    def __init__(self, scale: Any = 1.0) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(6, 3), scale
        self.calls, self.seen = 0, []  # type: ignore[var-annotated]  # counters

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.last = self.fc(x).tanh()
        return self.last


class Doubled(Net):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def net(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def stack(act: nn.Module) -> nn.Module:
    return net(lambda: nn.Sequential(nn.Linear(6, 5), act, nn.Linear(5, 3)))


def shifted(value: float) -> nn.Module:
    model = net(Net)
    model.register_buffer("shift", torch.full((3,), value), persistent=False)
    return model


def hashes(model: Any = None, loss_fn: Any = CRITERION, **evaluation: Any) -> dict[str, str]:
    model = model or stack(nn.Tanh())
    state = {name: t.detach().numpy() for name, t in model.state_dict().items()}
    names = tuple(name for name, _ in model.named_parameters())
    plane = PlanePlan(
        states=[state], names=names, recipe=RandomDirections(names=names, seed=7), x=np.linspace(-1, 1, 3),
        y=np.linspace(-1, 1, 3), points=np.zeros((1, 2)),
    )  # fmt: skip
    batches = [(torch.zeros(4, 6), torch.zeros(4, dtype=torch.long))]
    return landscape_identity(
        Task(
            model=model, loss_fn=loss_fn, batches=batches, planes=[plane], evaluation=Evaluation(**evaluation)
        )
    )


def scaled(scale: Any, outputs: Any, targets: Any) -> Any:
    return scale * nn.functional.cross_entropy(outputs, targets)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "activation": (lambda: stack(nn.Tanh()), lambda: stack(nn.ReLU())),
    "argument of a layer": (lambda: stack(nn.LeakyReLU(0.1)), lambda: stack(nn.LeakyReLU(0.2))),
    "number": (lambda: net(Net), lambda: net(lambda: Net(3.0))),
    "tensor": (lambda: net(lambda: Net(torch.ones(3))), lambda: net(lambda: Net(torch.zeros(3)))),
    "forward": (lambda: net(Net), lambda: net(Doubled)),
    "buffer that is not saved": (lambda: shifted(1.0), lambda: shifted(2.0)),
}
LOSSES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "weight": (
        lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 3.0])),
        lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 30.0])),
    ),
    "label_smoothing": (nn.CrossEntropyLoss, lambda: nn.CrossEntropyLoss(label_smoothing=0.1)),
    "partial": (lambda: functools.partial(scaled, 1.0), lambda: functools.partial(scaled, 5.0)),
    "function of torch": (lambda: nn.functional.cross_entropy, lambda: nn.functional.multi_margin_loss),
}


@pytest.mark.parametrize("kind", MODELS)
def test_another_model_is_reported(kind: str) -> None:
    one, other = (hashes(make()) for make in MODELS[kind])
    assert one == hashes(MODELS[kind][0]())
    assert [name for name in one if one[name] != other[name]] == ["model"]


@pytest.mark.parametrize("kind", LOSSES)
def test_another_loss_or_metric_is_reported(kind: str) -> None:
    one, other = (make() for make in LOSSES[kind])
    first = hashes(loss_fn=one)
    assert first == hashes(loss_fn=LOSSES[kind][0]())
    assert [name for name, found in hashes(loss_fn=other).items() if found != first[name]] == ["loss_fn"]
    first = hashes(metrics={"a": one})
    changed = hashes(metrics={"a": other})
    assert [name for name in first if changed[name] != first[name]] == ["evaluation"]


def test_the_models_values_mode_and_last_results_do_not_count() -> None:
    one, other = net(Net), Net().eval()
    other(torch.zeros(2, 6))
    other.calls, other.seen = 0, []
    # Nor do they where a loss holds the model.
    found = [hashes(model, functools.partial(scaled, model)) for model in (one, other)]
    assert [name for name in found[0] if found[0][name] != found[1][name]] == ["checkpoints"]


def stopped(output: Path, **arguments: Any) -> None:
    def stop(progress: Progress) -> None:
        if progress.done >= 10:
            raise KeyboardInterrupt

    with pytest.raises(ds.LandscapeCancelled):
        draw(output, progress=stop, **arguments)


def draw(output: Path | None, progress: Any = False, **arguments: Any) -> ds.LossGrid:
    given = {"model": net(Net), "batches": shuffled(), "size": 5, "engine": "row"}
    given |= {} if "batch_loss" in arguments else {"loss_fn": CRITERION}
    grid = ds.landscape(**grouped(**(given | arguments), run_dir=output, progress=progress))
    assert isinstance(grid, ds.LossGrid)
    return grid


def shuffled() -> Any:
    numbers = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(60, 6, generator=numbers), torch.arange(60) % 3)
    return DataLoader(data, batch_size=10, shuffle=True)


@pytest.mark.usefixtures("no_matplotlib")
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("directions", ["random", "hessian"])
def test_a_landscape_of_a_counting_model_on_shuffled_data_continues(tmp_path, streamed, directions):
    model, more = net(Net), {"directions": directions, "evaluation": Evaluation(streamed=streamed)}
    undisturbed = draw(None, model=model, **more)
    stopped(tmp_path, model=model, **more)
    torch.seed()
    fresh: list[int] = []
    found = draw(tmp_path, lambda progress: fresh.append(progress.fresh), model=model, **more)
    assert fresh[-1] < 25
    assert found.z.tobytes() == undisturbed.z.tobytes()
    assert not list(tmp_path.glob("landscape/journal-*"))
    assert (model.calls, model.seen) == (0, [])


@pytest.mark.usefixtures("no_matplotlib")
def test_with_another_criterion_of_the_same_name_nothing_is_mixed(tmp_path: Path) -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 30.0]))
    stopped(tmp_path)
    assert draw(tmp_path, loss_fn=weighted).z.tobytes() == draw(None, loss_fn=weighted).z.tobytes()


class Held:
    """A batch that is an object; its inputs lie in another."""

    __slots__ = ("inputs", "targets")

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs, self.targets = SimpleNamespace(x=inputs), targets


def loss_of_held(model: Any, batch: Held) -> Any:
    return nn.functional.cross_entropy(model(batch.inputs.x), batch.targets)


@pytest.mark.usefixtures("no_matplotlib")
def test_of_batches_that_are_objects_nothing_is_mixed_and_the_same_continue(tmp_path: Path) -> None:
    def given(seed: int) -> dict[str, Any]:
        inputs = torch.randn(30, 6, generator=torch.Generator().manual_seed(seed))
        return {"batches": [Held(inputs, torch.arange(30) % 3)], "batch_loss": loss_of_held}

    stopped(tmp_path, **given(0))
    stopped(tmp_path, **given(1))
    fresh: list[int] = []
    found = draw(tmp_path, lambda progress: fresh.append(progress.fresh), **given(0))
    assert fresh[-1] < 25
    assert found.z.tobytes() == draw(None, **given(0)).z.tobytes()
