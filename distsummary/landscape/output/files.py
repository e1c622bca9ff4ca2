"""A loss grid as a file: the suffix names the format."""

from collections.abc import Callable
from pathlib import Path

from distsummary.checks import check_choice
from distsummary.landscape.output.draw import FORMATS as PICTURES
from distsummary.landscape.output.draw import draw
from distsummary.landscape.output.grid import LossGrid
from distsummary.landscape.output.h5 import to_h5
from distsummary.landscape.output.npz import to_npz
from distsummary.landscape.output.vtp import to_vtp
from distsummary.publish import publish

ENCODERS: dict[str, Callable[[LossGrid], bytes]] = {
    ".npz": to_npz,
    ".vtp": to_vtp,
    ".h5": to_h5,
    ".hdf5": to_h5,
}


def save_grid(grid: LossGrid, path: Path) -> None:
    """Write the grid; raises InvalidValueError for a suffix of no format, RunDirError when it fails."""
    suffix = path.suffix.lower()
    check_choice(f"the suffix of {path.name!r}", suffix, ENCODERS)
    publish(path, ENCODERS[suffix](grid))


def save_picture(grid: LossGrid, path: Path, kind: str) -> None:
    """Write a picture; raises as `save_grid`, and InvalidValueError for an unknown kind."""
    suffix = path.suffix.lower()
    check_choice(f"the suffix of {path.name!r}", suffix, [f".{name}" for name in PICTURES])
    publish(path, draw(grid, kind, suffix[1:]))
