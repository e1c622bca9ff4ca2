"""ds.init: finds the rank and the run directory, and returns a Run with its collector."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

from distsummary.aggregate.joining import admitted, coordinator
from distsummary.base.checks import check_choice, check_int, check_type, suggests
from distsummary.base.columns import quoted
from distsummary.base.guard import guarded_log
from distsummary.base.processes import in_ray
from distsummary.base.terminal import announced
from distsummary.collect.collector import CollectorCallback
from distsummary.collect.config import read_config
from distsummary.collect.options import check_summary_dir
from distsummary.collect.plan import dealing_group
from distsummary.collect.record_options import Record
from distsummary.collect.run_settings import RunSettings, settings_of
from distsummary.diagnosis.diagnose import Diagnose
from distsummary.diagnosis.verdict import NAN
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.records import DIALECTS, TENSORBOARD
from distsummary.frameworks.base import framework_of
from distsummary.rundir import topology as topologies
from distsummary.rundir.admission import AUTO, ON_EXISTING
from distsummary.rundir.run_dir import TIME, RunDir, dated_run_dir, refuse_temporary
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import Callback, RunContext, guarded_hooks
from distsummary.training.finite import IGNORE, WARN
from distsummary.training.recording import weakly
from distsummary.training.resumed import Resumed
from distsummary.training.run import Run

logger = guarded_log(__name__)


@suggests
def init(
    run_dir: str | PathLike[str],
    *,
    watch: Any = None,
    optimizer: Any = None,
    loss_fn: Any = None,
    config: object = None,
    name: str | None = None,
    group: str | None = None,
    tags: str | Sequence[str] | None = None,
    notes: str | None = None,
    define: Mapping[str, Mapping[str, str | None]] | None = None,
    histograms: str | Literal[False] = False,
    gradients: str | Literal[False] = False,
    tensors: str | Literal[False] = False,
    graph: str | Literal[False] = False,
    norms: bool = False,
    checksums: bool | int = True,
    collect_freq: int = 10,
    system_metrics: bool = True,
    record: Record | None = None,
    diagnose: Diagnose | None = None,
    on_alert: Callable[[Mapping[str, Any]], object] | str | None = None,
    on_nan: str = WARN,
    callbacks: Callback | Sequence[Callback] | None = None,
    role: str = "train",
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Mapping[str, tuple[int, int]] | None = None,
    resume: Resumed | None = None,
    initial_step: int = 0,
    initial_epoch: int = 0,
    on_existing: str = AUTO,
    aggregate: bool = True,
    quiet: bool = False,
    strict: bool = False,
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
        watch: the model. Of it is recorded what the next arguments name; a distributed model also provides
            `mesh`, and copies of its parameters are compared between ranks, see `checksums`.
        optimizer: provides the learning rate. Like `loss_fn`, it is also recorded in the lineage, the summary
            of a training's settings and results that MindInsight lists.
        config: the settings of the training: a dict, dataclass, argparse.Namespace, a configuration of
            OmegaConf or pydantic, or an object with attributes; with values of any kind. Nested names are
            joined by dots. They are shown in MindInsight's lineage and on TensorBoard's page HPARAMS, and
            stored in run.json; values that look like secrets are replaced by ***.
        name, group, tags, notes: what people call the run, in the table of runs and on its page: a name (by
            default that of its directory) and the group that it belongs to, such as a sweep (each one line of
            up to 200 characters), up to 100 tags (a list of texts of up to 100 characters), and up to 20,000
            characters of notes. Those of rank 0 are kept in run.json; an attempt that leaves one out keeps
            the one before.
        define: what the values of tags mean, as for `Run.define`: a tag or glob -> a dict with "across",
            "best" and "unit", such as {"tokens": {"across": "sum", "unit": "tokens/s"}}.
        histograms: which parameters of `watch` that require a gradient get histograms: those whose names
            begin with a match of this regular expression, such as ".*" (all), "conv" or ".*bias", at step 1
            and every `collect_freq` steps. False: none. Counting takes about 5 ms of CPU for a million
            elements; `Record.max_histograms` limits their number.
        gradients: which parameters get histograms of their gradients, as `zz_gradient/<name>`: as for
            `histograms`, and at the same steps. They are the gradients that the optimizer uses: accumulated,
            unscaled and clipped, if the loop does that. Needs a torch model.
        tensors: which parameters are recorded whole, as for `histograms`, at about 20 steps or every
            `Record.tensor_freq` steps.
        graph: the graph of the model, which rank 0 records after the first step. "modules": the tree of its
            modules, with the shapes between them; "ops": the operations of the first forward pass; False:
            none.
        norms: whether, at every step, the norm and the number of NaN and infinite elements of the weight and
            the gradient of every parameter of `watch` are recorded, and norm and maximum of the update; see
            docs/recording.md.
        checksums: whether several ranks find out when their copies of a parameter are no longer equal. True:
            the parameters of `watch` are summed up, bit by bit, at every k-th step, where k is chosen so that
            it costs less than 0.3 % of a rank's time. n: at every n-th step. False: never, nor are batches
            compared. See docs/ranks.md.
        collect_freq: steps between records of the learning rate, histograms and images, >= 1.
        system_metrics: every 10 s, record what the process, its node and its GPU use, as `zz_system/...`.
        record: what else is recorded, and how it is written; see `ds.Record`.
        diagnose: which alerts are printed and passed on; see `ds.Diagnose`.
        on_alert: what rank 0 does with an alert, such as that a rank is slow, stuck or sick: a function that
            gets the alert in a thread of its own, or a URL to which it is posted, in the format of Slack,
            Discord or Teams if it is one of theirs, else as JSON. Alerts of a low level are left out, see
            `diagnose`; docs/ranks.md lists the levels and the fields of an alert. Errors are counted.
        on_nan: "warn", "stop" or "ignore" if a logged number (with `norms`, a parameter or its gradient) is
            NaN or infinite; see Run.
        callbacks: one or several, called before the collector that `init` creates.
        role: "train" or "eval". An eval job only evaluates: its metrics belong to the last step of the
            training that `run_dir` holds or, while that training runs, are recorded in `eval/` inside of it.
        rank, world_size: by default found from Ray Train, torch.distributed or the environment.
        mesh: the device mesh: axis name -> (coordinate of this rank, size); by default taken from `watch`.
        resume: what `ds.resume` returned when it loaded a checkpoint: the training continues at its step and
            epoch.
        initial_step, initial_epoch: the same without `ds.resume`: how many steps and epochs were completed in
            the checkpoint from which the training resumes, >= 0. Merging keeps what earlier attempts (starts)
            recorded up to that step.
        on_existing: where a training from step 0 goes if `run_dir` holds a training. "auto": after a finished
            one to the next free directory, such as runs/a-2, which is reported; after one that failed, was
            interrupted or is restarted by its launcher, it becomes the next attempt, which viewers show
            instead. "new": to the next free directory in any case, unless its launcher restarts it.
            "attempt": it becomes the next attempt in any case. "error": RunDirError. A resumed training is
            always the next attempt. `Run.dir` is the directory that was chosen.
        aggregate: True: while several ranks train, an aggregator writes the merged run: an actor under Ray,
            elsewhere a child process that rank 0 starts and that ends with the run. False: there is none;
            after the training, `distsummary merge` writes the merged run. The same on all ranks.
        quiet: False: when the training begins, rank 0 prints a line to stderr that says where the run is and
            how to open it. True: it does not.
        strict: whether values that cannot be recorded raise, instead of being dropped, counted in
            `run.health()` and named once in the log.

    Raises:
        RunDirError: the directory cannot be written, or holds event files in the place where the merged run
            of several ranks is written, or another job is training in it, or a run of this process is still
            open in it; or see `on_existing`. WorldMismatchError: the ranks disagree on the world size.
        InvalidTypeError, InvalidValueError: an argument is wrong.
    """
    others = callback_list(callbacks)
    check_type("run_dir", run_dir, (str, PathLike))
    check_choice("on_existing", on_existing, ON_EXISTING)
    check_watch(watch)
    check_type("aggregate", aggregate, bool)
    check_type("quiet", quiet, bool)
    if on_alert is not None:
        from distsummary.diagnosis.alert_sender import check_on_alert

        check_on_alert(on_alert, aggregate=aggregate)
    check_objects(optimizer=optimizer, loss_fn=loss_fn)
    initial_step, initial_epoch = position(resume, initial_step, initial_epoch)
    # A distributed model knows its mesh; a mesh that is given has priority.
    found = framework_of(watch).mesh(watch) if mesh is None and watch is not None else mesh
    topology = topologies.detect(role=role, rank=rank, world_size=world_size, mesh=found)
    if mesh is not None:
        # This raises if the mesh does not fit into the world.
        dealing_group(topology)
    settings = settings_of(
        record,
        muted(diagnose, NAN) if on_nan == IGNORE else diagnose,
        histograms=histograms,
        gradients=gradients,
        tensors=tensors,
        graph=graph,
        norms=norms,
        checksums=checksums,
        collect_freq=collect_freq,
        system_metrics=system_metrics,
        config=read_config(config, is_quiet=topology.rank > 0),
        labels=labels_of(name=name, group=group, tags=tags, notes=notes),
        define={} if define is None else definitions_of(define),
    )
    settings.refuse_unfit(watch, topology)
    # Another training that finds this run open in its process can then name the line that opened it.
    caller = sys._getframe(2)  # behind `suggests`
    place = f"the run made at {caller.f_code.co_filename}:{caller.f_lineno}"
    make = partial(directory_of, job=topologies.job_name())
    admission = admitted(
        run_dir,
        topology,
        make,
        on_existing=on_existing,
        resumes=initial_step > 0,
        door=place,
        is_private=settings.record.private,
        aggregate=aggregate,
    )
    directory, topology = admission.run_dir, admission.topology
    if settings.record.private:
        directory.create().make_private()
    merged = directory.writer_dir(role, 0, 1)
    if topology.world_size > 1 and merged.is_dir():
        from distsummary.aggregate.merged_files import refuse_foreign_files

        # Refused now, and not by the merge after the training.
        refuse_foreign_files(merged)
    joined = coordinator(directory, topology, aggregate=aggregate, ship_bytes=settings.record.ship_bytes)
    collector = CollectorCallback(
        directory,
        settings,
        topology=topology,
        coordinate=lambda place: joined,
        admission=admission,
    )
    # These are left after the collector, whose end may make the last alerts.
    alerted: list[Callback] = []
    if on_alert is not None and role == "train" and topology.rank == 0:
        from distsummary.aggregate.on_alert import OnAlert

        alerted.append(OnAlert(directory, on_alert, collector.count_failure))
    reported: list[Callback] = []
    if not quiet and topology.rank == 0:
        reported.append(Announcement(announcement(directory, topology, settings, is_merged=aggregate)))
    run = Run(
        callbacks=[*others, *alerted, collector, *reported],
        network=watch,
        optimizer=optimizer,
        loss_fn=loss_fn,
        topology=topology,
        initial_step=initial_step,
        initial_epoch=initial_epoch,
        on_nan=on_nan,
        strict=strict,
    )
    admission.made(weakly(run.has_waiting, lambda: False))
    collector.await_begin(topology, initial_step)
    return run


