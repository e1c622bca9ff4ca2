"""Merge the files of a run's ranks into one run, offline and without Ray."""

import os
import secrets
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distsummary.aggregate.earlier_merge import EarlierMerge
from distsummary.aggregate.ended_ranks import EndedRanks
from distsummary.aggregate.judging import Judging
from distsummary.aggregate.merge_lineage import Conflict
from distsummary.aggregate.merged_files import (
    MERGED,
    StagedWriter,
    holds_steps,
    merge_facts,
    other_segments,
    refuse_foreign_files,
)
from distsummary.aggregate.merger import Merger
from distsummary.aggregate.role_description import describe, log_conflicts
from distsummary.aggregate.step_files import StepFiles
from distsummary.base.checks import check_recorded, check_type
from distsummary.base.guard import guarded_log
from distsummary.base.publish import ensure_directory
from distsummary.diagnosis.alerts import Reported, reported_hangs
from distsummary.diagnosis.reporting import Alerts
from distsummary.errors import MissingFileError, NotADirectoryPathError, RunDirError
from distsummary.events.files import Files
from distsummary.events.reader import Damage
from distsummary.events.segments import lineage_files, segments
from distsummary.events.spec import WriterSpec
from distsummary.format.definitions import Definitions
from distsummary.format.encode import Refusal
from distsummary.format.own_tags import RANKS_TAG
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD
from distsummary.rundir.attempts import awaited_aggregator, newest_attempt
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.run_dir import Manifest, RunDir

_ROLES = ("eval", "train")

