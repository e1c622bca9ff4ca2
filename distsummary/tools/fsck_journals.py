"""The journals of landscapes in a directory: their frames and their header, not what was evaluated."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from distsummary.format.frames import Frame, read_frames, whole_length
from distsummary.run_dir import LANDSCAPE_JOURNAL, RunDir
from distsummary.tools.findings import Finding, finding
from distsummary.tools.fsck_files import is_live, limited


def journals(directory: Path) -> list[Path]:
    """The journals of a directory by name; links are not followed. Raises OSError where it cannot be read."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    return [directory / name for name in sorted(names) if LANDSCAPE_JOURNAL.fullmatch(name)]


def check_journals(paths: list[Path]) -> list[Finding]:
    """What is wrong with journals. An empty one is as good as none: nothing is said of it."""
    findings: list[Finding] = []
    for path in paths:
        try:
            findings += limited(path, _check_journal(path))
        except OSError as error:
            findings.append(finding(path, "unreadable", f"it cannot be read: {error.strerror or error}"))
    return findings


def _check_journal(path: Path) -> Iterator[Finding]:
    end = 0
    for frame in read_frames(path, resync=True):
        end = frame.end
        if not frame.offset:
            problem = _header_problem(path, frame)
            if problem:
                yield finding(path, "journal_foreign", problem, offset=0)
        elif frame.damage:
            yield finding(path, "journal_damaged", frame.damage, offset=frame.offset)
    size = path.stat().st_size
    if size > end and is_live(path):
        yield finding(
            path, "live", "its landscape is being drawn: the last frame is not whole yet", offset=end
        )
    elif size > end:
        text = f"its last frame is torn, {size - end} bytes: the landscape goes on without it"
        yield finding(path, "journal_torn", text, offset=end, repairable=whole_length(path) == end)


def _header_problem(path: Path, header: Frame) -> str:
    """Why the landscape that the file is named after cannot go on with it; "" if it can."""
    if header.damage:
        return f"its header is damaged: {header.damage}"
    try:
        plan = dict(json.loads(header.payload)["plan"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "its first frame is not the header of a journal"
    named = RunDir(path.parent).landscape_journal(plan).name
    return "" if named == path.name else f"its header is that of {named}"
