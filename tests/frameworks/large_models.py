"""A GPT of any size, and the memory of a landscape of it next to that of a plain forward pass."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.checkpoints.safetensors import map_safetensors, write_safetensors
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import RandomDirections, Weights
from distsummary.landscapes.directions.torch_parameters import OwnState
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.open_engine import open_engine
from distsummary.landscapes.engines.torch_inference_engine import TorchInferenceEngine  # noqa: F401  # counts nowhere
from distsummary.landscapes.model.user_code import BatchLoss

XS, Y = np.array([0.4]), 0.2


class Shape(NamedTuple):
    """Of a GPT: vocabulary, width of the layers, heads, layers, and places of the longest text."""

    words: int = 50257
    width: int = 768
    heads: int = 12
    layers: int = 12
    places: int = 1024


class Block(nn.Module):
    """Causal attention and an MLP, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, places, width) to the same."""
        parts = (
            p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.ln1(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2; the embedding of words is the head, too."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words, self.places = (nn.Embedding(n, shape.width) for n in (shape.words, shape.places))
        self.blocks = nn.Sequential(*(Block(shape.width, shape.heads) for _ in range(shape.layers)))
        self.ln = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False, device="meta")
        self.head.weight = self.words.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (rows, places, words)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.ln(self.blocks(self.words(tokens) + self.places(places))))


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    """The mean cross entropy of the next words."""
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def evaluate(what: str, shape: Shape, length: int, checkpoint: Path) -> None:
    """Of a new model: "save" it, its "loss", a point around it ("inference") or around the "checkpoint"."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Gpt(shape).eval()
    tokens = torch.randint(0, shape.words, (1, length))
    batch = (tokens, tokens.roll(-1, 1))
    if what == "save":
        write_safetensors(checkpoint, {n: a * np.float32(1.01) for n, a in OwnState.of(model).items()})
    elif what == "loss":
        with torch.inference_mode():
            loss_fn(model, batch)
    else:
        centre: Weights = map_safetensors(checkpoint) if what == "checkpoint" else OwnState.of(model)
        losses_around(model, batch, centre)


def losses_around(model: nn.Module, batch: Any, centre: Weights) -> None:
    """Evaluates a row of a random plane with the inference engine."""
    names = tuple(name for name, _ in framework_of(model).named_parameters(model))
    recipe, points = RandomDirections(names=names), np.zeros((1, 2))
    plane = PlanePlan(states=[centre], names=names, recipe=recipe, x=XS, y=XS, points=points)
    choice = EngineChoice(engine="inference")
    task = Task(model=model, loss_fn=BatchLoss(loss_fn), batches=[batch], planes=[plane], choice=choice)
    engine = open_engine(task)
    try:
        engine.set_plane(centre, recipe)
        engine.row_values(Y, XS)
    finally:
        engine.close()
