"""What may be asked of `landscape`: arguments out of their range raise; pure."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distsummary.checkpoints.landscape_spec import MAX_SIZE, MIN_SIZE, UNITS
from distsummary.checkpoints.trajectory import Trajectory
from distsummary.checks import check_choice, check_int, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.names import CENTERINGS, CORNERS, DIRECTIONS, OF_RUNS
from distsummary.landscapes.directions.normalization import NORMALIZATIONS, FilterAxisHook
from distsummary.landscapes.directions.prepare import Direction
from distsummary.landscapes.directions.recipe import Directions
from distsummary.landscapes.directions.sources import Around, is_single
from distsummary.landscapes.engines.base import MODES
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.run_dir import RunDir


def check_numbers(
    *,
    size: int,
    seed: int,
    mode: str,
    normalization: str | None,
    centering: str | None,
    workers: int | str,
    gpus_per_worker: float | None,
    refine: float | None,
    unit: str | None,
    step_per_epoch: int | None,
) -> None:
    """Raise for an argument out of its range."""
    check_int("size", size, low=MIN_SIZE, high=MAX_SIZE)
    check_int("seed", seed, low=-(2**63), high=2**63 - 1)
    check_choice("mode", mode, MODES)
    if normalization is not None:
        check_choice("normalization", normalization, NORMALIZATIONS)
    if centering is not None:
        check_choice("centering", centering, CENTERINGS)
    if unit is not None:
        check_choice("unit", unit, UNITS)
    check_int("step_per_epoch", step_per_epoch, low=1, optional=True)
    if not isinstance(workers, str) or workers not in ("auto", "ray"):
        check_int("workers (or 'auto', 'ray')", workers, low=0)
    if gpus_per_worker is not None:
        _check_share("gpus_per_worker", gpus_per_worker)
    if refine is not None:
        check_type("refine", refine, (int, float))
        if isinstance(refine, bool) or not 0 < refine < 1:
            raise InvalidValueError(
                f"refine must be a share of the loss in (0, 1), such as 0.01, got {refine!r}"
            )


def _check_share(field: str, share: object) -> None:
    """GPUs of a worker as Ray gives them: a part of one, or whole ones."""
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise InvalidTypeError(f"{field} must be a number, got {share!r}")
    if not 0 <= share < math.inf or (share > 1 and share != int(share)):
        raise InvalidValueError(
            f"{field} must be a share in [0, 1] or a whole number from 1 on, got {share!r}"
        )


def refuse_classes(**given: object) -> None:
    """Raise for a class where an instance is meant, such as `nn.MSELoss` for `nn.MSELoss()`."""
    for field, value in given.items():
        if isinstance(value, type):
            raise InvalidTypeError(
                f"{field} must be an instance, got the class {value.__name__}; give {value.__name__}(...)"
            )


def _named(engine: str) -> EngineChoice:
    try:
        return EngineChoice.from_label(engine)
    except InvalidValueError as error:
        raise InvalidValueError(f"engine must be 'auto' or one that a grid names: {error}") from error


def choose_engine(model: Any, engine: str, memory: str | None) -> EngineChoice | None:
    """The engine that is asked for; None where it is to be chosen."""
    check_type("engine", engine, str)
    if memory is not None:
        check_choice("memory", memory, ("inference",))
        if engine != "auto":
            raise InvalidValueError(
                f"memory='inference' is an engine of its own, got engine={engine!r}; leave it out"
            )
        engine = "inference"
    is_torch = framework_of(model).name == "torch"
    if memory is not None and not is_torch:
        raise InvalidValueError(
            f"memory={memory!r} is for torch models, got a {type(model).__name__}; leave it out, others are "
            "moved in place"
        )
    if is_torch:
        return None if engine == "auto" else _named(engine)
    if engine.removeprefix("numpy-") not in ("auto", "naive"):
        raise InvalidValueError(
            f"engine must be 'auto' or 'naive' for a model that is not torch's, got {engine!r}"
        )
    return None


def check_directions(
    model: Any,
    directions: Direction | Sequence[Direction] | None,
    around: Around,
    runs: Sequence[Around] | None,
    mode: str,
) -> list[Direction]:
    """The directions asked for, as a list; raises for those that cannot be had of what is given."""
    if directions is None:
        directions = "random" if runs is None and is_single(around) else "pca"
    asked = _listed(directions)
    if runs is not None:
        _check_runs(runs)
    for direction in asked:
        if runs is not None:
            _check_of_runs(direction, runs)
        elif direction in OF_RUNS and is_single(around):
            raise InvalidValueError(
                f"directions={direction!r} needs around= with a run or trajectory, or runs=; "
                "use directions='random' without one"
            )
        if direction == "hessian" and framework_of(model).name != "torch":
            raise InvalidValueError("directions='hessian' needs a torch model: others tell no derivatives")
    if runs is not None and (around is not None or mode == "mindspore"):
        other = "around=" if around is not None else "mode='mindspore'"
        raise InvalidValueError(f"runs= cannot be had together with {other}; leave one of them out")
    return asked


def _listed(directions: Direction | Sequence[Direction]) -> list[Direction]:
    """The directions as a list, each name once; raises for what is none."""
    check_type("directions", directions, (str, Directions, Sequence))
    listed = [directions] if isinstance(directions, str | Directions) else list(directions)
    if not listed:
        raise InvalidValueError(f"directions must name at least one of {DIRECTIONS}, got none")
    asked: list[Direction] = []
    for direction in listed:
        if not isinstance(direction, Directions):
            check_choice("directions", direction, DIRECTIONS)
        if isinstance(direction, Directions) or direction not in asked:
            asked.append(direction)
    return asked


def _check_of_runs(direction: Direction, runs: Sequence[Around]) -> None:
    if isinstance(direction, Directions):  # whose arrays are no text to show
        raise InvalidValueError(
            f"directions with runs= must be one of {sorted(OF_RUNS)}, got Directions of your own; "
            "use around= with one checkpoint for them"
        )
    check_choice("directions with runs=", direction, OF_RUNS)
    wanted = CORNERS.get(direction)
    if wanted is not None and len(runs) != wanted:
        raise InvalidValueError(
            f"directions={direction!r} goes through {wanted} runs, got {len(runs)} in runs="
        )


def _check_runs(runs: Sequence[Around]) -> None:
    """Raise for less than two, and for a run or file named twice: it would count twice, upon itself."""
    check_type("runs", runs, Sequence)
    if isinstance(runs, str) or len(runs) < 2:
        raise InvalidValueError(
            "runs must be a list of at least two runs, checkpoint files or states, got "
            f"{repr(runs) if isinstance(runs, str) else len(runs)}; use around= for one"
        )
    named = [run.ckpt_dir if isinstance(run, Trajectory) else run for run in runs]
    places = [_place(run) for run in named if isinstance(run, RunDir | str | os.PathLike)]
    if twice := [place for place in dict.fromkeys(places) if places.count(place) > 1]:
        raise InvalidValueError(f"runs= has {', '.join(map(str, twice))} twice; give each run once")


def _place(run: RunDir | str | os.PathLike[str]) -> Path:
    """Where a run, its ckpt_dir or a file lies: the same for the former two."""
    path = run.base if isinstance(run, RunDir) else Path(run).resolve()
    return path.parent if path == RunDir(path.parent).ckpt_dir else path


def refuse_unused(
    directions: Sequence[Direction],
    *,
    mode: str,
    normalization: str | None,
    centering: str | None,
    filter_axis: FilterAxisHook,
) -> None:
    """Raise InvalidValueError for an argument that none of the directions takes."""
    if normalization is not None and all(direction == "line" for direction in directions):
        raise InvalidValueError(
            "normalization= has no meaning for directions='line', which leads from one end to the other; "
            "leave it out"
        )
    if centering is not None and "pca" not in directions:
        raise InvalidValueError("centering= is that of directions='pca' alone; leave it out or ask for 'pca'")
    if filter_axis is not None and not _has_filters(directions, mode, normalization):
        raise InvalidValueError(
            "filter_axis= has a meaning with normalization='filter' alone, which none of these landscapes "
            "has; leave it out or ask for normalization='filter'"
        )


def _has_filters(directions: Sequence[Direction], mode: str, normalization: str | None) -> bool:
    if normalization is not None or mode == "mindspore":
        return normalization == "filter"
    return any(direction == "random" or isinstance(direction, Directions) for direction in directions)
