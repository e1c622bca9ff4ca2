"""The MindSpore run of the golden landscapes, as numpy: its net, data, checkpoints and stored grids."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distsummary import Directions

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ms" / "landscape_pca_random"
CKPT_DIR = GOLDEN / "summary" / "ckpt_dir"
SEED = 123  # numpy's global seed at the generation of the random landscape


def batches() -> list[tuple[Any, Any]]:
    """All batches of 8 rows; MindSpore used the first num_samples // 8 = 2."""
    with np.load(GOLDEN / "data.npz") as data:
        x, y = data["x"], data["y"]
    return [(x[i : i + 8], y[i : i + 8]) for i in range(0, len(x), 8)]


class Mlp:
    """h = tanh(x W1' + b1); o = h W2' + b2."""

    def __init__(self, dtype: type = np.float32) -> None:
        shapes = {"d1.weight": (5, 4), "d1.bias": (5,), "d2.weight": (3, 5), "d2.bias": (3,)}
        rng = np.random.default_rng(0)
        self.parameters = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}

    def __repr__(self) -> str:
        return "Mlp()"

    def __call__(self, x: Any) -> Any:
        p = self.parameters
        h = np.tanh(x @ p["d1.weight"].T + p["d1.bias"])
        return h @ p["d2.weight"].T + p["d2.bias"]


def cross_entropy(logits: Any, labels: Any) -> float:
    """The mean over the rows, in the dtype of the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-log_p[np.arange(len(labels)), labels].mean())


def legacy_directions(parameters: Mapping[str, Any]) -> Directions:
    """MindSpore's random directions: numpy's global generator, x for all parameters, then y."""
    state = np.random.RandomState(SEED)
    size = sum(a.size for a in parameters.values())
    axes = []
    for flat in (state.normal(size=size), state.normal(size=size)):
        at, axis = 0, {}
        for name, array in parameters.items():
            axis[name] = flat[at : at + array.size].reshape(array.shape).astype(np.float32)
            at += array.size
        axes.append(axis)
    return Directions(x=axes[0], y=axes[1])


def stored() -> dict[str, dict[str, Any]]:
    """The golden grids by tag: x, y, z, and for a path px, py, pz, numbers; and the convergence point."""
    decoded = json.loads((GOLDEN / "decoded.json").read_text())
    events = next(iter(decoded["files"].values()))["events"]
    grids = {}
    for event in events:
        for value in event["event"].get("summary", {}).get("value", []):
            grids[value["tag"]] = _grid(value["loss_landscape"])
    return grids


def _grid(message: dict[str, Any]) -> dict[str, Any]:
    landscape = message["landscape"]
    n = len(landscape["x"]["float_data"])
    grid = {
        "x": np.array(landscape["x"]["float_data"]),
        "y": np.array(landscape["y"]["float_data"]),
        "z": np.array(landscape["z"]["float_data"]).reshape(n, n),
        "convergence": tuple(message["convergence_point"][k]["float_data"][0] for k in "xyz"),
        "metadata": message["metadata"],
    }
    if "loss_path" in message and message["loss_path"].get("intervals"):
        points = message["loss_path"]["points"]
        grid["numbers"] = tuple(message["loss_path"]["intervals"])
        grid |= {f"p{k}": np.array(points[k]["float_data"]) for k in "xyz"}
    return grid
