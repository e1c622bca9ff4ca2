"""The figure of a picture and its panels; imports matplotlib."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]  # has no types

from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.output.cells import (
    drape,
    finite_runs,
    hidden,
    loose_points,
    thinned,
    touched_cells,
    whole_cells,
)
from distsummary.landscapes.output.describe import axis_name, checkpoint_names, ends_of_line
from distsummary.landscapes.output.grid import Grid, finite_bounds
from distsummary.landscapes.output.label_placement import GAP
from distsummary.landscapes.output.scale import LossScale, clipped, tick_labels

PAD = 0.08
FONTS = {"pdf.fonttype": 42}  # TrueType: publishers refuse Type 3, matplotlib's default
COLORS = "viridis"
NOT_FINITE = "0.75"  # grey where a loss is not finite
MISSING = {"facecolor": "0.93", "edgecolor": "0.7", "hatch": "///", "linewidth": 0}  # no loss computed
MAX_LABELS = 12
NAME_BOX = {"fc": "white", "ec": "none", "alpha": 0.6, "pad": 1}
MAX_DOTS = 48
MAX_POINTS = 81  # along each side of a surface: a picture shows no more detail
TICKS = 9
USUAL = 3  # characters in a typical tick label
FINE = 256  # points of a straight line on a logarithmic axis
SHARES = (0, 0.2, 0.4, 0.6, 0.8, 1)  # ticks on the axis of a line
EDGES, EDGES_COLOR = "straight between the checkpoints", "black"
FAINT = 0.3  # opacity of what the surface hides
NARROW = 5.5  # inches, below which a legend has one column and a name two rows
MAX_NAME = 30  # characters per row of a name under a tick
PATH = "path of the training"
_TRUE = {"marker": "o", "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 1.2}


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
    shown = np.ma.masked_invalid(clipped(grid.z))
    # Holes in the contours are hatched if no loss was computed there, otherwise grey.
    if grid.missing.any():
        axes.patch.set(**MISSING)
        axes.fill([], [], **MISSING, label="not computed")
    diverged = ~np.isfinite(grid.z) & ~grid.missing
    if diverged.any():
        cells = np.ma.masked_equal(touched_cells(diverged), False)
        axes.pcolormesh(grid.x, grid.y, cells, cmap=ListedColormap([NOT_FINITE]), vmin=0, vmax=1)
        axes.plot([], [], "s", color=NOT_FINITE, markeredgecolor="0.4", label="loss not finite")
    norm = _mappable(scale).norm
    filled = axes.contourf(grid.x, grid.y, shown, levels=scale.levels, norm=norm, cmap=COLORS,
                          extend=scale.beyond)  # fmt: skip
    axes.contour(grid.x, grid.y, shown, levels=scale.levels, colors="white", linewidths=0.4, alpha=0.5)
    _add_colorbar(figure, axes, filled, scale)
    # A finite point without a whole cell around it is in no contour, so it has a mark of its own.
    rows, columns = loose_points(grid.z).T
    loose = _colors(grid.z[rows, columns], scale)
    axes.scatter(grid.x[columns], grid.y[rows], s=9, marker="s", c=loose, clip_on=False)
    if grid.kind == "triangle":
        axes.plot(*grid.path[[0, 1, 2, 0]].T, "--", color=EDGES_COLOR, linewidth=1.0, label=EDGES)
    if len(grid.path) > 1:
        for run, part in _courses(grid).items():
            axes.plot(*grid.path[part].T, color="white", linewidth=3.0, solid_joinstyle="round")
            axes.plot(*grid.path[part].T, color=_line_color(grid, run), linewidth=1.4, label=run or PATH)
        colors = _colors(grid.true_loss, scale)
        for k in thinned(len(grid.path), MAX_DOTS):
            axes.plot(*grid.path[k], **_TRUE, color=colors[k])
        axes.plot([], [], **_TRUE, color="0.3", linestyle="none", label="checkpoint: colour of its true loss")
        if not np.isfinite(clipped(grid.true_loss)).all():
            lost = "checkpoint: true loss not finite"
            axes.plot([], [], **_TRUE, color=NOT_FINITE, linestyle="none", label=lost)
        if len(grid.numbers) == len(grid.path):
            # The last checkpoint is the centre, which the star marks, unless there are several runs.
            names = checkpoint_names(grid)
            for k in thinned(len(grid.path), MAX_LABELS)[: None if grid.runs else -1]:
                axes.annotate(names[k], grid.path[k], xytext=(GAP, GAP), textcoords="offset points",
                              fontsize=8, color="black", bbox=NAME_BOX)  # fmt: skip
    axes.plot(0.0, 0.0, "*", color="red", markeredgecolor="white", markersize=14, label=_centre(grid))
    x_name, y_name = axis_name(grid, 0), axis_name(grid, 1)
    if _is_narrow(figure):
        y_name = y_name.replace(" (", "\n(")
    axes.set(xlabel=x_name, ylabel=y_name)
    _add_legend(figure)


def draw_surface(figure: Any, grid: Grid, scale: LossScale) -> None:
    """The surface in perspective with the path on it, and vertical lines to the checkpoints' true losses."""
    axes = figure.add_subplot(projection="3d", computed_zorder=False)
    rows, columns = (thinned(len(axis), MAX_POINTS) for axis in (grid.y, grid.x))
    x, y, z = grid.x[columns], grid.y[rows], clipped(grid.z)[np.ix_(rows, columns)]
    heights = scale.heights(z)
    cells_i, cells_j = whole_cells(heights).T
    if len(cells_i):
        around_cell = [(cells_i + i, cells_j + j) for i, j in ((0, 0), (0, 1), (1, 1), (1, 0))]
        corners = np.stack([np.stack((x[j], y[i], heights[i, j]), axis=-1) for i, j in around_cell], axis=1)
        colors = _colors(np.mean([z[i, j] for i, j in around_cell], axis=0), scale)
        axes.add_collection3d(
            Poly3DCollection(corners, facecolors=colors, edgecolors=(0, 0, 0, 0.12), linewidths=0.3, zorder=1)
        )
    for i, j in loose_points(heights):
        axes.plot(x[j], y[i], heights[i, j], "s", markersize=2, color=_colors(z[i, j], scale), zorder=2)

    # What the surface hides depends on the view, so the limits and the angle are set before the lines.
    in_plane, true = scale.heights(grid.path_loss), scale.heights(grid.true_loss)
    low, high = finite_bounds(heights, in_plane, true)
    margin = 0.02 * (high - low) or 0.5
    axes.set(xlim=(grid.x[0], grid.x[-1]), ylim=(grid.y[0], grid.y[-1]), zlim=(low - margin, high + margin))
    axes.view_init(elev=38.0, azim=open_azimuth(heights))
    # The layout of the legend ignores the labels of 3-D axes.
    axes.set_box_aspect(None, zoom=0.9)
    eye = eye_of(axes)

    def laid(along: Array, color: str, width: float, label: str, **options: Any) -> None:
        """Draw a line, faint where the surface hides it."""
        is_hidden = hidden(x, y, heights, along, eye)[:, None]
        seen, behind = np.where(is_hidden, np.nan, along), np.where(is_hidden, along, np.nan)
        axes.plot(*seen.T, color=color, linewidth=width, label=label, zorder=4, **options)
        if is_hidden.any():
            axes.plot(*behind.T, color=color, linewidth=width, alpha=FAINT, zorder=4, **options)

    if grid.kind == "triangle":
        laid(drape(x, y, heights, grid.path[[0, 1, 2, 0]]), EDGES_COLOR, 1.0, EDGES, linestyle="--")
    if len(grid.path) > 1:
        for run, part in _courses(grid).items():
            along = drape(x, y, heights, grid.path[part])
            axes.plot(*np.where(hidden(x, y, heights, along, eye)[:, None], np.nan, along).T, color="white",
                      linewidth=3.0, zorder=3)  # fmt: skip
            laid(along, _line_color(grid, run), 1.4, run or PATH)
        colors = _colors(grid.true_loss, scale)
        behind = hidden(x, y, heights, np.column_stack((grid.path, true)), eye)
        for k in thinned(len(grid.path), MAX_DOTS):
            px, py = grid.path[k]
            alpha = FAINT if behind[k] else 1.0
            axes.plot([px, px], [py, py], [in_plane[k], true[k]], color="black", linewidth=0.8, alpha=alpha,
                      zorder=5)  # fmt: skip
            axes.plot([px], [py], [true[k]], **_TRUE, color=colors[k], alpha=alpha, zorder=6)
        # A run of one checkpoint has no line and is not in the legend, so its name stands at its point.
        for run, part in grid.parts.items():
            k = part.start
            if run and len(part) == 1 and np.isfinite(true[k]):
                axes.text(*grid.path[k], true[k], f"   {run}", fontsize=8, bbox=NAME_BOX, zorder=5)
        axes.plot([], [], [], **_TRUE, color="0.3", linestyle="none", label="true loss of a checkpoint")
    is_behind = bool(hidden(x, y, heights, np.array([[0.0, 0.0, in_plane[-1]]]), eye)[0])
    axes.plot([0.0], [0.0], [in_plane[-1]], "*", color="red", markeredgecolor="white", markersize=13,
              alpha=FAINT if is_behind else 1.0, zorder=7,
              label=_centre(grid) + (", behind the surface" if is_behind else ""))  # fmt: skip

    longest = USUAL
    if scale.is_empty:
        axes.set_zticks([])
    if scale.stretch != "linear":
        ticks = scale.ticks(TICKS)
        places = scale.heights(ticks)
        # Ticks are left out if their labels would overlap the label below.
        kept = [0]
        for k in range(1, len(ticks)):
            if places[k] - places[kept[-1]] >= 0.05 * (high - low):
                kept.append(k)
        labels = tick_labels(ticks[kept])
        axes.set_zticks(places[kept], labels=labels)
        longest = max(USUAL, *map(len, labels))
    # The labels are centred, so long ones would overlap the axis.
    axes.tick_params(axis="z", pad=2 + longest)
    # The colour bar says it too.
    if not _is_narrow(figure):
        axes.set_zlabel("loss", fontsize=9, labelpad=4 + 2 * longest)
    _add_colorbar(figure, axes, _mappable(scale), scale, shrink=0.7, pad=0.1)
    x_name, y_name = (axis_name(grid, axis) for axis in (0, 1))
    # A narrow figure has no room for what is in brackets.
    if _is_narrow(figure):
        x_name, y_name = (name.partition(" (")[0] for name in (x_name, y_name))
    x_name, y_name = (name.replace(" (", "\n(") for name in (x_name, y_name))
    axes.set_xlabel(x_name, fontsize=9, labelpad=4 + 8 * x_name.count("\n"))
    axes.set_ylabel(y_name, fontsize=9, labelpad=4 + 8 * y_name.count("\n"))
    axes.tick_params(labelsize=8)
    # The outermost labels of both axes would meet in a corner.
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(prune="both")
    _add_legend(figure)


