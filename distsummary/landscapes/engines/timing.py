"""Chooses the engine of a landscape: times candidates on points of the grid and compares their losses.

The losses of the timed points are not kept: the workers evaluate all points with the chosen engine.
"""

import shutil
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from distsummary.base.guard import guarded_log
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import Array, Directions
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.engine_choice import (
    EXACT,
    LOOSE,
    EngineChoice,
    Timing,
    budget_s,
    candidates,
    choose,
    close,
    compile_candidate,
)
from distsummary.landscapes.engines.open_engine import is_out_of_memory, open_engine
from distsummary.landscapes.model.quantities import REDUCED

PROBES = 6  # losses are compared at this many points of a row; at least this many are timed
TIMED_S = 0.03  # seconds that one timing of a candidate should take
REPEATS = 6  # timings per candidate; the shortest counts, because the machine may be shared

_log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedChoice:
    """The chosen engine, the timing of each candidate, and why other candidates were refused."""

    choice: EngineChoice
    timings: Mapping[EngineChoice, Timing] = field(default_factory=dict)
    refused: Mapping[EngineChoice, str] = field(default_factory=dict)


def choose_engine(
    task: Task,
    *,
    device: str | None = None,
    points: int | None = None,
    can_compile: bool | None = None,
    clock: Callable[[], float] | None = None,
) -> TimedChoice:
    """Choose the engine for a task on this machine, unless the task has one already.

    If reduced precision is requested, the choice holds the relative error that this causes in the losses.

    Args:
        device: where the workers will compute; None means the model's device.
        points: the number of points to evaluate; None: all points of the task.
        can_compile: whether torch.compile may be timed too, if there are enough points for it to pay; None:
            only if this machine has a C++ compiler and Python's headers.
        clock: returns seconds; None: CPU time on a CPU, else wall-clock time.

    Raises whatever the model's own code raises with the row engine.
    """
    if framework_of(task.model).name != "torch":
        return TimedChoice(choice=EngineChoice(engine="naive"))
    plane = max(task.planes, key=lambda plane: len(plane.x) * len(plane.y))
    points = points or sum(len(p.x) * len(p.y) + 2 * len(p.states) for p in task.planes)
    bench = _Bench(task, plane, device, clock)
    try:
        planned = (
            bench.choose(points, has_compiler() if can_compile is None else can_compile)
            if task.choice is None
            else TimedChoice(choice=task.choice)
        )
    except Exception as error:
        # Any error is possible, because each device has its own for full memory.
        if not is_out_of_memory(task, error):
            raise
        _log.warning(
            "the row engine does not fit in memory; using the inference engine, which writes the parameters "
            "of each point into the model's own memory"
        )
        planned = TimedChoice(choice=EngineChoice(engine="inference"))
    if task.evaluation.precision not in REDUCED:
        return planned
    choice = replace(planned.choice, precision_error=bench.precision_error(planned.choice))
    return replace(planned, choice=choice)


