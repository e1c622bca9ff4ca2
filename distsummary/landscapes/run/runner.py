"""Computes a task's loss grids: chooses the engine, has workers evaluate chunks, refines, builds grids.

A landscape goes through generator -> request -> prepare (directions and points) -> engine choice -> chunks ->
runner -> assemble. Its workers run in this process (defined here) or on Ray (see the module `actor`).
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from distsummary.base.guard import guarded_log
from distsummary.errors import DistSummaryError, LandscapeError
from distsummary.landscapes.directions.hessian import Hessian
from distsummary.landscapes.directions.planes import Prepared
from distsummary.landscapes.directions.recipe import Array, Weights
from distsummary.landscapes.engines.chunks import GRID_CHUNK, Chunk, count_points, plan_chunks
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.engine_choice import EngineChoice, MemoryTooSmallError, piece
from distsummary.landscapes.engines.timing import choose_engine
from distsummary.landscapes.engines.worker import ChunkResult, EngineFacts, LandscapeWorker
from distsummary.landscapes.model.quantities import quantity_names
from distsummary.landscapes.output.loss_grid import LossGrid
from distsummary.landscapes.run.assemble import assemble, gather
from distsummary.landscapes.run.journal import Journal
from distsummary.landscapes.run.progress import Progress, ProgressCallback
from distsummary.landscapes.run.refine import Mask, first_points, next_points
from distsummary.landscapes.run.scheduler import CallPoints, Keep, Scheduler, call_size
from distsummary.landscapes.run.worker_failures import (
    CHOOSING,
    HESSIAN,
    MEND,
    OPENING,
    ChunkFailedError,
    place,
    raised,
    user_errors,
)

_log = guarded_log(__name__)


class Crew(Protocol):
    """Workers of a task.

    Attributes:
        names: all workers, dead ones included.
        begun: what each worker that has begun reported about its engine.
    """

    names: list[str]
    begun: dict[str, EngineFacts]

    def run(self, scheduler: Scheduler, points: CallPoints, keep: Keep) -> None:
        """Evaluate all chunks of the scheduler; returns when at least one worker has begun, too.

        Raises MemoryTooSmallError if the memory is too small, ChunkFailedError if the user's code raises.

        Args:
            points: given the number of workers, returns how many points to give one in a call.
            keep: called with every evaluated chunk.
        """


class Workers(Protocol):
    """Where to compute: in this process, or in actors of a cluster."""

    def choose_engine(self, task: Task) -> EngineChoice:
        """The engine for the task on the hardware of the workers, see `timing.choose_engine`."""

    def hessian(
        self,
        model: Any,
        loss_fn: Any,
        batches: Sequence[Any],
        *,
        names: Sequence[str],
        centre: Weights,
        mode: str,
    ) -> AbstractContextManager[Hessian]:
        """The Hessian of a torch model's loss at `centre`, see `torch_hessian.TorchHessian`."""

    def crew(self, task: Task) -> AbstractContextManager[Crew]:
        """Workers for a task with a chosen engine."""


def generate(
    task: Task,
    prepared: Sequence[Prepared],
    workers: Workers,
    *,
    report: ProgressCallback | None = None,
    journal: Journal | None = None,
    refine: float | None = None,
) -> tuple[list[LossGrid], bool]:
    """The grids of all landscapes of the task, and whether an interrupt stopped the evaluation.

    The losses are the same, bit for bit, whichever workers are used.

    Chunks in the journal are not evaluated again; every new chunk is added to the journal. Points whose
    workers died repeatedly are NaN, counted in `LossGrid.lost_points` and logged, but not added to the
    journal. If memory is too small for the engine, evaluation starts again with a smaller engine. `refine`:
    the tolerance of `refine.next_points`; None evaluates all points.
    """
    # Only the same engine gives the same bits, so the journal's engine is used.
    if journal is not None and journal.choice is not None:
        choice = EngineChoice.from_dict(journal.choice)
        if task.choice is not None and task.choice.label != choice.label:
            raise LandscapeError(
                f"{journal.path} was begun with engine={choice.label!r}, got {task.choice.label!r}; "
                "leave engine= out to continue with the journal's engine, or use resume=False to start again"
            )
    else:
        choice = workers.choose_engine(task)
        if journal is not None:
            journal.enter_choice(choice.to_dict())
    while True:
        task = replace(task, choice=choice)
        try:
            evaluation = _Evaluation(task, prepared, report=report, journal=journal, refine=refine)
            return evaluation.run(workers)
        except MemoryTooSmallError as error:
            _log.warning("%s", error)
            choice = error.smaller
            if journal is not None:
                journal.enter_choice(choice.to_dict())


