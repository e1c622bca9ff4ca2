"""Draws a matplotlib figure as an array of pixels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.base.extras import extra
from distsummary.base.guard import passes
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.frames import MAX_PAYLOAD


def drawn(field: str, figure: Any) -> NDArray[np.uint8]:
    """The figure as it is now, (1, 3, H, W), at its own dpi; transparent places become white.

    pyplot is not used, and the figure stays open, on its own canvas. `field` names the figure in messages.

    Raises:
        MissingExtraError: matplotlib is not installed. InvalidTypeError: `figure` is no matplotlib Figure.
        InvalidValueError: it is too large, or matplotlib cannot draw it.
    """
    agg = extra(field, "matplotlib.backends.backend_agg")
    kind = extra(field, "matplotlib.figure").Figure
    if not isinstance(figure, kind):
        raise InvalidTypeError(
            f"{field} must be one matplotlib.figure.Figure, got {type(figure).__name__}; of axes, pass "
            "axes.figure; of several figures, pass each under a name of its own"
        )
    width, height = (int(size) for size in figure.bbox.size)
    if not 0 < 4 * width * height <= MAX_PAYLOAD:
        raise InvalidValueError(
            f"{field} must have 1 to {MAX_PAYLOAD // 4} pixels, got {width} x {height}; "
            "change its size or dpi"
        )
    was_stale = figure.stale
    try:
        renderer = agg.RendererAgg(width, height, figure.dpi)
        figure.draw(renderer)
        rgba = np.asarray(renderer.buffer_rgba())
    except Exception as error:  # formulas, fonts, sizes and artists of the user may raise anything
        if passes(error, is_door=False):
            raise
        raise InvalidValueError(
            f"{field} cannot be drawn: {type(error).__name__}: {' '.join(str(error).split())}; "
            "figure.savefig shows where"
        ) from error
    finally:
        figure.stale = was_stale
    opacity = rgba[..., 3:].astype(np.float32) / 255
    rgb = np.rint(rgba[..., :3] * opacity + 255 * (1 - opacity)).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(rgb, -1, 0)[np.newaxis])
