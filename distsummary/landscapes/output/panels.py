"""The panels of a picture of a loss grid, drawn with matplotlib onto axes that are given."""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.output.cells import (
    drape,
    finite_runs,
    loose_points,
    thinned,
    touched_cells,
    whole_cells,
)
from distsummary.landscapes.output.grid import LossGrid, finite_bounds
from distsummary.landscapes.output.label_placement import around, corners_with_room
from distsummary.landscapes.output.scale import WIDE, LossScale, clipped, tick_labels

COLORS = "viridis"
NOT_FINITE = "0.75"  # grey where there is no loss to show
MISSING = {"facecolor": "0.93", "edgecolor": "0.7", "hatch": "///", "linewidth": 0}  # where none was computed
MAX_LABELS = 12
DOT, STAR = 3.5, 7.0  # points: half of what checkpoints are drawn as
GAP = STAR  # from a checkpoint to its name, which covers no star
NAME_BOX = {"fc": "white", "ec": "none", "alpha": 0.6, "pad": 1}
MAX_DOTS = 48
MAX_POINTS = 81  # of a surface along each side: a picture shows no more
TICKS = 9
USUAL = 3  # letters of a tick's label
FINE = 256  # points of what is straight, where the axis is not
SHARES = (0, 0.2, 0.4, 0.6, 0.8, 1)  # ticks of a line
MAX_NAME = 30  # characters of a name in a row under a tick
PATH, STEPS, STEPS_COLOR = "path of the training", "steps between, by sketches", "C1"
_TRUE = {"marker": "o", "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 1.2}


def draw_contours(figure: Any, grid: LossGrid, scale: LossScale) -> None:
    """Filled contours, and the path on them; a checkpoint's dot has the colour of its true loss."""
    axes = figure.subplots()
    shown = np.ma.masked_invalid(clipped(grid.z))
    _draw_holes(axes, grid)
    norm = _norm(scale)
    filled = axes.contourf(grid.x, grid.y, shown, levels=scale.levels, norm=norm, cmap=COLORS, extend="both")
    axes.contour(grid.x, grid.y, shown, levels=scale.levels, colors="white", linewidths=0.4, alpha=0.5)
    _add_colorbar(figure, axes, filled, scale)
    rows, columns = loose_points(grid.z).T
    loose = _colors(grid.z[rows, columns], scale)
    axes.scatter(grid.x[columns], grid.y[rows], s=9, marker="s", c=loose, clip_on=False)
    if len(grid.path) > 1:
        for run, part in _courses(grid).items():
            axes.plot(*grid.path[part].T, color="white", linewidth=3.0, solid_joinstyle="round")
            axes.plot(*grid.path[part].T, color=_line_color(grid, run), linewidth=1.4, label=run or PATH)
        if grid.steps:
            axes.plot(*grid.step_path.T, color=STEPS_COLOR, linewidth=1.0, label=STEPS)
        colors = _colors(grid.true_loss, scale)
        for k in thinned(len(grid.path), MAX_DOTS):
            axes.plot(*grid.path[k], **_TRUE, color=colors[k])
        axes.plot([], [], **_TRUE, color="0.3", linestyle="none", label="checkpoint: colour of its true loss")
        if not np.isfinite(clipped(grid.true_loss)).all():
            lost = "checkpoint: true loss not finite"
            axes.plot([], [], **_TRUE, color=NOT_FINITE, linestyle="none", label=lost)
        _label_checkpoints(axes, grid)
    axes.plot(0.0, 0.0, "*", color="red", markeredgecolor="white", markersize=14, label=_centre(grid))
    axes.set(xlabel=_axis(grid, 0), ylabel=_axis(grid, 1))
    _add_legend(figure)


def _draw_holes(axes: Any, grid: LossGrid) -> None:
    """What is seen where the contours have a hole: plain ground, hatched where no loss was computed."""
    diverged = ~np.isfinite(grid.z) & ~grid.missing
    if grid.missing.any():
        axes.patch.set(**MISSING)
        axes.fill([], [], **MISSING, label="not computed")
    if diverged.any():
        cells = np.ma.masked_equal(touched_cells(diverged), False)
        axes.pcolormesh(grid.x, grid.y, cells, cmap=_plain(NOT_FINITE), vmin=0, vmax=1)
        axes.plot([], [], "s", color=NOT_FINITE, markeredgecolor="0.4", label="loss not finite")


def draw_surface(figure: Any, grid: LossGrid, scale: LossScale) -> None:
    """The surface in perspective, the path laid on it, and upright lines to the checkpoints' true losses."""
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]  # has no types

    axes = figure.add_subplot(projection="3d", computed_zorder=False)
    rows, columns = (thinned(len(axis), MAX_POINTS) for axis in (grid.y, grid.x))
    x, y, z = grid.x[columns], grid.y[rows], clipped(grid.z)[np.ix_(rows, columns)]
    heights = scale.heights(z)
    corners, middle = _quads(x, y, heights, z)
    if len(corners):
        colors = _colors(middle, scale)
        axes.add_collection3d(
            Poly3DCollection(corners, facecolors=colors, edgecolors=(0, 0, 0, 0.12), linewidths=0.3, zorder=1)
        )
    for i, j in loose_points(heights):
        axes.plot(x[j], y[i], heights[i, j], "s", markersize=2, color=_colors(z[i, j], scale), zorder=2)
    _draw_path_in_space(axes, grid, scale, lambda points: drape(x, y, heights, points))
    _set_box(axes, grid, scale, heights)
    _add_colorbar(figure, axes, _mappable(scale), scale, shrink=0.7, pad=0.1)
    axes.set_box_aspect(None, zoom=0.9)  # its labels are not counted when the legend is placed
    axes.set_xlabel(_axis(grid, 0), fontsize=9)
    axes.set_ylabel(_axis(grid, 1), fontsize=9)
    axes.tick_params(labelsize=8)
    for axis in (axes.xaxis, axes.yaxis):  # their last labels would meet in a corner
        axis.get_major_locator().set_params(prune="both")
    _add_legend(figure)