class _Evaluation:
    """The evaluation of a task with one engine, from first points to grids."""

    def __init__(
        self,
        task: Task,
        prepared: Sequence[Prepared],
        *,
        report: ProgressCallback | None,
        journal: Journal | None,
        refine: float | None,
    ) -> None:
        self._task, self._prepared = task, prepared
        self._on_progress, self._journal, self._refine = report, journal, refine
        self._results: dict[Chunk, Array] = {} if journal is None else dict(journal.results)
        self._abandoned: list[Chunk] = []
        self._hardware: list[str] = [] if journal is None else [*journal.hardware]
        self._started: float | None = None  # when the first chunk began: starting workers does not count
        self._fresh = Counter[str]()  # worker -> points that it evaluated in this call
        self._seconds = defaultdict[str, float](float)  # worker -> the time that it spent on them
        self._hosts: dict[str, str] = {}  # worker -> where it is now
        self._has_reported_all = self._has_unseen_gpus = False

    def run(self, workers: Workers) -> tuple[list[LossGrid], bool]:
        """Evaluate all points, or those that refinement selects; returns the grids, and if it was stopped."""
        shapes = [(len(plane.y), len(plane.x)) for plane in self._task.planes]
        with workers.crew(self._task) as crew:
            try:
                if self._refine is None:
                    self._evaluate(crew, [np.ones(shape, bool) for shape in shapes])
                else:
                    wanted = [first_points(shape) for shape in shapes]
                    while any(mask.any() for mask in wanted):
                        self._evaluate(crew, wanted)
                        known = [gather(self._results, n, plane) for n, plane in enumerate(self._task.planes)]
                        wanted = [next_points(k.grid[..., 0], k.computed, self._refine) for k in known]
                # The total of the last report is without the points that refinement left out.
                self._report(sum(map(len, self._results)))
                return self._grids(crew), False
            except KeyboardInterrupt:
                # Without a worker that has begun, nothing is known that a grid could hold.
                if not crew.begun:
                    raise
                return self._grids(crew), True

    def _evaluate(self, crew: Crew, wanted: Sequence[Mask]) -> None:
        """Have the workers evaluate the points `wanted` of each grid, and all points of the paths."""
        task, total = self._task, count_points(self._task.planes)
        size, align = piece(task.choice, GRID_CHUNK), piece(task.choice, 1)
        data_sets = list(task.batches) if isinstance(task.batches, Mapping) else [""]
        scheduler = Scheduler(
            plan_chunks(task.planes, grid_chunk=size, wanted=wanted),
            known=self._results,
            quantities=len(quantity_names(task.evaluation, data_sets)),
            align=align,
        )

        def points(workers: int) -> int:
            done, facts = self._fresh.total(), next(iter(crew.begun.values()))
            point_s = sum(self._seconds.values()) / done if done else 0.0
            # Each call reads streamed data once, for all its points, so it should have many.
            return call_size(scheduler.waiting, workers, point_s, GRID_CHUNK if facts.is_streamed else 1)

        def keep(worker: str, chunk: Chunk, result: ChunkResult) -> None:
            if self._started is None:
                self._started = time.monotonic() - result.seconds
            self._note_hardware(worker, crew.begun[worker])
            self._seconds[worker] += result.seconds
            self._hosts[worker] = crew.begun[worker].host
            if scheduler.done(worker, chunk, result.measured):
                self._results[chunk] = scheduler.results[chunk]
                self._fresh[worker] += len(chunk)
                if self._journal is not None:
                    on = crew.begun[worker].hardware
                    self._journal.enter(chunk, result.measured, worker=worker, seconds=result.seconds, on=on)
            self._report(total)

        try:
            crew.run(scheduler, points, keep)
        except ChunkFailedError as failed:
            done = sum(map(len, self._results))
            kept = f"the {done} finished points are lost; with run_dir= they would be kept"
            if self._journal is not None:
                kept = (
                    f"the {done} finished points are kept in {self._journal.path} for a call with the same "
                    "code; a call with other code starts again"
                )
            where = place(failed.chunk, task.planes)
            raise LandscapeError(f"{raised(failed.cause)} at {where}; {MEND} ({kept})") from failed.cause
        for chunk in scheduler.abandoned:
            text = "the part at %s was given up, because its workers died again and again; its losses are NaN"
            _log.warning(text, place(chunk, task.planes))
            # As a result, NaN keeps later rounds of refinement from trying this part again.
            self._results[chunk] = scheduler.results[chunk]
        self._abandoned += scheduler.abandoned

    def _note_hardware(self, worker: str, facts: EngineFacts) -> None:
        """Note the hardware of the next chunk; warn if it is not that of earlier chunks, or not a GPU."""
        name = facts.hardware
        if facts.unseen_gpus and not self._has_unseen_gpus:
            self._has_unseen_gpus = True
            _log.warning(
                "%s computes on the CPU: Ray has reserved %g GPU(s) for it, which its torch does not see; "
                "install a build of torch for this GPU there, or pass gpus_per_worker=0",
                worker,
                facts.unseen_gpus,
            )
        if self._hardware and name not in self._hardware and self._results:
            _log.warning(
                "this landscape has points that were computed on %s, and now on %s: losses may differ in the "
                "last bits; for equal bits, use nodes of one kind (and resume=False to begin again)",
                " and ".join(self._hardware),
                name,
            )
        if name not in self._hardware:
            self._hardware.append(name)

    def _report(self, total: int) -> None:
        """Report progress. `total` counts points that refinement leaves out, except in the last report."""
        done, seconds = sum(map(len, self._results)), self._seconds
        if self._on_progress is None or (done == total and self._has_reported_all):
            return
        self._has_reported_all = done == total
        by_worker = {name: n / seconds[name] for name, n in self._fresh.items() if seconds[name]}
        by_node = defaultdict[str, float](float)
        for name, rate in by_worker.items():
            by_node[self._hosts[name]] += rate
        self._on_progress(
            Progress(
                done=done,
                total=total,
                seconds=0.0 if self._started is None else time.monotonic() - self._started,
                fresh=self._fresh.total(),
                by_worker=by_worker,
                by_node=dict(by_node),
            )
        )

    def _grids(self, crew: Crew) -> list[LossGrid]:
        assert self._task.choice is not None
        facts = next(iter(crew.begun.values()))
        # The hardware of all workers and, with a journal, of all calls that wrote to it.
        if self._hardware:
            facts = replace(facts, hardware=" and ".join(self._hardware))
        return [
            assemble(
                number,
                landscape,
                self._results,
                self._abandoned,
                facts=facts,
                worker_seconds={name: self._seconds[name] for name in crew.names},
                precision=self._task.evaluation.precision,
                precision_error=self._task.choice.precision_error,
            )
            for number, landscape in enumerate(self._prepared)
        ]


