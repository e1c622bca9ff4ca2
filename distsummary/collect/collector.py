"""SummaryCollector: the callback that records one rank of a training."""

import dataclasses
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import distsummary
from distsummary import topology as topologies
from distsummary.attempts import newest_attempt
from distsummary.checks import check_choice, check_int, check_type
from distsummary.collect.config import differing, listed, read_config
from distsummary.collect.lineage import custom_lineage, dataset_graph, evaluation_lineage, train_lineage
from distsummary.collect.older_order import is_older_collector, without_num_process
from distsummary.collect.open_writer import COLLECTORS
from distsummary.collect.options import (
    check_custom_lineage,
    check_delivery,
    check_export_options,
    check_formats,
    check_limits,
    check_max_file_size,
    check_specified,
    check_summary_dir,
    with_landscape,
)
from distsummary.collect.plan import DEALS, Group, Steps, dealing_group, regular_steps, tensor_steps
from distsummary.collect.run_recorder import RunRecorder
from distsummary.collect.selection import BY_DEFAULT, Selection, default_steps
from distsummary.collect.session import ENDED_LATE, Past, Session, find_past
from distsummary.collect.step_values import (
    Parameters,
    image_values,
    learning_rate_values,
    loss_values,
    unless_logged,
)
from distsummary.deal import Deal
from distsummary.errors import ClosedError, InvalidValueError
from distsummary.format.hparams import session_end, session_start
from distsummary.format.lineage import custom_values
from distsummary.format.records import DIALECTS, MINDSPORE, WRITTEN, Health, Value
from distsummary.frameworks.base import framework_of
from distsummary.interrupts import is_interruption
from distsummary.reading.reader import read_last_step
from distsummary.run_dir import RunDir
from distsummary.topology import Topology
from distsummary.training.callbacks import STEP_HOOKS, Callback, CallbackParams, RunContext
from distsummary.training.run import STEP_TIMES
from distsummary.training.values import mean_of, resolve, scalar
from distsummary.writing.health import Failures
from distsummary.writing.spec import WriterSpec

logger = logging.getLogger(__name__)

# With more ranks than this, rank directories get only the MindSpore format by default; the merged run has
# both.
BOTH_FORMATS_UP_TO = 16


