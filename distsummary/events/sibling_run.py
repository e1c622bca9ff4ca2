"""A run whose ranks have a directory each, `PREFIX0`, `PREFIX1` ..., as scripts of MindSpore name them.

A script that passes `summary_dir + str(get_rank())` makes one of two forms, where RANK is the number:

- nested: `PREFIX1/rank_00001/` with a run.json in `PREFIX1`, by SummaryCollector on several ranks;
- plain: the event files of the rank in `PREFIX1` itself, by SummaryRecord, or by MindSpore.

The merged run, and its run.json, are in PREFIX.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distsummary.errors import DistSummaryError, RunDirError
from distsummary.rundir.identity import KEY, salt_of
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.states import read_run

if TYPE_CHECKING:
    from distsummary.format.lineage import Lineage

NESTED, PLAIN = "nested", "plain"
ROLES = ("train", "eval")
APART_S = 60.0  # ranks of one job do not begin later than this after another one has ended
_MARK = "siblings"  # the entry in run.json of PREFIX
_OF_ITS_MERGE = ("merged", "missing", "evaluated")  # what an attempt says of the merge of its own directory


class _Sibling(NamedTuple):
    """What a numbered directory is: NESTED, PLAIN or, in words, something else; empty for nothing."""

    path: Path
    kind: str
    manifest: Manifest


class SiblingRun(RunDir):
    """The run dir PREFIX of ranks in `PREFIX0`, `PREFIX1` and so on.

    Its manifest is that of PREFIX with the attempts that the ranks' own manifests list.

    Args:
        path: PREFIX.
        siblings: rank -> its numbered directory.
    """

    def __init__(
        self, path: str | os.PathLike[str], siblings: Mapping[int, Path], *, is_nested: bool
    ) -> None:
        super().__init__(path)
        self.siblings = dict(siblings)
        self._is_nested = is_nested

    def rank_dirs(self, role: str = "train") -> dict[int, Path]:
        """See `RunDir.rank_dirs`; those of plain siblings are of the role train."""
        if not self._is_nested:
            return dict(self.siblings) if role == "train" else {}
        found = {rank: RunDir(path).rank_dirs(role).get(rank) for rank, path in self.siblings.items()}
        return {rank: path for rank, path in found.items() if path is not None}

    def writer_dir(self, role: str, rank: int, world_size: int) -> Path:
        """See `RunDir.writer_dir`; of a run of one rank it is the place of the merged run."""
        if world_size == 1 or rank not in self.siblings:
            return super().writer_dir(role, rank, world_size)
        path = self.siblings[rank]
        return RunDir(path).writer_dir(role, rank, world_size) if self._is_nested else path

    def is_rank_dir(self, path: Path) -> bool:
        """See `RunDir.is_rank_dir`."""
        return path in self.rank_dirs("train").values() or path in self.rank_dirs("eval").values()

    def read_manifest(self) -> Manifest:
        """The manifest of PREFIX, with the attempts that the ranks know."""
        own = super().read_manifest()
        reported = [RunDir(path).read_manifest() for path in self.siblings.values()]
        attempts: dict[tuple[str, int], Manifest] = {}
        for entry in (entry for manifest in reported for entry in manifest["attempts"]):
            own_facts = {key: fact for key, fact in entry.items() if key not in _OF_ITS_MERGE}
            known = attempts.setdefault((entry["role"], entry["attempt"]), own_facts)
            known["started"] = min(known.get("started", 0.0), entry.get("started", 0.0))
            if deaths := {**entry.get("deaths", {}), **known.get("deaths", {})}:
                known["deaths"] = deaths
        created = [manifest["created"] for manifest in reported if manifest.get("created")]
        if not self._is_nested:
            created = [begun for path in self.siblings.values() if (begun := _begun(path))]
        own["attempts"] = [attempts[key] for key in sorted(attempts)] or own["attempts"]
        own["created"] = min(created, default=own["created"])
        if any(map(salt_of, reported)):
            own[KEY] = False
        return own

    def refuse_removed_manifest(self) -> None:
        """See `RunDir.refuse_removed_manifest`; that of siblings comes with their first merge."""

    def update_manifest(
        self, change: Callable[[Manifest], None], *, is_done: Callable[[Manifest], bool] | None = None
    ) -> Manifest:
        """See `RunDir.update_manifest`; the manifest then says that the ranks are siblings."""

        def mark(manifest: Manifest) -> None:
            change(manifest)
            manifest |= {_MARK: True, "state": read_run(self).state}
            manifest["created"] = self.read_manifest()["created"] or manifest["created"]

        return super().update_manifest(mark, is_done=is_done)


def sibling_run(path: str | os.PathLike[str]) -> SiblingRun | None:
    """The run of ranks in `path + "0"`, `path + "1"` ...; None if `path` is another run or there are none.

    Raises RunDirError if the numbered directories do not belong to one job; DamagedFileError if one of their
    manifests is damaged.
    """
    run = RunDir(path)
    if any(run.rank_dirs(role) for role in ROLES):
        return None
    is_marked = run.manifest_path.exists() and _MARK in run.read_manifest()
    if not is_marked and run.manifest_path.exists():
        return None
    found = {number: _look(number, place) for number, place in run.numbered_dirs().items()}
    ranks = {number: one for number, one in found.items() if one.kind in (NESTED, PLAIN)}
    kinds = {one.kind for one in ranks.values()}
    is_plausible = kinds == {NESTED} or (0 in ranks and len(ranks) > 1)  # plain ones say nothing of a job
    if not ranks or not (is_plausible or is_marked):
        return None
    if not is_marked and _begun(run.base):  # it has event files, which no merge of siblings wrote
        return None
    if others := [
        f"{one.path} is {one.kind}" for one in found.values() if one.kind and one not in ranks.values()
    ]:
        raise _mixed(run, others)
    if len(kinds) > 1:
        texts = {NESTED: "has a rank directory", PLAIN: "has event files, but no rank directory"}
        raise _mixed(run, [f"{one.path} {texts[one.kind]}" for one in ranks.values()])
    if differences := _differences(ranks) if kinds == {NESTED} else _plain_differences(ranks):
        raise _mixed(run, differences)
    return SiblingRun(path, {number: one.path for number, one in ranks.items()}, is_nested=kinds == {NESTED})


def sibling_hint(run: RunDir) -> str:
    """How to merge a rank's numbered directory with those of the other ranks; empty if it is none."""
    split = run.without_number()
    if split is None:
        return ""
    whole, number = split
    try:
        found = sibling_run(whole)
    except (DistSummaryError, OSError):  # they are not of one job
        return ""
    if found is None or number not in found.siblings or len(found.siblings) == 1:
        return ""
    return (
        f"{run.base} has only rank {number} of a job whose ranks have {len(found.siblings)} directories "
        f"{found.base.name}<rank>; merge all of them with: distsummary merge {found.base}"
    )


