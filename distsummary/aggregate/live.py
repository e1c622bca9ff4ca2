"""Writes the merged run of one attempt while its ranks train, from their files."""

import math
import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distsummary.aggregate.judging import Judging
from distsummary.aggregate.merged_files import MERGED, refuse_foreign_files
from distsummary.aggregate.merger import Merger
from distsummary.aggregate.pending import PendingSteps, Source
from distsummary.aggregate.rank_columns import WINDOW
from distsummary.aggregate.receiver import POLL_S, Receiver
from distsummary.aggregate.role_description import RoleDescription
from distsummary.aggregate.step_files import StepFiles
from distsummary.base.guard import guarded_log
from distsummary.base.publish import ensure_directory
from distsummary.diagnosis.judge import BUSY_STEPS
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import DistSummaryError, RunDirError
from distsummary.events.files import Files
from distsummary.events.rank_stream import RankStream
from distsummary.events.reader import Damage
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.definitions import Definitions
from distsummary.format.lineage import lineage_values
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.timeouts import WAIT_S

BUSY = (
    "the ranks wait for processors more than ten times as long as they work: while they do, no rank is "
    "reported as slow (logged once; distsummary why says at how many steps)"
)

logger = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReport:
    """What a live merge has written.

    Attributes:
        steps: how many steps the merged files of the attempt have.
        short: how many of them were written while a rank that lived had not reported them for 30 s.
        late: how many values came after their step had been written without them, or could not be read or
            written when it was, or were merged in another way than run.json defines now; the files of the
            ranks have them.
        is_continued: whether an earlier LiveMerge began the files; what came late to it is unknown.
        sharded: how many shards could not be put together, as in `MergeReport`. short_norms: likewise.
        last_step: the highest step; last_s: the latest wall time, in seconds since the epoch.
        last_steps: rank -> the highest step that it reported.
        damage: the parts of rank files that could not be read.
    """

    steps: int = 0
    short: int = 0
    late: int = 0
    is_continued: bool = False
    sharded: int = 0
    short_norms: int = 0
    last_step: int = 0
    last_s: float = 0.0
    last_steps: Mapping[int, int] = field(default_factory=dict)
    damage: tuple[Damage, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether a merge of the rank files would certainly write the same values."""
        return not self.late and not self.is_continued


class LiveMerge:
    """Appends the merged run of one attempt, step by step, while the ranks train.

    A step is written, by a Merger, when each living rank has reported a later step, or has reported this one
    and then nothing for SILENT_S; or WAIT_S after the first rank reported it.
    What comes afterwards is still written if its tag has not been written at this or a later step, and
    otherwise counted as late: a merge of the rank files has it. Ranks that have never reported count as
    living for WAIT_S. Bulk values (histograms, images ...) come from the lowest rank that has them.

    An object for an attempt whose merged files exist continues from them. All methods are for one thread;
    they never wait for a rank.

    Args:
        run_dir: the run dir.
        role, attempt, world_size: the ranks to merge.
        key_tags: more scalar tags that get all statistics.
        alerts: reports the verdicts; None: an object of its own does.
        files: the file operations for the merged files; None means the real ones. Tests pass a test double.

    Raises:
        RunDirError: the directory cannot be written, or holds event files that no merge wrote; or the run has
            no id, since no rank has registered.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        role: str,
        attempt: int,
        world_size: int,
        key_tags: Collection[str] = (),
        alerts: Alerts | None = None,
        files: Files | None = None,
    ) -> None:
        run = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
        manifest = run.read_manifest()
        run_id = manifest["run_id"]
        if not run_id:
            raise RunDirError(f"{run.base} has no run yet; merge it when a rank has registered")
        target = run.writer_dir(role, 0, 1)
        ensure_directory(target)
        refuse_foreign_files(target)
        begun = manifest["created"] or None
        spec = WriterSpec(directory=target, run_id=run_id, attempt=attempt, begun=begun, source=MERGED)
        self._files = StepFiles(RankWriter(spec, files))
        self._pending = PendingSteps(attempt)
        directories = {rank: run.writer_dir(role, rank, world_size) for rank in range(world_size)}
        # The bulk values are read again when they are written.
        streams = {
            Source(rank): RankStream(path, (run_id, attempt), bulk=False)
            for rank, path in directories.items()
        }
        self._receiver = Receiver(streams, self._pending)
        self._alerts = Alerts(run) if alerts is None else alerts
        self._judging = Judging(Meshes(directories), self._alerts.report)
        self._merger = Merger(self._files, self._judging, key_tags=key_tags, grows=True)
        self._run, self._written = run, 0  # when the run.json was written whose definitions are used
        self._defined: list[tuple[str, Any]] = []
        self._short = 0
        self._troubles: set[str] = set()  # that were logged

    def poll(self, budget_s: float = POLL_S) -> None:
        """Read what the files of the ranks hold since the last call; may leave ranks to the next one."""
        self._receiver.poll(budget_s)

    def advance(self, living: Collection[int], now: float) -> int:
        """Append the steps that are complete; returns how many.

        Args:
            living: the ranks that have registered and not ended.
            now: the time in seconds, by any clock that does not go back.

        A disk that takes nothing raises nothing: what is due stays in memory, as do alerts, and the next call
        tries again.
        """
        floor, strict_floor = self._receiver.floors(living, now)
        before = self._files.steps
        self._merge(floor, strict_floor, now, WAIT_S if self._receiver.is_caught_up else math.inf)
        # Alerts and merged values go to different files: if one cannot be written, the other still is.
        try:
            self._alerts.write()
        except OSError as error:
            self._report(f"alerts.jsonl cannot be written now: {error}")
        try:
            self._files.flush()
        except OSError as error:
            self._report(f"the merged run cannot be written now: {error}; free some space")
        return self._files.steps - before

    def _merge(self, floor: float, strict_floor: float, now: float, wait_s: float) -> None:
        """Put what is due into the files."""
        self._define()
        due = self._pending.due(floor, strict_floor, now, wait_s)
        self._short += due.short
        # The graph belongs at the beginning of the files: it goes with the first steps, or alone at the end.
        if self._pending.graph is not None and (due.steps or floor == math.inf):
            self._merger.feed_graph(self._pending.graph)
            self._pending.graph = None
        for window in due.steps:
            self._merger.feed(window, due.samplers)
        if due.late is not None:
            self._merger.feed_late(due.late)
        if due.sampled is not None:
            self._merger.feed_samples(due.sampled)
        # A few steps without a verdict mean little; only many of them are reported.
        if self._judging.abstained >= BUSY_STEPS:
            self._report(BUSY)
        self._merger.advance()

    def _define(self) -> None:
        """Use the definitions and the bound in run.json, which rank 0 writes before its first value: after a
        `poll`.
        """
        try:
            written = self._run.manifest_path.stat().st_mtime_ns
            if written == self._written:
                return
            manifest, self._written = self._run.read_manifest(), written
            self._files.keep(manifest.get("keep_bytes"))
            defined = manifest.get("define", {})
            if manifest["run_id"] and [*defined.items()] != self._defined:
                self._merger.define(Definitions(defined))
                self._defined = [*defined.items()]
        except FileNotFoundError:
            return  # a run.json that was removed leaves the definitions as they are
        except (DistSummaryError, OSError) as error:
            self._report(f"the definitions of tags cannot be read now: {error}")

    def show(self, verdicts: Iterable[Verdict]) -> None:
        """Show verdicts that do not come from what the ranks recorded, as the step of a hang may never end.

        They are written by the next `advance`, whichever step the merged run has come to.
        """
        self._merger.show(verdicts, time.time())

    def _report(self, trouble: str) -> None:
        """Log a failure, once."""
        if trouble not in self._troubles:
            self._troubles.add(trouble)
            logger.warning("%s", trouble)

    # --- the end

    def describe(self, about: RoleDescription) -> None:
        """Write what the run says about itself, at the newest step; see `advance`."""
        step, last_s = self._files.last_step, self._files.last_s
        self._files.put(step, last_s, [*lineage_values(about.lineage), *about.values(last_s)])

    def close(self, about: RoleDescription | None = None) -> LiveReport:
        """Read everything that is left, write it and close the files; raises OSError.

        Args:
            about: what the run says about itself at its end.
        """
        # No rank records any more, so every step that was read from all of them counts as complete.
        for floor in self._receiver.in_turn():
            if floor == math.inf or self._pending.size > WINDOW:
                self._merge(floor, floor, 0.0, math.inf)
                self._files.flush()
        self._merger.finish(self._alerts)
        if about is not None:
            self.describe(about)
        self._files.close()
        files, merger = self._files, self._merger
        return LiveReport(
            steps=files.steps,
            short=self._short,
            # All that makes these files differ from a merge of the rank files.
            late=merger.inexact + files.missing,
            is_continued=files.is_continued,
            sharded=merger.sharded,
            short_norms=self._merger.norms.short,
            last_step=files.last_step,
            last_s=files.last_s,
            last_steps=self._pending.last_steps,
            damage=(*self._receiver.damage, *merger.damage),
        )

    def abandon(self) -> None:
        """Close the files as they are: another LiveMerge may continue from them. Values that were due may
        be missing."""
        self._files.abandon()
