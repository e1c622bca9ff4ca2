"""`landscape`: the loss landscapes around what was trained: a run, a trajectory or the model itself."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distsummary.checkpoints.metadata import METADATA
from distsummary.checkpoints.trajectory import Trajectory
from distsummary.checks import check_type, renamed
from distsummary.errors import (
    InvalidTypeError,
    InvalidValueError,
    LandscapeCancelled,
    NotADirectoryPathError,
)
from distsummary.frameworks.base import framework_of
from distsummary.interrupts import heeds_interrupts
from distsummary.landscapes.directions.normalization import FilterAxisHook
from distsummary.landscapes.directions.parameters import Patterns, moving
from distsummary.landscapes.directions.planes import Prepared, Settings
from distsummary.landscapes.directions.prepare import Direction, find_eigenpairs, prepare, prepare_runs
from distsummary.landscapes.directions.recipe import Directions
from distsummary.landscapes.directions.sources import Around, Source, is_single, open_runs, open_source
from distsummary.landscapes.engines.worker import Task
from distsummary.landscapes.model.data import (
    Data,
    host_bytes,
    mindspore_batches,
    read_data,
    tell_unweighted,
)
from distsummary.landscapes.model.quantities import Evaluation, quantity_names, refuse_unfit
from distsummary.landscapes.model.repeatable_loader import numbers_kept
from distsummary.landscapes.model.user_code import check_loss
from distsummary.landscapes.output.describe import doubts
from distsummary.landscapes.output.grid import LossGrid
from distsummary.landscapes.output.write import write_landscapes
from distsummary.landscapes.request import (
    check_directions,
    check_numbers,
    choose_engine,
    refuse_classes,
    refuse_unused,
)
from distsummary.landscapes.run.failures import READING, told
from distsummary.landscapes.run.identity import held_modules, landscape_identity
from distsummary.landscapes.run.journal import Journal, leftover_journals
from distsummary.landscapes.run.progress import ProgressCallback, open_teller
from distsummary.landscapes.run.runner import Here, Workers, generate
from distsummary.publish import check_writable, refuse_unlike_files
from distsummary.run_dir import RunDir
from distsummary.topology import in_ray

HOST_SHARE = 4  # what batches may take of the memory: a quarter; workers may have copies
_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from distsummary.landscapes.run.actor import RayWorkers


@renamed(centring="centering")
@heeds_interrupts()
def landscape(
    model: Any,
    loss_fn: Any = None,
    batches: Iterable[Any] | Data | None = None,
    *,
    batch_loss: Callable[[Any, Any], Any] | None = None,
    around: Around = None,
    runs: Sequence[Around] | None = None,
    size: int = 51,
    directions: Direction | Sequence[Direction] | None = None,
    parameters: Patterns = None,
    normalization: str | None = None,
    filter_axis: FilterAxisHook = None,
    centering: str | None = None,
    seed: int = 0,
    mode: str = "standard",
    evaluation: Evaluation | None = None,
    refine: float | None = None,
    workers: int | str = "auto",
    gpus_per_worker: float | None = None,
    engine: str = "auto",
    memory: str | None = None,
    unit: str | None = None,
    step_per_epoch: int | None = None,
    output: RunDir | str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: bool | ProgressCallback = True,
) -> LossGrid | dict[str, LossGrid]:
    """Compute the loss on planes through a trained model.

        grid = ds.landscape(model, torch.nn.CrossEntropyLoss(), test_batches, around="runs/digits")
        grid.plot("landscape.png")

    Parameters, buffers, gradients and flags of the model are left bit for bit as they were, and so are those
    of modules that the loss function or a metric holds; what else a forward pass changes stays changed. The
    same arguments and engine give the same losses, bit for bit on equal hardware, for any number of workers.

    Args:
        model: a torch module or a numpy model (`frameworks.numpy`). With `around` or `runs` its own values
            count only where the checkpoints have none: buffers that they lack, such as running statistics,
            and what stays in a subspace.
        loss_fn: a criterion for batches (inputs, targets), a module or function: the loss of a batch is
            `loss_fn(model(inputs), targets)`, the mean over its rows. Batches count by their rows, those of
            the first array in each.
        batch_loss: for batches of any other kind, in the place of `loss_fn`: `batch_loss(model, batch)`
            returns the loss of a batch, or (loss, outputs) where metrics need the outputs.
        batches: the data, the same for every point, held in memory where it fits (see
            `Evaluation.streamed`); or several data sets by name, such as
            {"train": a, "test": b}: the first one's loss is `LossGrid.z`; all else stands in
            `LossGrid.quantities` under the name of its data set, as "test/loss" and "train/accuracy".
        around: whose checkpoints make the path: a run, its directory, its ckpt_dir or a trajectory; or one
            checkpoint: a .ckpt or .safetensors file, or values by name; or several of these by their numbers,
            {500: "checkpoint-500/model.safetensors", ...}, a path of them. None: the model as it is.
        runs: several of these, for one plane through all of them; with it no `around`.
        size: points along each side, 3 to 256.
        directions: a sequence asks for several of
            "pca": the plane of the path, default with `around`; with `runs` that of all their checkpoints.
            "random": default without a path.
            "hessian": the eigenvectors of the Hessian's two algebraically largest eigenvalues, of unit length
                (torch models).
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
            layers that the modules do not tell; of normalization "filter" alone.
        centering: of the PCA, "last" (default), "mean" (default with `runs`) or "mindspore".
        seed: of the random directions.
        mode: "standard" (eval mode) or "mindspore": MindSpore's numbers, so training mode, its directions,
            and num_samples // batch size of the batches.
        evaluation: what else is computed at each point and how: metrics, losses by class, standard errors,
            sums that stop early, BN mode, precision, streamed data; see `Evaluation`.
        refine: evaluate a coarse lattice first, then only where interpolation is expected to be wrong by more
            than this share of the loss (or of a tenth of the median loss, where that is more), such as 0.01:
            an estimate, no bound, and of the loss alone. Other points are interpolated, with all their
            quantities; `LossGrid.computed` tells which.
        workers: "auto" uses the Ray cluster this process is connected to, and this process alone without
            one; "ray" starts one where it is connected to none; 0 is this process; a number is that many Ray
            workers.
        gpus_per_worker: of Ray workers: a share of a GPU, such as 0.25 beside a training, or whole ones.
            Default: one for torch models, none for others, whose own code may use as many as it is given
            here. Where not as much is free, workers use CPUs: none waits for a training's GPUs; those that
            become free meanwhile are taken.
        engine: "auto" times what may be faster on this machine than the model's code at every point (recorded
            graphs, several points at once, other memory layouts), each held against it to 5e-6, if the
            landscape is long enough to pay for that. `LossGrid.engine` names the engine; given here it is
            taken without timing, and gives the same bits on equal hardware. "row" is the model's own code. A
            landscape that goes on keeps the engine it began with.
        memory: "inference" writes each point to the model's own parameters, with random directions drawn anew
            for each, so that hardly more memory than a forward pass is needed; the model's own values wait in
            a temporary file and are put back. Slower; same bits as "row".
        unit, step_per_epoch: what checkpoint numbers count, where the trajectory does not say.
        output: the run dir to write to: events for MindInsight and TensorBoard, .npz and .png, in its
            `landscape/`. Finished points are kept there in a journal until the landscape is complete.
        resume: go on with the journal of the same landscape, if it was stopped; False begins anew.
        progress: True tells in the terminal, notebook or log, False does not, a callable gets `Progress`.

    Returns:
        A LossGrid for one direction. A dict for a sequence of directions, by direction; and where the
        trajectory has several intervals, one PCA grid for each, as "pca[first, last]".

    Raises:
        InvalidTypeError, InvalidValueError: bad arguments; checkpoints that are not the model's.
        LandscapeError: the checkpoints span no plane, or a worker failed (its error is the cause).
        LandscapeCancelled: an interrupt (Ctrl-C); it is a KeyboardInterrupt and holds the grids as far as
            they are, which are written to `output` too, unless a complete one lies there. The next call goes
            on from there.
    """
    check_numbers(
        size=size, seed=seed, mode=mode, normalization=normalization, centering=centering, workers=workers,
        gpus_per_worker=gpus_per_worker, refine=refine, unit=unit, step_per_epoch=step_per_epoch,
    )  # fmt: skip
    check_type("evaluation", evaluation, Evaluation, optional=True)
    check_type("resume", resume, bool)
    refuse_classes(model=model, loss_fn=loss_fn, batch_loss=batch_loss)
    if batches is None:
        raise InvalidTypeError("batches is required: pass the data, a list of batches or a DataLoader")
    choice = choose_engine(model, engine, memory)
    request = check_directions(model, directions, around, runs, mode)
    refuse_unused(
        request, mode=mode, normalization=normalization, centering=centering, filter_axis=filter_axis
    )
    evaluation, tell, target = evaluation or Evaluation(), open_teller(progress), _target(output)
    refuse_unfit(evaluation, mode, is_torch=framework_of(model).name == "torch")
    sources = _sources(model, around, runs, unit, step_per_epoch)
    moved = moving(model, mode, parameters, filter_axis)
    loss = check_loss(model, loss_fn, batch_loss)
    settings = Settings(
        size=size,
        mode=mode,
        centering=centering or "",
        normalization=normalization or "",
        seed=seed,
        unit=unit or sources[0].unit,
        step_per_epoch=sources[0].step_per_epoch if step_per_epoch is None else step_per_epoch,
        filter_axes=moved.filter_axes,
        parameters=moved.patterns,
        bn_mode=evaluation.bn_mode,
    )
    data, evaluation = _data(batches, evaluation, mode, sources[0])
    if target is not None:
        check_writable(target.landscape_dir)
    with (
        numbers_kept(),
        _workers(workers, gpus_per_worker) as crew,
        _at_rest(model, loss, evaluation, mode),
    ):
        find = partial(find_eigenpairs, partial(crew.hessian, model, loss, _first(data), mode=mode))
        prepared = (
            prepare(sources[0], moved, request, settings, find)
            if runs is None
            else prepare_runs(sources, moved, request, settings)
        )
        task = Task(
            model=model,
            loss_fn=loss,
            batches=data,
            planes=[item.plane for item in prepared.values()],
            mode=mode,
            evaluation=evaluation,
            choice=choice,
        )
        found = _drawn(task, prepared, crew, tell, refine, target, _run_of(around), resume=resume)
    is_single = len(found) == 1 and (directions is None or isinstance(directions, str | Directions))
    return next(iter(found.values())) if is_single else found


def _sources(
    model: Any, around: Around, runs: Sequence[Around] | None, unit: str | None, step_per_epoch: int | None
) -> list[Source]:
    """The checkpoints of one run, or of several."""
    return [open_source(model, around, unit, step_per_epoch)] if runs is None else open_runs(model, runs)


def _drawn(
    task: Task,
    prepared: Mapping[str, Prepared],
    workers: Workers,
    tell: ProgressCallback | None,
    refine: float | None,
    target: RunDir | None,
    loss_of: RunDir | None,
    *,
    resume: bool,
) -> dict[str, LossGrid]:
    """Evaluate, and write what there is; raises LandscapeCancelled with it after an interrupt."""
    with _journal(target, task, refine, resume=resume) as journal:
        drawn = generate(task, list(prepared.values()), workers, tell=tell, journal=journal, refine=refine)
        grids = [_completed(grid, task, was_cancelled=drawn.was_cancelled) for grid in drawn.grids]
        found = dict(zip(prepared, grids, strict=True))
        if doubt := doubts(found):
            _log.warning("%s", doubt)
        if target is not None and journal is not None:
            try:
                write_landscapes(target, grids, loss_of=loss_of, journal=journal.path)
            except KeyboardInterrupt as error:
                _log.warning(
                    "not all files of it are written; its points are in %s: the same call goes on from there",
                    journal.path,
                )
                raise LandscapeCancelled(found) from error
        if drawn.was_cancelled:
            raise LandscapeCancelled(found)
        if journal is not None and not any(grid.lost_points for grid in grids):
            journal.remove()
    return found


def _completed(grid: LossGrid, task: Task, *, was_cancelled: bool) -> LossGrid:
    """The grid with the names of its data, and whether it lacks points.

    After an interrupt it lacks none where each has a loss of its own, those of the path too. Whether a
    refined one was at its end is not known, so it counts as lacking some.
    """
    path = np.concatenate((grid.path_loss, grid.true_loss))
    is_whole = not was_cancelled or bool(grid.computed.all() and not np.isnan(path).any())
    names = tuple(task.batches) if isinstance(task.batches, Mapping) else ()
    return replace(grid, data_sets=names, is_partial=bool(grid.lost_points) or not is_whole)


def _data(
    batches: Iterable[Any] | Data, evaluation: Evaluation, mode: str, source: Source
) -> tuple[Any, Evaluation]:
    """(the data of every point, how it is evaluated): lists of batches, or what is read again and again."""
    samples = source.num_samples if mode == "mindspore" else None
    if samples is not None and (evaluation.streamed or isinstance(batches, Mapping)):
        raise InvalidValueError(
            "mode='mindspore' takes num_samples rows of one list of batches, got streamed data or several; "
            "use mode='standard'"
        )
    # raises for two of one name, before anything is read
    quantity_names(evaluation, list(batches) if isinstance(batches, Mapping) else [""])
    needs_all = samples is not None or evaluation.bn_mode == "recompute"
    asked = bool(evaluation.streamed) if needs_all else evaluation.streamed
    with told(READING, who="what gives the batches"):
        data, streamed = read_data(batches, streamed=asked, limit=host_bytes() // HOST_SHARE)
    if streamed and not evaluation.streamed:
        _log.info("the batches would take more than 1 / %d of the memory: they are streamed", HOST_SHARE)
    if mode == "standard":
        tell_unweighted(data)
    evaluation = replace(evaluation, streamed=streamed)
    return data if samples is None else mindspore_batches(data, samples), evaluation


def _at_rest(model: Any, loss_fn: Any, evaluation: Evaluation, mode: str) -> AbstractContextManager[None]:
    """The modules that the loss function and the metrics hold, in eval mode; MindSpore's way as they are."""
    if mode == "mindspore" or framework_of(model).name != "torch":
        return nullcontext()
    from distsummary.landscapes.model.torch_loan import at_rest

    return at_rest(held_modules(model, loss_fn, dict(evaluation.metrics)))


