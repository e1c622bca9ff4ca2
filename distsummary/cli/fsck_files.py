"""Checks the bytes, values and order of the event files of one directory; reads each file once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from distsummary.cli.findings import Finding, finding
from distsummary.cli.fsck_names import LINEAGE, EventFile
from distsummary.cli.fsck_steps import StepOrder
from distsummary.cli.fsck_values import LOSS_TAG, MAX_TAGS, MAX_TENSOR_TAGS, tag_key, value_problems
from distsummary.errors import DamagedFileError
from distsummary.events.reader import decode_frame
from distsummary.events.segment import is_live
from distsummary.events.segments import LANDSCAPE, source_of, stamp_of
from distsummary.format.frames import read_frames, whole_length
from distsummary.format.norms import UnnamedNorms
from distsummary.format.records import MINDSPORE, NORMS, TENSORBOARD

MAX_FINDINGS = 20  # for each kind in one file; further findings are only counted
_NOT_SHOWN = ("text", NORMS)  # MindInsight knows nothing of them: they take no place among its tags
MAX_KNOWN_TAGS = 100_000  # remembered per directory; further tags are ignored


@dataclass(slots=True)
class DirectoryFacts:
    """What the event files of a directory hold; findings and a rebuilt manifest are made from these facts.

    `owners` maps each (run id, attempt) to the wall time (seconds) of its first event.
    """

    owners: dict[tuple[str, int], float] = field(default_factory=dict)
    files: int = 0
    events: int = 0
    tags: set[tuple[str, str]] = field(default_factory=set)  # (plugin, tag) that MindInsight shows
    has_landscape: bool = False
    lineage: list[tuple[Path, frozenset[str]]] = field(default_factory=list)  # (file, its plugins)


def check_files(files: list[EventFile]) -> tuple[DirectoryFacts, list[Finding]]:
    """Read the event files of one directory, in reading order; returns what they hold and what is wrong."""
    facts = DirectoryFacts(files=len(files))
    findings: list[Finding] = []
    steps = {dialect: StepOrder(dialect) for dialect in (MINDSPORE, TENSORBOARD)}
    for file in files:
        try:
            findings += limited(file.path, _check_file(file, facts, steps.get(file.kind)))
        except OSError as error:
            findings.append(finding(file.path, "unreadable", f"it cannot be read: {error.strerror or error}"))
    for one in steps.values():
        findings += one.findings()
    if files:
        findings += _check_directory(files[0].path.parent, facts)
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


def _check_file(file: EventFile, facts: DirectoryFacts, steps: StepOrder | None) -> Iterator[Finding]:
    """Yield what is wrong with one file, and add its content to `facts` and `steps`."""
    path = file.path
    if source_of(path.name) == LANDSCAPE:
        steps = None  # its loss is a copy, which the training's own takes the place of
    kinds: set[str] = set()
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
            decoded = decode_frame(frame, file.kind, path)
        except DamagedFileError as error:
            yield finding(path, "damaged", str(error), offset=frame.offset)
            continue
        if decoded is None:
            continue
        ids, event = decoded
        facts.events += 1
        kinds |= {value.plugin for value in event.values}
        owner = (ids.run_id, ids.attempt)
        if ids.run_id and (owner in facts.owners or len(facts.owners) <= 1000):
            facts.owners[owner] = min(facts.owners.get(owner, event.wall_time), event.wall_time)
        if steps is not None and not steps.begin(path, frame.offset, ids, event):
            continue  # a copy of an earlier event: its values have been checked
        for value in event.values:
            key = (value.plugin, tag_key(value.tag))
            if isinstance(value.data, UnnamedNorms):
                text = f"the norms of {len(value.data.columns['weight_sums'])} parameters without their names"
                yield finding(path, "norms_table", text, offset=frame.offset)
            if file.kind != TENSORBOARD:
                for problem in value_problems(value):
                    yield finding(path, problem.kind, problem.message, offset=frame.offset)
                facts.has_landscape |= value.plugin == "landscape"
                is_shown = value.plugin not in _NOT_SHOWN
                if file.kind == MINDSPORE and is_shown and len(facts.tags) <= MAX_KNOWN_TAGS:
                    facts.tags.add(key)
            if steps is not None:
                steps.take(key, ids, event.step)
    if file.kind == LINEAGE:
        facts.lineage.append((path, frozenset(kinds)))
    size = path.stat().st_size
    if size > end and is_live(path):
        text = "a writer is at work: the last frame is not complete yet"
        yield finding(path, "live", text, offset=end)
    elif size > end:
        # `cut_torn_tails` cuts only files whose name has a stamp
        can_be_cut = stamp_of(path.name) is not None and whole_length(path) == end
        text = f"its last frame is torn ({size - end} bytes): MindInsight tries to read it again, forever"
        yield finding(path, "torn", text, offset=end, repairable=can_be_cut)
    elif not size and not is_live(path):
        yield finding(path, "empty", "the file has no event")


def _check_directory(directory: Path, facts: DirectoryFacts) -> Iterator[Finding]:
    """Yield what is wrong with the directory as a whole: too many tags, hidden landscapes, hidden lineage."""
    tensors = sum(plugin == "tensor" for plugin, _ in facts.tags)
    if tensors > MAX_TENSOR_TAGS:
        text = f"{tensors} tensor tags: MindInsight shows {MAX_TENSOR_TAGS} per directory"
        yield finding(directory, "tensor_tags", text)
    if len(facts.tags) > MAX_TAGS:
        text = f"{len(facts.tags)} tags: MindInsight shows {MAX_TAGS} per directory"
        yield finding(directory, "tags", text)
    if facts.has_landscape and ("scalar", LOSS_TAG) not in facts.tags:
        text = f"landscapes without the scalar {LOSS_TAG!r}: MindInsight reports that the data do not exist"
        yield finding(directory, "landscape_alone", text)
    before: set[str] = set()
    for path, kinds in facts.lineage:
        if kinds == {"custom_lineage_data"}:
            text = "the file has only custom information: MindInsight rejects it"
            yield finding(path, "lineage_custom_only", text)
        lost = before & {"eval_lineage", "custom_lineage_data"}
        if lost and kinds & {"train_lineage", "dataset_graph"}:
            text = f"it makes MindInsight forget {', '.join(sorted(lost))} of earlier files"
            yield finding(path, "lineage_wiped", text)
        before |= kinds
