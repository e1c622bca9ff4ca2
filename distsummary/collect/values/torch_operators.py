"""Taps: record values from within a torch network, also in compiled code.

In eager code a tap calls the listeners (see operators.py). Compiled code runs no Python, so its numbers go
into a buffer, which is read when the step ends: one element for each name, written by the graph itself. Other
values go through an operator with a side effect that keeps its order, and that calls the listeners. Compiled
code is the same whether somebody listens or not: it is not compiled again when a run begins or ends.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.collect.values import operators
from distsummary.collect.values.checked_values import MAX_VALUE_BYTES
from distsummary.errors import InvalidTypeError, InvalidValueError, UsageError
from distsummary.format.records import MAX_TAG_BYTES
from distsummary.frameworks.torch import FRAMEWORK, TorchCopy
from distsummary.frameworks.torch_hook import Hook, guarded_tap
from distsummary.frameworks.torch_private import (
    compilation,
    is_in_backward,
    is_traced_now,
    keep_in_order,
    keeps_backward,
)
from distsummary.training.values import check_tag

P = ParamSpec("P")
R = TypeVar("R")

# torch leaves these decorators untyped.
if TYPE_CHECKING:

    def _while_compiling(function: Callable[P, R]) -> Callable[P, R]: ...
    def _not_compiled(function: Callable[P, R]) -> Callable[P, R]: ...
else:
    # These functions are called while torch compiles.
    _while_compiling = torch.compiler.assume_constant_result
    # Next to compiled code, torch would compile what these functions call.
    _not_compiled = torch.compiler.disable

GRADIENTS = ("norm", "histogram", "tensor", "image")
# The numbers in a page: the graph rewrites a whole page for each tap, so pages are small.
_PAGE = 64
# Marks the elements of a page that nothing was written into: a NaN that no computation yields.
_EMPTY_BITS = 0x7FE5_D157
_EMPTY = torch.tensor(_EMPTY_BITS, dtype=torch.int32, device="cpu").view(torch.float32)
_LARGEST_IN_HAND = MAX_VALUE_BYTES // 4  # elements of a value that is copied on the host
_NUMBERS = frozenset(
    (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
)
NOT_KEPT = "is tapped in compiled code, which has no such operator in this version of torch"
_ONE, _PLAIN = (1,), (Tensor, nn.Parameter)


def _refuse_value(error: Exception, plugin: str, name: str, *args: object, **named: object) -> None:
    operators.refuse(plugin, f"the {plugin} {name!r} cannot be recorded: {error}")


def _refuse_gradient(error: Exception, name: str, *args: object) -> None:
    kind = next((kind for kind in args if kind in GRADIENTS), "norm")
    plugin = "scalar" if kind == "norm" else str(kind)
    operators.refuse(plugin, f"the gradient {name!r} cannot be recorded: {error}")


# --- numbers ------------------------------------------------------------------------------------------------


@guarded_tap(operators.GUARD, lambda error, name, value: _refuse_value(error, "scalar", name), UsageError)
def scalar(name: str, value: Tensor) -> None:
    """Tap a number; see `summary.scalar`."""
    _check_name(name)
    if not isinstance(value, Tensor):
        _check_value("scalar", name, value)
        return
    if value.dim() > 1:
        raise InvalidValueError(
            f"the scalar {name!r} must have no or one dimension, got shape {tuple(value.shape)}; tap its "
            "mean, or tap it as a tensor or histogram"
        )
    if torch.compiler.is_compiling():
        _compiled_scalar(name, value)
    elif operators.is_listening() and not _is_replay():
        _eager_scalar(name, value)


@_while_compiling
def _is_exported() -> bool:
    # Called for its result, since torch before 2.11 takes each compilation for an export when it traces this.
    return torch.compiler.is_exporting()


@_not_compiled
def _eager_scalar(name: str, value: Tensor) -> None:
    if type(value) in _PLAIN and value.dtype in _NUMBERS and value.numel() == 1 and not value.is_meta:
        if value.is_cpu:
            operators.tap_number(name, value.item())
        else:
            page, index = _place_on(value.device, name)
            if page >= 0:
                _pages[page].narrow(0, index, 1).copy_(value.detach())
    else:
        # This raises for a DTensor that is a pending sum.
        FRAMEWORK.shard(value)
        operators.tap("scalar", name, value)


def _compiled_scalar(name: str, value: Tensor) -> None:
    if _is_exported():
        return
    is_usual = value.dtype in _NUMBERS and not value.is_meta and not value.is_sparse
    if is_usual and _is_plain(value) and value.numel() == 1:
        _write(name, value)
    else:
        _compiled_value("scalar", name, value)


def _write(name: str, number: Tensor) -> None:
    """Let compiled code write a number into its buffer."""
    page, index = _place_of(name, number.device)
    if page >= 0:
        _PAGES[page]().narrow(0, index, 1).copy_(number.detach())


# --- other values -------------------------------------------------------------------------------------------


@guarded_tap(operators.GUARD, _refuse_value, UsageError)
def value(plugin: str, name: str, value: Tensor) -> None:
    """Tap a value of the plugin tensor, image or histogram; see `summary`."""
    _check_name(name)
    if not isinstance(value, Tensor):
        _check_value(plugin, name, value)
        return
    if plugin == "tensor" and not value.dim():
        raise InvalidValueError(f"the tensor {name!r} must have at least one dimension; tap it as a scalar")
    if torch.compiler.is_compiling():
        if not _is_exported():
            _compiled_value(plugin, name, value)
    elif operators.is_listening() and not _is_replay():
        _report(plugin, name, value, is_parameter=isinstance(value, nn.Parameter))


def _compiled_value(plugin: str, name: str, value: Tensor) -> None:
    is_parameter = isinstance(value, nn.Parameter)
    if value.is_meta:
        _refuse(plugin, name, "is on the device meta: it has no values")
        return
    if not _is_plain(value) and hasattr(value, "placements"):  # a DTensor
        if any(placement.is_partial() for placement in value.placements):
            _refuse(plugin, name, "is a pending sum over its mesh; redistribute it")
            return
        value = value.to_local()  # type: ignore[attr-defined]
    if not _IS_KEPT:
        _refuse(plugin, name, NOT_KEPT)
        return
    _note_traced(plugin, name)
    torch.ops.distsummary.tap(value.detach(), plugin, name, is_parameter, False)


@_not_compiled
def _report(plugin: str, name: str, value: Tensor, *, is_parameter: bool) -> None:
    """Pass a value that exists now to the listeners; one that would fill the host's memory is counted."""
    is_on_host = value.device.type in ("cpu", "mps")
    if plugin != "scalar" and is_on_host and value.numel() > _LARGEST_IN_HAND:
        operators.refuse(
            plugin,
            f"the {plugin} {name!r} of shape {tuple(value.shape)} has more than the {_LARGEST_IN_HAND} "
            "elements that can be recorded; tap a part of it",
        )
        return
    operators.tap(plugin, name, value.detach(), is_parameter=is_parameter)


