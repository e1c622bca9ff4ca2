"""`landscape`: the loss landscapes around what was trained: a run, a trajectory or the model itself."""

import importlib
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from distsummary.checkpoints.landscape_spec import MAX_SIZE, MIN_SIZE
from distsummary.checkpoints.metadata import METADATA
from distsummary.checks import check_choice, check_int, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.landscape.directions import Directions
from distsummary.landscape.engines import MODES, check_batches
from distsummary.landscape.fingerprint import fingerprint
from distsummary.landscape.grid import LossGrid
from distsummary.landscape.journal import Journal
from distsummary.landscape.normalization import NORMALIZATIONS, FilterAxisHook
from distsummary.landscape.output import write_landscapes
from distsummary.landscape.parameters import Patterns, moving
from distsummary.landscape.pca import CENTRINGS
from distsummary.landscape.planes import Prepared, Settings
from distsummary.landscape.prepare import (
    DIRECTIONS,
    OF_RUNS,
    Direction,
    find_eigenpairs,
    prepare,
    prepare_runs,
)
from distsummary.landscape.runner import ProgressCallback, Runner, generate, run_here
from distsummary.landscape.sources import Around, is_single, mindspore_batches, open_runs, open_source
from distsummary.landscape.timing import plan_engine
from distsummary.landscape.worker import Task
from distsummary.publish import ensure_directory
from distsummary.run_dir import RunDir
from distsummary.topology import in_ray

__all__ = ["landscape", "load_factory"]

TELL_EVERY_S = 0.5
ENGINE_CHOICES = ("row", "auto")
Parts: TypeAlias = tuple[Any, Any, Iterable[Any]]

_log = logging.getLogger(__name__)


