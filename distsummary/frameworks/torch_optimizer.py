"""Reports when an optimizer that holds parameters of a model is about to step, and when it has stepped."""

import os
import sys
import threading
import weakref
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from distsummary.base.failures import Failures
from distsummary.base.guard import guarded_log
from distsummary.base.health import Health
from distsummary.frameworks.torch import as_dtensor, local_part
from distsummary.frameworks.torch_modules import unwrap
from distsummary.frameworks.torch_step_hooks import StepListener, listen

P = ParamSpec("P")
R = TypeVar("R")
_Args: TypeAlias = tuple[Any, ...]
_Named: TypeAlias = dict[str, Any]

logger = guarded_log(__name__)

CAPTURED = (
    "a CUDA graph captures a step of the optimizer, and no hook sees the steps that it replays: nothing of "
    "them is recorded; leave optimizer.step() out of the graph"
)
UNSEEN = (
    "the optimizer's step is compiled with fullgraph=True, which leaves no place to look at its gradients: "
    "nothing of it is recorded; compile it without fullgraph"
)
BEFORE, AFTER = "before the optimizer's step", "after the optimizer's step"
_STEP_FILE = sys.modules[Optimizer.__module__].__file__  # of the function that calls an optimizer's hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """One call of an optimizer's step.

    Attributes:
        optimizer: the optimizer.
        names: the parameters of the model that it holds, named as in the unwrapped model, in its own order.
        scale: the gradients are this number times too large, because the optimizer itself divides them, as
            fused ones do for GradScaler; a tensor of one element, maybe on a device. None: they are right.
        found_inf: a tensor of one element, maybe on a device: not 0 if the optimizer will change nothing,
            since GradScaler found gradients that are not finite. None: it steps.
    """

    optimizer: Optimizer
    names: tuple[str, ...]
    scale: Tensor | None = None
    found_inf: Tensor | None = None

    def is_skipped(self) -> bool:
        """Whether the optimizer will change nothing; waits for the device if it is not known yet."""
        return self.found_inf is not None and bool(self.found_inf.item())


class OptimizerSteps:
    """Calls `before` and `after` around each step of the optimizers that hold parameters of a model.

    The optimizers need not be given, nor exist yet: torch's hooks of all optimizers report. A step that calls
    another (of its base class, or of an optimizer that it wraps) for the same parameters counts once. If a
    step raises, `after` is not called. If it is given a closure, which computes the gradients, `before` is
    called when the optimizer has called that for the first time. A step that GradScaler leaves out is not
    reported, except that of a fused optimizer, which `OptimizerStep.is_skipped` distinguishes.

    What `before` and `after` raise, and what goes wrong here, is counted in `failures` and never reaches the
    training. In a forked child, nothing is called. It ends with `close`, and at the latest when nothing
    refers to this object any more.

    Args:
        model: a torch.nn.Module; it may be wrapped by DDP or torch.compile.
        before, after: called in the thread of the step; `current` then shows which step it is. With an
            optimizer for each parameter that steps during backward, they are called for each of them.
        is_due: asked first, at every step of any optimizer; False: this step is not reported. None: all are.
        failures: counts what went wrong; by default, it is only logged.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        before: Callable[[], None],
        after: Callable[[], None] | None = None,
        is_due: Callable[[], bool] | None = None,
        failures: Failures | None = None,
    ) -> None:
        self._model = model
        self._before, self._after, self._is_due = before, after, is_due
        self._failures = failures or Failures(Health(), logger)
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}  # the id of a parameter -> it, its name
        self._list_parameters()
        self._held: MutableMapping[Optimizer, _Held] = WeakIdKeyDictionary()
        self._running = _OfThread()
        self._guard = guard = self._failures.guard
        # What listens refers to this object weakly, so that it can end without `close`.
        this, pid = weakref.ref(self), os.getpid()

        def begin(optimizer: Optimizer, args: _Args, kwargs: _Named) -> "tuple[_Args, _Named] | None":
            steps = this() if os.getpid() == pid else None
            return None if steps is None else steps._begin(optimizer, args, kwargs)

        def end(optimizer: Optimizer) -> None:
            if os.getpid() == pid and (steps := this()) is not None:
                steps._end(optimizer)

        def unseen() -> None:
            if (steps := this()) is not None:
                steps._failures.count(UNSEEN)

        stop = listen(StepListener(guard.wrap(BEFORE, begin), guard.wrap(AFTER, end), unseen))
        self._remove = weakref.finalize(self, stop)
        self._remove.atexit = False

    @property
    def current(self) -> OptimizerStep:
        """The step that is about to be made, or was just made; only inside of `before` and `after`."""
        return self._running.steps[-1].step

    def close(self) -> None:
        """Look at no further step; a second call does nothing."""
        self._remove()

    def _begin(self, optimizer: Optimizer, args: _Args, kwargs: _Named) -> tuple[_Args, _Named] | None:
        """Call `before`, or return other arguments for the step: a closure that does so."""
        if self._is_due is not None and not self._is_due():
            return None
        held = self._held_by(optimizer)
        if not held.names:
            return None
        caller, running = _step_frame(), self._running.steps
        # Steps whose frames are not among the callers have raised: their ends were never reported.
        while running and not _is_below(running[-1].caller, caller):
            running.pop()
        # A step within another one of the same parameters is a part of it.
        if running and held.set <= self._held_by(running[-1].step.optimizer).set:
            return None
        if is_captured():
            self._failures.count(CAPTURED)
            return None
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        step = OptimizerStep(optimizer=optimizer, names=held.names, scale=scale, found_inf=found_inf)
        running.append(now := _Running(step, caller))
        # With a closure, the gradients are there only after it was called. args[0] is the optimizer.
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._look(now)
            return None
        looking = self._looking(closure, now)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": looking}
        return (args[0], looking, *args[2:]), kwargs

    def _looking(self, closure: Callable[[], Any], now: "_Running") -> Callable[[], Any]:
        """A closure that also calls `before`, once the gradients are there."""
        look = torch.compiler.disable(self._guard.wrap(BEFORE, self._look))  # type: ignore[no-untyped-call]

        def looking() -> Any:
            loss = closure()
            look(now)
            return loss

        return looking

    def _look(self, now: "_Running") -> None:
        if not now.is_seen:
            now.is_seen = True
            self._before()

    def _end(self, optimizer: Optimizer) -> None:
        running = self._running.steps
        if not running:
            # It holds nothing of the model, or is not due.
            return
        if running[-1].step.optimizer is not optimizer or running[-1].caller is not _step_frame():
            # It is a part of another optimizer's step.
            return
        try:
            if self._after is not None and running[-1].is_seen:
                self._after()
        finally:
            running.pop()

    def _held_by(self, optimizer: Optimizer) -> "_Held":
        """What the optimizer holds of the model; looked up again when the optimizer has more or fewer groups.

        A model may gain parameters that the optimizer already holds: what it holds is looked up again at its
        2nd, 4th, 8th ... step, too.
        """
        held = self._held.get(optimizer)
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        if held is not None:
            held.times += 1
            if held.sizes == sizes and held.times & (held.times - 1):
                return held
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(self._name(parameter) is None for parameter in parameters):
            self._list_parameters()
        names = tuple(name for parameter in parameters if (name := self._name(parameter)) is not None)
        found = _Held(sizes, names, held.times if held is not None else 1)
        self._held[optimizer] = found
        return found

    def _name(self, parameter: Tensor) -> str | None:
        known = self._names.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else None

    def _list_parameters(self) -> None:
        # Those of before are kept: FSDP2 replaces a module's parameters while it computes.
        named = unwrap(self._model).named_parameters()
        found: dict[int, tuple[weakref.ref[Tensor], str]]
        found = {id(parameter): (weakref.ref(parameter), name) for name, parameter in named}
        living = {key: entry for key, entry in self._names.items() if entry[0]() is not None}
        self._names = living | found