# --- gradients ----------------------------------------------------------------------------------------------


@guarded_tap(operators.GUARD, _refuse_gradient, UsageError, gives=1)
def gradient(name: str, x: Tensor, kind: str) -> Tensor:
    """Tap the gradient that flows through x; see `summary.gradient`."""
    _check_name(name, "(name, x)")
    if kind not in GRADIENTS:
        raise InvalidValueError(
            f"kind must be one of {list(GRADIENTS)}, got {kind!r} for the gradient {name!r}"
        )
    if not isinstance(x, Tensor):
        _check_value("gradient", name, x)
        return x
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x
    if torch.compiler.is_compiling():
        if _is_exported():
            return x
        tapped: Tensor = _Gradient.apply(x, name, kind)  # type: ignore[no-untyped-call]
        return tapped
    if not operators.is_listening() or _is_traced():
        return x
    # A hook on a parameter would stay there, and each step would add one, so a view gets the hook.
    # Also when a checkpointed pass is computed again: with use_reentrant=True, the gradient flows there. With
    # False it flows where it flowed before, and x may be the same tensor then, which has its hook already.
    if x.is_leaf or _is_replay():
        x = x.view_as(x)
    x.register_hook(Hook(operators.GUARD, _eager_gradient, name, kind))  # type: ignore[no-untyped-call]
    return x


@_not_compiled
@guarded_tap(operators.GUARD, _refuse_gradient)
def _eager_gradient(name: str, kind: str, gradient: Tensor) -> None:
    """What a hook does; it returns None, which leaves the gradient as it is."""
    if not operators.is_listening():
        return
    if kind == "norm":
        _eager_scalar(name, _norm(gradient))
    else:
        _report(kind, name, gradient, is_parameter=False)


