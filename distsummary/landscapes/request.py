"""The arguments of `landscape`: the classes `Plane` and `Compute`, and what only fits together."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distsummary.base.checks import check_choice, check_number, check_type, set_ints
from distsummary.checkpoints.landscape_spec import MAX_SIZE, MIN_SIZE, UNITS
from distsummary.checkpoints.trajectory import Trajectory
from distsummary.errors import InvalidTypeError, InvalidValueError, UsageError
from distsummary.frameworks.base import CurvatureSource, framework_of
from distsummary.landscapes.directions import CENTERINGS, CORNERS, DIRECTIONS, OF_RUNS
from distsummary.landscapes.directions.checkpoint_sources import AnyAround, is_single
from distsummary.landscapes.directions.normalization import (
    NORMALIZATIONS,
    FilterAxisHook,
    check_filter_axis,
)
from distsummary.landscapes.directions.parameters import Patterns, check_patterns
from distsummary.landscapes.directions.prepare import Direction
from distsummary.landscapes.directions.recipe import Directions
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.rundir.run_dir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """The plane of a landscape: its points, what moves in it, and how its directions are made.

    Attributes:
        size: points along each side, 3 to 256.
        parameters: names or regular expressions (found anywhere in a name, such as "lora"): only parameters
            that match one of them are varied; directions and residuals are computed in this subspace.
        normalization: "filter", "layer", "mindspore" or "none". Default: "filter" for random directions and
            your own, "none" for all others.
        filter_axis: the axis along which the filters of a parameter lie, by name or as a function of
            (name, shape), for layers whose type does not determine it; only with normalization "filter".
        centering: the centering of the PCA: "last" (default), "mean" (default with `runs`) or "mindspore".
        seed: the seed of the random directions.
        curvature: the optimizer that trained the model, such as ds.thor.THOR, for the direction of this name.
        unit, step_per_epoch: what the numbers of the checkpoints count ("step" or "epoch"), and the number of
            steps in an epoch. Default: those of the trajectory.

    Raises:
        InvalidTypeError, InvalidValueError: a field has a wrong type or value.
    """

    size: int = 51
    parameters: Patterns = None
    normalization: str | None = None
    filter_axis: FilterAxisHook = None
    centering: str | None = None
    seed: int = 0
    curvature: CurvatureSource | None = None
    unit: str | None = None
    step_per_epoch: int | None = None

    def __post_init__(self) -> None:
        set_ints(
            self,
            size={"low": MIN_SIZE, "high": MAX_SIZE},
            seed={"low": -(2**63), "high": 2**63 - 1},
            step_per_epoch={"low": 1, "optional": True},
        )
        for field, value, choices in (
            ("normalization", self.normalization, NORMALIZATIONS),
            ("centering", self.centering, CENTERINGS),
            ("unit", self.unit, UNITS),
        ):
            if value is not None:
                check_choice(field, value, choices)
        check_patterns(self.parameters)
        check_filter_axis(self.filter_axis)
        if self.curvature is not None and not isinstance(self.curvature, CurvatureSource):
            raise InvalidTypeError(
                "curvature must be an optimizer that keeps Kronecker factors, such as one of ds.thor.THOR, "
                f"got a {type(self.curvature).__name__}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Where and how the points of a landscape are computed; the losses are the same wherever it is.

    Attributes:
        workers: "auto" uses the Ray cluster that this process is connected to or, in a Ray job, the one at
            RAY_ADDRESS; this process alone if there is none. "ray" starts a local cluster if there is none; 0
            uses this process alone; another number is the number of Ray workers. "auto" and "ray" start a
            worker for each free GPU, else for each free core, and at most one for 20 points; they are
            counted again every 10 s, so that nodes that join later are used too.
        address: that of the Ray cluster to use, such as "10.0.0.1:6379", "ray://host:10001", "auto" for the
            cluster of this machine, or "local" for a new one. Default: see `workers`.
        gpus_per_worker: GPUs for each Ray worker: a share of one GPU, such as 0.25 while a training runs,
            or a whole number. Default: one for torch models, none for other models (give a number here if
            their code uses GPUs). If so many are not free when the landscape begins, its workers use CPUs.
        engine: "row" runs the model's own code at each point. "auto" times alternatives on this machine
            (recorded graphs, several points at once, other memory layouts), if the landscape is long enough
            to pay for it, and takes the fastest whose losses differ from those of "row" by at most 5e-6
            (relative; 1e-2 in reduced precision). `LossGrid.engine` names the engine that was used. If you
            pass that name here, nothing is timed and the bits are the same on equal hardware. A landscape
            that is resumed keeps its engine.
        memory: "inference" writes each point's values into the model's own parameters and draws random
            directions again at each point, which needs hardly more memory than a forward pass. A temporary
            file keeps the model's values, to restore them. Slower; gives the same bits as engine "row".

    Raises:
        InvalidTypeError, InvalidValueError: a field has a wrong type or value.
    """

    workers: int | str = "auto"
    address: str | None = None
    gpus_per_worker: float | None = None
    engine: str = "auto"
    memory: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.workers, str) or self.workers not in ("auto", "ray"):
            expected = f"workers must be 'auto', 'ray' or an int >= 0, got {self.workers!r}"
            try:
                set_ints(self, workers={"low": 0})
            except UsageError as error:
                raise type(error)(expected) from None
        check_type("address", self.address, str, optional=True)
        if self.address is not None and self.workers == 0:
            raise InvalidValueError(
                f"address={self.address!r} names a Ray cluster, and workers=0 uses this process alone; leave "
                "one of them out"
            )
        share = self.gpus_per_worker
        # Ray assigns a fraction of one GPU, or whole GPUs.
        if share is not None:
            share = check_number("gpus_per_worker", share)
            object.__setattr__(self, "gpus_per_worker", share)
            if not 0 <= share < math.inf or (share > 1 and share != int(share)):
                raise InvalidValueError(
                    f"gpus_per_worker must be a share in [0, 1] or a whole number from 1 on, got {share!r}"
                )
        check_type("engine", self.engine, str)
        if self.memory is not None:
            check_choice("memory", self.memory, ("inference",))
            if self.engine != "auto":
                raise InvalidValueError(
                    f"memory='inference' chooses the engine, got engine={self.engine!r} too; leave engine out"
                )


