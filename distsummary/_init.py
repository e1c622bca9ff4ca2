"""ds.init: finds the rank and the run directory, and returns a Run with its collector."""

import logging
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from distsummary.aggregate.joining import coordinator
from distsummary.aggregate.merge import refuse_foreign_files
from distsummary.aggregate.on_alert import OnAlert, check_on_alert
from distsummary.base.checks import check_choice, check_int, check_type, suggestion
from distsummary.base.processes import in_ray
from distsummary.base.terminal import announced
from distsummary.collect.collector import SummaryCollector
from distsummary.collect.norm_source import check_norms, refuse_unmeasured
from distsummary.collect.options import rank_formats
from distsummary.collect.plan import dealing_group
from distsummary.collect.rank_checks import check_checksums
from distsummary.collect.record_options import Record
from distsummary.diagnosis.diagnose import Diagnose
from distsummary.diagnosis.verdict import NAN
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.records import DIALECTS, TENSORBOARD
from distsummary.frameworks.base import framework_of
from distsummary.rundir import topology as topologies
from distsummary.rundir.claims import OpenTraining, next_run_dir, refuse_reuse
from distsummary.rundir.identity import as_recorded, without_identity
from distsummary.rundir.run_dir import TIME, RunDir, dated_run_dir, refuse_temporary
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import Callback, RunContext, guarded
from distsummary.training.finite import IGNORE, WARN
from distsummary.training.resume import Resumed
from distsummary.training.run import Run

logger = logging.getLogger(__name__)


