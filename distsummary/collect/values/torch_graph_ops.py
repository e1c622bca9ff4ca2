"""Draws the operations of a torch model's first real forward pass, in the scopes of its modules."""

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from distsummary.base.guard import ErrorSink, Guard
from distsummary.collect.values.torch_graph import (
    ParameterCounts,
    TreeObserver,
    class_of,
    is_sharded,
    named_arguments,
    within,
)
from distsummary.collect.values.torch_graph_sources import address_of, tensors_in, types_of
from distsummary.collect.values.torch_module_calls import Call, ModuleCalls, places
from distsummary.format.graph import INPUT, OUTPUT, Edge, Graph, Names, Node
from distsummary.frameworks.torch_modules import unwrap
from distsummary.frameworks.torch_private import DISPATCH_MODE, compiled_from

# More operations are not drawn: their record would take gigabytes.
MAX_OPERATIONS = 200_000
_OURS = ("aten", "prims")  # operations of other namespaces that are drawn have a dot in their name
_SAME_PARAMETER = ("t", "transpose", "permute", "view", "_unsafe_view", "expand", "alias", "_to_copy")
_TAPS = "distsummary.collect.values.torch_operators"  # only imported if the model has taps
_HIDDEN = ("c10d", "_c10d_functional", "fsdp", "inductor", "profiler")  # of how it is computed, not what


class OperationsObserver(ModuleCalls):
    """Draws every operation of the forward pass; see `TreeObserver` for the arguments.

    If no operation was seen, `report` says so, and the graph is the tree of the modules.
    """

    def __init__(
        self, network: nn.Module, failed: Callable[[Exception], None], report: Callable[[str], None]
    ) -> None:
        self._network, self._report, self._failed = network, report, failed
        self._names = Names()
        self._nodes: list[Node] = []
        self._calls: list[Call] = []
        self._mode: _Observe | None = None
        self._counts = ParameterCounts()
        self._parameters: dict[str, Tensor] = {}
        # Where tensors come from, by their identity or, as autograd replaces some objects, by their memory.
        self._of_object: dict[int, tuple[weakref.ref[Tensor], Edge | str]] = {}
        self._of_memory: dict[int, Edge | str] = {}
        self._has_operations = False
        self._error: Exception | None = None
        counted = ErrorSink(self._fail)
        self._of_operations = Guard(lambda: counted)
        super().__init__(network, failed)

    def graph(self) -> Graph:
        """The graph of what was seen; ends the observation."""
        self.close()
        if self._error is not None:
            self._failed(self._error)
        if self._has_operations:
            return Graph(tuple(self._nodes), class_of(unwrap(self._network)))
        self._report("no operation of the model was seen; its graph is the tree of the modules")
        return TreeObserver(self._network, self._failed).graph()

    def begin(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Enter a module; when a pass begins, observe the operations from now on."""
        self._calls.append(call)
        if not call.is_outermost:
            return
        model = unwrap(self._network)
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            self._parameters[name] = parameter
            self._made(parameter, name)
        for name, value in named_arguments(call.module, args, kwargs):
            if kinds := types_of(value):
                self._remember(self._add(Node(within(call.scope, name), INPUT, (), kinds)), value)
        self._mode = _Observe(self._of_operations.wrap("graph", self._operation))
        self._mode.__enter__()

    def end(self, call: Call, output: object) -> None:
        """Leave a module; when the pass ends, stop observing."""
        self._calls.pop()
        if not call.is_outermost:
            return
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)
        edges = tuple(edge for edge in self._sources(output) if isinstance(edge, Edge))
        if kinds := types_of(output):
            self._add(Node(within(call.scope, "output"), OUTPUT, edges, kinds))

    def _operation(self, function: Any, args: object, kwargs: object, result: object) -> None:
        """Draw an operation; what it raises is kept, since it is called from within the user's code."""
        if self._error is None and len(self._nodes) < MAX_OPERATIONS and not _is_of_tap():
            self._draw(function, (args, kwargs), result)

    def _fail(self, error: Exception) -> None:
        self._error = error

    def _draw(self, function: Any, given: object, result: object) -> None:
        space, _, name = function.name().partition(".")[0].partition("::")
        if space in _HIDDEN or name == "detach":
            return
        sources = list(self._sources(given))
        used = [source for source in sources if isinstance(source, str)]
        edges = tuple(source for source in sources if isinstance(source, Edge))
        tensors = list(tensors_in(given))
        # A weight that is turned or cast stays the weight.
        if used and not edges and len(tensors) == len(used) and name in _SAME_PARAMETER:
            for tensor in tensors_in(result):
                self._made(tensor, used[0])
            return
        total, shown = 0, {}
        for parameter in used:
            shown[parameter.rpartition(".")[2]] = f"{parameter} {types_of(self._parameters[parameter])[0]}"
            if self._counts.take(self._parameters[parameter]):
                total += self._parameters[parameter].numel()
        scope = self._calls[-1].scope if self._calls else ""
        op = name if space in _OURS else f"{space}.{name}"
        node = self._add(Node(within(scope, op), op, edges, types_of(result), total, shown))
        self._remember(node, result)
        self._has_operations = True

    def _sources(self, value: object) -> Iterator[Edge | str]:
        """An edge for each tensor whose origin is known; for a parameter, its name."""
        seen = set()
        for tensor in tensors_in(value):
            known = self._of_object.get(id(tensor))
            # An id may belong to another tensor by now, which the weak reference shows.
            if known is not None and known[0]() is tensor:
                source: Edge | str | None = known[1]
            else:
                address = address_of(tensor)
                source = None if address is None else self._of_memory.get(address)
            if source is not None and source not in seen:
                seen.add(source)
                yield source

    def _remember(self, node: str, value: object) -> None:
        for number, tensor in enumerate(tensors_in(value)):
            self._made(tensor, Edge(node, number))

    def _made(self, tensor: Tensor, source: Edge | str) -> None:
        self._of_object[id(tensor)] = weakref.ref(tensor), source
        if (address := address_of(tensor)) is not None:
            self._of_memory[address] = source

    def _add(self, node: Node) -> str:
        name = self._names.unique(node.name)
        self._nodes.append(Node(name, node.op, node.inputs, node.outputs, node.parameters, node.attributes))
        return name


class _Observe(DISPATCH_MODE):  # type: ignore[misc]  # torch leaves it untyped
    """Calls a function after each operation of this thread, and changes nothing."""

    def __init__(self, received: Callable[[Any, object, object, object], None]) -> None:
        super().__init__()
        self._received = received

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._received(func, args, kwargs, result)
        return result


def _is_of_tap() -> bool:
    """Whether an operator of `ds.summary` computes this to record a value: it is no part of the model."""
    frame = sys._getframe(2)
    # A tap calls no module, so the search for one ends at the nearest call of a module.
    while frame is not None and (name := frame.f_code.co_name) != "_call_impl":
        # A tap's `gradient` is a part of the model: its view replaces x.
        if frame.f_globals.get("__name__") == _TAPS and name != "gradient":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def can_observe(network: nn.Module) -> bool:
    """Whether no part of the model is compiled, or sharded by FSDP.

    torch does not compile while operations are observed; FSDP gathers parameters by operations of its own.
    """
    return all(
        place.is_seen and compiled_from(place.module) is None and not is_sharded(place.module)
        for place in places(network)
    )