def as_seen(gradient: Tensor, scale: Tensor | None) -> Tensor:
    """A gradient as the optimizer uses it: divided by `OptimizerStep.scale`.

    Of a sparse gradient, its values of shape (rows, ...), of which each row of the parameter has one at most.
    Floats of 16 bits that are divided become float32. May share the gradient's memory.
    """
    gradient = gradient.detach()
    if gradient.layout == torch.sparse_coo:
        gradient = gradient.coalesce().values()
    if scale is None:
        return gradient
    local = local_part(gradient)
    local = (local.float() if local.element_size() < 4 else local) / scale.to(local.device)
    whole = as_dtensor(gradient)
    if whole is None:
        return local
    return type(whole).from_local(
        local,
        whole.device_mesh,
        whole.placements,
        # A check would ask the other ranks.
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


class _Held:
    """The model's parameters that an optimizer holds, and for which of its steps this is known."""

    __slots__ = ("names", "set", "sizes", "times")

    def __init__(self, sizes: list[int], names: tuple[str, ...], times: int) -> None:
        self.sizes, self.names, self.times = sizes, names, times
        self.set = frozenset(names)


class _Running:
    """A step that is being made, the frame of its call, and whether `before` was called."""

    __slots__ = ("caller", "is_seen", "step")

    def __init__(self, step: OptimizerStep, caller: FrameType) -> None:
        self.step, self.caller, self.is_seen = step, caller, False


class _OfThread(threading.local):
    """The steps that are being made in a thread, the innermost last."""

    def __init__(self) -> None:
        self.steps: list[_Running] = []


def is_captured() -> bool:
    """Whether what the device is asked to do now becomes part of a CUDA graph."""
    is_in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return bool(is_in_use and torch.cuda.is_current_stream_capturing())


def _step_frame() -> FrameType:
    """The frame that calls the hooks of the step, and the step itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _STEP_FILE:
        frame = frame.f_back
    return frame or sys._getframe(1)


def _is_below(frame: FrameType, other: FrameType | None) -> bool:
    """Whether `frame` is among the callers of `other`."""
    while other is not None and other is not frame:
        other = other.f_back
    return other is not None
