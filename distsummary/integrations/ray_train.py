"""Callbacks for Ray Train: the run learns what its ranks cannot report, such as why Ray ended them.

Ray's controller calls them. The classes that report all of it are Ray's developer API; where a version has
moved them, `DistSummaryCallback` is the one of the public API.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError

from distsummary.base.checks import anchored
from distsummary.base.columns import named
from distsummary.base.guard import Guard, guarded, guarded_log
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.verdict import MESSAGE, Verdict
from distsummary.rundir.attempts import newest_attempt, note_deaths, note_state
from distsummary.rundir.run_dir import TIME, RunDir, dated_run_dir
from distsummary.rundir.states import read_run
from distsummary.rundir.topology import OPTIONS, RUN_DIR, train_token

try:
    from ray.train.v2.api.callback import UserCallback
except ImportError as error:
    raise ImportError(
        f"distsummary's callbacks need the second version of Ray Train, which Ray {ray.__version__} does not "
        "have; upgrade: pip install ray --upgrade"
    ) from error

logger = guarded_log(__name__)

MOST = 300  # characters of a reason
# The classes of Ray's developer API, and what is called of them.
_HOOKS = {
    "ControllerCallback": (
        "after_controller_start",
        "after_controller_state_update",
        "before_controller_execute_resize_decision",
    ),
    "WorkerGroupCallback": (
        "before_worker_group_start",
        "after_worker_group_start",
        "after_worker_group_poll_status",
        "before_worker_group_shutdown",
        "before_worker_group_abort",
    ),
}


def controller_classes(module: Any) -> tuple[type, ...]:
    """The classes of Ray's developer API in its module; empty if one, or a call that is used, is missing."""
    found = tuple(getattr(module, name, None) for name in _HOOKS)
    calls = zip(found, _HOOKS.values(), strict=True)
    is_known = all(hasattr(kind, call) for kind, names in calls for call in names)
    return tuple(kind for kind in found if kind is not None) if is_known else ()


class _Controller:
    """What both callbacks know: where the run is, and what is to be noted in it.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
    """

    # Ray takes what a callback raises for a failure of the training.
    _own_guard = Guard()

    def __init__(self, run_dir: str | os.PathLike[str] | None = None) -> None:
        self._run_dir = anchored(run_dir or os.environ.get(RUN_DIR) or "runs/{time}")
        self._before = -1  # the newest attempt of the run before the workers started
        self._noted: set[int] = set()  # ranks whose ends are noted

    def _find(self, run_name: str) -> None:
        """Find the run, as its ranks do; the DISTSUMMARY of Ray's processes precedes."""
        path = os.environ.get(RUN_DIR) or self._run_dir
        if TIME in path:
            path = str(dated_run_dir(path, train_token(run_name)).base)
        self._run_dir = anchored(path)

    def _newest(self) -> int:
        """The newest attempt of the run; -1: there is none, or no run yet."""
        if TIME in self._run_dir:
            return -1
        found = newest_attempt(RunDir(self._run_dir).read_manifest())
        return -1 if found is None else int(found["attempt"])

    def _note_errors(self, errors: Mapping[int, Exception]) -> None:
        """Note why workers failed, each once; those whose training raised have reported it themselves."""
        new = {rank: _reason(error) for rank, error in errors.items() if rank not in self._noted}
        if new and (attempt := self._newest()) > self._before:
            note_deaths(RunDir(self._run_dir), "train", attempt, new)
            self._noted |= new.keys()


class DistSummaryUserCallback(_Controller, UserCallback):  # type: ignore[misc]  # without types here
    """Notes why workers of Ray Train failed, by Ray's public API alone.

    Example:
        >>> run_config = ray.train.RunConfig(callbacks=[DistSummaryUserCallback("/shared/runs/a")])

    Args:
        run_dir: that of the workers, which `ds.init` or DISTSUMMARY gives them; by default that of the
            environment variable DISTSUMMARY, else runs/{time}.
    """

    @guarded()
    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
        """Note why workers failed."""
        self._find(run_context.get_run_config().name)
        self._note_errors(worker_exceptions)


def _arm(run_dir: str, options: str) -> None:
    """In a worker: have its training recorded, unless its own environment says so, or otherwise."""
    if RUN_DIR in os.environ:
        return
    os.environ[RUN_DIR] = run_dir
    if options:
        os.environ[OPTIONS] = options
    # Otherwise torch looks at the variables as it is imported.
    if "torch" in sys.modules:
        import distsummary_autoload

        distsummary_autoload.start()


def _reason(error: Exception) -> str:
    """Why a worker failed, on one line."""
    cause = getattr(error, "health_check_failure", error)
    text = " ".join(str(cause).rpartition("The actor is dead because ")[2].split())
    # Ray knows nothing more of a process that is gone.
    if "connection error code" in text:
        text = "its process died, by a signal (SIGKILL if memory was short) or by code that is not Python's"
    if len(text) > MOST:
        text = f"{text[:MOST]} ..."
    return f"Ray Train: {text}" if isinstance(cause, RayActorError) else f"{type(cause).__name__}: {text}"


