"""`landscape`: the loss landscapes around what was trained: a run, a trajectory or the model itself."""

import importlib
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from distsummary.checkpoints.landscape_spec import MAX_SIZE, MIN_SIZE
from distsummary.checks import check_choice, check_int, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.landscape.directions import NORMALIZATIONS, Directions
from distsummary.landscape.engines import MODES, check_batches
from distsummary.landscape.grid import LossGrid
from distsummary.landscape.output import write_landscapes
from distsummary.landscape.pca import CENTRINGS
from distsummary.landscape.planes import Settings
from distsummary.landscape.runner import ProgressCallback, Runner, generate, run_here
from distsummary.landscape.sources import Around, Direction, mindspore_batches, open_source, prepare
from distsummary.landscape.worker import Task
from distsummary.run_dir import RunDir
from distsummary.topology import in_ray

__all__ = ["landscape", "load_factory"]

DIRECTIONS = ("pca", "random")
TELL_EVERY_S = 0.5
Parts: TypeAlias = tuple[Any, Any, Iterable[Any]]

_log = logging.getLogger(__name__)


def landscape(
    model: Any,
    loss_fn: Any,
    batches: Iterable[Any],
    *,
    around: Around = None,
    size: int = 21,
    directions: Direction | Sequence[Direction] | None = None,
    normalization: str | None = None,
    centring: str | None = None,
    seed: int = 0,
    mode: str = "standard",
    workers: int | str = "auto",
    unit: str | None = None,
    step_per_epoch: int | None = None,
    output: RunDir | str | os.PathLike[str] | None = None,
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
        around: whose checkpoints make the path: a run, its directory, its ckpt_dir or a trajectory. None: a
            random plane through the model as it is.
        size: points along each side, 3 to 256.
        directions: "pca" (the plane of the path, default with `around`), "random" (default without), or
            `Directions`; a sequence of them asks for several.
        normalization: "filter", "layer", "mindspore" or "none". Default: "filter" for random directions and
            those given, "none" for PCA.
        centring: of the PCA, "last" (default), "mean" or "mindspore".
        seed: of the random directions.
        mode: "standard" (eval mode) or "mindspore": MindSpore's numbers, so training mode, its directions,
            and num_samples // batch size of the batches.
        workers: "auto" uses the Ray cluster this process is connected to, and this process alone without
            one; 0 is this process; a number is that many Ray workers.
        unit, step_per_epoch: what checkpoint numbers count, where the trajectory does not say.
        output: the run dir to write to: events for MindInsight and TensorBoard, .npz and .png, in its
            `landscape/`.
        progress: True tells on stderr, False does not, a callable gets (points done, of all, per second).

    Returns:
        A LossGrid for one direction. A dict for a sequence of directions, by direction; and where the
        trajectory has several intervals, one PCA grid for each, as "pca[first, last]".

    Raises:
        InvalidTypeError, InvalidValueError: bad arguments; checkpoints that are not the model's.
        LandscapeError: the checkpoints span no plane, or a worker failed (its error is the cause).
    """
    request = _check(size, directions, normalization, centring, seed, mode, workers, around is not None)
    source = open_source(model, around, unit, step_per_epoch)
    settings = Settings(
        size=size,
        mode=mode,
        centring=centring or "",
        normalization=normalization or "",
        seed=seed,
        unit=source.unit,
        step_per_epoch=source.step_per_epoch,
    )
    prepared = prepare(model, source, request, settings)
    data = check_batches(batches)
    if mode == "mindspore" and source.num_samples is not None:
        data = mindspore_batches(data, source.num_samples)
    planes = [item.plane for item in prepared.values()]
    task = Task(model=model, loss_fn=loss_fn, batches=data, planes=planes, mode=mode)
    grids = generate(task, list(prepared.values()), _runner(workers), _teller(progress))
    found = dict(zip(prepared, grids, strict=True))
    if output is not None:
        write_landscapes(output if isinstance(output, RunDir) else RunDir(output), list(found.values()))
    is_single = len(found) == 1 and (directions is None or isinstance(directions, str | Directions))
    return next(iter(found.values())) if is_single else found


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
    size: int,
    directions: Direction | Sequence[Direction] | None,
    normalization: str | None,
    centring: str | None,
    seed: int,
    mode: str,
    workers: int | str,
    has_path: bool,
) -> list[Direction]:
    """The directions asked for, as a list; raises for any argument out of its range."""
    check_int("size", size, low=MIN_SIZE, high=MAX_SIZE)
    check_int("seed", seed, low=-(2**63), high=2**63 - 1)
    check_choice("mode", mode, MODES)
    if normalization is not None:
        check_choice("normalization", normalization, NORMALIZATIONS)
    if centring is not None:
        check_choice("centring", centring, CENTRINGS)
    if workers != "auto":
        check_int("workers (or 'auto')", workers, low=0)
    if directions is None:
        directions = "pca" if has_path else "random"
    asked = [directions] if isinstance(directions, str | Directions) else list(directions)
    if not asked:
        raise InvalidValueError(f"directions must name at least one of {DIRECTIONS}, got none")
    for direction in asked:
        if not isinstance(direction, Directions):
            check_choice("directions", direction, DIRECTIONS)
    if "pca" in asked and not has_path:
        raise InvalidValueError(
            "directions='pca' needs around= with a run or trajectory; use directions='random' without one"
        )
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