def _target(output: RunDir | str | os.PathLike[str] | None) -> RunDir | None:
    """The run dir to write to; raises where it is no directory, or something stands where its files go."""
    if output is None:
        return None
    check_type("output", output, (RunDir, str, os.PathLike))
    if isinstance(output, str) and not output.strip():
        raise InvalidValueError(f"output must not be blank, got {output!r}; name a run dir")
    run_dir = output if isinstance(output, RunDir) else RunDir(output)
    for directory in (run_dir.base, run_dir.landscape_dir):
        if os.path.exists(directory) and not os.path.isdir(directory):
            raise NotADirectoryPathError(f"output must be a directory, {directory} is none; name another")
    for suffix in (".npz", ".png"):
        for path in run_dir.landscape_dir.glob(f"landscape*{suffix}"):
            refuse_unlike_files(path)
    return run_dir


def _first(data: Any) -> Any:
    """The first data set."""
    return next(iter(data.values())) if isinstance(data, Mapping) else data


def _run_of(around: Around) -> RunDir | None:
    """The run whose loss curve belongs to a landscape around it; None where no run is named."""
    if isinstance(around, RunDir):
        return around
    if isinstance(around, Trajectory):
        run_dir = RunDir(around.ckpt_dir.parent)
        return run_dir if run_dir.ckpt_dir == around.ckpt_dir else None
    if not isinstance(around, (str, os.PathLike)) or is_single(around):
        return None
    return None if (Path(around) / METADATA).is_file() else RunDir(around)


def _journal(
    run_dir: RunDir | None, task: Task, refine: float | None, *, resume: bool
) -> AbstractContextManager[Journal | None]:
    """The journal of the task in its run dir, named after all that its losses depend on; none without."""
    if run_dir is None:
        return nullcontext()
    identity = landscape_identity(task, refine)
    path = run_dir.landscape_journal(identity)
    if others := leftover_journals(path, identity):
        _log.warning("%s", others)
    return Journal(path, identity, resume=resume)


def _workers(workers: int | str, gpus_each: float | None) -> AbstractContextManager["Here | RayWorkers"]:
    if workers == 0 or (workers == "auto" and not in_ray()):
        return nullcontext(Here())
    from distsummary.landscapes.run.actor import RayWorkers

    return RayWorkers(None if isinstance(workers, str) else workers, gpus_each=gpus_each)
