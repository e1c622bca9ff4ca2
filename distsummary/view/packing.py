"""A page's data as one JSON text and one block of bytes, which a browser reads without a library.

An array becomes `{"$": [type, place, count]}`; its bytes lie in the block, all first bytes of the numbers,
then all second ones and so on, which deflate makes smaller. Equal arrays are in the block once.
"""

import base64
import json
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.format import json_values

Array = NDArray[Any]

_TYPES = {"f4": "f4", "f8": "f8", "i4": "i4", "u1": "u1", "u2": "u2", "u4": "u4"}
_LEVEL = 6
_EXACT = 1 << 53  # up to which all whole numbers are numbers of JavaScript


def embedded(page: dict[str, Any]) -> tuple[str, str]:
    """As `packed`: the JSON text without `<`, `>` and `&`, so that it can stand in HTML, and the block,
    compressed, in base64.
    """
    text, block = packed(page)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text, base64.b64encode(zlib.compress(block, _LEVEL)).decode("ascii")


def sent(page: dict[str, Any]) -> bytes:
    """As `packed`, for a response: four bytes with the length of the JSON text, this text, and the block."""
    text, block = packed(page)
    return len(text).to_bytes(4, "little") + text.encode("ascii") + block


def packed(page: dict[str, Any]) -> tuple[str, bytes]:
    """The JSON text, in ASCII, and the block.

    Args:
        page: dicts, lists, texts, numbers, and arrays of float32, float64, int32 or unsigned whole numbers.
            NaN and infinities are in arrays only: those of others, which files of others have, become null.

    Raises TypeError for another type.
    """
    block = bytearray()
    places: dict[tuple[str, bytes], int] = {}

    def put(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} cannot be in the data of a page")
        kind = _TYPES[value.dtype.newbyteorder("=").str[1:]]
        data = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        # Bytes of equal significance are often alike, and compress better side by side.
        raw = data.reshape(-1, 1).view(np.uint8).T.tobytes()
        place = places.setdefault((kind, raw), len(block))
        if place == len(block):
            block.extend(raw)
        return {"$": [kind, place, int(data.size)]}

    text = json.dumps(_finite(page), default=put, allow_nan=False, separators=(",", ":"))
    return text, bytes(block)


def _finite(value: Any) -> Any:
    """The data of a page without NaN and infinities."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(_finite, value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(value: Any) -> Any:
    """A value as JSON has it, see `json_values.plain`; whole numbers that a browser would round are texts."""
    return json_values.plain(value, most=_EXACT)


def rounded(values: Array) -> Array:
    """Floats with three digits left, whose other bits are 0 and take no place in the file."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Adding half of the lowest kept bit rounds what is cleared; a NaN may become another number by it.
    rounded = ((bits + np.uint32(0x800)) & np.uint32(0xFFFFF000)).view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), rounded)


def offsets(numbers: Array) -> Array:
    """Whole numbers from 0 in the smallest type; those below 0 become 0."""
    numbers = np.maximum(numbers, 0)
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def small(steps: Array) -> Array:
    """Steps as int32 where they fit, else as floats, which are exact up to 2**53."""
    fits = not steps.size or (steps.min() >= -(2**31) and steps.max() < 2**31)
    return steps.astype(np.int32 if fits else np.float64)