class _Bench:
    """Tries engines on one plane of a task."""

    def __init__(
        self, task: Task, plane: PlanePlan, device: str | None, clock: Callable[[], float] | None
    ) -> None:
        self._task, self._plane, self._device, self._given_clock = task, plane, device, clock
        self._timings: dict[EngineChoice, Timing] = {}
        self._refused: dict[EngineChoice, str] = {}
        step = max(1, len(plane.x) // PROBES)
        self._probes = plane.x[::step][:PROBES]
        self._rows = sorted({float(plane.y[0]), float(plane.y[-1])})
        self._base: Array = np.empty(0)

    @cached_property
    def _directions(self) -> Directions:
        """The plane's directions as arrays, made once for all candidates."""
        return self._plane.recipe.make(self._plane.states[-1])

    def choose(self, points: int, can_compile: bool) -> TimedChoice:
        """See `choose_engine`."""
        row = EngineChoice()
        engine = self._open(row)
        try:
            self._clock = clock = self._given_clock or engine.clock
            # The first point takes longer, so only the second one is timed, to find out whether timing pays
            # at all.
            engine.row_values(self._rows[0], self._probes[:1])
            begun = clock()
            engine.row_values(self._rows[0], self._probes[-1:])
            if not budget_s(points, clock() - begun):
                return TimedChoice(choice=row)
            timings = self._timings
            timings[row] = self._time(engine, clock())
            point_s = timings[row].point_s
            todo = candidates(
                len(self._plane.x), point_s, parameters=engine.parameters,
                on_gpu=engine.on_gpu, has_pictures=engine.has_pictures,
            )  # fmt: skip
            can_compile = can_compile and not engine.on_gpu and bool(todo)
            has_pictures = engine.has_pictures
        finally:
            engine.close()
        # First the candidates are timed, then the compiled engine if these timings show that compiling can
        # pay, and last, once more, all that are close to the fastest.
        limit_s = budget_s(points, point_s)
        self._try_all(todo, limit_s)
        columns = len(self._plane.x)
        if can_compile and (found := compile_candidate(timings, points, columns, has_pictures=has_pictures)):
            self._try(found)
        self._try_all(close(timings), limit_s)
        tolerance = LOOSE if self._task.evaluation.precision in REDUCED else EXACT
        choice = choose(timings, points, tolerance=tolerance)
        _log.info("landscape engine: %s, chosen from %d that were timed", choice.label, len(timings))
        return TimedChoice(choice=choice, timings=timings, refused=self._refused)

    def _try_all(self, todo: Sequence[EngineChoice], limit_s: float) -> None:
        """Time candidates until `limit_s` is spent."""
        from distsummary.landscapes.engines.torch_graph_engine import warm_up

        warm_up()
        begun = self._clock()
        for choice in todo:
            if self._clock() - begun < limit_s:
                self._try(choice)
            elif choice not in self._timings:
                self._refused[choice] = "no time left for it"

    def _try(self, choice: EngineChoice) -> None:
        """Time a candidate; refuse it if it raises, since the user's code works with the row engine."""
        start, engine = self._clock(), None
        try:
            engine = self._open(choice)
            timing = self._time(engine, start)
            known = self._timings.get(choice, timing)
            self._timings[choice] = min(timing, known, key=lambda found: found.point_s)
        except Exception as error:
            # A candidate may fail in any way, which excludes only this candidate.
            self._refused[choice] = f"{type(error).__name__}: {error}"
            _log.debug("landscape engine %s is refused: %s", choice.label, self._refused[choice])
        finally:
            if engine is not None:
                engine.close()

    def _open(self, choice: EngineChoice, **evaluation: Any) -> Any:
        """Open a torch engine and set its plane; `evaluation` replaces fields of `task.evaluation`."""
        asked = replace(self._task.evaluation, **evaluation)
        engine: Any = open_engine(replace(self._task, evaluation=asked, choice=choice), self._device)
        try:
            # The inference engine draws random directions itself; the others share one copy of the arrays.
            recipe = self._plane.recipe if choice.engine == "inference" else self._directions
            engine.set_plane(self._plane.states[-1], recipe)
        except BaseException:
            engine.close()
            raise
        return engine

    def _time(self, engine: Any, start: float) -> Timing:
        """Time an engine, opened at time `start`; its losses are compared with those of the first call."""
        clock = self._clock
        # In its first call an engine prepares what later calls use, which counts as setup. The first engine
        # timed is the row engine, whose losses are the base for all others.
        losses = self._losses(engine)
        if not len(self._base):
            self._base = losses
        setup_s, begun = clock() - start, clock()
        engine.row_values(self._rows[0], self._probes)
        rough_s = max((clock() - begun) / len(self._probes), 1e-9)
        least = max(PROBES, engine.choice.chunk)
        # At least a whole chunk of the engine, and otherwise as many points as take about TIMED_S.
        xs = self._plane.x[: max(least, min(len(self._plane.x), int(TIMED_S / rough_s)))]
        times = []
        for _ in range(REPEATS):
            begun = clock()
            engine.row_values(self._rows[0], xs)
            times.append(clock() - begun)
        error = _largest_difference(losses, self._base)
        return Timing(point_s=max(min(times), 1e-9) / len(xs), setup_s=setup_s, error=error)

    def _losses(self, engine: Any) -> Array:
        """The losses of each data set at the probe points of the first and last row, (data sets, points)."""
        each = len(self._task.evaluation.quantities())  # per data set; the first one is the loss
        return np.concatenate([engine.row_values(y, self._probes)[:, ::each] for y in self._rows]).T

    def precision_error(self, choice: EngineChoice) -> float:
        """The relative error that the requested reduced precision causes in an engine's losses."""
        found = []
        for changes in ({}, {"precision": ""}):
            engine = self._open(choice, **changes)
            try:
                found.append(self._losses(engine))
            finally:
                engine.close()
        return _largest_difference(found[0], found[1])


def has_compiler() -> bool:
    """Whether this machine has what torch.compile needs on a CPU: a C++ compiler and Python's headers."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    return header.exists() and any(map(shutil.which, ("g++", "clang++", "c++")))


def _largest_difference(losses: Array, base: Array) -> float:
    """The largest `relative_difference` over all data sets."""
    return max(map(relative_difference, losses, base))


def relative_difference(losses: Array, base: Array) -> float:
    """The largest |losses - base|, relative to |base| or to a tenth of the largest |base| if that is more.

    The tenth is for losses near 0, which may be only rounding errors. The result is infinite if at some point
    only one of the two losses is finite; points where neither is finite are left out.
    """
    finite = np.isfinite(base)
    if not (finite == np.isfinite(losses)).all():
        return float("inf")
    if not finite.any():
        return 0.0
    size = np.abs(base[finite])
    difference = np.abs(losses[finite] - base[finite])
    return float((difference / np.maximum(size, max(0.1 * size.max(), 1e-300))).max())
