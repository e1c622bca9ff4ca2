"""The interface of all engines, which evaluate quantities of a model, such as its loss, in a plane."""

import platform
from functools import cache
from pathlib import Path
from typing import Protocol

from distsummary.landscapes.directions.recipe import Array, Recipe, Weights

MODES = ("standard", "mindspore")


class Engine(Protocol):
    """Evaluates points. An open engine changes the model's values; `close` restores the user's values.

    The loss of a point is the mean of the batches' losses, weighted by each batch's number of rows (samples)
    in mode "standard", unweighted in mode "mindspore".
    """

    name: str
    bn_mode: str  # see Evaluation
    samples: int  # the number of rows of the first data set
    quantities: tuple[str, ...]  # names; the first is the loss of the first data set
    is_streamed: bool  # whether each call of `row_values` reads the data again, once for all its points

    @property
    def hardware(self) -> str:
        """The hardware and library version on which the bits of the results depend."""

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """Set the plane through `centre` (all values by name) along the directions that `recipe` makes."""

    def row_values(self, y: float, xs: Array) -> Array:
        """The quantities at centre + xs[j] * directions.x + y * directions.y, float64 (len(xs), quantities).

        A point's quantities depend only on the plane, x and y. If points are evaluated together (in chunks),
        their last digits also depend on the position of the point in `xs`.
        """

    def state_values(self, state: Weights) -> Array:
        """The quantities of a checkpoint, not projected, float64 (quantities,); the plane stays set."""

    def close(self) -> None:
        """Restore the model bit for bit: values, buffers and training flags. A second call does nothing."""


@cache
def processor() -> str:
    """The machine type and, on Linux, the processor model, on which the bits of results depend."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} {model}".strip()
