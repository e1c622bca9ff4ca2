"""The work of a crew: hands out jobs, takes them back from dead workers, and collects results.

This module does not use Ray: `actor_crew` sends jobs to actors and brings results back.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.engines.worker import ChunkResult
from distsummary.landscapes.run.scheduler import Keep, Scheduler
from distsummary.landscapes.run.worker_failures import HESSIAN, ChunkFailedError, raised

Job = tuple[Any, ...]  # the arguments of one call of a worker's `work`


class Work:
    """The base class of all work. By itself it has no jobs: `ActorCrew.do` ends once a worker has begun."""

    @property
    def is_finished(self) -> bool:
        """Whether every job has its result."""
        return True

    @property
    def waiting(self) -> int:
        """The number of points that no worker holds."""
        return 0

    def next_job(self, worker: str, workers: int) -> Job | None:
        """A job for `worker`, one of `workers` workers; None: ask again after something has changed."""
        return None

    def done(self, worker: str, job: Job, result: Any) -> Job | None:
        """Take the result of a job; returns the rest of the job, for the same worker, or None."""
        return None

    def lost(self, worker: str, *, was_at_it: bool) -> None:
        """Take back a dead worker's jobs; `was_at_it`: it died in one of its jobs, not in earlier work."""

    def failure(self, job: Job, error: Exception) -> Exception:
        """The error to raise after the user's code has raised `error` in a job."""
        return LandscapeError(raised(error))


class ChunkWork(Work):
    """Evaluates a scheduler's chunks. A job is (chunks,); its result ends before the first chunk that raised.

    Args:
        points: a function (waiting points, workers) -> how many points to give a worker per call.
        keep: called with every chunk that has been evaluated.
    """

    def __init__(self, scheduler: Scheduler, points: Callable[[int, int], int], keep: Keep) -> None:
        self._scheduler, self._points, self._keep = scheduler, points, keep

    @property
    def is_finished(self) -> bool:
        """See Work."""
        return self._scheduler.is_finished

    @property
    def waiting(self) -> int:
        """See Work."""
        return self._scheduler.waiting

    def next_job(self, worker: str, workers: int) -> Job | None:
        """See Work."""
        chunks = self._scheduler.next_chunks(worker, self._points(self.waiting, workers))
        return (chunks,) if chunks else None

    def done(self, worker: str, job: Job, result: list[ChunkResult]) -> Job | None:
        """See Work."""
        [chunks] = job
        for chunk, one in zip(chunks, result, strict=False):
            self._keep(worker, chunk, one)
        return (rest,) if (rest := chunks[len(result) :]) else None

    def lost(self, worker: str, *, was_at_it: bool) -> None:
        """See Work."""
        self._scheduler.lost(worker, was_at_it=was_at_it)

    def failure(self, job: Job, error: Exception) -> Exception:
        """See Work."""
        return ChunkFailedError(job[0][0], error)


class ProductWork(Work):
    """A Hessian-vector product; a job is (a reference to the vector, the number of a group of batches)."""

    def __init__(self, sent: Any, groups: int) -> None:
        self._sent, self._groups = sent, groups
        self._waiting = deque(range(groups))
        self._held: dict[str, list[int]] = {}
        self._parts: dict[int, Array] = {}

    @property
    def is_finished(self) -> bool:
        """See Work."""
        return len(self._parts) == self._groups

    def next_job(self, worker: str, workers: int) -> Job | None:
        """See Work."""
        if not self._waiting:
            return None
        group = self._waiting.popleft()
        self._held.setdefault(worker, []).append(group)
        return self._sent, group

    def done(self, worker: str, job: Job, result: Array) -> Job | None:
        """See Work."""
        self._held[worker].remove(job[1])
        self._parts[job[1]] = result
        return None

    def lost(self, worker: str, *, was_at_it: bool) -> None:
        """See Work."""
        self._waiting.extendleft(reversed(self._held.pop(worker, [])))

    def failure(self, job: Job, error: Exception) -> Exception:
        """See Work."""
        return LandscapeError(f"{raised(error)} {HESSIAN}")

    def total(self) -> Array:
        """The sum of the groups' products, added in a fixed order, so independent of the workers."""
        total = np.zeros_like(self._parts[0], dtype=np.float64)
        for group in range(self._groups):
            total += self._parts[group]
        return total
