"""Schedule: at which steps a collector adds which values, and this rank's share of them."""

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from distsummary.base.failures import Failures, one_line
from distsummary.base.guard import guarded_log
from distsummary.collect.plan import LEFT_OUT, dealing_group, regular_steps, tensor_steps
from distsummary.collect.run_recorder import RunRecorder
from distsummary.collect.run_settings import RunSettings
from distsummary.collect.selection import Selection
from distsummary.collect.values.sources import Images, LearningRate, LossSource, Source, WatchedParameters
from distsummary.collect.values.step_values import Parameters
from distsummary.collect.values.taps import Taps
from distsummary.diagnosis.verdict import UNRECORDED
from distsummary.format.records import Value
from distsummary.frameworks.base import CurvatureSource, refuse_without_torch
from distsummary.rundir.deal import FIRST, Deal, Group, Part
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import CallbackParams, is_sink
from distsummary.training.finite import WARN, FiniteCheck
from distsummary.training.step_context import StepContext

if TYPE_CHECKING:
    from distsummary.collect.values.graph_source import ModelGraph

logger = guarded_log(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Schedule:
    """Asks the sources of values at the steps at which they are due, and shares the work among the ranks.

    It serves one training after the other in the same session. Until `begin` is called, this rank is alone.

    Its attributes are the sources with the steps at which each is due, and this rank's part in the newest
    deal: a due step needs both.

    Args:
        settings: what is recorded, and how often.
        recorder: receives the step before which all are plain, and copies what operators tap.
        failures: counts what sources raise.

    Attributes:
        group: the ranks that divide equal values among them.
        graph: the source of the model's graph; None: none is recorded.
        taps: what operators add to the steps.
        plain_before: the first due step; at earlier steps only what was given is recorded. -inf before the
            first step, which is due.
        sees_all: whether no step is plain for a `Run`; takes effect at the next due step.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        recorder: RunRecorder,
        failures: Failures,
    ) -> None:
        self._settings = settings
        self._recorder, self._failures = recorder, failures
        self._topology = Topology()
        self.group, self._is_shared = Group(), False
        self.plain_before, self.sees_all = -math.inf, False
        self._coming: deque[Deal] = deque()  # deals that begin at later steps; another thread appends
        self._version = FIRST  # of the deal that holds
        self._total: int | None = None  # steps of the training by the deal that holds
        self._planned: int | None = None  # steps of the training by which those of tensors are planned
        self._parts: list[Part] = []  # this rank's in the deals so far
        self._report: Callable[[list[Part]], None] | None = None
        self._last: int | None = None  # the newest step at which more than the given values was due
        self._make_sources()

    def _make_sources(self) -> None:
        """Make the sources that need no model; those that need one join in `watch`. See `Source`."""
        settings, failures = self._settings, self._failures
        collected, compatibility = settings.collected, settings.compatibility
        regular = regular_steps(settings.collect_freq)
        self._loss = LossSource(regular, failures, compatibility=compatibility)
        tensors = tensor_steps(None, settings.collect_freq, settings.record.tensor_freq)
        self._histograms = WatchedParameters("histogram", regular, failures)
        self._whole = WatchedParameters("tensor", tensors, failures)
        # MindSpore's kinds, in the order of their values in an event
        self._mindspores: list[LossSource | LearningRate | Images | WatchedParameters] = []
        if collected.metric:
            self._mindspores.append(self._loss)
        if collected.metric and collected.additions:
            self._mindspores.append(LearningRate(regular, failures))
        if collected.input_data:
            self._mindspores.append(Images(regular, compatibility=compatibility))
        self._mindspores += [self._histograms, self._whole]
        self.graph = self._graph_source()
        self._sources: list[Source] = [*self._mindspores, *([self.graph] if self.graph else [])]
        self.taps = Taps(
            self._recorder.snapshot,
            failures,
            regular=regular,
            tensors=tensors,
            deal=settings.record.deal,
            compatibility=compatibility,
        )

    def _graph_source(self) -> "ModelGraph | None":
        if (how := self._settings.collected.graph) is None:
            return None
        from distsummary.collect.values.graph_source import ModelGraph

        return ModelGraph(regular_steps(self._settings.collect_freq), self._failures, how)

    def begin(self, topology: Topology) -> None:
        """This rank's place among the ranks is known; a mesh that does not fit into the world is counted."""
        self._topology = topology
        self.group = self._failures.call("the mesh", dealing_group, topology) or Group()
        self._is_shared = self.group.size > 1

    @property
    def has_begun(self) -> bool:
        """Whether the first step of the training was recorded."""
        return self._last is not None

    def watch(
        self,
        network: object,
        params: CallbackParams,
        step: StepContext,
        report: Callable[[list[Part]], None] | None = None,
    ) -> None:
        """From now on, read this model; what cannot be read of it is counted.

        `report`: called with this rank's parts in all deals when there is a new one; None: nothing is dealt.
        """
        self._report = report if self._settings.record.deal != "all" else None
        self.taps.group = self.group
        if network is not None:
            self._watch_model(network, params, step)
        if self._settings.norms:
            self._part("norms", step, self._measure_norms, network, params, step)
        if self._settings.collected.metric:
            self._failures.call("curvature", self._watch_curvature, params.get("optimizer"))

    def _watch_model(self, network: object, params: CallbackParams, step: StepContext) -> None:
        topology, settings = self._topology, self._settings
        collected = settings.collected

        def parameters(selection: Selection | None) -> Parameters | None:
            if selection is None:
                return None
            return Parameters(
                network,
                selection,
                group=self.group,
                deal=settings.record.deal,
                exports=settings.record.export_npy,
                compatibility=settings.compatibility,
                report=logger.warning if topology.rank == 0 else None,
            )

        if self.graph is not None and topology.rank == 0 and topology.role == "train":
            whole = params.get("train_network")
            self._part("graph", step, self.graph.watch, network if whole is None else whole)
        self._histograms.parameters = self._part("histograms", step, parameters, collected.histogram)
        self._whole.parameters = self._part("tensors", step, parameters, collected.tensor)
        if (chosen := self._part("gradients", step, parameters, collected.gradient)) is not None:
            self._part("gradients", step, self._watch_gradients, chosen, network, params, step)

    def _part(
        self, part: str, step: StepContext, function: Callable[P, R], *args: P.args, **named: P.kwargs
    ) -> R | None:
        """Call a function; if it fails, this part alone is not recorded, which is a finding of the run."""
        try:
            return function(*args, **named)
        except Exception as error:
            step.report_finding(UNRECORDED, one_line(f"no {part}: {type(error).__name__}: {error}"))
            self._failures.fail(f"no {part}", error)
            return None

    def _watch_gradients(
        self, chosen: Parameters, network: object, params: CallbackParams, step: StepContext
    ) -> None:
        refuse_without_torch("gradients", network)
        from distsummary.collect.values.torch_gradients import Gradients

        gradients = Gradients(
            chosen,
            network,
            regular_steps(self._settings.collect_freq),
            self._failures,
            params,
            step,
            compatibility=self._settings.compatibility,
        )
        self.add(gradients)

    def _measure_norms(self, network: Any, params: CallbackParams, step: StepContext) -> None:
        # This module imports torch, which is imported already.
        from distsummary.collect.values.torch_norms import Norms

        rank = self._topology.rank
        norms = Norms(
            network,
            params,
            step,
            finite=step.finite_check or FiniteCheck(WARN, rank, lambda: self._failures),
            failures=self._failures,
            is_quiet=rank > 0,
        )
        self.add(norms)

    def _watch_curvature(self, optimizer: object) -> None:
        if isinstance(optimizer, CurvatureSource):
            from distsummary.collect.values.curvature_source import CurvatureFigures

            is_first = self._topology.rank == 0
            self.add(
                CurvatureFigures(optimizer, regular_steps(self._settings.collect_freq), has_table=is_first)
            )

    def add(self, source: Source) -> None:
        """Add a source, in the place of that of an earlier training in this session, if there was one."""
        for earlier in [known for known in self._sources if known.what == source.what]:
            self._sources.remove(earlier)
            earlier.close()
        self._sources.append(source)

    def receive(self, deal: Deal) -> None:
        """Keep a new deal until its first step; called by the thread of the heartbeats."""
        self._coming.append(deal)
        # A Run must not pass the first step of the deal as a plain one.
        self._recorder.plain_before = min(self._recorder.plain_before, deal.since)

    def _follow(self, deal: Deal) -> None:
        """Take this rank's share of a deal that begins now.

        A rank that it leaves out was taken for dead, and the others have its share; it waits for the next
        deal. A rank whose values are on no other one continues as before.
        """
        self._version, self._total = deal.version, deal.total
        place = deal.place(self._topology.rank)
        if place is not None or self._is_shared:
            self.group = Group(index=place[0], size=place[1]) if place is not None else LEFT_OUT
            for source in self._sources:
                source.deal_among(self.group)
            self.taps.group = self.group
        if self._total is not None:
            self._set_tensor_steps(self._total)
        # Steps that were due before the deal are over: plan from its first step on.
        if self._last is not None:
            self._last = max(self._last, deal.since - 1)
            self._plan()

    def begin_epoch(self, params: CallbackParams) -> int | None:
        """Plan the steps of an epoch; returns how many the training has by its loop, None if unknown."""
        epochs, steps = params.get("epoch_num") or 0, params.get("batch_num") or 0
        total = epochs if is_sink(params) else epochs * steps
        # Plain steps do not update `_last`, so the loop may have come further.
        if self._last is not None and not is_sink(params):
            self._last = max(self._last, int(params.get("cur_step_num") or 0))
        # Loops give 0 or -1 for an unknown length.
        own = total if total > 0 else None
        # The total of a deal holds for all ranks, whose loaders may differ in length.
        self._set_tensor_steps(own if self._total is None else self._total)
        self._plan()
        return own

    def _set_tensor_steps(self, total: int | None) -> None:
        self._planned = total
        freq, tensor_freq = self._settings.collect_freq, self._settings.record.tensor_freq
        self._whole.steps = self.taps.tensors = tensor_steps(total, freq, tensor_freq)

    def begin_step(self, params: CallbackParams) -> None:
        """Notify the sources that a step begins which is not plain."""
        for source in self._sources:
            self._failures.call(source.what, source.begin, params)

    def values(self, params: CallbackParams, number: int, context: StepContext) -> list[Value]:
        """The values that are due at a step (in sink mode at an epoch) that ends; then plans the next."""
        # A deal holds from its first step on, so it is followed before the values of that step are taken.
        while self._coming and number >= self._coming[0].since:
            self._follow(self._coming.popleft())
        self._last = number
        values: list[Value] = []
        for source in self._sources:
            if number >= source.at:
                found = self._failures.call(source.what, source.values, params, number, context)
                values += found or []
        if self._report is not None:
            self._failures.call("the deal", self._note_part, number, self._report)
        self._plan()
        return values

    def _note_part(self, number: int, report: Callable[[list[Part]], None]) -> None:
        """Report this rank's part in the deal, if it is another one from this step on."""
        shares = (source.share(number) for source in self._sources)
        part = Part(self._version, number, self._planned, tuple(one for one in shares if one is not None))
        if not self._parts or self._parts[-1]._replace(since=number) != part:
            self._parts.append(part)
            report([*self._parts])

    def values_again(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """The values that MindSpore records a second time at the last step of an epoch, if it was due."""
        values: list[Value] = []
        for source in self._mindspores:
            if source.steps.holds_multiple(step):
                values += self._failures.call(source.what, source.values, params, step, context) or []
        return values

    def _plan(self) -> None:
        """Find the next step at which more than the given values is due; until then, steps are "plain".

        Only a `Run` has a faster path for plain steps. A `Run` knows only a loss that was logged, so
        `loss/auto` is never due in it, except with `Compatibility.steps`.
        """
        if self._last is None:
            return
        for source in self._sources:
            source.plan(self._last)
        # Copy the deals, because the thread of the heartbeats may append one meanwhile.
        coming = min((deal.since for deal in [*self._coming]), default=math.inf)
        due = [source.at for source in self._sources if source is not self._loss]
        due_in_run = min([coming, *due])
        self.plain_before = min(due_in_run, self._loss.at) if self._settings.collected.metric else due_in_run
        if self.sees_all:
            self._recorder.plain_before = -math.inf
        else:
            shows_loss = self._settings.compatibility.steps
            self._recorder.plain_before = self.plain_before if shows_loss else due_in_run

    def close(self) -> None:
        """Release the model."""
        for source in self._sources:
            source.close()
