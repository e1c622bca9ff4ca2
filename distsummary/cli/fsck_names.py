"""Checks how viewers interpret the names of the files in a directory; opens no file."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from distsummary.base.publish import TEMPORARY, is_in_use
from distsummary.cli.findings import Finding, finding
from distsummary.events.segments import LINEAGE_SUFFIX, stamp_of
from distsummary.format.records import MINDSPORE, TENSORBOARD

LINEAGE = "lineage"
_OWNERS = {  # result of `is_in_use` -> what to say about the temporary file
    True: "its process is at work and will rename it",
    False: "its process ended before renaming it",
    None: "it belongs to another machine, a container or another program",
}
_MINDINSIGHT = re.compile(r"summary\.(\d+)")  # used with search: it matches anywhere in a name
_TENSORBOARD = re.compile(r"tfevents(?:\.(\d+))?")
_BACKUP = re.compile(r"(~|\.(bak|old|orig|swp|part|gz|zip|tmp|idx|bin)|\(copy\).*| copy)$", re.IGNORECASE)
_EVENT_FILE = re.compile(r"^events\.out\.|_MS$|_lineage$")
_STAMP_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFile:
    """A file that a viewer takes for an event file; `kind` is a dialect or "lineage"."""

    path: Path
    kind: str
    stamp: str


def event_file(path: Path) -> EventFile | None:
    """Classify a file as viewers do, by its name alone; None if they ignore it.

    The lineage of one of several ranks counts, although only merges read it.
    """
    if path.name.endswith("_explain"):
        return None
    if match := _TENSORBOARD.search(path.name):
        return EventFile(path=path, kind=TENSORBOARD, stamp=match[1] or "")
    if match := _MINDINSIGHT.search(path.name):
        kind = LINEAGE if path.name.endswith(LINEAGE_SUFFIX) else MINDSPORE
        return EventFile(path=path, kind=kind, stamp=match[1])
    if path.name.endswith(LINEAGE_SUFFIX) and (stamp := stamp_of(path.name)) is not None:
        return EventFile(path=path, kind=LINEAGE, stamp=f"{stamp:010d}")  # of one of several ranks
    return None


def in_reading_order(files: list[EventFile]) -> list[EventFile]:
    """The files in the order in which viewers read them: by rising stamp; equal stamps by descending name."""
    by_name = sorted(files, key=lambda file: file.path.name, reverse=True)
    return sorted(by_name, key=lambda file: int(file.stamp or 0))


def check_names(directory: Path) -> tuple[list[EventFile], list[Finding]]:
    """Returns the event files of a directory in reading order, and what is wrong with the names there.

    A symbolic link to an event file, or to a directory that holds event files, is reported; the files behind
    it are not checked. Raises OSError for a directory that cannot be read.
    """
    files: list[EventFile] = []
    findings: list[Finding] = []
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = directory / entry.name
            file = event_file(path)
            if entry.is_symlink():
                if file is not None:
                    findings.append(finding(path, "symlink", "a symbolic link to an event file"))
                elif path.is_dir():
                    with contextlib.suppress(OSError):
                        if any(event_file(inner) for inner in path.iterdir()):
                            text = "a symbolic link to a directory of event files"
                            findings.append(finding(path, "symlink", text))
            elif entry.name.startswith(TEMPORARY):
                findings.append(
                    finding(path, "temporary", f"a temporary file or directory: {_OWNERS[is_in_use(path)]}")
                )
                files += [file] if file and entry.is_file(follow_symlinks=False) else []
            elif entry.is_file(follow_symlinks=False):
                findings += _name_findings(path, file)
                files += [file] if file else []
            elif file is not None and not entry.is_dir(follow_symlinks=False):
                findings.append(finding(path, "misnamed", "named like an event file, but not a regular file"))
    ordered = in_reading_order(files)
    by_stamp = sorted(files, key=lambda file: (file.kind, file.stamp, file.path.name))
    for (kind, stamp), group in groupby(by_stamp, key=lambda file: (file.kind, file.stamp)):
        _, *others = [file.path for file in group]
        if stamp:
            text = f"a second {kind} file with the stamp {stamp}"
            findings += [finding(path, "equal_stamps", text) for path in others]
    return ordered, findings


def _name_findings(path: Path, file: EventFile | None) -> Iterator[Finding]:
    name = path.name
    if file is None:
        if _EVENT_FILE.search(name):
            yield finding(
                path,
                "misnamed",
                "no viewer finds it: its name contains neither 'summary.<seconds>' nor tfevents",
            )
        return
    if _BACKUP.search(name):
        yield finding(path, "misnamed", "it looks like a backup, but viewers read it as an event file")
    elif file.kind == TENSORBOARD and _MINDINSIGHT.search(name):
        yield finding(path, "misnamed", "both viewers read it, and one file cannot serve both")
    elif len(file.stamp) > _STAMP_DIGITS and file.kind != TENSORBOARD:
        text = f"the stamp {file.stamp} is not a time in seconds: MindInsight's list of all runs stays empty"
        yield finding(path, "stamp", text)
    elif len(file.stamp) != _STAMP_DIGITS and file.stamp:
        yield finding(path, "short_stamp", f"the stamp {file.stamp} does not have ten digits")
    elif stamp_of(name) is None:
        yield finding(
            path, "misnamed", "viewers read it, but distsummary does not: a dot must follow the stamp"
        )