def draw_curve(axes: Any, grid: Grid, scale: LossScale) -> None:
    """The losses of a grid of one row (or column) as a curve over its axis, and the checkpoints."""
    axis = 0 if grid.z.shape[0] == 1 else 1
    # A line goes from x = -1 to 0 and is drawn from 0 to 1.
    offset = 1.0 if grid.kind == "line" else 0.0
    along = (grid.y if axis else grid.x) + offset
    at = grid.path[:, axis] + offset
    losses = clipped(grid.z).reshape(-1)
    axes.plot(along, losses, "-", color="C0", linewidth=1.6, label="loss on the line")
    for run in finite_runs(losses):
        # A single point makes no visible line.
        if len(run) == 1:
            axes.plot(along[run[0]], losses[run[0]], ".", color="C0")
    half = (along[1] - along[0]) / 2 if len(along) > 1 else 0.5
    is_missing = grid.missing.reshape(-1)
    # Gaps in the curve are hatched if no loss was computed there, otherwise grey.
    for where, look, text in (
        (is_missing, MISSING, "not computed"),
        (~np.isfinite(losses) & ~is_missing, {"color": NOT_FINITE, "linewidth": 0}, "loss not finite"),
    ):
        for count, lost in enumerate(along[where]):
            axes.axvspan(lost - half, lost + half, **look, label=None if count else text)
    if len(at) > 1:
        ends = clipped(grid.path_loss)
        has_barrier = grid.kind == "line" and not grid.missing.any()
        label = "straight between the ends" + (f"; barrier {grid.barrier:.4g}" if has_barrier else "")
        # On a logarithmic scale the straight line is curved, so it needs many points.
        straight = np.linspace((at[0], ends[0]), (at[-1], ends[-1]), FINE)
        axes.plot(*straight.T, ":", color="0.4", label=label)
        axes.plot(at, clipped(grid.true_loss), "o", color="black", label="true loss of the checkpoints")
        is_named = len(grid.numbers) == len(at) and grid.kind != "line"
        for k in thinned(len(at), MAX_LABELS) if is_named else ():
            axes.annotate(checkpoint_names(grid)[k], (at[k], clipped(grid.true_loss)[k]), xytext=(5, 5),
                          textcoords="offset points", fontsize=8)  # fmt: skip
    else:
        axes.plot(at[-1:], clipped(grid.true_loss)[-1:], "*", color="red", markersize=12, label=_centre(grid))
    low, high = finite_bounds(grid.z, grid.path_loss, grid.true_loss)
    if scale.stretch != "linear" and low > 0:
        set_log(axes, low, high)
    axes.set(xlabel="share of the way" if grid.kind == "line" else axis_name(grid, axis), ylabel="loss")
    if scale.is_empty:
        axes.set_yticks([])
    if grid.kind == "line":
        start, end = (textwrap.fill(name, MAX_NAME, break_on_hyphens=False) for name in ends_of_line(grid))
        axes.set_xticks(SHARES, labels=[f"0\n{start}", *map(str, SHARES[1:-1]), f"1\n{end}"])
    axes.grid(alpha=0.3)
    _add_legend(axes.figure)


