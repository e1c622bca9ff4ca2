"""The kinds of problems that a run on disk can have, with the severity and remedy of each."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
    "temporary": Kind(
        NOTE,
        "the next writer of the directory removes it; or remove it when no process uses the directory",
    ),
    # files that do not fit together
    "overlap": Kind(ERROR, "move the files of each writer to a directory of its own"),
    "step_back": Kind(WARNING, "a restarted run should use a new attempt, or a directory of its own"),
    "duplicate": Kind(WARNING, "distsummary reads each event once; viewers show it twice or not at all"),
    "mixed_runs": Kind(WARNING, "move the files of each run to a directory of its own"),
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
