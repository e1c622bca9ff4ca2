"""Draws a loss grid: contours, a surface or a curve, with the training path and a table of its losses."""

import io
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distsummary.base.checks import check_choice
from distsummary.base.extras import require
from distsummary.errors import InvalidValueError
from distsummary.landscapes.output.cells import thinned
from distsummary.landscapes.output.describe import ends_of_line, made_from, not_finite, shortened
from distsummary.landscapes.output.grid import Grid
from distsummary.landscapes.output.label_placement import place_labels
from distsummary.landscapes.output.scale import scale_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("contour", "surface", "checkpoints")
FORMATS = ("png", "pdf", "svg")
MAX_ROWS = 12  # checkpoints in the table
MAX_NAME = 16  # letters of a run's name: the table has no room for more
TITLE_LETTERS = 8.8  # per inch of a title
SMALL_LETTERS = 14.0  # per inch of the smaller text
DPI = 120
HEIGHT = 5.6  # inches
WIDTHS = {"contour": 6.8, "surface": 6.8, "checkpoints": 4.8}  # inches
BESIDE = 12.0  # inches of a picture with the checkpoints next to it
SIZES = (2.0, 60.0)  # the smallest and the largest width or height, in inches
MAX_NAMES = 120  # letters of all names in the title
MUCH_ROUNDING = 0.1  # the picture has a note if rounding loses a larger share of the steps


def draw(grid: Grid, kind: str = "contour", format: str = "png", **options: Any) -> bytes:
    """The bytes of a picture file; see also `figure_of`."""
    buffer = io.BytesIO()
    figure_of(grid, kind, **options).savefig(buffer, format=format)
    return buffer.getvalue()


def figure_of(
    grid: Grid,
    kind: str = "contour",
    *,
    alone: bool = False,
    size: tuple[float, float] | None = None,
    dpi: float = DPI,
) -> "Figure":
    """The grid as a figure; a grid of one row is drawn as a curve, unless the kind is "checkpoints".

    Does not touch matplotlib's global state.

    Args:
        kind: "contour", "surface", or "checkpoints", the losses of the path's checkpoints as curve and table.
        alone: leave out the checkpoints that are otherwise next to contour or surface.
        size: width and height in inches. Fonts keep their size, so they are larger in a smaller figure.
        dpi: pixels per inch.

    Raises InvalidValueError for an unknown kind, for checkpoints of a grid without a path, and for a size
    out of range, MissingExtraError if matplotlib is not installed.
    """
    check_choice("kind", kind, KINDS)
    if size is not None:
        smallest, largest = SIZES
        is_pair = isinstance(size, tuple | list) and len(size) == 2
        if not (is_pair and all(isinstance(n, int | float) and smallest <= n <= largest for n in size)):
            raise InvalidValueError(
                f"size must be (width, height), both from {smallest:g} to {largest:g} inches, such as "
                f"(8, 6), got {size!r}"
            )
    # draw_curve wraps the names of a line's runs. Matplotlib reads text between two $ as a formula.
    runs = grid.runs if grid.kind == "line" else shortened(grid.runs, MAX_NAME)
    runs = tuple(run.replace("$", r"\$") for run in runs)
    grid = replace(grid, runs=runs)
    has_path = len(grid.path) > 1 and grid.kind != "line"
    if kind == "checkpoints" and not has_path:
        raise InvalidValueError(
            "kind must be contour or surface, as this landscape has no path of several checkpoints, got "
            "'checkpoints'"
        )
    has_side = has_path and not alone and kind != "checkpoints"
    require("a picture of a landscape", "matplotlib")
    from distsummary.landscapes.output import panels

    width, height = size or (BESIDE if has_side else WIDTHS[kind], HEIGHT)
    figure: Any = panels.empty_figure(width, height, dpi)
    # Notes belong to the whole figure, so that they are below both subfigures and their legends.
    side = None
    if has_side:
        main, side = figure.subfigures(1, 2, width_ratios=[1.5, 1])
    else:
        main = figure.subfigures(1, 1)
    room = width * (0.6 if has_side else 1.0)
    run = grid.run.replace("$", r"\$")
    headline = f"{run}: {title(grid)}" if run else title(grid)
    main.suptitle(_filled(headline, TITLE_LETTERS * room), fontsize="large")
    below = [_filled(note, SMALL_LETTERS * width) for note in notes(grid)]
    figure.supxlabel("\n".join(below), fontsize=8, color="0.4")
    scale = scale_for(grid.z, grid.path_loss, grid.true_loss)
    if kind == "checkpoints":
        side = main
    elif min(grid.z.shape) == 1:
        panels.draw_curve(main.subplots(), grid, scale)
    elif kind == "surface":
        panels.draw_surface(main, grid, scale)
    else:
        panels.draw_contours(main, grid, scale)
    if side is not main:
        main.axes[0].set_title(_filled(made_from(grid), SMALL_LETTERS * room), fontsize=8, color="0.3")
    if side is not None:
        losses, numbers = side.subplots(2, 1, height_ratios=[1.1, 1])
        panels.draw_losses(losses, grid, scale)
        panels.draw_text(numbers, [*checkpoint_lines(grid), *plane_lines(grid)])
    # The names come last, because they have to find room among everything else.
    if kind == "contour" and min(grid.z.shape) > 1:
        place_labels(figure, main.axes[0], grid)
    return figure  # type: ignore[no-any-return]  # subfigures are typed too loosely


