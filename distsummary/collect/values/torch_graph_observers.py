"""Chooses how the graph of a torch model is drawn."""

from collections.abc import Callable

from torch import nn

from distsummary.collect.values.torch_graph import TreeObserver
from distsummary.collect.values.torch_graph_export import ExportObserver
from distsummary.collect.values.torch_graph_ops import OperationsObserver, can_observe


def observer_of(
    network: nn.Module, how: str, failed: Callable[[Exception], None], report: Callable[[str], None]
) -> TreeObserver | OperationsObserver:
    """Begin to observe a model: "modules", "ops" or "export".

    `failed` takes an exception that ended the observation, `report` says why another graph is drawn.
    """
    if how == "export":
        return ExportObserver(network, failed, report)
    if how == "ops" and can_observe(network):
        return OperationsObserver(network, failed, report)
    if how == "ops":
        report(
            "operations of a compiled model, or of FSDP, are not observed; the graph is the tree of modules"
        )
    return TreeObserver(network, failed)
