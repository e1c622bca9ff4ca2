"""Runs a task to its loss grids: engine, plan, chunks, refinement, grids; and the workers of one process."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from distsummary.errors import DistSummaryError, LandscapeError
from distsummary.landscapes.directions.hessian import Hessian
from distsummary.landscapes.directions.planes import Prepared
from distsummary.landscapes.directions.recipe import Array, Weights
from distsummary.landscapes.engines.chunks import GRID_CHUNK, Chunk, count_points, least_call, plan_chunks
from distsummary.landscapes.engines.engine_choice import EngineChoice, MemoryTooSmallError, piece
from distsummary.landscapes.engines.timing import plan_engine
from distsummary.landscapes.engines.worker import ChunkResult, EngineFacts, LandscapeWorker, Task
from distsummary.landscapes.model.quantities import quantity_names
from distsummary.landscapes.output.grid import LossGrid
from distsummary.landscapes.run.assemble import Evaluated, assemble, gather
from distsummary.landscapes.run.failures import (
    HESSIAN,
    MEND,
    OPENING,
    PLANNING,
    ChunkFailedError,
    place,
    raised,
    told,
)
from distsummary.landscapes.run.journal import Journal
from distsummary.landscapes.run.progress import Progress, ProgressCallback
from distsummary.landscapes.run.refine import Mask, first_points, next_points
from distsummary.landscapes.run.scheduler import Scheduler, call_size

Keep = Callable[[Hashable, Chunk, ChunkResult], None]  # called with every chunk that a worker ended

_log = logging.getLogger(__name__)


class Crew(Protocol):
    """Workers that have begun a task."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Spent on chunks, by worker."""

    @property
    def facts(self) -> EngineFacts | None:
        """What a worker said of its engine; None as long as none has."""

    def run(self, scheduler: Scheduler, keep: Keep) -> None:
        """Run a scheduler to its end.

        Raises MemoryTooSmallError where the task needs a smaller engine, ChunkFailedError for what the
        user's code raises.
        """


class Workers(Protocol):
    """Who computes: this process, or actors of a cluster."""

    def plan(self, task: Task) -> EngineChoice:
        """The engine for the task, see `timing.plan_engine`, on the hardware of the workers."""

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
        """Workers for a task that has its engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The grids of a task; `was_cancelled` by an interrupt, so that they lack points."""

    grids: Sequence[LossGrid]
    was_cancelled: bool = False


def generate(
    task: Task,
    prepared: Sequence[Prepared],
    workers: Workers,
    *,
    tell: ProgressCallback | None = None,
    journal: Journal | None = None,
    refine: float | None = None,
) -> Drawn:
    """Evaluate all landscapes of the task; the same losses, bit for bit, whoever runs them.

    Chunks that the journal holds are not evaluated again; every new one is entered. Points whose workers died
    again and again are NaN; they are counted in the grid and logged, and not entered. When memory is too
    small for the engine, a smaller one begins anew. `refine` is the tolerance of `refine.next_points`.
    """
    task = replace(task, choice=_choice(task, workers, journal))
    while True:
        try:
            return _Drawing(task, prepared, tell=tell, journal=journal, refine=refine).draw(workers)
        except MemoryTooSmallError as error:
            _log.warning("%s", error)
            task = replace(task, choice=error.smaller)
            if journal is not None:
                journal.enter_choice(error.smaller.to_dict())


def _choice(task: Task, workers: Workers, journal: Journal | None) -> EngineChoice:
    """The engine of the journal, for only that one goes on with the same bits, or a new one."""
    if journal is not None and journal.choice is not None:
        begun = EngineChoice.from_dict(journal.choice)
        if task.choice is not None and task.choice.label != begun.label:
            raise LandscapeError(
                f"{journal.path} was begun with engine={begun.label!r}, got {task.choice.label!r}; "
                "leave engine= out to go on with it, or use resume=False to begin anew"
            )
        return begun
    choice = workers.plan(task)
    if journal is not None:
        journal.enter_choice(choice.to_dict())
    return choice


