"""SummaryCollector: the callback that records one rank of a training."""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from distsummary import topology as topologies
from distsummary.checks import check_choice, check_int, check_type
from distsummary.collect.guard import Guard
from distsummary.collect.lineage import custom_lineage, dataset_graph, evaluation_lineage, train_lineage
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
from distsummary.collect.plan import DEALS, Group, dealing_group, regular_steps, tensor_steps
from distsummary.collect.session import Session, SessionOptions
from distsummary.collect.step_values import (
    Parameters,
    image_values,
    learning_rate_values,
    loss_values,
    unless_logged,
)
from distsummary.coordination import Coordinator
from distsummary.errors import ClosedError, InvalidValueError
from distsummary.format.records import WRITTEN, Health, Value
from distsummary.frameworks.base import framework_of
from distsummary.topology import Topology
from distsummary.training.callbacks import Callback, CallbackParams, RunContext
from distsummary.training.values import mean_of, resolve, scalar

logger = logging.getLogger(__name__)


class SummaryCollector(Callback):
    """Records one rank of a training: scalars, histograms, images, lineage and, if asked, its trajectory.

    Every step: what the loop logged, under its own names. Every `collect_freq` steps (and at the first): the
    loss as `loss/auto` and the learning rate as `learning_rate/auto` unless they were logged, histograms of
    parameters as `<name>/auto`, the first images of the batch as `input_data/auto`. At about 20 steps: whole
    parameters, if `tensor_regular` asks for them. Lineage at the first step, complete at the end. Metrics of
    an evaluation are scalars `eval/<name>`.

    No hook raises into the training, except for bad arguments at its begin: what cannot be recorded is
    counted in `health()` and said once.

    Args:
        summary_dir: the run dir, the same for all ranks; made if absent.
        collect_freq: steps between records, >= 1. collect_tensor_freq: the same for whole parameters.
        num_process: accepted for MindSpore's sake; without meaning here.
        collect_specified_data: MindSpore's keys (`collect_metric` ... `histogram_regular`,
            `collect_landscape`), and `tensor_regular`, a pattern for parameters to record whole.
        keep_default_action: False collects nothing but what `collect_specified_data` names.
        custom_lineage_data: names to text or numbers, for the lineage.
        max_file_size: budget of each event file in bytes; what does not fit is refused and counted.
        export_options: {"tensor_format": "npy"} also exports the recorded tensors.
        formats: of "mindspore" and "tensorboard"; by default both, for more than 16 ranks the first.
        deal: how ranks share out parameters that are equal on all of them: "parameters", "steps", or "all".
        collect_landscape: as the key of `collect_specified_data`; off by default. A checkpoint that finds the
            disk busy with older ones holds the training up for 5 s at most and is then dropped and counted.
        mindspore_compat: record epoch ends twice, scale images and draw histograms as MindSpore does.
        topology: where this rank stands; by default as the loop says, else as the environment does.
        coordinator: makes one run of all ranks; by default the run dir itself.
        collectors: "rank": a Ray actor writes, "process": this process, "auto": the actor under Ray.
        rotate_bytes, rotate_s: begin new event files before these would exceed so many bytes, or when they
            are so many seconds old.
        delivery: "written": an acknowledged event survives the death of any process; "synced": within a
            second also a power cut; "queued": what the collector cannot take at once is dropped and counted.
        raise_exception: raise what could not be recorded as WriteError.

    Raises:
        InvalidTypeError, InvalidValueError: a bad argument.
        NotADirectoryPathError, RunDirError: the directory cannot be made or written.
    """

    def __init__(
        self,
        summary_dir: str | os.PathLike[str],
        collect_freq: int = 10,
        num_process: object = 32,
        collect_specified_data: dict[str, Any] | None = None,
        keep_default_action: bool = True,
        custom_lineage_data: dict[str, str | int | float] | None = None,
        collect_tensor_freq: int | None = None,
        max_file_size: int | None = None,
        export_options: dict[str, str] | None = None,
        *,
        formats: Sequence[str] | None = None,
        deal: str = "parameters",
        collect_landscape: dict[str, Any] | None = None,
        mindspore_compat: bool = False,
        topology: Topology | None = None,
        coordinator: Coordinator | None = None,
        collectors: str = "auto",
        rotate_bytes: int | None = None,
        rotate_s: float | None = None,
        delivery: str = WRITTEN,
        raise_exception: bool = False,
    ) -> None:
        check_int("collect_freq", collect_freq, low=1)
        check_int("collect_tensor_freq", collect_tensor_freq, low=1, optional=True)
        check_choice("deal", deal, DEALS)
        check_choice("collectors", collectors, COLLECTORS)
        check_type("mindspore_compat", mindspore_compat, bool)
        check_type("raise_exception", raise_exception, bool)
        check_type("topology", topology, Topology, optional=True)
        specified = with_landscape(collect_specified_data, collect_landscape)
        self._collected = check_specified(specified, keep_default_action, mindspore_compat=mindspore_compat)
        self._custom = check_custom_lineage(custom_lineage_data)
        self._options = SessionOptions(
            formats=None if formats is None else check_formats(formats),
            collectors=collectors,
            limits=check_limits(
                check_max_file_size(max_file_size, negative_is_unlimited=False), rotate_bytes, rotate_s
            ),
            delivery=check_delivery(delivery),
            exports_npy=check_export_options(export_options),
            mindspore_compat=mindspore_compat,
            raise_exception=raise_exception,
        )
        self._freq, self._tensor_freq = collect_freq, collect_tensor_freq
        self._deal, self._compat = deal, mindspore_compat
        self._topology, self._coordinator = topology, coordinator
        self.run_dir = check_summary_dir(summary_dir)
        self._session: Session | None = None
        self._health = Health()
        self._forget()

    def _forget(self) -> None:
        """Be as new, for the next training."""
        self._guard = Guard(self._health, logger, raise_exception=self._options.raise_exception)
        self._group = Group()
        self._regular = regular_steps(self._freq)
        self._tensors = tensor_steps(None, self._freq, self._tensor_freq)
        self._histograms: Parameters | None = None
        self._whole: Parameters | None = None
        self._last: int | None = None
        self._takes_images = self._collected.input_data
        self._told: CallbackParams | None = None  # what the training under way tells
        self._taken: object = None  # what of its `logged` is recorded
        self._rate: list[Value] = []

    def on_train_begin(self, run_context: RunContext) -> None:
        """Join the run and open the files; raises for bad arguments and for what cannot be opened."""
        self._begin(run_context.original_args(), "train")

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Join the run if no training around has."""
        self._begin(run_context.original_args(), "eval")

    def _begin(self, told: CallbackParams, expected: str) -> None:
        if told.get("mode") != expected:
            raise InvalidValueError(f"mode must be {expected!r}, got {told.get('mode')!r}; use train or eval")
        _refuse_twins(told.get("list_callback"))
        if self._session is None:
            self._session = self._join(told)
        network = told.get("network")
        if expected == "train":
            self._told = told
        if expected == "train" and network is not None:
            self._guard.call("the parameters", self._watch, self._session, network, told)

    def _join(self, told: CallbackParams) -> Session:
        self._health = Health()
        self._forget()
        topology = self._place(told)
        self._group = self._guard.call("the mesh", dealing_group, topology) or Group()
        return Session(
            self.run_dir,
            topology,
            self._options,
            coordinator=self._coordinator,
            guard=self._guard,
            health=self._health,
        )

    def _place(self, told: CallbackParams) -> Topology:
        topology = self._topology or told.get("topology")
        if topology is None:
            topology = topologies.detect(role="eval" if told.get("mode") == "eval" else "train")
        network = told.get("network")
        if topology.mesh or network is None:
            return topology
        mesh = self._guard.call("the mesh", framework_of(network).mesh, network)
        return dataclasses.replace(topology, mesh=mesh or {})

    def _watch(self, session: Session, network: object, told: CallbackParams) -> None:
        def parameters(pattern: str | None) -> Parameters | None:
            if pattern is None:
                return None
            return Parameters(
                network,
                pattern,
                group=self._group,
                deal=self._deal,
                exports=self._options.exports_npy,
                mindspore_compat=self._compat,
            )

        self._histograms, self._whole = (
            parameters(self._collected.histogram),
            parameters(self._collected.tensor),
        )
        if self._collected.landscape is not None:
            session.keep_trajectory(
                self._collected.landscape, network, self._group, told.get("batch_num") or 0
            )

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Plan the steps that get whole parameters, as far as the length of the training is known."""
        self._guard.call("steps of tensors", self._plan_tensors, run_context.original_args())

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Note the learning rate of this step: by its end a scheduler may have set the next one's."""
        if self._collected.metric:
            told = run_context.original_args()
            self._rate = self._guard.call("learning rate", learning_rate_values, told) or []

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Record the step."""
        told = run_context.original_args()
        self._guard.call("step", self._end_step, told)
        self._guard.call("trajectory", self._save_checkpoint, "step", told)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Record what was logged since the last step, and the epoch's checkpoint."""
        told = run_context.original_args()
        self._guard.call("epoch", self._end_epoch, told)
        self._guard.call("trajectory", self._save_checkpoint, "epoch", told)

    def on_train_end(self, run_context: RunContext) -> None:
        """Record what was logged last, and the complete lineage."""
        told = run_context.original_args()
        self._guard.call("values", self._record_rest, told)
        self._guard.call("lineage", self._record_lineage, told, is_final=True)

    def on_eval_end(self, run_context: RunContext) -> None:
        """Record the metrics as scalars and as lineage."""
        told = run_context.original_args()
        self._guard.call("metrics", self._record_metrics, told)
        if self._collected.eval_lineage:
            self._guard.call("eval lineage", self._record_eval_lineage, told)

    def _plan_tensors(self, told: CallbackParams) -> None:
        epochs, steps = told.get("epoch_num") or 0, told.get("batch_num") or 0
        total = epochs if _is_sink(told) else epochs * steps
        # Loops tell 0 or -1 for a length that they do not know.
        self._tensors = tensor_steps(total if total > 0 else None, self._freq, self._tensor_freq)

    def _end_step(self, told: CallbackParams) -> None:
        if not _is_sink(told):
            self._record_step(told, int(told.cur_step_num))

    def _end_epoch(self, told: CallbackParams) -> None:
        if _is_sink(told):
            self._record_step(told, int(told.cur_epoch_num))
        else:
            self._record_between(told)

    def _record_step(self, told: CallbackParams, number: int) -> None:
        values = self._take_logged(told)
        is_first = self._last is None
        if self._regular.due(self._last, number):
            values += self._regular_values(told, number)
        if self._tensors.due(self._last, number):
            values += self._tensor_values(number)
        self._last = number
        self._write(told, values)
        if is_first:
            self._guard.call("lineage", self._record_lineage, told, is_final=False)

    def _record_between(self, told: CallbackParams) -> None:
        values, number = self._take_logged(told), int(told.cur_step_num)
        if self._compat:  # MindSpore records the last step of an epoch again when it was due
            values += self._regular_values(told, number) if self._regular.holds_multiple(number) else []
            values += self._tensor_values(number) if self._tensors.holds_multiple(number) else []
        self._write(told, values)

    def _take_logged(self, told: CallbackParams) -> list[Value]:
        """What the loop logged, under its own names."""
        self._taken = logged = told.get("logged", {})
        return [Value("scalar", tag, value) for tag, value in logged.items()]

    def _record_rest(self, told: CallbackParams) -> None:
        self._write(told, self._take_logged(told))

    def _regular_values(self, told: CallbackParams, number: int) -> list[Value]:
        call, values = self._guard.call, []
        if self._collected.metric:
            values += call("loss", loss_values, told) or []
            values += unless_logged(self._rate, told)
        if self._histograms is not None:
            take = self._histograms.values
            values += call("histograms", take, "histogram", self._regular, number, self._guard) or []
        if self._takes_images:
            batch = told.get("train_dataset_element")
            images = call("input_data", image_values, batch, mindspore_compat=self._compat) or []
            self._takes_images = bool(images)  # a batch of something else: do not look again
            values += images
        return values

    def _tensor_values(self, number: int) -> list[Value]:
        if self._whole is None:
            return []
        return (
            self._guard.call("tensors", self._whole.values, "tensor", self._tensors, number, self._guard)
            or []
        )

    def _record_lineage(self, told: CallbackParams, *, is_final: bool) -> None:
        values = []
        if self._collected.train_lineage:
            output = (
                mean_of(told.get("net_outputs")) if is_final else None
            )  # not waited for at the first step
            loss = None if output is None else resolve(output)
            topology = self._open_session().topology
            message = train_lineage(told, topology, loss=loss, mindspore_compat=self._compat)
            values.append(Value("train_lineage", "", message))
        if not is_final and self._collected.dataset_graph:
            graph = dataset_graph(told.get("train_dataset"), told.get("batch_num") or 0)
            values.append(Value("dataset_graph", "", graph))
        if not is_final:
            custom = custom_lineage(self._custom, topologies.hyper_config())
            values += [Value("custom_lineage_data", "", custom)] if custom.user_info else []
        self._open_session().report(int(told.cur_step_num), values)

    def _record_eval_lineage(self, told: CallbackParams) -> None:
        message = evaluation_lineage(told, mindspore_compat=self._compat)
        self._open_session().report(_step_of(told), [Value("eval_lineage", "", message)])

    def _record_metrics(self, told: CallbackParams) -> None:
        metrics = told.get("metrics")
        named = metrics if isinstance(metrics, Mapping) else {}
        values = []
        for name, metric in named.items():
            value = self._guard.call("metric", scalar, f"metric {name!r}", metric)
            if value is not None:
                values.append(Value("scalar", f"eval/{name}", value))
        self._open_session().write(_step_of(told), values)

    def _write(self, told: CallbackParams, values: list[Value]) -> None:
        self._open_session().write(int(told.cur_step_num), values)

    def _save_checkpoint(self, unit: str, told: CallbackParams) -> None:
        number = told.cur_step_num if unit == "step" else told.cur_epoch_num
        self._open_session().save_checkpoint(unit, int(number))

    def _open_session(self) -> Session:
        if self._session is None:
            raise ClosedError("the collector is not recording; its hooks are called between begin and end")
        return self._session

    def health(self) -> Health:
        """What was written, dropped and refused by the training under way, else by the last one."""
        return self._health if self._session is None else self._session.health()

    def close(self, *, has_failed: bool = False) -> None:
        """Write everything, close the files and leave the run; a second call does nothing."""
        session, self._session = self._session, None
        if session is not None:
            self._health = session.close(has_failed=has_failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        told = self._told
        if kind is not None and told is not None and told.get("logged") and told.logged is not self._taken:
            self._guard.call("values", self._record_rest, told)  # of the step that the error ended
        self.close(has_failed=kind is not None)


def _step_of(told: CallbackParams) -> int:
    """The training's step during an evaluation; 0 where there is no training around."""
    return int(told.get("global_step", 0))


def _is_sink(told: CallbackParams) -> bool:
    """Whether the loop hands whole epochs to the device, so that steps are not seen."""
    return bool(told.get("dataset_sink_mode"))


def _refuse_twins(callbacks: object) -> None:
    listed = getattr(callbacks, "callbacks", None) or getattr(callbacks, "_callbacks", None) or []
    if sum(isinstance(callback, SummaryCollector) for callback in listed) > 1:
        raise InvalidValueError("callbacks must hold one SummaryCollector, got several; remove all but one")
