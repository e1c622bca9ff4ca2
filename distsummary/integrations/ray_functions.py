"""Functions that Ray Train and Ray Tune call: a training ends with its function, as Ray kills the process.

Ray calls them in threads, by classes that are not public: those of Ray 2.60 are known here. If another
version has moved them, a run whose process is killed is reported as lost.
"""

import functools
from collections.abc import Callable
from typing import Any

from distsummary.integrations.after_import import after_import
from distsummary.integrations.door import end_training

LAST = "__duplicate__"  # what Ray Tune reports in place of metrics when a function has returned


def follow_functions() -> None:
    """End the run of a training when its function has returned, or raised an exception."""
    after_import("ray.train.v2._internal.execution.worker_group.thread_runner", _follow_train)
    after_import("ray.train._internal.session", _follow_tune)


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
        if LAST in metrics:  # after it, Ray waits for nothing
            end_training(None)
        return report(self, metrics, *others, **named)

    module.RunnerThread.run, module._TrainSession.report = run_follower, report_follower


def _ending(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            result = function(*args, **named)
        except BaseException as error:
            end_training(None if isinstance(error, StopIteration) else error)  # as Ray takes that one
            raise
        end_training(None)
        return result

    return call
