"""Waits: measures when a thread waits for other ranks in torch.distributed, and its backward passes.

Synchronous collectives, those that other libraries call, and the use of a functional collective's result all
end in one of few calls, which are replaced by the same call between two looks at the clocks. Names that were
imported before mean the replaced calls, too, since these are attributes of classes and of operators. What
waits in C++ alone is not seen, such as code that AOTInductor compiles. So does DDP, but at the end of a
backward pass, which is known on a CPU.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

from torch import Tensor, distributed
from torch.compiler import is_compiling

from distsummary.frameworks.torch_private import wait_calls
from distsummary.training.forks import register_for_forks
from distsummary.training.timing.phases import Phases

UNMEASURED = "of slow ranks, only CPU time is compared, since waiting for other ranks cannot be measured"
# Where ranks begin a collective they also wait for each other with TORCH_DISTRIBUTED_DEBUG=DETAIL, and
# maybe in process groups that are written in Python.
BEGINS = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "_allgather_base",
    "_reduce_scatter_base",
)

_lock = threading.Lock()
_measured: dict[int, tuple[Phases, ...]] = {}  # a thread -> the phases of its runs that measure
_replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, what it was, what it is


class TorchWaits:
    """Reports to the phases of the calling thread's steps when it waits for other ranks, until `close`.

    The calls are replaced while there is such an object; other threads' are not measured.
    """

    def __init__(self, phases: Phases) -> None:
        self._thread, self._phases = get_ident(), phases
        with _lock:
            measured = (*_measured.get(self._thread, ()), phases)
            try:
                if not _measured:
                    _replace_all()
                _measured[self._thread] = measured
            except Exception as error:
                # Some of these names are private: a version of torch may not have them.
                _restore_all()
                _stop(measured, error)
        register_for_forks(self)

    def close(self) -> None:
        """Stop; the last one restores the calls."""
        with _lock:
            left = tuple(one for one in _measured.get(self._thread, ()) if one is not self._phases)
            if left:
                _measured[self._thread] = left
            elif _measured.pop(self._thread, None) is not None and not _measured:
                _restore_all()

    def after_fork(self) -> None:
        """In a forked child nothing is measured."""
        _measured.clear()


def _report(measured: tuple[Phases, ...], method: str) -> None:
    try:
        for phases in measured:
            getattr(phases, method)()
    except Exception as error:
        _stop(measured, error)


def _stop(measured: tuple[Phases, ...], error: Exception) -> None:
    """Measure no more waiting in this thread: from now on only what it computes counts."""
    _measured.pop(get_ident(), None)
    for phases in measured:
        phases.is_computing_shared = True
        phases.on_failure(f"{UNMEASURED}: {type(error).__name__}: {error}")


def _method(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A method of this name that is measured.

    If a class written in Python inherits it, pybind11 takes it for an override and calls it again from C++,
    unless the frame that calls has the method's name and its object as the first argument.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        measured = _measured.get(get_ident())
        if measured is None:
            return call(self, *args, **kwargs)
        try:
            for phases in measured:
                phases.begin_wait()
        except Exception as error:
            _stop(measured, error)
        try:
            return call(self, *args, **kwargs)
        finally:
            try:
                for phases in measured:
                    phases.end_wait()
            except Exception as error:
                _stop(measured, error)

    method.__code__ = method.__code__.replace(co_name=name)
    return functools.wraps(call)(method)


class _Call:
    """A function or an operator that is measured, and equal to itself unmeasured: torch looks it up."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        measured = _measured.get(get_ident(), ())
        _report(measured, "begin_wait")
        try:
            return self._call(*args, **kwargs)
        finally:
            _report(measured, "end_wait")

    def __hash__(self) -> int:
        return hash(self._call)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self._call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


def _engine_of(kind: Any) -> Any:
    """An object of torch's class for the engine of backward passes, which reports their begin and end."""

    class _Engine(kind):  # type: ignore[misc]  # a class of torch's, written in C++
        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            # Without `accumulate_grad`, gradients are returned and reach no parameter: that is no phase of a
            # step.
            if is_compiling() or not kwargs.get("accumulate_grad"):
                return super().run_backward(*args, **kwargs)
            measured = _measured.get(get_ident(), ())
            # A pass within another one, such as that of a checkpoint, is a part of it.
            if any(phases.is_in_backward for phases in measured):
                return super().run_backward(*args, **kwargs)
            _report(measured, "begin_backward")
            shared = tuple(phases for phases in measured if phases.waits_after_gradients)
            mark = _mark_gradients(self, args[0], shared) if shared and args else None
            try:
                return super().run_backward(*args, **kwargs)
            finally:
                if mark is not None:
                    mark.remove()
                _report(measured, "end_backward")

    return _Engine()


def _mark_gradients(engine: Any, roots: Any, shared: tuple[Phases, ...]) -> Any:
    """Report when the backward pass of these tensors has all gradients: DDP waits for other ranks after that.

    The engine calls what was queued in the order in which it was. DDP queues its wait with the last
    gradient, this the call of `end_gradients` with the first. Returns the hook, which is to be removed.
    """

    def queue(gradient: Any) -> None:
        try:
            engine.queue_callback(functools.partial(_report, shared, "end_gradients"))
        except Exception as error:
            _stop(shared, error)

    [root, *_] = (roots,) if isinstance(roots, Tensor) else roots
    try:
        found = root.register_hook(queue)
    except Exception:
        # It is no tensor, or takes no hook: only CPU time of this pass counts, as before its begin.
        return None
    _report(shared, "begin_gradients")
    return found


def _ddp_waits(call: Callable[..., Any]) -> Callable[..., Any]:
    """`Reducer.prepare_for_backward`, by which DDP waits for other ranks in the next backward pass."""

    def prepare_for_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        for phases in _measured.get(get_ident(), ()):
            phases.is_backward_shared = True
            phases.shared_models.add(id(self))
        return call(self, *args, **kwargs)

    return functools.wraps(call)(prepare_for_backward)


def _classes(base: type) -> Iterator[type]:
    yield base
    derived: type
    for derived in base.__subclasses__():
        yield from _classes(derived)


def _replace_all() -> None:
    calls, plain = wait_calls(), distributed.ProcessGroup
    c10d: Any = distributed  # which leaves some of these names out of its types
    methods = [(each, "wait") for base in calls.classes for each in _classes(base)]
    methods += [(each, "monitored_barrier") for each in _classes(plain)]
    is_checked = c10d.get_debug_level() == c10d.DebugLevel.DETAIL
    groups = [each for each in _classes(plain) if is_checked or each is not plain]
    methods += [(each, name) for each in groups for name in BEGINS]
    for owner, name in methods:
        # A class that inherits a method also inherits the replaced one.
        if name in vars(owner):
            _replace(owner, name, _method(getattr(owner, name), name))
    reducer = c10d.Reducer
    _replace(reducer, "prepare_for_backward", _ddp_waits(reducer.prepare_for_backward))
    owner, name = calls.engine
    _replace(owner, name, _engine_of(type(getattr(owner, name))))
    for owner, name in calls.functions:
        _replace(owner, name, _Call(getattr(owner, name)))


def _replace(owner: Any, name: str, new: Any) -> None:
    _replaced.append((owner, name, vars(owner)[name], new))
    setattr(owner, name, new)


def _restore_all() -> None:
    while _replaced:
        owner, name, old, new = _replaced.pop()
        # If others have replaced the call since, theirs stays; ours, which it calls, then only calls the old
        # one.
        if getattr(owner, name) is new:
            setattr(owner, name, old)
