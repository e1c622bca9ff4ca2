"""One directory's event files, read once and judged: the bytes, the values, and how the files go together."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from distsummary.errors import DamagedFileError
from distsummary.format import wire
from distsummary.format.frames import Frame, read_frames, whole_length
from distsummary.format.records import MINDSPORE, TENSORBOARD, Event, EventIds
from distsummary.reading.reader import decode_frame
from distsummary.reading.segments import stamp_of
from distsummary.tools.findings import Finding, finding
from distsummary.tools.fsck_names import LINEAGE, EventFile
from distsummary.tools.fsck_steps import Steps
from distsummary.tools.fsck_values import LOSS_TAG, MAX_TAGS, MAX_TENSOR_TAGS, tag_key, value_problems

MAX_FINDINGS = 20  # of one kind and file; the rest is counted
MAX_KNOWN_TAGS = 100_000  # of a directory; what is beyond is not compared


@dataclass(slots=True)
class DirectoryFacts:
    """What the event files of a directory hold: for the findings, and for a manifest made of the files.

    `owners` has the wall time (seconds) of the first event of each (run id, attempt).
    """

    owners: dict[tuple[str, int], float] = field(default_factory=dict)
    files: int = 0
    events: int = 0
    tags: set[tuple[str, str]] = field(default_factory=set)  # plugin, tag of the MindSpore dialect
    has_landscape: bool = False
    lineage: list[tuple[Path, frozenset[str]]] = field(default_factory=list)  # the kinds in each file


def check_files(files: list[EventFile]) -> tuple[DirectoryFacts, list[Finding]]:
    """Read the event files of one directory, in reading order; returns what they hold and what is wrong."""
    facts = DirectoryFacts(files=len(files))
    findings: list[Finding] = []
    steps = {dialect: Steps(dialect) for dialect in (MINDSPORE, TENSORBOARD)}
    for file in files:
        try:
            findings += limited(file.path, _check_file(file, facts, steps.get(file.kind)))
        except OSError as error:
            findings.append(finding(file.path, "unreadable", f"it cannot be read: {error.strerror or error}"))
    for one in steps.values():
        findings += one.findings()
    findings += _tag_findings(files, facts)
    findings += _lineage_findings(facts)
    return facts, findings


def limited(path: Path, found: Iterator[Finding]) -> Iterator[Finding]:
    """At most MAX_FINDINGS of each kind, and a last one that counts the rest."""
    counts: dict[str, int] = {}
    for one in found:
        counts[one.kind] = counts.get(one.kind, 0) + 1
        if counts[one.kind] <= MAX_FINDINGS:
            yield one
    for kind, count in counts.items():
        if count > MAX_FINDINGS:
            yield finding(path, kind, f"{count - MAX_FINDINGS} more of this kind in the file")


def _check_file(file: EventFile, facts: DirectoryFacts, steps: Steps | None) -> Iterator[Finding]:
    kinds: set[str] = set()
    end = 0
    for frame in read_frames(file.path, resync=True):
        end = frame.end
        if not frame.payload and frame.damage is None:
            yield finding(
                file.path, "zero_frame", "an event of 0 bytes: MindInsight stops there", offset=frame.offset
            )
            continue
        try:
            decoded = decode_frame(frame, file.kind)
        except DamagedFileError as error:
            yield finding(file.path, "damaged", str(error), offset=frame.offset)
            continue
        if decoded is None:
            _note_owner(facts, _head_ids(frame), None)
            continue
        ids, event = decoded
        facts.events += 1
        _note_owner(facts, ids, event.wall_time)
        kinds |= {value.plugin for value in event.values}
        yield from _value_findings(file, frame, ids, event, facts, steps)
    if file.kind == LINEAGE:
        facts.lineage.append((file.path, frozenset(kinds)))
    yield from _end_findings(file.path, end)


def _head_ids(frame: Frame) -> EventIds:
    try:
        return wire.read_identity(frame.payload)
    except ValueError:
        return EventIds("", 0, 0)


def _note_owner(facts: DirectoryFacts, ids: EventIds, wall_time: float | None) -> None:
    if not ids.run_id or (len(facts.owners) > 1000 and (ids.run_id, ids.attempt) not in facts.owners):
        return
    known = facts.owners.get((ids.run_id, ids.attempt))
    if wall_time is not None and (known is None or wall_time < known):
        facts.owners[ids.run_id, ids.attempt] = wall_time


def _value_findings(
    file: EventFile, frame: Frame, ids: EventIds, event: Event, facts: DirectoryFacts, steps: Steps | None
) -> Iterator[Finding]:
    if steps is not None and not steps.begin(file.path, frame.offset, ids, event):
        return  # a copy, already named
    for value in event.values:
        key = (value.plugin, tag_key(value.tag))
        if file.kind != TENSORBOARD:
            for problem in value_problems(value):
                yield finding(file.path, problem.kind, problem.message, offset=frame.offset)
            facts.has_landscape |= value.plugin == "landscape"
            if file.kind == MINDSPORE and len(facts.tags) <= MAX_KNOWN_TAGS:
                facts.tags.add(key)
        if steps is not None:
            steps.take(key, ids, event.step)


def _end_findings(path: Path, end: int) -> Iterator[Finding]:
    """What the end of a file says: nothing was written, or its last frame is torn."""
    size = path.stat().st_size
    if size > end and is_live(path):
        yield finding(path, "live", "its writer is at work: the last frame is not whole yet", offset=end)
    elif size > end:
        text = f"its last frame is torn, {size - end} bytes: MindInsight spins on it"
        yield finding(path, "torn", text, offset=end, repairable=_can_be_cut(path, end))
    elif not size and not is_live(path):
        yield finding(path, "empty", "no event in it")


def _can_be_cut(path: Path, end: int) -> bool:
    """Whether `segment.cut_torn_tails` finds the file and the place: it believes no length behind damage."""
    return stamp_of(path.name) is not None and whole_length(path) == end


def is_live(path: Path) -> bool:
    """Whether a writer holds the file's lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _tag_findings(files: list[EventFile], facts: DirectoryFacts) -> Iterator[Finding]:
    if not files:
        return
    directory = files[0].path.parent
    tensors = sum(plugin == "tensor" for plugin, _ in facts.tags)
    if tensors > MAX_TENSOR_TAGS:
        text = f"{tensors} tensor tags: MindInsight shows {MAX_TENSOR_TAGS} of a directory"
        yield finding(directory, "tensor_tags", text)
    if len(facts.tags) > MAX_TAGS:
        yield finding(
            directory, "tags", f"{len(facts.tags)} tags: MindInsight shows {MAX_TAGS} of a directory"
        )
    if facts.has_landscape and ("scalar", LOSS_TAG) not in facts.tags:
        text = f"landscapes without the scalar {LOSS_TAG!r}: MindInsight says that the data do not exist"
        yield finding(directory, "landscape_alone", text)


def _lineage_findings(facts: DirectoryFacts) -> Iterator[Finding]:
    before: set[str] = set()
    for path, kinds in facts.lineage:
        if kinds == {"custom_lineage_data"}:
            yield finding(
                path, "lineage_custom_only", "custom information alone: MindInsight rejects the file"
            )
        lost = before & {"eval_lineage", "custom_lineage_data"}
        if lost and kinds & {"train_lineage", "dataset_graph"}:
            yield finding(
                path,
                "lineage_wiped",
                f"it makes MindInsight forget {', '.join(sorted(lost))} of earlier files",
            )
        before |= kinds
