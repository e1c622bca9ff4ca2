"""Filling: while a model runs, each of torch's operations gets values for the outlines that it reads.

Whoever holds a parameter and wherever it is used, in its own module's forward, in a parent's, in the loss,
under two names: it goes through an operation. When that is done the values are gone, but for as long as a
view of them lives. The operation itself is the one that would have run, so it gives the same bits.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from distsummary.errors import LandscapeError
from distsummary.landscapes.engines.inference.torch_by_rows import ByRows
from distsummary.landscapes.engines.inference.torch_outlines import (
    REMEDY,
    Outlines,
    Values,
    in_place_of,
    is_plain,
)

KEPT_BYTES = 1 << 23  # of values that are kept for the next operations

_Made: TypeAlias = dict[int, tuple[Any, str]]  # weak references to storages and whose they are, by address


class Filling(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Entered around code that runs a model of outlines; as long as it is, the values stay the same ones.

    Raises LandscapeError where the code writes to a parameter, or reads a view of one that it has kept from
    when the values were others.
    """

    def __init__(self, outlines: Outlines, values: Values) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._outlines, self._values = outlines, values
        self._by_rows = ByRows(outlines, values)
        self._kept: OrderedDict[str, Tensor] = OrderedDict()
        self._made: _Made = {}
        self._stale: _Made = {}
        self._own = {_address(tensor): name for name, tensor in outlines.own.items()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for it, 200 MB, and a mode is not compiled anyway."""
        return False

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._kept.clear()
        self._stale = _alive(self._stale | self._made)
        self._made = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        kwargs = kwargs or {}
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if is_plain(value)]
        if self._stale:
            self._refuse_stale(tensors)
        if func._schema.is_mutable:
            self._refuse_writes(func, args, kwargs)
        run = func if types else _as_called(func)
        if all(self._outlines.name(tensor) is None for tensor in tensors):
            return run(*args, **kwargs)
        found = self._by_rows(func, run, args, self._filled)
        if found is not None:
            return found
        args, kwargs = self._filled((args, kwargs))
        return run(*args, **kwargs)

    def _filled(self, values: Any) -> Any:
        """The same with values in the place of outlines; what is there twice is made once."""
        found: dict[str, Tensor] = {}

        def fill(tensor: Tensor) -> Tensor:
            name = self._outlines.name(tensor)
            if name is None:
                return tensor
            if name not in found:
                found[name] = self._value(name)
            return in_place_of(tensor, found[name])

        return pytree.tree_map_only(Tensor, fill, values)

    def _value(self, name: str) -> Tensor:
        found = self._values.borrowed(name)
        if found is not None:
            return found
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        size = self._outlines.outlines[name].nbytes
        while self._kept and size + sum(tensor.nbytes for tensor in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        made = self._values.whole(name)
        if size <= KEPT_BYTES:
            self._kept[name] = made
        self._made = _alive(self._made)  # each reference to a dead one is a hole in the heap
        reference = StorageWeakRef(made.untyped_storage())  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._made[_address(made)] = reference, name
        return made

    def _refuse_stale(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if (at := _address(tensor)) in self._stale:
                raise LandscapeError(
                    f"the model keeps what it read of {self._stale[at][1]} from one call to the next, where "
                    f"it is out of date; {REMEDY}"
                )

    def _refuse_writes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in filter(is_plain, pytree.tree_leaves(value)):
                if (name := self._whose(tensor)) is not None:
                    raise LandscapeError(f"the model writes to {name} when it is called; {REMEDY}")

    def _whose(self, tensor: Tensor) -> str | None:
        """The parameter that a tensor is, or is a view of."""
        at = _address(tensor)
        made = self._made.get(at)
        return self._outlines.name(tensor) or self._own.get(at) or (None if made is None else made[1])


def _as_called(func: Any) -> Any:
    """The operation run where its caller stands: in autocast, and where it counts what requires a gradient.

    A mode is called below both, and there some operations choose other kernels, whose bits are others. What
    makes views, or writes, stays there: for it the caller of the mode notes whose view it is.
    """
    notes_views = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.ADInplaceOrView)
    if notes_views or not torch.is_inference_mode_enabled():
        return func

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._RestorePythonTLSSnapshot(), torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]  # no stub has it
            return func(*args, **kwargs)

    return run


def _alive(made: _Made) -> _Made:
    return {at: (reference, name) for at, (reference, name) in made.items() if not reference.expired()}


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
