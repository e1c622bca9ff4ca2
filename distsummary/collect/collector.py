"""CollectorCallback: the callback that records one rank of a training."""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from distsummary.base.failures import Failures
from distsummary.base.guard import guarded, guarded_log
from distsummary.base.health import Health
from distsummary.base.interrupts import is_good_exit, is_interruption
from distsummary.checkpoints.landscape_spec import DEFAULT_SPEC
from distsummary.collect.run_description import DescriptionRecorder
from distsummary.collect.run_lineage import evaluation_lineage
from distsummary.collect.run_recorder import RunRecorder
from distsummary.collect.run_settings import RunSettings
from distsummary.collect.schedule import Schedule
from distsummary.collect.session import BY_EVALUATION, Past, Session, find_past, watcher_of
from distsummary.collect.watcher import OUTSIDE, LoopPlace, Watcher
from distsummary.errors import ClosedError, DistSummaryError, InvalidValueError
from distsummary.format.records import Value
from distsummary.frameworks.base import framework_of
from distsummary.rundir import topology as topologies
from distsummary.rundir.admission import Admission, admit
from distsummary.rundir.attempts import defined_later
from distsummary.rundir.coordination import Coordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import (
    STEP_HOOKS,
    Callback,
    CallbackParams,
    RunContext,
    guarded_hooks,
    is_sink,
    step_of,
)
from distsummary.training.recorder import Identity, counted
from distsummary.training.step_context import StepContext
from distsummary.training.timing.phases import CHECKPOINT, EVALUATION

if TYPE_CHECKING:
    from distsummary.collect.evaluations import Evaluations

logger = guarded_log(__name__)