class _Gradient(torch.autograd.Function):
    """The identity, whose backward pass taps the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, kind: str) -> Tensor:
        ctx.name, ctx.kind = name, kind
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.kind == "norm":
            _write(ctx.name, _norm(gradient.detach()))
        elif not _IS_KEPT_IN_BACKWARD:
            _refuse(ctx.kind, ctx.name, NOT_KEPT)
        else:
            torch.ops.distsummary.tap(gradient.detach(), ctx.kind, ctx.name, False, True)
        return gradient, None, None


def _norm(gradient: Tensor) -> Tensor:
    # A norm in float16 may overflow, and one in bfloat16 has few digits.
    dtype = torch.float32 if gradient.dtype in (torch.float16, torch.bfloat16) else None
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=dtype)
    return norm


# --- checks -------------------------------------------------------------------------------------------------


def _check_name(name: object, order: str = "(name, value)") -> None:
    if isinstance(name, Tensor):
        raise InvalidTypeError(
            f"the name of a tapped value must be str, got a {type(name).__name__}; the order is {order}"
        )
    if not isinstance(name, str):
        raise InvalidTypeError(
            f"the name of a tapped value must be str, got {name!r} of type {type(name).__name__}"
        )
    if not name.strip() or 4 * len(name) > MAX_TAG_BYTES or not name.isascii():
        check_tag(name)


def _check_value(plugin: str, name: str, value: object) -> None:
    """Raise InvalidTypeError for a value that is no tensor, except for the stand-ins of torch.fx."""
    if isinstance(value, torch.fx.Proxy):
        return
    kind = type(value).__name__
    raise InvalidTypeError(
        f"the value of the {plugin} {name!r} must be a torch.Tensor, got {kind}; use torch.as_tensor, or "
        "record it in the loop by run.log"
    )


def _is_plain(value: Tensor) -> bool:
    return type(value) in _PLAIN


def _is_replay() -> bool:
    """Whether values here were tapped already: the backward pass computes a checkpointed pass again."""
    return is_in_backward() or _is_traced()


def _is_traced() -> bool:
    """Whether `torch.jit.trace` looks on: it keeps no Python, so a traced network taps nothing."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]  # torch's


# --- the buffer of compiled code ----------------------------------------------------------------------------


