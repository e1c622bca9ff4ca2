"""Merger: makes the merged run of the ranks of one role, while they train and afterwards."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import attrgetter

import numpy as np

from distsummary.aggregate.added_norms import AddedNorms
from distsummary.aggregate.charts import LAYOUT_TAG, charts
from distsummary.aggregate.judging import Judging, alert_values
from distsummary.aggregate.rank_columns import (
    BulkPlace,
    RecordedGraph,
    RecordedScalars,
    Window,
    by_event,
    values_at,
)
from distsummary.aggregate.statistics import StatisticsRule
from distsummary.aggregate.step_events import recorded_by
from distsummary.aggregate.step_files import Key, StepFiles, Values
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import DamagedFileError
from distsummary.events.reader import Damage
from distsummary.events.shards import AddedShards
from distsummary.format.definitions import Definitions
from distsummary.format.own_tags import RANKS_TAG
from distsummary.format.records import CUSTOM_SCALARS, MAX_TAG_BYTES, NORMS, Value

_NEVER = np.iinfo(np.int64).min  # as a step
_ADDED = ("histogram", NORMS)  # of which the parts of ranks are put together


class Merger:
    """Merges windows of rising steps: scalars by StatisticsRule, and the bulk values, shards and norms.

    `feed` takes complete steps, `feed_late` and `feed_samples` what came of steps before; `advance` puts all
    of it into the files, and `finish` ends that. The same windows give the same files however they are
    divided.

    Its attributes are what it remembers of the steps so far, and what `advance` is going to put: a call that
    is repeated after a full disk finds both as they were.

    Args:
        files: take the steps.
        judging: judges the steps; None leaves that out.
        key_tags: more scalar tags that get all statistics.
        definitions: what the merged values are; see `define`.
        grows: whether the files are read while they grow. A verdict is shown at its own step then, and the
            charts of TensorBoard are written when a statistic is new; else no step falls, and the charts come
            at the end.

    Attributes:
        norms: adds up the norms of ranks.
        late: how many values came after their step had been put without them.
        sharded: how many shards were left out because they could not be put together.
        damage: the places of bulk values that can no longer be read; `missing`: how many values those are.
    """

    def __init__(
        self,
        files: StepFiles,
        judging: Judging | None,
        *,
        key_tags: Collection[str] = (),
        definitions: Definitions | None = None,
        grows: bool = False,
    ) -> None:
        self.late = self.sharded = self.missing = 0
        self.damage: list[Damage] = []
        self.norms = AddedNorms()
        self._files, self._judging, self._grows = files, judging, grows
        self._rule = StatisticsRule(key_tags, definitions)
        self._merged_to: dict[str, int] = {}  # scalar tag -> the last step that the rule was given with it
        self._bulk_to: dict[Key, int] = {}
        self._recorded: set[str] = set()  # tags that ranks recorded
        self._made: set[str] = set()  # statistics, which the charts show
        self._is_layout_new = False
        self._begun = 0  # no step that is fed lies before it
        self._graph: RecordedGraph | None = None
        # Of the steps that `advance` is going to put:
        self._complete: set[int] = set()
        self._times: dict[int, float] = {}
        self._values: dict[int, list[Value]] = {}
        self._bulk: dict[int, Values] = {}
        self._verdicts: list[Verdict] = []

    def define(self, definitions: Definitions) -> None:
        """Use these definitions from the next step on."""
        self._rule.define(definitions)

    @property
    def inexact(self) -> int:
        """How many values a merge of the rank files would add or make in another way."""
        return self.late + self.missing + self._rule.inexact

    def feed_graph(self, graph: RecordedGraph) -> None:
        """Take the graph, which belongs to no step; the first one counts."""
        if not self._files.has_graph:
            self._graph, self._files.has_graph = graph, True

    def feed(self, window: Window, samplers: Mapping[int, set[int]] | None = None) -> None:
        """Take complete steps, later than those before.

        Args:
            samplers: step -> the ranks with samples of it, which `feed_samples` is going to take.
        """
        rows = self._new_rows(window.scalars)
        for step, values in self._rule.add(rows):
            ranks = (samplers or {}).get(step, set())
            self._values[step] = self._counted(values, ranks, window.scalars, step) if ranks else values
        if self._judging is not None:
            self._verdicts += self._judging.add(rows, window.attempt)
        self._note(window)
        self._complete.update(window.steps.tolist())

    def feed_late(self, window: Window) -> None:
        """Take values of steps of which others have been fed; of each tag, later ones than before."""
        self._add_late(self._new_rows(window.scalars))
        self._note(window)

    def feed_samples(self, window: Window) -> None:
        """As `feed_late`, of samples of the system, which are judged."""
        rows = self._new_rows(window.scalars)
        self._add_late(rows)
        if self._judging is not None:
            self._verdicts += self._judging.add_samples(rows, window.attempt)
        self._note(window)

    def show(self, verdicts: Iterable[Verdict], time_s: float) -> None:
        """Show verdicts that do not come from what the ranks recorded, at the wall time `time_s`."""
        for verdict in verdicts:
            self._verdicts.append(verdict)
            self._times.setdefault(verdict.reported_step, time_s)

    def _add_late(self, rows: RecordedScalars) -> None:
        for step, values in self._rule.add_late(rows):
            self._values.setdefault(step, []).extend(values)

    def _counted(
        self, values: list[Value], samplers: set[int], scalars: RecordedScalars, step: int
    ) -> list[Value]:
        """The merged scalars of a step, with the ranks counted that have reported only samples of it."""
        # RANKS_TAG is the last value of a step. One that a rank recorded itself stays as it is.
        last = values[-1]
        if last.tag != RANKS_TAG or RANKS_TAG in self._recorded:
            return values
        ranks = samplers.union(np.unique(scalars.ranks[scalars.steps == step]).tolist())
        return [*values[:-1], last._replace(data=float(len(ranks)))]

    def _new_rows(self, rows: RecordedScalars) -> RecordedScalars:
        """The scalars without those whose tag has gone to the rule at their step or later."""
        if not rows.tags:
            return rows
        self._recorded.update(rows.tags)
        # The steps of each tag in the files rise, so a value of an earlier step can only be counted.
        merged_to = np.array([self._merged_to.get(tag, _NEVER) for tag in rows.tags])
        keep = rows.steps > merged_to[rows.which]
        if not keep.all():
            self.late += int(np.count_nonzero(~keep))
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

    def _note(self, window: Window) -> None:
        """Note the times of a window, and where its bulk values are."""
        for step, time_s in zip(window.steps.tolist(), window.times.tolist(), strict=True):
            self._times[step] = max(time_s, self._times.get(step, time_s))
        by_step: dict[int, dict[Key, list[BulkPlace]]] = {}
        for place in window.bulk:
            key = place.plugin, place.tag
            # Only the parts of histograms and norms can be put together.
            if place.is_shard and place.plugin not in _ADDED:
                self.sharded += 1
                continue
            by_step.setdefault(place.step, {}).setdefault(key, []).append(place)
        for step, by_key in sorted(by_step.items()):
            new = [found for key, found in by_key.items() if self._is_new(key, step, len(found))]
            if new:
                # Only the places of bulk values are kept; the values are read when the step is written.
                places = sorted(chain.from_iterable(new), key=attrgetter("rank", "number", "start"))
                self._bulk[step] = partial(self._read, step, places, self._bulk.get(step))

    def _is_new(self, key: Key, step: int, values: int) -> bool:
        if step <= self._bulk_to.get(key, -math.inf):
            self.late += values
            return False
        self._bulk_to[key] = step
        return not self._files.has(key, step)

    def _read(self, step: int, places: list[BulkPlace], others: Values | None) -> Iterator[Value]:
        """The values of a step: shards put together, norms added up, then whole ones."""
        # Values of the same step that were fed before come first.
        if others is not None:
            yield from others()
        shards = [place for place in places if place.is_shard]
        counts = Counter(place.tag for place in shards if place.plugin != NORMS)
        added = {tag: AddedShards() for tag in counts}
        norms = {}
        for place, value in self._found(shards):
            if place.plugin == NORMS:
                norms[place.rank] = value.data
            else:
                added[place.tag].add(value)
        for tag, shards_of_tag in added.items():
            whole = shards_of_tag.whole()
            if whole is None:
                self.sharded += counts[tag]
            else:
                yield whole
        yield from self.norms.values(step, norms)
        for place, value in self._found(place for place in places if not place.is_shard):
            yield recorded_by(value, step, place.rank)

    def _found(self, places: Iterable[BulkPlace]) -> Iterator[tuple[BulkPlace, Value]]:
        """The values that can be read; the others are counted."""
        for same_event in by_event(places):
            try:
                values = values_at(same_event)
            except (DamagedFileError, OSError) as error:
                self.missing += len(same_event)
                self.damage.append(Damage(same_event[0].file, same_event[0].start, str(error)))
            else:
                yield from values

    def advance(self) -> None:
        """Put what was fed into the files, by rising steps."""
        # If the files do not grow, no step may fall: a verdict on an earlier step is shown at the newest one.
        least = 0 if self._grows else self._begun
        for step, values in alert_values(self._verdicts, least).items():
            new = [value for value in values if not self._files.has((value.plugin, value.tag), step)]
            self._values.setdefault(step, []).extend(new)
        steps = sorted({*self._values, *self._bulk})
        files = self._files
        if self._graph is not None:
            files.put(0, self._graph.wall_time, [self._graph.value])
            self._graph = None
        last_s = files.last_s
        for step in steps:
            values = self._values.get(step, [])
            wall_s = self._times.get(step, last_s)
            last_s = max(last_s, wall_s)
            files.put(step, wall_s, values, self._bulk.get(step), is_complete=step in self._complete)
            self._note_statistics(step, values)
        self._begun = max([self._begun, *self._complete])
        if self._grows:
            self._put_charts(max([files.last_step, *steps[-1:]]), last_s)
        # Only when all of it is put: a call that raised is repeated with the same steps.
        for fed in (self._complete, self._times, self._values, self._bulk, self._verdicts):
            fed.clear()

    def _note_statistics(self, step: int, values: Iterable[Value]) -> None:
        """Note the scalars that no rank recorded."""
        new = {value.tag for value in values if value.plugin == "scalar"} - self._recorded - self._made
        new = {tag for tag in new if len(tag.encode()) <= MAX_TAG_BYTES}
        self._made |= new
        self._is_layout_new |= bool(new) and not self._files.has((CUSTOM_SCALARS, LAYOUT_TAG), step)

    def _put_charts(self, step: int, wall_s: float) -> None:
        if self._is_layout_new and (layout := charts(self._made - self._recorded)) is not None:
            self._files.put(step, wall_s, [layout])
        self._is_layout_new = False

    def finish(self, alerts: Alerts) -> None:
        """Put what is left, and write the verdicts of the whole training, with what they cost in all.

        Raises OSError if the files or alerts.jsonl cannot be written; the call may be repeated.
        """
        self.advance()
        self._files.flush()
        self._put_charts(self._files.last_step, self._files.last_s)
        self._files.flush()
        if self._judging is not None:
            for attempt, verdict in self._judging.reported:
                alerts.report(attempt, verdict)
        alerts.write()
