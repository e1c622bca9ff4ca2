"""Follower: follows a training whose loop is not ours, by the calls of torch that every training makes.

`start_following` replaces each of these calls by itself between two calls of a Follower. Nothing is recorded
before the first step of an optimizer: launchers, helper processes and workers of loaders make none.
"""

import functools
import weakref
from collections.abc import Callable, Mapping
from threading import get_ident
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer

from distsummary.base.guard import Guard, is_users
from distsummary.base.terminal import announced
from distsummary.frameworks.torch import local_part
from distsummary.frameworks.torch_private import is_in_compiled, loader_iterator, writes_to
from distsummary.integrations.gradient_norm import gradient_norm
from distsummary.integrations.step_rounds import StepRounds
from distsummary.training.forks import register_for_forks

# `followed_run` imports much, so it is imported only when a run begins.
if TYPE_CHECKING:
    from distsummary.integrations.followed_run import FollowedRun

Begin: TypeAlias = Callable[[Optimizer, nn.Module | None], tuple["FollowedRun | None", Optimizer | None]]
TRAINS = ("note_scaled", "begin_backward", "begin_step")  # calls by which the thread that trains is known
FOLLOWED = "_distsummary_follows"  # an attribute of steps of optimizers which report to the follower

_follower: "Follower | None" = None
_replaced: list[tuple[Any, str, Any]] = []  # owner, name, what it was


class _Loss(NamedTuple):
    """The loss of a backward pass, and the ids of parameters whose gradients were cleared since."""

    value: Tensor
    cleared: set[int]


