"""Observes a torch model's first real forward pass and draws its graph: the tree of its modules.

Nothing that the training computes is changed: neither the loss nor the random state. After the pass, nothing
is left on the model.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from distsummary.collect.values.torch_graph_sources import NodeOutput, Sources, type_of, types_of
from distsummary.collect.values.torch_module_calls import Call, ModuleCalls, ModulePlace, places
from distsummary.format.graph import INPUT, OUTPUT, PARAMETER, Edge, Graph, Names, Node, TensorType
from distsummary.frameworks.torch_modules import unwrap

MAX_SHOWN = 12  # parameters of a node that are listed with their shapes
MAX_SETTINGS = 200  # characters of what a module says of itself


class TreeObserver(ModuleCalls):
    """Draws the tree of the modules: a node for each module that calls no other, with the edges between.

    Edges follow autograd's graph through the operations between modules. Where there is none (frozen parts,
    compiled modules), an edge only says that a module comes after another.

    Args:
        network: the model; hooks are on it until `graph` or `close`.
        failed: called with an exception that ended the observation.
    """

    def __init__(self, network: nn.Module, failed: Callable[[Exception], None]) -> None:
        self._network = unwrap(network)
        self._sources = Sources()
        self._names = Names()
        self._nodes: list[Node] = []
        self._inputs: dict[str, list[NodeOutput]] = {}
        self._after: dict[str, str] = {}  # node -> the node that it only comes after
        self._approximate: set[str] = set()  # nodes whose edges say nothing but the order
        self._drawn: dict[int, str] = {}  # module -> its first node
        self._of_module: dict[str, ModulePlace] = {}  # node -> the module that it draws
        super().__init__(network, failed)

    def begin(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Draw the inputs of a forward pass; keep where a module's inputs come from."""
        if call.is_outermost:
            for name, value in named_arguments(call.module, args, kwargs):
                kinds = types_of(value)
                if kinds:
                    node = self._add(Node(within(call.scope, name), INPUT, outputs=kinds))
                    self._sources.made(node, value)
        call.data = self._sources.of((args, kwargs))

    def end(self, call: Call, output: object) -> None:
        """Draw a module that has called no other, and the output of a forward pass."""
        if not call.calls:
            # Its modules, if it has any, were called where nothing is seen, inside of what is compiled.
            if has_modules(call.module) and not isinstance(call.module, nn.MultiheadAttention):
                node = self._draw_inside(call)
            else:
                node = self._draw(call, output)
            self._sources.made(node, output)
        if call.is_outermost and (kinds := types_of(output)):
            sources = self._sources.of(output)
            node = self._add(Node(within(call.scope, "output"), OUTPUT, outputs=kinds), sources)

    def _draw(self, call: Call, output: object) -> str:
        again = {"call": str(call.number)} if call.number > 1 else {}
        name = call.scope or class_of(call.module)
        place = call.place._replace(module=call.module)
        last = self._nodes[-1].name if self._nodes else ""
        name = self._add(self._node(place, name, types_of(output), again), call.data, place)
        # Where nothing is known of the sources, the module only comes after the last one.
        if not call.data and last:
            self._after[name] = last
        self._drawn.setdefault(id(call.module), name)
        return name

    def _draw_inside(self, call: Call) -> str:
        """Draw the modules of one, in their order in the model; returns the last one's name."""
        inside = [place for place in leaves(call.module, call.place) if id(place.module) not in self._drawn]
        name = last = ""
        for place in inside:
            own = place.scope.removeprefix(f"{call.place.scope}/")
            node = self._node(place, within(call.scope, own), (), {"call": "not observed"})
            name = self._add(node, call.data if not last else [], place)
            self._approximate.add(name)
            if last:
                self._after[name] = last
            self._drawn[id(place.module)] = last = name
        return name or self._draw(call, None)

    def _node(
        self, place: ModulePlace, name: str, kinds: tuple[TensorType, ...], more: Mapping[str, str]
    ) -> Node:
        attributes = {"module": place.path} if place.path else {}
        if settings := _settings(place.module):
            attributes["settings"] = settings
        return Node(name, class_of(place.module), (), kinds, 0, {**attributes, **more})

    def _add(self, node: Node, sources: Iterable[NodeOutput] = (), place: ModulePlace | None = None) -> str:
        name = self._names.unique(node.name)
        if place is not None:
            self._of_module[name] = place
        self._nodes.append(Node(name, node.op, (), node.outputs, node.parameters, node.attributes))
        self._inputs[name] = list(sources)
        return name

    def graph(self) -> Graph:
        """The graph of what was seen, completed by the modules that were not; ends the observation."""
        self.close()
        is_seen = bool(self._drawn)
        self._draw_uncalled(is_seen)
        # Only now, when all parameters are in one state: FSDP2 replaces them during a pass.
        counts = ParameterCounts()
        held = {name: counts.of(place) for name, place in self._of_module.items()}
        parameters = self._draw_parameters(counts)
        order = {node.name: number for number, node in enumerate(self._nodes)}
        edges = {
            name: tuple(self._edges(name, sources, parameters, order))
            for name, sources in self._inputs.items()
        }
        nodes = []
        for node in self._nodes:
            count, shown = held.get(node.name, (node.parameters, {}))
            attributes = {**node.attributes, **shown}
            nodes.append(Node(node.name, node.op, edges[node.name], node.outputs, count, attributes))
        return Graph(tuple(nodes), class_of(self._network))

    def _edges(
        self, name: str, sources: list[NodeOutput], parameters: Mapping[int, str], order: Mapping[str, int]
    ) -> Iterator[Edge]:
        for source in dict.fromkeys(sources):
            node = source.node or parameters.get(source.parameter, "")
            if node in order and node != name:
                is_order = name in self._approximate or node in self._approximate
                yield Edge(node, 0 if is_order else source.output, is_order)
        if name in self._after:
            yield Edge(self._after[name], is_order=True)

    def _draw_uncalled(self, is_seen: bool) -> None:
        """Draw the modules that were not called: those with parameters or, if none was called, all."""
        why = "not called in the first step" if is_seen else "not observed"
        last = ""
        covered: set[int] = set()
        # Modules inside of one that was drawn are part of it.
        for number in [*self._drawn]:
            place = self._places.get(number)
            if place is not None:
                covered.update(id(inner) for inner in place.module.modules())
        for place in leaves(self._network):
            if id(place.module) in self._drawn or id(place.module) in covered:
                continue
            if is_seen and next(place.module.parameters(recurse=False), None) is None:
                continue
            name = place.scope or class_of(place.module)
            name = self._add(self._node(place, name, (), {"call": why}), (), place)
            self._drawn[id(place.module)] = name
            if last and not is_seen:
                self._after[name] = last
            last = name

    def _draw_parameters(self, counts: "ParameterCounts") -> dict[int, str]:
        """Draw the parameters of modules that call others; returns their nodes by the ids of parameters."""
        drawn: list[Node] = []
        nodes: dict[int, str] = {}
        for place in self._places.values():
            for name, parameter in place.module.named_parameters(recurse=False):
                if counts.take(parameter):
                    node = self._names.unique(within(place.scope, name))
                    self._inputs[node] = []
                    kind = type_of(parameter)
                    drawn.append(Node(node, PARAMETER, (), (kind,), math.prod(kind.shape), {}))
                    nodes[id(parameter)] = node
        self._nodes[:0] = drawn
        return nodes