logger = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """The result of merging the ranks of one role.

    Attributes:
        path: the directory of the merged files: the run dir, or its directory `eval` for the role eval.
        note: why nothing was merged; empty if something was.
        missing_ranks: the ranks of the last attempt that have no directory.
        steps: how many steps were written. last_steps: rank -> its last step.
        completed: how many steps the merged files before, as an aggregator writes them while the ranks train,
            did not have or had of fewer ranks; 0 if there were none.
        conflicts: fields of the lineage on which the ranks disagree.
        damage: the parts of rank files that could not be read. refused: values that could not be written.
        superseded: how many events were left out because a later attempt repeated their steps.
        sharded: how many shards were left out because they could not be put together: those of tensors, and
            of histograms of which shards are missing. The files of the ranks hold them.
        short_norms: how many parameters have no norm (NaN) at a step, summed over steps, as those of a rank
            that holds a part of them are missing.
        files: the merged files.
        evaluation: the report of the role eval.
    """

    path: Path
    role: str = "train"
    note: str = ""
    ranks: tuple[int, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    steps: int = 0
    completed: int = 0
    last_steps: dict[int, int] = field(default_factory=dict)
    conflicts: tuple[Conflict, ...] = ()
    damage: tuple[Damage, ...] = ()
    refused: tuple[Refusal, ...] = ()
    superseded: int = 0
    sharded: int = 0
    short_norms: int = 0
    files: tuple[Path, ...] = ()
    evaluation: "MergeReport | None" = None


def merge_run(
    run_dir: str | os.PathLike[str], *, key_tags: Collection[str] = (), files: Any = None
) -> MergeReport:
    """Merge the directories of a run's ranks into one run in the run dir itself.

    The files are written in MindSpore's and in TensorBoard's dialect; next to files that another program
    wrote for TensorBoard, only in the latter. A scalar becomes its mean over the ranks that recorded it at
    the step, or what `define` of run.json says. Tags in KEY_TAGS or `key_tags`, and other tags in which the
    ranks differ, also get `<tag>/min`, `/median`, `/max` and `/argmax_rank` (see
    `statistics.StatisticsRule`). The graph and each histogram, tensor, image and text come from the lowest
    rank that has them; `merge_lineage` merges the lineages. Each step has one event, or several if it is
    large, with the latest wall time of any rank. Merging the same rank files again gives equal merged files.
    Directories of the role eval are merged likewise, into `eval`.

    Args:
        run_dir: the run dir.
        key_tags: more scalar tags that get all statistics, in this and every later merge of the run: they are
            kept in `key_tags` of run.json.
        files: the file operations to use; None means the real ones. Tests pass a test double.

    Raises:
        MissingFileError: the directory does not exist.
        NotADirectoryPathError: it is a file.
        InvalidValueError: no rank recorded a scalar with a tag in `key_tags`.
        RunDirError: the directory is no run, cannot be written, is being merged by another process or will be
            by an aggregator that lives, holds event files that were not written by a merge, or holds a merged
            run while no rank directory has events.

    In all these cases the files of the run stay as they were.
    """
    run = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    check_type("key_tags", key_tags, (list, tuple, set, frozenset))
    for tag in key_tags:
        check_type("an item of key_tags", tag, str)
    if not run.base.exists():
        raise MissingFileError(f"there is no run dir {run.base}; {run.remedy_if_missing()}")
    if not run.base.is_dir():
        raise NotADirectoryPathError(
            f"the run dir must be a directory, but {run.base} is a file; name its parent"
        )
    has_ranks = bool(run.rank_dirs("train") or run.rank_dirs("eval"))
    if not has_ranks and not run.manifest_path.exists() and not other_segments(run.base):
        raise RunDirError(
            f"{run.base} is no run: it has neither {run.manifest_path.name} nor rank directories nor event "
            "files; name the directory that holds them"
        )
    # A run of one rank needs no merge. A merged run whose rank directories are gone looks alike, and raises.
    if not has_ranks:
        for role in _ROLES:
            refuse_loss(run, role, EndedRanks({}))
        return MergeReport(
            path=run.base, note="the run has one rank, so nothing has to be merged", ranks=(0,), last_steps={}
        )
    refuse_aggregated(run)
    with run.locked("merge"):
        # run.json is read before the files: what is noted in it later may not be in them.
        manifest = run.read_manifest()
        read = {role: EndedRanks(run.rank_dirs(role)) for role in _ROLES}
        for role, ranks in read.items():
            refuse_loss(run, role, ranks)
        # All checks come before the first file is written.
        recorded = {tag for ranks in read.values() for tag in ranks.scalar_tags}
        for tag in sorted(key_tags):
            check_recorded(tag, recorded, "scalars", field="an item of key_tags")
        known = set(manifest.get("key_tags", []))
        wanted = known | set(key_tags)
        run_id = manifest["run_id"] or read["eval"].run_id or read["train"].run_id or secrets.token_hex(8)
        evaluation = _merge_role(run, "eval", manifest, read["eval"], run_id, wanted, files)
        report = _merge_role(run, "train", manifest, read["train"], run_id, wanted, files, evaluation)
        # Every later merge, by hand or by an aggregator, gives these tags their statistics too.
        if wanted > known:
            run.update_manifest(
                lambda manifest: manifest.update(key_tags=sorted({*manifest.get("key_tags", []), *wanted}))
            )
        return report


def formats_of(manifest: Manifest, directories: Iterable[Path]) -> tuple[str, ...]:
    """The dialects of the merged run: next to the files of another writer of TensorBoard's, only that one."""
    has_attempts = bool(manifest["attempts"])
    is_ours = has_attempts or any(segments(one, MINDSPORE) or lineage_files(one) for one in directories)
    return DIALECTS if is_ours else (TENSORBOARD,)


def _merge_role(
    run_dir: RunDir,
    role: str,
    manifest: Manifest,
    ranks: EndedRanks,
    run_id: str,
    key_tags: Collection[str],
    files: Files | None,
    evaluation: MergeReport | None = None,
) -> MergeReport:
    directories = ranks.directories
    target = run_dir.writer_dir(role, 0, 1)
    if not directories:
        return MergeReport(path=target, role=role, note="no rank directories", evaluation=evaluation)
    ensure_directory(target)
    refuse_foreign_files(target)
    about = describe(run_dir, role, manifest, directories)
    log_conflicts(about.conflicts, target)
    newest = newest_attempt(manifest, role)
    world_size = int(newest["world_size"]) if newest else max(directories) + 1
    # If a rank recorded RANKS_TAG itself, the merged files do not say on how many ranks their steps stand.
    earlier = EarlierMerge(target) if RANKS_TAG not in ranks.scalar_tags else None
    spec = WriterSpec(
        directory=target,
        run_id=run_id,
        attempt=max(ranks.attempts, default=0),
        begun=manifest["created"] or None,
        formats=formats_of(manifest, directories.values()),
        source=MERGED,
    )
    with StagedWriter(spec, files) as staged:
        merged = StepFiles(staged, earlier)
        merged.keep(manifest.get("keep_bytes"))
        alerts = Alerts(run_dir)
        judging = Judging(Meshes(directories)) if role == "train" else None
        definitions = Definitions(manifest.get("define", {}))
        merger = Merger(merged, judging, key_tags=key_tags, definitions=definitions)
        if ranks.graph is not None:
            merger.feed_graph(ranks.graph)
        # Hangs cannot be found in the scalars again: they were noted while the ranks trained.
        hangs = _shown_hangs(run_dir, ranks) if role == "train" and ranks.attempts else deque()
        for window in ranks.windows():
            merger.feed(window)
            while hangs and hangs[0].verdict.reported_step <= window.steps[-1]:
                hang = hangs.popleft()
                merger.show([hang.verdict], hang.time_s)
            merger.advance()
            merged.flush()
        merged.put(merged.last_step, merged.last_s, about.values(merged.last_s))
        # The hangs that are left were reported at steps that no rank has ended.
        for hang in hangs:
            merger.show([hang.verdict], hang.time_s)
        merger.finish(alerts)
        alerts.close()
        # An error before `publish` leaves the older merged files as they are.
        if earlier is not None:
            _refuse_fewer(target, earlier.lost(ranks.first_repeated), ranks)
        staged.write_lineage(about.lineage)
        published = staged.publish()
    report = MergeReport(
        path=target,
        role=role,
        ranks=tuple(directories),
        missing_ranks=tuple(rank for rank in range(world_size) if rank not in directories),
        attempts=ranks.attempts,
        steps=merged.steps,
        completed=earlier.completed if earlier is not None else 0,
        last_steps=dict(sorted(ranks.last_steps.items())),
        conflicts=tuple(about.conflicts),
        damage=(*ranks.damage, *merger.damage),
        refused=tuple(staged.refused),
        superseded=ranks.superseded,
        sharded=merger.sharded,
        short_norms=merger.norms.short,
        files=published,
        evaluation=evaluation,
    )

    def enter(manifest: Manifest) -> None:
        manifest["run_id"] = run_id
        merged_evaluations = newest.get("evaluated", []) if newest else []
        for entry in manifest["attempts"]:
            is_newest = newest is not None and entry["attempt"] == newest["attempt"]
            # This merge has taken the evaluations that were noted when it began; others may have come since.
            if is_newest and entry["role"] == role and "evaluated" in entry:
                entry["evaluated"] = sorted(set(entry["evaluated"]) - set(merged_evaluations))
        facts = merge_facts(report.last_steps, report.missing_ranks, report.conflicts, report.damage)
        manifest.setdefault("merged", {})[role] = facts | {"ranks": list(report.ranks)}

    run_dir.update_manifest(enter)
    return report


def refuse_aggregated(run_dir: RunDir) -> None:
    """Raise RunDirError if an aggregator lives that will merge the run."""
    if place := awaited_aggregator(run_dir):
        raise RunDirError(
            f"{run_dir.base} has an aggregator (process {place['pid']} on {place['host']}), which writes the "
            "merged run itself when the last rank has ended, or 60 s after a rank was last seen: wait for "
            "that. If it hangs, end that process: Ray or rank 0, if they still run, then start another one"
        )


def refuse_loss(run_dir: RunDir, role: str, ranks: EndedRanks) -> None:
    """Raise RunDirError if a merge would replace the merged run of a role by nothing."""
    target = run_dir.writer_dir(role, 0, 1)
    if not ranks.is_empty or not target.is_dir() or not holds_steps(target):
        return
    damage = f" ({len(ranks.damage)} damaged parts, see distsummary fsck)" if ranks.damage else ""
    raise RunDirError(
        f"{target} holds a merged run, but no rank directory in {run_dir.base} holds events that can be read"
        f"{damage}, so a merge could only remove it; put the directories of the ranks back, then try again"
    )


def _refuse_fewer(target: Path, lost: Sequence[int], ranks: EndedRanks) -> None:
    """Raise RunDirError if a merge would lose what the merged files hold of some steps."""
    if lost:
        damage = f", and {len(ranks.damage)} damaged parts (see distsummary fsck)" if ranks.damage else ""
        raise RunDirError(
            f"the merged run in {target} holds {len(lost)} steps (the first is {lost[0]}) that the files of "
            f"the ranks no longer hold, or hold of fewer ranks; {len(ranks.directories)} have a directory"
            f"{damage}. A merge would remove what it cannot write again: put the directories of the ranks "
            "back. To merge what is there, move the merged event files elsewhere first"
        )


def _shown_hangs(run_dir: RunDir, ranks: EndedRanks) -> deque[Reported]:
    """The hangs that were reported while the ranks trained, by rising steps; each is shown where reported."""
    hangs = [
        hang._replace(verdict=replace(hang.verdict, until_step=None))
        for hang in reported_hangs(run_dir)
        # A hang at a step that a later attempt has repeated is left out.
        if ranks.attempt_of(hang.verdict.reported_step) == hang.attempt
    ]
    return deque(sorted(hangs, key=lambda hang: hang.verdict.reported_step))
