"""Checks the bytes, values and order of the event files of one directory; reads each file once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from distsummary.cli.findings import Finding, finding
from distsummary.cli.fsck_steps import StepOrder
from distsummary.errors import DamagedFileError
from distsummary.events.reader import decode_frame
from distsummary.events.segment import is_live
from distsummary.events.segments import LANDSCAPE, dialect_of, source_of
from distsummary.format.frames import read_frames, whole_length
from distsummary.format.norms import UnnamedNorms
from distsummary.format.records import MINDSPORE, TENSORBOARD

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
        try:
            findings += limited(path, _check_file(path, facts, steps.get(dialect_of(path))))
        except OSError as error:
            findings.append(finding(path, "unreadable", f"it cannot be read: {error.strerror or error}"))
    for one in steps.values():
        findings += one.findings()
    return facts, findings


def limited(path: Path, found: Iterator[Finding]) -> Iterator[Finding]:
    """Yield at most MAX_FINDINGS findings of each kind, then one finding that counts the rest of the kind."""
    counts: dict[str, int] = {}
    for one in found:
        counts[one.kind] = counts.get(one.kind, 0) + 1
        if counts[one.kind] <= MAX_FINDINGS:
            yield one
    for kind, count in counts.items():
        if count > MAX_FINDINGS:
            yield finding(path, kind, f"{count - MAX_FINDINGS} more of this kind in the file")


def _check_file(path: Path, facts: DirectoryFacts, steps: StepOrder | None) -> Iterator[Finding]:
    """Yield what is wrong with one file, and add its content to `facts` and `steps`."""
    if source_of(path.name) == LANDSCAPE:
        steps = None  # its loss is a copy, which the training's own takes the place of
    end = 0
    for frame in read_frames(path, resync=True):
        if frame.damage is not None and frame.end >= path.stat().st_size and whole_length(path) == end:
            break  # its end can be cut
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
        if ids.run_id and (owner in facts.owners or len(facts.owners) <= 1000):
            facts.owners[owner] = min(facts.owners.get(owner, event.wall_time), event.wall_time)
        if steps is not None and not steps.begin(path, frame.offset, ids, event):
            continue  # a copy of an earlier event: its values have been checked
        for value in event.values:
            if isinstance(value.data, UnnamedNorms):
                text = f"the norms of {len(value.data.columns['weight_sums'])} parameters without their names"
                yield finding(path, "norms_table", text, offset=frame.offset)
            if steps is not None:
                steps.take(value.plugin, value.tag, ids, event.step)
    size = path.stat().st_size
    if size > end and is_live(path):
        text = "a writer is at work: the last frame is not complete yet"
        yield finding(path, "live", text, offset=end)
    elif size > end:
        can_be_cut = whole_length(path) == end
        text = f"its last frame is torn ({size - end} bytes): MindInsight tries to read it again, forever"
        yield finding(path, "torn", text, offset=end, repairable=can_be_cut)
    elif not size and not is_live(path):
        yield finding(path, "empty", "the file has no event")
