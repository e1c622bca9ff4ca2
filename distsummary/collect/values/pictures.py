"""Pictures of what a user gives: matplotlib figures, confusion matrices, and videos as animated GIFs."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.base.checks import check_number
from distsummary.base.extras import extra
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.frames import MAX_PAYLOAD
from distsummary.format.records import Image

MOST = 200  # classes of a confusion matrix
NUMBERED = 20  # up to so many, each cell shows its count
DEFAULT_FPS = 4.0


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
    # Drawing here must not make the figure look drawn on its own canvas.
    was_stale = figure.stale
    try:
        renderer = agg.RendererAgg(width, height, figure.dpi)
        figure.draw(renderer)
        rgba = np.asarray(renderer.buffer_rgba())
    except Exception as error:
        # Formulas, fonts, sizes and artists of the user may raise anything.
        raise InvalidValueError(
            f"{field} cannot be drawn: {type(error).__name__}: {' '.join(str(error).split())}; "
            "figure.savefig shows where"
        ) from error
    finally:
        figure.stale = was_stale
    return np.ascontiguousarray(np.moveaxis(on_white(rgba), -1, 0)[np.newaxis])


def array_of_pil(picture: Any) -> NDArray[Any]:
    """What a picture of PIL shows, (H, W) or (H, W, 3); transparent places become white.

    NumPy's view of it has the numbers in the file: places in a palette, 16 bits, shares of inks.
    """
    # Modes of numbers, which have the rules of arrays.
    if picture.mode in ("1", "L", "RGB", "I", "F"):
        return np.asarray(picture)
    if picture.mode.startswith("I;16"):
        return np.asarray(picture, np.float64) / 65535
    if picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        return on_white(np.asarray(picture.convert("RGBA")))
    return np.asarray(picture.convert("RGB"))


def on_white(rgba: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture (H, W, 4) on white, as far as it is transparent: (H, W, 3)."""
    opacity = rgba[..., 3:].astype(np.float32) / 255
    return np.rint(rgba[..., :3] * opacity + 255 * (1 - opacity)).astype(np.uint8)


def drawn_matrix(field: str, counts: NDArray[Any], classes: Sequence[str] | None = None) -> NDArray[np.uint8]:
    """The picture, (1, 3, H, W); the darkness of a cell is its share of the row.

    Args:
        field: names the matrix in messages.
        counts: (C, C), not negative: row i, column j counts samples of class i that were taken for class j.
        classes: the names of the C classes; by default their numbers.

    Raises InvalidValueError for wrong arguments, MissingExtraError: matplotlib is not installed.
    """
    shape = counts.shape
    # Sums of small dtypes overflow.
    counts = counts.astype(np.float64) if counts.dtype.kind == "f" else counts
    if len(shape) != 2 or shape[0] != shape[1] or not 1 <= shape[0] <= MOST or not (counts >= 0).all():
        raise InvalidValueError(
            f"{field} must have the shape (C, C), 1 <= C <= {MOST}, of counts >= 0, got {shape} of "
            f"{counts.dtype}; count with sklearn.metrics.confusion_matrix or torchmetrics"
        )
    size = shape[0]
    if classes is not None and len(classes) != size:
        raise InvalidValueError(f"classes of {field} must have {size} names, got {len(classes)}")
    figure = extra(field, "matplotlib.figure").Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot()
    # A class without samples has an empty row: divide it by 1.
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="actual")
    if classes is not None:
        axes.set_xticks(range(size), classes, rotation=90)
        axes.set_yticks(range(size), classes)
    for row, column in np.ndindex(size, size) if size <= NUMBERED else ():
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{counts[row, column]:g}", ha="center", va="center", color=color, fontsize=8)
    return drawn(field, figure)


def animation(field: str, frames: NDArray[Any], fps: float = DEFAULT_FPS) -> Image:
    """The video as a GIF without end, of 256 colors a frame.

    Args:
        field: names the video in messages.
        frames: (T, C, H, W) with C of 1 or 3; uint8, or floats in [0, 1], outside of which they are clipped.
        fps: frames a second, in (0, 100]. A GIF counts in hundredths of a second, and browsers show none for
            less than two of them: of more than 50 frames a second, some are left out.

    Raises:
        InvalidValueError: a wrong shape, dtype or fps; too many elements.
        MissingExtraError: pillow is not installed.
    """
    fps = check_number(f"fps of {field}", fps)
    if not 0 < fps <= 100:
        raise InvalidValueError(f"fps of {field} must be in (0, 100], got {fps}")
    shape, kind = frames.shape, frames.dtype.kind
    if len(shape) != 4 or shape[1] not in (1, 3) or 0 in shape or not (kind == "f" or frames.dtype == "u1"):
        raise InvalidValueError(
            f"{field} must have the shape (T, C, H, W) with C of 1 or 3, of uint8 or floats in [0, 1], got "
            f"{shape} of {frames.dtype}; use numpy.moveaxis, or astype"
        )
    if frames.size > MAX_PAYLOAD:
        raise InvalidValueError(
            f"{field} must have at most {MAX_PAYLOAD} elements, got {frames.size}; record fewer frames"
        )
    pil = extra(field, "PIL.Image")
    kept, durations = _timed(len(frames), fps)
    pixels = frames[kept]
    if kind == "f":
        # As in pictures, NaN is black. float16 has too few digits for the product.
        pixels = np.nan_to_num(pixels.astype(np.float32), nan=0, posinf=1, neginf=0).clip(0, 1) * 255
        pixels = pixels.astype(np.uint8)
    pictures = [pil.fromarray(frame[0] if shape[1] == 1 else np.moveaxis(frame, 0, -1)) for frame in pixels]
    file = io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0)
    return Image(height=shape[2], width=shape[3], colorspace=shape[1], encoded=file.getvalue())


def _timed(frames: int, fps: float) -> tuple[list[int], list[int]]:
    """The frames that a GIF shows, and for how many milliseconds each: whole hundredths of a second, of
    which a sum of many is right.
    """
    starts = [round(100 * frame / fps) for frame in range(frames + 1)]
    kept: list[int] = []
    for frame, start in enumerate(starts[:-1]):
        if not kept or start - starts[kept[-1]] >= 2:
            kept.append(frame)
    begun = [starts[frame] for frame in kept]
    return kept, [
        10 * max(2, end - start) for start, end in zip(begun, [*begun[1:], starts[-1]], strict=True)
    ]