def set_log(axes: Any, low: float, high: float) -> None:
    """Make the axis of the losses logarithmic, with round ticks also over less than a decade."""
    axes.set_yscale("log")
    if low < high:
        ticks = LossScale(levels=np.array([low, high]), stretch="log").ticks(TICKS)
        axes.set_yticks(ticks, labels=tick_labels(ticks))
        axes.minorticks_off()


def draw_losses(axes: Any, grid: Grid, scale: LossScale) -> None:
    """Draw each checkpoint's true loss and its loss in the plane over the checkpoint's step or epoch.

    The axis of the losses is logarithmic if their `scale` in the contour or surface is stretched.
    """
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
    low, high = finite_bounds(true, in_plane)
    if scale.stretch != "linear" and low > 0:
        set_log(axes, low, high)
    axes.set(xlabel=grid.unit, ylabel="loss")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(set(numbers)) == 1:
        axes.set_xticks(numbers[:1])
    if not np.isfinite((true, in_plane)).any():
        # Matplotlib's default ticks would be arbitrary.
        axes.set(xticks=[], yticks=[])
    axes.grid(alpha=0.3)
    above = (0.5, 1.06)  # above the axis offset, such as "+1e6"
    axes.legend(loc="lower center", bbox_to_anchor=above, fontsize=8, ncols=2, frameon=False)


