"""Checks the manifests of a run, run.json and those of the ranks, against the event files; rebuilds them."""

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from distsummary.base.columns import named
from distsummary.base.publish import publish
from distsummary.cli.findings import Finding, finding
from distsummary.cli.fsck_files import DirectoryFacts
from distsummary.diagnosis.alerts import read_reports
from distsummary.errors import DistSummaryError, RunDirError, reason
from distsummary.rundir.attempts import decides
from distsummary.rundir.rank_facts import COMMAND, FACTS, problem_of
from distsummary.rundir.rank_manifest import RANK_MANIFEST, encoded, new_entry, read_entries, read_ranks
from distsummary.rundir.rank_parts import PARTS
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.run_records import MOST_S
from distsummary.rundir.states import read_run
from distsummary.rundir.topology import Topology

_ROLES = ("train", "eval")
_NAMED = 5  # attempts in a message


class _Attempt(NamedTuple):
    """An attempt found in the event files; `first`: rank -> the wall time (seconds) of its first event."""

    run_id: str
    role: str
    number: int
    world_size: int
    first: dict[int, float]


def check_manifest(run: RunDir, directories: Mapping[Path, DirectoryFacts]) -> list[Finding]:
    """Returns what is wrong with the run's manifests; `directories`: real path -> that directory's facts."""
    path = run.manifest_path
    found = []
    # The only rank of a run has another directory than one of several ranks: both places are read.
    for is_alone, role in ((is_alone, role) for is_alone in (True, False) for role in _ROLES):
        for rank, record in read_ranks(run, role, 1 if is_alone else 2).items():
            if record.error:
                place = run.writer_dir(role, rank, 1 if is_alone else 2) / RANK_MANIFEST
                found.append(finding(place, "manifest_damaged", record.error))
    if not os.path.lexists(path):
        return [*found, finding(path, "manifest_missing", "the run has rank directories but no manifest")]
    try:
        manifest = run.read_manifest()
        state = read_run(run)
    except DistSummaryError as error:
        return [*found, finding(path, "manifest_damaged", str(error))]
    in_files = _attempts(run, directories)
    if missing := _missing(manifest, in_files):
        names = ", ".join(f"{one.role} {one.number} of the run {one.run_id}" for one in missing[:_NAMED])
        text = f"attempts in the event files are missing from it: {names}"
        return [*found, finding(path, "manifest_stale", text)]
    for attempt in state.attempts:
        name = f"attempt {attempt.attempt} of role {attempt.role}"
        # A rank with events in its files has registered, so its manifest should say so.
        recorded = {rank for one in in_files if (one.role, one.number) == (attempt.role, attempt.attempt)
                    for rank in one.first}  # fmt: skip
        if silent := sorted(recorded & {*attempt.missing}):
            text = f"{named(silent, 'rank')} recorded in {name}, but their {RANK_MANIFEST} does not say so"
            found.append(finding(path, "manifest_stale", text))
        if lost := [one for one in attempt.ranks if one.state == "lost"]:
            text = f"{named([one.rank for one in lost], 'rank')} of {name} died without a word; the first: "
            why = attempt.failure.error if attempt.failure else lost[0].reason
            found.append(finding(path, "lost_ranks", f"{text}{why or 'for an unknown reason'}"))
    if unread := read_reports(run, state.newest).unread:
        found.append(finding(run.alerts_path, "reports_damaged", unread))
    for directory in {run.base, *run.rank_dirs("train").values()}:
        for file in (FACTS, PARTS, COMMAND):
            try:
                if problem := problem_of(directory / file):
                    found.append(finding(directory / file, "facts_damaged", problem))
            except OSError as error:
                # The command line is its user's alone.
                if file != COMMAND or error.errno != errno.EACCES:
                    found.append(
                        finding(directory / file, "unreadable", f"it cannot be read: {reason(error)}")
                    )
    return found


def repair_manifest(run: RunDir, directories: Mapping[Path, DirectoryFacts]) -> None:
    """Rebuild the manifests, or add what is missing; each old one is kept as `<name>.<n>.bak`.

    The manifests of the ranks name the attempts missing in run.json. What only event files show gets the
    state unknown. Raises RunDirError if a manifest cannot be written.
    """
    in_files = _attempts(run, directories)
    try:
        set_aside(run.manifest_path, keep=_is_readable(run))
        by_attempt = _of_ranks(run)
    except OSError as error:
        raise RunDirError(f"{error.filename} cannot be backed up: {reason(error)}") from error
    # The manifests of the ranks say more than the event files, which only add what is missing there.
    for one in in_files:
        ranks = by_attempt.setdefault((one.role, one.number), {})
        for rank, time in one.first.items():
            place = Topology(
                role=one.role, rank=rank, world_size=one.world_size, source="fsck", host="", pid=0,
                incarnation=f"fsck {one.run_id} {one.role} {one.number}", pid_space="", pid_start="",
            )  # fmt: skip
            started = time if 0 <= time <= MOST_S else 0.0
            ranks.setdefault(rank, new_entry(place, one.number, "unknown", started=started))
    _write_ranks(run, by_attempt)
    run.update_manifest(lambda manifest: _complete(manifest, by_attempt, in_files))