def init(
    run_dir: str | PathLike[str],
    *,
    watch: Any = None,
    optimizer: Any = None,
    loss_fn: Any = None,
    callbacks: Callback | Sequence[Callback] | None = None,
    role: str = "train",
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Mapping[str, tuple[int, int]] | None = None,
    resume: Resumed | None = None,
    initial_step: int = 0,
    initial_epoch: int = 0,
    exists: str = "refuse",
    histograms: bool | int | str = True,
    gradients: bool | int | str = False,
    norms: bool | str = False,
    checksums: bool | int = True,
    on_nan: str = WARN,
    system_metrics: bool = True,
    aggregate: bool = True,
    quiet: bool = False,
    strict: bool = False,
    config: object = None,
    on_alert: Callable[[Mapping[str, Any]], object] | str | None = None,
    record: Record | None = None,
    diagnose: Diagnose | None = None,
    **collector_options: Any,
) -> Run:
    """Join or start the run in `run_dir` and return the Run that records this rank.

    Example:
        >>> import distsummary as ds
        >>> run = ds.init("runs/a", watch=model)
        >>> for x, y in run.steps(loader):
        ...     loss = train_step(x, y)
        ...     run.log(loss=loss)
        >>> run.close()

    Args:
        run_dir: the directory of the whole run, the same for all ranks. `~` is expanded. "runs/{time}" is a
            new directory for each job, named after the time of its start; several ranks then need a launcher
            that gives them a job id (ds.launch, torchrun with --standalone or --rdzv-id, SLURM).
        watch: the model whose parameters get histograms; a distributed model also provides `mesh`.
        optimizer: provides the learning rate. Like `loss_fn`, it is also recorded in the lineage, the summary
            of a training's settings and results that MindInsight lists.
        callbacks: one or several, called before the collector that `init` creates.
        role: "train" or "eval"; an eval job replaces nothing that a training recorded in the run dir.
        rank, world_size: by default found from Ray Train, torch.distributed or the environment.
        mesh: the device mesh: axis name -> (coordinate of this rank, size); by default taken from `watch`.
        resume: what `ds.resume` returned when it loaded a checkpoint: the training continues at its step and
            epoch.
        initial_step, initial_epoch: the same without `ds.resume`: how many steps and epochs were completed in
            the checkpoint from which the training resumes, >= 0. Merging keeps what earlier attempts (starts)
            recorded up to that step.
        exists: what a training from step 0 does if `run_dir` holds a finished training. "refuse": its first
            step raises RunDirError. "attempt": it becomes the next attempt, which viewers show instead of the
            finished one. "new": it goes to the next free directory, such as runs/a-2. A training that failed
            or was interrupted always gets a next attempt. A run that only evaluates is not an attempt: its
            metrics are recorded at the last step of the training.
        histograms: which of those parameters of `watch` that require a gradient get histograms. True: first
            those of two or more dimensions (weights), then the others (biases), up to 200 parameters and 16
            million elements in all (the log says how many are left out), at step 1 and at 1, 2, 4, 8 ...
            times `collect_freq` (n * `collect_freq` for n million elements). Text, such as "conv" or
            ".*bias": those whose names begin with a match of this regular expression, at step 1 and every
            `collect_freq` steps. n: the first n, at the same steps. False: none. True means none with
            `keep_default_action=False`, and the first five with `mindspore_compat=True`; the key
            `histogram_regular` of `collect_specified_data` replaces True.
        gradients: which parameters get histograms of their gradients, as `<name>/gradient`: True, text or n,
            as for `histograms` and at the same steps; False: none. They are the gradients that the optimizer
            uses: accumulated, unscaled and clipped, if the loop does that. Needs a torch model.
        norms: True: at every step, the norm and the number of NaN and infinite elements of the weight and the
            gradient of every parameter of `watch`, and norm and maximum of the update; see docs/recording.md.
            "float32" is the same as True; "float64" is exact to 1e-12 instead of 5e-6, for more time.
        checksums: whether several ranks find out when their copies of a parameter are no longer equal. True:
            the parameters of `watch` are summed up, bit by bit, at every k-th step, where k is chosen so that
            it costs less than 0.3 % of a rank's time. n: at every n-th step. False: never, nor are batches
            compared. See docs/ranks.md.
        on_nan: "warn", "stop" or "ignore" if a logged number (with `norms`, a parameter or its gradient) is
            NaN or infinite; see Run.
        system_metrics: every 10 s, record what the process, its node and its GPU use, as `system/...`.
        aggregate: True: while several ranks train, an aggregator writes the merged run: an actor under Ray,
            elsewhere a child process that rank 0 starts and that ends with the run. False: there is none;
            after the training, `distsummary merge` writes the merged run. The same on all ranks.
        quiet: False: when the training begins, rank 0 prints a line to stderr that says where the run is and
            how to open it. True: it does not.
        strict: whether values that cannot be recorded raise, instead of being dropped, counted in
            `run.health()` and named once in the log.
        config: the settings of the training: a dict, dataclass, argparse.Namespace, a configuration of
            OmegaConf or pydantic, or an object with attributes; with values of any kind. Nested names are
            joined by dots. They are shown in MindInsight's lineage and on TensorBoard's page HPARAMS, and
            stored in run.json; values that look like secrets are replaced by ***.
        on_alert: what rank 0 does with an alert, such as that a rank is slow, stuck or sick: a function that
            gets the alert in a thread of its own, or a URL to which it is posted, in the format of Slack,
            Discord or Teams if it is one of theirs, else as JSON. Alerts of a low level are left out, see
            `diagnose`; docs/ranks.md lists the levels and the fields of an alert. Errors are counted.
        record: options of recording, see `ds.Record`. diagnose: options of diagnosis, see `ds.Diagnose`.
        collector_options: arguments of SummaryCollector, such as collect_freq=10 or formats=("tensorboard",).

    Raises:
        RunDirError: the directory cannot be written, or holds event files in the place where the merged run
            of several ranks is written, or another job is training in it. At the first step: a run of this
            process is still open in it. WorldMismatchError: the ranks disagree on the world size.
        InvalidTypeError, InvalidValueError: an argument is wrong.
    """
    others = callback_list(callbacks)
    check_type("run_dir", run_dir, (str, PathLike))
    refuse_temporary("run_dir", run_dir)
    check_choice("exists", exists, ("refuse", "attempt", "new"))
    check_options(collector_options)
    check_watch(watch)
    if check_norms(norms) is not None:
        refuse_unmeasured(watch)
    check_checksums(checksums)
    check_type("aggregate", aggregate, bool)
    check_type("quiet", quiet, bool)
    check_on_alert(on_alert, aggregate=aggregate)
    check_objects(optimizer=optimizer, loss_fn=loss_fn)
    initial_step, initial_epoch = position(resume, initial_step, initial_epoch)
    check_type("record", record, Record, optional=True)
    check_type("diagnose", diagnose, Diagnose, optional=True)
    if on_nan == IGNORE:
        known = diagnose or Diagnose()
        diagnose = replace(known, mute=(*known.mute, NAN))
    found = framework_of(watch).mesh(watch) if mesh is None and watch is not None else mesh
    topology = topologies.detect(role=role, rank=rank, world_size=world_size, mesh=found)
    if mesh is not None:
        dealing_group(topology)  # raises if it does not fit into the world
    if TIME not in fspath(run_dir):
        directory = RunDir(run_dir).create()
    elif topology.world_size == 1:
        directory = dated_run_dir(run_dir, "")
    elif job := topologies.job_name():
        directory = dated_run_dir(run_dir, job)
    else:
        raise InvalidValueError(
            f"run_dir must not hold {TIME} here, got {fspath(run_dir)!r}: the {topology.world_size} ranks "
            "need a job id from a launcher to agree on the time, but found none; start them by "
            "ds.launch, by torchrun with --standalone or --rdzv-id, or under SLURM, or name the directory"
        )
    if exists == "new" and role == "train" and initial_step == 0:
        given, directory = directory, next_run_dir(directory, topology)
        if directory.base != given.base and topology.rank == 0:
            logger.warning("%s is taken; this training is recorded in %s", given.base, directory.base)
    options = record or Record()
    topology = as_recorded(directory, topology)
    refuse_reuse(directory, topology, refuse_finished=False)
    if options.private:
        directory.create().make_private()
    if not options.identity:
        topology = without_identity(directory, topology)
    specified = collector_options.get("collect_specified_data")
    if options.images is None and not (isinstance(specified, Mapping) and "collect_input_data" in specified):
        options = replace(options, images=False)  # pictures of the data are recorded on request alone
    merged = directory.writer_dir(role, 0, 1)
    if topology.world_size > 1 and merged.is_dir():
        refuse_foreign_files(merged)  # fail now, not after the training
    collector = SummaryCollector(
        str(directory.base),
        topology=topology,
        coordinator=coordinator(directory, topology, aggregate=aggregate),
        exists="attempt" if exists == "attempt" else "refuse",
        histograms=histograms,
        gradients=gradients,
        norms=norms,
        checksums=checksums,
        config=config,
        system_metrics=system_metrics,
        record=options,
        diagnose=diagnose,
        **collector_options,
    )
    collector.refuse_unfit(watch, topology)
    alerted: list[Callback] = []  # left after the collector, whose end may make the last alerts
    if on_alert is not None and role == "train" and topology.rank == 0:
        alerted.append(OnAlert(directory, on_alert, collector.count_failure))
    formats = collector_options.get("formats")
    reported = (
        []
        if quiet or topology.rank
        else [Announcement(announcement(directory, topology, formats, is_merged=aggregate))]
    )
    caller = sys._getframe(1)
    place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    own = OpenTraining(directory, topology, place, resumes=initial_step > 0)
    return Run(
        callbacks=[Claim(own), *others, *alerted, collector, *reported],
        network=watch,
        optimizer=optimizer,
        loss_fn=loss_fn,
        topology=topology,
        initial_step=initial_step,
        initial_epoch=initial_epoch,
        on_nan=on_nan,
        strict=strict,
    )


