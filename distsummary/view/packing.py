"""A page's data as one JSON text and one block of bytes, which a browser reads without a library.

An array becomes `{"$": [type, place, count]}`; its bytes lie in the block, all first bytes of the numbers,
then all second ones and so on, which deflate makes smaller. Equal arrays are in the block once.
"""

import base64
import json
import zlib
from typing import Any

import numpy as np

_TYPES = {"f4": "f4", "f8": "f8", "i4": "i4", "u1": "u1", "u2": "u2", "u4": "u4"}
_LEVEL = 6


def packed(page: dict[str, Any]) -> tuple[str, str]:
    """The JSON text, ASCII without `<`, `>` and `&`, so that it can stand in HTML, and the block in base64.

    Args:
        page: dicts, lists, texts, numbers, and arrays of float32, float64, int32 or unsigned whole numbers.
            NaN is allowed in arrays only.

    Raises ValueError for another number that is not finite, TypeError for another type.
    """
    block = bytearray()
    places: dict[tuple[str, bytes], int] = {}

    def put(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} cannot be in the data of a page")
        kind = _TYPES[value.dtype.newbyteorder("=").str[1:]]
        data = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        raw = data.reshape(-1, 1).view(np.uint8).T.tobytes()
        place = places.setdefault((kind, raw), len(block))
        if place == len(block):
            block.extend(raw)
        return {"$": [kind, place, int(data.size)]}

    text = json.dumps(page, default=put, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text, base64.b64encode(zlib.compress(bytes(block), _LEVEL)).decode("ascii")
