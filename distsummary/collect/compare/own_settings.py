"""own_settings: what a rank reports of its settings, seeds and versions, to be compared with other ranks."""

import platform
import random
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from distsummary.collect.provenance import versions
from distsummary.rundir.topology import environment

MAX_SHOWN = 80  # characters of a setting
_FRESH = 624  # the place in a Mersenne Twister's state from which nothing was drawn since it was seeded
_SEEDED_BY_ARRAY = 0x80000000  # its first word if it was not seeded by one number


def own_settings(config: Mapping[str, object]) -> dict[str, str | None]:
    """Name -> text; None: not known.

    Args:
        config: the user's settings by dotted names.
    """
    found: dict[str, str | None] = {f"config {name}": _shown(value) for name, value in config.items()}
    found["seed python"], found["seed numpy"] = _python_seed(), _numpy_seed()
    found["version python"] = platform.python_version()
    found |= {f"version {package}": version for package, version in versions().items()}
    found |= {f"environment {name}": value for name, value in environment().items()}
    found["digest of the script"] = _script()
    if "torch" in sys.modules:
        # This module imports torch, which is imported already.
        from distsummary.collect.compare.torch_checksums import torch_settings

        found |= torch_settings()
    return found


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[:MAX_SHOWN]}... ({len(text)} characters, digest {zlib.crc32(text.encode()):08x})"


def _python_seed() -> str | None:
    """A digest of the state of Python's generator, if nothing was drawn since it was seeded."""
    words = random.getstate()[1]
    return f"state {zlib.crc32(repr(words).encode()):08x}" if words[-1] == _FRESH else None


def _numpy_seed() -> str | None:
    """The seed of NumPy's generator, if nothing was drawn since; a digest of its state if it is no number."""
    state = np.random.get_state(legacy=False)
    inner = state["state"]
    if state["bit_generator"] != "MT19937" or inner["pos"] != _FRESH:
        return None
    first = int(inner["key"][0])
    return str(first) if first != _SEEDED_BY_ARRAY else f"state {zlib.crc32(inner['key'].tobytes()):08x}"


def _script() -> str | None:
    """A digest of the program's file; None if it has none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return None if path is None else f"{zlib.crc32(Path(path).read_bytes()):08x}"
    except OSError:
        return None
