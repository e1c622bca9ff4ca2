"""What torch modules tell of their parameters: filter axes, tied names, subspaces of checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distsummary.checkpoints.safetensors import write_safetensors
from distsummary.errors import InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.landscape.directions.parameters import moving
from distsummary.landscape.directions.recipe import RandomDirections
from distsummary.landscape.directions.torch_parameters import filter_axes, tied_names
from distsummary.landscape.generator import landscape
from distsummary.landscape.output.grid import LossGrid


class Language(nn.Module):
    """A head tied to its embedding, attention, LayerNorm, and an adapter beside frozen weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.lora_A = nn.Linear(4, 2, bias=False)
        self.lora_B = nn.Linear(2, 4, bias=False)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        h = self.norm(h + self.attention(h, h, h, need_weights=False)[0])
        return self.head(self.base(h) + self.lora_B(self.lora_A(h))).mean(1)


def language() -> Language:
    torch.manual_seed(0)
    return Language()


def batches() -> list[Any]:
    return [(torch.arange(12).reshape(4, 3) % 7, torch.tensor([0, 1, 2, 3]))]


def draw(model: nn.Module, **more: Any) -> LossGrid:
    grid = landscape(model, nn.CrossEntropyLoss(), batches(), size=3, progress=False, **more)
    assert isinstance(grid, LossGrid)
    return grid


def filter_norms(weight: torch.Tensor, axis: int) -> Any:
    return weight.double().movedim(axis, 0).flatten(1).norm(dim=1).numpy()


def test_filters_of_transposed_convolutions_lie_along_axis_one_in_each_group() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose2d(6, 4, 3, groups=2), nn.ConvTranspose1d(4, 3, 3)
    )
    assert filter_axes(nn.DataParallel(model)) == {"1.weight": (1, 2), "2.weight": 1}
    state = framework_of(model).state(model)
    names = tuple(state)
    made = RandomDirections(names=names, filter_axes=moving(model, "standard").filter_axes).make(state)
    scaled, weight = torch.tensor(made.x["1.weight"]), model[1].weight.detach()
    for part, w in zip(scaled.chunk(2), weight.chunk(2), strict=True):  # (in / 2, out / 2, 3, 3) of a group
        np.testing.assert_allclose(filter_norms(part, 1), filter_norms(w, 1), rtol=1e-6)
    np.testing.assert_allclose(
        filter_norms(torch.tensor(made.x["2.weight"]), 1),
        filter_norms(model[2].weight.detach(), 1),
        rtol=1e-6,
    )


def test_the_transposed_linear_of_gpt2_is_known_by_its_name() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 4))  # (in, out)

    assert filter_axes(Conv1D()) == {}
    Conv1D.__module__ = "transformers.pytorch_utils"
    assert filter_axes(nn.Sequential(Conv1D())) == {"0.weight": 1}


def test_the_documented_rule_for_a_language_model() -> None:
    model = language()
    moved = moving(model, "standard")
    assert moved.tied == tied_names(model) == {"head.weight": "embed.weight"}
    assert "head.weight" not in moved.names
    assert not any(name.startswith("base") for name in moved.names)
    made = RandomDirections(names=moved.names).make(framework_of(model).state(model)).x
    for name in ("norm.weight", "norm.bias", "attention.in_proj_bias"):
        assert not made[name].any()
    for name in ("embed.weight", "attention.in_proj_weight", "lora_A.weight"):
        weight = dict(model.named_parameters())[name].detach()
        np.testing.assert_allclose(
            filter_norms(torch.tensor(made[name]), 0), filter_norms(weight, 0), rtol=1e-6
        )


def test_a_checkpoint_may_list_a_tied_parameter_under_either_name_or_both(tmp_path: Path) -> None:
    model = language()
    full = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert {"head.weight", "embed.weight"} <= full.keys()
    grids = []
    for left_out in ("none", "head.weight", "embed.weight"):
        path = tmp_path / f"{left_out}.safetensors"
        write_safetensors(path, {name: a for name, a in full.items() if name != left_out})
        grids.append(draw(language(), around=path))
    assert grids[0].z.tobytes() == grids[1].z.tobytes() == grids[2].z.tobytes()
    assert (
        grids[0].z.tobytes() == draw(model).z.tobytes() == draw(model, around=model.state_dict()).z.tobytes()
    )
    with pytest.raises(InvalidValueError, match=r"different values for embed\.weight and head\.weight"):
        draw(model, around={**full, "head.weight": full["head.weight"] + 1})


def test_only_the_parameters_of_a_subspace_move() -> None:
    model, seen = language(), []

    def loss_fn(model: Language, batch: Any) -> torch.Tensor:
        seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    landscape(model, loss_fn, batches(), size=3, parameters=["lora"], progress=False)
    changed = {name for values in seen for name, p in values.items() if not torch.equal(p, before[name])}
    assert changed == {"lora_A.weight", "lora_B.weight"}


def test_a_checkpoint_of_adapters_alone_is_enough_for_their_subspace() -> None:
    model = language()
    adapters = {name: t for name, t in model.state_dict().items() if "lora" in name}
    whole = draw(model, parameters="lora")
    assert draw(model, parameters="lora", around=adapters).z.tobytes() == whole.z.tobytes()
    with pytest.raises(InvalidValueError, match=r"embed\.weight"):
        draw(model, around=adapters)
    with pytest.raises(InvalidValueError, match=r"frozen or a buffer: base\.weight"):
        draw(model, parameters="base")


def test_a_direction_may_name_a_tied_parameter_by_its_second_name() -> None:
    from distsummary.landscape.directions.recipe import Directions

    model = language()
    array = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    grids = [
        draw(model, directions=Directions(x={name: array}, y={name: array[::-1]}), normalization="none")
        for name in ("embed.weight", "head.weight")
    ]
    assert grids[0].z.tobytes() == grids[1].z.tobytes()
    assert grids[0].kind == "given"
