"""The interface of all engines, which evaluate quantities of a model, such as its loss, in a plane."""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.model.data import Data
from distsummary.landscapes.model.quantities import Evaluation

MODES = ("standard", "mindspore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The work of all workers: model, loss, data and the landscapes to evaluate.

    All `planes` vary the same parameters. `choice` is the engine; None means the row engine. Workers
    with the same choice, on equal hardware, compute the same bits.
    """

    model: Any
    loss_fn: Any
    batches: Iterable[Any] | Data
    planes: Sequence[PlanePlan]
    mode: str = "standard"
    evaluation: Evaluation = field(default_factory=Evaluation)
    choice: EngineChoice | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that are varied."""
        return self.planes[0].names


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
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} {model}".strip()
