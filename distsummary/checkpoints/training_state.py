"""What a checkpoint holds of a training besides its model and optimizer, for `resume`.

Names of entries (see `object_state`):

    training/<rank>           of each rank: where it stands, its random numbers, the loss scale
    training/states/<name>    of an object in append_info
    training/modules          what modules keep beyond parameters and buffers
    training/optimizer        the class of the optimizer, the names and shapes of its parameters, odd states

Those of a rank that writes no part of the checkpoint are in `<stem>.training/<rank>.<suffix>` next to it.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distsummary.base.publish import ensure_directory
from distsummary.checkpoints.mapped import StoredState, text_in
from distsummary.checkpoints.model_file import (
    SUFFIXES,
    TEXT,
    TRAINING,
    Saved,
    State,
    numbers_in,
    read_model,
    stem_of,
    write_model,
)
from distsummary.checkpoints.object_state import state_of

FOLDER = ".training"
STATES = f"{TRAINING}states/"
MODULES, OPTIMIZER = f"{TRAINING}modules", f"{TRAINING}optimizer"


def rank_file(path: Path, rank: int) -> Path:
    """The file of a rank's training state next to the checkpoint at `path`."""
    suffix = path.suffix if path.suffix in SUFFIXES else SUFFIXES[0]
    return path.with_name(stem_of(path) + FOLDER) / f"{rank:05d}{suffix}"


def write_rank_file(path: Path, rank: int, state: State, *, key: bytes | None, mode: str) -> None:
    """Write a rank's training state next to the checkpoint at `path`; raises the errors of `write_model`."""
    own = rank_file(path, rank)
    ensure_directory(own.parent)
    write_model(own, state, key=key, mode=mode)


def remove_orphans(directory: Path, prefix: str, kept: Sequence[Saved]) -> None:
    """Remove the ranks' files of checkpoints that are gone; `kept` are those that stay, oldest first."""
    stems, oldest = {stem_of(one.path) for one in kept}, min(one.numbers for one in kept)
    for path in directory.glob(f"*{FOLDER}"):
        is_ours = re.fullmatch(rf"{re.escape(prefix)}-\d+_\d+", path.stem)
        # Newer files may be those of a checkpoint that is still being written.
        if is_ours and path.stem not in stems and numbers_in(path.stem) < oldest:
            shutil.rmtree(path, ignore_errors=True)


def training_state(
    path: Path, stored: StoredState, rank: int, *, key: bytes | None, mode: str
) -> dict[str, Any] | None:
    """The state of a rank in the checkpoint at `path`, opened as `stored`; None if it was not saved."""
    name = f"{TRAINING}{rank}"
    own = rank_file(path, rank)
    if not holds_state(name, stored):
        if not own.is_file():
            return None
        stored = read_model(own, key=key, mode=mode)
    state: dict[str, Any] = named_state(name, stored)
    return state


def saved_states(stored: StoredState) -> list[str]:
    """The names of the objects whose states are in a checkpoint."""
    names = {name.removeprefix(TEXT) for name in stored}
    return sorted(
        name.removeprefix(STATES)
        for name in names
        if name.startswith(STATES)
        # An array of a state has the name of the state and a number.
        and not (name.rpartition("/")[2].isdecimal() and name.rpartition("/")[0] in names)
    )


def holds_state(name: str, stored: StoredState) -> bool:
    """Whether a checkpoint has a state with this name."""
    return name in stored or TEXT + name in stored


def named_state(name: str, stored: StoredState) -> Any:
    """The state with this name in a checkpoint, which has it."""
    text = text_in(stored[TEXT + name]) if TEXT + name in stored else str(stored[name])
    return state_of(name, text, stored)
