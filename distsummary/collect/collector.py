"""SummaryCollector: the callback that records one rank of a training."""

import dataclasses
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import distsummary
from distsummary.base.checks import check_choice, check_int, check_type
from distsummary.base.failures import Failures
from distsummary.base.guard import check, door
from distsummary.base.health import Health
from distsummary.base.interrupts import is_interruption
from distsummary.base.terminal import announced
from distsummary.checkpoints.landscape_spec import DEFAULT_SPEC
from distsummary.collect.config import read_config
from distsummary.collect.evaluations import Evaluations, metric_values
from distsummary.collect.norm_source import check_norms, refuse_unmeasured
from distsummary.collect.older_order import is_older_collector, without_num_process
from distsummary.collect.open_writer import check_collectors, refuse_unconnected
from distsummary.collect.options import (
    check_custom_lineage,
    check_delivery,
    check_export_options,
    check_formats,
    check_limits,
    check_max_file_size,
    check_specified,
    check_summary_dir,
    rank_formats,
    refuse_unfit,
    with_landscape,
)
from distsummary.collect.plan import DEALS
from distsummary.collect.rank_checks import Checks, check_checksums
from distsummary.collect.record_options import Record
from distsummary.collect.run_description import DescriptionRecorder
from distsummary.collect.run_lineage import evaluation_lineage
from distsummary.collect.run_recorder import RunRecorder
from distsummary.collect.schedule import Schedule
from distsummary.collect.session import Past, Session
from distsummary.collect.trajectory_keeper import refuse_unkept
from distsummary.collect.watcher import OUTSIDE, LoopPlace
from distsummary.diagnosis.diagnose import Diagnose
from distsummary.errors import ClosedError, InvalidValueError
from distsummary.events.spec import WriterSpec
from distsummary.format.records import DIALECTS, WRITTEN, Value
from distsummary.frameworks.base import framework_of
from distsummary.rundir import topology as topologies
from distsummary.rundir.identity import as_recorded, without_identity
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import STEP_HOOKS, Callback, CallbackParams, RunContext, guarded, is_sink
from distsummary.training.phases import CHECKPOINT, EVALUATION, STEP_PHASES, in_phase
from distsummary.training.recorder import TIMES
from distsummary.training.run import STEP_TIMES

logger = logging.getLogger(__name__)


