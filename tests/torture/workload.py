"""What the harness sends: event n of a seed is always the same, so that the judge can compute it."""

import struct
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MINDSPORE = "mindspore"
TENSORBOARD = "tensorboard"
DIALECTS = (MINDSPORE, TENSORBOARD)
TENSORBOARD_PLUGINS = ("scalar", "histogram", "image")  # what its dialect has a place for
LINEAGE_KEY = "n"  # the entry of the custom lineage that holds the number of its event
SCALAR = "loss"  # the tag that every summary has
RANKED_TAGS = frozenset({SCALAR, "m0", "m1", "m2", "weights/a b", "bulk", "grads"})  # of `ranked_event`
_SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 3.4028234663852886e38, 1e-45)
_KINDS = (
    ("scalars",) * 44 + ("tensor",) * 7 + ("histogram",) * 6 + ("image",) * 4 + ("bulk", "graph", "lineage")
)


class ValueSpec(NamedTuple):
    """One value: `data` is a float, an array float32, the bytes of a PNG or, of a graph, its name."""

    plugin: str
    tag: str
    data: Any


class EventSpec(NamedTuple):
    """Event number `n`, which is also its step; `wall_time` in seconds since the epoch."""

    n: int
    wall_time: float
    values: tuple[ValueSpec, ...]

    def expected(self, dialect: str) -> dict[str, str]:
        """Tag -> fingerprint of what a file of the dialect must hold; empty if it has no place for it."""
        kept = [value for value in self.values if value.plugin != "lineage"]
        if dialect == TENSORBOARD:
            kept = [value for value in kept if value.plugin in TENSORBOARD_PLUGINS]
        return {value.tag: fingerprint(value.plugin, value.data) for value in kept}


def event(seed: int, n: int, bulk: int = 2000, tags: int = 0) -> EventSpec:
    """Event n >= 1 of a seed.

    `bulk` is the number of elements of its rare large tensors, `tags` how many more scalars those events have
    that hold scalars alone.
    """
    draw = zlib.crc32(f"{seed}/{n}".encode())
    kind = _KINDS[draw % len(_KINDS)]
    if (kind == "bulk" and draw >> 12 & 1) or (kind == "lineage" and draw >> 12 & 3):
        kind = "scalars"
    wall_time = 1_700_000_000.0 + n / 8
    if kind == "graph":
        return EventSpec(n, wall_time, (ValueSpec("graph", "", f"graph-{n}"),))
    if kind == "lineage":
        return EventSpec(n, wall_time, (ValueSpec("lineage", LINEAGE_KEY, n),))
    values = [ValueSpec("scalar", f"m{i}", _scalar(draw + i)) for i in range(draw >> 8 & 3)]
    values.append(ValueSpec("scalar", SCALAR, _scalar(draw)))
    match kind:
        case "scalars":
            values += [
                ValueSpec("scalar", f"wide/{i // 10}/{i % 10}", _scalar(draw + i)) for i in range(tags)
            ]
        case "tensor":
            values.append(ValueSpec("tensor", "weights/a b", numbers(draw, 1 + (draw >> 10) % 300)))
        case "bulk":
            values.append(ValueSpec("tensor", "bulk", numbers(draw, bulk)))
        case "histogram":
            values.append(ValueSpec("histogram", "grads", numbers(draw, 1 + (draw >> 10) % 500)))
        case "image":
            values.append(ValueSpec("image", "picture", png(draw >> 10 & 15)))
    return EventSpec(n, wall_time, tuple(values))


def ranked_event(seed: int, rank: int, n: int) -> EventSpec:
    """Step n >= 1 of a rank of many: as `event`, but without graphs, lineage and encoded images."""
    spec = event(seed * 64 + rank, n, bulk=20_000)
    kept = tuple(value for value in spec.values if value.plugin in ("scalar", "tensor", "histogram"))
    return spec._replace(values=kept or (ValueSpec("scalar", SCALAR, float(n)),))


def numbers(draw: int, count: int) -> NDArray[np.float32]:
    """`count` numbers in [0, 1) that depend on `draw` alone."""
    mixed = np.arange(draw, draw + count, dtype=np.uint64) * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)
    return ((mixed >> np.uint64(8)).astype(np.float64) / 2**24).astype(np.float32)


def _scalar(draw: int) -> float:
    if draw % 61 == 0:
        return _SPECIAL[draw // 61 % len(_SPECIAL)]
    return (draw % 1_000_003) / 1024 - 300.0


@lru_cache(maxsize=16)
def png(draw: int, side: int = 12) -> bytes:
    """A true PNG of side x side grey pixels of noise."""
    pixels = (numbers(draw, side * side) * 255).astype(np.uint8).reshape(side, side)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def fingerprint(plugin: str, data: Any) -> str:
    """What two values of a plugin must share to be the same value."""
    match plugin:
        case "scalar":
            return f"scalar {np.float32(data).tobytes().hex()}"
        case "tensor":
            return f"tensor {data.size} {zlib.crc32(data.tobytes()):08x}"
        case "histogram":
            return f"histogram {data.size} {float(data.min())!r} {float(data.max())!r}"
        case "image":
            return f"image {zlib.crc32(data):08x}"
    return f"{plugin} {data}"
