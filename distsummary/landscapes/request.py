"""The arguments of `landscape`, and the checks that depend on the arguments alone."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distsummary.base.checks import check_choice, check_int, check_type
from distsummary.checkpoints.landscape_spec import MAX_SIZE, MIN_SIZE, UNITS
from distsummary.checkpoints.trajectory import Trajectory
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import CurvatureSource, framework_of
from distsummary.landscapes.directions import CENTERINGS, CORNERS, DIRECTIONS, OF_RUNS
from distsummary.landscapes.directions.checkpoint_sources import AnyAround, is_single
from distsummary.landscapes.directions.normalization import NORMALIZATIONS, FilterAxisHook
from distsummary.landscapes.directions.parameters import Patterns
from distsummary.landscapes.directions.prepare import Direction
from distsummary.landscapes.directions.recipe import Directions
from distsummary.landscapes.engines.engine import MODES
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.model.quantities import Evaluation
from distsummary.rundir.run_dir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """The arguments of `landscape` and `landscape_set`; they are described there."""

    model: Any
    loss_fn: Any
    batches: Any  # Iterable[Any] | Data; check_arguments refuses None
    batch_loss: Callable[[Any, Any], Any] | None
    around: AnyAround
    runs: Sequence[AnyAround] | None
    size: int
    directions: Direction | Sequence[Direction] | None
    parameters: Patterns
    normalization: str | None
    filter_axis: FilterAxisHook
    centering: str | None
    seed: int
    curvature: Any  # CurvatureSource | None; checked below
    mode: str
    evaluation: Evaluation | None
    refine: float | None
    workers: int | str
    address: str | None
    gpus_per_worker: float | None
    engine: str
    memory: str | None
    unit: str | None
    step_per_epoch: int | None
    run_dir: str | os.PathLike[str] | None
    resume: bool
    progress: Any  # bool | ProgressCallback; the layers do not allow importing that type here


def check_arguments(request: Request) -> None:
    """Raise for an argument that is invalid regardless of the others."""
    check_int("size", request.size, low=MIN_SIZE, high=MAX_SIZE)
    check_int("seed", request.seed, low=-(2**63), high=2**63 - 1)
    check_choice("mode", request.mode, MODES)
    for field, value, choices in (
        ("normalization", request.normalization, NORMALIZATIONS),
        ("centering", request.centering, CENTERINGS),
        ("unit", request.unit, UNITS),
    ):
        if value is not None:
            check_choice(field, value, choices)
    check_int("step_per_epoch", request.step_per_epoch, low=1, optional=True)
    if not isinstance(request.workers, str) or request.workers not in ("auto", "ray"):
        expected = f"workers must be 'auto', 'ray' or an int >= 0, got {request.workers!r}"
        if not isinstance(request.workers, int) or isinstance(request.workers, bool):
            raise InvalidTypeError(expected)
        if request.workers < 0:
            raise InvalidValueError(expected)
    check_type("address", request.address, str, optional=True)
    if request.address is not None and request.workers == 0:
        raise InvalidValueError(
            f"address={request.address!r} names a Ray cluster, and workers=0 uses this process alone; leave "
            "one of them out"
        )
    share = request.gpus_per_worker
    # Ray assigns a fraction of one GPU, or whole GPUs.
    if share is not None:
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise InvalidTypeError(f"gpus_per_worker must be a number, got {share!r}")
        if not 0 <= share < math.inf or (share > 1 and share != int(share)):
            raise InvalidValueError(
                f"gpus_per_worker must be a share in [0, 1] or a whole number from 1 on, got {share!r}"
            )
    refine = request.refine
    if refine is not None:
        check_type("refine", refine, (int, float))
        if isinstance(refine, bool) or not 0 < refine < 1:
            raise InvalidValueError(
                f"refine must be a share of the loss in (0, 1), such as 0.01, got {refine!r}"
            )
    check_type("evaluation", request.evaluation, Evaluation, optional=True)
    check_type("resume", request.resume, bool)
    if request.batches is None:
        raise InvalidTypeError("batches is required: pass the data, a list of batches or a DataLoader")
    # A user may pass nn.MSELoss instead of nn.MSELoss().
    for field in ("model", "loss_fn", "batch_loss"):
        given = getattr(request, field)
        if isinstance(given, type):
            raise InvalidTypeError(
                f"{field} must be an instance, got the class {given.__name__}; give {given.__name__}(...)"
            )


def refuse_workers_of_cell(request: Request) -> None:
    """Raise InvalidValueError for workers that would need a copy of a Cell, which cannot be pickled."""
    given = request.workers if request.workers not in (0, "auto") else request.address
    if given is not None and framework_of(request.model).name == "mindspore":
        raise InvalidValueError(
            f"a Cell of MindSpore is evaluated in this process, got workers or address {given!r}; leave them "
            "out"
        )


def choose_engine(model: Any, engine: str, memory: str | None) -> EngineChoice | None:
    """The engine requested for a torch model; None if none is requested, and for other models."""
    check_type("engine", engine, str)
    is_torch = framework_of(model).name == "torch"
    if memory is not None:
        check_choice("memory", memory, ("inference",))
        if engine != "auto":
            raise InvalidValueError(
                f"memory='inference' chooses the engine, got engine={engine!r} too; leave engine out"
            )
        if not is_torch:
            raise InvalidValueError(
                f"memory={memory!r} is for torch models, got a {type(model).__name__}; leave it out: "
                "for other models each point is always written into the model's own parameters"
            )
        engine = "inference"
    if is_torch and engine != "auto":
        try:
            return EngineChoice.from_label(engine)
        except InvalidValueError as error:
            raise InvalidValueError(
                f"engine must be 'auto', 'row' or the `engine` of an earlier LossGrid: {error}"
            ) from error
    if not is_torch and engine.rpartition("-")[2] not in ("auto", "naive"):
        raise InvalidValueError(
            f"engine must be 'auto' or 'naive' for a model that is not torch's, got {engine!r}"
        )
    return None


def requested_directions(request: Request) -> list[Direction]:
    """The requested directions without duplicates; raises for directions that other arguments rule out."""
    around, runs, given = request.around, request.runs, request.directions
    if given is None:
        given = "random" if runs is None and is_single(around) else "pca"
    check_type("directions", given, (str, Directions, Sequence))
    listed = [given] if isinstance(given, str | Directions) else list(given)
    if not listed:
        raise InvalidValueError(f"directions must name at least one of {DIRECTIONS}, got none")
    directions: list[Direction] = []
    for direction in listed:
        if not isinstance(direction, Directions):
            check_choice("directions", direction, DIRECTIONS)
        if isinstance(direction, Directions) or direction not in directions:
            directions.append(direction)

    if runs is not None:
        check_runs(runs)
    for direction in directions:
        if runs is not None:
            # The message of check_choice would print the arrays of these directions.
            if isinstance(direction, Directions):
                raise InvalidValueError(
                    f"directions with runs= must be one of {sorted(OF_RUNS)}, got Directions of your own; "
                    "give these with around= and one checkpoint"
                )
            check_choice("directions with runs=", direction, OF_RUNS)
            corners = CORNERS.get(direction)
            if corners is not None and len(runs) != corners:
                raise InvalidValueError(
                    f"directions={direction!r} goes through {corners} runs, got {len(runs)} in runs="
                )
        elif direction in OF_RUNS and is_single(around):
            raise InvalidValueError(
                f"directions={direction!r} needs around= with a run or trajectory, or runs=; "
                "if you have neither, use directions='random'"
            )
        if direction == "hessian" and framework_of(request.model).name != "torch":
            raise InvalidValueError(
                "directions='hessian' needs a torch model: others have no derivatives; use 'random'"
            )
        if direction == "curvature" and not isinstance(request.curvature, CurvatureSource):
            raise InvalidValueError(
                "directions='curvature' needs an optimizer that keeps Kronecker factors, got curvature="
                f"{type(request.curvature).__name__}; pass curvature=optimizer with one of ds.thor.THOR"
            )
    if runs is not None and (around is not None or request.mode == "mindspore"):
        other = "around=" if around is not None else "mode='mindspore'"
        raise InvalidValueError(f"runs= cannot be combined with {other}; leave one of them out")
    return directions


def check_runs(runs: Sequence[AnyAround]) -> None:
    """Raise for fewer than two runs, and for a run or file that is listed twice."""
    check_type("runs", runs, Sequence)
    if isinstance(runs, str) or len(runs) < 2:
        raise InvalidValueError(
            "runs must be a list of at least two runs, checkpoint files or states, got "
            f"{repr(runs) if isinstance(runs, str) else len(runs)}; use around= for one"
        )
    # A run dir and its ckpt_dir count as one place.
    places = []
    for run in runs:
        named = run.ckpt_dir if isinstance(run, Trajectory) else run
        if isinstance(named, str | os.PathLike):
            path = Path(named).resolve()
            places.append(path.parent if path == RunDir(path.parent).ckpt_dir else path)
    if twice := [place for place in dict.fromkeys(places) if places.count(place) > 1]:
        raise InvalidValueError(f"runs= has {', '.join(map(str, twice))} twice; give each run once")


def refuse_unused(request: Request, directions: Sequence[Direction]) -> None:
    """Raise InvalidValueError for an argument that none of the directions uses."""
    normalization = request.normalization
    if normalization is not None and all(direction == "line" for direction in directions):
        raise InvalidValueError(
            "normalization= has no meaning for directions='line', whose direction is the difference of two "
            "checkpoints; leave it out"
        )
    if request.centering is not None and "pca" not in directions:
        raise InvalidValueError("centering= applies to directions='pca' alone; leave it out or ask for 'pca'")
    if request.curvature is not None and "curvature" not in directions:
        raise InvalidValueError(
            "curvature= applies to directions='curvature' alone; leave it out or ask for 'curvature'"
        )
    # By default, only random directions and the user's own are normalized by filters.
    by_default = request.mode != "mindspore" and any(
        direction == "random" or isinstance(direction, Directions) for direction in directions
    )
    has_filters = by_default if normalization is None else normalization == "filter"
    if request.filter_axis is not None and not has_filters:
        raise InvalidValueError(
            "filter_axis= applies to normalization='filter' alone, which none of these landscapes uses; "
            "leave it out or ask for normalization='filter'"
        )