class _Pages:
    """The numbers of one device: elements of pages, one for each name."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.names: list[str] = []  # in the order of the elements
        self.index: dict[str, int] = {}
        self.numbers: list[int] = []  # of its pages, in `_pages`

    def place(self, name: str) -> tuple[int, int]:
        """The number of a name's page, and the name's index there; (-1, 0) if there are too many names."""
        index = self.index.get(name)
        if index is None:
            index = len(self.names)
            if index == _PAGE * len(self.numbers):
                if len(_pages) >= len(_PAGES):
                    return -1, 0
                # a tensor made in inference mode cannot be written elsewhere
                with torch.inference_mode(False):
                    _pages.append(_empty_page(self.device))
                self.numbers.append(len(_pages) - 1)
            self.index[name] = index
            self.names.append(name)
        return self.numbers[index // _PAGE], index % _PAGE

    def read(self) -> tuple[Mapping[str, float], "_OnDevice | None"]:
        """What was written since the last call; the pages are then empty."""
        pages = [_pages[number] for number in self.numbers]
        if not pages:
            return {}, None
        if self.device.type == "cpu":
            return self._read_host(pages), None
        with torch.no_grad():
            copy = FRAMEWORK.snapshot(torch.cat(pages))
            # Compiled code writes into these very pages, so they are emptied in place.
            for page in pages:
                page.copy_(_empty_page(self.device))
        assert isinstance(copy, TorchCopy)
        return {}, _OnDevice(copy, self.names)

    def _read_host(self, pages: list[Tensor]) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for first, page in zip(range(0, len(self.names), _PAGE), pages, strict=True):
            array = page.numpy()
            numbers |= _written(array, self.names[first : first + _PAGE])
            array.view(np.int32).fill(_EMPTY_BITS)
        return numbers


class _OnDevice:
    """A copy of pages that may still be on its way to the host."""

    def __init__(self, copy: TorchCopy, names: list[str]) -> None:
        self._copy, self._names = copy, names

    def is_ready(self) -> bool:
        """Whether the copy is complete."""
        return self._copy.is_done()

    def result(self) -> dict[str, float]:
        """The numbers that were written, by name."""
        array = self._copy.result()
        # Names may have been added since the copy was made.
        return _written(array[: len(self._names)], self._names[: len(array)])


def _written(array: Any, names: list[str]) -> dict[str, float]:
    """The elements that were written, by name."""
    is_written = (array.view(np.int32) != _EMPTY_BITS)[: len(names)].tolist()
    return {
        name: number
        for name, number, is_one in zip(names, array[: len(names)].tolist(), is_written, strict=True)
        if is_one
    }


def _empty_page(device: torch.device) -> Tensor:
    return _EMPTY.to(device).repeat(_PAGE)


_pages: list[Tensor] = []  # of all devices
_devices: dict[torch.device, _Pages] = {}
_traced: dict[tuple[str, str], object] = {}  # plugin and name -> the compilation that traced it last


def _place_on(device: torch.device, name: str) -> tuple[int, int]:
    """See `_Pages.place`; too many names are counted."""
    pages = _devices.get(device)
    if pages is None:
        pages = _devices[device] = _Pages(device)
        operators.add_source(pages.read)
    place = pages.place(name)
    if place[0] < 0:
        operators.refuse("scalar", operators.TOO_MANY)
    return place


def _place_now(name: str, device: torch.device) -> tuple[int, int]:
    _note_compilation("scalar", name)
    return _place_on(device, name)


_place_of = _while_compiling(operators.GUARD.wrap("operators", _place_now, (-1, 0)))


def _getter(number: int) -> Callable[[], Tensor]:
    """A function that gives a page to the graph that is compiled, under a name of its own."""

    def page() -> Tensor:
        return _pages[number]

    # torch names the page after the code of the function.
    page.__code__ = page.__code__.replace(co_name=f"page{number}_of_distsummary")
    return _while_compiling(page)


_PAGES = tuple(map(_getter, range(operators.MAX_NAMES // _PAGE)))


def _refuse_now(plugin: str, name: str, why: str) -> None:
    if not _is_traced_again(plugin, name, by_attempt=False):
        operators.refuse(plugin, f"not recorded: the {plugin} {name!r} {why}")


# A refusal is counted once, when the code is compiled.
_refuse = _while_compiling(operators.GUARD.wrap("operators", _refuse_now))


def _note_compilation(plugin: str, name: str) -> None:
    """Say that a graph taps a name several times: its last value alone is recorded."""
    if _is_traced_again(plugin, name):
        operators.tap_again(name)


_note_traced = _while_compiling(operators.GUARD.wrap("operators", _note_compilation))


def _is_traced_again(plugin: str, name: str, *, by_attempt: bool = True) -> bool:
    """Whether the current compilation has seen this tap; `by_attempt`: since it began again, as it may do."""
    context = compilation()
    now = context if context is None or by_attempt else (context[0], 0)
    if len(_traced) > operators.MAX_NAMES:
        _traced.clear()
    before, _traced[plugin, name] = _traced.get((plugin, name)), now
    return now is not None and before == now


# --- the operator of compiled code --------------------------------------------------------------------------


@_not_compiled
@guarded_tap(operators.GUARD, lambda error, value, *names: _refuse_value(error, *names[:2]))
def _tap(value: Tensor, plugin: str, name: str, is_parameter: bool, is_gradient: bool) -> None:
    if not operators.is_listening() or (not is_gradient and _is_replay()):
        return
    # While torch compiles, it calls operators whose arguments are constants.
    if is_traced_now():
        return
    _report(plugin, name, value, is_parameter=is_parameter)


def _define() -> torch.library.Library:
    """The operator `distsummary::tap`: it returns nothing, is kept, and keeps its order."""
    library = torch.library.Library("distsummary", "DEF")  # type: ignore[no-untyped-call]
    library.define(  # type: ignore[no-untyped-call]
        "tap(Tensor value, str plugin, str name, bool is_parameter, bool is_gradient) -> ()",
        # The operator calls Python, which a CUDA graph does not repeat.
        tags=(torch.Tag.cudagraph_unsafe,),
    )
    library.impl("tap", _tap, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(
        "distsummary::tap", lambda value, plugin, name, is_parameter, is_gradient: None, lib=library
    )
    return library


# The operator exists as long as this object.
_LIBRARY = _define()
_IS_KEPT = keep_in_order("distsummary::tap")
_IS_KEPT_IN_BACKWARD = _IS_KEPT and keeps_backward()
