"""The ranks' files of a run to the one run that they are, offline and without Ray."""

import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from distsummary.aggregate.merge_lineage import Conflict, merge_lineage
from distsummary.aggregate.merged_files import MergedFiles, other_segments
from distsummary.aggregate.rank_files import Part, RankFiles
from distsummary.aggregate.statistics import KEY_TAGS, Floats, Ints, named_series, over_ranks
from distsummary.checks import check_type
from distsummary.coordination import newest_attempt
from distsummary.errors import MissingFileError, NotADirectoryPathError, RunDirError
from distsummary.format.encode import Refusal
from distsummary.format.frames import MAX_PAYLOAD
from distsummary.format.records import Event, Histogram, Image, Landscape, Value
from distsummary.publish import ensure_directory
from distsummary.reading.reader import Damage, read_lineage
from distsummary.run_dir import Manifest, RunDir
from distsummary.writing.files import Files

# The union of many ranks' tensors may be more than one event can hold; then a step has several.
EVENT_BUDGET = MAX_PAYLOAD // 2  # bytes
_BIN_BYTES = 30
_SMALL_BYTES = 64
_ALL_RANKS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """What a merge did with the ranks of one role.

    `note` says why nothing was merged, empty when something was. `missing_ranks` are those of the last
    attempt without a directory. `steps` counts the steps written, `last_steps` has the last one of each rank.
    Left out were: `damage` (what could not be read), `refused` (values that could not be written),
    `superseded` (events behind the start of a later attempt), `sharded` (values that are a part of a tensor;
    the ranks' files hold the parts).
    """

    path: Path
    role: str = "train"
    note: str = ""
    ranks: tuple[int, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    steps: int = 0
    last_steps: dict[int, int] = field(default_factory=dict)
    conflicts: tuple[Conflict, ...] = ()
    damage: tuple[Damage, ...] = ()
    refused: tuple[Refusal, ...] = ()
    superseded: int = 0
    sharded: int = 0
    files: tuple[Path, ...] = ()
    evaluation: "MergeReport | None" = None


def merge_run(
    path: str | os.PathLike[str] | RunDir, *, key_tags: Collection[str] = (), files: Files | None = None
) -> MergeReport:
    """Write one run out of the directories of its ranks, into the run dir itself, in both dialects.

    Scalars become their mean over the ranks that have the step and, for KEY_TAGS and `key_tags`, also
    `<tag>/min`, `/median`, `/max` and `/argmax_rank` (see `statistics.over_ranks`). Each histogram,
    tensor and image comes from the lowest rank that has it, and so does the graph. The lineage is that of
    `merge_lineage`. Events are in rising step order, one for each step, with the wall time of its latest
    rank. Merging again replaces the merged files with ones of the same records. Directories of the role eval
    are merged in the same way, into `eval`.

    Args:
        path: the run dir. key_tags: more scalar tags that get all statistics.
        files: the operating system; a test passes a double.

    Raises:
        MissingFileError: there is no such directory.
        RunDirError: it is no run, cannot be written, is being merged by another process, or also holds event
            files that no merge wrote.
    """
    run_dir = path if isinstance(path, RunDir) else RunDir(path)
    check_type("key_tags", key_tags, (list, tuple, set, frozenset))
    for tag in key_tags:
        check_type("an item of key_tags", tag, str)
    _refuse_what_is_no_run(run_dir)
    if not run_dir.rank_dirs("train") and not run_dir.rank_dirs("eval"):
        return MergeReport(
            path=run_dir.base,
            note="the run has one rank, whose files are the run's",
            ranks=(0,),
            last_steps={},
        )
    with run_dir.locked("merge"):
        evaluation = _merge_role(run_dir, "eval", key_tags, files)
        return _merge_role(run_dir, "train", key_tags, files, evaluation)


def _refuse_what_is_no_run(run_dir: RunDir) -> None:
    base = run_dir.base
    if not base.exists():
        raise MissingFileError(f"there is no run dir {base}; name the directory that the ranks wrote to")
    if not base.is_dir():
        raise NotADirectoryPathError(
            f"the run dir must be a directory, but {base} is a file; name its parent"
        )
    is_run = run_dir.manifest_path.exists() or run_dir.rank_dirs("train") or run_dir.rank_dirs("eval")
    if not is_run and not other_segments(base):
        raise RunDirError(
            f"{base} is no run: it has neither {run_dir.manifest_path.name} nor rank directories nor event "
            "files; name the directory that holds them"
        )


def _merge_role(
    run_dir: RunDir,
    role: str,
    key_tags: Collection[str],
    files: Files | None,
    evaluation: MergeReport | None = None,
) -> MergeReport:
    directories = run_dir.rank_dirs(role)
    target = run_dir.writer_dir(role, 0, 1)
    if not directories:
        return MergeReport(path=target, role=role, note="no rank directories", evaluation=evaluation)
    ensure_directory(target)
    refuse_foreign_files(target)
    manifest = run_dir.read_manifest()
    newest = newest_attempt(manifest, role)
    world_size = int(newest["world_size"]) if newest else max(directories) + 1
    ranks = RankFiles(directories)
    # A rank beyond the world is of an attempt that had more ranks; its lineage is not that of the last one.
    lineages = {rank: read_lineage(path) for rank, path in directories.items() if rank < world_size}
    lineage, conflicts = merge_lineage(lineages, world_size)
    run_id = manifest["run_id"] or ranks.run_id or secrets.token_hex(8)
    with MergedFiles(target, run_id=run_id, attempt=max(ranks.attempts, default=0), files=files) as merged:
        steps = _write(merged, merged_events(ranks, key_tags))
        merged.write_lineage(lineage)
        published = merged.publish()
    report = MergeReport(
        path=target,
        role=role,
        ranks=tuple(directories),
        missing_ranks=tuple(rank for rank in range(world_size) if rank not in directories),
        attempts=ranks.attempts,
        steps=steps,
        last_steps=ranks.last_steps(),
        conflicts=tuple(conflicts),
        damage=tuple(ranks.damage),
        refused=tuple(merged.refused),
        superseded=ranks.superseded,
        sharded=ranks.sharded,
        files=published,
        evaluation=evaluation,
    )
    run_dir.update_manifest(_entry(report, run_id))
    return report


def _write(merged: MergedFiles, events: Iterator[Event]) -> int:
    """Write the events; returns how many steps they are."""
    steps = set()
    for event in events:
        merged.write(event)
        if event.values[0].plugin != "graph":
            steps.add(event.step)
    return len(steps)


def refuse_foreign_files(target: Path) -> None:
    """Raise RunDirError when the place of a merged run holds event files that no merge wrote."""
    foreign = other_segments(target)
    if foreign:
        names = ", ".join(path.name for path in foreign[:3])
        raise RunDirError(
            f"{target} holds event files that no merge wrote ({names}), where the merged run of several "
            "ranks belongs; viewers would mix them: move them to a directory of their own, then try again"
        )


def _entry(report: MergeReport, run_id: str) -> Callable[[Manifest], None]:
    """The change of the manifest: what the viewers' files have no place for."""

    def change(manifest: Manifest) -> None:
        manifest["run_id"] = run_id
        entries: dict[str, Any] = manifest.setdefault("merged", {})
        entries[report.role] = {
            "merged_at": time.time(),
            "ranks": list(report.ranks),
            "missing_ranks": list(report.missing_ranks),
            "last_steps": {str(rank): step for rank, step in report.last_steps.items()},
            "conflicts": [conflict.as_json() for conflict in report.conflicts],
            "damage": [{"file": str(d.file), "offset": d.offset, "reason": d.reason} for d in report.damage],
        }

    return change


def merged_events(ranks: RankFiles, key_tags: Collection[str] = ()) -> Iterator[Event]:
    """The events of the run in rising step order: its graph at step 0, then one event for each step.

    A step whose values are more than EVENT_BUDGET bytes is several events.
    """
    times = ranks.wall_times()
    if ranks.graph is not None:
        yield Event(0, ranks.graph.wall_time, [ranks.graph.value])
    parts = merge(scalar_parts(ranks, key_tags), ranks.bulk(), key=attrgetter("step", "rank"))
    for step, same_step in groupby(parts, key=attrgetter("step")):
        values: list[Value] = []
        room = EVENT_BUDGET
        for value in (value for part in same_step for value in part.values):
            room -= _size(value)
            if room < 0 and values:
                yield Event(step, times[step], values)
                values, room = [], EVENT_BUDGET - _size(value)
            values.append(value)
        yield Event(step, times[step], values)


def scalar_parts(ranks: RankFiles, key_tags: Collection[str] = ()) -> Iterator[Part]:
    """The merged scalars of each step, in rising step order and by tag."""
    series: list[tuple[str, Ints, Floats]] = []
    tags = ranks.scalar_tags()
    for tag in tags:
        statistics = over_ranks(*ranks.scalars(tag))
        is_key = tag in KEY_TAGS or tag in key_tags
        named = named_series(tag, statistics, is_key=is_key, taken=tags)
        series += [(name, statistics.steps, values) for name, values in named.items()]
    if not series:
        return
    names = [name for name, _, _ in series]
    which = np.repeat(np.arange(len(series)), [len(steps) for _, steps, _ in series])
    steps = np.concatenate([steps for _, steps, _ in series])
    values = np.concatenate([values for _, _, values in series])
    order = np.argsort(steps, kind="stable")
    unique, starts = np.unique(steps[order], return_index=True)
    for step, (start, end) in zip(unique.tolist(), pairwise([*starts.tolist(), len(order)]), strict=True):
        rows = order[start:end]
        pairs = zip(which[rows].tolist(), values[rows].tolist(), strict=True)
        yield Part(step, _ALL_RANKS, [Value("scalar", names[index], value) for index, value in pairs])


def _size(value: Value) -> int:
    """About how many bytes a value takes, not less."""
    match value.data:
        case np.ndarray():
            body = 4 * value.data.size
        case Histogram():
            body = _BIN_BYTES * len(value.data.left)
        case Image():
            body = len(value.data.encoded)
        case Landscape():
            body = 4 * (
                value.data.z.size + value.data.x.size + value.data.y.size + 3 * value.data.path_x.size
            )
        case _:
            body = 0
    return body + len(value.tag.encode()) + _SMALL_BYTES
