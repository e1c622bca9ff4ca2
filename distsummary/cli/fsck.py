"""Checks a run on disk, its bytes, torn tails and manifests, and repairs some of it."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distsummary.base.publish import TEMPORARY, is_in_use
from distsummary.base.terminal import doing
from distsummary.cli.findings import Finding, finding
from distsummary.cli.fsck_files import DirectoryFacts, check_files
from distsummary.cli.fsck_manifest import check_manifest, repair_manifest
from distsummary.errors import MissingFileError, NotADirectoryPathError, RunDirError, reason
from distsummary.events.files import Files
from distsummary.events.segment import cut_torn_tail
from distsummary.events.segments import all_event_files
from distsummary.format.json_values import plain
from distsummary.landscapes.run.journal import journals
from distsummary.rundir.rank_manifest import read_ranks
from distsummary.rundir.run_dir import MANIFEST, RunDir

# Result of `is_in_use` -> what to say about the temporary file.
_OWNERS = {
    True: "its process is at work and will rename it",
    False: "its process ended before renaming it",
    None: "it belongs to another machine, a container or another program",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckReport:
    """What was checked and found; `repaired` lists the findings that the repair removed."""

    path: Path
    directories: int
    files: int
    events: int
    findings: tuple[Finding, ...]
    repaired: tuple[Finding, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 if an error or a warning is left, else 0."""
        return int(any(one.is_problem for one in self.findings))

    def as_json(self) -> dict[str, Any]:
        """The report as an object for JSON, with the exit code."""
        found: dict[str, Any] = plain(self) | {"exit_code": self.exit_code}
        return found


@dataclass(slots=True)
class _Tree:
    """What was found in and below the checked path; `facts` describes each directory that has such files."""

    facts: dict[Path, DirectoryFacts] = field(default_factory=dict)
    runs: list[RunDir] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def of_run(self, run: RunDir) -> dict[Path, DirectoryFacts]:
        """The facts of the run's directory and its direct children, by path without symbolic links."""
        real = {Path(os.path.realpath(directory)): facts for directory, facts in self.facts.items()}
        return {path: facts for path, facts in real.items() if run.base in (path, path.parent)}


def fsck(path: str | os.PathLike[str], *, repair: bool = False, files: Files | None = None) -> FsckReport:
    """Check a run dir, a rank's directory or the parent of runs; symbolic links are not followed.

    Every byte of event files and of journals of landscapes is checked, and the manifests are compared with
    the event files. A repair cuts the torn tail (the incomplete last frame) off event files and journals,
    and keeps it in `torn-<n>.bin`. It rebuilds run.json and the manifest.json of the ranks from each other
    and from the event files, and keeps the old ones next to them. It deletes nothing, and does not touch
    files that a live writer uses.

    Args:
        path: the directory.
        repair: repair what can be repaired, then check again.
        files: the file operations to use; None means the real ones. Tests pass a test double.

    Raises:
        MissingFileError: there is no such directory, or it holds no event file, journal or manifest.
            NotADirectoryPathError: `path` is a file. RunDirError: the directory cannot be read or repaired.
    """
    base = Path(path)
    tree = _check(base)
    before = tuple(tree.findings)
    if repair:
        system = files or Files()
        repairable = [one for one in before if one.repairable]
        for torn in sorted({one.file for one in repairable if one.kind == "torn"}):
            _cut(torn, system)
        # The manifests come last: they are rebuilt from the event files.
        damaged = {one.file for one in before if one.kind.startswith("manifest_")}
        for run in tree.runs:
            if any(run.base in (path.parent, path.parent.parent) for path in damaged):
                repair_manifest(run, tree.of_run(run))
        # The second check shows which findings are left.
        tree = _check(base)
    left = {(one.file, one.kind) for one in tree.findings}
    return FsckReport(
        path=base,
        directories=len(tree.facts),
        files=sum(facts.files for facts in tree.facts.values()),
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

    def unreadable(error: OSError) -> None:
        if error.filename == str(base):
            raise RunDirError(f"{base} cannot be read: {reason(error)}") from error
        # A live writer has removed the directory meanwhile.
        if isinstance(error, FileNotFoundError):
            return
        text = f"it cannot be read: {reason(error)}"
        tree.findings.append(finding(Path(error.filename), "unreadable", text))

    for count, (root, names, _) in enumerate(os.walk(base, onerror=unreadable), 1):
        names.sort()
        directory = Path(root)
        run = RunDir(directory)
        has_ranks = any(run.rank_dirs(role) for role in ("train", "eval")) or 0 in read_ranks(run, "train", 1)
        # A directory with ranks is a run even without run.json, unless it is a rank of the run above it.
        if (directory / MANIFEST).exists() or (
            has_ranks and not RunDir(run.base.parent).is_rank_dir(run.base)
        ):
            tree.runs.append(run)
        doing("checking directory", count)
        files = [p for p in all_event_files(directory) if p.is_file() and not p.is_symlink()]
        files += journals(directory)
        facts, of_files = check_files(files)
        for path in sorted(directory.glob(f"{TEMPORARY}*")):
            text = f"a temporary file or directory: {_OWNERS[is_in_use(path)]}"
            tree.findings.append(finding(path, "temporary", text))
        tree.findings += of_files
        if files:
            tree.facts[directory] = facts
    if not (tree.facts or tree.runs or tree.findings):
        raise MissingFileError(f"there is no event file in {base}; name a run dir or a rank's directory")
    # Only when all directories are read: a manifest is compared with the event files of its whole run.
    for run in tree.runs:
        tree.findings += check_manifest(run, tree.of_run(run))
    return tree


def _cut(path: Path, files: Files) -> None:
    try:
        cut_torn_tail(path, files)
    except OSError as error:
        raise RunDirError(f"the torn tail of {path} cannot be cut: {reason(error)}") from error