@guarded
class Claim(Callback):
    """Refuses a training while another one of this process is open; left last, when the files are closed."""

    def __init__(self, own: OpenTraining) -> None:
        self._own = own

    def on_train_begin(self, run_context: RunContext) -> None:
        """Raise RunDirError if another one is open."""
        self._own.begin()

    def __exit__(self, *error: object) -> None:
        """Make way for the next one."""
        self._own.end()


@guarded
class Announcement(Callback):
    """Prints a line to stderr when the training begins: by default, logging would not show it."""

    def __init__(self, line: str) -> None:
        self._line = line

    def on_train_begin(self, run_context: RunContext) -> None:
        """Print it."""
        announced(self._line)


def announcement(
    directory: RunDir, topology: Topology, formats: Sequence[str] | None, *, is_merged: bool
) -> str:
    """Where a run is, which files its ranks write, and the commands that show it and merge its ranks.

    `is_merged`: whether an aggregator writes the merged run.
    """
    base, here = directory.base, Path.cwd()
    if base.is_relative_to(here) and not in_ray():  # Ray's workers may run elsewhere
        base = base.relative_to(here)
    parent = shlex.quote(str(base.parent))
    show = f"tensorboard --logdir {parent}"
    if topology.world_size == 1 and formats is not None and TENSORBOARD not in formats:
        show = f"mindinsight start --summary-base-dir {parent}"
    own = rank_formats(formats, topology.world_size)
    what = f"files: {', '.join(own)}"
    if topology.world_size > 1:
        merged = "" if own == DIALECTS else f"; of the merged run: {', '.join(DIALECTS)}"
        what = f"{topology.world_size} ranks; their {what}{merged}"
    if topology.world_size > 1 and not is_merged:
        show += f"; after the training: distsummary merge {shlex.quote(str(base))}"
    return f"distsummary: recording {base} ({what}); {show}"