class SummaryCollector(Callback):
    """Records one rank of a training: scalars, histograms, images, lineage and, on request, its trajectory.

    At every step, it records the values that the loop logged, under their names. At the first step and every
    `collect_freq` steps, it records the loss as `loss/auto` and the learning rate as `learning_rate/auto`
    (unless they were logged), histograms of parameters as `<name>/auto`, and the first images of the batch as
    `input_data/auto`. If `tensor_regular` selects any, it records whole parameters at about 20 steps spread
    over the training (or every `collect_tensor_freq` steps). It records the lineage at the first step and
    completes it at the end. The metrics of an evaluation become scalars `eval/<name>`.

    Hooks raise only when a training or evaluation begins, for bad arguments or files that cannot be opened.
    With `raise_exception`, they also raise for values that could not be recorded. Other failures are counted
    in `health()` and logged once.

    Args:
        summary_dir: the run dir, the same for all ranks; created if absent.
        collect_freq: steps between records, >= 1. collect_tensor_freq: the same for whole parameters.
        num_process: accepted for compatibility with MindSpore; it has no effect. Arguments by position in the
            order of older versions, which lack it, are taken too, with a warning.
        collect_specified_data: MindSpore's keys (`collect_metric` ... `histogram_regular`,
            `collect_landscape`), and `tensor_regular`, a pattern for parameters to record whole.
            `collect_metric=False` leaves out all numbers that nobody logged: `loss/auto`,
            `learning_rate/auto` and the times of the steps, `perf/step_ms` and `perf/data_wait_ms`.
        keep_default_action: False collects only what `collect_specified_data` names.
        custom_lineage_data: a dict of values of any kind, recorded like `config`, but not in the manifest;
            for a name that `config` has too, its value is recorded in the lineage.
        max_file_size: limit of each event file in bytes; values that do not fit are dropped and counted.
        export_options: {"tensor_format": "npy"} also exports the recorded tensors as .npy files.
        formats: some of "mindspore" and "tensorboard"; by default both; with over 16 ranks, only "mindspore".
        histograms: which parameters get histograms. None: the first five, as in MindSpore, or those that
            `histogram_regular` matches. True, False, a pattern or a number: as in `ds.init`, where True is
            the default.
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
            have an aggregator as with `ds.init`, and a single rank uses the manifest in the run dir.
        exists: if the run has finished, "attempt" adds an attempt; "refuse" raises unless the loop resumes.
        collectors: who writes the files: "process": this process; "rank": a Ray actor, from the start;
            "auto": this process, but under Ray an actor as soon as writing takes more than a tenth of a
            processor, as with histograms or tensors at every step; see docs/reliability.md.
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

    Raises:
        InvalidTypeError, InvalidValueError: a bad argument.
        NotADirectoryPathError, RunDirError: the directory cannot be made or written.
    """

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
        deal: str = "parameters",
        collect_landscape: dict[str, Any] | None = None,
        mindspore_compat: bool = False,
        topology: Topology | None = None,
        coordinator: Any = None,
        exists: str = "attempt",
        collectors: str = "auto",
        rotate_bytes: int | None = None,
        rotate_s: float | None = None,
        delivery: str = WRITTEN,
        raise_exception: bool = False,
        config: object = None,
        system_metrics: bool = False,
    ) -> None:
        check_int("collect_freq", collect_freq, low=1)
        check_int("collect_tensor_freq", collect_tensor_freq, low=1, optional=True)
        check_choice("deal", deal, DEALS)
        check_choice("collectors", collectors, COLLECTORS)
        check_choice("exists", exists, ("attempt", "refuse"))
        check_type("mindspore_compat", mindspore_compat, bool)
        check_type("raise_exception", raise_exception, bool)
        check_type("system_metrics", system_metrics, bool)
        check_type("topology", topology, Topology, optional=True)
        specified = with_landscape(collect_specified_data, collect_landscape)
        self._collected = check_specified(
            specified, keep_default_action, histograms=histograms, mindspore_compat=mindspore_compat
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
            mindspore_compat=mindspore_compat,
            raise_exception=raise_exception,
        )
        self._has_default_formats = formats is None
        self._collectors, self._exports_npy = collectors, check_export_options(export_options)
        self._freq, self._tensor_freq = collect_freq, collect_tensor_freq
        self._deal, self._compat = deal, mindspore_compat
        self._system_metrics = system_metrics
        self._topology, self._coordinator, self._exists = topology, coordinator, exists
        self.run_dir = check_summary_dir(summary_dir)
        self._session: Session | None = None
        self._evaluator_pid = 0
        self._evaluator: Topology | None = None  # set while evaluations wait to be recorded
        self._evaluations: list[tuple[int, list[Value], list[Value]]] = []  # step, scalars, lineage
        self._reset()

    def _reset(self) -> None:
        """Reset the state for the next training."""
        self._is_over = False
        self._has_settings = False  # whether TensorBoard shows the settings of the current training
        self._evaluations.clear()
        self._health = Health()
        self._failures = Failures(self._health, logger, raise_exception=self._spec.raise_exception)
        self.recorder: RunRecorder = RunRecorder(
            self.run_dir.base,
            formats=self._spec.formats,
            exports=self._exports_npy,
            health=self.health,
            record=self._keep,
            failures=self._failures,
        )
        self._group = Group()
        self._coming: Deal | None = None  # a deal that begins at a later step
        self._total: int | None = None  # steps of the training by the deal that holds
        self._regular = regular_steps(self._freq)
        self._histogram_steps = self._regular
        # By default, pictures get rarer as histograms do: those of a small CNN take as long as a step of it.
        is_default = self._collected.histogram is BY_DEFAULT
        self._image_steps = default_steps(self._freq, 0) if is_default else self._regular
        self._tensors = tensor_steps(None, self._freq, self._tensor_freq)
        self._histograms: Parameters | None = None
        self._whole: Parameters | None = None
        self._last: int | None = None  # the newest recorded step
        # the next due steps; the first step is due
        self._regular_at = self._images_at = self._histograms_at = self._tensors_at = -math.inf
        self._takes_images = self._collected.input_data
        self._params: CallbackParams | None = None  # the parameters of the current training
        self._recorded: object = None  # the `logged` dict that was recorded last
        self._rate: list[Value] = []  # the learning rate of the current step

    def _keep(self, step: int, numbers: Mapping[str, object], values: Sequence[Value] = ()) -> None:
        """Keep the values of a run that only evaluates, to record them with its evaluations."""
        if self._evaluator is not None:
            kept = [Value("scalar", tag, number) for tag, number in numbers.items()]
            self._evaluations.append((step, [*kept, *values], []))
        else:
            lost = Counter({"scalar": len(numbers)}) + Counter(value.plugin for value in values)
            self._failures.count(
                "values given before the first step of a run that failed are dropped", dropped=lost
            )

    def on_train_begin(self, run_context: RunContext) -> None:
        """Join the run and open the files; raises for bad arguments and for files that cannot be opened."""
        params = run_context.original_args()
        topology = self._begin(params, "train")
        if self._session is None:
            is_new = self._exists == "refuse" and not params.get("initial_step")
            self._session = self._open(topology, refuse_finished=is_new)
            self._evaluator = None
            self._record_evaluations(self._session)
            self._session.begin_heartbeats(self._hear, int(params.get("initial_step") or 0))
        session = self._session
        session.phase = "training"
        self.recorder.record = session.record
        self._params = params
        network = params.get("network")
        if network is not None:
            self._failures.call("the parameters", self._watch, session, network, params)
        if self._system_metrics:
            self._failures.call("system metrics", session.monitor_system, network)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Join the run if the role is eval; otherwise, outside a training, keep the evaluation for later.

        If a training follows, its session records the kept evaluations; otherwise `close` records them.
        """
        params = run_context.original_args()
        topology = self._begin(params, "eval")
        if self._session is None and topology.role == "eval":
            self._session = self._open(topology)
            self._session.begin_heartbeats(self._hear)
            self.recorder.record = self._session.record
        elif self._session is None:
            self._evaluator, self._evaluator_pid = topology, os.getpid()
        if self._session is not None:
            self._session.phase = "evaluating"

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
        topology = self._evaluator or self._topology or params.get("topology") or topologies.detect()
        network = params.get("network")
        if not topology.mesh and network is not None:
            mesh = self._failures.call("the mesh", framework_of(network).mesh, network)
            topology = dataclasses.replace(topology, mesh=mesh or {})
        self._group = self._failures.call("the mesh", dealing_group, topology) or Group()
        return topology

    def _open(
        self, topology: Topology, *, refuse_finished: bool = False, past: Past | None = None
    ) -> Session:
        formats, coordinator = self._spec.formats, self._coordinator
        if coordinator is None and topology.world_size > 1:
            coordinator = distsummary.coordinator(self.run_dir, topology)
        if self._has_default_formats and topology.world_size > BOTH_FORMATS_UP_TO:
            formats = (MINDSPORE,)
        return Session(
            self.run_dir,
            topology,
            dataclasses.replace(self._spec, formats=formats if past is None else past.formats),
            collectors=self._collectors,
            exports_npy=self._exports_npy,
            config=self._config.nested,
            coordinator=coordinator,
            failures=self._failures,
            leaves_out=() if self._collected.metric else STEP_TIMES,
            refuse_finished=refuse_finished,
            past=past,
        )

    def _record_evaluations(self, session: Session, last_step: int = 0) -> None:
        """Record the evaluations that ended before the session was opened."""
        for step, values, lineage in self._evaluations:
            session.record(step or last_step, {}, values)
            session.report(step or last_step, lineage)
        self._evaluations.clear()

    def _close_evaluations(self, evaluator: Topology) -> None:
        """Add the evaluations to the last training's files; without a training, join the run as role eval."""
        past = find_past(self.run_dir, evaluator)
        training = newest_attempt(self.run_dir.read_manifest())
        if past is None:
            if training is None and evaluator.rank == 0:
                logger.warning(
                    "%s holds no training: the evaluation is recorded in %s; name the directory of the "
                    'training, or pass role="eval" if there is none',
                    self.run_dir.base,
                    self.run_dir.base / "eval",
                )
            session = self._open(dataclasses.replace(evaluator, role="eval"))
            self._record_evaluations(session)
            self._health = session.close()
            return
        # A script that both trains and evaluates passes the config that its training has recorded.
        given = self._config.nested
        own = differing({}, given)  # all its names
        names = [name for name in differing((training or {}).get("config", {}), given) if name in own]
        if names and evaluator.rank == 0:
            self._failures.count(
                "the config of a run that only evaluates is not recorded; it differs from that of the "
                f"training in {listed(names)}: record these by run.text"
            )
        with RunDir(past.rank_dir).locked("evaluation"):  # only one writer at a time may append events
            session = self._open(evaluator, past=past)
            self._record_evaluations(session, read_last_step(past.rank_dir))
            self._health = session.close()

    def _watch(self, session: Session, network: object, params: CallbackParams) -> None:
        def parameters(selection: Selection | None) -> Parameters | None:
            if selection is None:
                return None
            return Parameters(
                network,
                selection,
                group=self._group,
                deal=self._deal,
                exports=self._exports_npy,
                mindspore_compat=self._compat,
                tell=logger.warning if session.topology.rank == 0 else None,
            )

        self._histograms = parameters(self._collected.histogram)
        self._whole = parameters(self._collected.tensor)
        if self._collected.landscape is not None:
            steps = params.get("batch_num") or 0
            session.keep_trajectory(self._collected.landscape, network, self._group, steps)

    def _hear(self, deal: Deal) -> None:
        """Keep a new deal until its first step; called by the thread of the heartbeats."""
        self._coming = deal
        self.recorder.plain_before = min(self.recorder.plain_before, deal.since)

    def _follow(self, deal: Deal) -> None:
        """Take this rank's share of a deal that begins now. A rank that it leaves out goes on as before."""
        self._coming, self._total = None, deal.total
        place = deal.place(self._open_session().topology.rank)
        if place is not None:
            self._group = Group(index=place[0], size=place[1])
            for parameters in (self._histograms, self._whole):
                if parameters is not None:
                    parameters.deal_among(self._group)
        if self._total is not None:
            self._tensors = tensor_steps(self._total, self._freq, self._tensor_freq)
        if self._last is not None:
            self._last = max(self._last, deal.since - 1)  # due steps before the deal are done
            self._plan_next()

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Plan the steps at which whole parameters are recorded."""
        self._failures.call("steps of tensors", self._plan_tensors, run_context.original_args())

    def _plan_tensors(self, params: CallbackParams) -> None:
        epochs, steps = params.get("epoch_num") or 0, params.get("batch_num") or 0
        total = epochs if _is_sink(params) else epochs * steps
        if self._last is not None and not _is_sink(params):
            self._last = max(self._last, int(params.get("cur_step_num") or 0))  # plain steps do not update it
        own = total if total > 0 else None  # loops give 0 or -1 for an unknown length
        if self._session is not None:
            self._session.total = own
        total_of_all = own if self._total is None else self._total
        self._tensors = tensor_steps(total_of_all, self._freq, self._tensor_freq)
        self._plan_next()

    def _plan_next(self) -> None:
        """Find the next steps at which more than the logged values are due; until then, steps are "plain".

        Only a `Run` has a faster path for plain steps. A `Run` knows only a loss that was logged, so
        `loss/auto` is never due in it, except with `mindspore_compat`.
        """
        if self._last is None or self._session is None:
            return
        # A subclass that overrides a step hook must see every step, so no step is plain.
        is_own = all(getattr(type(self), hook) is getattr(SummaryCollector, hook) for hook in STEP_HOOKS)
        plain_before = math.inf
        self._regular_at = self._regular.after(self._last)
        optimizer = None if self._params is None else self._params.get("optimizer")
        if self._collected.metric and (optimizer is not None or self._compat):
            plain_before = self._regular_at
        if self._takes_images:
            self._images_at = self._image_steps.after(self._last)
            plain_before = min(plain_before, self._images_at)
        if self._histograms is not None:
            self._histograms_at = self._histogram_steps.after(self._last)
            plain_before = min(plain_before, self._histograms_at)
        if self._whole is not None:
            self._tensors_at = self._tensors.after(self._last)
            plain_before = min(plain_before, self._tensors_at)
        if self._coming is not None:
            plain_before = min(plain_before, self._coming.since)
        is_plain = is_own and not self._session.keeps_checkpoints
        self.recorder.plain_before = plain_before if is_plain else -math.inf

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Keep the learning rate of this step: when the step ends, a scheduler may have set the next rate."""
        params = run_context.original_args()
        if self._collected.metric and params.get("optimizer") is not None and not self._is_plain(params):
            self._rate = self._failures.call("learning rate", learning_rate_values, params) or []

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Record the step."""
        params, session = run_context.original_args(), self._session
        if self._is_plain(params):  # the quick way of a Run, which other callbacks take from it
            self._recorded = logged = params.get("logged", {})
            self.recorder.record(params["cur_step_num"], logged, params.get("values", ()))
            return
        try:
            if not _is_sink(params):
                self._record_step(params, int(params["cur_step_num"]))
            elif params.get("logged") or params.get("values"):  # the rest is recorded when the epoch ends
                self._open_session().record(
                    int(params["cur_step_num"]), params.get("logged", {}), params.get("values", ())
                )
        except Exception as error:
            self._failures.fail("step", error)
        if session is None or session.keeps_checkpoints:
            self._failures.call("trajectory", self._save_checkpoint, "step", params)

    def _is_plain(self, params: CallbackParams) -> bool:
        """Whether nothing but what was given is due at this step; it is no plain step of a sink mode."""
        step = params.get("cur_step_num")
        return (
            type(step) is int
            and step < self.recorder.plain_before
            and step < self._regular_at
            and not _is_sink(params)
        )

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Record what was logged after the last step, and the checkpoint of the epoch."""
        params = run_context.original_args()
        self._failures.call("epoch", self._end_epoch, params)
        self._failures.call("trajectory", self._save_checkpoint, "epoch", params)

    def _end_epoch(self, params: CallbackParams) -> None:
        if _is_sink(params):
            self._record_step(params, int(params.cur_epoch_num))
            return
        self._recorded = logged = params.get("logged", {})
        values, step = list(params.get("values", ())), int(params.cur_step_num)
        if self._compat:  # MindSpore records the last step of an epoch twice if it was due
            if self._regular.holds_multiple(step):
                values += self._regular_values(params) + self._image_values(params)
                values += self._histogram_values(params, step)
            values += self._tensor_values(params, step) if self._tensors.holds_multiple(step) else []
        self._open_session().record(step, logged, values)

    def on_train_end(self, run_context: RunContext) -> None:
        """Record what was logged after the last step, and the complete lineage."""
        params = run_context.original_args()
        self._failures.call("values", self._record_rest, params)
        self._failures.call("lineage", self._record_lineage, params, is_final=True)

    def on_eval_end(self, run_context: RunContext) -> None:
        """Record the metrics as scalars and as lineage."""
        params = run_context.original_args()
        self._failures.call("metrics", self._record_metrics, params)
        if self._session is not None and self._session.topology.role == "train":
            self._session.phase = "training"

    def _record_step(self, params: CallbackParams, number: int) -> None:
        """Record a step (in sink mode an epoch) at which more than the logged values may be due."""
        self._recorded = logged = params.get("logged", {})
        if self._coming is not None and number >= self._coming.since:
            self._follow(self._coming)
        last, self._last = self._last, number
        values: list[Value] = list(params.get("values", ()))
        if number >= self._regular_at:
            values += self._regular_values(params)
        if number >= self._images_at:
            values += self._image_values(params)
        if number >= self._histograms_at:
            values += self._histogram_values(params, number)
        if self._whole is not None and number >= self._tensors_at:
            values += self._tensor_values(params, number)
        self._plan_next()
        self._open_session().record(int(params["cur_step_num"]), logged, values)
        if last is None:
            self._failures.call("lineage", self._record_lineage, params, is_final=False)

    def _record_rest(self, params: CallbackParams) -> None:
        self._recorded = logged = params.get("logged", {})
        self._open_session().record(int(params.cur_step_num), logged, params.get("values", ()))

    def _regular_values(self, params: CallbackParams) -> list[Value]:
        values: list[Value] = []
        if self._collected.metric:
            values += self._loss(params)
            if self._rate:
                values += unless_logged(self._rate, params)
        return values

    def _image_values(self, params: CallbackParams) -> list[Value]:
        if not self._takes_images:
            return []
        batch = params.get("train_dataset_element")
        images = self._failures.call("input_data", image_values, batch, mindspore_compat=self._compat) or []
        self._takes_images = bool(images)  # if a batch holds no images, do not try again
        return images

    def _loss(self, params: CallbackParams) -> list[Value]:
        """The loss in the loop's outputs, unless the loop logged it; outputs without a loss are counted."""
        logged, outputs = params.get("logged"), params.get("net_outputs")
        if outputs is None and (logged is not None or "net_outputs" not in params):
            return []  # a Run whose user logs no loss, or a loop that knows no outputs
        if "loss" in (logged or {}) and not self._compat:
            return []
        values = self._failures.call("loss", loss_values, outputs)
        if values is None:
            self._failures.health.drop("scalar")
        return values or []

    def _histogram_values(self, params: CallbackParams, number: int) -> list[Value]:
        if self._histograms is None:
            return []
        steps, found = self._histogram_steps, self._histograms
        values = self._parameter_values(found, "histogram", steps, params, number)
        if self._collected.histogram is BY_DEFAULT:
            self._histogram_steps = default_steps(self._freq, found.elements)
        return values

    def _tensor_values(self, params: CallbackParams, number: int) -> list[Value]:
        if self._whole is None:
            return []
        return self._parameter_values(self._whole, "tensor", self._tensors, params, number)

    def _parameter_values(
        self, parameters: Parameters, plugin: str, steps: Steps, params: CallbackParams, number: int
    ) -> list[Value]:
        """This rank's parameters at a step; counted as dropped if the step's end was seen too late."""
        call, failures = self._failures.call, self._failures
        if not params.get("ended_late"):
            return call(f"{plugin}s", parameters.values, plugin, steps, number, failures) or []
        due = call(f"{plugin}s", parameters.due, steps, number, failures)
        if due:
            failures.count(ENDED_LATE, dropped={plugin: len(due)})
        return []

    def _record_lineage(self, params: CallbackParams, *, is_final: bool) -> None:
        values = []
        if self._collected.train_lineage:
            # the loss; at the first step, do not wait for the device to compute it
            output = mean_of(params.get("net_outputs")) if is_final else None
            loss = None if output is None else resolve(output)
            topology = self._open_session().topology
            message = train_lineage(params, topology, loss=loss, mindspore_compat=self._compat)
            values.append(Value("train_lineage", "", message))
        if not is_final and self._collected.dataset_graph:
            graph = dataset_graph(params.get("train_dataset"), params.get("batch_num") or 0)
            values.append(Value("dataset_graph", "", graph))
        if not is_final:
            custom = custom_lineage(self._custom, topologies.hyper_config())
            values += [Value("custom_lineage_data", "", custom)] if custom.user_info else []
            self._record_settings(custom_values(custom), int(params.cur_step_num))
            if self._collected.train_lineage and not self._compat:
                self._open_session().describe_run(int(params.cur_step_num))
        elif self._has_settings:
            self._record_end(params, is_success=True)
        self._open_session().report(int(params.cur_step_num), values)

    def _record_settings(self, settings: Mapping[str, str | float], step: int) -> None:
        """Record the settings for TensorBoard, if there is only one rank.

        With several ranks, only the merged run holds them.
        """
        topology = self._open_session().topology
        self._has_settings = bool(settings) and topology.role == "train" and topology.world_size == 1
        if self._has_settings:
            self._open_session().record(step, {}, [session_start(settings, time.time())])

    def _record_end(self, params: CallbackParams, *, is_success: bool) -> None:
        """Record for TensorBoard how the training with the recorded settings ended."""
        self._has_settings = False
        end = session_end(time.time(), is_success=is_success)
        self._open_session().record(int(params.cur_step_num), {}, [end])

    def _record_metrics(self, params: CallbackParams) -> None:
        metrics = params.get("metrics")
        named = metrics if isinstance(metrics, Mapping) else {}
        values = []
        for name, metric in named.items():
            value = self._failures.call("metric", scalar, f"metric {name!r}", metric)
            if value is not None:
                values.append(Value("scalar", f"eval/{name}", value))
        lineage = []
        if self._collected.eval_lineage:
            message = self._failures.call(
                "eval lineage", evaluation_lineage, params, mindspore_compat=self._compat
            )
            lineage += [Value("eval_lineage", "", message)] if message is not None else []
        step = int(params.get("global_step", 0))  # 0 if the evaluation is outside a training
        if self._evaluator is not None:
            self._evaluations.append((step, values, lineage))
            return
        self._open_session().record(step, {}, values)
        self._open_session().report(step, lineage)

    def _save_checkpoint(self, unit: str, params: CallbackParams) -> None:
        number = params.cur_step_num if unit == "step" else params.cur_epoch_num
        is_late = bool(params.get("ended_late"))
        self._open_session().save_checkpoint(unit, int(number), is_late=is_late)

    def _open_session(self) -> Session:
        if self._session is None:
            raise ClosedError("the collector is not recording; call a begin hook first, e.g. on_train_begin")
        return self._session

    def health(self) -> Health:
        """What was written, dropped and refused in the current training or, if none runs, in the last one."""
        return self._health if self._session is None else self._session.health()

    def close(self, *, error: BaseException | None = None) -> None:
        """Write everything, close the files and leave the run; a second call does nothing.

        `error` is the exception that ended the training, if one did: the rank has then failed, or was
        interrupted if `interrupts.is_interruption` says so.
        """
        session, self._session = self._session, None
        evaluator, self._evaluator = self._evaluator, None
        if evaluator is not None and self._evaluator_pid == os.getpid():  # not in a forked child
            self._failures.call("evaluations", self._close_evaluations, evaluator)
        self.recorder.plain_before, self.recorder.record = -math.inf, self._keep
        self._is_over = True
        if session is not None:
            self._health = session.close(error)

    def __enter__(self) -> Self:
        return self

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
        if has_failed and params is not None and self._session is not None and self._has_settings:
            self._failures.call("the end of the settings", self._record_end, params, is_success=False)
        self.close(error=error)


def _is_sink(params: CallbackParams) -> bool:
    """Whether the loop passes whole epochs to the device (sink mode), so that single steps are invisible."""
    return bool(params.get("dataset_sink_mode"))