def draw_curve(axes: Any, grid: LossGrid, scale: LossScale) -> None:
    """The losses of a grid of one row (or column) over its axis, and the checkpoints on it."""
    axis = 0 if grid.z.shape[0] == 1 else 1
    offset = 1.0 if grid.kind == "line" else 0.0  # x = -1 is its start
    along = (grid.y if axis else grid.x) + offset
    at = grid.path[:, axis] + offset
    losses = clipped(grid.z).reshape(-1)
    axes.plot(along, losses, "-", color="C0", linewidth=1.6, label="loss on the line")
    for run in finite_runs(losses):
        if len(run) == 1:  # no line leads there
            axes.plot(along[run[0]], losses[run[0]], ".", color="C0")
    _draw_gaps(axes, along, losses, grid.missing.reshape(-1))
    if len(at) > 1:
        ends = clipped(grid.path_loss)
        has_barrier = grid.kind == "line" and not grid.missing.any()
        label = "straight between the ends" + (f"; barrier {grid.barrier:.4g}" if has_barrier else "")
        straight = np.linspace((at[0], ends[0]), (at[-1], ends[-1]), FINE)  # a log scale bends it
        axes.plot(*straight.T, ":", color="0.4", label=label)
        axes.plot(at, clipped(grid.true_loss), "o", color="black", label="true loss of the checkpoints")
        is_named = len(grid.numbers) == len(at) and grid.kind != "line"
        for k in thinned(len(at), MAX_LABELS) if is_named else ():
            axes.annotate(_names(grid)[k], (at[k], clipped(grid.true_loss)[k]), xytext=(5, 5),
                          textcoords="offset points", fontsize=8)  # fmt: skip
    else:
        axes.plot(at[-1:], clipped(grid.true_loss)[-1:], "*", color="red", markersize=12, label=_centre(grid))
    if scale.stretch != "linear" and finite_bounds(grid.z, grid.path_loss, grid.true_loss)[0] > 0:
        axes.set_yscale("log")
    axes.set(xlabel="share of the way" if grid.kind == "line" else _axis(grid, axis), ylabel="loss")
    if scale.is_empty:
        axes.set_yticks([])
    if grid.kind == "line":
        start, end = (textwrap.fill(name, MAX_NAME, break_on_hyphens=False) for name in ends_of_line(grid))
        axes.set_xticks(SHARES, labels=[f"0\n{start}", *map(str, SHARES[1:-1]), f"1\n{end}"])
    axes.grid(alpha=0.3)
    _add_legend(axes.figure)


