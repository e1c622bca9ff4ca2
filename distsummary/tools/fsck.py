"""Checking a run on disk: what is damaged, misplaced or hostile to a viewer is named, and some mended."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distsummary.errors import MissingFileError, NotADirectoryPathError, RunDirError
from distsummary.run_dir import MANIFEST, RunDir
from distsummary.tools.findings import Finding, finding
from distsummary.tools.fsck_files import DirectoryFacts, check_files
from distsummary.tools.fsck_journals import check_journals, journals
from distsummary.tools.fsck_manifest import check_manifest, mend_manifest
from distsummary.tools.fsck_names import look
from distsummary.writing.files import Files
from distsummary.writing.segment import cut_torn_tail, cut_torn_tails

CLEAN, PROBLEMS, UNUSABLE = 0, 1, 2  # what a script is told


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckReport:
    """What was checked and found; `repaired` are the findings that a repair made go away."""

    path: Path
    directories: int
    files: int
    events: int
    findings: tuple[Finding, ...]
    repaired: tuple[Finding, ...] = ()

    @property
    def exit_code(self) -> int:
        """CLEAN, or PROBLEMS when one is left; notes are none."""
        return PROBLEMS if any(one.is_problem for one in self.findings) else CLEAN

    def as_json(self) -> dict[str, Any]:  # Any: what json.dumps takes
        """The report as JSON can hold it."""
        return {
            "path": str(self.path),
            "exit_code": self.exit_code,
            "directories": self.directories,
            "files": self.files,
            "events": self.events,
            "findings": [one.as_json() for one in self.findings],
            "repaired": [one.as_json() for one in self.repaired],
        }


@dataclass(slots=True)
class _Tree:
    """Directories with event files, journals of landscapes, and the runs among what was walked."""

    facts: dict[Path, DirectoryFacts] = field(default_factory=dict)
    journals: list[Path] = field(default_factory=list)
    runs: list[RunDir] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def fsck(path: str | os.PathLike[str], *, repair: bool = False, files: Files | None = None) -> FsckReport:
    """Check a run dir, a rank's directory or the parent of runs; nothing is followed through a link.

    A repair cuts torn tails of event files and of landscapes' journals (kept in `torn-<n>.bin`) and makes
    run.json anew from the files (the old one is kept beside it); nothing is deleted, and files with a live
    writer are left alone.

    Args:
        path: the directory.
        repair: mend what can be mended, then check again.
        files: the operating system; a test passes a double.

    Raises:
        MissingFileError: there is no such directory, or no event file, journal and manifest in it.
        NotADirectoryPathError: it is a file. RunDirError: it cannot be read, or not be repaired.
    """
    base = Path(path)
    tree = _check(base)
    before = tuple(tree.findings)
    if repair:
        _repair(tree, files or Files())
        tree = _check(base)
    left = {(one.file, one.kind) for one in tree.findings}
    return FsckReport(
        path=base,
        directories=len({*tree.facts, *(path.parent for path in tree.journals)}),
        files=sum(facts.files for facts in tree.facts.values()) + len(tree.journals),
        events=sum(facts.events for facts in tree.facts.values()),
        findings=tuple(tree.findings),
        repaired=tuple(one for one in before if one.repairable and (one.file, one.kind) not in left),
    )


def _check(base: Path) -> _Tree:
    if not base.exists():
        raise MissingFileError(
            f"there is no directory {base}; name a run dir, a rank's directory or their parent"
        )
    if not base.is_dir():
        raise NotADirectoryPathError(f"{base} is a file; name the directory that holds it")
    tree = _Tree()
    for directory in _directories(base, tree.findings):
        _check_directory(base, directory, tree)
    if not (tree.facts or tree.journals or tree.runs or tree.findings):
        raise MissingFileError(f"there is no event file in {base}; name a run dir or a rank's directory")
    for run in tree.runs:
        tree.findings += check_manifest(run, _of_run(tree, run))
    return tree


def _directories(base: Path, findings: list[Finding]) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        if error.filename == str(base):
            raise RunDirError(f"{base} cannot be read: {error.strerror}; mend its permissions") from error
        findings.append(finding(Path(error.filename), "unreadable", f"it cannot be read: {error.strerror}"))

    for root, names, _ in os.walk(base, onerror=unreadable):
        names.sort()
        yield Path(root)


def _check_directory(base: Path, directory: Path, tree: _Tree) -> None:
    run = RunDir(directory)
    if (directory / MANIFEST).exists() or any(run.rank_dirs(role) for role in ("train", "eval")):
        tree.runs.append(run)
    event_files, findings = look(directory)
    facts, more = check_files(event_files)
    kept = journals(directory)
    tree.journals += kept
    tree.findings += [*findings, *more, *check_journals(kept)]
    if event_files:
        tree.facts[directory] = facts
        if not _is_seen(base, directory, tree.runs):
            text = f"{len(event_files)} event file(s) more than one level below a run or a base of runs"
            tree.findings.append(finding(directory, "too_deep", text))


def _is_seen(base: Path, directory: Path, runs: list[RunDir]) -> bool:
    """Whether a viewer that is pointed at the base, or at a run in it, looks into the directory."""
    places = {Path(os.path.realpath(base)), *(run.base for run in runs)}
    real = Path(os.path.realpath(directory))
    return real in places or real.parent in places


def _of_run(tree: _Tree, run: RunDir) -> dict[Path, DirectoryFacts]:
    """The directories of the run: its own and its direct children, by their real paths."""
    real = {Path(os.path.realpath(directory)): facts for directory, facts in tree.facts.items()}
    return {path: facts for path, facts in real.items() if run.base in (path, path.parent)}


def _repair(tree: _Tree, files: Files) -> None:
    _cut({one.file.parent for one in _mendable(tree, "torn")}, cut_torn_tails, files)
    _cut({one.file for one in _mendable(tree, "journal_torn")}, cut_torn_tail, files)
    damaged = {one.file for one in tree.findings if one.kind.startswith("manifest_")}
    for run in tree.runs:
        if run.manifest_path in damaged:
            mend_manifest(run, _of_run(tree, run))


def _mendable(tree: _Tree, kind: str) -> Iterator[Finding]:
    return (one for one in tree.findings if one.kind == kind and one.repairable)


def _cut(places: set[Path], cut: Callable[[Path, Files], object], files: Files) -> None:
    for place in sorted(places):
        try:
            cut(place, files)
        except OSError as error:
            raise RunDirError(
                f"torn tails in {place} cannot be cut: {error.strerror}; mend its permissions"
            ) from error
