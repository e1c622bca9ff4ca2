"""Journals beside that of a landscape: those of others, which were stopped, and what differs in them."""

import json
from collections.abc import Mapping
from pathlib import Path

from distsummary.format.frames import read_frames
from distsummary.tools.fsck_files import is_live
from distsummary.tools.fsck_journals import journals


def strays(own: Path, plan: Mapping[str, str]) -> dict[Path, list[str]]:
    """The other journals beside `own` that no process holds -> the parts of the plan that differ.

    No parts are named of one whose header cannot be read, or was written by another version.
    """
    return {path: _differences(path, plan) for path in journals(own.parent) if path != own and _is_left(path)}


def _is_left(path: Path) -> bool:
    try:
        return not is_live(path)
    except OSError:  # it is gone: its landscape was completed just now; or it is not ours to open
        return False


def _differences(path: Path, plan: Mapping[str, str]) -> list[str]:
    try:
        header = next(read_frames(path), None)
        known = dict(json.loads(header.payload)["plan"]) if header and not header.damage else {}
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if known.keys() != plan.keys():
        return []
    return [name for name in plan if known[name] != plan[name]]


def describe(found: Mapping[Path, list[str]]) -> str:
    """What lies there and what to do about it; "" where nothing does."""
    if not found:
        return ""
    names = [f"{path.name} ({', '.join(parts) or 'unknown'})" for path, parts in found.items()]
    folder = next(iter(found)).parent
    return (
        f"{folder} also holds what was computed of other landscapes that were stopped (in brackets what "
        f"differs from this one): {', '.join(names)}; each goes on when it is asked for with its own "
        "arguments, and resume=False does not remove it; if it is not wanted, delete the file"
    )