class Follower:
    """Follows the training of the thread that trains first; with a run, from an optimizer's first step on.

    The loss of a step is the sum of the numbers whose gradients the optimizer uses, unscaled: not of those
    whose gradients were cleared since. Of a closure, which an optimizer may call several times in a step, the
    first evaluation counts.

    Its attributes are what the hooks of torch leave in a step until its optimizer steps.

    Args:
        begin: begins the run, at the first step of the optimizer that it is called with, and with the model,
            None if no host has named it. It returns the run (None: there is nothing to record) and the only
            optimizer, if there is only one.
        is_default: whether it gives way to one that is not.
    """

    def __init__(self, begin: Begin, *, is_default: bool = False) -> None:
        self.begin, self.is_default = begin, is_default
        self._thread = 0  # of the training; 0: nothing was trained yet; -1: the process was forked from it
        register_for_forks(self)
        self._has_unseen = False  # another thread trains, too
        self._guard = Guard()
        self.run: FollowedRun | None = None
        self.model: nn.Module | None = None  # that a host has named
        self._rounds = StepRounds()
        self._calling: list[Optimizer] = []  # optimizers that are stepping, each called by the one before
        self._wrapped: list[Optimizer] = []  # that the outermost one of them has called
        self._has_parts = False  # until the first of these has ended, further calls are parts of it
        self.calls = 0  # of optimizers
        self.backwards = 0  # backward passes, those within others left out
        self._passes = 0  # backward passes that have begun and not ended, each within the one before
        self.losses: list[_Loss] = []  # of the passes whose gradients no optimizer has used yet
        self._probe: weakref.ref[Tensor] | None = None  # a parameter that an optimizer has used
        self._probed: weakref.ref[Optimizer] | None = None  # that optimizer
        self._seen: tuple[Tensor | None, int] = None, 0  # its gradient after the last pass, and its version
        self._has_closure = False  # this call of an optimizer has computed gradients, by its closure
        self._unscaled: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}  # of what GradScaler has scaled
        self._norm: Tensor | float | None = None  # of the gradients, as the script computes it, else as we do

    def __reduce__(self) -> Any:
        """A copy, such as of an optimizer's class that Ray sends to another process, has no follower."""
        return type(None), ()

    def call(self, method: Callable[..., None], *args: Any, **named: Any) -> None:
        """Call a method in the training's thread alone; what fails is counted, and reaches no one."""
        name, thread = method.__name__, get_ident()
        if not self._thread and name in TRAINS:
            self._thread = thread
        if thread == self._thread:
            self._guard.call(name, method, *args, **named)
        elif self._thread > 0 and name == "begin_step" and self.is_default and not self._has_unseen:
            self._has_unseen = True
            announced(
                "distsummary: another thread trains, too; without a line in the script, only the training of "
                "the first one is recorded. In each thread: with distsummary.init('runs/a') as run: ..."
            )

    def after_fork(self) -> None:
        """In a forked child: the training is that of the parent, if there is one already."""
        if self._thread:
            self._thread = -1

    def begin_backward(self, tensors: Any, gradients: Any) -> None:
        """A backward pass begins; one within another is a part of it, as of a checkpoint."""
        self._passes += 1
        # A pass within another, or for a further evaluation of a closure, adds no loss.
        if self._passes > 1 or (self._calling and self._has_closure):
            return
        self.backwards += 1
        self._has_closure = bool(self._calling)
        self._rounds.note_backward()
        if self.run is not None:
            self.run.begin_backward()
        probe = None if self._probe is None else self._probe()
        self._look_at(probe)
        roots = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
        given = (gradients,) if gradients is None or isinstance(gradients, Tensor) else tuple(gradients)
        weights = given if len(given) == len(roots) else (None,) * len(roots)
        # A pass from other roots than numbers, or a few with weights, is not that of a loss, nor is one that
        # leaves out what is trained, such as that of an attack on the input.
        is_loss = all(
            isinstance(root, Tensor) and (root.numel() == 1 if weight is None else root.ndim <= 1)
            for root, weight in zip(roots, weights, strict=True)
        )
        if is_loss and (probe is None or probe.requires_grad):
            self.losses += [_Loss(self._loss_of(*pair), set()) for pair in zip(roots, weights, strict=True)]

    def _loss_of(self, root: Tensor, weight: Tensor | None) -> Tensor:
        """What a root was before GradScaler scaled it; the sum of those that are weighted."""
        reference, unscaled = self._unscaled.get(id(root), (None, root))
        loss = (unscaled if reference is not None and reference() is root else root).detach()
        if weight is not None:
            return (loss * weight.detach()).sum()
        return loss.reshape(()) if loss.ndim else loss

    def _look_at(self, probe: Tensor | None) -> None:
        """Find out whether the script itself has cleared the gradients since the last pass."""
        gradient, version = self._seen
        if not self.losses or probe is None or gradient is None:
            return
        now = probe.grad
        is_changed = now is not None and now.is_cpu and (now is not gradient or writes_to(now) != version)
        if now is None or (is_changed and not now.any()):
            for one in self.losses:
                one.cleared.add(id(probe))
            self._norm = None

    def note_cleared(self, holder: Optimizer | nn.Module) -> None:
        """The gradients of an optimizer's or a module's parameters were cleared."""
        # A closure clears them at each of its evaluations, of which the first counts.
        if self._calling and self._has_closure:
            return
        held = set(map(id, parameters_of(holder)))
        for one in self.losses:
            one.cleared.update(held)
        self._norm = None

    def end_backward(self) -> None:
        """It has ended, or failed."""
        self._passes = max(0, self._passes - 1)
        if (probe := None if self._probe is None else self._probe()) is not None:
            gradient = probe.grad
            self._seen = gradient, 0 if gradient is None else writes_to(gradient)
        if self._has_closure and not self._passes and self._calling:
            self._measure_norm(self._calling[0])

    def _measure_norm(self, optimizer: Optimizer) -> None:
        if self.run is not None and self._norm is None:
            self._norm = gradient_norm(optimizer)

    def note_scaled(self, outputs: Any, scaled: Any) -> None:
        """GradScaler has multiplied a loss by its scale."""
        if isinstance(outputs, Tensor) and outputs is not scaled:
            self._unscaled[id(scaled)] = weakref.ref(scaled), outputs.detach()

    def note_skipped(self) -> None:
        """GradScaler has left a step out, as its gradients are not finite."""
        self.losses, self._norm = [], None
        self._unscaled.clear()

    def note_norm(self, norm: Any) -> None:
        """The script has computed the norm of its gradients, None if it cannot be known."""
        self._norm = local_part(norm) if isinstance(norm, Tensor) else norm

    def begin_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        """An optimizer is about to step; with a closure, it has its gradients only when that was called."""
        self.calls += 1
        if self._has_parts and self._calling:
            return
        # It failed, and is called again.
        if any(optimizer is one for one in self._calling):
            self._calling.clear()
        self._calling.append(optimizer)
        # A part of the step of an optimizer that wraps it.
        if len(self._calling) > 1:
            self._wrapped.append(optimizer)
            return
        self._wrapped.clear()
        self._has_closure = False
        if self.run is None:
            self._begin_run(optimizer)
        # This call may be what ends the step before. The run may end then, for one of the script's own.
        if self.run is not None and self._rounds.begin(optimizer) and not self.run.end_step():
            stop_following()
        if not has_closure:
            self._measure_norm(optimizer)

    def _begin_run(self, optimizer: Optimizer) -> None:
        try:
            self.run, last = self.begin(optimizer, self.model)
        except Exception as error:
            if is_users(error):
                raise
            stop_following()
            announced(f"distsummary: nothing is recorded: {type(error).__name__}: {error}")
            return
        self._rounds.set_last(last)
        if self.run is None:
            stop_following()

    def end_step(self, optimizer: Optimizer, is_done: bool) -> None:
        """It has stepped, or failed."""
        if self.run is None or not self._calling or self._has_parts:
            return
        is_outermost = self._calling.pop() is optimizer and not self._calling
        if not is_outermost or not is_done:
            return
        norm, self._norm = self._norm, None
        self._unscaled.clear()
        self.run.add(optimizer, self._used_by(optimizer), norm, self._wrapped)
        if self._rounds.end(optimizer):
            self.losses = []
            if not self.run.end_step():
                stop_following()

    def _used_by(self, optimizer: Optimizer) -> list[Tensor]:
        """The losses whose gradients an optimizer has used; others may be those of another optimizer."""
        probe = None if self._probe is None else self._probe()
        if probe is None or self._probed is None or self._probed() is not optimizer:
            probe = next((one for one in parameters_of(optimizer) if one.grad is not None), None)
            self._probe = None if probe is None else weakref.ref(probe)
            self._probed, self._seen = weakref.ref(optimizer), (None, 0)
        left: list[_Loss] = []
        if any(one.cleared for one in self.losses):
            held = {id(one) for one in parameters_of(optimizer) if one.requires_grad}
            left = [one for one in self.losses if id(probe) in one.cleared or one.cleared >= held]
        used = [one.value for one in self.losses if all(one is not other for other in left)]
        self.losses = left
        return used

    def begin_parts(self) -> None:
        """The calls of optimizers until `end_parts` are parts of one, the first."""
        self._calling.clear()
        self._has_parts = True

    def end_parts(self, is_done: bool) -> None:
        """These calls were made, or failed; without any, the step was left out."""
        self._has_parts = False
        if self._calling:
            self.end_step(self._calling[0], is_done)
        elif is_done:
            self.note_skipped()

    def report(
        self, prefix: str, values_of: Callable[..., Mapping[str, Any]], *args: Any, **named: Any
    ) -> None:
        """Numbers are given to somebody else, by a call from whose arguments `values_of` takes them."""
        if self.run is not None:
            self.run.report(prefix, values_of(*args, **named))

    def end(self, error: BaseException | None) -> None:
        """The training has ended, or failed."""
        if self.run is not None and not self.run.run.is_closed:
            self.run.run.__exit__(
                type(error) if error else None, error, error.__traceback__ if error else None
            )