def _look(number: int, path: Path) -> _Sibling:
    """What a numbered directory is."""
    from distsummary.events.segments import all_event_files  # loads NumPy, which most runs do not need here

    run = RunDir(path)
    manifest = run.read_manifest()
    ranks = {rank for role in ROLES for rank in run.rank_dirs(role)}
    sizes = {entry["world_size"] for entry in manifest["attempts"]}
    if ranks == {number} and sizes != {1}:
        kind = NESTED
    elif len(ranks) == 1:
        kind = f"the directory of rank {min(ranks)}"
    elif ranks:
        kind = f"a run of {len(ranks)} ranks itself"
    elif _MARK in manifest:
        kind = "a merged run itself"
    elif sizes:
        kind = "a run of one rank itself, by its run.json"
    else:
        kind = PLAIN if all_event_files(path) else ""
    return _Sibling(path, kind, manifest)


def _mixed(run: RunDir, texts: list[str]) -> RunDirError:
    return RunDirError(
        f"the directories {run.base}<number> are not the ranks of one job: {'; '.join(texts[:4])}; move "
        "those of other jobs elsewhere, or name one of the directories"
    )


def _differences(ranks: Mapping[int, _Sibling]) -> list[str]:
    """What the manifests of nested siblings say differently of the same attempt."""
    reported: dict[tuple[str, int], tuple[Path, Manifest]] = {}
    for one in ranks.values():
        for entry in one.manifest["attempts"]:
            first, known = reported.setdefault((entry["role"], entry["attempt"]), (one.path, entry))
            is_masked = any(salt_of(found.manifest) for found in ranks.values())  # each with a key of its own
            for key in ("world_size",) if is_masked else ("world_size", "incarnation"):
                if entry[key] != known[key]:
                    return [
                        f"{first} has {key} {known[key]!r} and {one.path} {entry[key]!r} for attempt "
                        f"{entry['attempt']}"
                    ]
    return []


def _plain_differences(ranks: Mapping[int, _Sibling]) -> list[str]:
    """What the files of plain siblings say differently: when they were written, and what was trained."""
    from distsummary.events.reader import read_lineage  # see `_look`

    places = [one.path for one in ranks.values()]
    times = {path: _time(path) for path in places}
    last, first = max(places, key=lambda path: times[path][0]), min(places, key=lambda path: times[path][1])
    late_s = times[last][0] - times[first][1]
    if late_s > APART_S:
        return [f"{last} begins {late_s:.0f} s after {first} has ended"]
    fields: tuple[tuple[str, Callable[[Lineage], Any]], ...] = (
        ("network", lambda one: one.train.algorithm.network if one.train else None),
        ("device_num", lambda one: one.train.hyper_parameters.device_num if one.train else None),
    )
    lineages = {path: read_lineage(path) for path in places}
    for name, field in fields:
        reported = {path: value for path in places if (value := field(lineages[path]))}
        values = [*reported.items()]
        for path, value in values[1:]:
            if value != values[0][1]:
                return [f"{values[0][0]} has the {name} {values[0][1]!r} and {path} {value!r}"]
    return []


def _time(directory: Path) -> tuple[float, float]:
    """When a directory's oldest event file begins and its newest ends, in seconds since the epoch."""
    from distsummary.events.newest import newest_events  # see `_look`

    begun = _begun(directory)
    return begun, max([begun, *(event.wall_time for event in newest_events(directory))])


def _begun(directory: Path) -> float:
    """The stamp of a directory's oldest event file, in seconds since the epoch; 0 if it has none."""
    from distsummary.events.segments import all_event_files, stamp_of  # see `_look`

    if not directory.is_dir():
        return 0.0
    return float(min((stamp_of(path.name) or 0 for path in all_event_files(directory)), default=0))
