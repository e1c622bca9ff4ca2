"""Whether each rank has a directory of its own, PREFIX0, PREFIX1 ..., as scripts of MindSpore name them.

A path that ends with the rank's number may also be that of all ranks, such as `runs/exp1`. So a rank whose
path does so leaves a note in its directory, and looks for two things: the note of the rank before or after it
in the directory with that number, or in its own directory the run.json of its job, made by another rank.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from distsummary.base.checked_json import read_json
from distsummary.base.guard import guarded_log
from distsummary.base.processes import pid_start_of
from distsummary.base.publish import ensure_directory, publish
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.run_records import NoteRecord
from distsummary.rundir.timeouts import NUMBERED_S
from distsummary.rundir.topology import Topology

logger = guarded_log(__name__)

NOTE = ".numbered.json"
_REMEDY = "remove it"
_LOOK_AGAIN_S = 0.05


def is_numbered(run_dir: RunDir, topology: Topology, *, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Whether the directory is this rank's alone; it then keeps the note, which `distsummary adopt` reads.

    Waits for at most NUMBERED_S, if the path ends with the rank's number and the ranks have a launcher.
    Raises RunDirError if the directory cannot be written.
    """
    own, name, size = topology.rank, run_dir.base.name, topology.world_size
    prefix = name.removesuffix(str(own))
    if size == 1 or prefix == name or not topology.incarnation:
        return False
    others = [run_dir.base.with_name(f"{prefix}{rank}") for rank in (own - 1, own + 1) if 0 <= rank < size]
    note = NoteRecord(rank=own, world_size=size, job=_job(topology))
    ensure_directory(run_dir.base)
    publish(run_dir.base / NOTE, json.dumps(note).encode())
    # The note of a neighbor shows that each rank has its own directory. An attempt of this start in the
    # run.json here, which only another rank can have entered, shows that all share one.
    for _ in range(round(NUMBERED_S / _LOOK_AGAIN_S)):
        if any((found := read_note(path)) and found["job"] == note["job"] for path in others):
            return True
        if any(map(partial(_is_of, topology), run_dir.read_manifest()["attempts"])):
            break
        sleep(_LOOK_AGAIN_S)
    else:
        logger.warning(
            "rank=%d waited %g s for another rank to write to %s or to %s; it is taken for the directory of "
            "all ranks", own, NUMBERED_S, run_dir.base, " or ".join(map(str, others)),
        )  # fmt: skip
    # All ranks share the directory: the note would make `distsummary adopt` believe the opposite.
    with suppress(FileNotFoundError):
        (run_dir.base / NOTE).unlink()
    return False


def read_note(path: Path) -> NoteRecord | None:
    """The note in a directory; None if there is none. Raises DamagedFileError if it is not one."""
    try:
        note: NoteRecord = read_json(path / NOTE, NoteRecord, remedy=_REMEDY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return note


def _is_of(topology: Topology, attempt: Mapping[str, Any]) -> bool:
    """Whether an attempt of a run.json is that of this start of the job."""
    return all(attempt[key] == getattr(topology, key) for key in ("world_size", "incarnation"))


def _job(topology: Topology) -> str:
    """A hash of what names this start of the job; if another may have the name, also of the launcher here."""
    launcher = "" if topology.is_incarnation_unique else f"{os.getppid()} {pid_start_of(os.getppid())}"
    return hashlib.blake2b(f"{topology.incarnation} {launcher}".encode(), digest_size=8).hexdigest()