def _draw_gaps(axes: Any, along: Array, losses: Array, missing: Array) -> None:
    """What is seen where the curve has a gap: plain, or hatched where no loss was computed."""
    diverged = ~np.isfinite(losses) & ~missing
    for where, look, label in (
        (missing, MISSING, "not computed"),
        (diverged, {"color": NOT_FINITE, "linewidth": 0}, "loss not finite"),
    ):
        for count, lost in enumerate(along[where]):
            axes.axvspan(*_around(along, float(lost)), **look, label=None if count else label)


def draw_losses(axes: Any, grid: LossGrid) -> None:
    """True and in-plane loss of the checkpoints, by number."""
    true, in_plane = clipped(grid.true_loss), clipped(grid.path_loss)
    numbers = np.array(grid.numbers or range(len(grid.path)))
    for run, part in grid.parts.items():
        color, shadow = 2 * (_line_color(grid, run),) if run else ("C0", "C1")
        label = run or "true loss of the checkpoint"
        axes.plot(numbers[part], true[part], "-o", color=color, markersize=4, label=label)
        label = "" if run else "loss of its shadow in the plane"
        axes.plot(numbers[part], in_plane[part], "--s", color=shadow, markersize=4, label=label)
    if grid.runs:
        axes.plot([], [], "--s", color="0.4", markersize=4, label="loss of the shadows in the plane")
    low, high = finite_bounds(true, in_plane)
    if low > 0 and high > WIDE / 2 * low:
        axes.set_yscale("log")
    axes.set(xlabel=grid.unit, ylabel="loss")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(set(numbers)) == 1:
        axes.set_xticks(numbers[:1])
    if not np.isfinite((true, in_plane)).any():
        axes.set(xticks=[], yticks=[])  # matplotlib's would be nobody's
    axes.grid(alpha=0.3)
    above = (0.5, 1.06)  # the offset of the axis, as in "+1e6"
    axes.legend(loc="lower center", bbox_to_anchor=above, fontsize=8, ncols=2, frameon=False)


def draw_text(axes: Any, lines: Sequence[str]) -> None:
    """Lines in print, nothing else."""
    axes.set_axis_off()
    axes.text(0.0, 1.0, "\n".join(lines), family="monospace", fontsize=8, va="top", linespacing=1.35)


def _draw_path_in_space(
    axes: Any, grid: LossGrid, scale: LossScale, onto_surface: Callable[[Array], Array]
) -> None:
    in_plane, true = scale.heights(grid.path_loss), scale.heights(grid.true_loss)
    if len(grid.path) > 1:
        for run, part in _courses(grid).items():
            along = onto_surface(grid.path[part])
            axes.plot(*along.T, color="white", linewidth=3.0, zorder=3)
            axes.plot(*along.T, color=_line_color(grid, run), linewidth=1.4, zorder=4, label=run or PATH)
        if grid.steps:
            steps = onto_surface(grid.step_path)
            axes.plot(*steps.T, color=STEPS_COLOR, linewidth=1.0, zorder=4, label=STEPS)
        colors = _colors(grid.true_loss, scale)
        for k in thinned(len(grid.path), MAX_DOTS):
            x, y = grid.path[k]
            axes.plot([x, x], [y, y], [in_plane[k], true[k]], color="black", linewidth=0.8, zorder=5)
            axes.plot([x], [y], [true[k]], **_TRUE, color=colors[k], zorder=6)
        for run, part in grid.parts.items():
            k = part.start
            if run and len(part) == 1 and np.isfinite(true[k]):  # no line in the legend tells which it is
                axes.text(*grid.path[k], true[k], f"   {run}", fontsize=8, bbox=NAME_BOX, zorder=5)
        axes.plot([], [], [], **_TRUE, color="0.3", linestyle="none", label="true loss of a checkpoint")
    axes.plot([0.0], [0.0], [in_plane[-1]], "*", color="red", markeredgecolor="white", markersize=13,
              zorder=7, label=_centre(grid))  # fmt: skip


