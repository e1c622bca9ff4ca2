"""The kinds of problems that a run on disk can have, with the severity and remedy of each."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ERROR = "error"  # data are lost or hidden
WARNING = "warning"  # a reader shows less
NOTE = "note"  # nothing to do
REPAIR = "distsummary fsck --repair repairs it"


class Kind(NamedTuple):
    """The severity of a kind of finding, its remedy, and whether `fsck --repair` repairs it."""

    severity: str
    remedy: str
    is_repairable: bool = False


KINDS = {
    # the bytes of a file
    "damaged": Kind(ERROR, "readers skip it; restore the file from a copy if there is one"),
    "torn": Kind(ERROR, REPAIR, True),
    "unreadable": Kind(ERROR, "then check again"),
    "empty": Kind(WARNING, "remove the file: nothing was written to it"),
    "live": Kind(NOTE, "check again when its writer has ended"),
    "temporary": Kind(
        NOTE,
        "the next writer of the directory removes it; or remove it when no process uses the directory",
    ),
    # the manifests: run.json, and manifest.json of each rank
    "manifest_damaged": Kind(ERROR, REPAIR, True),
    "manifest_missing": Kind(WARNING, REPAIR, True),
    "manifest_stale": Kind(WARNING, REPAIR, True),
    # other small files
    "reports_damaged": Kind(ERROR, "restore it from a copy; distsummary why judges what the ranks recorded"),
    "facts_damaged": Kind(WARNING, "remove it, or restore it from a copy: what it says is not compared"),
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
