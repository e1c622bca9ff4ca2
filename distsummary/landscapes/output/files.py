"""A loss grid as a file: the suffix names the format."""

from collections.abc import Callable
from pathlib import Path

from distsummary.checks import check_choice
from distsummary.errors import RunDirError
from distsummary.landscapes.output.draw import FORMATS as PICTURES
from distsummary.landscapes.output.draw import KINDS, draw
from distsummary.landscapes.output.grid import LossGrid
from distsummary.landscapes.output.h5 import to_h5
from distsummary.landscapes.output.npz import to_npz
from distsummary.landscapes.output.vtp import to_vtp
from distsummary.publish import publish, refuse_unlike_files

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
    _check_place(path)
    publish(path, ENCODERS[suffix](grid))


def save_picture(grid: LossGrid, path: Path, kind: str) -> None:
    """Write a picture; raises as `save_grid`, and InvalidValueError for an unknown kind."""
    suffix = path.suffix.lower()
    check_choice(f"the suffix of {path.name!r}", suffix, [f".{name}" for name in PICTURES])
    check_choice("kind", kind, KINDS)
    _check_place(path)
    publish(path, draw(grid, kind, suffix[1:]))


def _check_place(path: Path) -> None:
    """Raise RunDirError unless `path` lies in a directory that is there; before anything is encoded."""
    for parent in path.parents:
        if parent.is_dir():
            break
        if parent.exists():
            raise RunDirError(f"{path} cannot be written: {parent} is a file; choose another directory")
    if not path.parent.is_dir():
        raise RunDirError(f"{path} cannot be written: there is no directory {path.parent}; make it first")
    refuse_unlike_files(path)
