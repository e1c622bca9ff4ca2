"""Runs a task to its loss grids: plan, chunks, grids; and the runner that does so in this process."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from distsummary.landscape.grid import LossGrid
from distsummary.landscape.plan import plan_chunks
from distsummary.landscape.planes import Evaluated, Prepared, assemble
from distsummary.landscape.scheduler import Scheduler
from distsummary.landscape.worker import EngineFacts, LandscapeWorker, Task

ProgressCallback = Callable[[int, int, float], None]  # points done, points in all, points per second

_log = logging.getLogger(__name__)


class Runner(Protocol):
    """Runs a scheduler to its end; returns the engine's facts and seconds of work by worker."""

    def __call__(
        self, task: Task, scheduler: Scheduler, report: Callable[[], None]
    ) -> tuple[EngineFacts, dict[str, float]]:
        """Call `report` after every chunk."""


def generate(
    task: Task, prepared: Sequence[Prepared], run: Runner, progress: ProgressCallback | None = None
) -> list[LossGrid]:
    """Evaluate all landscapes of the task; the same losses, bit for bit, whoever runs them.

    Points whose workers died again and again are NaN; they are counted in the grid and logged.
    """
    scheduler = Scheduler(plan_chunks(task.planes))
    start = time.monotonic()

    def report() -> None:
        if progress is not None:
            now = scheduler.progress()
            progress(now.done, now.total, now.done / max(time.monotonic() - start, 1e-9))

    facts, seconds = run(task, scheduler, report)
    for chunk in scheduler.abandoned:
        _log.warning("%s was given up: its workers died again and again; its losses are NaN", chunk)
    evaluated = Evaluated(
        results=scheduler.results, abandoned=scheduler.abandoned, facts=facts, worker_seconds=seconds
    )
    return [assemble(number, landscape, evaluated) for number, landscape in enumerate(prepared)]


def run_here(
    task: Task, scheduler: Scheduler, report: Callable[[], None]
) -> tuple[EngineFacts, dict[str, float]]:
    """The runner without Ray: one worker in this process, which leaves the model as it was."""
    worker = LandscapeWorker(task)
    seconds = 0.0
    try:
        while (chunk := scheduler.next_chunk("here")) is not None:
            result = worker.evaluate(chunk)
            scheduler.done("here", chunk, result.values)
            seconds += result.seconds
            report()
        return worker.facts, {"here": seconds}
    finally:
        worker.close()
