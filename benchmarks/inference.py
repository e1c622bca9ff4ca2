"""The memory of a landscape of a large model next to a plain forward: `python -m benchmarks.inference`.

The model is a GPT-2 of 124 million parameters (12 layers, 768, 50,257 words, tied, float32), or one of a
billion (18 layers, 2,048; `--shape billion`), on one CPU thread:

    forward     the model once, under inference_mode: its logits
    loss        the same, and the cross entropy
    inference   a row of three points of a random plane, memory="inference", around the model as it is
    checkpoint  the same around a .safetensors file: the values of another training
    row         the same row by the row engine
    landscape   `ds.landscape` of 3 x 3 points by `memory="inference"`, from the model to its grid: 11 points

Each runs in a process of its own. Peak memory is the largest resident set that the system saw (ru_maxrss)
less the resident set after the imports: the model counts, and so do pages of the mapped file. The allocator
is glibc's as it comes. One JSON line each: {"what", "batch", "sequence", "parameters", "peak_mb",
"cpu_s_per_point", "losses", "to_forward", "to_loss"}; the last two are the peak over that of `forward` and of
`loss`.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
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
from distsummary.landscapes.engines.torch_graph_engine import TorchGraphEngine  # noqa: F401  # imports count nowhere
from distsummary.landscapes.engines.torch_inference_engine import TorchInferenceEngine  # noqa: F401  # nor here
from distsummary.landscapes.generator import landscape
from distsummary.landscapes.model.user_code import BatchLoss
from distsummary.landscapes.request import Compute, Plane

WHAT = ("forward", "loss", "inference", "checkpoint", "row", "landscape")
POINTS = {"inference": 3, "checkpoint": 3, "row": 3, "landscape": 11}
XS, Y = np.array([-0.3, 0.0, 0.4]), 0.2


class Shape(NamedTuple):
    """Of a GPT: vocabulary, width of the layers, heads, layers, and places of the longest text."""

    words: int = 50257
    width: int = 768
    heads: int = 12
    layers: int = 12
    places: int = 1024


SHAPES = {"gpt2": Shape(), "billion": Shape(width=2048, heads=16, layers=18)}  # 124 million, 1.01 billion


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


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(what: str, shape: Shape, rows: int, length: int, checkpoint: Path) -> dict[str, Any]:
    """One of WHAT in this process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gc.collect()
    before = resident()
    model = Gpt(shape).eval()
    tokens = torch.randint(0, shape.words, (rows, length))
    batch = (tokens, tokens.roll(-1, 1))
    begun, losses = time.process_time(), []
    if what == "save":
        write_safetensors(checkpoint, {n: a * np.float32(1.01) for n, a in OwnState.of(model).items()})
    elif what in ("forward", "loss"):
        with torch.inference_mode():
            losses = [float(loss_fn(model, batch))] if what == "loss" else [float(model(tokens).mean())]
    elif what == "landscape":
        grid = landscape(
            model,
            batch_loss=loss_fn,
            batches=[batch],
            plane=Plane(size=3),
            compute=Compute(memory="inference", workers=0),
            progress=False,
        )
        losses = [float(loss) for loss in grid.z[1]]  # type: ignore[union-attr]  # one direction, one grid
    else:
        losses = row_of(model, batch, what, checkpoint)
    cpu_s = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {
        "what": what,
        "batch": rows,
        "sequence": length,
        "parameters": sum(p.numel() for p in model.parameters()),
        "peak_mb": round(peak / 2**20, 1),
        "cpu_s_per_point": round(cpu_s / POINTS.get(what, 1), 2),
        "losses": losses,
    }


def row_of(model: nn.Module, batch: Any, what: str, checkpoint: Path) -> list[float]:
    """The losses of the row."""
    centre: Weights = OwnState.of(model)
    if what == "row":
        centre = framework_of(model).state(model)
    if what == "checkpoint":
        centre = map_safetensors(checkpoint)
    names = tuple(name for name, _ in framework_of(model).named_parameters(model))
    choice = EngineChoice(engine="row" if what == "row" else "inference")
    recipe, points = RandomDirections(names=names), np.zeros((1, 2))
    plane = PlanePlan(states=[centre], names=names, recipe=recipe, x=XS, y=XS, points=points)
    task = Task(model=model, loss_fn=BatchLoss(loss_fn), batches=[batch], planes=[plane], choice=choice)
    engine = open_engine(task)
    try:
        engine.set_plane(centre, recipe)
        return [float(loss) for loss in engine.row_values(Y, XS)[:, 0]]
    finally:
        engine.close()


def in_own_process(what: str, shape: str, rows: int, length: int, checkpoint: Path) -> dict[str, Any]:
    """`measure` in a fresh interpreter."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.inference",
        "--one",
        what,
        shape,
        str(rows),
        str(length),
        str(checkpoint),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", default=",".join(WHAT), help=f"of {', '.join(WHAT)}")
    parser.add_argument("--batches", default="1,4", help="rows of the batch; a list measures each")
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--shape", default="gpt2", choices=SHAPES, help="of the model (gpt2)")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        what, shape, rows, length, checkpoint = asked.one
        print(json.dumps(measure(what, SHAPES[shape], int(rows), int(length), Path(checkpoint))))
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        checkpoint = Path(directory) / "other.safetensors"
        if "checkpoint" in asked.what:
            in_own_process("save", asked.shape, 1, 1, checkpoint)
        for rows in map(int, asked.batches.split(",")):
            peaks: dict[str, float] = {}
            for what in asked.what.split(","):
                found = in_own_process(what, asked.shape, rows, asked.sequence, checkpoint)
                peaks[what] = found["peak_mb"]
                ratios = {
                    f"to_{of}": round(found["peak_mb"] / peaks[of], 3) for of in WHAT[:2] if of in peaks
                }
                print(json.dumps(found | ratios), flush=True)


if __name__ == "__main__":
    main()
