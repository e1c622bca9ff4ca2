"""Checks the frames and headers of landscape journals, from which unfinished landscapes resume."""

from collections.abc import Iterator
from pathlib import Path

from distsummary.base.json_door import parse_json
from distsummary.cli.findings import Finding, finding
from distsummary.cli.fsck_files import limited
from distsummary.errors import DamagedFileError
from distsummary.events.segment import is_live
from distsummary.format.frames import read_frames, whole_length
from distsummary.landscapes.run.journal import JournalHeader
from distsummary.rundir.run_dir import RunDir


def check_journals(paths: list[Path]) -> list[Finding]:
    """Returns what is wrong with the journals; an empty journal counts as absent and gives no finding."""
    findings: list[Finding] = []
    for path in paths:
        try:
            findings += limited(path, _check_journal(path))
        except OSError as error:
            findings.append(finding(path, "unreadable", f"it cannot be read: {error.strerror or error}"))
    return findings


def _check_journal(path: Path) -> Iterator[Finding]:
    """Yields what is wrong with one journal."""
    end = 0
    for frame in read_frames(path, resync=True):
        end = frame.end
        if frame.offset:
            if frame.damage:
                yield finding(path, "journal_damaged", frame.damage, offset=frame.offset)
            continue
        # The first frame is the header. It holds the plan (the landscape's settings); the file's name holds a
        # digest of the plan. If the two do not match, the landscape cannot be resumed.
        if frame.damage:
            yield finding(path, "journal_foreign", f"its header is damaged: {frame.damage}", offset=0)
            continue
        try:
            plan = parse_json(frame.payload, JournalHeader, name="its first frame")["plan"]
        except DamagedFileError as error:
            text = f"its first frame is not the header of a journal ({error})"
            yield finding(path, "journal_foreign", text, offset=0)
            continue
        named = RunDir(path.parent).landscape_journal(plan).name
        if named != path.name:
            yield finding(path, "journal_foreign", f"its header belongs to {named}", offset=0)
    size = path.stat().st_size
    if size > end and is_live(path):
        text = "its landscape is being evaluated: the last frame is not complete yet"
        yield finding(path, "live", text, offset=end)
    elif size > end:
        text = f"its last frame is torn, {size - end} bytes: the landscape continues without it"
        yield finding(path, "journal_torn", text, offset=end, repairable=whole_length(path) == end)
