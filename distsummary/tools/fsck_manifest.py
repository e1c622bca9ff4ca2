"""Checks that run.json, the manifest, agrees with the event files, and rebuilds it from these files."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from distsummary.coordination import newest_attempt
from distsummary.errors import DistSummaryError, RunDirError
from distsummary.run_dir import MANIFEST, Manifest, RunDir
from distsummary.tools.findings import Finding, finding
from distsummary.tools.fsck_files import DirectoryFacts
from distsummary.topology import Topology

_ROLES = ("train", "eval")


class _Attempt(NamedTuple):
    """An attempt found in the event files; `first`: rank -> the wall time (seconds) of its first event."""

    run_id: str
    role: str
    number: int
    world_size: int
    first: dict[int, float]


def check_manifest(run: RunDir, directories: Mapping[Path, DirectoryFacts]) -> list[Finding]:
    """Returns what is wrong with the run's manifest; `directories`: real path -> that directory's facts."""
    path = run.manifest_path
    if not os.path.lexists(path):
        return [finding(path, "manifest_missing", "the run has rank directories but no manifest")]
    try:
        manifest = run.read_manifest()
    except DistSummaryError as error:
        return [finding(path, "manifest_damaged", str(error))]
    missing = _missing(manifest, _attempts(run, directories))
    if not missing:
        return []
    names = ", ".join(f"{one.role} {one.number} of the run {one.run_id}" for one in missing[:5])
    return [finding(path, "manifest_stale", f"attempts in the event files are missing from it: {names}")]


def repair_manifest(run: RunDir, directories: Mapping[Path, DirectoryFacts]) -> None:
    """Rebuild the manifest, or add the missing attempts; the old file is kept as `run.json.<n>.bak`.

    Raises RunDirError if the manifest cannot be written.
    """
    attempts = _attempts(run, directories)
    path = run.manifest_path
    try:
        if os.path.lexists(path):
            number = 0
            while os.path.lexists(copy := path.with_name(f"{MANIFEST}.{number}.bak")):
                number += 1
            try:
                run.read_manifest()
            except DistSummaryError:
                os.replace(path, copy)
            else:
                shutil.copy2(path, copy)
    except OSError as error:
        raise RunDirError(
            f"{path} cannot be backed up: {error.strerror}; fix the permissions of {run.base}"
        ) from error

    def change(manifest: Manifest) -> None:
        missing = _missing(manifest, attempts)
        if missing and manifest["run_id"] != missing[0].run_id:  # a new manifest, or another run's
            manifest |= {"run_id": missing[0].run_id, "attempts": []}
        added: list[Manifest] = []
        for one in missing:  # the ranks' states, hosts and processes are unknown
            incarnation = f"fsck {one.run_id} {one.role} {one.number}"
            ranks = {}
            for rank in sorted(one.first):
                place = Topology(
                    role=one.role,
                    rank=rank,
                    world_size=one.world_size,
                    source="fsck",
                    incarnation=incarnation,
                    host="",
                    pid=0,
                )
                ranks[str(rank)] = asdict(place) | {"state": "unknown"}
            entry = {
                "role": one.role,
                "attempt": one.number,
                "incarnation": incarnation,
                "world_size": one.world_size,
                "started": min(one.first.values()),
                "ranks": ranks,
            }
            manifest["attempts"].append(entry)
            added.append(entry)
        starts = [entry["started"] for entry in manifest["attempts"] if entry.get("started")]
        if starts:
            manifest["created"] = min(starts)
        newest = newest_attempt(manifest)
        if manifest.get("state") == "running" or newest in added:
            manifest["state"] = "unknown"

    run.update_manifest(change)


def _attempts(run: RunDir, directories: Mapping[Path, DirectoryFacts]) -> list[_Attempt]:
    """The attempts found in the files of the ranks; the files of the merged run hold no further attempts."""
    found = []
    for role in _ROLES:
        ranks = run.rank_dirs(role) or {0: run.writer_dir(role, 0, 1)}
        first: dict[tuple[str, int], dict[int, float]] = {}
        for rank, directory in ranks.items():
            facts = directories.get(Path(os.path.realpath(directory)), DirectoryFacts())
            for owner, wall_time in facts.owners.items():
                first.setdefault(owner, {})[rank] = wall_time
        world_size = max(ranks) + 1
        found += [
            _Attempt(run_id, role, number, world_size, times)
            for (run_id, number), times in sorted(first.items(), key=lambda item: min(item[1].values()))
        ]
    return found


def _missing(manifest: Manifest, attempts: list[_Attempt]) -> list[_Attempt]:
    """The attempts that the manifest lacks; all of the newest run if no file is of the manifest's run."""
    if not attempts:
        return []
    known = {(entry["role"], entry["attempt"]) for entry in manifest["attempts"]}
    run_ids = {one.run_id for one in attempts}
    run_id = manifest["run_id"] if manifest["run_id"] in run_ids else attempts[-1].run_id
    found = [one for one in attempts if one.run_id == run_id]
    if manifest["run_id"] == run_id:
        found = [one for one in found if (one.role, one.number) not in known]
    return found
