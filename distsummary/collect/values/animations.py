"""Encodes a video as an animated GIF, a picture that TensorBoard, browsers and the page show moving."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.base.extras import extra
from distsummary.errors import InvalidValueError
from distsummary.format.frames import MAX_PAYLOAD
from distsummary.format.records import Image

DEFAULT_FPS = 4.0


def animation(field: str, frames: NDArray[Any], fps: float = DEFAULT_FPS) -> Image:
    """The video as a GIF without end, of 256 colors a frame.

    Args:
        field: names the video in messages.
        frames: (T, C, H, W) with C of 1 or 3; uint8, or floats in [0, 1], outside of which they are clipped.
        fps: frames a second, in (0, 100].

    Raises:
        InvalidValueError: a wrong shape, dtype or fps; too many elements.
        MissingExtraError: pillow is not installed.
    """
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
    pixels = frames if kind == "u" else (frames * 255).clip(0, 255).astype(np.uint8)
    pictures = [pil.fromarray(frame[0] if shape[1] == 1 else np.moveaxis(frame, 0, -1)) for frame in pixels]
    file = io.BytesIO()
    pictures[0].save(
        file, "GIF", save_all=True, append_images=pictures[1:], duration=round(1000 / fps), loop=0
    )
    return Image(height=shape[2], width=shape[3], colorspace=shape[1], encoded=file.getvalue())
