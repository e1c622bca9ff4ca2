"""Where the phases of a torch model's step begin: forward, backward, waiting for other ranks, optimizer."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.compiler import is_compiling
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from distsummary.frameworks.torch import FRAMEWORK
from distsummary.frameworks.torch_flight_recorder import begun_at
from distsummary.frameworks.torch_hook import Hook
from distsummary.frameworks.torch_modules import has_fsdp1
from distsummary.frameworks.torch_optimizer import is_captured
from distsummary.guard import Guard
from distsummary.training.arrivals import Arrivals
from distsummary.training.device_times import DeviceTimes
from distsummary.training.phases import BACKWARD, COMPUTING, FORWARD, OPTIMIZER, REST, WAIT, Phases

LEVELS = 8  # of what a model returns, which may hold itself
LEARNING = 3  # backward passes until the hooks of all parameters but the last ones are removed


class TorchPhases:
    """Tells `phases` what a model does, by hooks that are removed by `close`; raises if the model takes none.

    The last gradient is that of the parameter that fired last in the first backward passes. After these,
    WAIT lasts until the next call of the model or the optimizer: being told when backward returns takes
    longer than all else here.

    On a CUDA device, events of its stream divide the phases, too: there, a thread of torch calls the hooks of
    backward, and its time is not the loop's. The stream of a model that is split over ranks also waits for
    their parameters, which its times would hold: such a model has no events.
    """

    def __init__(self, model: nn.Module, phases: Phases) -> None:
        self._model, self._phases = model, phases
        self._guard = Guard(phases.failures, self._mend)
        self._is_hurt = False  # a hook has failed
        self._passes = 0  # backward passes begun
        self._last: nn.Parameter | None = None  # whose gradient came last in this backward pass
        self._pass = -1  # torch's number of the backward pass that tells its end; one that raises never does
        self._hooks: dict[nn.Parameter, RemovableHandle] = {}
        self._lasts: set[nn.Parameter] = set()
        self._lazy: list[nn.Parameter] = []  # which get their shapes, and may be hooked, later
        self._handles: list[RemovableHandle] = []
        devices = {parameter.device for parameter in model.parameters()}
        is_split = has_fsdp1(model) or any(
            FRAMEWORK.split_axes(parameter) for parameter in model.parameters()
        )
        self._device = None if is_split else device_times_of(devices)
        try:
            self._set_hooks(True)
            self._hook_all()
        except Exception:  # such as of a ScriptModule
            self.close()
            raise
        phases.on_marked = self._set_hooks
        phases.device = self._device
        is_elsewhere = any(device.type != "cpu" for device in devices)
        phases.is_computing_shared = is_split or (is_elsewhere and self._device is None)
        # a device begins collectives later than the thread, which the recorder does not tell
        if is_split and not is_elsewhere and torch.distributed.is_initialized():
            phases.arrivals = Arrivals(begun_at, {phase: phase for phase in COMPUTING} | {WAIT: BACKWARD})

    def _mend(self) -> None:
        """After a failure: the step is not measured, and the parameters are hooked again."""
        self._phases.drop_step()
        self._is_hurt, self._pass, self._last = True, -1, None

    def close(self) -> None:
        """Remove the hooks."""
        self._phases.on_marked = lambda is_marked: None
        self._set_hooks(False)
        self._hooks.clear()

    def _set_hooks(self, is_marked: bool) -> None:
        """Register the hooks, of which the parameters' are those that are in use; or remove them."""
        handles = self._handles
        for handle in [*handles, *self._hooks.values()]:
            handle.remove()
        handles.clear()
        if not is_marked:
            return
        model, hook = self._model, partial(Hook, self._guard)
        # one by one, so that all are known if this fails
        handles.append(model.register_forward_pre_hook(hook(self._begin_forward), prepend=True))
        handles.append(model.register_forward_hook(hook(self._end_forward)))
        # of any optimizer, also one of another model: `OptimizerSteps`, which finds out whose it is, takes
        # ten times as long
        handles.append(register_optimizer_step_pre_hook(hook(self._begin_optimizer)))
        handles.append(register_optimizer_step_post_hook(hook(self._end_optimizer)))
        for parameter in self._hooks:
            if parameter.requires_grad:  # not frozen since
                self._hook(parameter)

    def _hook_all(self) -> None:
        parameters = list(self._model.parameters())
        self._lazy = [parameter for parameter in parameters if is_lazy(parameter)]
        for parameter in parameters:
            if parameter.requires_grad and not is_lazy(parameter) and parameter not in self._hooks:
                self._hook(parameter)

    def _hook(self, parameter: nn.Parameter) -> None:
        register = parameter.register_post_accumulate_grad_hook  # torch leaves it untyped
        self._hooks[parameter] = register(Hook(self._guard, self._have_gradient))  # type: ignore[no-untyped-call]

    @property
    def _current(self) -> str:
        return self._phases.current if self._device is None else self._device.current

    def _enter(self, phase: str) -> None:
        self._phases.enter(phase)
        if (
            self._device is not None
        ):  # also in a thread of torch, and where the loop's thread is in it already
            self._device.enter(phase)

    def _was(self, phase: str) -> None:
        """The current phase was this one from its begin."""
        if self._device is None:
            self._phases.current = phase
        else:
            self._device.was(phase)

    # What torch.compile traces has no phases: to leave the trace for a hook would cost more than the hook.

    def _begin_forward(self, module: nn.Module, args: Any) -> None:
        if is_compiling():
            return
        if torch.is_grad_enabled() and self._current in (REST, WAIT):  # a further micro-batch
            self._enter(FORWARD)

    def _end_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if is_compiling() or not torch.is_grad_enabled():
            return
        for tensor in (output,) if isinstance(output, Tensor) else _tensors(output):
            if tensor.requires_grad and not tensor.is_leaf:  # a leaf would keep the hook
                tensor.register_hook(Hook(self._guard, self._begin_backward))  # type: ignore[no-untyped-call]

    def _begin_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        # No hook saw the end of backward, or not all parameters had hooks: others may have gradients now.
        if self._current == BACKWARD or self._is_hurt or not all(map(is_lazy, self._lazy)):
            self._passes, self._is_hurt = 0, False
            self._lasts.clear()
            self._hook_all()
        self._enter(OPTIMIZER)

    def _end_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not is_compiling():
            self._enter(REST)

    def _begin_backward(self, gradient: Tensor) -> None:
        if not is_compiling() and self._current in (FORWARD, REST, WAIT):
            self._enter(BACKWARD)

    def _have_gradient(self, parameter: nn.Parameter) -> None:
        if is_compiling():
            return
        if self._passes < LEARNING:
            self._last = parameter
            now = torch._C._current_graph_task_id()
            if now not in (self._pass, -1):  # -1: outside of torch's engine
                self._pass = now
                Variable._execution_engine.queue_callback(Hook(self._guard, self._end_backward))
        if parameter in self._lasts:
            if self._current == WAIT:  # not the last one after all
                self._was(BACKWARD)
            self._enter(WAIT)

    def _end_backward(self) -> None:
        # DDP queues its own callback, which waits for the other ranks, when the last gradient is there
        Variable._execution_engine.queue_callback(Hook(self._guard, self._leave_backward))

    def _leave_backward(self) -> None:
        self._passes += 1
        self._enter(REST)
        if self._last is not None and self._passes <= LEARNING:
            self._lasts.add(self._last)
            if self._passes == LEARNING:
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


def _tensors(output: Any, levels: int = LEVELS) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (dict, list, tuple)) and levels:
        for value in output.values() if isinstance(output, dict) else output:
            yield from _tensors(value, levels - 1)