def labels_of(**given: Any) -> dict[str, Any]:
    """What people call the run, as run.json has it; most runs load nothing for it."""
    if all(label is None for label in given.values()):
        return {}
    from distsummary.rundir.labels import check_labels

    return check_labels(**given)


def definitions_of(define: object) -> Mapping[str, object]:
    """The definitions of tags, as run.json has them."""
    from distsummary.format.definitions import check_definitions

    return check_definitions(define)


def directory_of(run_dir: str | PathLike[str], topology: Topology, job: str) -> RunDir:
    """The run dir, made if it is not there; `{time}` in its name is the time of the job's start.

    `job`: a name that all ranks of the job share; empty if there is none.

    Raises RunDirError if it cannot be made, InvalidValueError if the ranks cannot agree on a time.
    """
    if TIME not in fspath(run_dir):
        return check_summary_dir(run_dir, "run_dir")
    refuse_temporary("run_dir", run_dir)
    if topology.world_size > 1 and not job:
        raise InvalidValueError(
            f"run_dir must not hold {TIME} here, got {fspath(run_dir)!r}: the {topology.world_size} ranks "
            "need a job id from a launcher to agree on the time, but found none; start them by "
            "ds.launch, by torchrun with --standalone or --rdzv-id, or under SLURM, or name the directory"
        )
    return dated_run_dir(run_dir, job if topology.world_size > 1 else "")


