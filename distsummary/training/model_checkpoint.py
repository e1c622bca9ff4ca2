"""ModelCheckpoint: a callback that saves the model, the optimizer's state and the step while it trains."""

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self

from distsummary.base.checks import anchored, check_type
from distsummary.base.failures import one_line
from distsummary.base.guard import guarded, guarded_log
from distsummary.base.interrupts import StepInterrupts
from distsummary.base.publish import check_writable, ensure_directory, remove_leftovers
from distsummary.base.termination import END_S, STEP_S, on_termination
from distsummary.checkpoints import dcp
from distsummary.checkpoints.model_file import BREAKPOINT, TRAINING, free_prefix, saved_in, superseded
from distsummary.checkpoints.object_state import state_entries
from distsummary.checkpoints.training_state import remove_orphans, write_rank_file
from distsummary.diagnosis.verdict import UNSAVED
from distsummary.errors import DistSummaryError, InvalidArgumentError, InvalidValueError, UsageError
from distsummary.rundir.topology import Topology, detect
from distsummary.training.callbacks import (
    Callback,
    CallbackParams,
    RunContext,
    guarded_hooks,
    step_in_epoch,
    step_of,
)
from distsummary.training.checkpoint_config import CheckpointConfig
from distsummary.training.model_state import CheckpointParts, Kept, source_of
from distsummary.training.random_state import random_state
from distsummary.training.step_context import StepContext
from distsummary.training.timing.phases import CHECKPOINT

logger = guarded_log(__name__)

BREAKPOINT_WAIT_S = 3.0  # how long the ranks then wait for each other's shards in a .dcp

NOT_SAVED = "is not saved"


