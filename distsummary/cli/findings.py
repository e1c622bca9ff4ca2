"""The kinds of problems that a run on disk can have, with the severity and remedy of each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ERROR = "error"  # data are lost or hidden
WARNING = "warning"  # a viewer shows less
NOTE = "note"  # nothing to do
REPAIR = "distsummary fsck --repair repairs it"


class Kind(NamedTuple):
    """The severity of a kind of finding, its remedy, and whether `fsck --repair` repairs it."""

    severity: str
    remedy: str
    is_repairable: bool = False


KINDS = {
    # the bytes of a file
    "damaged": Kind(ERROR, "readers skip it in mode 'skip'; restore the file from a copy if there is one"),
    "torn": Kind(ERROR, REPAIR, True),
    "zero_frame": Kind(ERROR, "convert the files: distsummary convert leaves it out"),
    "unreadable": Kind(ERROR, "fix its permissions"),
    "empty": Kind(WARNING, "remove the file: nothing was written to it"),
    "live": Kind(NOTE, "check again when its writer has ended"),
    "norms_table": Kind(ERROR, "put the directory's older event files back: one of them has the names"),
    # the names and places of files
    "stamp": Kind(ERROR, "rename it: the number after 'summary.' must be seconds, ten digits"),
    "short_stamp": Kind(WARNING, "rename it: viewers compare stamps as text, so they must have ten digits"),
    "equal_stamps": Kind(WARNING, "give each file a stamp of its own, rising in the order of writing"),
    "misnamed": Kind(WARNING, "rename it, or move it away"),
    "symlink": Kind(WARNING, "put the files themselves there; viewers follow no links"),
    "too_deep": Kind(WARNING, "move it up: a viewer looks only into its base directory and the children"),
    "temporary": Kind(
        NOTE,
        "the next writer of the directory removes it; or remove it when no process uses the directory",
    ),
    # files that do not fit together
    "overlap": Kind(ERROR, "move the files of each writer to a directory of its own"),
    "step_back": Kind(WARNING, "a restarted run should use a new attempt, or a directory of its own"),
    "duplicate": Kind(WARNING, "distsummary reads each event once; viewers show it twice or not at all"),
    "mixed_runs": Kind(WARNING, "move the files of each run to a directory of its own"),
    # values that viewers reject
    "buckets": Kind(WARNING, "record histograms of at most 90 buckets"),
    "tensor_elements": Kind(WARNING, "record a part of the tensor or its histogram"),
    "tensor_tags": Kind(NOTE, "TensorBoard shows all; MindInsight keeps the six newest tags per directory"),
    "tags": Kind(NOTE, "TensorBoard and the page show all; MindInsight keeps 300 per directory"),
    "graph_names": Kind(ERROR, "rename the nodes"),
    "metric": Kind(ERROR, "write the metrics as JSON"),
    "metric_not_finite": Kind(WARNING, "leave out metrics that are not finite: JSON has no such numbers"),
    "landscape_shape": Kind(WARNING, "store z with the shape (len(y), len(x))"),
    "landscape_not_finite": Kind(WARNING, "replace these numbers: with them, the chart stays blank"),
    "landscape_alone": Kind(WARNING, "add the loss curve as the scalar 'loss/auto' to the same directory"),
    "lineage_custom_only": Kind(WARNING, "write the lineage of the training into the same file"),
    "lineage_wiped": Kind(WARNING, "keep only one lineage file in a directory, and replace it as a whole"),
    # the loss grids of landscapes
    "grid_damaged": Kind(ERROR, "draw the landscape again, or remove the file"),
    # indexes, which are made from event files: nothing is lost with one
    "index": Kind(NOTE, "whoever reads the run next makes it again; or remove it"),
    "index_false": Kind(ERROR, REPAIR, True),
    # journals: the losses evaluated so far, from which an unfinished landscape resumes
    "journal_torn": Kind(WARNING, REPAIR, True),
    "journal_damaged": Kind(WARNING, "resume the landscape: the lost points are evaluated again"),
    "journal_foreign": Kind(ERROR, "remove it, or restart its landscape with resume=False"),
    # the manifests: run.json, and manifest.json of each rank
    "manifest_damaged": Kind(ERROR, REPAIR, True),
    "manifest_missing": Kind(WARNING, REPAIR, True),
    "manifest_stale": Kind(WARNING, REPAIR, True),
    "lost_ranks": Kind(NOTE, "what they recorded until then is in their files"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem; `offset` is its byte position in `file`, None if the problem concerns the whole file."""

    file: Path
    kind: str
    message: str
    severity: str
    remedy: str
    repairable: bool
    offset: int | None = None

    @property
    def is_problem(self) -> bool:
        """Whether the user should do something about the finding: yes, unless it is a NOTE."""
        return self.severity != NOTE

    def as_json(self) -> dict[str, Any]:  # Any: strings, numbers, booleans
        """The finding as an object for JSON."""
        return {
            "file": str(self.file),
            "offset": self.offset,
            "kind": self.kind,
            "severity": self.severity,
            "message": self.message,
            "remedy": self.remedy,
            "repairable": self.repairable,
        }

    def as_line(self) -> str:
        """The finding as one line for a terminal; control characters in file names and tags are escaped."""
        place = str(self.file) if self.offset is None else f"{self.file} at byte {self.offset}"
        text = f"{self.severity}: {place}: {self.kind}: {self.message}; {self.remedy}"
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def finding(
    file: Path, kind: str, message: str, *, offset: int | None = None, repairable: bool | None = None
) -> Finding:
    """Make a finding of a kind from KINDS; `repairable=False`: this finding cannot be repaired."""
    known = KINDS[kind]
    can_repair = known.is_repairable if repairable is None else repairable
    remedy = known.remedy
    if known.is_repairable and not can_repair:
        remedy = "first repair the damage before this place, or restore the file from a copy"
    return Finding(
        file=file,
        kind=kind,
        message=message,
        severity=known.severity,
        remedy=remedy,
        repairable=can_repair,
        offset=offset,
    )
