"""Makes one run of ranks that wrote to PREFIX0, PREFIX1 ..., as scripts of MindSpore name them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from distsummary.base.publish import ensure_directory, publish
from distsummary.cli.fsck import fsck
from distsummary.errors import MissingFileError, RunDirError, reason
from distsummary.events.segment import is_live
from distsummary.events.segments import all_event_files
from distsummary.rundir.numbered import NOTE, read_note
from distsummary.rundir.rank_manifest import encoded, read_entries
from distsummary.rundir.run_dir import MANIFEST, RANK_MANIFEST, Manifest, RunDir
from distsummary.rundir.run_records import NoteRecord
from distsummary.rundir.states import read_run

_ROLES = ("train", "eval")
_OF_ITS_MERGE = ("merged", "missing", "evaluated", "aggregator")  # of the numbered directory alone


class Adopted(NamedTuple):
    """The run dir, its ranks, and the numbered directories that still exist: only rank directories move."""

    path: Path
    ranks: tuple[int, ...]
    left: tuple[Path, ...]


def adopt(prefix: str | os.PathLike[str]) -> Adopted:
    """Move the directories of ranks, `prefix + "0"`, `prefix + "1"` ..., into the run dir `prefix`.

    Each numbered directory holds the event files of its rank, as SummaryRecord and MindSpore write them; or,
    all of them, a run of which a note says whose it is, as SummaryCollector writes it, or a rank directory
    with a run.json. The run.json of `prefix` is made of theirs, or else of the event files: such ranks have
    the state unknown.

    Raises:
        MissingFileError: there is no numbered directory of a rank.
        RunDirError: `prefix` is a run, the directories are not of one job, a writer is at work in one of
            them, or they cannot be moved. Before the first is moved, all of this but the last is known.
    """
    run = RunDir(prefix)
    if run.manifest_path.exists() or (run.base.is_dir() and all_event_files(run.base)):
        raise RunDirError(f"{run.base} is a run itself; name a PREFIX of which there are only directories")
    moves: dict[Path, Path] = {}  # from -> to
    nested: dict[Path, Manifest] = {}
    noted: dict[Path, NoteRecord] = {}  # to -> whose it is
    plain, foreign = [], []
    for number, path in run.numbered_dirs().items():
        one = RunDir(path)
        manifest = one.read_manifest()
        own = {role: one.rank_dirs(role) for role in _ROLES}
        sizes = {entry["world_size"] for entry in manifest["attempts"]}
        note = read_note(path) if sizes == {1} else None
        # A run of one rank, whose note says that it is this rank of a larger job.
        if note is not None and note["rank"] == number:
            for entry in manifest["attempts"]:
                entry["world_size"] = note["world_size"]
            nested[path] = manifest
            roles = {entry["role"] for entry in manifest["attempts"]}
            # The training's directory holds that of the evaluation, so the evaluation's moves first.
            for role in (role for role in reversed(_ROLES) if role in roles):
                source = one.writer_dir(role, 0, 1)
                moves[source] = run.writer_dir(role, number, 2)
                noted[moves[source]] = note
        elif sizes == {1} or any({*ranks} - {number} for ranks in own.values()):
            # A run of one rank without such a note, or directories of other ranks.
            foreign.append(path)
        elif sizes or any(own.values()):
            nested[path] = manifest
            moves |= {ranks[number]: run.base / ranks[number].name for ranks in own.values() if ranks}
        elif all_event_files(path):
            plain.append(path)
            moves[path] = run.writer_dir("train", number, 2)
    if foreign or (nested and plain):
        alone = f"{foreign[0]} holds a run of its own" if foreign else ""
        raise _mixed(run, alone or f"{plain[0]} has no rank directory, but {next(iter(nested))} has")
    if not moves:
        raise MissingFileError(
            f"no directory {run.base}<number> holds the files of a rank; name what the ranks' paths have in "
            "common before their number"
        )
    # All checks come before the first directory moves.
    refuse_others(run, nested)
    for source in moves:
        if any(map(is_live, all_event_files(source))):
            raise RunDirError(f"a writer is at work in {source}; adopt the ranks when their job has ended")
    ensure_directory(run.base)
    for source, target in moves.items():
        try:
            os.rename(source, target)
        except OSError as error:
            raise RunDirError(
                f"{source} cannot be moved to {target}: {reason(error)}; then repeat it"
            ) from error
    for target, note in noted.items():
        _renumber(target, note)
    if nested:
        run.update_manifest(lambda manifest: manifest.update(_one_of([*nested.values()])))
        run.update_manifest(lambda manifest: manifest.update(state=read_run(run).state))
    else:
        # Without any manifest, one is made from the event files.
        fsck(run.base, repair=True)
    ranks = {rank for role in _ROLES for rank in run.rank_dirs(role)}
    return Adopted(run.base, tuple(sorted(ranks)), tuple(path for path in nested if path.exists()))


def _renumber(directory: Path, note: NoteRecord) -> None:
    """Make a directory that was a run of one rank the one of its rank in the run of all."""
    for name in (MANIFEST, NOTE):
        (directory / name).unlink(missing_ok=True)
    found = read_entries(directory)
    if found is not None and found.attempts:
        place = {"rank": note["rank"], "world_size": note["world_size"]}
        attempts = [entry | place for entry in found.attempts]
        publish(directory / RANK_MANIFEST, encoded(attempts[0]["role"], note["rank"], attempts))


def refuse_others(run: RunDir, manifests: Mapping[Path, Manifest]) -> None:
    """Raise RunDirError if manifests of ranks describe the same attempt differently."""
    first: dict[tuple[str, int], tuple[Path, Manifest]] = {}
    for path, manifest in manifests.items():
        for entry in manifest["attempts"]:
            known_path, known = first.setdefault((entry["role"], entry["attempt"]), (path, entry))
            for key in ("world_size", "incarnation"):
                if entry[key] != known[key]:
                    which = f"{known_path} has {key} {known[key]!r} and {path} {entry[key]!r}"
                    raise _mixed(run, f"{which} for attempt {entry['attempt']}")


def _mixed(run: RunDir, which: str) -> RunDirError:
    return RunDirError(
        f"the directories {run.base}<number> are not the ranks of one job: {which}; move those of other jobs "
        "elsewhere"
    )


def _one_of(manifests: list[Manifest]) -> Manifest:
    """The manifest of the lowest rank, with the attempts of all ranks."""
    attempts: dict[tuple[str, int], Manifest] = {}
    for entry in (entry for manifest in manifests for entry in manifest["attempts"]):
        facts = {key: fact for key, fact in entry.items() if key not in _OF_ITS_MERGE}
        known = attempts.setdefault((entry["role"], entry["attempt"]), facts)
        known["started"] = min(known.get("started", 0.0), entry.get("started", 0.0))
        if deaths := {**entry.get("deaths", {}), **known.get("deaths", {})}:
            known["deaths"] = deaths
    found = {key: fact for key, fact in manifests[0].items() if key not in _OF_ITS_MERGE}
    found |= {"attempts": [attempts[key] for key in sorted(attempts)]}
    found["created"] = min(manifest["created"] for manifest in manifests)
    return found