def muted(diagnose: Diagnose | None, cause: str) -> Diagnose:
    """The options of diagnosis, with a further cause that is not reported."""
    check_type("diagnose", diagnose, Diagnose, optional=True)
    given = diagnose or Diagnose()
    return replace(given, mute=(*given.mute, cause))


@guarded_hooks()
class Announcement(Callback):
    """Prints a line to stderr when the training begins: by default, logging would not show it."""

    def __init__(self, line: str) -> None:
        self._line = line

    def on_train_begin(self, run_context: RunContext) -> None:
        """Print it."""
        announced(self._line)


def announcement(directory: RunDir, topology: Topology, settings: RunSettings, *, is_merged: bool) -> str:
    """Where a run is, which files its ranks write, and the commands that show it and merge its ranks.

    `is_merged`: whether an aggregator writes the merged run.
    """
    base, here = directory.home, Path.cwd()
    # A relative path is shorter, but Ray's workers may run in another directory.
    if base.is_relative_to(here) and not in_ray():
        base = base.relative_to(here)
    parent = quoted(base.parent)
    show = f"tensorboard --logdir {parent}"
    own = settings.formats_of_ranks(topology.world_size)
    if topology.world_size == 1 and TENSORBOARD not in own:
        show = f"mindinsight start --summary-base-dir {parent}"
    what = f"files: {', '.join(own)}"
    if topology.world_size > 1:
        merged = "" if own == DIALECTS else f"; of the merged run: {', '.join(DIALECTS)}"
        what = f"{topology.world_size} ranks; their {what}{merged}"
    if topology.world_size > 1 and not is_merged:
        show += f"; after the training: distsummary merge {quoted(base)}"
    place = " on another node of the cluster, the run's home" if directory.is_away else ""
    return f"distsummary: recording {base}{place} ({what}); {show}"


def position(resume: Resumed | None, initial_step: int, initial_epoch: int) -> tuple[int, int]:
    """The step and epoch at which the training begins, from `resume` or from the two numbers."""
    initial_step = check_int("initial_step", initial_step, low=0)
    initial_epoch = check_int("initial_epoch", initial_epoch, low=0)
    if resume is None:
        return initial_step, initial_epoch
    if not isinstance(resume, Resumed):
        raise InvalidTypeError(
            "resume must be what ds.resume(checkpoint, model, optimizer) returned, got "
            f"{resume!r} of type {type(resume).__name__}; call ds.resume, or pass initial_step= and "
            'initial_epoch=; on_existing="attempt" continues in a directory from step 0'
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
    if any(isinstance(callback, CollectorCallback) for callback in given):
        raise InvalidValueError(
            "callbacks must not hold a SummaryCollector, since init makes a collector; pass collect_freq=10 "
            "and others to init, or use your own collector with ds.Run(callbacks=[...])"
        )
    return given
