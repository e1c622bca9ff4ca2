"""A picture of a loss grid: contours with the path on them, and true against in-plane loss along it."""

import io
from typing import Any

import numpy as np

from distsummary.errors import MissingExtraError
from distsummary.landscape.directions import Array
from distsummary.landscape.grid import LossGrid, finite_bounds

DPI = 120
LEVELS = 24
MAX_LABELS = 12
LARGEST = 1e30  # matplotlib fills up to 1e250


def draw(grid: LossGrid) -> bytes:
    """The grid as a PNG. No global state of matplotlib is touched; raises MissingExtraError without it."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "pictures of landscapes need matplotlib; run: pip install 'distsummary[report]'",
            name="matplotlib",
        ) from error
    has_path = len(grid.numbers) > 1
    figure = Figure(figsize=(11.0 if has_path else 6.6, 5.4), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(
        1, 2 if has_path else 1, squeeze=False, width_ratios=[1.6, 1] if has_path else [1]
    )[0]
    _draw_contours(figure, panels[0], grid)
    if has_path:
        _draw_losses(panels[1], grid)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_contours(figure: Any, axes: Any, grid: LossGrid) -> None:
    from matplotlib.colors import BoundaryNorm

    shown = np.ma.masked_invalid(
        np.clip(grid.z, -LARGEST, LARGEST, where=np.isfinite(grid.z), out=grid.z.copy())
    )
    levels = contour_levels(shown.filled(np.nan))
    axes.set_facecolor("0.75")  # seen where the loss is not finite
    norm = BoundaryNorm(levels, 256)
    filled = axes.contourf(grid.x, grid.y, shown, levels=levels, norm=norm, cmap="viridis", extend="both")
    axes.contour(grid.x, grid.y, shown, levels=levels, colors="white", linewidths=0.4, alpha=0.5)
    ticks = levels[:: max(1, LEVELS // 8)]
    figure.colorbar(filled, ax=axes, label="loss", ticks=ticks, format=lambda value, _: f"{value:.3g}")
    if len(grid.numbers) > 1:
        axes.plot(*grid.path.T, "-o", color="black", markerfacecolor="white", markersize=4.5, linewidth=1.2,
                  label="path of the training")  # fmt: skip
        every = -(-len(grid.numbers) // MAX_LABELS)
        box = {"fc": "white", "ec": "none", "alpha": 0.6, "pad": 1}
        for k in range(0, len(grid.numbers) - 1, every):
            axes.annotate(str(grid.numbers[k]), grid.path[k], xytext=(5, 4), textcoords="offset points",
                          fontsize=8, color="black", bbox=box)  # fmt: skip
    label = f"centre: true loss {grid.true_loss[-1]:.4g}, in the plane {grid.path_loss[-1]:.4g}"
    axes.plot(0.0, 0.0, "*", color="red", markeredgecolor="white", markersize=14, label=label)
    axes.legend(loc="upper left", fontsize=8, framealpha=0.85)
    shares = [f" ({share:.1%} of the variance)" for share in grid.explained_variance] or ["", ""]
    axes.set(xlabel=f"direction 1{shares[0]}", ylabel=f"direction 2{shares[1]}", title=_title(grid))


def _draw_losses(axes: Any, grid: LossGrid) -> None:
    axes.plot(grid.numbers, grid.true_loss, "-o", markersize=4, label="true loss of the checkpoint")
    axes.plot(grid.numbers, grid.path_loss, "--s", markersize=4, label="loss of its shadow in the plane")
    worst = float(np.max(grid.residuals[:-1]))
    low, high = finite_bounds(grid.true_loss, grid.path_loss)
    if low > 0 and high > 10 * low:
        axes.set_yscale("log")
    axes.set(xlabel=grid.unit, ylabel="loss", title=f"along the path, up to {worst:.0%} outside the plane")
    axes.title.set_fontsize("medium")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _title(grid: LossGrid) -> str:
    if grid.decomposition == "PCA":
        return f"{grid.unit}s {grid.numbers[0]} to {grid.numbers[-1]}, PCA plane ({grid.mode})"
    where = f"{grid.unit} {grid.numbers[-1]}" if grid.numbers else "the model"
    return f"around {where}, random plane ({grid.normalization} normalisation)"


def contour_levels(z: Array) -> Array:
    """Rising levels over the finite losses: in equal ratios where these span more than a factor of 20."""
    low, high = finite_bounds(z)
    if not high > low:
        return np.array([low - 0.5, low + 0.5])
    is_wide = low > 0 and high > 20 * low
    return np.geomspace(low, high, LEVELS) if is_wide else np.linspace(low, high, LEVELS)