def _filled(text: str, letters: float) -> str:
    return textwrap.fill(text, int(letters), break_on_hyphens=False)


def title(grid: Grid) -> str:
    """The title of the picture."""
    if grid.kind in ("joint", "triangle"):
        names = ", ".join(grid.runs)
        named = names if len(names) <= MAX_NAMES else f"{len(grid.runs)} runs"
        return f"{'joint PCA plane of' if grid.kind == 'joint' else 'plane through'} {named}"
    if grid.kind == "line":
        start, end = ends_of_line(grid)
        return f"from {start} to {end}, straight"
    if grid.decomposition == "PCA" and grid.numbers:
        mode = "" if grid.mode == "standard" else f" ({grid.mode})"
        return f"{grid.unit}s {grid.numbers[0]} to {grid.numbers[-1]}, PCA plane{mode}"
    where = f"{grid.unit} {grid.numbers[-1]}" if grid.numbers else "the model"
    if grid.kind == "hessian":
        return f"around {where}, the Hessian's two largest eigenvalues"
    if grid.kind == "curvature":
        return f"around {where}, the two largest eigenvalues of the optimizer's factors"
    return f"around {where}, {grid.kind or 'random'} plane ({grid.normalization} normalisation)"


def notes(grid: Grid) -> list[str]:
    """Notes for the picture: losses not computed or not finite, and steps lost in rounding."""
    found = []
    left, missing = int((~grid.computed).sum()), int(grid.missing.sum())
    if left:
        others = f"{left - missing:,} interpolated, {missing:,} missing"
        if missing in (0, left):
            others = f"the others {'missing' if missing else 'interpolated'}"
        found.append(f"{grid.z.size - left:,} of {grid.z.size:,} points computed, {others}")
    if bad := not_finite(grid):
        found.append(f"losses not finite: {bad:,}")
    share, axis = max(((share, axis) for axis, share in grid.rounding.items()), default=(0.0, ""))
    if share > MUCH_ROUNDING:
        number = 1 + "xy".index(axis)
        found.append(
            f"along direction {number}, {100 * share:.0f} % of the weights move less from point to point "
            "than their number format can hold: that part is rounding"
        )
    return found


def checkpoint_lines(grid: Grid) -> list[str]:
    """A table of the path: true loss, loss in the plane, distance from the plane."""
    lines = [f"{grid.unit:>8} {'true loss':>11} {'in plane':>11} {'outside':>8}"]
    run_of = {k: run for run, part in grid.parts.items() for k in part}
    # One row more is better than a last line that says how many checkpoints are shown.
    rows = MAX_ROWS + (len(grid.path) == MAX_ROWS + 1)
    shown = thinned(len(grid.path), rows)
    for k in shown:
        number = str(grid.numbers[k]) if grid.numbers else "-"
        losses = f"{grid.true_loss[k]:>11.4g} {grid.path_loss[k]:>11.4g}"
        lines.append(f"{number:>8} {losses} {grid.residuals[k]:>8.1%}  {run_of[int(k)]}".rstrip())
    if len(shown) < len(grid.path):
        lines.append(f"{len(shown)} of {len(grid.path)} checkpoints")
    return lines


def plane_lines(grid: Grid) -> list[str]:
    """Lines below the table: the explained variance or the eigenvalues, and the meaning of "outside"."""
    lines = [""]
    if grid.explained_variance.size:
        shares = " + ".join(f"{share:.1%}" for share in grid.explained_variance)
        lines.append(f"explained variance {shares} = {grid.explained_variance.sum():.1%}")
    if grid.eigenvalues:
        lines.append("eigenvalues " + ", ".join(f"{value:.4g}" for value in grid.eigenvalues))
    if grid.hessian_angles:
        lines.append(
            "to the Hessian's plane " + " and ".join(f"{a:.0f}" for a in grid.hessian_angles) + " degrees"
        )
    lines.append("outside: distance from the plane / distance from the end")
    return lines
