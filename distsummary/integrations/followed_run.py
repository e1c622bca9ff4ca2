"""The run of a training whose loop is not ours: how it begins, and what is recorded of its steps."""

import gc
import math
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from distsummary._init import init
from distsummary.base.guard import Guard
from distsummary.base.terminal import announced
from distsummary.errors import DistSummaryError
from distsummary.format.own_tags import DATA_WAIT_MS, FOUND_INF
from distsummary.frameworks.torch_hook import Hook
from distsummary.frameworks.torch_modules import unwrap
from distsummary.rundir.run_dir import TIME, RunDir, dated_run_dir
from distsummary.rundir.states import read_run
from distsummary.rundir.topology import Topology, detect, launch_token
from distsummary.training.forks import forkables
from distsummary.training.run import Run
from distsummary.training.timing.phases import CHECKPOINT, DATA, EVALUATION, FORWARD, REST, Phases

WATCHES = frozenset(("norms", "histograms", "gradients", "tensors"))  # options about the watched network


def begin_run(
    optimizer: Optimizer,
    model: nn.Module | None,
    *,
    run_dir: str,
    options: Mapping[str, Any],
    has_reports: bool,
    on_begin: Callable[[Run], object] = lambda run: None,
) -> "tuple[FollowedRun | None, Optimizer | None]":
    """Begin the run of a training that is about to make its first step, by `optimizer`.

    Returns the run, None if the script has one of its own, and the only optimizer, if there is only one.

    Args:
        model: what is trained; None: that of the optimizer's parameters.
        run_dir: may have {time} in it.
        options: further arguments for `ds.init`. By default, the initial step is the number of steps that the
            optimizer has made.
        has_reports: whether numbers of a step are reported when it has ended: by a host, or a tee.
        on_begin: called with the run before its first step.

    Raises the errors of `ds.init`.
    """
    if open_runs():
        return None, None
    # Further optimizers, and mostly the model, are not given: look for them among all living objects.
    alive = gc.get_objects()
    kinds = {kind for kind in {type(one) for one in alive} if issubclass(kind, (Optimizer, nn.Module))}
    alive = [one for one in alive if type(one) in kinds]
    # An optimizer that wraps another, as Accelerate's does, may not step itself.
    optimizers = [
        one
        for one in alive
        if isinstance(one, Optimizer) and vars(one).get("param_groups") and hasattr(type(one).step, "hooked")
    ]
    if model is None:
        model = model_of(optimizer, [one for one in alive if isinstance(one, nn.Module)])
    del alive
    # As far as an optimizer that was loaded from a checkpoint counts its steps.
    done = max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)
    arguments = {"optimizer": optimizer, "initial_step": done, **options}
    directory = launch_dir(run_dir, detect())
    run = init(directory, watch=model, **arguments)
    on_begin(run)
    found = FollowedRun(run, model, has_reports=has_reports, watches=WATCHES.intersection(arguments))
    return found, optimizer if len(optimizers) == 1 else None


def launch_dir(path: str, topology: Topology) -> str:
    """The run dir of this launch in place of a path such as runs/{time}; other paths stay as they are.

    Ranks agree on it by what names their launch. A name that may come again, such as an address and a port,
    counts while the run that it had last is in progress, and for a restart.

    Raises the errors of `dated_run_dir`.
    """
    if TIME not in path:
        return path
    token, is_unique = launch_token(topology)
    return str(dated_run_dir(path, token, is_over=None if is_unique else _is_over).base)


def _is_over(run_dir: RunDir) -> bool:
    """Whether a run has begun, and none of its ranks runs any more."""
    try:
        newest = read_run(run_dir).newest
    except (DistSummaryError, OSError):
        # The run was removed, or the directory holds none.
        return True
    return newest is not None and newest.state != "running"


def open_runs() -> list[Run]:
    """The runs of this process that are open."""
    return [one for one in forkables() if isinstance(one, Run) and not one.is_closed]


