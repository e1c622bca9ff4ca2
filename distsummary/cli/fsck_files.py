"""Checks the files of frames of one directory, event files and journals of landscapes; reads each once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from distsummary.base.json_door import parse_json
from distsummary.cli.findings import Finding, finding
from distsummary.cli.fsck_steps import StepOrder
from distsummary.errors import DamagedFileError
from distsummary.events.reader import decode_frame
from distsummary.events.segment import is_live
from distsummary.events.segments import LANDSCAPE, dialect_of, source_of
from distsummary.format.frames import read_frames, whole_length
from distsummary.format.records import MINDSPORE, TENSORBOARD
from distsummary.landscapes.run.journal import JournalHeader
from distsummary.rundir.run_dir import RunDir

MAX_FINDINGS = 20  # for each kind in one file; further findings are only counted


@dataclass(slots=True)
class DirectoryFacts:
    """What the event files of a directory hold; findings and a rebuilt manifest are made from these facts.

    `owners` maps each (run id, attempt) to the wall time (seconds) of its first event.
    """

    owners: dict[tuple[str, int], float] = field(default_factory=dict)
    files: int = 0
    events: int = 0


def check_files(files: list[Path]) -> tuple[DirectoryFacts, list[Finding]]:
    """Read the event files of one directory, those of a dialect oldest first.

    Returns what they hold and what is wrong with them.
    """
    facts = DirectoryFacts(files=len(files))
    findings: list[Finding] = []
    steps = {dialect: StepOrder(dialect) for dialect in (MINDSPORE, TENSORBOARD)}
    for path in files:
        findings += _limited(path, _check_file(path, facts, steps.get(dialect_of(path))))
    for one in steps.values():
        findings += one.findings()
    return facts, findings


def check_journals(paths: list[Path]) -> list[Finding]:
    """Returns what is wrong with the journals; an empty journal counts as absent and gives no finding."""
    return [one for path in paths for one in _limited(path, _check_journal(path))]


def _limited(path: Path, found: Iterator[Finding]) -> Iterator[Finding]:
    """Yield at most MAX_FINDINGS findings of each kind, then one finding that counts the rest of the kind."""
    counts: dict[str, int] = {}
    try:
        for one in found:
            counts[one.kind] = counts.get(one.kind, 0) + 1
            if counts[one.kind] <= MAX_FINDINGS:
                yield one
    except OSError as error:
        yield finding(path, "unreadable", f"it cannot be read: {error.strerror or error}")
    for kind, count in counts.items():
        if count > MAX_FINDINGS:
            yield finding(path, kind, f"{count - MAX_FINDINGS} more of this kind in the file")


def _check_file(path: Path, facts: DirectoryFacts, steps: StepOrder | None) -> Iterator[Finding]:
    """Yield what is wrong with one file, and add its content to `facts` and `steps`."""
    # The loss in a landscape's file is a copy, which gives way to the training's own: no steps to compare.
    if source_of(path.name) == LANDSCAPE:
        steps = None
    end = 0
    for frame in read_frames(path, resync=True):
        # Only the end of the file is damaged: that is a torn tail, which can be cut.
        if frame.damage is not None and frame.end >= path.stat().st_size and whole_length(path) == end:
            break
        end = frame.end
        if not frame.payload and frame.damage is None:
            text = "an event of 0 bytes: MindInsight stops there"
            yield finding(path, "zero_frame", text, offset=frame.offset)
            continue
        try:
            decoded = decode_frame(frame, dialect_of(path), path)
        except DamagedFileError as error:
            yield finding(path, "damaged", str(error), offset=frame.offset)
            continue
        if decoded is None:
            continue
        ids, event = decoded
        facts.events += 1
        owner = (ids.run_id, ids.attempt)
        # The number of owners is bounded, because a directory may hold the files of any number of runs.
        if ids.run_id and (owner in facts.owners or len(facts.owners) <= 1000):
            facts.owners[owner] = min(facts.owners.get(owner, event.wall_time), event.wall_time)
        # The values of a copy of an earlier event have been checked already.
        if steps is not None and not steps.begin(path, frame.offset, ids, event):
            continue
        if steps is not None:
            for value in event.values:
                steps.take(value.plugin, value.tag, ids, event.step)
    yield from _check_tail(path, end, "torn", "MindInsight tries to read it again, forever")
    if not path.stat().st_size and not is_live(path):
        yield finding(path, "empty", "the file has no event")


def _check_journal(path: Path) -> Iterator[Finding]:
    """Yield what is wrong with one journal."""
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
    yield from _check_tail(path, end, "journal_torn", "the landscape continues without it")


def _check_tail(path: Path, end: int, kind: str, effect: str) -> Iterator[Finding]:
    """Yield the finding of a last frame that is not whole; the frames before it end at byte `end`."""
    size = path.stat().st_size
    if size > end and is_live(path):
        text = "a writer is at work: the last frame is not complete yet"
        yield finding(path, "live", text, offset=end)
    elif size > end:
        text = f"its last frame is torn ({size - end} bytes): {effect}"
        yield finding(path, kind, text, offset=end, repairable=whole_length(path) == end)
