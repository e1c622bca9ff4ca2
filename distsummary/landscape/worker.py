"""A worker: one engine and the planes, asked for chunks; `actor.py` puts it into a process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distsummary.landscape.directions import Array
from distsummary.landscape.engines import open_engine
from distsummary.landscape.plan import Chunk, PlanePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What every worker gets: model, loss, data and the landscapes to evaluate (same `names` in all)."""

    model: Any
    loss_fn: Any
    batches: Sequence[Any]
    planes: Sequence[PlanePlan]
    mode: str = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a grid says about its engine."""

    name: str
    bn_mode: str
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """Losses float64, one per point of the chunk, and the seconds they took."""

    values: Array
    seconds: float


class LandscapeWorker:
    """Evaluates chunks in any order; `close` gives the model back as it was."""

    def __init__(
        self, task: Task, *, device: str | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._planes = task.planes
        self._clock = clock
        self._plane: int | None = None
        names = task.planes[0].names
        self._engine = open_engine(
            task.model, task.loss_fn, task.batches, names=names, mode=task.mode, device=device
        )

    @property
    def facts(self) -> EngineFacts:
        """The engine's name, BN mode and rows of data."""
        return EngineFacts(name=self._engine.name, bn_mode=self._engine.bn_mode, samples=self._engine.samples)

    def evaluate(self, chunk: Chunk) -> ChunkResult:
        """The losses of the chunk's points; they depend on nothing but the task and the points."""
        start = self._clock()
        plane = self._planes[chunk.plane]
        if self._plane != chunk.plane:
            centre = plane.states[-1]
            self._engine.set_plane(centre, plane.recipe.make({name: centre[name] for name in plane.names}))
            self._plane = chunk.plane
        columns = range(chunk.start, chunk.stop)
        if chunk.kind == "grid":
            values = self._engine.row_losses(float(plane.y[chunk.row]), plane.x[chunk.start : chunk.stop])
        elif chunk.kind == "path":
            values = np.concatenate(
                [self._engine.row_losses(plane.points[k, 1], plane.points[k, :1]) for k in columns]
            )
        else:
            values = np.array([self._engine.state_loss(plane.states[k]) for k in columns], np.float64)
        return ChunkResult(values=values, seconds=self._clock() - start)

    def close(self) -> None:
        """Give the model back as it was."""
        self._engine.close()
