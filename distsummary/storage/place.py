"""Where a run is: on which node it is whole, and which directory of this host its ranks write."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from distsummary.base.publish import ensure_directory
from distsummary.errors import InvalidValueError, RunDirError

HOME = "DISTSUMMARY_HOME"  # the id, the name or the address of the node on which runs are whole
SPOOL = "DISTSUMMARY_SPOOL"  # the directory of spools of this host
HEAD = "node:__internal_head__"  # the resource of the head of a cluster
# File systems of one host; others may show the same directory on several.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "aufs", "tmpfs", "ramfs"}


def home_node(nodes: Iterable[Mapping[str, Any]], here: str, path: Path) -> str:
    """The id of the node on which the run at a path is whole.

    DISTSUMMARY_HOME names it; else it is this node for a path on a network file system, and the head of the
    cluster for others. Raises InvalidValueError if DISTSUMMARY_HOME names no living node.

    Args:
        nodes: what `ray.nodes()` says. here: the id of this node.
    """
    alive = [node for node in nodes if node["Alive"]]
    if wanted := os.environ.get(HOME):
        names = ("NodeID", "NodeManagerAddress", "NodeManagerHostname", "NodeName")
        for node in alive:
            if wanted in (node.get(name) for name in names):
                return str(node["NodeID"])
        known = ", ".join(sorted(str(node["NodeManagerAddress"]) for node in alive))
        raise InvalidValueError(
            f"{HOME} must be the id, the name or the address of a node that lives, got {wanted!r}; "
            f"the cluster has {known}"
        )
    if not is_on_local_disk(path):
        return here
    return next((str(node["NodeID"]) for node in alive if HEAD in node.get("Resources", {})), here)


def is_on_local_disk(path: Path, mounts: str | None = None) -> bool:
    """Whether a path, or what exists of it, is on a file system of this host alone.

    `mounts`: what /proc/self/mounts says.
    """
    if mounts is None:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    found, kind = "", ""
    for line in mounts.splitlines():
        _, place, this = line.split()[:3]
        place = place.replace("\\040", " ")
        # Of two mounts at one place, the later one hides the other.
        if path.is_relative_to(place) and len(place) >= len(found):
            found, kind = place, this
    return kind in LOCAL


def spool_of(home: Path, node: str) -> Path:
    """The directory in which the ranks of this host write a run that is whole at `home` on a node.

    It is private, below DISTSUMMARY_SPOOL or the system's temporary directory. Raises RunDirError if it
    cannot be made, or belongs to somebody else.
    """
    spool = spool_path(home, node)
    under = spool.parent
    if not under.exists():
        ensure_directory(under.parent)
        under.mkdir(0o700, exist_ok=True)
    found = under.lstat()
    if not os.path.isdir(under) or found.st_uid != os.getuid():
        raise RunDirError(f"the directory of spools, {under}, is not a directory of yours; name one: {SPOOL}")
    ensure_directory(spool)
    os.chmod(spool, 0o700)
    return spool


def spool_path(home: Path, node: str) -> Path:
    """The path of `spool_of`, which need not exist."""
    name = hashlib.blake2b(f"{node}\0{home}".encode(), digest_size=8).hexdigest()
    return spools_place() / f"{home.name[:40]}-{name}"


def spools_place() -> Path:
    """The directory of the spools of this host: DISTSUMMARY_SPOOL, or one in that for temporary files."""
    return Path(os.environ.get(SPOOL) or Path(tempfile.gettempdir(), f"distsummary-{os.getuid()}"))
