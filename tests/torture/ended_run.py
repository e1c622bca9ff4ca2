"""What a run of L2 says when it is over: its states, and its merged run compared with an offline merge."""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distsummary.aggregate.merge import merge_run
from distsummary.rundir import states
from distsummary.rundir.run_dir import RunDir
from tests.torture.reader import decode, files_of, records
from tests.torture.workload import DIALECTS

Steps = dict[tuple[str, int], dict[str, str]]  # (dialect, step) -> tag -> fingerprint
ON_RANKS = "zz_ranks/count"
ABOUT = ("custom_scalars__config__", "zz_run", "_hparams_/")  # no values: their steps are when known
COMPARED = 5  # differences that a complaint names


def check_states(made: Any) -> Iterator[str]:
    """What the states of a round say that is not so."""
    ending, found = made.ending, states.read_run(made.run)
    attempt = found.newest
    if attempt is None:
        yield "no attempt"
        return
    # Ranks that wait for each other fail with the culprit, or still wait when `ds.launch` stops them.
    others = ending.others + (("failed", "lost") if made.is_collective and ending.how != "finish" else ())
    run = ending.run + (("failed",) if made.is_collective and ending.how != "finish" else ())
    if found.state not in run:
        yield f"the run is {found.state}, expected {run}: {_reported(attempt)}"
    if attempt.missing:
        yield f"missing ranks {attempt.missing}"
    for rank in attempt.ranks:
        is_culprit = rank.rank == made.culprit and ending.how != "raylet"  # of a node that ends, all are
        expected = ending.culprit if is_culprit else others
        if any("full disk" in fault for fault in made.reported):  # its bulk values may have been dropped
            expected += ("incomplete",)
        if rank.state not in expected:
            yield f"rank {rank.rank} is {rank.state}, expected {expected}: {_reported(attempt)}"
    if ending.words:
        failure = attempt.failure
        if failure is None:  # no one reported a failure or a death
            silent = [one for one in attempt.ranks if one.rank == made.culprit and one.state == "lost"]
            failure = states.Failure(made.culprit, silent[0].reason, 0) if silent else None
        if (
            failure is None
            or failure.rank != made.culprit
            or not any(word in failure.error for word in ending.words)
        ):
            yield f"the failure is {failure}, expected rank {made.culprit} with one of {ending.words}"


def _reported(attempt: states.AttemptState) -> str:
    return "; ".join(f"{one.rank} {one.state} {one.error or one.reason}" for one in attempt.ranks)


def check_merged(run: Path) -> list[str]:
    """Where the aggregator's merged run, or a merge after it, differs from a merge of the ranks' files."""
    copy = run.with_name("offline")
    shutil.copytree(run, copy, ignore=lambda place, names: _merged(place, names, run))
    merge_run(RunDir(copy))
    offline, complaints = _read(copy, "offline")
    online, more = _read(run, "online")
    full = {
        key
        for key in online.keys() & offline.keys()
        if online[key].get(ON_RANKS) == offline[key].get(ON_RANKS)
    }
    complaints += more
    [*_, attempt] = RunDir(run).read_manifest()["attempts"]
    if attempt.get("merged"):  # not where the last aggregator was killed, or had no room
        complaints += _differences("online", {key: online[key] for key in full}, offline)
    merge_run(RunDir(run))
    after, more = _read(run, "merged again")
    complaints += more + list(_differences("merged again", after, offline))
    complaints += [f"merged again misses steps: {sorted(offline.keys() - after.keys())[:COMPARED]}"] * (
        offline.keys() != after.keys()
    )
    shutil.rmtree(copy)
    return complaints


def _merged(place: str, names: list[str], run: Path) -> list[str]:
    """The files in the run dir itself that a merge writes."""
    if Path(place) != run:
        return []
    return [name for name in names if "tfevents" in name or ".summary." in name or name.startswith("seg-")]


def _read(directory: Path, what: str) -> tuple[Steps, list[str]]:
    steps: Steps = defaultdict(dict)
    complaints = []
    for dialect in DIALECTS:
        for path in files_of(directory, dialect):
            for record in records(path.read_bytes()):
                found = decode(record.payload, dialect) if record.payload else None
                if found is None:
                    continue
                held = steps[dialect, found.step]
                values = {tag: value for tag, value in found.values.items() if not tag.startswith(ABOUT)}
                if twice := held.keys() & values.keys():
                    complaints.append(
                        f"{what}: {dialect} step {found.step} holds {sorted(twice)[:COMPARED]} twice"
                    )
                held |= values
    return steps, complaints[:COMPARED]


def _differences(what: str, ours: Steps, offline: Steps) -> Iterator[str]:
    found = []
    for key in sorted(ours):
        other = ours[key].items() ^ offline.get(key, {}).items()
        if other:
            found.append(f"{what} differs from offline at {key}: {sorted(other)[:COMPARED]}")
    if found:
        yield f"{len(found)} steps: {found[0]}"