class _Drawing:
    """A task on its way to its grids, with one engine."""

    def __init__(
        self,
        task: Task,
        prepared: Sequence[Prepared],
        *,
        tell: ProgressCallback | None,
        journal: Journal | None,
        refine: float | None,
    ) -> None:
        self._task, self._prepared = task, prepared
        self._tell, self._journal, self._refine = tell, journal, refine
        self._results: dict[Chunk, Array] = {} if journal is None else dict(journal.results)
        self._abandoned: list[Chunk] = []
        data = list(task.batches) if isinstance(task.batches, Mapping) else [""]
        self._quantities = len(quantity_names(task.evaluation, data))
        self._started: float | None = None  # with the first chunk: starting workers is no pace
        self._fresh, self._is_told = Counter[str](), False

    def draw(self, workers: Workers) -> Drawn:
        """Evaluate until nothing is wanted; an interrupt gives what there is, if there is anything."""
        with workers.crew(self._task) as crew:
            try:
                wanted = self._first()
                while True:
                    self._run(crew, wanted)
                    wanted = self._next(wanted)
                    if not any(mask.any() for mask in wanted):
                        self._report(crew.seconds, sum(map(len, self._results)))
                        return Drawn(grids=self._grids(crew))
            except KeyboardInterrupt:
                if crew.facts is None:
                    raise
                return Drawn(grids=self._grids(crew), was_cancelled=True)

    def _first(self) -> list[Mask]:
        shapes = [(len(plane.y), len(plane.x)) for plane in self._task.planes]
        if self._refine is None:
            return [np.ones(shape, bool) for shape in shapes]
        return [first_points(shape) for shape in shapes]

    def _next(self, evaluated: Sequence[Mask]) -> list[Mask]:
        """What refinement asks for after a round; nothing without it."""
        if self._refine is None:
            return [mask & False for mask in evaluated]
        found = []
        for number, plane in enumerate(self._task.planes):
            known = gather(self._results, number, plane)
            found.append(next_points(known.grid[..., 0], known.computed, self._refine))
        return found

    def _run(self, crew: Crew, wanted: Sequence[Mask]) -> None:
        size = piece(self._task.choice, GRID_CHUNK)
        chunks = plan_chunks(self._task.planes, grid_chunk=size, wanted=wanted)
        align = piece(self._task.choice, 1)
        if align > 1 and self._task.evaluation.stops_early:  # who goes on moves up among those taken together
            align = size
        scheduler = Scheduler(chunks, known=self._results, quantities=self._quantities, align=align)
        total = count_points(self._task.planes)

        def keep(worker: Hashable, chunk: Chunk, result: ChunkResult) -> None:
            if self._started is None:
                self._begin(crew, result)
            if scheduler.done(worker, chunk, result.measured):
                self._results[chunk] = scheduler.results[chunk]
                self._fresh[str(worker)] += len(chunk)
                if self._journal is not None:
                    self._journal.enter(chunk, result.measured, worker=str(worker), seconds=result.seconds)
            self._report(crew.seconds, total)

        try:
            crew.run(scheduler, keep)
        except ChunkFailedError as failed:
            raise self._failure(failed) from failed.cause
        for chunk in scheduler.abandoned:
            _log.warning("%s was given up: its workers died again and again; its losses are NaN", chunk)
            self._results[chunk] = scheduler.results[chunk]
        self._abandoned += scheduler.abandoned

    def _begin(self, crew: Crew, first: ChunkResult) -> None:
        self._started = time.monotonic() - first.seconds
        if self._journal is not None and crew.facts is not None:
            self._journal.enter_hardware(crew.facts.hardware)

    def _failure(self, failed: ChunkFailedError) -> LandscapeError:
        done = sum(map(len, self._results))
        kept = f"the {done} points finished are lost; with run_dir= they would be kept"
        if self._journal is not None:
            kept = (
                f"the {done} points finished are kept in {self._journal.path} for a call with the same code; "
                "with other code it begins anew"
            )
        where = place(failed.chunk, self._task.planes)
        return LandscapeError(f"{raised(failed.cause)} at {where}; {MEND} ({kept})")

    def _report(self, seconds: Mapping[str, float], total: int) -> None:
        """Of all points: how many refinement leaves out is known at its end."""
        done = sum(map(len, self._results))
        if self._tell is None or (done == total and self._is_told):
            return
        self._is_told = done == total
        self._tell(
            Progress(
                done=done,
                total=total,
                seconds=0.0 if self._started is None else time.monotonic() - self._started,
                fresh=self._fresh.total(),
                by_worker={name: n / seconds[name] for name, n in self._fresh.items() if seconds[name] > 0},
            )
        )

    def _grids(self, crew: Crew) -> list[LossGrid]:
        assert crew.facts is not None
        assert self._task.choice is not None
        facts = crew.facts
        if self._journal is not None and self._journal.hardware:  # of all calls
            facts = replace(facts, hardware=" and ".join(self._journal.hardware))
        evaluated = Evaluated(
            results=self._results,
            abandoned=self._abandoned,
            facts=facts,
            choice=self._task.choice,
            worker_seconds=crew.seconds,
        )
        precision = self._task.evaluation.precision
        return [assemble(n, landscape, evaluated, precision) for n, landscape in enumerate(self._prepared)]


class Here:
    """One worker in this process, which leaves the model as it was."""

    def plan(self, task: Task) -> EngineChoice:
        """See Workers."""
        with told(PLANNING):
            return plan_engine(task).choice

    @contextmanager
    def hessian(self, *parts: Any, **options: Any) -> Iterator[Hessian]:
        """See Workers."""
        from distsummary.landscapes.engines.torch_hessian import TorchHessian

        with told(HESSIAN), TorchHessian(*parts, **options) as hessian:
            yield hessian

    @contextmanager
    def crew(self, task: Task) -> Iterator["_Alone"]:
        """See Workers."""
        with told(OPENING):
            worker = LandscapeWorker(task)
        try:
            yield _Alone(worker)
        finally:
            worker.close()


@dataclass(slots=True)
class _Alone:
    worker: LandscapeWorker
    spent: float = 0.0
    ended: int = 0  # points

    @property
    def seconds(self) -> Mapping[str, float]:
        return {"here": self.spent}

    @property
    def facts(self) -> EngineFacts:
        return self.worker.facts

    def run(self, scheduler: Scheduler, keep: Keep) -> None:
        while chunks := scheduler.next_chunks("here", self._points(scheduler)):
            for chunk in chunks:
                result = self._evaluate(chunk)
                self.spent += result.seconds
                self.ended += len(chunk)
                keep("here", chunk, result)

    def _points(self, scheduler: Scheduler) -> int:
        least = least_call(is_streamed=self.facts.is_streamed)
        return call_size(scheduler.waiting, 1, self.spent / self.ended if self.ended else 0.0, least)

    def _evaluate(self, chunk: Chunk) -> ChunkResult:
        try:
            return self.worker.evaluate(chunk)
        except DistSummaryError:
            raise
        except Exception as error:  # of any kind: it is the user's code
            raise ChunkFailedError(chunk, error) from error
