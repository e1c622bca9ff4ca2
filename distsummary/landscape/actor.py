"""The runner on Ray: workers as actors that pull chunks; a dead one is replaced and costs no chunk."""

import copy
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from distsummary.errors import LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscape.plan import Chunk
from distsummary.landscape.runner import Keep
from distsummary.landscape.scheduler import Scheduler
from distsummary.landscape.worker import ChunkResult, EngineFacts, LandscapeWorker, Task
from distsummary.topology import cluster_address

IN_FLIGHT = 2  # chunks per worker: the next one is there when it ends one
WAIT_S = 1.0
START_S = 30.0  # after which a worker without resources is added if none has started
MAX_DEATHS = 6  # one after the other without a result between: twice what one bad chunk can do
_ENVIRONMENT = {"env_vars": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}}

_log = logging.getLogger(__name__)


class LandscapeActor:
    """LandscapeWorker in a process of its own; `begin` does what may fail."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._worker: LandscapeWorker | None = None

    def begin(self) -> EngineFacts:
        """Open the engine, on the GPU if Ray gave one."""
        task, device = self._task, None
        if framework_of(task.model).name == "torch":
            from distsummary.landscape.torch_memory import worker_device

            device = worker_device(has_gpu=bool(ray.get_gpu_ids()))
        else:  # arrays out of the object store are read-only
            task = replace(task, model=copy.deepcopy(task.model))
        self._worker = LandscapeWorker(task, device=device)
        return self._worker.facts

    def evaluate(self, chunk: Chunk) -> ChunkResult:
        """The losses of the chunk."""
        if self._worker is None:
            raise LandscapeError(
                "a landscape worker was asked before it began; this is a fault of distsummary"
            )
        return self._worker.evaluate(chunk)


def run_on_ray(
    task: Task, scheduler: Scheduler, keep: Keep, *, workers: int | None = None
) -> tuple[EngineFacts, dict[str, float]]:
    """Run the scheduler to its end on the cluster that `cluster` gives.

    `workers` None: one per free GPU, else one per free CPU, at least one. A number is kept to: a worker for
    which no CPU is free runs without a reservation; on GPUs it waits for one.

    Raises LandscapeError when a worker raises, with its error, and when workers cannot be started.
    """
    with cluster():
        crew = _Crew(scheduler, keep)
        try:
            crew.begin(_portable(task), workers)
            while not (scheduler.is_finished and crew.has_begun):
                crew.step()
            return crew.facts, crew.seconds
        finally:
            crew.end()


@contextmanager
def cluster() -> Iterator[None]:
    """Be connected to Ray: as now, else to the cluster this process was started for, else to a local one.

    What was not connected before is left, or ended, with the block.
    """
    if ray.is_initialized():
        yield
        return
    if cluster_address() is not None:
        ray.init(log_to_driver=False)
    else:  # "local": the trace of an older cluster must not make this a connection
        ray.init(address="local", include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _portable(task: Task) -> Task:
    if framework_of(task.model).name != "torch":
        return task
    from distsummary.landscape.torch_memory import portable

    model, batches = portable(task.model, task.batches)
    return replace(task, model=model, batches=batches)


def plan_workers(
    free: dict[str, float], chunks: int, asked: int | None, *, can_use_gpus: bool
) -> list[dict[str, float]]:
    """The resources (actor options) of each worker to start, at least one."""
    gpus = int(free.get("GPU", 0)) if can_use_gpus else 0
    cpus = int(free.get("CPU", 0))
    count = max(1, min(asked or gpus or cpus, chunks))
    if gpus:
        return [{"num_gpus": 1, "num_cpus": 0}] * count
    return [{"num_cpus": 1 if number < cpus else 0} for number in range(count)]


class _Crew:
    """The actors and what each is at."""

    def __init__(self, scheduler: Scheduler, keep: Keep) -> None:
        self._scheduler, self._keep = scheduler, keep
        self._task: Any = None  # an ObjectRef
        self._actors: dict[str, Any] = {}
        self._options: dict[str, dict[str, float]] = {}
        self._pending: dict[Any, tuple[str, Chunk | None]] = {}  # what each call that is under way is for
        self._facts: EngineFacts | None = None
        self._deaths = 0
        self._patience_ends = time.monotonic() + START_S
        self.seconds: dict[str, float] = {}

    def begin(self, task: Task, workers: int | None) -> None:
        """Start the actors."""
        try:
            self._task = ray.put(task)
        except Exception as error:  # pickle raises whatever the object raises
            raise LandscapeError(
                f"the model, loss_fn or batches cannot be sent to workers ({error}); "
                "use functions and classes of a module, or workers=0 to stay in this process"
            ) from error
        can_use_gpus = framework_of(task.model).name == "torch"
        free, chunks = ray.available_resources(), self._scheduler.waiting
        for options in plan_workers(free, chunks, workers, can_use_gpus=can_use_gpus):
            self._start(options)

    @property
    def has_begun(self) -> bool:
        """Whether a worker has told its engine."""
        return self._facts is not None

    @property
    def facts(self) -> EngineFacts:
        """What the first worker that began said of its engine."""
        if self._facts is None:
            raise LandscapeError("no landscape worker has begun; this is a fault of distsummary")
        return self._facts

    def step(self) -> None:
        """Wait for one report, at most `WAIT_S` seconds, and act on it."""
        ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=WAIT_S)
        for reference in ready:
            self._take(reference)
        if self._facts is None and time.monotonic() > self._patience_ends:
            _log.warning("no landscape worker started in %g s; starting one without a reservation", START_S)
            self._patience_ends = float("inf")
            self._start({"num_cpus": 0})

    def _start(self, options: dict[str, float]) -> None:
        worker = f"worker-{len(self.seconds)}"
        # "DEFAULT" leaves a placement group that captures children: its bundles are others' and may be full.
        actor = ray.remote(LandscapeActor).options(
            **options, max_restarts=0, scheduling_strategy="DEFAULT", runtime_env=_ENVIRONMENT
        )
        self._actors[worker] = actor.remote(self._task)
        self._options[worker] = options
        self.seconds[worker] = 0.0
        self._pending[self._actors[worker].begin.remote()] = (worker, None)

    def _take(self, reference: Any) -> None:
        worker, chunk = self._pending.pop(reference)
        try:
            answer = ray.get(reference)
        except RayTaskError as error:
            where = "when it began" if chunk is None else f"at {chunk}"
            raise LandscapeError(f"{worker} failed {where}: {error}") from error
        except RayError as error:
            self._replace(worker, error)
            return
        if chunk is None:
            self._facts = answer
        else:
            self.seconds[worker] += answer.seconds
            self._keep(worker, chunk, answer)
            self._deaths = 0
        self._feed_all()

    def _feed_all(self) -> None:
        """Every worker that has begun gets up to IN_FLIGHT chunks."""
        starting = {worker for worker, chunk in self._pending.values() if chunk is None}
        for depth in range(1, IN_FLIGHT + 1):  # one for each first
            for worker, actor in self._actors.items():
                held = sum(1 for other, _ in self._pending.values() if other == worker)
                if worker in starting or held >= depth:
                    continue
                chunk = self._scheduler.next_chunk(worker)
                if chunk is None:
                    return
                self._pending[actor.evaluate.remote(chunk)] = (worker, chunk)

    def _replace(self, worker: str, error: RayError) -> None:
        """The worker is dead: its chunks go back, another one takes its place."""
        self._pending = {ref: at for ref, at in self._pending.items() if at[0] != worker}
        self._scheduler.lost(worker)
        _log.warning("landscape %s died (%s); its chunks are evaluated again by others", worker, error)
        ray.kill(self._actors.pop(worker), no_restart=True)
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            raise LandscapeError(
                f"{self._deaths} landscape workers died one after the other without a result ({error}); "
                "look into the memory they need, or use workers=0"
            )
        self._start(self._options.pop(worker))
        self._feed_all()

    def end(self) -> None:
        """Kill the actors; what they hold is not needed any more."""
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)
        self._actors.clear()
