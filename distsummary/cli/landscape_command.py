"""`distsummary landscape`: draws loss landscapes around a run, and says what came of each in a line."""

import argparse
import sys
from contextlib import ExitStack
from functools import partial

import distsummary as ds
from distsummary.base.terminal import showing_progress
from distsummary.cli.factory import load_factory
from distsummary.landscapes.directions.checkpoint_sources import is_single
from distsummary.landscapes.output.describe import not_finite
from distsummary.landscapes.output.loss_grid import LossGrid
from distsummary.landscapes.run.progress import progress_callback
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
