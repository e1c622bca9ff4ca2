"""Draws the graph that torch.export makes of a model, from the arguments of its first real forward pass."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from distsummary.base.guard import passes
from distsummary.collect.values.torch_graph import TreeObserver, class_of, named_arguments, within
from distsummary.collect.values.torch_graph_sources import types_of
from distsummary.collect.values.torch_module_calls import Call
from distsummary.format.graph import INPUT, OUTPUT, Edge, Graph, Names, Node


class ExportObserver(TreeObserver):
    """Keeps the first arguments and exports the model when the graph is asked for.

    Exporting runs the model's code once more, on shapes alone. If it fails, `report` says why, and the graph
    is the tree of the modules.
    """

    KEEPS_ARGUMENTS = True

    def __init__(
        self, network: nn.Module, failed: Callable[[Exception], None], report: Callable[[str], None]
    ) -> None:
        super().__init__(network, failed)
        self._report = report

    def graph(self) -> Graph:
        """See `TreeObserver`."""
        tree = super().graph()
        first, self._first = self._first, None
        if first is None:
            self._report(
                "the model was not exported, as no call of it was seen; the graph is the module tree"
            )
            return tree
        call, args, kwargs = first
        if any(type(parameter.data) is not Tensor for parameter in call.module.parameters()):
            self._report("a model that is split over ranks is not exported; the graph is the tree of modules")
            return tree
        try:
            # Exporting warns of what does not matter here, such as attributes that forward assigns.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exported = torch.export.export(call.module, args, kwargs)
            return _drawn(exported, call, args, kwargs)
        except Exception as error:
            # The model's code may raise anything, and torch cannot export every model.
            if passes(error, is_door=False):
                raise
            line = " ".join(str(error).split())[:300]
            self._report(
                f"torch.export failed ({type(error).__name__}: {line}); the graph is the tree of modules; "
                'graph="ops" shows operations'
            )
            return tree


def _drawn(
    exported: torch.export.ExportedProgram, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Graph:
    """The graph of an exported program; parameters are counted at the nodes that use them first."""
    signature = exported.graph_signature
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    # An input that is a part of an argument is named after the argument.
    given = {
        name: label
        for label, value in named_arguments(call.module, args, dict(kwargs))
        for name in signature.user_inputs
        if isinstance(name, str) and (name == label or name.startswith(f"{label}_")) and types_of(value)
    }
    tensors: Mapping[str, Any] = exported.state_dict
    names, drawn, counted, nodes = Names(), dict[fx.Node, Edge](), set[str](), list[Node]()

    def add(node: Node, of: fx.Node | None) -> None:
        nodes.append(node)
        if of is not None:
            drawn[of] = Edge(node.name)

    for node in exported.graph.nodes:
        kinds = types_of(node.meta.get("val"))
        # Inputs that are tensors get a node; parameters and buffers are shown where they are used.
        if node.op == "placeholder" and node.name not in held:
            if kinds:
                add(Node(names.unique(given.get(node.name, node.name)), INPUT, (), kinds), node)
            continue
        edges = tuple(dict.fromkeys(drawn[one] for one in node.all_input_nodes if one in drawn))
        if node.op == "output":
            kinds = tuple(kind for one in node.all_input_nodes for kind in types_of(one.meta.get("val")))
            add(Node(names.unique("output"), OUTPUT, edges, kinds), None)
        elif node.op == "call_function":
            # Taking an element is no node of its own: an edge names the output at which it begins.
            if getattr(node.target, "__name__", "") == "getitem" and edges:
                drawn[node] = edges[0]._replace(output=int(node.args[1]))
                continue
            total, shown = 0, {}
            # A parameter is shown at each of its uses, and counted at the first.
            for one in node.all_input_nodes:
                if (name := held.get(one.name)) is not None:
                    shown[name.rpartition(".")[2]] = f"{name} {types_of(one.meta.get('val'))[0]}"
                    if name not in counted and name in tensors:
                        counted.add(name)
                        total += tensors[name].numel() if one.name in signature.inputs_to_parameters else 0
            op = getattr(node.target, "_schema", None)
            label = op.name.partition("::")[2] if op is not None else str(node.target)
            scope = _scope(node.meta.get("nn_module_stack"))
            add(Node(names.unique(within(scope, label)), label, edges, kinds, total, shown), node)
    return Graph(tuple(nodes), class_of(call.module))


def _scope(stack: Mapping[str, tuple[str, Any]] | None) -> str:
    """The innermost module of an operation, from what torch.export notes: "layers.0.linear1"."""
    path = [*stack.values()][-1][0] if stack else ""
    parts: list[str] = []
    # Indices join the list that they are in, as in the tree of modules.
    for part in path.split("."):
        if part.isdecimal() and parts:
            parts[-1] += f".{part}"
        else:
            parts.append(part)
    return "/".join(parts)
