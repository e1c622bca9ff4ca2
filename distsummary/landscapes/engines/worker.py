"""A worker, which evaluates chunks of the planes with an engine; `run/worker_process.py` has one on Ray."""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.engine_choice import EngineChoice, MemoryTooSmallError
from distsummary.landscapes.engines.open_engine import is_out_of_memory, open_engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a grid records about its engine; `quantities` names the columns of `ChunkResult.measured`.

    `is_streamed`: the engine reads the data again in each call of `row_values`. `unseen_gpus`: GPUs that Ray
    has reserved for the worker, but that its torch does not see. `host`: the name of the worker's one.
    """

    name: str
    bn_mode: str
    samples: int
    hardware: str = ""
    quantities: tuple[str, ...] = ("loss",)
    is_streamed: bool = False
    unseen_gpus: float = 0.0
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """The quantities at the points of a chunk.

    Attributes:
        seconds: the time that the chunk took.
        measured: all quantities, float64 (points, quantities); the first column holds the losses.
    """

    seconds: float
    measured: Array


class LandscapeWorker:
    """Evaluates the chunks of a task, in any order; `close` restores the model."""

    def __init__(self, task: Task, *, device: str | None = None) -> None:
        self._planes = task.planes
        self._plane: int | None = None
        self._task = task
        with self._within_memory("when it was opened"):
            self._engine = open_engine(task, device)

    @property
    def facts(self) -> EngineFacts:
        """What a grid records about this worker's engine."""
        engine = self._engine
        return EngineFacts(
            name=engine.name,
            bn_mode=engine.bn_mode,
            samples=engine.samples,
            hardware=engine.hardware,
            quantities=engine.quantities,
            is_streamed=engine.is_streamed,
            host=platform.node(),
        )

    def evaluate(self, chunk: Chunk) -> ChunkResult:
        """The quantities of the chunk's points; they depend only on the task and the chunk."""
        start = time.perf_counter()
        plane = self._planes[chunk.plane]
        with self._within_memory(f"at a chunk of {len(chunk)} point(s)"):
            if self._plane != chunk.plane:
                self._engine.set_plane(plane.states[-1], plane.recipe)
                self._plane = chunk.plane
            columns = list(chunk.columns)
            if chunk.kind == "grid":
                measured = self._engine.row_values(float(plane.y[chunk.row]), plane.x[columns])
            elif chunk.kind == "path":
                # These points lie in no common row, so each is evaluated by itself.
                points = [plane.points[k] for k in columns]
                measured = np.concatenate([self._engine.row_values(y, np.array([x])) for x, y in points])
            else:
                measured = np.stack([self._engine.state_values(plane.states[k]) for k in columns])
        return ChunkResult(seconds=time.perf_counter() - start, measured=measured)

    @contextmanager
    def _within_memory(self, when: str) -> Iterator[None]:
        """Turn an out-of-memory error into MemoryTooSmallError if some engine needs less memory."""
        try:
            yield
        except Exception as error:
            # Any error is possible, because each device has its own for full memory.
            choice = self._task.choice or EngineChoice()
            smaller = choice.smaller() if is_out_of_memory(self._task, error) else None
            if smaller is None:
                raise
            raise MemoryTooSmallError(
                f"{choice.label} ran out of memory {when}; continuing with {smaller.label}", smaller
            ) from error

    def close(self) -> None:
        """Restore the model."""
        self._engine.close()