@guarded_hooks()
class CollectorCallback(Callback):
    """Records one rank of a training: the values that the loop gives, and those that the settings name.

    Hooks raise only when a training or evaluation begins, for bad arguments or files that cannot be opened.
    With `raise_exception`, they also raise for values that could not be recorded. Other failures are counted
    in `health()` and logged once.

    It has more attributes than most classes, because it is the place where the parts of a rank's recording
    meet: the settings, the session that is open, the schedule, the recorder that a Run calls, and the state
    of the loop between two hooks.

    Args:
        run_dir: the directory of the run.
        settings: what is recorded and how.
        topology: this rank's place among the ranks; None: from the loop or the environment.
        coordinate: returns, for this rank's topology, how it joins the other ranks in one run.
        admission: the place in the run that the door has got for a training; None: it is asked for when a
            training begins.
    """

    def __init__(
        self,
        run_dir: RunDir,
        settings: RunSettings,
        *,
        topology: Topology | None,
        coordinate: Callable[[Topology], Coordinator],
        admission: Admission | None = None,
    ) -> None:
        self.run_dir, self._settings = run_dir, settings
        self._topology, self._coordinate = topology, coordinate
        self._admission = admission
        self._session: Session | None = None
        self._watcher: Watcher | None = None  # of the start
        self._reset()

    def _reset(self) -> None:
        """Reset the state for the next training."""
        self._is_over = False
        self._evaluations: Evaluations | None = None  # set while evaluations wait to be recorded
        self._description = DescriptionRecorder(self._settings)
        self._health = Health()
        self._failures = Failures(self._health, logger, raise_exception=self._settings.writer.raise_exception)
        self._own_guard = self._failures.guard
        known = self._topology or Topology()
        self.recorder: RunRecorder = RunRecorder(
            self.run_dir.base,
            formats=self._settings.formats_of_ranks(known.world_size),
            exports=self._settings.record.export_npy,
            health=self.health,
            record=self._keep,
            alert=self._report,
            define=self._define,
            identity=self._identity,
            summary=lambda: self._summary if self._session is None else self._session.summary(),
            failures=self._failures,
        )
        self._schedule = Schedule(self._settings, recorder=self.recorder, failures=self._failures)
        self._taps = self._schedule.taps
        self.recorder.gather = self._taps.listener.gather
        self._params: CallbackParams | None = None  # the parameters of the current training
        self._step = StepContext()
        self._recorded: object = None  # the `logged` dict that was recorded last
        self._early: list[tuple[str, int, str, str]] = []  # alerts before the session was open
        self._defined = self._settings.define
        self._summary: dict[str, float] = {}  # of the session that was closed

    def await_begin(self, topology: Topology, step: int) -> None:
        """Until a training begins behind this step, report where this rank is, if others may wait for it."""
        # Of a host that does not see the run, nothing is sent before its rank has registered.
        if topology.world_size > 1 and topology.role == "train" and not self.run_dir.is_away:
            self._watcher = watcher = watcher_of(self.run_dir, topology, self._failures)
            weakref.finalize(self, watcher.abandon)
            self._failures.call("the watcher", watcher.await_begin, step)

    def _end_start(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            self._failures.call("the watcher", watcher.abandon)

    def _keep(self, step: int, numbers: Mapping[str, object], values: Sequence[Value] = ()) -> None:
        """Keep the values of a run that only evaluates, to record them with its evaluations."""
        if self._evaluations is not None:
            scalars = [Value("scalar", tag, number) for tag, number in numbers.items()]
            self._evaluations.keep(step, [*scalars, *values])
        else:
            lost = Counter({"scalar": len(numbers)}) + Counter(value.plugin for value in values)
            self._failures.count(
                "values given before the first step of a run that failed are dropped", dropped=lost
            )

    def _report(self, cause: str, step: int, evidence: str, level: str) -> None:
        """Report what the user says of a step, or a callback; before the session is open, when it is."""
        if (session := self._session) is None:
            self._early.append((cause, step, evidence, level))
        else:
            session.report_alert(cause, step, evidence, level)

    def _define(self, defined: Mapping[str, object]) -> None:
        """Take the user's definitions; the session writes them when it opens, or now."""
        self._defined = defined_later(self._defined, defined)
        if self._session is not None:
            self._session.note_of_run({"define": defined})

    def _identity(self) -> Identity:
        """What the run is called; an earlier attempt or rank 0 may have written that to run.json."""
        labels, base = self._settings.labels, self.run_dir.home
        manifest = self._failures.call("run.json", self.run_dir.read_manifest) or {}
        return Identity(
            name=str(labels.get("name") or manifest.get("name") or base.name),
            id=manifest.get("run_id", "") if self._session is None else self._session.run_id,
            home=base,
            config=self._settings.config.nested,
        )

    # The hooks have the older names, as those of MindSpore's collector: a subclass may override them, and a
    # loop may call them by hand.

    @guarded(DistSummaryError, OSError)
    def begin(self, run_context: RunContext) -> None:
        """Begin to record a training, or an evaluation; raises for bad arguments and files."""
        if _is_evaluation(run_context):
            self._begin_evaluation(run_context)
        else:
            self._begin_training(run_context)

    def _begin_training(self, run_context: RunContext) -> None:
        """Join the run and open the files; raises for bad arguments and for files that cannot be opened."""
        params = run_context.original_args()
        topology = self._begin(run_context, "train")
        network = params.get("network")
        self._settings.refuse_unfit(network, topology)
        # A trajectory that was asked for but cannot be kept is refused now: `share_of` raises.
        if self._settings.collected.landscape not in (None, DEFAULT_SPEC) and network is not None:
            from distsummary.checkpoints.share import share_of

            share_of(network, topology, self._schedule.group.size, attempt=0)
        if self._session is None:
            # If no door such as `ds.init` has admitted this rank, it asks for its place in the run now.
            if self._admission is None:
                resumes = bool(params.get("initial_step"))
                self._admission = self._admit(topology, resumes=resumes)
                # The directory of a rank whose host does not see the run is a spool.
                self.run_dir = self._admission.run_dir
                self.recorder.dir = self.run_dir.base
            self._admission.begin()
            self._step = step_of(run_context)
            self._session = self._open(topology)
        self._begin_recording(self._session, params, step_of(run_context))

    @guarded(again=True)
    def _begin_recording(self, session: Session, params: CallbackParams, step: StepContext) -> None:
        """Record from now on; what cannot be done is counted."""
        self._params, self._step = params, step
        if step.finite_check is not None:
            step.finite_check.is_judged = session.is_judged
        self._taps.begin(params, session.record)
        self.recorder.record = self._taps.record
        # A subclass that overrides a step hook must see every step, so no step is plain.
        hooks = (*STEP_HOOKS, "step_begin", "step_end")
        is_own = all(getattr(type(self), hook) is getattr(CollectorCallback, hook) for hook in hooks)
        self._schedule.sees_all = not is_own
        call, network = self._failures.call, params.get("network")
        # Evaluations before the training belong to it, so its session records them.
        evaluations, self._evaluations = self._evaluations, None
        if evaluations is not None:
            call("evaluations", evaluations.record, session)
        # The first training of a session begins its heartbeats; later ones continue with them.
        if session.phase == "starting":
            begun = int(params.get("initial_step") or 0)
            call("heartbeats", session.begin_heartbeats, self._schedule.receive, begun)
            call("the attempt", self._publish_attempt, session)
        session.phase = "training"
        call("the watcher", session.watch_steps, partial(self._place, session, params))
        # Ended only now, the thread that looks at both goes on.
        self._end_start()
        is_one_of_several = session.topology.world_size > 1 and session.topology.role == "train"
        report = session.report_parts if is_one_of_several else None
        watched = params.get("watched", network)
        call("the schedule", self._schedule.watch, watched, params, step, report)
        if is_one_of_several and self._settings.collected.metric:
            call("checks", self._compare, session, network)
        if network is not None and (landscape := self._settings.collected.landscape) is not None:
            steps, kept = params.get("batch_num") or 0, params.get("backbone", network)
            call("trajectory", session.keep_checkpoints, landscape, kept, self._schedule.group, steps)
        # Checkpoints need every step, too.
        self._schedule.sees_all = not is_own or session.checkpoints is not None
        if self._settings.system_metrics:
            call("system metrics", session.monitor_system, network)

    def _place(self, session: Session, params: CallbackParams) -> LoopPlace:
        """Where the loop is, as far as its parameters show; called by another thread."""
        phases, phase = self._step.phases, EVALUATION if session.phase == "evaluating" else ""
        if phases is not None and not phase:
            is_step = phases.is_in_loop or phases.current in (EVALUATION, CHECKPOINT)
            phase = phases.current if is_step else OUTSIDE
            phases.loader.look()
        step = params.get("cur_step_num")
        return LoopPlace(step if isinstance(step, int) else 0, phase)

    def _publish_attempt(self, session: Session) -> None:
        """Report the attempt that a training has joined; `ds.init` has asked the user before."""

    def _begin_evaluation(self, run_context: RunContext) -> None:
        """Outside a training, keep the evaluation for later; a job of the role eval may record it at once.

        If a training follows, its session records the kept evaluations; otherwise `close` adds them to the
        training that the run holds. An eval job records at once if there is none, or if it still runs.
        """
        topology = self._begin(run_context, "eval")
        is_first = self._session is None and self._evaluations is None
        if is_first and topology.role == "eval" and find_past(self.run_dir, topology) is None:
            self._session = self._open(topology)
            self._session.begin_heartbeats(self._schedule.receive)
            self.recorder.record = self._session.record
        elif self._session is None:
            from distsummary.collect.evaluations import Evaluations

            self._evaluations = self._evaluations or Evaluations(topology)
            self._evaluations.own()
        # What operators tap during an evaluation is not recorded.
        self._taps.listener.pause()
        if self._session is not None:
            self._session.phase = "evaluating"

    def _begin(self, run_context: RunContext, expected: str) -> Topology:
        """Check mode and callbacks, reset the state unless it is in use, and return this rank's topology."""
        params = run_context.original_args()
        if params.get("mode") != expected:
            raise InvalidValueError(
                f"mode must be {expected!r}, got {params.get('mode')!r}; use train or eval"
            )
        callbacks = params.get("list_callback")
        listed = callbacks if isinstance(callbacks, list) else getattr(callbacks, "_callbacks", None) or []
        if sum(isinstance(callback, CollectorCallback) for callback in listed) > 1:
            raise InvalidValueError(
                "callbacks must hold one SummaryCollector, got several; remove all but one"
            )
        if self._session is not None:
            return self._session.topology
        if self._is_over:
            self._reset()
        known = self._topology if self._evaluations is None else self._evaluations.evaluator
        topology = known or self._place_of(step_of(run_context).topology or topologies.detect())
        network = params.get("network")
        # A mesh that was not given is read from the model's parameters.
        if topology.world_size > 1 and not topology.mesh and network is not None:
            mesh = self._failures.call("the mesh", framework_of(network).mesh, network)
            topology = replace(topology, mesh=mesh or {})
        if self._settings.record.private:
            self.run_dir.make_private()
        self._schedule.begin(topology)
        return topology

    def _admit(self, topology: Topology, *, resumes: bool) -> Admission:
        return admit(self.run_dir, topology, resumes=resumes, door="a callback of the loop")

    def _place_of(self, topology: Topology) -> Topology:
        """The place in the run of its directory of a rank whose place was not given as an argument."""
        return topology

    def _open(self, topology: Topology, past: Past | None = None) -> Session:
        session = Session(
            self.run_dir,
            topology,
            self._settings,
            coordinator=self._coordinate(topology),
            failures=self._failures,
            overhead=self.recorder.overhead,
            spent_s=self._step.spent_s,
            of_run=self._of_run(),
            past=past,
        )
        while self._early:
            self._failures.call("alerts", session.report_alert, *self._early.pop(0))
        return session

    def _of_run(self) -> dict[str, object]:
        """What is written into run.json, for all ranks and attempts."""
        found = {"define": self._defined or None, "keep_bytes": self._settings.record.keep_bytes}
        return {**self._settings.labels, **{name: one for name, one in found.items() if one is not None}}

    def _compare(self, session: Session, network: Any) -> None:
        """Record what distinguishes this rank from the others, where it should not differ."""
        from distsummary.collect.compare.rank_checks import Checks

        checksums = None
        if network is not None and framework_of(network).name == "torch":
            # it imports torch, which is imported already
            from distsummary.collect.compare.torch_checksums import Checksums

            checksums = Checksums(network, session.topology.mesh, session.topology.world_size)
        checks = Checks(
            self._settings.checksums,
            self._settings.config.flat,
            topology=session.topology,
            checksums=checksums,
            report=session.send_facts,
        )
        self._schedule.add(checks)

    def epoch_begin(self, run_context: RunContext) -> None:
        """Plan the steps of the epoch."""
        if not _is_evaluation(run_context):
            self._failures.call("steps of tensors", self._begin_epoch, run_context.original_args())

    def _begin_epoch(self, params: CallbackParams) -> None:
        if self._session is not None:
            self._session.total = self._schedule.begin_epoch(params)

    def step_begin(self, run_context: RunContext) -> None:
        """Notify the sources of values, if any may be due at the step's end."""
        params = run_context.original_args()
        if not _is_evaluation(run_context) and not self._is_plain(params):
            self._schedule.begin_step(params)

    def step_end(self, run_context: RunContext) -> None:
        """Record the step."""
        params, session = run_context.original_args(), self._session
        if _is_evaluation(run_context):
            return
        if not self._own_guard.done("the values of a step", self._record_end, params):
            self._failures.drop(counted(self._step.logged, self._step.values))
        # Without a session the call counts a failure: the hook `begin` was not called.
        if session is None or session.checkpoints is not None:
            self._failures.call("trajectory", self._save_checkpoint, "step", params)

    def _record_end(self, params: CallbackParams) -> None:
        # A Run records its plain steps itself; if other callbacks make it call the hooks, these steps take
        # the same quick way here.
        if self._is_plain(params):
            self._recorded = logged = self._step.logged
            self.recorder.record(params["cur_step_num"], logged, self._step.values)
        elif not is_sink(params):
            with self.recorder.overhead.measured():
                self._record_step(params, int(params["cur_step_num"]))
        # In sink mode the rest is recorded when the epoch ends.
        elif self._step.logged or self._step.values:
            self._open_session().record(int(params["cur_step_num"]), self._step.logged, self._step.values)

    def _is_plain(self, params: CallbackParams) -> bool:
        """Whether nothing but what was given is due at this step; it is no plain step of a sink mode."""
        step = params.get("cur_step_num")
        return (
            type(step) is int
            and step < self.recorder.plain_before
            and step < self._schedule.plain_before
            and not is_sink(params)
        )

    def epoch_end(self, run_context: RunContext) -> None:
        """Record what was logged after the last step, and the checkpoint of the epoch."""
        params = run_context.original_args()
        if _is_evaluation(run_context):
            return
        self._failures.call("epoch", self._end_epoch, params)
        self._failures.call("trajectory", self._save_checkpoint, "epoch", params)

    def _end_epoch(self, params: CallbackParams) -> None:
        if is_sink(params):
            self._record_step(params, int(params.cur_epoch_num))
            return
        self._recorded = logged = self._step.logged
        values, step = [*self._step.values], int(params.cur_step_num)
        # As in MindSpore, the last step of an epoch is recorded twice if it was due.
        if self._settings.compatibility.steps:
            values += self._schedule.values_again(params, step, self._step)
        self._open_session().record(step, logged, values)

    def end(self, run_context: RunContext) -> None:
        """Record the lineage of a training, or the metrics of an evaluation."""
        if _is_evaluation(run_context):
            self._end_evaluation(run_context)
        else:
            self._end_training(run_context)

    @guarded(again=True)
    def _end_training(self, run_context: RunContext) -> None:
        """Record what was logged after the last step, and the complete lineage."""
        params, session = run_context.original_args(), self._open_session()
        self._failures.call("values", self._record_rest, params)
        # The graph of a model that was not called in the due steps comes last.
        graph = self._schedule.graph
        if graph is not None and (values := graph.rest()):
            self._failures.call("graph", session.record, int(params.cur_step_num), {}, values)
        self._failures.call("lineage", self._description.end, session, params)

    def _end_evaluation(self, run_context: RunContext) -> None:
        """Record the metrics as scalars and as lineage."""
        params = run_context.original_args()
        self._taps.listener.resume()
        self._failures.call("metrics", self._record_metrics, params)
        if self._session is not None and self._session.topology.role == "train":
            self._session.phase = "training"

    def _record_step(self, params: CallbackParams, number: int) -> None:
        """Record a step (in sink mode an epoch) at which more than the logged values may be due."""
        self._recorded = logged = self._step.logged
        session = self._open_session()
        is_first = not self._schedule.has_begun
        found = self._failures.call("values", self._schedule.values, params, number, self._step) or []
        # What was given under the name of a value that is due counts.
        given = {("scalar", tag) for tag in logged} | {(one.plugin, one.tag) for one in self._step.values}
        values = [*self._step.values, *(one for one in found if (one.plugin, one.tag) not in given)]
        self._taps.record(int(params["cur_step_num"]), logged, values, number=number)
        if is_first:
            self._failures.call("lineage", self._description.begin, session, params)

    def _record_rest(self, params: CallbackParams) -> None:
        logged = self._step.logged
        # Each step has a `logged` dict of its own: the same object means that it is recorded already.
        if logged is self._recorded:
            return
        self._recorded = logged
        self._open_session()
        self._taps.record(int(params.cur_step_num), logged, self._step.values)

    def _record_metrics(self, params: CallbackParams) -> None:
        from distsummary.collect.evaluations import metric_values

        has_scalars = self._settings.collected.additions
        values = metric_values(params, self._failures) if has_scalars else []
        lineage = []
        if self._settings.collected.eval_lineage:
            follows = self._settings.compatibility
            message = self._failures.call("eval lineage", evaluation_lineage, params, compatibility=follows)
            lineage += [Value("eval_lineage", "", message)] if message is not None else []
        step = int(params.get("global_step", 0))  # 0 if the evaluation is outside a training
        if self._evaluations is not None:
            self._evaluations.keep(step, values, lineage)
            return
        self._open_session().record(step, {}, values, giver=BY_EVALUATION)
        self._open_session().report(step, lineage)

    def _save_checkpoint(self, unit: str, params: CallbackParams) -> None:
        number = params.cur_step_num if unit == "step" else params.cur_epoch_num
        is_late, session = self._step.ended_late, self._open_session()
        if session.checkpoints is not None:
            with self._step.within(CHECKPOINT):
                session.checkpoints.save(unit, int(number), step=session.step, is_late=is_late)

    def _open_session(self) -> Session:
        if self._session is None:
            raise ClosedError("the collector is not recording; call its hook `begin` first")
        return self._session

    def health(self) -> Health:
        """What was written, dropped and refused in the current training or, if none runs, in the last one."""
        return self._health if self._session is None else self._session.health()

    def count_failure(self, reason: str) -> None:
        """Count a failure of what belongs to the run, in `health()`, and log it once; from any thread."""
        self._failures.count(reason)

    @guarded(again=True)
    def close(self, *, error: BaseException | None = None) -> None:
        """Write everything, close the files and leave the run; a second call does nothing.

        `error` is the exception that ended the training, if one did: the rank has then failed, or was
        interrupted if `interrupts.is_interruption` says so.
        """
        self._end_start()
        self._failures.call("tapped numbers", self._taps.close)
        evaluations, self._evaluations = self._evaluations, None
        if evaluations is not None:
            self._failures.call("evaluations", self._close_evaluations, evaluations)
        # Values given from now on belong to no session: they are kept for evaluations, or counted as dropped.
        self.recorder.plain_before, self.recorder.record = -math.inf, self._keep
        self._failures.call("the sources", self._schedule.close)
        self._is_over = True
        session, admission = self._session, self._admission
        try:
            if session is not None:
                self._health = session.close(error) or self._failures.health
                self._summary = self._failures.call("the summary", session.summary) or {}
        finally:
            self._session = self._admission = None
            if admission is not None:
                admission.end()

    def discard(self) -> None:
        """Close, without having recorded anything."""
        self.close()

    def _close_evaluations(self, evaluations: "Evaluations") -> None:
        health = evaluations.close(self.run_dir, self._settings.config.nested, self._open, self._failures)
        self._health = health or self._health

    @guarded(again=True)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        params = self._params
        error = None if is_good_exit(error) else error
        # The step that failed has not ended: record what was logged in it.
        if (
            error is not None
            and params is not None
            and (self._step.logged or self._step.values)
            and self._step.logged is not self._recorded
        ):
            self._failures.call("values", self._record_rest, params)
        has_failed = error is not None and not is_interruption(error)
        if has_failed and params is not None and self._session is not None:
            end = self._description.end_settings
            self._failures.call("the end of the settings", end, self._session, params, is_success=False)
        self.close(error=error)


def _is_evaluation(run_context: RunContext) -> bool:
    return bool(run_context.original_args().get("mode") == "eval")