class ParameterCounts:
    """Counts each parameter for the first node that holds it."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}

    def take(self, parameter: object, owner: str = "") -> bool:
        """Count a parameter for `owner`; False if it was counted before."""
        is_new = id(parameter) not in self._owners
        self._owners.setdefault(id(parameter), owner)
        return is_new

    def of(self, place: ModulePlace) -> tuple[int, dict[str, str]]:
        """How many numbers a module's own parameters hold, and a text for each of the first parameters."""
        total = frozen = 0
        shown: dict[str, str] = {}
        for name, parameter in place.module.named_parameters():
            owner = self._owners.get(id(parameter), place.path)
            text = str(type_of(parameter))
            if self.take(parameter, place.path):
                size = 0 if nn.parameter.is_lazy(parameter) else parameter.numel()
                total += size
                frozen += 0 if parameter.requires_grad else size
            elif owner != place.path:
                text += f", shared with {owner or 'the model'}"
            if len(shown) < MAX_SHOWN:
                shown[name] = text
        if frozen:
            shown["frozen"] = f"{frozen:,} of {total:,} parameters"
        return total, shown


def leaves(module: nn.Module, above: ModulePlace | None = None) -> Iterator[ModulePlace]:
    """The modules inside that call no others, as far as is known without a call.

    `above`: the place of the module itself, if it is not the whole model.
    """
    attention = ""  # the path of an attention, which does not call the modules that it has
    for place in places(module):
        is_attention = isinstance(place.module, nn.MultiheadAttention)
        if attention and place.path.startswith(attention):
            continue
        if is_attention or not has_modules(place.module):
            attention = f"{place.path}." if is_attention else ""
            if above is None:
                yield place
            else:
                path = ".".join(filter(None, (above.path, place.path)))
                yield ModulePlace(place.module, path, within(above.scope, place.scope), place.is_seen)


def has_modules(module: nn.Module) -> bool:
    """Whether a module holds others."""
    return any(True for _ in module.children())


def class_of(module: nn.Module) -> str:
    """The name of a module's class; of a module that FSDP2 shards, that of its own class."""
    kinds = type(module).__mro__
    return kinds[2 if kinds[1].__name__ == "FSDPModule" else 0].__name__


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP, of the first or the second kind, shards the parameters of a module."""
    # by name: importing the classes takes a second
    return any(kind.__name__ in ("FSDPModule", "FullyShardedDataParallel") for kind in type(module).__mro__)


def named_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, object]]:
    """The arguments of a call of a module, by the names that `forward` gives them."""
    try:
        signature = inspect.signature(module.forward)
        names = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        # forward is not written in Python, or the call will fail.
        yield from ((f"input_{number}", value) for number, value in enumerate(args))
        yield from kwargs.items()
        return
    for name, value in names.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        else:
            yield name, value


def within(scope: str, name: str) -> str:
    """The name inside a scope, which may be empty; so may the name."""
    return "/".join(filter(None, (scope, name)))


def _settings(module: nn.Module) -> str:
    """What the module says of itself, such as "in_features=8, out_features=2, bias=True"."""
    try:
        return " ".join(module.extra_repr().split())[:MAX_SETTINGS]
    except Exception:
        # The user's code may raise anything, and the settings are only shown.
        return ""