@guarded_hooks("on_train_begin")
class ModelCheckpoint(Callback):
    """Saves checkpoints of a training: parameters, buffers, the optimizer's state, epoch and step.

        config = ds.CheckpointConfig(save_checkpoint_steps=1000, keep_checkpoint_max=3)
        checkpoints = ds.ModelCheckpoint("resnet", "checkpoints", config)
        ds.init("runs/resnet", watch=model, optimizer=optimizer, callbacks=checkpoints)

    A file is called `<prefix>-<epoch>_<step in the epoch>.safetensors` (or .ckpt), and if an earlier training
    used the directory, `<prefix>_1-...`, `<prefix>_2-...`. It is written under another name and renamed once
    it is complete and on the disk, so that a killed training leaves no damaged checkpoint; files that are no
    longer to be kept are removed after that. The last step is always saved when the training ends.

    Replicas are saved once, by rank 0; the directory should be one that all ranks see. See CheckpointConfig
    for sharded models. A checkpoint that cannot be saved, for example on a full disk, does not end the
    training: the log says why, and `failures` counts them. `load_checkpoint` reads the files.

    If async_save, and the previous file is still being written when the next is due, that is saved at the
    first step after it. (The ranks of a sharded model wait instead, because they must save the same step.)

    Its attributes are its settings, what is due next, the save that is running, and the state that the loop
    and a signal's thread share: a save that is due, one that fails and one that a signal asks for use all of
    it.

    Args:
        prefix: begins the names of the files, without "/"; or a function of the loop's parameters that
            returns the name of a file without its suffix. The files of a function are all kept.
        directory: made if it does not exist; by default the current one. Or a function of the loop's
            parameters that returns it.
        config: when to save, and how; by default `CheckpointConfig()`.

    Raises:
        InvalidArgumentError: prefix or directory is of a wrong type. InvalidValueError: prefix contains "/".
        InvalidTypeError: config is no CheckpointConfig. NotADirectoryPathError, RunDirError: the directory
        cannot be made or written. When the training begins, InvalidValueError for a sharded model that
        cannot be saved in this way.

    Attributes:
        config: when it saves, and how.
        failures: how many checkpoints could not be saved.
    """

    def __init__(
        self,
        prefix: str | Callable[[CallbackParams], str] = "CKP",
        directory: str | os.PathLike[str] | Callable[[CallbackParams], str] | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        if not callable(prefix):
            _check_prefix("prefix", prefix)
        check_type("config", config, CheckpointConfig, optional=True)
        self.config = config or CheckpointConfig()
        if not callable(directory):
            directory = "" if directory is None else directory
            _check_directory("directory", directory)
            directory = anchored(directory)
            check_writable(Path(directory))
        self._prefix, self._directory = prefix, directory
        self._latest = ""
        self._params: CallbackParams | None = None  # of the training that runs
        self._step = StepContext()
        self._topology = Topology()
        self._source: CheckpointParts | None = None
        self._run_id, self._mark, self._own_prefix = "", "", ""
        self._begun_step = self._saved_step = 0
        self._next_step: float | None = None  # the step that is due; None: seconds count, or only the end
        self._saved_s, self._seconds = 0.0, self.config.save_checkpoint_seconds
        # It has one thread, which is kept: starting one takes longer than a copy.
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._wanted = threading.Event()  # a signal ends the process: save at the end of this step
        self._is_saved = threading.Event()
        self._ignore_signals: Callable[[], None] = _nothing
        self._interrupts = StepInterrupts()
        self._at_epoch: dict[str, Any] | None = None  # random numbers when the epoch began; None: it is over
        self.failures = 0

    @property
    def latest_ckpt_file_name(self) -> str:
        """The path of the newest checkpoint that is complete on this rank; "" before the first."""
        return self._latest

    def __enter__(self) -> Self:
        if self.config.exception_save:
            self._own_guard.call("listening to signals", self._listen)
        return self

    def _listen(self) -> None:
        self._ignore_signals = on_termination(self._save_before_death, at_step_end=True)
        self._interrupts.listen()

    def on_train_begin(self, run_context: RunContext) -> None:
        """Find out what this rank saves; a collective operation for a sharded model."""
        # What the user's function raises reaches the user.
        directory = self._place(run_context.original_args())
        self._begin(run_context, directory)
        super().on_train_begin(run_context)

    @guarded(UsageError)
    def _begin(self, run_context: RunContext, directory: Path) -> None:
        params, config = run_context.original_args(), self.config
        self._params, self._step = params, step_of(run_context)
        self._topology = self._step.topology or detect()
        source = source_of(params, config, self._topology)
        if source.is_split:
            if not config.save_checkpoint_steps and config.save_checkpoint_seconds:
                raise InvalidValueError(
                    "save_checkpoint_seconds cannot be used for a sharded model, whose ranks would save "
                    "different steps; pass save_checkpoint_steps"
                )
            if not config.integrated_save and config.enc_key is not None:
                raise InvalidValueError(
                    "enc_key cannot be used with integrated_save=False: shards are not encrypted; "
                    "leave one out"
                )
        self._source = source
        # A further training with this object continues the names that were chosen for the first one.
        if not self._own_prefix:
            prefix = self._prefix
            if isinstance(prefix, str):
                # Replicas need not communicate: no rank has written a file before all have come to their
                # first step.
                is_naming = (self._topology.rank == 0) or not source.is_split
                prefix = free_prefix(directory, prefix) if is_naming else prefix
            # The ranks of a sharded model share rank 0's run id, mark and prefix, sent by one collective
            # operation.
            token = f"{uuid.uuid4().hex}/{dcp.writers_mark()}/{prefix if isinstance(prefix, str) else ''}"
            if source.is_split:
                token = source.framework.agreed(token)
            self._run_id, self._mark, self._own_prefix = token.split("/")
            if self._topology.rank == 0:
                self._guard("leftovers are not removed", partial(remove_leftovers, directory))
        self._wanted.clear()
        self._is_saved.clear()
        self._begun_step = self._saved_step = int(params["cur_step_num"])
        self._plan_next()
        # A resumed training saves at the same steps as one that was not interrupted.
        if steps := config.save_checkpoint_steps:
            self._next_step = self._begun_step - self._begun_step % steps + steps

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Note the random numbers with which the epoch begins, by which its data may be shuffled."""
        self._at_epoch = random_state()

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Note that the epoch is over, unless a callback has stopped it."""
        if not _is_cut(run_context):
            self._at_epoch = None

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """From now on, a Ctrl-C waits for the end of the step; a step of sink mode would be too long."""
        if not run_context.original_args().get("dataset_sink_mode"):
            self._interrupts.hold()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Save if it is due."""
        params = run_context.original_args()
        if self._next_step is not None:
            if params["cur_step_num"] >= self._next_step:
                self._save(params)
        elif self._seconds and monotonic() - self._saved_s > self._seconds:
            self._save(params)
        if self.config.exception_save:
            self._step.after_hook.append(partial(self._end_if_asked, params))

    @guarded()
    def _end_if_asked(self, params: CallbackParams) -> None:
        """Save and end the training, if a signal or Ctrl-C came before all callbacks had seen the step."""
        if self._wanted.is_set():
            self._save_breakpoint(params)
            self._is_saved.set()
            # The process dies of the signal meanwhile: the checkpoint would not have the steps made after it.
            sleep(END_S)
            self._wanted.clear()
        self._interrupts.let_go()

    def on_train_end(self, run_context: RunContext) -> None:
        """Save the last step, and wait until it is written."""
        params = run_context.original_args()
        # While a file is being written, `_save` would put off the last step, which has no later one.
        self._join()
        if params["cur_step_num"] != self._saved_step:
            self._save(params)
        self._join()
        # A signal that comes now need not wait for another step.
        self._is_saved.set()
        self._report(params)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ignore_signals()
        self._ignore_signals = _nothing
        if error is not None and self.config.exception_save and self._params is not None:
            self._save_breakpoint(self._params)
        self._join()
        if self._writer is not None:
            self._writer.shutdown()
        self._params = self._writer = None
        self._interrupts.stop()

    def _place(self, params: CallbackParams) -> Path:
        directory: Any = self._directory
        if callable(directory):
            directory = directory(params)
            _check_directory("the result of directory", directory)
            ensure_directory(Path(directory))
        return Path(os.path.abspath(directory))

    def _stem(self, params: CallbackParams) -> str:
        if not callable(self._prefix):
            return f"{self._own_prefix}-{params.get('cur_epoch_num', 1)}_{step_in_epoch(params)}"
        stem = self._prefix(params)
        _check_prefix("the result of prefix", stem)
        return stem

    def _plan_next(self) -> None:
        self._saved_s = monotonic()
        steps = self.config.save_checkpoint_steps
        self._next_step = self._saved_step + steps if steps else None

    def _save(self, params: CallbackParams) -> None:
        assert self._source is not None
        if self._writing is not None and not self._writing.done() and not self._source.is_split:
            # The previous file is still being written, and this save stays due at the next step.
            return
        self._join()
        self._report(params)
        what = f"the checkpoint of step {params['cur_step_num']} {NOT_SAVED}"
        with self._step.within(CHECKPOINT):
            self._guard(what, self._begin_save, params)
        self._saved_step = int(params["cur_step_num"])
        params["last_save_ckpt_step"] = self._saved_step
        self._plan_next()
        if self._writing is None:
            self._report(params)

    def _begin_save(self, params: CallbackParams, suffix: str = "") -> None:
        """Copy what this rank saves and write it, in a thread if async_save; nothing if it saves nothing."""
        assert self._source is not None
        # A save after an exception gathers nothing, as no other rank may be left to take part.
        gathers = self.config.integrated_save and self.config.format != "dcp" and not suffix
        training = self._training(params)
        kept = self._source.keep(
            params, self.config, training, gathers=gathers, run_id=self._run_id, mark=self._mark
        )
        directory, stem = self._place(params), self._stem(params) + suffix
        if kept is None and self._next_step is None:
            # Without a number of steps, rank 0 may save at another step, to which this state would not
            # belong.
            return
        if kept is None:
            write = partial(self._write_training, training, directory / f"{stem}.{self.config.format}")
        else:
            write = partial(self._write, kept, directory, stem, is_counted=not suffix)
        if self.config.async_save and not suffix:
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, thread_name_prefix="distsummary-checkpoint")
            what = f"the checkpoint {stem} {NOT_SAVED}"
            self._writing = self._writer.submit(self._guard, what, write)
        else:
            write()

    def _training(self, params: CallbackParams) -> tuple[str, dict[str, Any]]:
        """The name and the state that say where this rank stands in the training."""
        manager = params.get("loss_scale_mananger")
        is_over = self._at_epoch is None
        epoch = int(params.get("cur_epoch_num", 1))
        state = {
            "epoch": epoch if is_over else epoch - 1,
            "step": int(params["cur_step_num"]),
            "step_in_epoch": 0 if is_over else step_in_epoch(params),
            "random": random_state(),
            "random_at_epoch": self._at_epoch,
            "loss_scale": None if manager is None else manager.state_dict(),
        }
        return f"{TRAINING}{self._topology.rank}", state

    def _write_training(self, training: tuple[str, dict[str, Any]], path: Path) -> None:
        """Write the training state of a rank that saves nothing else."""
        config = self.config
        write_rank_file(
            path, self._topology.rank, state_entries(*training), key=config.enc_key, mode=config.enc_mode
        )

    def _write(self, kept: Kept, directory: Path, stem: str, *, is_counted: bool) -> None:
        path = kept.write(directory, stem, wait_s=dcp.WAIT_S if is_counted else BREAKPOINT_WAIT_S)
        self._latest = str(path)
        config = self.config
        if not is_counted or not kept.is_first or callable(self._prefix):
            return
        # Only complete checkpoints count, so that there always is one to load. The file just written is the
        # newest, even if a clock was set back.
        listed = sorted(saved_in(directory, self._own_prefix), key=lambda one: (one.path == path, one))
        complete = [one for one in listed if one.is_complete()]
        removed = superseded(
            complete, keep_max=config.keep_checkpoint_max, keep_minutes=config.keep_checkpoint_per_n_minutes
        )
        kept_ones = [one for one in complete if one not in removed]
        # Incomplete checkpoints that are older than all kept ones will never be completed: remove them, too.
        torn = [
            one for one in listed[: listed.index(kept_ones[0]) if kept_ones else 0] if one not in complete
        ]
        for one in (*removed, *torn):
            one.remove()
        if kept_ones:
            remove_orphans(directory, self._own_prefix, kept_ones)

    def _save_breakpoint(self, params: CallbackParams) -> None:
        """Save the state in which an exception left the training, or in which a signal will end it."""
        self._join()
        step = int(params["cur_step_num"])
        if (step == self._saved_step and self._latest) or step == self._begun_step:
            # The step is saved already, or nothing was trained.
            return
        what = f"the checkpoint of step {step}, at which the training ends, {NOT_SAVED}"
        self._guard(what, self._begin_save, params, BREAKPOINT)
        self._report(params)

    def _save_before_death(self, error: BaseException) -> None:
        """In another thread: let the training thread save at the end of its step, and wait for it."""
        if self._params is None:
            return
        self._wanted.set()
        if not self._is_saved.wait(STEP_S):
            logger.error(
                "%s ends the training, and its step did not end in %g s: it is not saved; the newest "
                "checkpoint is %s",
                error,
                STEP_S,
                self._latest or "none",
            )

    def _report(self, params: CallbackParams) -> None:
        """Give the name of the newest file to the other callbacks, for the lineage."""
        if self._latest:
            params["latest_ckpt_file"] = self._latest

    def _join(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _guard(self, what: str, function: Callable[..., object], *args: Any) -> None:
        """Call a function; an error does not end the training, but is logged and counted."""
        try:
            function(*args)
        except Exception as error:
            is_ours = isinstance(error, DistSummaryError | OSError)
            reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
            self.failures += 1
            if NOT_SAVED in what:
                self._step.report_finding(UNSAVED, one_line(f"{what}: {reason}"))
            logger.error("%s, and the training continues: %s", what, reason, exc_info=not is_ours)


def _check_prefix(field: str, prefix: object) -> None:
    if not isinstance(prefix, str):
        raise InvalidArgumentError(f"{field} must be str or callable, got {prefix!r}")
    if not prefix or "/" in prefix or os.sep in prefix or "\0" in prefix:
        raise InvalidValueError(
            f"{field} must be the beginning of a file's name, without '/', got {prefix!r}"
        )


def _check_directory(field: str, directory: object) -> None:
    if not isinstance(directory, str | os.PathLike):
        raise InvalidArgumentError(f"{field} must be str, a path or callable, got {directory!r}")


def _is_cut(run_context: RunContext) -> bool:
    """Whether a callback has stopped the training while its epoch had batches left."""
    params = run_context.original_args()
    steps = params.get("batch_num") or 0
    is_at_its_end = 0 < steps <= step_in_epoch(params) or params.get("dataset_sink_mode")
    return run_context.get_stop_requested() and not is_at_its_end


def _nothing() -> None:
    pass
