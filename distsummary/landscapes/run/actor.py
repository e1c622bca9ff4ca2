"""Workers on Ray: actors of the cluster that this process is connected to, or of a local one."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import length_hint
from typing import Any

import numpy as np
import ray

from distsummary.base.actor_private import bootstrap_address
from distsummary.base.cluster import check_reachable, join, reachable_cluster, start_local
from distsummary.base.guard import guarded_log
from distsummary.errors import ClusterError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.hessian import GROUPS
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.engines.chunks import Chunk, count_points
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.timing import choose_engine
from distsummary.landscapes.engines.worker import ChunkResult
from distsummary.landscapes.model.user_code import first_line
from distsummary.landscapes.run.actor_crew import LOOK, ActorCrew
from distsummary.landscapes.run.scheduler import MAX_ATTEMPTS, Scheduler
from distsummary.landscapes.run.worker_failures import (
    CHOOSING,
    HESSIAN,
    OPENING,
    ChunkFailedError,
    raised,
    user_errors,
)
from distsummary.landscapes.run.worker_plan import check_spread, plan_workers, spread, surplus
from distsummary.landscapes.run.worker_process import (
    ChunkWorker,
    EngineChooser,
    HessianWorker,
    portable,
    portable_task,
)
from distsummary.rundir.topology import cluster_address

LEAST_POINTS = 20  # no worker is started for fewer points
_log = guarded_log(__name__)


class RayWorkers:
    """Implements `runner.Workers` on the Ray cluster that this process is connected to, see `cluster`.

    Args:
        count: the number of workers; fewer start if there are few points. CPU workers beyond the free CPUs
            start without reserving a CPU; GPU workers beyond the free GPUs wait. None: one worker for each
            `gpus_each` free GPUs or, if there are fewer free GPUs than that, one for each free CPU and at
            least one; more workers start when more resources become free.
        gpus_each: GPUs per worker; a number below 1 is a share of one GPU. None: for a torch model, the
            number of GPUs that the model lies on, at least 1; for other models 0.
    """

    def __init__(self, count: int | None = None, *, gpus_each: float | None = None) -> None:
        self._count, self._gpus_each = count, gpus_each

    def choose_engine(self, task: Task) -> EngineChoice:
        """See `runner.Workers`; chooses in this process, or on a worker if the workers use GPUs."""
        resources = self._resources(task.model, 1)[:1]
        if not resources[0].get("num_gpus"):
            # Other nodes may have no C++ compiler, or their compiled code may give different last bits.
            can_compile = None if sum(node["Alive"] for node in ray.nodes()) == 1 else False
            with user_errors(CHOOSING):
                return choose_engine(portable_task(task), can_compile=can_compile).choice
        with ActorCrew(
            EngineChooser,
            [send(portable_task(task))],
            resources,
            name="engine-choosing",
            beginning=CHOOSING,
            remedy="check that it has enough memory, name an engine (engine='row'), or use workers=0",
        ) as crew:
            choice: EngineChoice = crew.begin()
        return choice

    @contextmanager
    def hessian(
        self, model: Any, loss_fn: Any, batches: Iterable[Any], **options: Any
    ) -> Iterator["RayHessian"]:
        """See `runner.Workers`."""
        # A group of batches is not divided, so more workers than groups would have no work.
        resources = self._resources(model, min(GROUPS, length_hint(batches) or GROUPS))
        model, batches, [loss_fn] = portable(model, batches, [loss_fn])
        parts = [send((model, loss_fn, batches)), ray.put(options)]
        with ActorCrew(HessianWorker, parts, resources, name="Hessian", beginning=HESSIAN) as crew:
            yield RayHessian(crew)

    @contextmanager
    def crew(self, task: Task) -> Iterator[ActorCrew]:
        """See `runner.Workers`."""
        resources = self._resources(task.model, -(-count_points(task.planes) // LEAST_POINTS))
        with ActorCrew(
            ChunkWorker,
            [send(portable_task(task))],
            resources,
            name="landscape",
            beginning=OPENING,
            more=partial(self._more, task.model) if self._count is None else None,
            remedy=f"{LOOK}; with run_dir= finished points are kept",
        ) as crew:
            yield crew

    def _resources(self, model: Any, jobs: int) -> list[dict[str, float]]:
        """The resources of each worker to start for `jobs` jobs."""
        found = self._planned(model, jobs)
        check_spread(spread(model), found[0].get("num_gpus", 0))
        if self._count is not None and (remark := surplus(len(found), ray.cluster_resources(), found[0])):
            _log.warning("%s", remark)
        return found

    def _planned(self, model: Any, jobs: int) -> list[dict[str, float]]:
        share = self._gpus_each
        if share is None:
            share = float(max(1, len(spread(model)))) if framework_of(model).name == "torch" else 0.0
        return plan_workers(ray.available_resources(), jobs, self._count, gpus_each=share)

    def _more(self, model: Any, points: int) -> list[dict[str, float]]:
        """The resources of each worker that could be added while `points` points are waiting."""
        found = self._planned(model, -(-points // LEAST_POINTS))
        reserve = ("num_gpus", "num_cpus")
        return [one for one in found if any(one.get(name) for name in reserve)] if points else []


def send(value: Any) -> Any:
    """Put model, loss and data into Ray's object store; raises LandscapeError if that is impossible."""
    try:
        return ray.put(value)
    except Exception as error:
        # Pickling may raise any error. Ray adds a long text in front, so the cause is shown instead.
        what = first_line(error.__cause__ or error)
        raise LandscapeError(
            f"the model, loss function or batches cannot be sent to workers ({what}); "
            "use functions and classes that a module defines, or workers=0 to stay in this process"
        ) from error


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Connect to Ray unless connected: to the cluster of this job or, without one, to a new local cluster.

    `address` names another one; "local" is a new one. A new connection or local cluster is closed at the end
    of the block. Raises ClusterError if the cluster does not answer, or if this process is connected to
    another one than that at `address`.
    """
    if ray.is_initialized():
        if address not in (None, "auto"):
            current = ray.get_runtime_context().gcs_address
            # Two addresses may be of the same host.
            if bootstrap_address(address) != current:
                raise ClusterError(
                    f"address={address!r} is not the Ray cluster at {current} that this process is connected "
                    "to; leave address out, or call ray.shutdown() before"
                )
        yield
        return
    if address not in (None, "local"):
        check_reachable(address, "address", 'pass address="local" to start a cluster on this machine')
        join(ray, address=address, log_to_driver=False)
    elif address is None and reachable_cluster(cluster_address()) is not None:
        join(ray, log_to_driver=False)
    else:
        # A cluster of its own: Ray then ignores traces of an older one.
        start_local(ray, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


class RayHessian:
    """Implements `hessian.Hessian` with HessianWorker actors; their number changes no bit of a product.

    The groups of batches of a product are the chunks of a scheduler.
    """

    def __init__(self, crew: ActorCrew) -> None:
        self._crew = crew
        self.weight, groups = crew.begin()
        self._chunks = [Chunk(plane=0, kind="batches", row=0, columns=(group,)) for group in range(groups)]

    def product(self, vector: Array) -> Array:
        """See `hessian.Hessian`."""
        scheduler = Scheduler(self._chunks, quantities=len(vector), shares=False)

        def keep(worker: str, chunk: Chunk, result: ChunkResult) -> None:
            scheduler.done(worker, chunk, result.measured)

        try:
            self._crew.run(scheduler, lambda _: 1, keep, ray.put(vector))
        except ChunkFailedError as failed:
            raise LandscapeError(f"{raised(failed.cause)} {HESSIAN}") from failed.cause
        if scheduler.abandoned:
            raise LandscapeError(f"the same batches killed {MAX_ATTEMPTS} Hessian workers; {LOOK}")
        total = np.zeros_like(vector, dtype=np.float64)
        # The fixed order of the sum makes it independent of the workers.
        for chunk in self._chunks:
            total += scheduler.results[chunk][0]
        return total
