"""Writes the merged run of one attempt while its ranks train, from their digests or from their files."""

import logging
import math
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from distsummary.aggregate.added_norms import AddedNorms
from distsummary.aggregate.charts import LAYOUT_TAG, charts
from distsummary.aggregate.judging import Judging, alert_values
from distsummary.aggregate.live_bulk import BulkReader, Wanted
from distsummary.aggregate.live_files import LiveFiles
from distsummary.aggregate.merge import refuse_foreign_files
from distsummary.aggregate.receiver import POLL_S, Receiver
from distsummary.aggregate.role_description import RoleDescription
from distsummary.aggregate.statistics import RecordedScalars, StatisticsRule
from distsummary.aggregate.waiting import GRAPH, BulkKey, Due, PendingStep, Waiting, rows_of
from distsummary.base.publish import ensure_directory
from distsummary.diagnosis.judge import BUSY_STEPS
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import RunDirError
from distsummary.events.files import Files
from distsummary.events.reader import Damage
from distsummary.format.digest import Digest
from distsummary.format.records import (
    CUSTOM_SCALARS,
    MAX_TAG_BYTES,
    RANKS_TAG,
    Value,
)
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.timeouts import WAIT_S

BUSY = (
    "the ranks wait for processors more than ten times as long as they work: while they do, no rank is "
    "reported as slow (logged once; distsummary why says at how many steps)"
)
_CHUNK_BYTES = 4 << 20  # of scalars that are merged at once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReport:
    """What a live merge has written.

    Attributes:
        steps: how many steps the merged files of the attempt have.
        short: how many of them were written while a rank that lived had not reported them for 30 s.
        late: how many values came after their step had been written without them, or could not be read or
            written when it was; the files of the ranks have them. Of what came late to an earlier LiveMerge
            of the attempt, it counts scalars that differ and values that are missing.
        sharded: how many shards could not be put together, as in `MergeReport`. short_norms: likewise.
        last_step: the highest step; last_s: the latest wall time, in seconds since the epoch.
        last_steps: rank -> the highest step that it reported.
        damage: the parts of rank files that could not be read.
    """

    steps: int = 0
    short: int = 0
    late: int = 0
    sharded: int = 0
    short_norms: int = 0
    last_step: int = 0
    last_s: float = 0.0
    last_steps: Mapping[int, int] = field(default_factory=dict)
    damage: tuple[Damage, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether a merge of the rank files would write the same values."""
        return not self.late


class LiveMerge:
    """Appends the merged run of one attempt, step by step, while the ranks train.

    A step is written, with what `StatisticsRule` makes of it, when each living rank has reported a later
    step, or has reported this one and then nothing for SILENT_S; or WAIT_S after the first rank reported it.
    What comes afterwards is still written if its tag has not been written at this or a later step, and
    otherwise counted as late: a merge of the rank files has it. Ranks that have never reported count as
    living for WAIT_S. Bulk values (histograms, images ...) come from the lowest rank that has them.

    `add` receives what the ranks send, and `poll` reads the files of those that send nothing or of which
    a digest was lost. An object for an attempt whose merged files exist continues from them.

    `add` may be called from any thread, the other methods from one. They never wait for a rank.

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
        self._files = LiveFiles(target, run_id, attempt, begun=manifest["created"] or None, files=files)
        self._waiting = Waiting()
        directories = {rank: run.writer_dir(role, rank, world_size) for rank in range(world_size)}
        self._receiver = Receiver(
            directories, role=role, run_id=run_id, attempt=attempt, waiting=self._waiting
        )
        self._rule = StatisticsRule(key_tags)
        self._merged_to: dict[str, int] = {}  # scalar tag -> the last step that the rule was given with it
        self._bulk_to: dict[BulkKey, int] = {}
        self._recorded: set[str] = set()  # tags that ranks recorded
        self._made: set[str] = set()  # statistics that the charts show
        self._is_layout_new = False
        self._troubles: set[str] = set()  # that were logged
        meshes = Meshes(directories)
        self._alerts = Alerts(run) if alerts is None else alerts
        self._judging = Judging(meshes, self._alerts.report)
        self._attempt = attempt
        self._norms = AddedNorms(meshes)
        for norms in self._files.held_norms():
            self._norms.recall(attempt, norms)
        self._bulk = BulkReader(self._norms, attempt)
        self._steps = self._short = self._late = 0

    def add(self, digest: Digest) -> None:
        """Receive a rank's digest; the next `poll` or `advance` takes it."""
        self._receiver.add(digest)

    def poll(self, budget_s: float = POLL_S) -> None:
        """Read what the files of the ranks hold that no digest reported; may leave ranks to the next call."""
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
        written = self._merge(floor, strict_floor, now)
        try:
            self._alerts.write()
        except OSError as error:
            self._report(f"alerts.jsonl cannot be written now: {error}")
        try:
            self._files.flush()
        except OSError as error:
            self._report(f"the merged run cannot be written now: {error}; free some space")
            return 0
        return written

    def _merge(self, floor: float, strict_floor: float, now: float, *, is_last: bool = False) -> int:
        """Give the files what is due; returns how many steps."""
        if self._waiting.is_empty:
            return 0
        wait_s = WAIT_S if self._receiver.is_caught_up else math.inf
        due = self._waiting.due(floor, strict_floor, now, wait_s)
        self._short += due.short
        if not is_last and not (due.steps or due.late or due.sampled):
            return 0
        merged: dict[int, list[Value]] = {}
        for pending in _chunks(due.steps):
            rows = self._new_rows(pending)
            for step, values in self._rule.add(rows):
                merged[step] = self._counted(step, values, pending[step], due.sampled.get(step))
            for step, values in self._unwritten(self._judging.add(rows, self._attempt)).items():
                merged.setdefault(step, []).extend(values)  # a verdict may be about a step before these
        if self._judging.abstained >= BUSY_STEPS:  # fewer show little, and cost nothing
            self._report(BUSY)
        for pending in (due.late, due.sampled):
            rows = self._new_rows(pending)
            for step, values in self._rule.add_late(rows):
                merged.setdefault(step, []).extend(values)
            if pending is due.sampled:
                changed = self._judging.add_samples(rows, self._attempt)
                for step, values in self._unwritten(changed).items():
                    merged.setdefault(step, []).extend(values)
        bulk: dict[int, Wanted] = {}
        for pending in (due.steps, due.late):
            for step in sorted(pending):
                new, known = self._new_bulk(step, pending[step]), bulk.get(step, Wanted())
                if new:
                    bulk[step] = Wanted(known.whole | new.whole, known.shards | new.shards)
        self._put(merged, bulk, due)
        self._steps += len(due.steps)
        return len(due.steps)

    def show(self, verdicts: Iterable[Verdict]) -> None:
        """Show verdicts that do not come from what the ranks recorded, as the step of a hang may never end.

        They are written by the next `advance`, whichever step the merged run has come to.
        """
        for step, values in self._unwritten(verdicts).items():
            self._files.put(step, time.time(), values)

    def _unwritten(self, verdicts: Iterable[Verdict]) -> Mapping[int, list[Value]]:
        """By step, what shows the verdicts and was not in the files when they were opened."""
        return {
            step: [value for value in values if not self._files.has((value.plugin, value.tag), step)]
            for step, values in alert_values(verdicts).items()
        }

    def _put(self, merged: Mapping[int, list[Value]], bulk: Mapping[int, Wanted], due: Due) -> None:
        """Give the files the values of some steps, the graph if there is a new one, and the charts."""
        steps = sorted({*merged, *bulk})
        last = max([*steps[-1:], self._files.last_step])
        if (found := self._waiting.take_graph()) is not None and not self._files.has_graph:
            graph, wall_s = found
            self._files.has_graph = True
            first = steps[0] if steps else last
            self._files.put(first, wall_s, (), partial(self._bulk.values, first, Wanted({GRAPH: graph})))
        last_s = self._files.last_s
        for step in steps:
            wall_s = max((pending[step].wall_s for pending in due[:3] if step in pending), default=last_s)
            last_s = max(last_s, wall_s)
            values = merged.get(step, [])
            read = partial(self._bulk.values, step, bulk[step]) if step in bulk else None
            self._files.put(step, wall_s, values, read)
            self._note_statistics(step, values)
        if self._is_layout_new and (layout := charts(self._made)) is not None:
            self._is_layout_new = False
            self._files.put(last, last_s, [layout])

    def _counted(
        self, step: int, values: list[Value], pending: PendingStep, sampled: PendingStep | None
    ) -> list[Value]:
        """The merged scalars of a step, with the ranks counted that have reported only system samples."""
        last = values[-1]
        if last.tag != RANKS_TAG or RANKS_TAG in self._recorded:
            return values
        ranks = int(last.data)
        if sampled is not None or (sampled := self._waiting.sampled_at(step)) is not None:
            ranks = len({row.rank for row in (*pending.rows, *sampled.rows)})
        return [*values[:-1], last._replace(data=float(ranks))]

    def _note_statistics(self, step: int, values: list[Value]) -> None:
        """Note which scalars no rank recorded: the charts show them."""
        for tag in (value.tag for value in values):
            if tag not in self._recorded and tag not in self._made and len(tag.encode()) <= MAX_TAG_BYTES:
                self._made.add(tag)
                self._is_layout_new |= not self._files.has((CUSTOM_SCALARS, LAYOUT_TAG), step)

    def _new_rows(self, pending: Mapping[int, PendingStep]) -> RecordedScalars:
        """The scalars of some steps, without those whose tag has gone to the rule at their step or later."""
        rows = rows_of(row for step in sorted(pending) for row in pending[step].rows)
        if not rows.tags:
            return rows
        self._recorded.update(rows.tags)
        none = np.iinfo(np.int64).min
        merged_to = np.array([self._merged_to.get(tag, none) for tag in rows.tags])
        keep = rows.steps > merged_to[rows.which]
        if not keep.all():
            self._late += int(np.count_nonzero(~keep))
            which, ranks, steps = (column[keep] for column in (rows.which, rows.ranks, rows.steps))
            rows = RecordedScalars(rows.tags, which, ranks, steps, rows.values[keep])
        newest = merged_to.copy()
        np.maximum.at(newest, rows.which, rows.steps)
        self._merged_to.update(
            (tag, step)
            for tag, step, old in zip(rows.tags, newest.tolist(), merged_to.tolist(), strict=True)
            if step > old
        )
        return rows

    def _new_bulk(self, step: int, pending: PendingStep) -> Wanted:
        """The bulk values of a step, without those that have been written at this step or later."""
        wanted = Wanted()
        for key, bulk in pending.bulk.items():
            if self._is_new(key, step, 1):
                wanted.whole[key] = bulk
        for key, places in pending.shards.items():
            if self._is_new(key, step, len(places)):
                wanted.shards[key] = places
        return wanted

    def _is_new(self, key: BulkKey, step: int, values: int) -> bool:
        if step <= self._bulk_to.get(key, -math.inf):
            self._late += values
            return False
        self._bulk_to[key] = step
        return not self._files.holds(key, step)

    def _report(self, trouble: str) -> None:
        """Log a failure, once."""
        if trouble not in self._troubles:
            self._troubles.add(trouble)
            logger.warning("%s", trouble)

    # --- the end

    def describe(self, about: RoleDescription) -> None:
        """Write what the run says about itself, at the newest step; see `advance`."""
        self._files.put(self._files.last_step, self._files.last_s, about.all_values(self._files.last_s))

    def close(self, about: RoleDescription | None = None) -> LiveReport:
        """Read everything that is left, write it and close the files; raises OSError.

        Args:
            about: what the run says about itself at its end.
        """
        self._receiver.read_to_the_end()
        self._merge(math.inf, math.inf, 0.0, is_last=True)
        for attempt, verdict in self._judging.reported:  # with what they cost in all
            self._alerts.report(attempt, verdict)
        self._alerts.write()
        self._files.flush()
        if about is not None:
            self.describe(about)
        self._files.close()
        files = self._files
        return LiveReport(
            steps=self._steps,
            short=self._short,
            late=self._late + self._bulk.missing + files.left_out + files.differing + files.spared,
            sharded=self._bulk.sharded + self._receiver.sharded,
            short_norms=self._norms.short,
            last_step=self._files.last_step,
            last_s=self._files.last_s,
            last_steps=dict(sorted(self._waiting.reached.items())),
            damage=self._receiver.damage,
        )

    def abandon(self) -> None:
        """Close the files as they are: another LiveMerge may continue from them. Values that were due may
        be missing."""
        self._files.abandon()


def _chunks(pending: Mapping[int, PendingStep]) -> Iterator[dict[int, PendingStep]]:
    """The steps in rising order, divided so that not all scalars of many steps are merged at once."""
    chunk: dict[int, PendingStep] = {}
    nbytes = 0
    for step in sorted(pending):
        chunk[step] = pending[step]
        nbytes += sum(len(row.packed) for row in pending[step].rows)
        if nbytes > _CHUNK_BYTES:
            yield chunk
            chunk, nbytes = {}, 0
    if chunk:
        yield chunk