def _complete(
    manifest: Manifest,
    by_attempt: Mapping[tuple[str, int], dict[int, Manifest]],
    in_files: list[_Attempt],
) -> None:
    """Add the attempts missing in run.json, by the ranks' files and the event files."""
    missing = _missing(manifest, in_files)
    # A new manifest, or one of another run, becomes that of the run in the event files.
    if missing and manifest["run_id"] != missing[0].run_id:
        manifest |= {"run_id": missing[0].run_id, "attempts": []}
    known = {(entry["role"], entry["attempt"]) for entry in manifest["attempts"]}
    # Without event files, the ranks' files are all there is; with them, those of other runs are left out.
    wanted = {(one.role, one.number) for one in missing} if in_files else {*by_attempt}
    added = []
    for key in sorted(wanted - known, key=lambda key: (_ROLES.index(key[0]), key[1])):
        ranks = [*by_attempt.get(key, {}).values()]
        entry = {
            "role": key[0],
            "attempt": key[1],
            "incarnation": ranks[0]["incarnation"],
            "world_size": ranks[0]["world_size"],
            "started": min((rank["started"] for rank in ranks), default=0.0),
        }
        manifest["attempts"].append(entry)
        added.append(entry)
    starts = [entry["started"] for entry in manifest["attempts"] if entry.get("started")]
    if starts:
        manifest["created"] = min(starts)
    # The event files do not show how a run ended, or whether it still runs.
    if manifest.get("state") == "running" or any(decides(manifest, entry) for entry in added):
        manifest["state"] = "unknown"


def _write_ranks(run: RunDir, by_attempt: Mapping[tuple[str, int], dict[int, Manifest]]) -> None:
    """Write the files of the ranks that do not have each of their attempts."""
    wanted: dict[Path, tuple[str, int, list[Manifest]]] = {}
    for (role, _), ranks in sorted(by_attempt.items()):
        for rank, entry in ranks.items():
            place = run.writer_dir(role, rank, entry["world_size"])
            wanted.setdefault(place, (role, rank, []))[2].append(entry)
    for place, (role, rank, entries) in wanted.items():
        record = read_entries(place)
        if place.is_dir() and (record is None or record.attempts != entries):
            publish(place / RANK_MANIFEST, encoded(role, rank, entries))


def _of_ranks(run: RunDir) -> dict[tuple[str, int], dict[int, Manifest]]:
    """Role and attempt -> rank -> its entry; files that cannot be read are set aside."""
    found: dict[tuple[str, int], dict[int, Manifest]] = {}
    for role in _ROLES:
        for world_size in (1, 2):
            for rank, record in read_ranks(run, role, world_size).items():
                if record.error:
                    set_aside(run.writer_dir(role, rank, world_size) / RANK_MANIFEST, keep=False)
                for entry in record.attempts:
                    if (entry["world_size"] == 1) == (world_size == 1):
                        found.setdefault((role, entry["attempt"]), {})[rank] = entry
    return found


def set_aside(path: Path, *, keep: bool) -> None:
    """Keep a copy of a file as `<name>.<n>.bak`; without `keep`, the file is moved there."""
    if not os.path.lexists(path):
        return
    number = 0
    while os.path.lexists(copy := path.with_name(f"{path.name}.{number}.bak")):
        number += 1
    if keep:
        shutil.copy2(path, copy)
    else:
        os.replace(path, copy)


def _is_readable(run: RunDir) -> bool:
    try:
        run.read_manifest()
    except DistSummaryError:
        return False
    return True


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
    """The attempts missing in the manifest; all of the newest run if no file is of the manifest's run."""
    if not attempts:
        return []
    known = {(entry["role"], entry["attempt"]) for entry in manifest["attempts"]}
    run_ids = {one.run_id for one in attempts}
    run_id = manifest["run_id"] if manifest["run_id"] in run_ids else attempts[-1].run_id
    found = [one for one in attempts if one.run_id == run_id]
    if manifest["run_id"] == run_id:
        found = [one for one in found if (one.role, one.number) not in known]
    return found
