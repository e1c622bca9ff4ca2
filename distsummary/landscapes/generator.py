"""`landscape`: loss landscapes around a run, a trajectory or the model itself."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np

from distsummary.base.checks import check_choice, check_type
from distsummary.base.guard import guarded_log
from distsummary.base.interrupts import handles_interrupts
from distsummary.base.publish import check_writable, refuse_unlike_files
from distsummary.base.terminal import doing
from distsummary.checkpoints.metadata import METADATA
from distsummary.checkpoints.trajectory import Trajectory
from distsummary.errors import (
    InvalidTypeError,
    InvalidValueError,
    LandscapeCancelled,
    NotADirectoryPathError,
)
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.checkpoint_sources import (
    AnyAround,
    Around,
    is_single,
    open_runs,
    open_source,
)
from distsummary.landscapes.directions.parameters import moving
from distsummary.landscapes.directions.planes import Prepared, Settings
from distsummary.landscapes.directions.prepare import Direction, find_eigenpairs, prepare, prepare_runs
from distsummary.landscapes.engines.engine import MODES, Task
from distsummary.landscapes.model.data import (
    Data,
    host_bytes,
    mindspore_batches,
    read_data,
    warn_unweighted,
)
from distsummary.landscapes.model.quantities import Evaluation, quantity_names, refuse_unfit
from distsummary.landscapes.model.repeatable_loader import numbers_kept
from distsummary.landscapes.model.user_code import check_loss
from distsummary.landscapes.output.describe import doubts
from distsummary.landscapes.output.loss_grid import LossGrid
from distsummary.landscapes.output.write import write_landscapes
from distsummary.landscapes.request import (
    Compute,
    Plane,
    check_refine,
    choose_engine,
    refuse_classes,
    refuse_unused,
    refuse_workers_of_cell,
    requested_directions,
)
from distsummary.landscapes.run.journal import Journal, leftover_journals
from distsummary.landscapes.run.landscape_identity import landscape_identity
from distsummary.landscapes.run.progress import ProgressCallback, progress_callback
from distsummary.landscapes.run.runner import InProcessWorkers, Workers, generate
from distsummary.landscapes.run.worker_failures import READING, user_errors
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import has_cluster

HOST_SHARE = 4  # batches may take 1 / HOST_SHARE of the memory: workers may hold copies
_log = guarded_log(__name__)


@overload
def landscape(
    model: Any,
    loss_fn: Any = None,
    batches: Iterable[Any] | Data | None = None,
    *,
    batch_loss: Callable[[Any, Any], Any] | None = None,
    around: Around = None,
    runs: Sequence[Around] | None = None,
    directions: Direction | None = None,
    plane: Plane | None = None,
    mode: str = "standard",
    evaluation: Evaluation | None = None,
    refine: float | None = None,
    compute: Compute | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: bool | ProgressCallback = True,
) -> LossGrid: ...


@overload
def landscape(
    model: Any,
    loss_fn: Any = None,
    batches: Iterable[Any] | Data | None = None,
    *,
    batch_loss: Callable[[Any, Any], Any] | None = None,
    around: Around = None,
    runs: Sequence[Around] | None = None,
    directions: list[Any] | tuple[Direction, ...],  # Any: a list[str] is no list[Direction]
    plane: Plane | None = None,
    mode: str = "standard",
    evaluation: Evaluation | None = None,
    refine: float | None = None,
    compute: Compute | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: bool | ProgressCallback = True,
) -> dict[str, LossGrid]: ...


@handles_interrupts()
def landscape(
    model: Any,
    loss_fn: Any = None,
    batches: Iterable[Any] | Data | None = None,
    *,
    batch_loss: Callable[[Any, Any], Any] | None = None,
    around: Around = None,
    runs: Sequence[Around] | None = None,
    directions: Direction | list[Any] | tuple[Direction, ...] | None = None,
    plane: Plane | None = None,
    mode: str = "standard",
    evaluation: Evaluation | None = None,
    refine: float | None = None,
    compute: Compute | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: bool | ProgressCallback = True,
) -> LossGrid | dict[str, LossGrid]:
    """Compute the loss on a plane through a trained model, or on several planes.

        grid = ds.landscape(model, torch.nn.CrossEntropyLoss(), test_batches, around="runs/digits")
        grid.plot("landscape.png")
        grids = ds.landscape(model, loss_fn, test_batches, around="runs/digits", directions=["pca", "random"])

    Parameters, buffers, gradients and flags of the model are restored bit for bit. So are those of modules
    that the loss function or a metric holds, except with mode="mindspore". Other state that a forward pass
    changes stays changed.
    The same arguments and engine give the same losses with any number of workers, bit for bit on equal
    hardware.

    Args:
        model: a torch module, a numpy model (`frameworks.numpy`) or, in this process alone, a Cell of
            MindSpore. With `around` or `runs`, the model's own
            values are used only where the checkpoints have none: buffers missing from them, such as running
            statistics, and parameters that are not varied.
        loss_fn: a criterion (module or function) for batches (inputs, targets). The loss of a batch is
            `loss_fn(model(inputs), targets)`, the mean over its rows. Batches are weighted by their number of
            rows, which is the length of the first array in each.
        batches: the data, the same for every point, held in memory if it fits (see `Evaluation.streamed`). Or
            several data sets by name, such as {"train": a, "test": b}: then `LossGrid.z` is the loss on the
            first data set, and all other quantities are in `LossGrid.quantities` under the name of their data
            set, such as "test/loss" and "train/accuracy".
        batch_loss: instead of `loss_fn`, for batches of any other kind: `batch_loss(model, batch)` returns
            the loss of a batch, or (loss, outputs) if metrics need the outputs.
        around: where the checkpoints come from. A run dir or ckpt_dir, whose checkpoints form the path; a
            .ckpt or .safetensors file, or a dict of values by name, which is a single checkpoint; a dict of
            such checkpoints by step or epoch, {500: "a.ckpt", ...}, forming the path; None: the model itself.
        runs: a list of runs or checkpoints, each as for `around`, for one plane through all of them; excludes
            `around`.
        directions: one of these, or a list of several:
            "pca": the PCA plane of the path, or of all checkpoints of `runs` (default if there are such).
            "random": two random directions (default without a path).
            "hessian": the eigenvectors of the Hessian's two algebraically largest eigenvalues, of unit length
                (torch models).
            "curvature": the eigenvectors of the two largest eigenvalues of the Kronecker factors that the
                optimizer `Plane.curvature` keeps; with "hessian" in one call, `LossGrid.hessian_angles` has
                the angles between the planes.
            "line": one row of points from the first checkpoint to the last; with two `runs`, from the last
                checkpoint of the first run to the last one of the second. See `LossGrid.barrier`.
            "triangle": the plane through the first, middle and last checkpoint, or through the last of three
                `runs`.
            `Directions`: your own; only the parameters that they name are varied.
        plane: how many points the plane has, what moves in it, and how its directions are made; see `Plane`.
        mode: "standard" (eval mode) or "mindspore", which reproduces MindSpore's numbers: training mode,
            MindSpore's directions, and only the first num_samples // batch size batches.
        evaluation: what else is computed at each point and how: metrics, standard errors, BN mode, precision,
            streamed data; see `Evaluation`.
        refine: evaluate a coarse lattice first, then only where interpolation is expected to be wrong by more
            than this share of the loss (or of a tenth of the median loss, if that is more), such as 0.01. The
            expected error is an estimate, not a bound, and considers only the loss. At all other points every
            quantity is interpolated; `LossGrid.computed` shows which points were evaluated.
        compute: in which processes the points are computed, and by which engine; see `Compute`.
        run_dir: the run dir to write to: event files for MindInsight and TensorBoard, .npz and .png, in its
            `landscape/`. Finished points are kept there in a journal until the landscape is complete.
        resume: resume the same landscape from its journal, if it was stopped; False starts again.
        progress: True shows progress in the terminal, notebook or log; False shows none; a callable is called
            with a `Progress`.

    Returns:
        One LossGrid, also for several data sets. If `directions` is a list (or a tuple), even of one: a dict
        with a LossGrid under each direction's name; your own `Directions` are called "given", "given[2]", ...
        If the trajectory has several intervals, there is a PCA grid for each, called "pca[first, last]".

    Raises:
        InvalidTypeError, InvalidValueError: bad arguments; checkpoints that are not the model's; a trajectory
            with several intervals, each with a PCA plane of its own, where `directions` is no list.
        LandscapeError: the checkpoints span no plane, or a worker failed (its error is the cause).
        ClusterError: the cluster does not answer, or this process is connected to another one.
        LandscapeCancelled: the call was interrupted (Ctrl-C). This KeyboardInterrupt holds the grids computed
            so far, which are also written to `run_dir` unless it has a complete landscape. The same call
            resumes the computation.
    """
    if batches is None:
        raise InvalidTypeError("batches is required: pass the data, a list of batches or a DataLoader")
    refuse_classes(model=model, loss_fn=loss_fn, batch_loss=batch_loss)
    check_choice("mode", mode, MODES)
    refine = check_refine(refine)
    check_type("resume", resume, bool)
    for field, given, kind in (
        ("plane", plane, Plane),
        ("evaluation", evaluation, Evaluation),
        ("compute", compute, Compute),
    ):
        check_type(field, given, kind, optional=True)
    plane, evaluation, compute = plane or Plane(), evaluation or Evaluation(), compute or Compute()
    refuse_workers_of_cell(model, compute)
    choice = choose_engine(model, compute)
    asked = requested_directions(directions, model, mode, around, runs, plane.curvature)
    refuse_unused(plane, mode, asked)
    report = progress_callback(progress)
    target = None if run_dir is None else output_run_dir(run_dir)
    is_torch = framework_of(model).name == "torch"
    refuse_unfit(evaluation, mode, is_torch=is_torch)

    # Arguments that are wrong by themselves are refused above. From here on checkpoints are opened, and later
    # the data is read, which may take long.
    if runs is None:
        sources = [open_source(model, around, plane.unit, plane.step_per_epoch)]
    else:
        sources = open_runs(model, runs)
    source = sources[0]
    intervals = len(set(source.intervals))
    is_several = isinstance(directions, list | tuple)
    if runs is None and "pca" in asked and intervals > 1 and not is_several:
        raise InvalidValueError(
            f"the trajectory has {intervals} intervals, each with a PCA plane of its own; pass "
            "directions=['pca'], which returns a grid for each"
        )
    moved = moving(model, mode, plane.parameters, plane.filter_axis)
    loss = check_loss(model, loss_fn, batch_loss)
    settings = Settings(
        size=plane.size,
        mode=mode,
        centering=plane.centering or "",
        normalization=plane.normalization or "",
        seed=plane.seed,
        unit=plane.unit or source.unit,
        step_per_epoch=source.step_per_epoch if plane.step_per_epoch is None else plane.step_per_epoch,
        filter_axes=moved.filter_axes,
        parameters=moved.patterns,
        bn_mode=evaluation.bn_mode,
    )
    samples = source.num_samples if mode == "mindspore" else None
    doing("reading the data")
    data, evaluation = read_batches(batches, evaluation, mode, samples)
    if target is not None:
        # A directory that cannot be written to is refused before any point is computed.
        for directory in (target.base, target.landscape_dir):
            check_writable(directory)

    with ExitStack() as stack:
        # Whatever draws random numbers during the call, the user's own continue as if it had not been made.
        stack.enter_context(numbers_kept())
        workers = stack.enter_context(_workers(model, compute))
        # MindSpore evaluates the loss and metrics in their current mode.
        if is_torch and mode != "mindspore":
            from distsummary.landscapes.model.torch_loan import at_rest

            stack.enter_context(at_rest(model, loss, dict(evaluation.metrics)))
        doing("finding the directions")
        if runs is None:
            first = next(iter(data.values())) if isinstance(data, Mapping) else data
            find = partial(find_eigenpairs, partial(workers.hessian, model, loss, first, mode=mode))
            prepared = prepare(source, moved, asked, settings, find, plane.curvature)
        else:
            prepared = prepare_runs(sources, moved, asked, settings)
        task = Task(
            model=model,
            loss_fn=loss,
            batches=data,
            planes=[item.plane for item in prepared.values()],
            mode=mode,
            evaluation=evaluation,
            choice=choice,
        )
        is_named = isinstance(around, (str, os.PathLike, Trajectory))
        grids = _evaluate(
            task,
            prepared,
            workers,
            report=report,
            refine=refine,
            run_dir=target,
            resume=resume,
            run=source.label if runs is None and is_named else "",
            loss_of=run_of(around),
        )
    return grids if is_several else next(iter(grids.values()))


@contextmanager
def _workers(model: Any, compute: Compute) -> Iterator[Workers]:
    """Where the points are computed: in this process, or in actors of a Ray cluster."""
    has_other = compute.address is not None or has_cluster()
    # A Cell is evaluated in this process, because it cannot be pickled.
    is_here = framework_of(model).name == "mindspore"
    if is_here or compute.workers == 0 or (compute.workers == "auto" and not has_other):
        yield InProcessWorkers()
        return
    from distsummary.landscapes.run.actor import RayWorkers, cluster

    count = None if isinstance(compute.workers, str) else compute.workers
    doing("starting workers")
    with cluster(compute.address):
        yield RayWorkers(count, gpus_each=compute.gpus_per_worker)


def _evaluate(
    task: Task,
    prepared: Mapping[str, Prepared],
    workers: Workers,
    *,
    report: ProgressCallback | None,
    refine: float | None,
    run_dir: RunDir | None,
    resume: bool,
    run: str,
    loss_of: RunDir | None,
) -> dict[str, LossGrid]:
    """Evaluate the points and write the grids to `run_dir`, with the loss curve of the run `loss_of`.

    Raises LandscapeCancelled, with the grids, if interrupted. `run`: the name of the run in the grids.
    """
    with ExitStack() as stack:
        journal = None
        if run_dir is not None:
            identity = landscape_identity(task, refine)
            path = run_dir.landscape_journal(identity)
            if others := leftover_journals(path, identity):
                _log.warning("%s", others)
            journal = stack.enter_context(Journal(path, identity, resume=resume))
        doing("choosing how to compute")
        planes = list(prepared.values())
        grids, was_cancelled = generate(task, planes, workers, report=report, journal=journal, refine=refine)

        # After an interrupt a grid is complete if every grid point and every checkpoint of its path has a
        # computed loss. A refined grid counts as partial, since refinement may not have been finished.
        names = tuple(task.batches) if isinstance(task.batches, Mapping) else ()
        found = {}
        for key, grid in zip(prepared, grids, strict=True):
            losses = np.concatenate((grid.path_loss, grid.true_loss))
            is_whole = not was_cancelled or bool(grid.computed.all() and not np.isnan(losses).any())
            is_partial = bool(grid.lost_points) or not is_whole
            model = type(task.model).__name__
            found[key] = replace(grid, data_sets=names, is_partial=is_partial, run=run, model=model)

        if doubt := doubts(found):
            _log.warning("%s", doubt)
        if run_dir is not None and journal is not None:
            try:
                write_landscapes(run_dir, list(found.values()), loss_of=loss_of, journal=journal.path)
            except KeyboardInterrupt as error:
                _log.warning(
                    "not all files of the landscape are written; its points are in %s: "
                    "the same call resumes from there",
                    journal.path,
                )
                raise LandscapeCancelled(found) from error
        if was_cancelled:
            raise LandscapeCancelled(found)
        # With lost points the journal stays: the same call computes only these again.
        if journal is not None and not any(grid.lost_points for grid in found.values()):
            journal.remove()
    return found


def read_batches(
    batches: Iterable[Any] | Data, evaluation: Evaluation, mode: str, samples: int | None
) -> tuple[Any, Evaluation]:
    """The data, as lists of batches or an iterable that is read repeatedly, and the final `Evaluation`.

    `samples`: the num_samples of the training, in MindSpore's mode; None in standard mode or if it had none.
    """
    if samples is not None and (evaluation.streamed or isinstance(batches, Mapping)):
        raise InvalidValueError(
            "mode='mindspore' takes num_samples rows of one list of batches, got streamed data or several "
            "data sets; use mode='standard'"
        )
    # before reading any data: this raises if two quantities have the same name
    quantity_names(evaluation, list(batches) if isinstance(batches, Mapping) else [""])
    # These two need lists of batches, so the data is not streamed even if it is large.
    needs_all = samples is not None or evaluation.bn_mode == "recompute"
    asked = bool(evaluation.streamed) if needs_all else evaluation.streamed
    with user_errors(READING, who="what gives the batches"):
        data, streamed = read_data(batches, streamed=asked, limit=host_bytes() // HOST_SHARE)
    if streamed and not evaluation.streamed:
        _log.info("the batches would take more than 1 / %d of the memory: they are streamed", HOST_SHARE)
    if mode == "standard":
        warn_unweighted(data)
    evaluation = replace(evaluation, streamed=streamed)
    return data if samples is None else mindspore_batches(data, samples), evaluation


def output_run_dir(path: str | os.PathLike[str]) -> RunDir:
    """The run dir to write to; raises if it is not a directory or its files cannot be replaced."""
    check_type("run_dir", path, (str, os.PathLike))
    run_dir = path if isinstance(path, RunDir) else RunDir(path)
    for directory in (run_dir.base, run_dir.landscape_dir):
        if os.path.exists(directory) and not os.path.isdir(directory):
            raise NotADirectoryPathError(
                f"run_dir must be a directory, but {directory} is not one; name another"
            )
    for suffix in (".npz", ".png"):
        for file in run_dir.landscape_dir.glob(f"landscape*{suffix}"):
            refuse_unlike_files(file)
    return run_dir


def run_of(around: AnyAround) -> RunDir | None:
    """The run that `around` names, whose loss curve belongs to the landscape; None if it names no run."""
    if isinstance(around, RunDir):
        return around
    if isinstance(around, Trajectory):
        run_dir = RunDir(around.ckpt_dir.parent)
        return run_dir if run_dir.ckpt_dir == around.ckpt_dir else None
    if not isinstance(around, (str, os.PathLike)) or is_single(around):
        return None
    return None if (Path(around) / METADATA).is_file() else RunDir(around)
