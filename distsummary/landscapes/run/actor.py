"""Workers on Ray: actors of the cluster that this process is connected to, or of a local one."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from operator import length_hint
from typing import Any, Self

import ray
from ray.exceptions import RayError

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.hessian import GROUPS
from distsummary.landscapes.engines.chunks import count_points
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.timing import plan_engine
from distsummary.landscapes.engines.worker import Task
from distsummary.landscapes.run.actor_crew import LandscapeActor, RayCrew
from distsummary.landscapes.run.actor_end import free_resources
from distsummary.landscapes.run.actor_errors import how_it_died, original_errors
from distsummary.landscapes.run.actor_hessian import RayHessian
from distsummary.landscapes.run.actor_start import (
    check_spread,
    fits,
    gpus_each,
    on_host,
    plan_workers,
    portable,
    send,
    spread,
)
from distsummary.landscapes.run.actor_team import Team
from distsummary.landscapes.run.failures import PLANNING, told
from distsummary.topology import cluster_address

WORTH = 8  # points: a worker is not started for fewer
_log = logging.getLogger(__name__)


class RayWorkers:
    """See `runner.Workers`; a context: a cluster that it started, with the first work, ends with it.

    Args:
        count: None: one worker for each `gpus_each` that are free, else one per free CPU, at least one; more
            when more becomes free. A number is kept to: a worker for which no CPU is free runs without a
            reservation; on GPUs it waits for one.
        gpus_each: GPUs of each worker, or the share of one; None: as many as a torch model lies on,
            at least 1; 0 for others.
    """

    def __init__(self, count: int | None = None, *, gpus_each: float | None = None) -> None:
        self._count, self._gpus_each = count, gpus_each
        self._stack = ExitStack()
        self._is_connected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def plan(self, task: Task) -> EngineChoice:
        """See `runner.Workers`: in this process, or on a worker where they have GPUs and it need not have."""
        resources = self._resources(task.model, 1)[0]
        if not resources.get("num_gpus"):
            with told(PLANNING):
                return plan_engine(_sendable(task)).choice
        team = Team(LandscapeActor, [resources], send(_sendable(task)), forgo=self._forgo_gpus)
        try:
            with told(PLANNING, RayError), original_errors():
                actor = team.started()[0]
                call = actor.plan.remote()
                choice: EngineChoice = team.answer(actor, call, "the worker that tries engines", "")
        except RayError as error:
            raise LandscapeError(
                f"the worker that tried engines died ({how_it_died(error)}); look into the memory it needs, "
                "name an engine (engine='row'), or use workers=0"
            ) from error
        finally:
            team.end()
        return choice

    def hessian(
        self, model: Any, loss_fn: Any, batches: Iterable[Any], **options: Any
    ) -> AbstractContextManager[RayHessian]:
        """See `runner.Workers`."""
        resources = self._resources(model, min(GROUPS, length_hint(batches) or GROUPS))
        loss_fn = on_host(model, loss_fn)
        model, batches = portable(model, batches)
        return RayHessian(send((model, loss_fn, batches)), options, resources, self._forgo_gpus)

    @contextmanager
    def crew(self, task: Task) -> Iterator[RayCrew]:
        """See `runner.Workers`."""
        resources = self._resources(task.model, -(-count_points(task.planes) // WORTH))
        more = partial(self._more, task.model) if self._count is None else None
        crew = RayCrew(send(_sendable(task)), resources, more, self._forgo_gpus)
        try:
            yield crew
        finally:
            crew.end()

    def _resources(self, model: Any, jobs: int) -> list[dict[str, float]]:
        if not self._is_connected:
            self._stack.enter_context(cluster())
            self._is_connected = True
        found = self._planned(model, jobs, self._count)
        gpus = found[0].get("num_gpus", 0)
        if gpus and not fits(gpus):
            _log.warning("no GPU has %g left, though all together have: landscape workers take CPUs", gpus)
            self._forgo_gpus()
            found = self._planned(model, jobs, self._count)
        check_spread(spread(model), found[0].get("num_gpus", 0))
        return found

    def _forgo_gpus(self) -> None:
        """From now on: all that a landscape does is done on one kind, and nothing is waited for twice."""
        self._gpus_each = 0

    def _planned(self, model: Any, jobs: int, count: int | None) -> list[dict[str, float]]:
        share = gpus_each(model, self._gpus_each)
        return plan_workers(free_resources(), jobs, count, gpus_each=share)

    def _more(self, model: Any, points: int) -> list[dict[str, float]]:
        """The resources of workers that could be added for so many points."""
        found = self._planned(model, -(-points // WORTH), None)
        return [one for one in found if any(one.values())] if points else []


def _sendable(task: Task) -> Task:
    model, batches = portable(task.model, task.batches)
    metrics = {name: on_host(task.model, metric) for name, metric in task.evaluation.metrics.items()}
    return replace(
        task,
        model=model,
        loss_fn=on_host(task.model, task.loss_fn),
        batches=batches,
        evaluation=replace(task.evaluation, metrics=metrics),
    )


@contextmanager
def cluster() -> Iterator[None]:
    """Be connected to Ray: as now, else to the cluster this process was started for, else to a local one.

    What was not connected before is left, or ended, with the block.
    """
    if ray.is_initialized():
        yield
        return
    if cluster_address() is not None:
        ray.init(log_to_driver=False, logging_level="warning")
    else:  # "local": the trace of an older cluster must not make this a connection
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="warning")
    try:
        yield
    finally:
        ray.shutdown()
