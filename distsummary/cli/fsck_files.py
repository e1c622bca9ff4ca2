"""Checks the bytes of the files of frames of one directory, event files and journals; reads each once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from distsummary.cli.findings import Finding, finding
from distsummary.errors import DamagedFileError, reason
from distsummary.events.reader import decode_frame
from distsummary.events.segment import is_live
from distsummary.events.segments import dialect_of
from distsummary.format.frames import Frame, read_frames, whole_length
from distsummary.rundir.run_dir import LANDSCAPE_JOURNAL

MAX_FINDINGS = 20  # for each kind in one file; further findings are only counted


@dataclass(slots=True)
class DirectoryFacts:
    """What the files of a directory hold; a rebuilt manifest is made from these facts.

    `owners` maps each (run id, attempt) to the wall time (seconds) of its first event. `files` counts event
    files and journals, `events` the events.
    """

    owners: dict[tuple[str, int], float] = field(default_factory=dict)
    files: int = 0
    events: int = 0


def check_files(files: list[Path]) -> tuple[DirectoryFacts, list[Finding]]:
    """Read the event files and journals of a directory; returns what they hold and what is wrong."""
    facts = DirectoryFacts(files=len(files))
    return facts, [one for path in files for one in _limited(path, _check_file(path, facts))]


def _limited(path: Path, found: Iterator[Finding]) -> Iterator[Finding]:
    """Yield at most MAX_FINDINGS findings of each kind, then one finding that counts the rest of the kind."""
    counts: dict[str, int] = {}
    try:
        for one in found:
            counts[one.kind] = counts.get(one.kind, 0) + 1
            if counts[one.kind] <= MAX_FINDINGS:
                yield one
    except OSError as error:
        yield finding(path, "unreadable", f"it cannot be read: {reason(error)}")
    for kind, count in counts.items():
        if count > MAX_FINDINGS:
            yield finding(path, kind, f"{count - MAX_FINDINGS} more of this kind in the file")


def _check_file(path: Path, facts: DirectoryFacts) -> Iterator[Finding]:
    """Yield what is wrong with one file, and add its events to `facts`."""
    # A landscape reads the entries of its journal itself: only their bytes are checked here.
    is_journal = LANDSCAPE_JOURNAL.fullmatch(path.name) is not None
    end = 0
    for frame in read_frames(path, resync=True):
        # Only the end of the file is damaged: that is a torn tail, which can be cut.
        if frame.damage is not None and frame.end >= path.stat().st_size and whole_length(path) == end:
            break
        end = frame.end
        try:
            if not is_journal:
                _count_event(frame, path, facts)
            elif frame.damage is not None:
                raise DamagedFileError(frame.damage)
        except DamagedFileError as error:
            yield finding(path, "damaged", str(error), offset=frame.offset)
    size = path.stat().st_size
    if size > end and is_live(path):
        text = "a writer is at work: the last frame is not complete yet"
        yield finding(path, "live", text, offset=end)
    elif size > end:
        text = f"its last frame is torn ({size - end} bytes)"
        yield finding(path, "torn", text, offset=end, repairable=whole_length(path) == end)
    elif not size and not is_journal and not is_live(path):
        yield finding(path, "empty", "the file has no event")


def _count_event(frame: Frame, path: Path, facts: DirectoryFacts) -> None:
    """Add the event in a frame to `facts`; raises DamagedFileError."""
    decoded = decode_frame(frame, dialect_of(path), path)
    if decoded is None:
        return
    ids, event = decoded
    facts.events += 1
    owner = (ids.run_id, ids.attempt)
    # The number of owners is bounded, because a directory may hold the files of any number of runs.
    if ids.run_id and (owner in facts.owners or len(facts.owners) <= 1000):
        facts.owners[owner] = min(facts.owners.get(owner, event.wall_time), event.wall_time)
