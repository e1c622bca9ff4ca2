"""Draws an array of pictures on one RGB canvas and encodes the canvas as PNG."""

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.records import Array, Image

COLUMNS = 8  # pictures per row of a canvas
TOLERANCE = 0.1  # of the largest value: so far interpolation takes floats beyond [0, 1]
ROUNDING = 1e-6  # so far rounding alone does
LAYOUTS = ("NCHW", "NHWC", "CHW", "HWC", "HW")  # N pictures, C channels; the first layout that fits is used


def encode_image(pictures: Array, *, compatibility: Compatibility = OURS) -> Image:
    """Draw pictures on one canvas, eight per row; unused places are black.

    The axes are one of LAYOUTS: (N, C, H, W), (N, H, W, C), (C, H, W), (H, W, C) or (H, W), where C is 1
    (grey) or 3 (RGB).

    Integers within 0..255 are kept; bool becomes black and white; floats within [0, 1], or beyond it by no
    more than TOLERANCE, are clipped, multiplied by 255 and rounded; any other array is stretched from its
    finite range to 0..255 (a constant array becomes black). NaN and -Inf are black, Inf is white. With
    `compatibility.images`, only (N, C, H, W) is accepted and the whole canvas is stretched, uint8 included,
    as MindSpore does.

    Raises InvalidTypeError for a dtype and InvalidValueError for a shape that cannot be drawn.
    """
    pictures = np.asarray(pictures)
    if pictures.dtype.kind not in "biuf" or pictures.dtype.itemsize > 8:
        raise InvalidTypeError(
            f"a picture is bool, integer or float of up to 64 bits, got {pictures.dtype}; convert the array"
        )
    layout = layout_of(pictures.shape, compatibility=compatibility)
    if layout.endswith("C"):
        pictures = np.moveaxis(pictures, -1, -3)
    pictures = pictures[(np.newaxis,) * (4 - len(layout))]  # (N, C, H, W)
    if compatibility.images:
        # MindSpore stretches the whole canvas, unused places included.
        canvas = _canvas(pictures.astype(np.float64)).astype(np.float32)
        low, high = canvas.min(), canvas.max()
        with np.errstate(invalid="ignore", over="ignore"):
            if low >= 0 and high <= 1:
                canvas = canvas * 255
            elif low != high:
                canvas = (canvas - low) * 255 / (high - low + 1)
            else:
                canvas = canvas - low
            pixels = canvas.astype(np.uint8)
    else:
        pixels = _canvas(_to_uint8(pictures))
    height, width, _ = pixels.shape
    return Image(height=height, width=width, encoded=encode_png(pixels))


def encode_png(pixels: Array) -> bytes:
    """PNG of (H, W, 3) uint8 pixels.

    The filter "Up" and zlib's run-length strategy take a ninth of the time of zlib's default, for 1 % more
    bytes. If the package's extra `isal` is installed, compression takes a quarter of that shorter time.
    """
    height, width, _ = pixels.shape
    rows = pixels.reshape(height, width * 3)
    filtered = np.empty((height, 1 + width * 3), np.uint8)
    filtered[:, 0] = 2  # filter "Up": each byte minus the byte above it, modulo 256
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    data = _deflate()(filtered.data)
    # 8 bits per channel, colour type 2 (RGB), deflate, adaptive filters, not interlaced
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"".join(
        (b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b""))
    )


@cache
def _deflate() -> Callable[[memoryview], bytes]:
    """The fastest installed compressor for zlib's format."""
    try:
        from isal import isal_zlib
    except ImportError:
        return _run_lengths
    return partial(isal_zlib.compress, level=1)


def _run_lengths(data: memoryview) -> bytes:
    deflate = zlib.compressobj(level=1, strategy=zlib.Z_RLE)
    return deflate.compress(data) + deflate.flush()


def _chunk(kind: bytes, data: bytes) -> bytes:
    # u32 length of data | kind | data | u32 crc32(kind, data), big-endian
    return b"".join(
        (struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind))))
    )


def layout_of(shape: Sequence[int], *, compatibility: Compatibility = OURS) -> str:
    """The first of LAYOUTS that fits a shape, where C must be 1 or 3 and no axis may be 0.

    With `compatibility.images`, only NCHW is tried. Raises InvalidValueError if no layout fits.
    """
    layouts = LAYOUTS[:1] if compatibility.images else LAYOUTS
    for layout in layouts:
        axes = dict(zip(layout, shape, strict=False))
        if len(shape) == len(layout) and 0 not in shape and axes.get("C", 1) in (1, 3):
            return layout
    shapes = " or ".join(f"({', '.join(layout)})" for layout in layouts)
    raise InvalidValueError(
        f"pictures must have the shape {shapes}, C 1 or 3 and no axis of 0, got {tuple(shape)}"
    )


def _canvas(pictures: Array) -> Array:
    """Place pictures (N, C, H, W) on a canvas (rows * H, columns * W, 3) of the same dtype."""
    number, channels, height, width = pictures.shape
    columns = min(number, COLUMNS)
    rows = -(-number // columns)
    canvas = np.zeros((rows, height, columns, width, 3), pictures.dtype)
    for place in range(number):
        tile = canvas[place // columns, :, place % columns]
        # One channel at a time takes a quarter of the time of a transposed copy.
        for colour in range(3):
            tile[:, :, colour] = pictures[place, colour % channels]
    return canvas.reshape(rows * height, columns * width, 3)


def _to_uint8(pictures: Array) -> Array:
    """uint8 pixels of bool, integer or float pictures, scaled as `encode_image` says."""
    if pictures.dtype.kind == "b":
        return pictures.astype(np.uint8) * np.uint8(255)
    if pictures.dtype.kind in "iu" and pictures.min() >= 0 and pictures.max() <= 255:
        return pictures.astype(np.uint8)
    pictures = pictures.astype(np.float64)
    finite = pictures[np.isfinite(pictures)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    beyond = max(ROUNDING, TOLERANCE * high)
    if low >= -beyond and high <= 1 + beyond:
        low, high = 0.0, 1.0
        pictures = pictures.clip(0, 1)
    # Halved, since the span of float64 values may exceed float64.
    half_span = high / 2 - low / 2 or 1.0
    scaled = (pictures / 2 - low / 2) / half_span * 255
    return np.rint(np.nan_to_num(scaled, nan=0, posinf=255, neginf=0)).astype(np.uint8)
