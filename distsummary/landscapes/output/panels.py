"""The contours, the surface and the curves of a picture; imports matplotlib."""

import io
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke

from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.output.describe import axis_name, checkpoint_names, ends_of_line
from distsummary.landscapes.output.grid import Grid, finite_bounds
from distsummary.landscapes.output.scale import LossScale, clipped, thinned, tick_labels

PAD = 0.08
FONTS = {"pdf.fonttype": 42}  # TrueType: publishers refuse Type 3, matplotlib's default
COLORS = "viridis"
NOT_FINITE = "0.75"  # grey where a loss is not finite
MISSING = {"facecolor": "0.93", "edgecolor": "0.7", "hatch": "///", "linewidth": 0}  # no loss computed
HALO = [withStroke(linewidth=2, foreground="white")]  # makes black text legible on any colour
GAP = 7.0  # typographic points from a checkpoint to its name
MAX_DOTS = 48
MAX_POINTS = 81  # along each side of a surface: a picture shows no more detail
TICKS = 9
FINE = 256  # points of a straight line on a logarithmic axis
SHARES = (0, 0.2, 0.4, 0.6, 0.8, 1)  # ticks on the axis of a line
EDGES, EDGES_COLOR = "straight between the checkpoints", "black"
PATH = "path of the training"
NARROW = 5.5  # inches, below which a legend has one column
MAX_NAME = 30  # characters per row of a name under a tick
_TRUE = {"marker": "o", "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 1.2}
_STAR = {"marker": "*", "color": "red", "markeredgecolor": "white", "markersize": 14}


class ShownFigure(Figure):
    """A Figure that pyplot does not know and that notebooks show even if pyplot was not imported."""

    def savefig(self, *args: Any, **options: Any) -> None:
        """Write a file as every Figure does; a PDF gets fonts that publishers accept."""
        with rc_context(FONTS):
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def empty_figure(width: float, height: float, dpi: float) -> Figure:
    """A figure; width and height in inches."""
    layout = ConstrainedLayoutEngine(w_pad=PAD, h_pad=PAD)
    figure = ShownFigure(figsize=(width, height), dpi=dpi, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def draw_contours(figure: Any, grid: Grid, scale: LossScale) -> None:
    """Filled contours with the path on them; a checkpoint's dot has the colour of its true loss."""
    axes = figure.subplots()
    # Holes in the contours are hatched if no loss was computed there, otherwise grey.
    if grid.missing.any():
        axes.patch.set(**MISSING)
        axes.fill([], [], **MISSING, label="not computed")
    diverged = ~np.isfinite(grid.z) & ~grid.missing
    if diverged.any():
        # Every cell that such a point touches; the contours leave them out.
        axes.contourf(grid.x, grid.y, diverged, levels=[1e-9, 2], colors=[NOT_FINITE])
        axes.plot([], [], "s", color=NOT_FINITE, markeredgecolor="0.4", label="loss not finite")
    shown = np.ma.masked_invalid(clipped(grid.z))
    look = {"levels": scale.levels, "norm": _mappable(scale).norm, "cmap": COLORS}
    filled = axes.contourf(grid.x, grid.y, shown, **look, extend=scale.beyond)
    # The losses that are ticks of the colour bar have lines with their numbers, below the path.
    low, high = finite_bounds(clipped(grid.z))
    ticks = scale.ticks(TICKS)
    ticks = ticks[(low < ticks) & (ticks < high)]
    if len(ticks):
        lines = axes.contour(grid.x, grid.y, shown, levels=ticks, colors="white", linewidths=0.8)
        names = dict(zip(ticks, tick_labels(ticks), strict=True))
        for name in axes.clabel(lines, fmt=names, fontsize=8, colors="black", zorder=1.5):
            name.set_path_effects(HALO)
    _add_colorbar(figure, axes, filled, scale)
    if grid.kind == "triangle":
        axes.plot(*grid.path[[0, 1, 2, 0]].T, "--", color=EDGES_COLOR, linewidth=1.0, label=EDGES)
    if len(grid.path) > 1:
        for run, part, label in _courses(grid):
            axes.plot(*grid.path[part].T, color="white", linewidth=3.0, solid_joinstyle="round")
            axes.plot(*grid.path[part].T, color=_line_color(grid, run), linewidth=1.4, label=label)
        colors = _colors(grid.true_loss, scale)
        for k in thinned(len(grid.path), MAX_DOTS):
            axes.plot(*grid.path[k], **_TRUE, color=colors[k])
        axes.plot([], [], **_TRUE, color="0.3", linestyle="none", label="checkpoint: colour of its true loss")
        if not np.isfinite(clipped(grid.true_loss)).all():
            lost = "checkpoint: true loss not finite"
            axes.plot([], [], **_TRUE, color=NOT_FINITE, linestyle="none", label=lost)
        for k, (name, towards) in _named(grid).items():
            # Beside the point towards the middle, above or below it away from the path.
            side = 1 if grid.path[k, 0] < np.mean(grid.x) else -1
            above = 1 if grid.path[k, 1] >= grid.path[towards, 1] else -1
            axes.annotate(name, grid.path[k], xytext=(side * GAP, above * GAP), textcoords="offset points",
                          ha="left" if side > 0 else "right", va="bottom" if above > 0 else "top",
                          fontsize=9, path_effects=HALO)  # fmt: skip
    axes.plot(0.0, 0.0, **_STAR, linestyle="none", label=_centre(grid))
    axes.set(xlabel=axis_name(grid, 0), ylabel=_in_rows(axis_name(grid, 1)))
    _add_legend(figure)


def draw_surface(figure: Any, grid: Grid, scale: LossScale) -> None:
    """The surface in perspective with the path, and upright lines to the checkpoints' true losses.

    The path is drawn over the surface, so that nothing hides it.
    """
    axes = figure.add_subplot(projection="3d", computed_zorder=False)
    heights = scale.heights(grid.z)
    if np.isfinite(heights).any():
        look = {"facecolors": _colors(grid.z, scale), "edgecolor": (0, 0, 0, 0.12), "linewidth": 0.3}
        axes.plot_surface(*np.meshgrid(grid.x, grid.y), heights, rcount=MAX_POINTS, ccount=MAX_POINTS,
                          shade=False, zorder=1, **look)  # fmt: skip
    in_plane, true = scale.heights(grid.path_loss), scale.heights(grid.true_loss)
    low, high = finite_bounds(heights, in_plane, true)
    margin = 0.02 * (high - low) or 0.5
    axes.set(xlim=(grid.x[0], grid.x[-1]), ylim=(grid.y[0], grid.y[-1]), zlim=(low - margin, high + margin))
    axes.view_init(elev=38.0, azim=open_azimuth(heights))
    # The layout of the legend ignores the labels of 3-D axes.
    axes.set_box_aspect(None, zoom=0.9)
    if len(grid.path) > 1:
        for run, part, label in _courses(grid):
            along = (*grid.path[part].T, in_plane[part])
            axes.plot(*along, color="white", linewidth=3.0, zorder=3)
            axes.plot(*along, color=_line_color(grid, run), linewidth=1.4, label=label, zorder=4)
        colors = _colors(grid.true_loss, scale)
        for k in thinned(len(grid.path), MAX_DOTS):
            px, py = grid.path[k]
            axes.plot([px, px], [py, py], [in_plane[k], true[k]], color="black", linewidth=0.8, zorder=5)
            axes.plot([px], [py], [true[k]], **_TRUE, color=colors[k], zorder=6)
        for k, (name, _) in _named(grid).items():
            if np.isfinite(true[k]):
                # The empty row keeps the name off the path.
                axes.text(*grid.path[k], true[k], f" {name}\n", va="bottom", fontsize=9, path_effects=HALO,
                          linespacing=0.6, zorder=8)  # fmt: skip
        axes.plot([], [], [], **_TRUE, color="0.3", linestyle="none", label="true loss of a checkpoint")
    axes.plot([0.0], [0.0], [in_plane[-1]], **_STAR, linestyle="none", zorder=7, label=_centre(grid))
    if scale.is_empty or scale.stretch != "linear":
        # The colour bar has the losses.
        axes.set_zticks([])
    _add_colorbar(figure, axes, _mappable(scale), scale, shrink=0.7, pad=0.1)
    x_name, y_name = (_in_rows(axis_name(grid, axis)) for axis in (0, 1))
    # A narrow figure has no room for what is in brackets.
    if _is_narrow(figure):
        x_name, y_name = x_name.partition("\n")[0], y_name.partition("\n")[0]
    axes.set_xlabel(x_name, fontsize=9, labelpad=4 + 8 * x_name.count("\n"))
    axes.set_ylabel(y_name, fontsize=9, labelpad=4 + 8 * y_name.count("\n"))
    axes.tick_params(labelsize=8)
    # The outermost labels of both axes would meet in a corner.
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(prune="both")
    _add_legend(figure)


def draw_curve(figure: Any, grid: Grid, scale: LossScale) -> None:
    """The losses of a grid of one row (or column) as a curve over its axis, and the checkpoints."""
    axes, axis = figure.subplots(), 0 if grid.z.shape[0] == 1 else 1
    # A line goes from x = -1 to 0 and is drawn from 0 to 1.
    offset = 1.0 if grid.kind == "line" else 0.0
    at = grid.path[:, axis] + offset
    # Dots show a loss whose neighbours are not finite.
    along = (grid.y if axis else grid.x) + offset
    axes.plot(along, clipped(grid.z).reshape(-1), ".-", color="C0", markersize=3, label="loss on the line")
    if len(at) > 1:
        ends = clipped(grid.path_loss)
        has_barrier = grid.kind == "line" and not grid.missing.any()
        label = "straight between the ends" + (f"; barrier {grid.barrier:.4g}" if has_barrier else "")
        # On a logarithmic scale the straight line is curved, so it needs many points.
        straight = np.linspace((at[0], ends[0]), (at[-1], ends[-1]), FINE)
        axes.plot(*straight.T, ":", color="0.4", label=label)
        axes.plot(at, clipped(grid.true_loss), "o", color="black", label="true loss of the checkpoints")
    else:
        axes.plot(at[-1:], clipped(grid.true_loss)[-1:], **_STAR, linestyle="none", label=_centre(grid))
    axes.set(xlabel="share of the way" if grid.kind == "line" else axis_name(grid, axis))
    _set_losses(axes, scale, grid.z, grid.path_loss, grid.true_loss)
    if grid.kind == "line":
        start, end = (textwrap.fill(name, MAX_NAME, break_on_hyphens=False) for name in ends_of_line(grid))
        axes.set_xticks(SHARES, labels=[f"0\n{start}", *map(str, SHARES[1:-1]), f"1\n{end}"])
    _add_legend(figure)


def draw_losses(figure: Any, grid: Grid, scale: LossScale) -> None:
    """Each checkpoint's true loss and its loss in the plane over the checkpoint's step or epoch.

    The axis of the losses is logarithmic if their `scale` in the contour or surface is stretched.
    """
    axes = figure.subplots()
    true, in_plane = clipped(grid.true_loss), clipped(grid.path_loss)
    numbers = np.array(grid.numbers or range(len(grid.path)))
    for run, part in grid.parts.items():
        color, shadow = 2 * (_line_color(grid, run),) if run else ("C0", "C1")
        label = run or "true loss of the checkpoint"
        axes.plot(numbers[part], true[part], "-o", color=color, markersize=4, label=label)
        label = "" if run else "loss in the plane"
        axes.plot(numbers[part], in_plane[part], "--s", color=shadow, markersize=4, label=label)
    if grid.runs:
        axes.plot([], [], "--s", color="0.4", markersize=4, label="losses in the plane")
    axes.set(xlabel=grid.unit)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _set_losses(axes, scale, true, in_plane)
    _add_legend(figure)


def open_azimuth(heights: Array) -> float:
    """The viewing angle in degrees: from the corner around which the mean height of the surface is lowest."""
    rows, columns = heights.shape[0] // 2, heights.shape[1] // 2
    corners = {
        30.0: heights[rows:, columns:],
        120.0: heights[rows:, :columns],
        210.0: heights[:rows, :columns],
        300.0: heights[:rows, columns:],
    }
    means = {
        a: float(part[np.isfinite(part)].mean()) for a, part in corners.items() if np.isfinite(part).any()
    }
    return min(means, key=lambda azimuth: means[azimuth], default=300.0)


def _set_losses(axes: Any, scale: LossScale, *losses: Array) -> None:
    """Set up the y axis of a curve, logarithmic if the scale is stretched, with round ticks."""
    low, high = finite_bounds(*losses)
    axes.set(ylabel="loss")
    axes.grid(alpha=0.3)
    if scale.is_empty:
        axes.set_yticks([])
    elif scale.stretch != "linear" and low > 0:
        axes.set_yscale("log")
        if low < high:
            ticks = LossScale(levels=np.array([low, high]), stretch="log").ticks(TICKS)
            axes.set_yticks(ticks, labels=tick_labels(ticks))
            axes.minorticks_off()


def _mappable(scale: LossScale) -> ScalarMappable:
    return ScalarMappable(norm=BoundaryNorm(scale.levels, 256, extend=scale.beyond), cmap=COLORS)


def _colors(losses: Array, scale: LossScale) -> Any:
    """Colours of losses, of their shape and four numbers each; grey for those that are not finite."""
    shown = clipped(losses)
    colors = np.array(_mappable(scale).to_rgba(np.where(np.isfinite(shown), shown, 0.0)))
    colors[~np.isfinite(shown)] = to_rgba(NOT_FINITE)
    return colors


def _courses(grid: Grid) -> Iterator[tuple[str, range, str]]:
    """The lines of the path: the run, path indices, and the label of the first one of each run.

    A checkpoint alone between two gaps, or of a run with no other one, is a point.
    """
    for run, parts in grid.stretches.items():
        label = run or PATH
        for part in parts:
            if len(part) > 1:
                yield run, part, label
                label = ""


def _named(grid: Grid) -> dict[int, tuple[str, int]]:
    """The checkpoints with a name: {place in the path: (name, place of a neighbour in the path)}.

    Of one run it is the start, as the star is the end; of several runs the first and the last of each.
    """
    if len(grid.numbers) != len(grid.path):
        return {}
    if not grid.runs:
        return {0: (f"start, {grid.unit} {grid.numbers[0]}", 1)}
    names = checkpoint_names(grid)
    found: dict[int, tuple[str, int]] = {}
    for part in grid.parts.values():
        first, last = part.start, part.stop - 1
        found |= {last: (names[last], max(last - 1, first)), first: (names[first], min(first + 1, last))}
    return found


def _line_color(grid: Grid, run: str) -> str:
    """The colour of a run's path; black if there are no runs to distinguish."""
    return f"C{1 + list(grid.parts).index(run)}" if grid.runs else "black"


def _in_rows(name: str) -> str:
    """The name of an axis with what is in brackets below it."""
    return name.replace(" (", "\n(")


def _add_colorbar(figure: Any, axes: Any, mappable: Any, scale: LossScale, **options: float) -> None:
    """Add the colour bar, unless no loss is finite."""
    if scale.is_empty:
        return
    ticks = scale.ticks(TICKS)
    bar = figure.colorbar(mappable, ax=axes, label=scale.label, ticks=ticks, **options)
    bar.ax.set_yticks(ticks, labels=tick_labels(ticks))
    bar.ax.minorticks_off()


def _add_legend(figure: Any) -> None:
    """Add the legend below everything, because any corner of the picture may be in use."""
    columns = 1 if _is_narrow(figure) else 2
    figure.legend(loc="outside lower center", fontsize=8, ncols=columns, frameon=False)


def _is_narrow(figure: Any) -> bool:
    return bool(figure.bbox.width / figure.dpi < NARROW)


def _centre(grid: Grid) -> str:
    is_end = len(grid.path) > 1 and len(grid.numbers) == len(grid.path) and not grid.runs
    what = f"end, {grid.unit} {grid.numbers[-1]}" if is_end else "centre"
    return f"{what}: true loss {grid.true_loss[-1]:.4g}, in the plane {grid.path_loss[-1]:.4g}"
