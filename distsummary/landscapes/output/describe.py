"""Texts about a loss grid: a one-line summary, warnings about losses, checkpoint names. Pure functions."""

from collections.abc import Mapping, Sequence

import numpy as np

from distsummary.base.columns import without_middle
from distsummary.landscapes.output.grid import Grid, finite_bounds

ONLY_THE_CENTRE = (
    "the loss of the centre itself is finite, so the steps of the grid are too long: try another "
    "normalization or other directions"
)
NOT_EVEN_THE_CENTRE = (
    "nor is the loss of the centre itself finite: look for NaN and Inf in the data, in the checkpoint, and "
    "in what the loss function returns for one batch"
)


def in_a_line(grid: Grid) -> str:
    """The grid in one line, such as `LossGrid(pca, 21 x 21 points, loss 0.21 to 4.5, torch-row)`."""
    low, high = finite_bounds(grid.z)
    losses = f"loss {low:.4g} to {high:.4g}" if np.isfinite(grid.z).any() else "no finite loss"
    facts = [grid.kind or grid.decomposition, f"{len(grid.x)} x {len(grid.y)} points", losses]
    if not grid.computed.all():
        facts.append(f"{grid.computed.sum():,} of {grid.computed.size:,} computed")
    if grid.explained_variance.size:
        facts.append("explained variance " + " + ".join(f"{share:.3g}" for share in grid.explained_variance))
    return f"LossGrid({', '.join([*facts, *filter(None, [grid.engine])])})"


def shortened(names: Sequence[str], most: int) -> tuple[str, ...]:
    """The names with at most `most` letters each; an ellipsis replaces the middle of longer names.

    If two shortened names would be equal, each name is preceded by its number in the list.
    """
    found = tuple(without_middle(name, most) for name in names)
    if len(set(found)) == len(found):
        return found
    numbers = [f"{number} " for number in range(1, len(names) + 1)]
    pairs = zip(numbers, names, strict=True)
    return tuple(number + without_middle(name, most - len(number)) for number, name in pairs)


def not_finite(grid: Grid) -> int:
    """How many of the computed losses are NaN or Inf; points that were not computed do not count."""
    return int((grid.computed & ~np.isfinite(grid.z)).sum())


def doubts(grids: Mapping[str, Grid]) -> str:
    """A warning that names the grids with NaN or Inf losses and says what to check; "" if all are finite."""
    said, checks = [], []
    for name, grid in grids.items():
        bad, computed = not_finite(grid), int(grid.computed.sum())
        if bad and bad == computed:
            said.append(f"{name}: not one of the {computed:,} computed losses is finite")
            is_centre = bool(np.isfinite(grid.true_loss[-1]))
            checks.append(ONLY_THE_CENTRE if is_centre else NOT_EVEN_THE_CENTRE)
        elif bad:
            said.append(f"{name}: {bad:,} of {computed:,} computed losses are not finite")
    return "; ".join([*said, *dict.fromkeys(checks)])


def ends_of_line(grid: Grid) -> tuple[str, str]:
    """The names of the two ends of a line: the run labels or, if there are none, "step 100" and the like."""
    start, end = grid.runs or [f"{grid.unit} {number}" for number in (grid.numbers[0], grid.numbers[-1])]
    return start, end


def axis_name(grid: Grid, axis: int) -> str:
    """The name of an axis, its unit if that is known, and what is known of its direction."""
    length = grid.lengths.get("xy"[axis], 0.0)
    known = []
    if length and not is_unit(length):
        known.append(f"1 = L2 distance {length:.3g}")
    if axis < grid.explained_variance.size:
        known.append(f"{grid.explained_variance[axis]:.1%} of the variance")
    elif axis < len(grid.eigenvalues):
        known.append(f"eigenvalue {grid.eigenvalues[axis]:.4g}")
    name = f"direction {axis + 1}" + (", L2 distance" if is_unit(length) else "")
    return name + (f" ({'; '.join(known)})" if known else "")


def is_unit(length: float) -> bool:
    """Whether coordinates along a direction of this L2 length are L2 distances, except for rounding."""
    return abs(length - 1.0) < 1e-3


def made_from(grid: Grid) -> str:
    """What the picture shows: `DigitsNet, 31 x 31 points, 297 samples, all trained parameters moved`."""
    points = f"{len(grid.x):,}" + (f" x {len(grid.y):,}" if len(grid.y) > 1 else "") + " points"
    facts = [grid.model, points, f"{grid.samples:,} samples" if grid.samples else ""]
    if grid.parameters:
        facts.append(f"moved: parameters that match {', '.join(grid.parameters)}")
    elif grid.normalization in ("filter", "mindspore"):
        facts.append("weights moved, biases and norm layers fixed")
    elif grid.kind != "given":
        facts.append("all trained parameters moved")
    return ", ".join(filter(None, facts))


def end_step(grid: Grid) -> int:
    """The training step of the grid's centre, 0 if it is not known."""
    return grid.numbers[-1] * (grid.step_per_epoch if grid.unit == "epoch" else 1) if grid.numbers else 0


def checkpoint_names(grid: Grid) -> list[str]:
    """The name of each checkpoint: its step or epoch; if it is the only one of its run, the run's name."""
    names = [str(number) for number in grid.numbers]
    for run, part in grid.parts.items():
        if run and len(part) == 1:
            names[part.start] = run
    return names
