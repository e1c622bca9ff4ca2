"""The graph of the watched model, recorded once, as soon as the model has been called."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from distsummary.base.failures import Failures
from distsummary.base.guard import guarded_log
from distsummary.collect.options import OPERATIONS
from distsummary.collect.values.messages import graph_bytes
from distsummary.collect.values.sources import Source
from distsummary.format import mindspore_graph
from distsummary.format.graph import MAX_NODES, Graph, reduced
from distsummary.format.own_tags import AUTO
from distsummary.format.records import Value
from distsummary.frameworks.base import framework_of
from distsummary.rundir.deal import Steps
from distsummary.training.callbacks import CallbackParams
from distsummary.training.step_context import StepContext

logger = guarded_log(__name__)

TAG = f"train_network{AUTO}"  # MindSpore's name; the files have no place for it


class Observer(Protocol):
    """Observes a model until it has seen a forward pass."""

    @property
    def is_ready(self) -> bool:
        """Whether waiting brings no more."""

    def check_compilations(self) -> None:
        """Called before each step."""

    def graph(self) -> Graph | bytes:
        """What was seen, or what MindSpore compiled (b"" for nothing); ends the observation."""

    def close(self) -> None:
        """End the observation; a second call does nothing."""


def observe(
    network: Any,
    how: str,
    failed: Callable[[Exception], None],
    report: Callable[[str], None] = logger.warning,
) -> Observer | None:
    """Begin to observe a model; None for a model whose framework has no modules to draw.

    `failed` takes an exception that ended the observation, `report` says why another graph is drawn.
    """
    name = framework_of(network).name
    if name == "mindspore":
        from distsummary.frameworks.mindspore import CompiledGraph

        return CompiledGraph(network)
    if name != "torch":
        return None
    if how == OPERATIONS:
        from distsummary.collect.values.torch_graph_ops import OperationsObserver, can_observe

        if can_observe(network):
            return OperationsObserver(network, failed, report)
        report(
            "operations of a compiled model, or of FSDP, are not observed; the graph is the tree of modules"
        )
    from distsummary.collect.values.torch_graph import TreeObserver

    return TreeObserver(network, failed)


def graph_value(graph: Graph, report: Callable[..., None] = logger.warning) -> Value:
    """A graph as a value; one that is too large for the viewers is reduced, and `report` says so."""
    small = reduced(graph, MAX_NODES)
    if small is not graph:
        report(
            "the graph of %s has %d nodes, and the viewers draw %d at most: its deepest scopes are recorded "
            "as %d single nodes",
            graph.name,
            len(graph.nodes),
            MAX_NODES,
            len(small.nodes),
        )
    return Value("graph", TAG, mindspore_graph.encode(small))


def _value_of(observer: Observer) -> Value | None:
    graph = observer.graph()
    # What MindSpore has compiled comes as bytes of its own message.
    if isinstance(graph, bytes):
        return Value("graph", TAG, graph_bytes(graph)) if graph else None
    return graph_value(graph) if graph.nodes else None


class ModelGraph(Source):
    """The graph at the end of the first step in which the model was called, and never again.

    Args:
        steps: when to look again if the model was not called in the first step.
        how: options.TREE or OPERATIONS.
    """

    what = "graph"

    def __init__(self, steps: Steps, failures: Failures, how: str) -> None:
        self._steps, self._failures, self._how = steps, failures, how
        self._observer: Observer | None = None

    def watch(self, network: object) -> None:
        """Begin to observe a model; raises if that cannot be done."""
        self.close()
        self._observer = observe(network, self._how, partial(self._failures.fail, self.what))

    def begin(self, params: CallbackParams) -> None:
        """See `Source`."""
        self.check_compilations()

    def check_compilations(self) -> None:
        """Called before a step, if the model has not been called yet."""
        if self._observer is not None:
            self._observer.check_compilations()

    def plan(self, last: int) -> None:
        """See `Source`."""
        self.at = math.inf if self._observer is None else self._steps.after(last)

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`."""
        return self.take()

    def take(self) -> list[Value]:
        """The graph, once, as soon as the model was called."""
        return self.rest() if self._observer is not None and self._observer.is_ready else []

    def rest(self) -> list[Value]:
        """The graph, if it was not recorded yet: at the end, of a model that was not called too."""
        observer, self._observer = self._observer, None
        value = None if observer is None else self._failures.call(self.what, _value_of, observer)
        return [] if value is None else [value]

    def close(self) -> None:
        """Leave nothing on the model."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.close()
