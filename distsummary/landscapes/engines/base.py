"""The interface of all engines: they evaluate quantities of a model at points of a plane."""

import platform
from functools import cache
from pathlib import Path
from typing import Protocol

from distsummary.landscapes.directions.recipe import Array, Recipe, Weights

MODES = ("standard", "mindspore")


class Engine(Protocol):
    """Evaluates points. While open it changes the model's values; `close` restores the user's values.

    The loss of a point is the mean of the batches' losses, weighted by their rows in mode "standard" and
    unweighted in mode "mindspore".
    """

    name: str
    bn_mode: str  # see Evaluation
    samples: int  # rows that each loss is computed from, in the first data set
    quantities: tuple[str, ...]  # the first is the loss of the first data set
    is_streamed: bool  # whether the data is read once for all points of a call of `row_values`

    @property
    def hardware(self) -> str:
        """The hardware and library version that the bits of its results depend on."""

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """Set the plane: through `centre` (all values by name), along the directions that `recipe` makes."""

    def row_values(self, y: float, xs: Array) -> Array:
        """Quantities float64 (len(xs), quantities) at centre + xs[j] * directions.x + y * directions.y.

        They depend only on the arguments. If points are evaluated together (in chunks), the last digits also
        depend on the position of a point in `xs`.
        """

    def state_values(self, state: Weights) -> Array:
        """The quantities (quantities,) of a whole checkpoint; the plane stays set."""

    def close(self) -> None:
        """Restore the model bit for bit: values, buffers and training flags. A second call does nothing."""


@cache
def processor() -> str:
    """The machine's kind and, on Linux, the processor's model name: equal bits need an equal processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} {model}".strip()