def start_following(begin: Begin, *, is_default: bool = False) -> Follower:
    """Follow the next training, in place of the current follower, if there is one, whose run ends.

    A default one, for which nobody has chosen anything, follows nothing if there is one that is none.
    """
    global _follower
    follower, before = Follower(begin, is_default=is_default), _follower
    if before is not None and is_default and not before.is_default:
        return follower
    _follower = follower
    if before is not None:
        before.call(before.end, None)
        return follower
    # From here on torch's own calls report to the follower; `stop_following` puts back what was there.
    _replace(Optimizer, "profile_hook_step", staticmethod(_steps(Optimizer.profile_hook_step)))
    _replace(torch.autograd, "backward", _backward(torch.autograd.backward))
    save = _between(torch.save, "begin_checkpoint", "end_checkpoint")
    _replace(torch, "save", save)
    # Pickle looks for the function in this module.
    _replace(torch.serialization, "save", save)
    if (iterator := loader_iterator()) is not None:
        _replace(iterator, "__next__", _between(iterator.__next__, "begin_batch", "end_batch"))
    clip = follow_clip(torch.nn.utils.clip_grad_norm_)
    _replace(torch.nn.utils, "clip_grad_norm_", clip)
    _replace(torch.nn.utils.clip_grad, "clip_grad_norm_", clip)
    _replace(torch.nn.utils, "clip_grads_with_norm_", _clip_with(torch.nn.utils.clip_grads_with_norm_))
    _replace(Optimizer, "zero_grad", _clearing(Optimizer.zero_grad))
    _replace(nn.Module, "zero_grad", _clearing(nn.Module.zero_grad))
    _replace(torch.amp.GradScaler, "scale", follow_scale(torch.amp.GradScaler.scale))
    _replace(torch.amp.GradScaler, "step", _scaled_step(torch.amp.GradScaler.step))
    return follower


def stop_following(follower: Follower | None = None) -> None:
    """Follow no training, or none by this follower; optimizers keep their calls, which do nothing."""
    global _follower
    if follower is not None and _follower is not follower:
        return
    _follower = None
    while _replaced:
        owner, name, old = _replaced.pop()
        setattr(owner, name, old)


def report(prefix: str, values_of: Callable[..., Mapping[str, Any]], *args: Any, **named: Any) -> None:
    """Record the numbers of a call to somebody else at the step at which it comes; see `Follower.report`."""
    if follower := _active():
        follower.call(follower.report, prefix, values_of, *args, **named)


def current_follower() -> Follower | None:
    """The current follower, None if there is none."""
    return _follower