def landscape(
    model: Any,
    loss_fn: Any,
    batches: Iterable[Any],
    *,
    around: Around = None,
    runs: Sequence[Around] | None = None,
    size: int = 21,
    directions: Direction | Sequence[Direction] | None = None,
    parameters: Patterns = None,
    normalization: str | None = None,
    filter_axis: FilterAxisHook = None,
    centring: str | None = None,
    seed: int = 0,
    mode: str = "standard",
    workers: int | str = "auto",
    engine: str = "row",
    unit: str | None = None,
    step_per_epoch: int | None = None,
    output: RunDir | str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: bool | ProgressCallback = True,
) -> LossGrid | dict[str, LossGrid]:
    """Compute the loss on planes through a trained model.

        grid = ds.landscape(model, torch.nn.CrossEntropyLoss(), test_batches, around="runs/digits")
        grid.plot("landscape.png")

    The model is left bit for bit as it was. The same arguments give the same losses, bit for bit on equal
    hardware, for any number of workers.

    Args:
        model: a torch module or a numpy model (`frameworks.numpy`); its values matter only without `around`.
        loss_fn: a criterion `loss_fn(model(inputs), targets)` for batches (inputs, targets); or, if its first
            parameter is called `model`, `loss_fn(model, batch)` for batches of any kind. It returns the mean
            over the batch; batches count by their rows.
        batches: the data, the same for every point. They are held in memory.
        around: whose checkpoints make the path: a run, its directory, its ckpt_dir or a trajectory; or one
            checkpoint: a .ckpt or .safetensors file, or values by name. None: the model as it is.
        runs: several of these, for one plane through all of them; with it no `around`.
        size: points along each side, 3 to 256.
        directions: a sequence asks for several of
            "pca": the plane of the path, default with `around`; with `runs` that of all their checkpoints.
            "random": default without a path.
            "hessian": the two leading eigenvectors of the Hessian, of unit length (torch models).
            "line": one row of points from the first checkpoint to the last, or from the last checkpoint of
                one of two `runs` to that of the other; see `LossGrid.barrier`.
            "triangle": the plane through the first, middle and last checkpoint, or through the last of three
                `runs`.
            `Directions`: your own, over the parameters that they name.
        parameters: names or regular expressions (found anywhere in a name, such as "lora"): only parameters
            that have one of them move, and directions and residuals are those of this subspace.
        normalization: "filter", "layer", "mindspore" or "none". Default: "filter" for random directions and
            those given, "none" for all others.
        filter_axis: where the filters of a parameter lie, by name or as a function of (name, shape), for
            layers that the modules do not tell; see `normalization`.
        centring: of the PCA, "last" (default), "mean" or "mindspore".
        seed: of the random directions.
        mode: "standard" (eval mode) or "mindspore": MindSpore's numbers, so training mode, its directions,
            and num_samples // batch size of the batches.
        workers: "auto" uses the Ray cluster this process is connected to, and this process alone without
            one; 0 is this process; a number is that many Ray workers.
        engine: "row" runs the model's code at every point; "auto" times what may be faster on this machine
            (recorded graphs, several points at once, other memory layouts), each held against "row" to 5e-6,
            and takes the fastest if the landscape is long enough to pay for it. The same engine gives the
            same bits; a landscape that goes on keeps the one it began with.
        unit, step_per_epoch: what checkpoint numbers count, where the trajectory does not say.
        output: the run dir to write to: events for MindInsight and TensorBoard, .npz and .png, in its
            `landscape/`. Finished points are kept there in a journal until the landscape is complete.
        resume: go on with the journal of the same landscape, if it was stopped; False begins anew.
        progress: True tells on stderr, False does not, a callable gets (points done, of all, per second).

    Returns:
        A LossGrid for one direction. A dict for a sequence of directions, by direction; and where the
        trajectory has several intervals, one PCA grid for each, as "pca[first, last]".

    Raises:
        InvalidTypeError, InvalidValueError: bad arguments; checkpoints that are not the model's.
        LandscapeError: the checkpoints span no plane, or a worker failed (its error is the cause).
    """
    _check(size, normalization, centring, seed, mode, workers)
    check_choice("engine", engine, ENGINE_CHOICES)
    request = _check_directions(model, directions, around, runs, mode)
    source = open_source(model, around, unit, step_per_epoch) if runs is None else None
    sources = [source] if source is not None else open_runs(model, runs or [])
    moved = moving(model, mode, parameters, filter_axis)
    settings = Settings(
        size=size,
        mode=mode,
        centring=centring or "",
        normalization=normalization or "",
        seed=seed,
        unit=unit or sources[0].unit,
        step_per_epoch=sources[0].step_per_epoch if step_per_epoch is None else step_per_epoch,
        filter_axes=moved.filter_axes,
    )
    data = check_batches(batches)
    if mode == "mindspore" and sources[0].num_samples is not None:
        data = mindspore_batches(data, sources[0].num_samples)
    prepared: dict[str, Prepared]
    if source is None:
        prepared = prepare_runs(sources, moved, request, settings)
    else:
        find = partial(find_eigenpairs, model, loss_fn, data, mode)
        prepared = prepare(source, moved, request, settings, find)
    planes = [item.plane for item in prepared.values()]
    task = Task(model=model, loss_fn=loss_fn, batches=data, planes=planes, mode=mode)
    if engine == "auto":
        task = replace(task, choice=plan_engine(task).choice)
    kept = None if output is None else output if isinstance(output, RunDir) else RunDir(output)
    with _journal(kept, task, resume=resume) as journal:
        grids = generate(task, list(prepared.values()), _runner(workers), _teller(progress), journal)
        found = dict(zip(prepared, grids, strict=True))
        if kept is not None:
            write_landscapes(kept, list(found.values()), loss_of=_run_of(around))
        if journal is not None and not any(grid.lost_points for grid in grids):
            journal.remove()
    is_single = len(found) == 1 and (directions is None or isinstance(directions, str | Directions))
    return next(iter(found.values())) if is_single else found


