"""The graph of a model: one record, from which each viewer's form is written.

TensorBoard's form is in `tensorboard_graph`, MindInsight's in `mindspore_graph`. In events, a graph is always
MindInsight's form, which both dialects are written from.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_NODES = 10_000  # of a graph that a training records, so that the viewers can draw it
INPUT, OUTPUT, PARAMETER = "Input", "Output", "Parameter"  # kinds of nodes that do not compute


class TensorType(NamedTuple):
    """What is known of a tensor: its shape, and its dtype by the name that NumPy and torch use."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Edge(NamedTuple):
    """Where an input of a node comes from.

    `source`: the name of a node; `output`: which of its outputs. `is_order`: no data go along the edge, the
    node only comes after the source.
    """

    source: str
    output: int = 0
    is_order: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    Attributes:
        name: unique in the graph; the parts before its last "/" are the scopes that contain the node.
        op: what the node does, such as Linear or addmm.
        inputs: in the order of the arguments; sources missing in the graph are ignored.
        outputs: the types of the outputs, empty if they are not known.
        parameters: how many numbers the node's own parameters hold.
        attributes: what else a viewer shows of the node.
    """

    name: str
    op: str
    inputs: tuple[Edge, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    parameters: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def scope(self) -> str:
        """The scopes that contain the node, such as "encoder/layers/0"; empty at the top."""
        return self.name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes in an order in which sources come first; `name`: that of the model."""

    nodes: tuple[Node, ...]
    name: str = ""


class Names:
    """Gives names that were not given before, by appending (2), (3) ...; `taken` are given already.

    TensorBoard would draw many names that end in digits as one node.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._given = set(taken)
        self._next: Counter[str] = Counter()

    def unique(self, name: str) -> str:
        """The name, or the first of name(2), name(3) ... that is free."""
        found = name
        while found in self._given:
            self._next[name] += 1
            found = f"{name}({self._next[name] + 1})"
        self._given.add(found)
        return found


def clean(name: str, forbidden: Collection[str]) -> str:
    """The name with "_" for each forbidden character, and without empty scopes."""
    plain = "".join("_" if letter in forbidden else letter for letter in name)
    return "/".join(part for part in plain.split("/") if part) or "_"


def renamed(graph: Graph, forbidden: Collection[str]) -> Graph:
    """The graph with names that a viewer takes, and without edges from nodes that it does not have."""
    names = Names()
    new = {node.name: names.unique(clean(node.name, forbidden)) for node in graph.nodes}
    return Graph(
        tuple(
            Node(
                new[node.name],
                node.op,
                tuple(edge._replace(source=new[edge.source]) for edge in node.inputs if edge.source in new),
                node.outputs,
                node.parameters,
                node.attributes,
            )
            for node in graph.nodes
        ),
        graph.name,
    )


def reduced(graph: Graph, limit: int) -> Graph:
    """The graph itself if it has at most `limit` nodes; else its deepest scopes become single nodes.

    As many levels of scopes are kept as fit. If the top level alone has too many nodes, the last of them
    become one node. What was put together is in the attribute `nodes`.
    """
    if len(graph.nodes) <= limit:
        return graph
    paths = {node.name: node.name.split("/") for node in graph.nodes}
    depth = max(map(len, paths.values()))
    places = {name: name for name in paths}
    while depth > 1 and len(set(places.values())) > limit:
        depth -= 1
        places = {name: "/".join(path[:depth]) for name, path in paths.items()}
    if len(found := list(dict.fromkeys(places.values()))) > limit:
        kept = set(found[: limit - 1])
        places = {name: place if place in kept else "more" for name, place in places.items()}
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault(places[node.name], []).append(node)
    return Graph(tuple(_together(name, nodes, places) for name, nodes in groups.items()), graph.name)


def _together(name: str, nodes: list[Node], places: Mapping[str, str]) -> Node:
    """One node for all `nodes`, whose new names are `places`."""
    if len(nodes) == 1 and nodes[0].name == name:
        [node] = nodes
        op, outputs, attributes = node.op, node.outputs, dict(node.attributes)
    else:
        # The last node makes what leaves most scopes.
        op, outputs = "Scope", nodes[-1].outputs
        attributes = {"nodes": f"{len(nodes)}, left out because the graph is too large"}
    inputs = {
        (places[edge.source], edge.is_order): Edge(places[edge.source], 0, edge.is_order)
        for node in nodes
        for edge in node.inputs
        if edge.source in places and places[edge.source] != name
    }
    total = sum(node.parameters for node in nodes)
    return Node(name, op, tuple(inputs.values()), outputs, total, attributes)