@guarded
class SummaryCollector(Callback):
    """Records one rank of a training: scalars, histograms, images, lineage and, on request, its trajectory.

    At every step, it records the values that the loop logged, under their names. At the first step and every
    `collect_freq` steps, it records the loss as `loss/auto` and the learning rate as `learning_rate/auto`
    (unless they were logged), histograms of parameters as `<name>/auto`, and the first images of the batch as
    `input_data/auto` (`ds.init` records them on request alone, by `record=ds.Record(images=True)`). If
    `tensor_regular` selects any, it records whole parameters at about 20 steps spread over the training (or
    every `collect_tensor_freq` steps). It records the lineage at the first step and completes it at the end.
    The metrics of an evaluation become scalars `eval/<name>`.

    Hooks raise only when a training or evaluation begins, for bad arguments or files that cannot be opened.
    With `raise_exception`, they also raise for values that could not be recorded. Other failures are counted
    in `health()` and logged once.

    Args:
        summary_dir: the run dir, the same for all ranks; created if absent.
        collect_freq: steps between records, >= 1. collect_tensor_freq: the same for whole parameters.
        num_process: accepted for compatibility with MindSpore; it has no effect. Arguments by position in the
            order of older versions, which do not have it, are taken too, with a warning.
        collect_specified_data: MindSpore's keys (`collect_metric` ... `histogram_regular`,
            `collect_landscape`), and `tensor_regular`, a pattern for parameters to record whole.
            `collect_metric=False` leaves out all numbers that no one logged: `loss/auto`,
            `learning_rate/auto` and the times of the steps, `perf/...`.
        keep_default_action: False collects only what `collect_specified_data` names.
        custom_lineage_data: a dict of values of any kind, recorded like `config`, but not in the manifest;
            for a name that `config` has too, its value is recorded in the lineage.
        max_file_size: limit of each event file in bytes; values that do not fit are dropped and counted.
        export_options: {"tensor_format": "npy"} also exports the recorded tensors as .npy files.
        formats: some of "mindspore" and "tensorboard"; by default both; with over 16 ranks, only "mindspore".
        histograms: which parameters get histograms. None: the first five, as in MindSpore, or those that
            `histogram_regular` matches. True, False, a pattern or a number: as in `ds.init`, where True is
            the default.
        gradients: which parameters get histograms of their gradients. As in `ds.init`; needs a torch network.
        norms: as in `ds.init`, of the loop's `network`; a loop other than Run must step torch's optimizers.
        checksums: as in `ds.init`, where the default is True.
        graph: the graph of the model, which rank 0 records after the first step. True: the tree of its
            modules, with the shapes between them; "ops": the operations of the first forward pass; "export":
            what torch.export makes of it; False: none; None: True, unless `collect_graph` is False.
        deal: who records a parameter that is equal on all ranks: "parameters": one rank, always the same;
            "steps": the ranks take turns; "all": every rank.
        collect_landscape: the same as the key `collect_landscape` of `collect_specified_data`; off by
            default. If the disk is still busy with older checkpoints, a new checkpoint blocks the training
            for at most 5 s and is then dropped and counted.
        mindspore_compat: do as MindSpore does: its way to scale images and to compute histograms, and an
            epoch's last step, if due, recorded twice; a value logged as `loss` is also recorded as
            `loss/auto`.
        topology: this rank's place among the ranks; by default from the loop or the environment.
        coordinator: internal: the `Coordinator` that joins all ranks to one run; by default, several ranks
            have an aggregator as with `ds.init`, and a single rank is judged in its own process.
        exists: if the run has finished, "attempt" adds an attempt; "refuse" raises unless the loop resumes.
        collectors: who writes the files under Ray: "rank": an actor of each rank, on its node; "node": one
            actor for all ranks of a node; "process": the rank's own process. None: what the environment
            variable DISTSUMMARY_COLLECTORS names, else "rank", and "node" from 8 ranks a node on. Without
            Ray, a rank's own process writes them. See docs/reliability.md.
        rotate_bytes, rotate_s: begin new event files before the current files would exceed `rotate_bytes`, or
            when they are `rotate_s` seconds old.
        delivery: "written": an acknowledged event survives the death of any process; "synced": within a
            second it also survives a power cut; "queued": events that the collector cannot take at once are
            dropped and counted.
        raise_exception: raise WriteError for values that could not be recorded.
        config: the settings of the training (a dict, dataclass, argparse.Namespace ...), see `read_config`.
            They are recorded in the manifest and, with nested names joined by dots, in the lineage.
        system_metrics: every 10 s, record what the process, its node and its GPU use, at the newest step, as
            `system/...`; see docs/recording.md.
        record: options of recording, see `ds.Record`. diagnose: options of diagnosis, see `ds.Diagnose`.

    Raises:
        InvalidTypeError, InvalidValueError: a bad argument.
        NotADirectoryPathError, RunDirError: the directory cannot be made or written.
    """

    _merges_at_exit = False  # whether the last rank waits for the merged run when its process ends

    @without_num_process(3, is_older_collector)
    def __init__(
        self,
        summary_dir: str | os.PathLike[str],
        collect_freq: int = 10,
        num_process: object = 32,
        collect_specified_data: dict[str, Any] | None = None,
        keep_default_action: bool = True,
        custom_lineage_data: dict[str, Any] | None = None,
        collect_tensor_freq: int | None = None,
        max_file_size: int | None = None,
        export_options: dict[str, str] | None = None,
        *,
        formats: Sequence[str] | None = None,
        histograms: bool | int | str | None = None,
        gradients: bool | int | str = False,
        graph: bool | str | None = None,
        norms: bool | str = False,
        checksums: bool | int = False,
        deal: str = "parameters",
        collect_landscape: dict[str, Any] | None = None,
        mindspore_compat: bool = False,
        topology: Topology | None = None,
        coordinator: Any = None,
        exists: str = "attempt",
        collectors: str | None = None,
        rotate_bytes: int | None = None,
        rotate_s: float | None = None,
        delivery: str = WRITTEN,
        raise_exception: bool = False,
        config: object = None,
        system_metrics: bool = False,
        record: Record | None = None,
        diagnose: Diagnose | None = None,
    ) -> None:
        check_int("collect_freq", collect_freq, low=1)
        check_int("collect_tensor_freq", collect_tensor_freq, low=1, optional=True)
        check_choice("deal", deal, DEALS)
        check_choice("exists", exists, ("attempt", "refuse"))
        check_type("mindspore_compat", mindspore_compat, bool)
        check_type("raise_exception", raise_exception, bool)
        check_type("system_metrics", system_metrics, bool)
        check_type("topology", topology, Topology, optional=True)
        check_type("record", record, Record, optional=True)
        check_type("diagnose", diagnose, Diagnose, optional=True)
        self._record, self._diagnose = record or Record(), diagnose or Diagnose()
        specified = with_landscape(collect_specified_data, collect_landscape)
        self._collected = check_specified(
            specified,
            keep_default_action,
            histograms=histograms,
            gradients=gradients,
            graph=graph,
            images=self._record.images,
            mindspore_compat=mindspore_compat,
        )
        is_quiet = topology is not None and topology.rank > 0
        self._config = read_config(config, is_quiet=is_quiet)
        self._custom = self._config.flat | check_custom_lineage(custom_lineage_data, is_quiet=is_quiet)
        # The settings that all writers share; the session adds the directory, run id, attempt and rank.
        self._spec = WriterSpec(
            directory="",
            formats=DIALECTS if formats is None else check_formats(formats),
            limits=check_limits(
                check_max_file_size(max_file_size, negative_is_unlimited=False), rotate_bytes, rotate_s
            ),
            delivery=check_delivery(delivery),
            overload=self._record.overload,
            mindspore_compat=mindspore_compat,
            raise_exception=raise_exception,
        )
        self._has_default_formats = formats is None
        self._collectors, self._exports_npy = (
            check_collectors(collectors),
            check_export_options(export_options),
        )
        self._freq, self._tensor_freq = collect_freq, collect_tensor_freq
        self._deal, self._compat = deal, mindspore_compat
        self._system_metrics, self._precision = system_metrics, check_norms(norms)
        self._checksums = check_checksums(checksums)
        self._topology, self._coordinator, self._exists = topology, coordinator, exists
        self.run_dir = check_summary_dir(summary_dir)
        self._session: Session | None = None
        self._reset()

    def _reset(self) -> None:
        """Reset the state for the next training."""
        self._is_over = False
        self._evaluations: Evaluations | None = None  # set while evaluations wait to be recorded
        self._description = DescriptionRecorder(self._collected, self._custom, mindspore_compat=self._compat)
        self._health = Health()
        self._failures = Failures(self._health, logger, raise_exception=self._spec.raise_exception)
        self._own_guard = self._failures.guard
        self.recorder: RunRecorder = RunRecorder(
            self.run_dir.base,
            formats=self._spec.formats,
            exports=self._exports_npy,
            health=self.health,
            record=self._keep,
            alert=self._report,
            failures=self._failures,
        )
        self._schedule = Schedule(
            self._collected,
            freq=self._freq,
            tensor_freq=self._tensor_freq,
            deal=self._deal,
            precision=self._precision,
            exports=self._exports_npy,
            mindspore_compat=self._compat,
            recorder=self.recorder,
            failures=self._failures,
        )
        self._taps = self._schedule.taps
        self.recorder.gather = self._taps.gather
        self._params: CallbackParams | None = None  # the parameters of the current training
        self._recorded: object = None  # the `logged` dict that was recorded last
        self._early: list[tuple[str, int, str, str]] = []  # alerts before the session was open

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

    def on_train_begin(self, run_context: RunContext) -> None:
        """Join the run and open the files; raises for bad arguments and for files that cannot be opened."""
        params = run_context.original_args()
        topology = self._begin(params, "train")
        network = params.get("network")
        self.refuse_unfit(network, topology)
        if self._collected.landscape not in (None, DEFAULT_SPEC) and network is not None:
            refuse_unkept(network, topology, self._schedule.group)
        if self._session is None:
            is_new = self._exists == "refuse" and not params.get("initial_step")
            self._session = self._open(topology, refuse_finished=is_new)
        self._begin_recording(self._session, params)

    @door(again=True)
    def _begin_recording(self, session: Session, params: CallbackParams) -> None:
        """Record from now on; what cannot be done is counted."""
        self._params = params
        if (finite := params.get("finite_check")) is not None:
            finite.is_judged = session.is_judged
        self._taps.begin(params, session.record)
        self.recorder.record = self._taps.record
        # A subclass that overrides a step hook must see every step, so no step is plain.
        is_own = all(getattr(type(self), hook) is getattr(SummaryCollector, hook) for hook in STEP_HOOKS)
        self._schedule.sees_all = not is_own
        call, network = self._failures.call, params.get("network")
        evaluations, self._evaluations = self._evaluations, None
        if evaluations is not None:
            call("evaluations", evaluations.record, session)
        if session.phase == "starting":
            begun = int(params.get("initial_step") or 0)
            call("heartbeats", session.begin_heartbeats, self._schedule.receive, begun)
            call("the attempt", self._publish_attempt, session)
        session.phase = "training"
        while self._early:
            call("alerts", session.report_alert, *self._early.pop(0))
        call("the watcher", session.watch_steps, partial(self._place, session, params))
        is_one_of_several = session.topology.world_size > 1 and session.topology.role == "train"
        report = session.report_parts if is_one_of_several else None
        call("the schedule", self._schedule.watch, params.get("watched", network), params, report)
        if is_one_of_several and self._collected.metric:
            call("checks", self._compare, session, network)
        if network is not None and self._collected.landscape is not None:
            call("trajectory", self._keep_trajectory, session, network, params)
        self._schedule.sees_all = not is_own or session.keeps_checkpoints
        if self._system_metrics:
            call("system metrics", session.monitor_system, network)

    @door()
    def refuse_unfit(self, network: object, topology: Topology) -> None:
        """Raise InvalidValueError or InvalidTypeError for an option that cannot work with this model."""
        refuse_unconnected(self._collectors)
        if self._precision is not None:
            refuse_unmeasured(network)
        if network is None and not isinstance(self._checksums, bool):
            raise InvalidValueError(
                f"checksums={self._checksums} sums up the parameters of the watched model, got watch=None; "
                "pass the model: ds.init(..., watch=model), or leave checksums out"
            )
        refuse_unfit(self._collected, network, topology)

    def _place(self, session: Session, params: CallbackParams) -> LoopPlace:
        """Where the loop is, as far as its parameters show; called by another thread."""
        phases, phase = params.get("phases"), EVALUATION if session.phase == "evaluating" else ""
        if phases is not None and not phase:
            is_step = phases.is_in_loop or phases.current in (EVALUATION, CHECKPOINT)
            phase = phases.current if is_step else OUTSIDE
        step = params.get("cur_step_num")
        return LoopPlace(step if isinstance(step, int) else 0, phase)

    def _publish_attempt(self, session: Session) -> None:
        """Say that the run dir holds a training already; `ds.init` asks the user, by `exists`."""
        if session.attempt > 0 and session.topology.rank == 0 and self._coordinator is None:
            announced(
                f"distsummary: {self.run_dir.base} holds a training already; this one is attempt "
                f"{session.attempt}, which viewers show instead from its first step on; for a run of its "
                "own, name another summary_dir"
            )

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Join the run if the role is eval; otherwise, outside a training, keep the evaluation for later.

        If a training follows, its session records the kept evaluations; otherwise `close` records them.
        """
        params = run_context.original_args()
        topology = self._begin(params, "eval")
        if self._session is None and topology.role == "eval":
            self._session = self._open(topology)
            self._session.begin_heartbeats(self._schedule.receive)
            self.recorder.record = self._session.record
        elif self._session is None:
            self._evaluations = self._evaluations or Evaluations(topology)
            self._evaluations.own()
        self._taps.pause()
        if self._session is not None:
            self._session.phase = "evaluating"

    @door(again=True)
    def _begin(self, params: CallbackParams, expected: str) -> Topology:
        """Check mode and callbacks, reset the state unless it is in use, and return this rank's topology."""
        if params.get("mode") != expected:
            raise InvalidValueError(
                f"mode must be {expected!r}, got {params.get('mode')!r}; use train or eval"
            )
        callbacks = params.get("list_callback")
        listed = callbacks if isinstance(callbacks, list) else getattr(callbacks, "_callbacks", None) or []
        if sum(isinstance(callback, SummaryCollector) for callback in listed) > 1:
            raise InvalidValueError(
                "callbacks must hold one SummaryCollector, got several; remove all but one"
            )
        if self._session is not None:
            return self._session.topology
        if self._is_over:
            self._reset()
        known = self._topology if self._evaluations is None else self._evaluations.evaluator
        topology = known or params.get("topology") or topologies.detect()
        network = params.get("network")
        if not topology.mesh and network is not None:
            mesh = self._failures.call("the mesh", framework_of(network).mesh, network)
            topology = dataclasses.replace(topology, mesh=mesh or {})
        if self._record.private:
            self.run_dir.make_private()
        hide = as_recorded if self._record.identity else without_identity
        topology = hide(self.run_dir, topology)
        self._schedule.begin(topology)
        return topology

    @check(OSError)
    def _open(
        self, topology: Topology, past: Past | None = None, *, refuse_finished: bool = False
    ) -> Session:
        formats, coordinator = self._spec.formats, self._coordinator
        if coordinator is None and past is None:
            coordinator = distsummary.coordinator(
                self.run_dir,
                topology,
                aggregate=topology.world_size > 1,
                waits_at_exit=self._merges_at_exit,
            )
        has_times = self._collected.metric and self._collected.additions
        if self._has_default_formats:
            formats = rank_formats(None, topology.world_size)
        return Session(
            self.run_dir,
            topology,
            dataclasses.replace(self._spec, formats=formats if past is None else past.formats),
            collectors=self._collectors,
            exports_npy=self._exports_npy,
            config=self._config.nested,
            diagnose=self._diagnose,
            coordinator=coordinator,
            failures=self._failures,
            leaves_out=() if has_times else (*STEP_TIMES, *STEP_PHASES),
            refuse_finished=refuse_finished,
            past=past,
            overhead=self.recorder.overhead,
        )

    def _compare(self, session: Session, network: Any) -> None:
        """Record what distinguishes this rank from the others, where it should not differ."""
        checksums = None
        if network is not None and framework_of(network).name == "torch":
            from distsummary.collect.torch_checksums import Checksums  # imports torch, imported already

            checksums = Checksums(network, session.topology.mesh, session.topology.world_size)
        checks = Checks(
            self._checksums,
            self._config.flat,
            topology=session.topology,
            checksums=checksums,
            report=session.send_facts,
        )
        self._schedule.add(checks)

    def _keep_trajectory(self, session: Session, network: object, params: CallbackParams) -> None:
        assert self._collected.landscape is not None
        steps, network = params.get("batch_num") or 0, params.get("backbone", network)
        session.keep_trajectory(self._collected.landscape, network, self._schedule.group, steps)

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Plan the steps of the epoch."""
        self._failures.call("steps of tensors", self._begin_epoch, run_context.original_args())

    def _begin_epoch(self, params: CallbackParams) -> None:
        if self._session is not None:
            self._session.total = self._schedule.begin_epoch(params)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Notify the sources of values, if any may be due at the step's end."""
        params = run_context.original_args()
        if not self._is_plain(params):
            self._schedule.begin_step(params)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Record the step."""
        params, session = run_context.original_args(), self._session
        self._record_end(params)
        if session is None or session.keeps_checkpoints:
            self._failures.call("trajectory", self._save_checkpoint, "step", params)

    def _drop_given(self, params: CallbackParams) -> None:
        """Count the values of a step that could not be recorded as dropped."""
        lost = Counter(value.plugin for value in params.get("values", ()))
        lost["scalar"] += sum(not tag.startswith(TIMES) for tag in params.get("logged", {}))
        self._failures.drop(lost)

    @door(_drop_given)
    def _record_end(self, params: CallbackParams) -> None:
        if self._is_plain(params):  # the quick way of a Run, which other callbacks take from it
            self._recorded = logged = params.get("logged", {})
            self.recorder.record(params["cur_step_num"], logged, params.get("values", ()))
        elif not is_sink(params):
            with self.recorder.overhead.measured():
                self._record_step(params, int(params["cur_step_num"]))
        elif params.get("logged") or params.get("values"):  # the rest is recorded when the epoch ends
            self._open_session().record(
                int(params["cur_step_num"]), params.get("logged", {}), params.get("values", ())
            )

    def _is_plain(self, params: CallbackParams) -> bool:
        """Whether nothing but what was given is due at this step; it is no plain step of a sink mode."""
        step = params.get("cur_step_num")
        return (
            type(step) is int
            and step < self.recorder.plain_before
            and step < self._schedule.plain_before
            and not is_sink(params)
        )

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Record what was logged after the last step, and the checkpoint of the epoch."""
        params = run_context.original_args()
        self._failures.call("epoch", self._end_epoch, params)
        self._failures.call("trajectory", self._save_checkpoint, "epoch", params)

    def _end_epoch(self, params: CallbackParams) -> None:
        if is_sink(params):
            self._record_step(params, int(params.cur_epoch_num))
            return
        self._recorded = logged = params.get("logged", {})
        values, step = list(params.get("values", ())), int(params.cur_step_num)
        if self._compat:  # MindSpore records the last step of an epoch twice if it was due
            values += self._schedule.values_again(params, step)
        self._open_session().record(step, logged, values)

    @door(again=True)
    def on_train_end(self, run_context: RunContext) -> None:
        """Record what was logged after the last step, and the complete lineage."""
        params = run_context.original_args()
        self._failures.call("values", self._record_rest, params)
        self._failures.call(self._schedule.graph.what, self._record_graph, params)
        self._failures.call("lineage", self._end_description, params)

    def on_eval_end(self, run_context: RunContext) -> None:
        """Record the metrics as scalars and as lineage."""
        params = run_context.original_args()
        self._taps.resume()
        self._failures.call("metrics", self._record_metrics, params)
        if self._session is not None and self._session.topology.role == "train":
            self._session.phase = "training"

    def _record_step(self, params: CallbackParams, number: int) -> None:
        """Record a step (in sink mode an epoch) at which more than the logged values may be due."""
        self._recorded = logged = params.get("logged", {})
        self._open_session()
        is_first = not self._schedule.has_begun
        found = self._failures.call("values", self._schedule.values, params, number) or []
        values = [*params.get("values", ()), *found]
        self._taps.record(int(params["cur_step_num"]), logged, values, number=number)
        if is_first:
            self._failures.call("lineage", self._begin_description, params)

    def _record_rest(self, params: CallbackParams) -> None:
        logged = params.get("logged", {})
        if logged is self._recorded:
            return
        self._recorded = logged
        self._open_session()
        self._taps.record(int(params.cur_step_num), logged, params.get("values", ()))

    def _record_graph(self, params: CallbackParams) -> None:
        """Record the graph of a model that was not called in the steps at which the graph was due."""
        if values := self._schedule.graph.rest():
            self._open_session().record(int(params.cur_step_num), {}, values)

    def _begin_description(self, params: CallbackParams) -> None:
        self._description.begin(self._open_session(), params)

    def _end_description(self, params: CallbackParams) -> None:
        self._description.end(self._open_session(), params)

    def _record_metrics(self, params: CallbackParams) -> None:
        values = metric_values(params, self._failures) if self._collected.additions else []
        lineage = []
        if self._collected.eval_lineage:
            message = self._failures.call(
                "eval lineage", evaluation_lineage, params, mindspore_compat=self._compat
            )
            lineage += [Value("eval_lineage", "", message)] if message is not None else []
        step = int(params.get("global_step", 0))  # 0 if the evaluation is outside a training
        if self._evaluations is not None:
            self._evaluations.keep(step, values, lineage)
            return
        self._open_session().record(step, {}, values)
        self._open_session().report(step, lineage)

    def _save_checkpoint(self, unit: str, params: CallbackParams) -> None:
        number = params.cur_step_num if unit == "step" else params.cur_epoch_num
        is_late = bool(params.get("ended_late"))
        with in_phase(params, CHECKPOINT):
            self._open_session().save_checkpoint(unit, int(number), is_late=is_late)

    def _open_session(self) -> Session:
        if self._session is None:
            raise ClosedError("the collector is not recording; call a begin hook first, e.g. on_train_begin")
        return self._session

    def health(self) -> Health:
        """What was written, dropped and refused in the current training or, if none runs, in the last one."""
        return self._health if self._session is None else self._session.health()

    def count_failure(self, reason: str) -> None:
        """Count a failure of what belongs to the run, in `health()`, and log it once; from any thread."""
        self._failures.count(reason)

    @door(again=True)
    def close(self, *, error: BaseException | None = None) -> None:
        """Write everything, close the files and leave the run; a second call does nothing.

        `error` is the exception that ended the training, if one did: the rank has then failed, or was
        interrupted if `interrupts.is_interruption` says so.
        """
        self._failures.call("tapped numbers", self._taps.close)
        evaluations, self._evaluations = self._evaluations, None
        if evaluations is not None:
            self._failures.call("evaluations", self._close_evaluations, evaluations)
        self.recorder.plain_before, self.recorder.record = -math.inf, self._keep
        self._failures.call("the sources", self._schedule.close)
        self._is_over = True
        session = self._session
        if session is not None:
            try:
                self._health = session.close(error)
            finally:
                self._session = None

    def discard(self) -> None:
        """Close, without having recorded anything."""
        self.close()

    def _close_evaluations(self, evaluations: Evaluations) -> None:
        health = evaluations.close(self.run_dir, self._config.nested, self._open, self._failures)
        self._health = health or self._health

    def __enter__(self) -> Self:
        return self

    @door(again=True)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        params = self._params
        if (
            kind is not None
            and params is not None
            and (params.get("logged") or params.get("values"))
            and params.logged is not self._recorded
        ):
            self._failures.call("values", self._record_rest, params)  # logged in the step that failed
        has_failed = error is not None and not is_interruption(error)
        if has_failed and params is not None and self._session is not None:
            end = self._description.end_settings
            self._failures.call("the end of the settings", end, self._session, params, is_success=False)
        self.close(error=error)
