"""Torch's hooks of all optimizers: registered once in a process, they serve what listens now.

Torch iterates over its hooks while they are called, and a training in another thread must not change them.
"""

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from distsummary.frameworks.torch_private import is_fullgraph

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class StepListener(NamedTuple):
    """What is called around each step of any optimizer, and must not raise.

    Attributes:
        begin: called with the optimizer, args (the first is the optimizer) and kwargs of its step; may return
            others for the step. end: called with the optimizer.
        unseen: called if torch.compile leaves no place to call them; None: they see no compiled step at all.
    """

    begin: Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], Arguments | None]
    end: Callable[[Optimizer], None]
    unseen: Callable[[], None] | None = None


_lock = threading.RLock()  # the end of a listener may come from the garbage collector, within `listen`
_numbers = itertools.count()
_listeners: dict[int, StepListener] = {}
_is_registered = False
# Read by what torch.compile traces, which is compiled again when they change.
_has_any = False
_hidden: tuple[Callable[..., bool], Callable[..., Any], Callable[..., None]] | None = None


def listen(listener: StepListener) -> Callable[[], None]:
    """Call a listener from now on; returns how to stop that."""
    global _is_registered, _hidden
    number = next(_numbers)
    with _lock:
        if _hidden is None and listener.unseen is not None:
            # Both import torch._dynamo, which takes a second; torch leaves them untyped.
            compiler: Any = torch.compiler
            seen = compiler.assume_constant_result(_is_unseen)
            _hidden = seen, compiler.disable(_begun), compiler.disable(_ended)
        if not _is_registered:
            register_optimizer_step_pre_hook(_begin)
            register_optimizer_step_post_hook(_end)
            _is_registered = True
        _listeners[number] = listener
        _note()
    return partial(_leave, number)


def listeners() -> list[StepListener]:
    """What listens now."""
    return [*_listeners.values()]


def _leave(number: int) -> None:
    with _lock:
        _listeners.pop(number, None)
        _note()


def _note() -> None:
    global _has_any
    _has_any = any(one.unseen is not None for one in listeners())


def _begin(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    if not is_compiling():
        return _begun(optimizer, args, kwargs, is_compiled=False)
    if not _has_any or _hidden is None or _hidden[0]():
        return None
    changed: Arguments | None = _hidden[1](optimizer, args, kwargs)
    return changed


def _end(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not is_compiling():
        _ended(optimizer, is_compiled=False)
    elif _has_any and _hidden is not None and not _hidden[0]():
        _hidden[2](optimizer)


def _begun(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_compiled: bool = True
) -> Arguments | None:
    changed: Arguments | None = None
    for one in listeners():
        if is_compiled and one.unseen is None:
            continue
        if (found := one.begin(optimizer, args, kwargs)) is not None:
            args, kwargs = changed = found
    return changed


def _ended(optimizer: Optimizer, *, is_compiled: bool = True) -> None:
    for one in listeners():
        if not is_compiled or one.unseen is not None:
            one.end(optimizer)


def _is_unseen() -> bool:
    """Called while torch.compile traces a hook: whether a call that it cannot trace is an error."""
    is_whole = is_fullgraph()
    for one in listeners() if is_whole else ():
        if one.unseen is not None:
            one.unseen()
    return is_whole