def _run_of(around: Around) -> RunDir | None:
    """The run whose loss curve belongs to a landscape around it; None where no run is named."""
    if isinstance(around, RunDir):
        return around
    is_path = isinstance(around, (str, os.PathLike)) and not (Path(around) / METADATA).is_file()
    return RunDir(around) if is_path else None  # type: ignore[arg-type]  # just checked


def _journal(run_dir: RunDir | None, task: Task, *, resume: bool) -> AbstractContextManager[Journal | None]:
    """The journal of the task in its run dir, named after all that its losses depend on; none without."""
    check_type("resume", resume, bool)
    if run_dir is None:
        return nullcontext()
    plan = fingerprint(task)
    ensure_directory(run_dir.landscape_dir)
    return Journal(run_dir.landscape_journal(plan), plan, resume=resume)


def load_factory(name: str) -> Parts:
    """Call the function named `module:factory`; it returns (model, loss_fn, batches).

    The current directory is searched for the module too. Raises InvalidValueError for a name that leads
    nowhere, InvalidTypeError for a function that returns something else.
    """
    check_type("factory", name, str)
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidValueError(f"factory must be module:function, such as train:parts, got {name!r}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidValueError(f"factory {name!r} cannot be found: {error}") from error
    if not callable(factory):
        raise InvalidTypeError(f"{name} must be a function, got {type(factory).__name__}")
    parts = factory()
    if not isinstance(parts, tuple | list) or len(parts) != 3:
        raise InvalidTypeError(f"{name} must return (model, loss_fn, batches), got {type(parts).__name__}")
    return parts[0], parts[1], parts[2]


def _check(
    size: int, normalization: str | None, centring: str | None, seed: int, mode: str, workers: int | str
) -> None:
    """Raise for an argument out of its range."""
    check_int("size", size, low=MIN_SIZE, high=MAX_SIZE)
    check_int("seed", seed, low=-(2**63), high=2**63 - 1)
    check_choice("mode", mode, MODES)
    if normalization is not None:
        check_choice("normalization", normalization, NORMALIZATIONS)
    if centring is not None:
        check_choice("centring", centring, CENTRINGS)
    if workers != "auto":
        check_int("workers (or 'auto')", workers, low=0)


def _check_directions(
    model: Any,
    directions: Direction | Sequence[Direction] | None,
    around: Around,
    runs: Sequence[Around] | None,
    mode: str,
) -> list[Direction]:
    """The directions asked for, as a list; raises for those that cannot be had of what is given."""
    if directions is None:
        directions = "random" if runs is None and is_single(around) else "pca"
    asked = [directions] if isinstance(directions, str | Directions) else list(directions)
    if not asked:
        raise InvalidValueError(f"directions must name at least one of {DIRECTIONS}, got none")
    for direction in asked:
        if not isinstance(direction, Directions):
            check_choice("directions", direction, DIRECTIONS)
        if runs is not None:
            check_choice("directions with runs=", direction, OF_RUNS)
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


def _runner(workers: int | str) -> Runner:
    if workers == 0 or (workers == "auto" and not in_ray()):
        return run_here
    from distsummary.landscape.actor import run_on_ray

    return partial(run_on_ray, workers=None if workers == "auto" else int(workers))


def _teller(progress: bool | ProgressCallback) -> ProgressCallback | None:
    """What tells the progress: the caller's function, or one that writes a line to a terminal's stderr."""
    if callable(progress):
        return progress
    check_type("progress", progress, bool)
    if not progress:
        return None
    last = 0.0

    def tell(done: int, total: int, points_per_s: float) -> None:
        nonlocal last
        now = time.monotonic()
        if done < total and now - last < TELL_EVERY_S:
            return
        last = now
        end = "\n" if done == total else ""
        if sys.stderr.isatty():
            sys.stderr.write(f"\rlandscape: {done}/{total} points, {points_per_s:.0f} points/s{end}")
            sys.stderr.flush()
        elif done == total:
            _log.info("landscape: %d points, %.0f points/s", total, points_per_s)

    return tell
