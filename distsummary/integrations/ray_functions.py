"""Functions that Ray Train and Ray Tune call: a training ends with its function, as Ray kills the process.

Ray calls them in threads, by classes that are not public. If a version has moved them, a run whose process is
killed is reported as lost.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from distsummary.integrations.after_import import after_import
from distsummary.integrations.follower import end_training

_trial: Mapping[str, Any] | None = None  # the settings of the trial of Ray Tune in this process
LAST = "__duplicate__"  # what Ray Tune reports in place of metrics when a function has returned


def function_config() -> Mapping[str, Any] | None:
    """The settings that Ray passes to the function of this process; None if there are none."""
    module = sys.modules.get("ray.train.v2._internal.execution.context")
    training = getattr(getattr(module, "_train_context", None), "train_run_context", None)
    config: Mapping[str, Any] | None = getattr(training, "train_loop_config", None)
    return config or _trial


def follow_functions() -> None:
    """End the run of a training when its function has returned, or raised an exception."""
    after_import("ray.train.v2._internal.execution.worker_group.thread_runner", _follow_train)
    after_import("ray.train._internal.session", _follow_tune)
    after_import("ray.tune.trainable.function_trainable", _follow_trials)


def _follow_train(module: Any) -> None:
    run = module.ThreadRunner.run

    @functools.wraps(run)
    def follower(self: Any, target: Callable[..., Any]) -> Any:
        return run(self, _ending(target))

    module.ThreadRunner.run = follower


def _follow_tune(module: Any) -> None:
    run, report = module.RunnerThread.run, module._TrainSession.report

    @functools.wraps(run)
    def run_follower(self: Any) -> Any:
        self._target = _ending(self._target)
        return run(self)

    @functools.wraps(report)
    def report_follower(self: Any, metrics: Any, *others: Any, **named: Any) -> Any:
        # After this report, Ray waits for nothing.
        if LAST in metrics:
            end_training(None)
        return report(self, metrics, *others, **named)

    module.RunnerThread.run, module._TrainSession.report = run_follower, report_follower


def _follow_trials(module: Any) -> None:
    step = module.FunctionTrainable.step

    @functools.wraps(step)
    def step_follower(self: Any) -> Any:
        global _trial
        _trial = self.config
        return step(self)

    module.FunctionTrainable.step = step_follower


def _ending(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            result = function(*args, **named)
        except BaseException as error:
            # Ray takes StopIteration for a normal end.
            end_training(None if isinstance(error, StopIteration) else error)
            raise
        end_training(None)
        return result

    return call