def _set_box(axes: Any, grid: LossGrid, scale: LossScale, heights: Array) -> None:
    """Limits, labels of the heights as losses, and a view over the lowest corner, which hides no valley."""
    low, high = finite_bounds(heights, scale.heights(grid.path_loss), scale.heights(grid.true_loss))
    margin = 0.02 * (high - low) or 0.5
    axes.set(xlim=(grid.x[0], grid.x[-1]), ylim=(grid.y[0], grid.y[-1]), zlim=(low - margin, high + margin))
    longest = USUAL
    if scale.is_empty:
        axes.set_zticks([])
    if scale.stretch != "linear":
        ticks = _apart(scale.ticks(TICKS), scale, 0.05 * (high - low))
        labels = tick_labels(ticks)
        axes.set_zticks(scale.heights(ticks), labels=labels)
        longest = max(USUAL, *map(len, labels))
    axes.tick_params(axis="z", pad=2 + longest)  # labels are centred there: long ones would lie over the axis
    axes.set_zlabel("loss", fontsize=9, labelpad=4 + 2 * longest)
    axes.view_init(elev=38.0, azim=_azimuth(heights))


def _apart(ticks: Array, scale: LossScale, gap: float) -> Array:
    """The ticks without those that would be written over the one below."""
    heights = scale.heights(ticks)
    kept = [0]
    for k in range(1, len(ticks)):
        if heights[k] - heights[kept[-1]] >= gap:
            kept.append(k)
    return ticks[kept]


def _azimuth(heights: Array) -> float:
    """The view over the corner (a quarter of the grid) with the lowest mean height, in degrees."""
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


def _quads(x: Array, y: Array, heights: Array, losses: Array) -> tuple[Array, Array]:
    """Corners (k, 4, 3) of the cells that have a height, and the mean loss of each, (k,)."""
    rows, columns = whole_cells(heights).T
    order = [(0, 0), (0, 1), (1, 1), (1, 0)]
    points = [(x[columns + j], y[rows + i], heights[rows + i, columns + j]) for i, j in order]
    corners = np.stack([np.stack(point, axis=-1) for point in points], axis=1)
    return corners, np.mean([losses[rows + i, columns + j] for i, j in order], axis=0)


def _norm(scale: LossScale) -> Any:
    from matplotlib.colors import BoundaryNorm

    return BoundaryNorm(scale.levels, 256, extend="both")


def _mappable(scale: LossScale) -> Any:
    from matplotlib.cm import ScalarMappable

    return ScalarMappable(norm=_norm(scale), cmap=COLORS)


def _plain(color: str) -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap([color])


def _colors(losses: Array, scale: LossScale) -> Any:
    """Colours (k, 4) of losses; grey for those that are not finite."""
    from matplotlib.colors import to_rgba

    shown = clipped(losses)
    colors = np.array(_mappable(scale).to_rgba(np.where(np.isfinite(shown), shown, 0.0)))
    colors[~np.isfinite(shown)] = to_rgba(NOT_FINITE)
    return colors


def _courses(grid: LossGrid) -> dict[str, range]:
    """The runs that have a path, by label."""
    return {run: part for run, part in grid.parts.items() if len(part) > 1}


def _line_color(grid: LossGrid, run: str) -> str:
    """Of a path: black where there is one."""
    return f"C{1 + list(grid.parts).index(run)}" if grid.runs else "black"