try:
    from ray.train.v2._internal.execution import callback as _developer_api
except ImportError:
    _developer_api = None
_CLASSES = controller_classes(_developer_api)


class _ControllerCallback(_Controller, *_CLASSES):  # type: ignore[misc]  # as above
    """Has what Ray Train trains recorded on each worker, and notes what Ray decides.

    Example:
        >>> run_config = ray.train.RunConfig(callbacks=[DistSummaryCallback("/shared/runs/a")])

    or RAY_TRAIN_CALLBACKS=distsummary.integrations.ray_train.DistSummaryCallback where the script is started.

    The workers record as with DISTSUMMARY; one that has this variable keeps it, and a function that calls
    `ds.init` keeps its own run. In the run are then also: why each worker ended, if it could not report that
    itself; that Ray ended a worker, since another failed, or to start another number of them; restarts and
    changes of the number of workers, as messages; and that the training failed or was aborted.

    Args:
        run_dir: a directory that all nodes see; by default that of the environment variable DISTSUMMARY,
            else runs/{time}.
        options: further arguments for `ds.init` on each worker, such as norms=True; by default those of
            DISTSUMMARY_OPTIONS.

    Raises TypeError for options that JSON cannot hold.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__(run_dir)
        self._options = json.dumps(options) if options else os.environ.get(OPTIONS, "")
        self._name = ""  # of the training
        self._size = 0  # workers
        self._failed: list[int] = []  # ranks of them
        self._resize = ""  # why the workers end, if Ray wants another number of them

    @guarded()
    def after_controller_start(self, train_run_context: Any) -> None:
        """The training begins."""
        self._name = train_run_context.get_run_config().name

    @guarded()
    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """An attempt begins; that of the run does with the first step."""
        self._find(self._name)
        self._before, self._size = self._newest(), worker_group_context.num_workers
        self._noted, self._failed = set(), []

    @guarded()
    def after_worker_group_start(self, worker_group: Any) -> None:
        """The workers wait for their function."""
        worker_group.execute(_arm, self._run_dir, self._options)

    @guarded()
    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Note why workers failed, as soon as Ray knows it."""
        self._failed = sorted(worker_group_status.errors)
        self._note_errors(worker_group_status.errors)

    @guarded()
    def before_controller_execute_resize_decision(self, resize_decision: Any) -> None:
        """Note that Ray wants another number of workers."""
        if self._size and resize_decision.num_workers != self._size:
            self._resize = (
                f", to continue with {resize_decision.num_workers} workers in place of {self._size}"
            )
            self._say(f"Ray Train ends the workers{self._resize}")

    @guarded()
    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        """Note why Ray ends the workers that have not ended."""
        status = worker_group.get_latest_poll_status()
        # Workers that have all finished without errors were not ended by Ray.
        if status is None or not status.finished or status.errors:
            why = f", since {named(self._failed, 'rank')} failed" if self._failed else self._resize
            self._note_ended(f"ended by Ray Train{why}")
        self._resize = ""

    @guarded()
    def before_worker_group_abort(self, worker_group_context: Any) -> None:
        """Note that the driver ends the training."""
        self._note_ended("the driver of Ray Train ended the training")

    @guarded()
    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Note a restart, and how the training ended if no rank can say that."""
        kind = type(current_state).__name__
        if kind == "RestartingState":
            why = f", since {named(self._failed, 'rank')} failed" if self._failed else ""
            self._say(f"Ray Train starts the workers again{why}")
        states = {"ErroredState": "failed", "AbortedState": "interrupted"}
        if kind in states and (attempt := self._newest()) >= 0:
            note_state(RunDir(self._run_dir), "train", attempt, states[kind])

    def _note_ended(self, reason: str) -> None:
        others = set(range(self._size)) - self._noted
        if others and (attempt := self._newest()) > self._before:
            deaths = dict.fromkeys(others, reason)
            note_deaths(RunDir(self._run_dir), "train", attempt, deaths, state="interrupted")
            self._noted |= others

    def _say(self, text: str) -> None:
        """A message of the run, at its newest step; there is none before the first one."""
        if (attempt := self._newest()) < 0:
            return
        run_dir = RunDir(self._run_dir)
        newest = read_run(run_dir).newest
        step = max((rank.step or 0 for rank in newest.ranks), default=0) if newest is not None else 0
        message = Verdict(
            rank=0, cause=MESSAGE, since_step=step, until_step=step, evidence=text, reported_step=step
        )
        Alerts(run_dir).report(attempt, message)


DistSummaryCallback = _ControllerCallback if _CLASSES else DistSummaryUserCallback
if not _CLASSES:
    logger.warning(
        "Ray %s has moved its classes for callbacks of its controller: only the reason why a worker fails is "
        "noted; upgrade distsummary",
        ray.__version__,
    )