def end_training(error: BaseException | None) -> None:
    """End the run of the training of this thread, which has ended or failed; the next one gets its own."""
    if (follower := _follower) is not None and follower.run is not None:
        follower.call(follower.end, error)
        if follower.run.run.is_closed:
            start_following(follower.begin, is_default=follower.is_default)


def follow(optimizer: Optimizer) -> None:
    """Have the steps of an optimizer followed that was made before the follower."""
    # What wraps a step that is followed has the attribute, too.
    if not hasattr(call := optimizer.step, FOLLOWED):
        method = _step(functools.wraps(call)(lambda self, *args, **named: call(*args, **named)))
        optimizer.step = MethodType(method, optimizer)  # type: ignore[method-assign]


def _active() -> Follower | None:
    """The current follower, but not while torch.compile traces this, or runs what it has left out of a graph.

    There it would compile the follower's own code. So the steps of such a function are not followed.
    """
    return None if is_compiling() or is_in_compiled() else _follower


def _replace(owner: Any, name: str, new: Any) -> None:
    _replaced.append((owner, name, vars(owner)[name]))
    setattr(owner, name, new)


def _between(call: Callable[..., Any], begin: str, end: str) -> Callable[..., Any]:
    """A call between two methods of the run of the training."""

    @functools.wraps(call)
    def wrapper(*args: Any, **named: Any) -> Any:
        follower = _active()
        if follower is None or follower.run is None:
            return call(*args, **named)
        run = follower.run
        follower.call(getattr(run, begin))
        try:
            return call(*args, **named)
        finally:
            follower.call(getattr(run, end))

    return wrapper


def _backward(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **named: Any) -> Any:
        if (follower := _active()) is None:
            return call(tensors, grad_tensors, *args, **named)
        follower.call(follower.begin_backward, tensors, grad_tensors)
        try:
            return call(tensors, grad_tensors, *args, **named)
        finally:
            follower.call(follower.end_backward)

    return backward


def _steps(decorator: Callable[..., Any]) -> Callable[..., Any]:
    """What torch wraps the step of each class of optimizers in.

    Not torch's hooks of all optimizers: a run adds and removes some of these when a step ends, which they
    must not do while they are called.
    """
    return lambda function: _step(decorator(function))


def _step(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def step(self: Optimizer, *args: Any, **named: Any) -> Any:
        if (follower := _active()) is None:
            return call(self, *args, **named)
        closure = args[0] if args else named.get("closure")
        follower.call(follower.begin_step, self, closure is not None)
        is_done = False
        try:
            result = call(self, *args, **named)
            is_done = True
            return result
        finally:
            follower.call(follower.end_step, self, is_done)

    vars(step)[FOLLOWED] = True
    return step


def parameters_of(holder: Optimizer | nn.Module) -> list[Tensor]:
    """The parameters of an optimizer or a module."""
    if isinstance(holder, nn.Module):
        return [*holder.parameters()]
    return [one for group in holder.param_groups for one in group["params"]]


def _clearing(call: Callable[..., Any]) -> Callable[..., Any]:
    """A method that clears gradients, of which the follower is notified if it has losses for them."""

    @functools.wraps(call)
    def zero_grad(self: Any, *args: Any, **named: Any) -> Any:
        result = call(self, *args, **named)
        if (follower := _active()) is not None and follower.losses:
            follower.call(follower.note_cleared, self)
        return result

    return zero_grad


def follow_clip(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that clips gradients and returns their norm, which the follower gets, too."""

    @functools.wraps(call)
    def clip_grad_norm_(*args: Any, **named: Any) -> Any:
        norm = call(*args, **named)
        if follower := _active():
            follower.call(follower.note_norm, norm)
        return norm

    return clip_grad_norm_


def _clip_with(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a norm that the script has computed itself, as torchtitan does."""

    @functools.wraps(call)
    def clip_grads_with_norm_(
        parameters: Any, max_norm: float, total_norm: Any, *args: Any, **named: Any
    ) -> Any:
        if follower := _active():
            follower.call(follower.note_norm, total_norm)
        return call(parameters, max_norm, total_norm, *args, **named)

    return clip_grads_with_norm_


def follow_scale(call: Callable[..., Any]) -> Callable[..., Any]:
    """A method that returns a loss scaled; the follower gets what it was before."""

    @functools.wraps(call)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = call(self, outputs)
        if follower := _active():
            follower.call(follower.note_scaled, outputs, scaled)
        return scaled

    return scale


def _scaled_step(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def step(self: Any, optimizer: Any, *args: Any, **named: Any) -> Any:
        follower = _follower
        # If GradScaler calls no optimizer, it has left the step out.
        before = follower.calls if follower is not None else 0
        result = call(self, optimizer, *args, **named)
        if follower is not None and follower.calls == before:
            follower.call(follower.note_skipped)
        return result

    return step
