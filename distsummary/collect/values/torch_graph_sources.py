"""Finds which calls of modules made a tensor, by the tensor's identity and by torch's autograd graph."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distsummary.format.graph import TensorType
from distsummary.frameworks.torch_private import sequence_number

MAX_VISITS = 20_000  # of autograd's nodes for one tensor; a call is usually a few nodes away
_NO_SEQUENCE = 2**64 - 1  # of autograd's nodes that belong to no operation


class NodeOutput(NamedTuple):
    """Output `output` of the node `node`; or, if `node` is empty, the parameter with this id."""

    node: str
    output: int = 0
    parameter: int = 0


class Sources:
    """Remembers which node made which tensors, without keeping a tensor or a part of autograd's graph."""

    def __init__(self) -> None:
        self._of_gradient: dict[tuple[int, int], NodeOutput] = {}  # by sequence number and output
        self._of_object: dict[int, tuple[weakref.ref[Tensor], NodeOutput]] = {}
        self._of_memory: dict[int, tuple[weakref.ref[Tensor], NodeOutput]] = {}

    def made(self, node: str, value: object) -> None:
        """From now on, the tensors in `value` are outputs of `node`."""
        for number, tensor in enumerate(tensors_in(value)):
            source = NodeOutput(node, number)
            self._of_object[id(tensor)] = weakref.ref(tensor), source
            if (address := address_of(tensor)) is not None:
                self._of_memory[address] = weakref.ref(tensor), source
            key = None if tensor.grad_fn is None else _key(tensor.grad_fn, tensor.output_nr)
            if key is not None:
                self._of_gradient[key] = source

    def of(self, value: object) -> list[NodeOutput]:
        """Where the tensors in `value` come from, without doubles; empty if that is not known."""
        found: dict[NodeOutput, None] = {}
        for tensor in tensors_in(value):
            found |= dict.fromkeys(self._of_tensor(tensor))
        return list(found)

    def _of_tensor(self, tensor: Tensor) -> Iterator[NodeOutput]:
        if (known := self._of_object.get(id(tensor))) is not None and known[0]() is tensor:
            yield known[1]
        elif tensor.grad_fn is not None:
            yield from self._of_function(tensor.grad_fn, tensor.output_nr)
        elif (address := address_of(tensor)) is not None:
            known = self._of_memory.get(address)
            # If the tensor is gone, its memory may have another owner now.
            if known is not None and known[0]() is not None:
                yield known[1]

    def _of_function(self, function: Any, output: int) -> Iterator[NodeOutput]:
        """The nearest known sources before one of autograd's nodes."""
        todo, seen = [(function, output)], set[tuple[int, int]]()
        while todo and len(seen) < MAX_VISITS:
            function, output = todo.pop()
            key = _key(function, output)
            if key is None or key in seen:
                continue
            seen.add(key)
            if (known := self._of_gradient.get(key)) is not None:
                yield known
            elif key[0] == _NO_SEQUENCE:
                parameter = getattr(function, "variable", None)
                if parameter is not None:
                    yield NodeOutput("", parameter=id(parameter))
            else:
                before = [(inner, number) for inner, number in function.next_functions if inner is not None]
                # Reversed, so that the sources of the first argument come first.
                todo += reversed(before)


def _key(function: Any, output: int) -> tuple[int, int] | None:
    number = sequence_number(function)
    if number is None:
        return None
    # Nodes of parameters have no number, so the parameter's identity distinguishes them.
    return number, id(function.variable) if number == _NO_SEQUENCE and hasattr(
        function, "variable"
    ) else output


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested containers, in order, each object once."""
    seen: set[int] = set()
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, Tensor):
            if id(one) not in seen:
                seen.add(id(one))
                yield one
            continue
        inner: Iterable[object] = ()
        if isinstance(one, dict):
            inner = one.values()
        elif isinstance(one, list | tuple):
            inner = one
        elif hasattr(one, "__dataclass_fields__"):
            inner = vars(one).values() if hasattr(one, "__dict__") else ()
        if id(one) not in seen:
            seen.add(id(one))
            todo += reversed(list(inner))


def types_of(value: object) -> tuple[TensorType, ...]:
    """The types of the tensors in a value."""
    return tuple(type_of(tensor) for tensor in tensors_in(value))


def type_of(tensor: Tensor) -> TensorType:
    """The shape (of a distributed tensor, that of the whole) and dtype of a tensor."""
    shape = () if torch.nn.parameter.is_lazy(tensor) else tuple(map(int, tensor.shape))
    return TensorType(shape, str(tensor.dtype).removeprefix("torch."))


def address_of(tensor: Tensor) -> int | None:
    """Where the memory of the tensor begins; None without one."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError, ValueError):
        # Fake, sparse, quantised, distributed and lazy tensors have no such memory.
        return None