def _add_colorbar(figure: Any, axes: Any, mappable: Any, scale: LossScale, **options: float) -> None:
    """What the colours mean, where there are some."""
    if scale.is_empty:
        return
    ticks = scale.ticks(TICKS)
    bar = figure.colorbar(mappable, ax=axes, label=scale.label, ticks=ticks, **options)
    bar.ax.set_yticks(ticks, labels=tick_labels(ticks))
    bar.ax.minorticks_off()


def _add_legend(figure: Any) -> None:
    """Below everything: the picture has no corner that is free for certain."""
    figure.legend(loc="outside lower center", fontsize=8, ncols=2, frameon=False)


def _label_checkpoints(axes: Any, grid: LossGrid) -> None:
    if len(grid.numbers) != len(grid.path):
        return
    names = _names(grid)
    for k in thinned(len(grid.path), MAX_LABELS)[: None if grid.runs else -1]:
        axes.annotate(names[k], grid.path[k], xytext=(GAP, GAP), textcoords="offset points",
                      fontsize=8, color="black", bbox=NAME_BOX)  # fmt: skip


def make_room(figure: Any, axes: Any, grid: LossGrid) -> None:
    """Move the names of checkpoints off the dots and each other, or leave them out; `figure` is complete.

    The first and the last name stay, and those of the ends of a run.
    """
    figure.get_layout_engine().execute(figure)  # before, nothing has its place
    names = list(axes.texts)
    points = axes.transData.transform(np.array([name.xy for name in names]).reshape(-1, 2))
    dots = axes.transData.transform(grid.path)
    sizes = np.array([name.get_window_extent().size for name in names]).reshape(-1, 2)
    ends = {tuple(grid.path[k]) for part in grid.parts.values() for k in (part.start, part.stop - 1)}
    always = {0, len(names) - 1} | {k for k, name in enumerate(names) if tuple(name.xy) in ends}
    point = axes.figure.dpi / 72
    taken = np.vstack((around(dots, DOT * point), around(dots[-1:], STAR * point), _outside(axes)))
    found = corners_with_room(points, sizes, GAP * point, taken, always)
    for k, name in enumerate(names):
        if k not in found:
            name.remove()
            continue
        right, up = found[k]
        name.set(position=(GAP * right, GAP * up), ha="left" if right > 0 else "right")
        name.set_va("bottom" if up > 0 else "top")


def _outside(axes: Any) -> Array:
    """The boxes beyond the four sides of the axes, where other things stand."""
    left, bottom, right, top = axes.bbox.extents
    far = np.inf
    return np.array(
        [(-far, -far, left, far), (right, -far, far, far), (-far, -far, far, bottom), (-far, top, far, far)]
    )


def ends_of_line(grid: LossGrid) -> tuple[str, str]:
    """What the ends of a line are called: their runs, or their numbers."""
    start, end = grid.runs or [f"{grid.unit} {number}" for number in (grid.numbers[0], grid.numbers[-1])]
    return start, end


def _names(grid: LossGrid) -> list[str]:
    """What the checkpoints are called: their number, or their run where it has no other."""
    names = [str(number) for number in grid.numbers]
    for run, part in grid.parts.items():
        if run and len(part) == 1:
            names[part.start] = run
    return names


def _around(along: Array, place: float) -> tuple[float, float]:
    """Half a step to each side."""
    half = (along[1] - along[0]) / 2 if len(along) > 1 else 0.5
    return place - half, place + half


def _axis(grid: LossGrid, axis: int) -> str:
    if axis < grid.explained_variance.size:
        return f"direction {axis + 1} ({grid.explained_variance[axis]:.1%} of the variance)"
    if axis < len(grid.eigenvalues):
        return f"direction {axis + 1} (eigenvalue {grid.eigenvalues[axis]:.4g})"
    return f"direction {axis + 1}"


def _centre(grid: LossGrid) -> str:
    return f"centre: true loss {grid.true_loss[-1]:.4g}, in the plane {grid.path_loss[-1]:.4g}"