def model_of(optimizer: Optimizer, modules: list[nn.Module]) -> nn.Module | None:
    """The outermost of the modules that holds the most parameters of an optimizer; None if none holds any."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    inner = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    best, most = None, 0
    for module in modules:
        if id(module) not in inner and "_parameters" in vars(module):
            found = sum(id(parameter) in held for parameter in module.parameters())
            if found > most:
                best, most = module, found
    return best


class FollowedRun:
    """Records the steps of a training in `run`, and reports to its phases what the loop does.

    Recorded are, at each step, `loss`, `lr`, `grad_norm` and the wait for batches. With several optimizers,
    `loss` is the sum of their losses, and `optimizer_1/loss`, `optimizer_1/lr` and so on are those of each.
    Further groups of parameters have `lr/1`, `lr/2` and so on.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module | None,
        *,
        has_reports: bool = False,
        watches: Collection[str] = (),
    ) -> None:
        self.run, self._watches = run, sorted(watches)
        self._steps = 0
        self._numbers: dict[str, Any] = {}
        self._losses: list[Tensor] = []
        self._places: MutableMapping[Optimizer, int] = WeakIdKeyDictionary()
        self._waited_s = self._asked_s = 0.0
        self._has_loader = False
        self._saving: list[AbstractContextManager[None]] = []  # the checkpoints that are being saved
        self._evaluated_s = 0.0  # when an evaluation asked for its newest batch; 0: the script evaluates none
        # With a loader, a step begins with the forward pass: what is reported before that belongs to the step
        # before. Without one, and without reports, it begins when the one before ends, which costs less.
        self._begins_late = has_reports
        # The first step began before the run, nobody knows when.
        self._step: AbstractContextManager[None] | None = run.next_step(began_s=math.nan)
        self._began_s = 0.0  # when the next one begins, as far as it is known yet
        phases = run.context.step.phases
        self._phases = phases if isinstance(phases, Phases) else None
        self._model = None if model is None else weakref.ref(unwrap(model))
        if model is not None and self._phases is not None:
            model.register_forward_pre_hook(Hook(Guard(), self._begin_forward))

    def add(
        self,
        optimizer: Optimizer,
        losses: list[Tensor],
        norm: Tensor | float | None,
        wrapped: Sequence[Optimizer] = (),
    ) -> None:
        """An optimizer has stepped, for these losses and with this norm of its gradients.

        One without a learning rate, such as torchtitan's container of optimizers, has those of the `wrapped`.
        """
        place = self._places.get(optimizer, -1)
        if place < 0:
            place = self._places[optimizer] = len(self._places)
            self._look_at_network_of(optimizer)
        prefix = f"optimizer_{place}/" if place else ""
        numbers = self._numbers
        groups = optimizer.param_groups
        if wrapped and "lr" not in groups[0]:
            groups = [group for each in wrapped for group in each.param_groups]
        for number, group in enumerate(groups):
            numbers[f"{prefix}lr/{number}" if number else f"{prefix}lr"] = group["lr"]
        if norm is not None:
            numbers[f"{prefix}grad_norm"] = norm
        if losses:
            if place:
                numbers[f"{prefix}loss"] = _sum(losses)
            self._losses += losses
        if (found_inf := getattr(optimizer, "found_inf", None)) is not None:
            numbers[FOUND_INF] = found_inf

    def _look_at_network_of(self, optimizer: Optimizer) -> None:
        """Say once if what is recorded of a network is not recorded of the one that this optimizer trains."""
        model = None if self._model is None else self._model()
        if model is None or not self._watches:
            return
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if held and held.isdisjoint(map(id, model.parameters())):
            announced(
                f"distsummary: {', '.join(self._watches)}: of {type(model).__name__} alone, which the first "
                "optimizer trains; another optimizer trains another network. Of both: "
                "ds.init(watch=torch.nn.ModuleDict({...})) in the script"
            )
            self._watches = []

    def end_step(self) -> bool:
        """A step of the training has ended, and the next one begins; False: the script has its own run."""
        run, numbers, step = self.run, self._numbers, self.begin_step()
        if self._losses:
            numbers["loss"] = _sum(self._losses)
        if self._has_loader:
            numbers[DATA_WAIT_MS] = 1e3 * self._waited_s
        run.log(numbers)
        self._numbers, self._losses, self._waited_s = {}, [], 0.0
        if self._begins_late:
            step.__exit__(None, None, None)
            self._step, self._began_s = None, time.perf_counter()
        else:
            self._step = run.next_step()
        phases = self._phases
        if phases is not None and self._model is not None and not phases.is_in_backward:
            # Until the model is called: without a loader, the loop is taken to prepare its data.
            phases.enter(REST if self._has_loader else DATA)
        # The script may open a run of its own later: then this one ends. Looked at ever more rarely.
        self._steps += 1
        if self._steps & (self._steps - 1) == 0 and len(open_runs()) > 1:
            run.close()
            return False
        return True

    def begin_step(self) -> AbstractContextManager[None]:
        """The next step begins, if it has not yet."""
        if self._step is None:
            self._step = self.run.next_step(began_s=self._began_s)
        return self._step

    def report(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Record numbers that somebody gives at this time; anything else is left out."""
        found = {f"{prefix}{name}": value for name, value in values.items() if is_number(value)}
        if found and not self.run.is_closed:
            self.run.log(found)

    # --- what the phases are

    def _is_evaluating(self) -> bool:
        model = None if self._model is None else self._model()
        return model is not None and not model.training

    def begin_batch(self) -> None:
        """A loader is asked for a batch."""
        self._has_loader = self._begins_late = True
        is_evaluating = self._is_evaluating()
        if self._phases is not None:
            self._phases.enter(EVALUATION if is_evaluating else DATA)
        self._asked_s = self._began_s = time.perf_counter()
        if is_evaluating:
            self._evaluate(self._asked_s)
        else:
            self._evaluated_s = 0.0

    def _evaluate(self, now_s: float) -> None:
        """Add the time since the evaluation's last batch, which its forward pass took."""
        if self._evaluated_s:
            self.run.context.step.spend(EVALUATION, now_s - self._evaluated_s)
        self._evaluated_s = now_s

    def end_batch(self) -> None:
        """It has given one, or none is left."""
        if self._is_evaluating():
            self._evaluate(time.perf_counter())
            return
        self._waited_s += time.perf_counter() - self._asked_s
        if self._phases is not None:
            self._phases.enter(REST if self._model is None else FORWARD)

    def _begin_forward(self, module: nn.Module, args: Any) -> None:
        phases = self._phases
        if phases is None or is_compiling():
            return
        if self._is_evaluating():
            phases.enter(EVALUATION)
            self._began_s = time.perf_counter()
            return
        self.begin_step()
        if phases.current in (DATA, EVALUATION):
            phases.enter(FORWARD)

    def begin_backward(self) -> None:
        """A backward pass begins, maybe of a model that reports nothing."""
        self.begin_step()
        if self._phases is not None and self._phases.current in (DATA, EVALUATION):
            self._phases.enter(FORWARD)

    def begin_checkpoint(self) -> None:
        """The script saves something."""
        self._saving.append(self.run.context.step.within(CHECKPOINT))
        self._saving[-1].__enter__()

    def end_checkpoint(self) -> None:
        """It is saved, or that failed."""
        if self._saving:
            self._saving.pop().__exit__(None, None, None)


def record(run: Run, prefix: str, values: Mapping[str, Any], *, step: int | None = None) -> None:
    """Record numbers, texts and, by longer names, what mappings hold; `run.log` counts anything else."""
    found = dict(flat(values, prefix))
    if numbers := {name: value for name, value in found.items() if not isinstance(value, str)}:
        run.log(numbers, step=step)
    for name in found.keys() - numbers.keys():
        run.text(name, found[name], step)


def flat(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Names and values, of mappings within others, too, as name/inner."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def is_number(value: Any) -> bool:
    """Whether a value is one number, or a tensor of one."""
    return isinstance(value, Real) or (hasattr(value, "numel") and value.numel() == 1)


def _sum(losses: list[Tensor]) -> Tensor:
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss.to(total.device)
    return total