def check_options(options: Mapping[str, object]) -> None:
    """Raise InvalidTypeError for names that are not arguments of SummaryCollector, or that `init` sets."""
    own = signature(init).parameters.keys() - {"collector_options"}
    known = signature(SummaryCollector).parameters.keys() - {"summary_dir", "topology", "coordinator"} | own
    for name in options.keys() - known:
        raise InvalidTypeError(f"ds.init has no argument {name!r}; {suggestion(name, known)}")


def position(resume: Resumed | None, initial_step: int, initial_epoch: int) -> tuple[int, int]:
    """The step and epoch at which the training begins, from `resume` or from the two numbers."""
    check_int("initial_step", initial_step, low=0)
    check_int("initial_epoch", initial_epoch, low=0)
    if resume is None:
        return initial_step, initial_epoch
    if not isinstance(resume, Resumed):
        raise InvalidTypeError(
            "resume must be what ds.resume(checkpoint, model, optimizer) returned, got "
            f"{resume!r} of type {type(resume).__name__}; call ds.resume, or pass initial_step= and "
            "initial_epoch="
        )
    if initial_step or initial_epoch:
        raise InvalidValueError(
            f"resume= has the step {resume.step} and the epoch {resume.epoch}, got also initial_step="
            f"{initial_step!r} and initial_epoch={initial_epoch!r}; leave these out"
        )
    return resume.step, resume.epoch


def check_objects(**given: object) -> None:
    """Raise InvalidTypeError for names, numbers and classes in the place of an optimizer or loss function."""
    for field, value in given.items():
        if isinstance(value, (str, bytes, int, float, type)):
            raise InvalidTypeError(
                f"{field} must be the object that the training uses, got {value!r} of type "
                f"{type(value).__name__}; pass that object, or leave {field} out"
            )


def check_watch(watch: object) -> None:
    """Raise InvalidTypeError if `watch` is neither None nor a model."""
    if watch is None:
        return
    try:
        framework_of(watch).named_parameters(watch)
    except InvalidTypeError as error:
        raise InvalidTypeError(
            "watch must be a torch.nn.Module, or an object with parameters: dict[str, ndarray], got "
            f"{type(watch).__name__}; put several models into one, such as a torch.nn.ModuleDict"
        ) from error


def callback_list(callbacks: Callback | Sequence[Callback] | None) -> list[Callback]:
    """The user's callbacks as a list; raises InvalidValueError for a collector, which `init` creates."""
    check_type("callbacks", callbacks, (Callback, Sequence), optional=True)
    given = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
    if any(isinstance(callback, SummaryCollector) for callback in given):
        raise InvalidValueError(
            "callbacks must not hold a SummaryCollector, init makes one; pass its arguments to init, such as "
            "collect_freq=10, or use your own with ds.Run(callbacks=[...])"
        )
    return given