class InProcessWorkers:
    """One worker in this process; it leaves the model as it was before."""

    def choose_engine(self, task: Task) -> EngineChoice:
        """See Workers."""
        with user_errors(CHOOSING):
            return choose_engine(task).choice

    @contextmanager
    def hessian(self, *parts: Any, **options: Any) -> Iterator[Hessian]:
        """See Workers."""
        from distsummary.landscapes.engines.torch_hessian import TorchHessian

        with user_errors(HESSIAN), TorchHessian(*parts, **options) as hessian:
            yield hessian

    @contextmanager
    def crew(self, task: Task) -> Iterator["InProcessCrew"]:
        """See Workers."""
        with user_errors(OPENING):
            worker = LandscapeWorker(task)
        try:
            yield InProcessCrew(worker)
        finally:
            worker.close()


class InProcessCrew:
    """A Crew of one worker."""

    def __init__(self, worker: LandscapeWorker) -> None:
        self._worker = worker
        self.names, self.begun = ["here"], {"here": worker.facts}

    def run(self, scheduler: Scheduler, points: CallPoints, keep: Keep) -> None:
        """See Crew."""
        while chunks := scheduler.next_chunks("here", points(1)):
            for chunk in chunks:
                try:
                    result = self._worker.evaluate(chunk)
                except DistSummaryError:
                    raise
                except Exception as error:
                    # Any error is possible, since it is the user's code.
                    raise ChunkFailedError(chunk, error) from error
                keep("here", chunk, result)
