"""SummaryCollector inside MindSpore: a callback of `mindspore.train` that drives the collector of a Run."""

import inspect
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import mindspore

from distsummary.base.guard import Guard, guarded
from distsummary.base.health import Health
from distsummary.collect import summary_collector
from distsummary.errors import DistSummaryError, InvalidValueError
from distsummary.mindspore.driven_run import DrivenRun
from distsummary.mindspore.operators import CachedOperators, take_cache
from distsummary.mindspore.theirs import (
    backbone_of,
    facts_of,
    loss_function_of,
    newest_checkpoint,
    optimizer_of,
)
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import RunContext
from distsummary.training.evaluation import EvaluationRun


class Collector(summary_collector.SummaryCollector):
    """Collects a training in MindSpore's loop."""

    # `Model.train` returns once its rank's files are written; the end of the process awaits the merged run.
    _merges_at_exit = True

    def _reset(self) -> None:
        super()._reset()
        self._schedule.add(CachedOperators(self._taps))

    def end(self, run_context: RunContext) -> None:
        """Record the lineage or the metrics, but not what operators cached since the last step."""
        self._failures.call("operators", take_cache)
        super().end(run_context)

    @property
    def given_topology(self) -> Topology | None:
        """The argument `topology`."""
        return self._topology

    @property
    def has_additions(self) -> bool:
        """Whether more is recorded than by MindSpore's own collector."""
        return self._settings.collected.additions


_OF_STEPS = ("on_train_step_begin", "step_begin", "on_train_step_end", "step_end")


