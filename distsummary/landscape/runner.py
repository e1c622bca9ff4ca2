"""Runs a task to its loss grids: plan, chunks, grids; and the runner that does so in this process."""

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from distsummary.landscape.grid import LossGrid
from distsummary.landscape.journal import Journal
from distsummary.landscape.plan import GRID_CHUNK, Chunk, plan_chunks
from distsummary.landscape.planes import Evaluated, Prepared, assemble
from distsummary.landscape.planner import EngineChoice, piece
from distsummary.landscape.quantities import quantity_names
from distsummary.landscape.scheduler import Scheduler
from distsummary.landscape.worker import ChunkResult, EngineFacts, LandscapeWorker, Task

ProgressCallback = Callable[[int, int, float], None]  # points done, points in all, points per second
Keep = Callable[[Hashable, Chunk, ChunkResult], None]

_log = logging.getLogger(__name__)


class Runner(Protocol):
    """Runs a scheduler to its end; returns the engine's facts and seconds of work by worker."""

    def __call__(self, task: Task, scheduler: Scheduler, keep: Keep) -> tuple[EngineFacts, dict[str, float]]:
        """Call `keep` with every chunk that a worker ended."""


def generate(
    task: Task,
    prepared: Sequence[Prepared],
    run: Runner,
    progress: ProgressCallback | None = None,
    journal: Journal | None = None,
) -> list[LossGrid]:
    """Evaluate all landscapes of the task; the same losses, bit for bit, whoever runs them.

    Chunks that the journal holds are not evaluated again; every new one is entered. Points whose workers died
    again and again are NaN; they are counted in the grid and logged, and not entered.
    """
    task = with_choice(task, journal)
    names = quantity_names(task.evaluation, list(task.batches) if isinstance(task.batches, Mapping) else [""])
    scheduler = Scheduler(
        plan_chunks(task.planes, grid_chunk=piece(task.choice, GRID_CHUNK)),
        results={} if journal is None else journal.results,
        quantities=len(names),
    )
    start, known = time.monotonic(), scheduler.progress().done

    def keep(worker: Hashable, chunk: Chunk, result: ChunkResult) -> None:
        if scheduler.done(worker, chunk, result.measured) and journal is not None:
            journal.enter(chunk, result.measured, worker=str(worker), seconds=result.seconds)
        if progress is not None:
            now = scheduler.progress()
            progress(now.done, now.total, (now.done - known) / max(time.monotonic() - start, 1e-9))

    facts, seconds = run(task, scheduler, keep)
    for chunk in scheduler.abandoned:
        _log.warning("%s was given up: its workers died again and again; its losses are NaN", chunk)
    evaluated = Evaluated(
        results=scheduler.results, abandoned=scheduler.abandoned, facts=facts, worker_seconds=seconds
    )
    return [assemble(number, landscape, evaluated) for number, landscape in enumerate(prepared)]


def with_choice(task: Task, journal: Journal | None) -> Task:
    """The task with the engine of its journal: only that one goes on with the same bits."""
    if journal is None:
        return task
    if journal.choice is not None:
        return replace(task, choice=EngineChoice.from_dict(journal.choice))
    choice = task.choice or EngineChoice()
    journal.enter_choice(choice.to_dict())
    return replace(task, choice=choice)


def run_here(task: Task, scheduler: Scheduler, keep: Keep) -> tuple[EngineFacts, dict[str, float]]:
    """The runner without Ray: one worker in this process, which leaves the model as it was."""
    worker = LandscapeWorker(task)
    seconds = 0.0
    try:
        while (chunk := scheduler.next_chunk("here")) is not None:
            result = worker.evaluate(chunk)
            seconds += result.seconds
            keep("here", chunk, result)
        return worker.facts, {"here": seconds}
    finally:
        worker.close()
