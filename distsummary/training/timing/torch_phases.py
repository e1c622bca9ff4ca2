"""Where the phases of a torch model's step begin: forward, backward, waiting for other ranks, optimizer."""

from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from distsummary.base.guard import Guard
from distsummary.frameworks.torch import FRAMEWORK
from distsummary.frameworks.torch_hook import Hook
from distsummary.frameworks.torch_modules import has_fsdp1
from distsummary.frameworks.torch_optimizer import is_captured
from distsummary.frameworks.torch_step_hooks import StepListener, listen
from distsummary.training.timing.device_times import DeviceTimes
from distsummary.training.timing.phases import BACKWARD, FORWARD, OPTIMIZER, REST, WAIT, Phases

LEARNING = 3  # backward passes until the hooks of all parameters but the last ones are removed


class TorchPhases:
    """Reports to `phases` what a model does, by hooks that `close` removes; raises if the model takes none.

    `TorchWaits` reports when a backward pass begins and ends, of any model. On a CUDA device, events of
    its stream divide the phases, too. There DDP has the stream wait for the other ranks after the last
    gradient, which is that of the parameter that fired last in the first passes; a thread of torch calls
    those hooks. The stream of a model that is split over ranks also waits for their parameters, which its
    times would hold: such a model has no events.
    """

    def __init__(self, model: nn.Module, phases: Phases) -> None:
        self._model, self._phases, self._thread = model, phases, get_ident()
        self._guard = Guard(phases.failures, self._mend)
        self._passes = 0  # backward passes done, from which the last gradient is learnt
        self._last: nn.Parameter | None = None  # whose gradient came last in this backward pass
        self._has_waited = False  # since then, in this pass
        self._hooks: dict[nn.Parameter, RemovableHandle] = {}
        self._lasts: set[nn.Parameter] = set()
        self._lazy: list[nn.Parameter] = []  # which get their shapes, and may be hooked, later
        self._handles: list[RemovableHandle] = []
        self._stop_listening: Callable[[], None] = lambda: None
        self._is_in_optimizer = False  # whose closure may call the model
        devices = {parameter.device for parameter in model.parameters()}
        is_split = has_fsdp1(model) or any(
            FRAMEWORK.split_axes(parameter) for parameter in model.parameters()
        )
        self._device = None if is_split else device_times_of(devices)
        try:
            self._set_hooks(True)
            self._hook_all()
        except Exception:
            # Some models take no hooks, such as a ScriptModule.
            self.close()
            raise
        phases.on_marked = self._set_hooks
        phases.device = self._device
        phases.on_backward = self._end_backward
        is_elsewhere = any(device.type != "cpu" for device in devices)
        phases.is_computing_shared = is_elsewhere and self._device is None

    def _mend(self) -> None:
        """After a failure: the step is not measured, and the last gradient is learnt again."""
        self._phases.drop_step()
        self._passes, self._last, self._has_waited = LEARNING, None, False

    def close(self) -> None:
        """Remove the hooks."""
        self._phases.on_marked, self._phases.on_backward = lambda is_marked: None, lambda: None
        self._set_hooks(False)
        self._hooks.clear()

    def _set_hooks(self, is_marked: bool) -> None:
        """Register the hooks, of which the parameters' are those that are in use; or remove them."""
        handles = self._handles
        self._stop_listening()
        for handle in [*handles, *self._hooks.values()]:
            handle.remove()
        handles.clear()
        if not is_marked:
            return
        hook = partial(Hook, self._guard)
        # Added one by one, so that all are known if one of them fails.
        handles.append(self._model.register_forward_pre_hook(hook(self._begin_forward), prepend=True))
        # These are called for any optimizer, also one of another model: `OptimizerSteps`, which finds out
        # whose it is, takes ten times as long.
        self._stop_listening = listen(
            StepListener(
                self._guard.wrap("optimizer", self._begin_optimizer),
                self._guard.wrap("optimizer", self._end_optimizer),
            )
        )
        for parameter in self._hooks:
            # A parameter that was frozen since takes no hook.
            if parameter.requires_grad:
                self._hook(parameter)

    def _hook_all(self) -> None:
        if self._device is None:
            return
        parameters = list(self._model.parameters())
        self._lazy = [parameter for parameter in parameters if is_lazy(parameter)]
        for parameter in parameters:
            if parameter.requires_grad and not is_lazy(parameter) and parameter not in self._hooks:
                self._hook(parameter)

    def _hook(self, parameter: nn.Parameter) -> None:
        # Torch leaves this method untyped.
        register = parameter.register_post_accumulate_grad_hook
        self._hooks[parameter] = register(Hook(self._guard, self._have_gradient))  # type: ignore[no-untyped-call]

    # What torch.compile traces has no phases: to leave the trace for a hook would cost more than the hook.

    def _begin_forward(self, module: nn.Module, args: Any) -> None:
        if is_compiling():
            return
        # After a backward pass or the optimizer, this is the forward pass of a further micro-batch.
        if torch.is_grad_enabled() and self._phases.current in (REST, OPTIMIZER):
            self._phases.enter(FORWARD)

    def _begin_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if get_ident() == self._thread:
            self._is_in_optimizer = True
            self._phases.enter(OPTIMIZER)

    def _end_optimizer(self, optimizer: Optimizer) -> None:
        if get_ident() == self._thread:
            self._is_in_optimizer = False
            self._phases.enter(BACKWARD if self._phases.is_in_backward else REST)

    def _have_gradient(self, parameter: nn.Parameter) -> None:
        if is_compiling() or self._device is None:
            return
        if self._passes < LEARNING:
            self._last = parameter
        if parameter in self._lasts:
            # The gradient that seemed to be the last was not: what followed it was computing, not waiting.
            if self._device.current == WAIT:
                self._device.was(BACKWARD)
            self._device.enter(WAIT)
            self._has_waited = True

    def _end_backward(self) -> None:
        # If this pass ran in the closure of an optimizer, the optimizer's phase continues.
        if self._is_in_optimizer:
            self._phases.enter(OPTIMIZER)
        if self._device is None:
            return
        has_waited, self._has_waited = self._has_waited, False
        # Learn again if parameters without shapes have got them, or if none of the known last gradients came.
        if not all(map(is_lazy, self._lazy)) or (self._passes >= LEARNING and not has_waited):
            self._passes = 0
            self._lasts.clear()
            self._hook_all()
        elif self._last is not None:
            self._passes += 1
            self._lasts.add(self._last)
            if self._passes == LEARNING:
                # From now on, only the parameters whose gradients came last keep hooks, to save their time.
                for parameter in [p for p in self._hooks if p not in self._lasts]:
                    self._hooks.pop(parameter).remove()
        self._last = None


class _StreamEvent:
    """A torch.cuda.Event on the current stream of one device, whatever the current device is."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._device))

    def query(self) -> bool:
        return bool(self._event.query())

    def elapsed_time(self, end: "_StreamEvent") -> float:
        return float(self._event.elapsed_time(end._event))


def device_times_of(devices: set[torch.device]) -> DeviceTimes | None:
    """What measures the work of a model whose parameters lie on one CUDA device; None for others."""
    if len(devices) != 1:
        return None
    [device] = devices
    return DeviceTimes(partial(_StreamEvent, device), is_captured) if device.type == "cuda" else None