def refuse_classes(**parts: Any) -> None:
    """Raise InvalidTypeError for a class in place of an instance, such as nn.MSELoss for nn.MSELoss()."""
    for field, given in parts.items():
        if isinstance(given, type):
            raise InvalidTypeError(
                f"{field} must be an instance, got the class {given.__name__}; give {given.__name__}(...)"
            )


def check_refine(refine: float | None) -> float | None:
    """`refine`; raises unless it is None or a share of the loss in (0, 1)."""
    refine = check_number("refine", refine, optional=True)
    if refine is not None and not 0 < refine < 1:
        raise InvalidValueError(f"refine must be a share of the loss in (0, 1), such as 0.01, got {refine!r}")
    return refine


def refuse_workers_of_cell(model: Any, compute: Compute) -> None:
    """Raise InvalidValueError for workers that would need a copy of a Cell, which cannot be pickled."""
    given = compute.workers if compute.workers not in (0, "auto") else compute.address
    if given is not None and framework_of(model).name == "mindspore":
        raise InvalidValueError(
            f"a Cell of MindSpore is evaluated in this process, got workers or address {given!r}; leave them "
            "out"
        )


def choose_engine(model: Any, compute: Compute) -> EngineChoice | None:
    """The engine requested for a torch model; None if none is requested, and for other models."""
    is_torch = framework_of(model).name == "torch"
    if compute.memory is not None and not is_torch:
        raise InvalidValueError(
            f"memory={compute.memory!r} is for torch models, got a {type(model).__name__}; leave it out: "
            "for other models each point is always written into the model's own parameters"
        )
    engine = compute.memory or compute.engine
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


def requested_directions(
    given: Direction | Sequence[Direction] | None,
    model: Any,
    mode: str,
    around: AnyAround,
    runs: Sequence[AnyAround] | None,
    curvature: CurvatureSource | None,
) -> list[Direction]:
    """The requested directions without duplicates; raises for directions that other arguments rule out."""
    if given is None:
        given = "random" if runs is None and is_single(around) else "pca"
    check_type("directions", given, (str, Directions, list, tuple))
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
        if direction == "hessian" and framework_of(model).name != "torch":
            raise InvalidValueError(
                "directions='hessian' needs a torch model: others have no derivatives; use 'random'"
            )
        if direction == "curvature" and curvature is None:
            raise InvalidValueError(
                "directions='curvature' needs an optimizer that keeps Kronecker factors; pass "
                "plane=ds.Plane(curvature=optimizer) with one of ds.thor.THOR"
            )
    if runs is not None and (around is not None or mode == "mindspore"):
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


def refuse_unused(plane: Plane, mode: str, directions: Sequence[Direction]) -> None:
    """Raise InvalidValueError for a field of the plane that none of the directions uses."""
    normalization = plane.normalization
    if normalization is not None and all(direction == "line" for direction in directions):
        raise InvalidValueError(
            "normalization= has no meaning for directions='line', whose direction is the difference of two "
            "checkpoints; leave it out"
        )
    if plane.centering is not None and "pca" not in directions:
        raise InvalidValueError("centering= applies to directions='pca' alone; leave it out or ask for 'pca'")
    if plane.curvature is not None and "curvature" not in directions:
        raise InvalidValueError(
            "curvature= applies to directions='curvature' alone; leave it out or ask for 'curvature'"
        )
    # By default, only random directions and the user's own are normalized by filters.
    by_default = mode != "mindspore" and any(
        direction == "random" or isinstance(direction, Directions) for direction in directions
    )
    has_filters = by_default if normalization is None else normalization == "filter"
    if plane.filter_axis is not None and not has_filters:
        raise InvalidValueError(
            "filter_axis= applies to normalization='filter' alone, which none of these landscapes uses; "
            "leave it out or ask for normalization='filter'"
        )
