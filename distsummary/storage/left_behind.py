"""Spools of this host that no training writes: what they hold, and their removal.

A ship removes its spool when all of it is at home, so that these hold what has not arrived.
"""

import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from distsummary.events.segment import is_live
from distsummary.storage.place import spools_place
from distsummary.storage.spool import grows

QUIET_S = 60.0  # a spool in which a file was written since is that of a training: its heartbeats are written


class Spools(TypedDict):
    """The spools of this host.

    Attributes:
        place: the directory that they are in. free: bytes there.
        left: those that no training writes, in bytes by name. removed: those that were removed now, likewise.
    """

    place: str
    free: int
    left: dict[str, int]
    removed: dict[str, int]


def spools(clean: bool = False) -> Spools:
    """The spools of this host that no training writes; `clean` removes them."""
    place = spools_place()
    above = next(path for path in (place, *place.absolute().parents) if path.exists())
    found = Spools(place=str(place), free=shutil.disk_usage(above).free, left={}, removed={})
    for spool in sorted(place.iterdir()) if place.is_dir() else ():
        if spool.name.startswith(".") or not spool.is_dir() or _is_written(spool):
            continue
        size = sum(path.lstat().st_size for path in _files(spool))
        if clean:
            # A rank that begins now makes another one.
            shutil.rmtree(spool.rename(place / f".tmp-{uuid.uuid4().hex}"))
        found["removed" if clean else "left"][spool.name] = size
    return found


def _is_written(spool: Path) -> bool:
    """Whether a rank writes here: it locks its event files, and writes a heartbeat every few seconds."""
    try:
        if time.time() - spool.stat().st_ctime < QUIET_S:
            return True  # a rank has just arrived
        for path in _files(spool):
            if time.time() - path.lstat().st_mtime < QUIET_S or (grows(path.name) and is_live(path)):
                return True
    except FileNotFoundError:
        return True  # who writes has just replaced or removed it
    return False


def _files(spool: Path) -> Iterator[Path]:
    return (path for path in spool.rglob("*") if path.is_file() and not path.is_symlink())