def draw_text(axes: Any, lines: Sequence[str]) -> None:
    """Lines of monospaced text, without axes."""
    axes.set_axis_off()
    axes.text(0.0, 1.0, "\n".join(lines), family="monospace", fontsize=8, va="top", linespacing=1.35)


def eye_of(axes: Any) -> Array:
    """The point (3,), in the coordinates of the data, from which 3-D axes are seen."""
    # A matrix (4, 4). The eye is the one point whose x, y and depth are 0 in the picture.
    projection = axes.get_proj()
    rows = projection[[0, 1, 3]]
    return np.asarray(np.linalg.solve(rows[:, :3], -rows[:, 3]))


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


def _mappable(scale: LossScale) -> ScalarMappable:
    return ScalarMappable(norm=BoundaryNorm(scale.levels, 256, extend=scale.beyond), cmap=COLORS)


def _colors(losses: Array, scale: LossScale) -> Any:
    """Colours (k, 4) of losses; grey for those that are not finite."""
    shown = clipped(losses)
    colors = np.array(_mappable(scale).to_rgba(np.where(np.isfinite(shown), shown, 0.0)))
    colors[~np.isfinite(shown)] = to_rgba(NOT_FINITE)
    return colors


def _courses(grid: Grid) -> dict[str, range]:
    """The runs with several checkpoints: {label: path indices}; the path of any other run is a point."""
    return {run: part for run, part in grid.parts.items() if len(part) > 1}


def _line_color(grid: Grid, run: str) -> str:
    """The colour of a run's path; black if there are no runs to distinguish."""
    return f"C{1 + list(grid.parts).index(run)}" if grid.runs else "black"


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
    return f"centre: true loss {grid.true_loss[-1]:.4g}, in the plane {grid.path_loss[-1]:.4g}"
