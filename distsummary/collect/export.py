"""Tensors as .npy files beside the events."""

import hashlib
import io
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from distsummary.events.records import Value
from distsummary.publish import ensure_directory, publish

MAX_NAME = 200  # bytes; file systems take 255


def export_npy(directory: Path, tag: str, step: int, array: NDArray[Any]) -> Path:
    """Write `<tag>_<step>.npy` into `directory`, whole or not at all; the array keeps its dtype and shape.

    The tag is percent-quoted; a long one is cut and made unique by its SHA-256.

    Raises RunDirError when the directory cannot be made, OSError when the file cannot be written.
    """
    name = quote(tag, safe="")
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 17]}-{hashlib.sha256(tag.encode()).hexdigest()[:16]}"
    if name.startswith("."):
        name = f"%2E{name[1:]}"  # quote() keeps dots, and a hidden file is not found
    ensure_directory(directory)
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    path = directory / f"{name}_{step}.npy"
    publish(path, buffer.getvalue())
    return path


def export_value(directory: Path, value: Value, step: int) -> Path:
    """Export a tensor that was recorded at a step, waiting for its device."""
    return export_npy(directory, value.tag, step, np.asarray(value.data.result()))