class SummaryCollector(mindspore.train.Callback):  # type: ignore[misc]  # its base is untyped
    """MindSpore's SummaryCollector for `Model.train`, `fit` and `eval`, with our files and options.

    It takes MindSpore's arguments and the options of `distsummary.SummaryCollector`, where all are described.
    Its hooks may be overridden, or called by hand.
    """

    __signature__ = inspect.signature(Collector)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self._collector = Collector(*args, **options)
        self._run: DrivenRun | None = None
        self._evaluation: tuple[AbstractContextManager[EvaluationRun], EvaluationRun] | None = None
        self._depth = 0  # how many times it was entered
        self._has_metrics = False  # of an evaluation whose hooks were called in this epoch

    @property
    def _own_guard(self) -> Guard:
        return self._collector._own_guard

    def health(self) -> Health:
        """What was written, dropped and refused in the current training or, if none runs, in the last one."""
        return self._collector.health()

    @guarded(DistSummaryError, OSError)
    def begin(self, run_context: Any) -> None:
        """Join the run and open the files; raises for bad arguments and for files that cannot be opened."""
        params = run_context.original_args()
        listed = params.get("list_callback") or ()
        if sum(isinstance(one, (SummaryCollector, mindspore.SummaryCollector)) for one in listed) > 1:
            raise InvalidValueError(
                "callbacks must hold one SummaryCollector, got several; remove all but one"
            )
        if params.get("mode") == "eval":
            self._begin_evaluation(params)
        elif params.get("mode") == "train":
            # A loop before this one may not have ended its Run.
            if (earlier := self._take_run()) is not None:
                earlier.close()
            # What operators cached before belongs to no step of this training.
            self._own_guard.call("operators", take_cache)
            self._run = run = self._run_of(params)
            run.begin()
            if all(getattr(type(self), hook) is getattr(SummaryCollector, hook) for hook in _OF_STEPS):
                # a fifth of the time of a step at which nothing is due passed in calls from hook to hook
                self.on_train_step_begin, self.on_train_step_end = run.begin_step, run.end_step
        else:
            raise InvalidValueError(
                f"mode must be 'train' or 'eval', got {params.get('mode')!r}; call Model.train or Model.eval"
            )

    @guarded()
    def epoch_begin(self, run_context: Any) -> None:
        """Plan the steps of the epoch."""
        params = run_context.original_args()
        if self._run is not None and params["mode"] == "train":
            self._run.begin_epoch(params["cur_epoch_num"])

    @guarded()
    def step_begin(self, run_context: Any) -> None:
        """Note when the batch has come."""
        if self._run is not None and run_context.original_args()["mode"] == "train":
            self._run.begin_step(run_context)

    @guarded()
    def step_end(self, run_context: Any) -> None:
        """Record the step."""
        if self._run is not None and run_context.original_args()["mode"] == "train":
            self._run.end_step(run_context)

    @guarded()
    def epoch_end(self, run_context: Any) -> None:
        """Record the metrics of an evaluation of `Model.fit`, and the checkpoint of the epoch."""
        params, run = run_context.original_args(), self._run
        if run is None or params["mode"] != "train":
            return
        # An evaluation whose hooks were not called has left its metrics in the parameters.
        if params.get("metrics") and not self._has_metrics and self._collector.has_additions:
            run.note_evaluation()
            self._begin_evaluation(params)
            self._end_evaluation(params)
        self._has_metrics = False
        run.end_epoch()

    @guarded()
    def end(self, run_context: Any) -> None:
        """Record the lineage; after a training, write everything and close the files."""
        params = run_context.original_args()
        if params["mode"] == "eval":
            self._end_evaluation(params)
        # An evaluation during `Model.fit` does not end the Run of the training.
        is_over = params["mode"] == "train" or (self._run is not None and not self._run.is_training)
        if is_over and (run := self._take_run()) is not None:
            run.context.original_args()["latest_ckpt_file"] = newest_checkpoint(params)
            run.close()

    def __enter__(self) -> Self:
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        # `Model.fit` enters its callbacks again for each evaluation.
        if self._depth > 0:
            return
        self._evaluation = None
        if (run := self._take_run()) is not None:
            run.__exit__(kind, error, trace)

    def _take_run(self) -> DrivenRun | None:
        """The Run that is driven, which is driven no longer; None if there is none."""
        # The shortcuts that `begin` has made belong to the Run.
        for hook in _OF_STEPS:
            self.__dict__.pop(hook, None)
        run, self._run = self._run, None
        return run

    def _run_of(self, params: Any) -> DrivenRun:
        """The Run of a loop with these parameters."""
        call, network = self._own_guard.call, params.get("network")
        train_network = params.get("train_network")
        train_network = network if train_network is None else train_network
        optimizer = call("the optimizer", optimizer_of, params, train_network)
        is_sink = params.get("dataset_sink_mode")
        run = DrivenRun(
            dataset=call("the data set", facts_of, params.get("train_dataset")),
            batch_num=params.get("batch_num") or 0,
            sink_size=params.get("sink_size", -1) if is_sink else None,
            # The spelling of this parameter is MindSpore's.
            manager=params.get("loss_scale_mananger"),
            callbacks=[self._collector],
            network=network,
            optimizer=optimizer,
            loss_fn=call("the loss function", loss_function_of, params),
            topology=self._collector.given_topology,
            epochs=params.get("epoch_num") or 1,
            initial_step=params.get("cur_step_num") or 0,
        )
        if train_network is not None:
            backbone = call("the backbone", backbone_of, train_network) or network
            watched = backbone if optimizer is None else optimizer
            more = {"train_network": train_network, "backbone": backbone, "watched": watched}
            if not self._collector.has_additions:
                # MindSpore's own: of ranks that only msrun makes, 1 and stand_alone.
                more |= {name: params.get(name) for name in ("parallel_mode", "device_number")}
            run.context.original_args().update(more)
        return run

    def _begin_evaluation(self, params: Any) -> None:
        # A Run that only evaluates has no steps behind it.
        self._run = run = self._run or self._run_of({**params, "cur_step_num": 0})
        manager = run.eval(facts_of(params.get("valid_dataset")))  # type: ignore[arg-type]  # it is only described
        self._evaluation = manager, manager.__enter__()

    def _end_evaluation(self, params: Any) -> None:
        if self._evaluation is None or self._run is None:
            return
        (manager, evaluation), self._evaluation = self._evaluation, None
        self._has_metrics = True
        evaluation.params["batch_num"] = params.get("batch_num") or 0
        evaluation.log(params.get("metrics") or {})
        manager.__exit__(None, None, None)
