"""Draws a loss grid with the path of its training: contours, a surface or a curve."""

import io
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distsummary.base.checks import check_choice
from distsummary.base.extras import require
from distsummary.errors import InvalidValueError
from distsummary.landscapes.output.describe import ends_of_line, made_from, not_finite, shortened
from distsummary.landscapes.output.grid import Grid
from distsummary.landscapes.output.scale import scale_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("contour", "surface", "curve")
FORMATS = ("png", "pdf", "svg")
MAX_NAME = 30  # letters of a run's name: a legend has no room for more
TITLE_LETTERS = 8.8  # per inch of a title
SMALL_LETTERS = 14.0  # per inch of the smaller text
DPI = 120
SIZE = (6.8, 5.6)  # inches
SIZES = (2.0, 60.0)  # the smallest and the largest width or height, in inches
MAX_NAMES = 120  # letters of all names in the title
MUCH_ROUNDING = 0.1  # the picture has a note if rounding loses a larger share of the steps


def draw(grid: Grid, kind: str = "contour", format: str = "png", **options: Any) -> bytes:
    """The bytes of a picture file; see also `figure_of`."""
    buffer = io.BytesIO()
    figure_of(grid, kind, **options).savefig(buffer, format=format)
    return buffer.getvalue()


def figure_of(
    grid: Grid, kind: str = "contour", *, size: tuple[float, float] | None = None, dpi: float = DPI
) -> "Figure":
    """The grid as a figure; does not touch matplotlib's global state.

    Args:
        kind: "contour", "surface", or "curve", the losses of the path's checkpoints. A grid of one row is a
            curve over its axis, whatever the kind.
        size: width and height in inches. Fonts keep their size, so they are larger in a smaller figure.
        dpi: pixels per inch.

    Raises InvalidValueError for an unknown kind, for the curve of a plane without a path, and for a size out
    of range, MissingExtraError if matplotlib is not installed.
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
    is_row = min(grid.z.shape) == 1
    if kind == "curve" and not is_row and len(grid.path) < 2:
        raise InvalidValueError(
            "kind must be contour or surface, as this landscape has no path of several checkpoints, got "
            "'curve'"
        )
    # draw_curve wraps the names of a line's runs. Matplotlib reads text between two $ as a formula.
    runs = grid.runs if grid.kind == "line" else shortened(grid.runs, MAX_NAME)
    grid = replace(grid, runs=tuple(run.replace("$", r"\$") for run in runs))
    require("a picture of a landscape", "matplotlib")
    from distsummary.landscapes.output import panels

    width, height = size or SIZE
    figure = panels.empty_figure(width, height, dpi)
    run = grid.run.replace("$", r"\$")
    headline = f"{run}: {title(grid)}" if run else title(grid)
    figure.suptitle(_filled(headline, TITLE_LETTERS * width), fontsize="large")
    scale = scale_for(grid.z, grid.path_loss, grid.true_loss)
    if is_row:
        panels.draw_curve(figure, grid, scale)
    elif kind == "curve":
        panels.draw_losses(figure, grid, scale)
    elif kind == "surface":
        panels.draw_surface(figure, grid, scale)
    else:
        panels.draw_contours(figure, grid, scale)
    lines = [_filled(line, SMALL_LETTERS * width) for line in (made_from(grid), *notes(grid))]
    figure.axes[0].set_title("\n".join(lines), fontsize=8, color="0.3")
    return figure


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
