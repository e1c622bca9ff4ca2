"""`distsummary landscape`: draws loss landscapes around a run, and says what came of each in a line."""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import distsummary as ds
from distsummary.base.checks import check_type
from distsummary.base.terminal import showing_progress
from distsummary.errors import DistSummaryError, InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.directions.checkpoint_sources import is_single
from distsummary.landscapes.output.describe import not_finite
from distsummary.landscapes.output.loss_grid import LossGrid
from distsummary.landscapes.run.progress import progress_callback
from distsummary.landscapes.summary_landscape import named_parts
from distsummary.rundir.run_dir import RunDir


def draw(options: argparse.Namespace) -> tuple[dict[str, LossGrid], str]:
    """Draw the landscapes that the options ask for; returns them by name, and what to print."""
    around = options.run_dir if options.around is None and options.runs is None else options.around
    usual = "pca" if options.runs is not None else "random" if is_single(around) else "pca,random"
    directions = usual if options.directions is None else options.directions
    plane = ds.Plane(
        size=options.size, parameters=options.parameters, centering=options.centering, seed=options.seed
    )
    compute = ds.Compute(
        workers="ray" if options.workers == "auto" else options.workers,
        address=options.address,
        gpus_per_worker=options.gpus_per_worker,
        engine=options.engine,
        memory=options.memory,
    )
    # Progress is shown here before and after the points are computed, which report their own.
    with ExitStack() as before_and_after:
        before_and_after.enter_context(showing_progress("landscape"))
        parts = load_factory(options.factory)
        show = progress_callback(True, plain=partial(print, file=sys.stderr, flush=True))

        def progress(now: ds.Progress) -> None:
            before_and_after.close()
            if show is not None:
                show(now)
            if now.is_done:
                before_and_after.enter_context(showing_progress("landscape"))

        grids = ds.landscape(
            **parts,
            around=around,
            runs=options.runs,
            directions=[name.strip() for name in directions.split(",")],
            plane=plane,
            refine=options.refine,
            compute=compute,
            run_dir=options.run_dir,
            resume=not options.fresh,
            progress=progress,
        )
    lines = [grid_line(name, grid) for name, grid in sorted(grids.items())]
    return grids, "\n".join([*lines, f"pictures and grids: {RunDir(options.run_dir).landscape_dir}"])


def grid_line(name: str, grid: LossGrid) -> str:
    """The facts of a landscape in one line."""
    facts = [f"{len(grid.x)} x {len(grid.y)} points by {grid.engine}"]
    if not grid.computed.all():
        facts.append(f"{grid.computed.sum():,} of {grid.computed.size:,} computed")
    if grid.kind == "line":
        start, end = grid.true_loss
        facts.append(f"loss {start:.4g} and {end:.4g} at its ends, barrier {grid.barrier:.4g}")
    else:
        facts.append(f"loss {grid.true_loss[-1]:.4g} at its centre")
    if bad := not_finite(grid):
        facts.append(f"{bad} of {grid.computed.sum()} computed losses not finite")
    if grid.explained_variance.size:
        facts.append("explained variance " + " + ".join(f"{share:.3f}" for share in grid.explained_variance))
    # Smaller ones are rounding errors.
    if (out := grid.residuals.max(initial=0.0)) > 0.005:
        facts.append(f"up to {out:.0%} of a checkpoint's offset from the centre lies outside the plane")
    return f"{name}: {', '.join(facts)}"


def load_factory(name: str) -> dict[str, Any]:
    """Call the factory `name` ("module:function"); returns a dict of arguments of `landscape`.

    The factory returns (model, loss_fn, batches), optionally with an `Evaluation` as the fourth value, or a
    dict of these with their names as keys, where `batch_loss` may take the place of `loss_fn`.

    The module is also searched for in the current directory, after the installed ones: no file there takes
    the place of a module of Python or of a library. Raises InvalidValueError if there is no such
    function, InvalidTypeError if it returns anything else, LandscapeError if it raises an error.
    """
    check_type("factory", name, str)
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidValueError(f"factory must be module:function, such as train:parts, got {name!r}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    with _raises_landscape_error(name):
        try:
            factory = getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            if not f"{module_name}.".startswith(f"{error.name}."):
                # The module itself was found, but one that it imports is missing.
                raise
            remedy = "leave .py out" if module_name.endswith(".py") else "name another"
            raise InvalidValueError(f"factory {name!r} cannot be found: {error}; {remedy}") from error
        except AttributeError as error:
            if error.name != attribute:
                raise
            raise InvalidValueError(f"factory {name!r} cannot be found: {error}; name another") from error
    if not callable(factory):
        raise InvalidTypeError(f"{name} must be a function, got {type(factory).__name__}")
    with _raises_landscape_error(name):
        parts = factory()
    found = named_parts(parts)
    if found is None:
        size = f" of {len(parts)}" if isinstance(parts, tuple | list) else ""
        raise InvalidTypeError(
            f"{name} must return (model, loss_fn, batches), optionally with an Evaluation as fourth value, "
            "or a dict with the keys model, batches, loss_fn or batch_loss, and optionally evaluation; "
            f"got {type(parts).__name__}{size}"
        )
    return found


@contextmanager
def _raises_landscape_error(name: str) -> Iterator[None]:
    """Turn an error in the user's module or function into a one-line LandscapeError that says where."""
    try:
        yield
    except DistSummaryError:
        raise
    except Exception as error:
        # Any error is possible, since it is the user's code. If the call itself raises, for example because
        # the function takes arguments, the traceback ends in this file, and no line is named. The line of a
        # syntax error is in the error's own fields.
        what = traceback.format_exception_only(error)[-1].strip()
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if at.filename == __file__ else f" (line {at.lineno} of {at.filename})"
        if isinstance(error, SyntaxError):
            place = f" (line {error.lineno} of {error.filename})"
        raise LandscapeError(f"the factory {name!r} raised {what}{place}; fix the error") from error
