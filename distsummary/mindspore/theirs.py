"""What MindSpore's own collector finds in a training, found by its own functions: both record the same."""

import os
from collections.abc import Mapping
from typing import Any

import mindspore
from mindspore.train import ModelCheckpoint
from mindspore.train.callback._dataset_graph import DatasetGraph

from distsummary.base.guard import guarded_log
from distsummary.base.redaction import redacted
from distsummary.collect.run_lineage import DataFacts
from distsummary.collect.values.messages import lineage_message
from distsummary.format.pb import mindspore_lineage_pb2 as pb

logger = guarded_log(__name__)

_Theirs: Any = mindspore.SummaryCollector


def optimizer_of(params: Mapping[str, Any], network: Any) -> Any:
    """The optimizer of a training: the model's, or the first within its network; None without one."""
    own = params.get("optimizer")
    found = own if own is not None or network is None else _Theirs._parse_optimizer_by_network(network)
    return found if isinstance(found, mindspore.nn.Optimizer) else None


def loss_function_of(params: Mapping[str, Any]) -> Any:
    """The loss function of a training: the model's, or the first within its network; None without one."""
    try:
        return _Theirs._get_loss_fn(params)
    except (KeyError, AttributeError):
        # The loop has no such parameter, or its network is no Cell.
        return None


def backbone_of(network: Any) -> Any:
    """The network whose parameters a landscape needs: without loss, loss scale and optimizer."""
    backbone = _Theirs._get_backbone(network)
    while "network" in backbone.name_cells():
        backbone, has_optimizer = backbone.network, "optimizer" in backbone.name_cells()
        if has_optimizer:
            break
    return backbone


def newest_checkpoint(params: Mapping[str, Any]) -> str | None:
    """The real path of the newest file of the last ModelCheckpoint among the callbacks; None without one."""
    path = None
    for callback in params.get("list_callback") or ():
        if isinstance(callback, ModelCheckpoint):
            path = callback.latest_ckpt_file_name
    return os.path.realpath(path) if path else None


def facts_of(dataset: Any) -> DataFacts:
    """What a data set of MindSpore says of itself; nothing if it is another object."""
    if not hasattr(dataset, "get_batch_size"):
        return DataFacts(None, None, lambda: None)
    return DataFacts(dataset.get_batch_size(), _path_of(dataset), lambda: _graph_of(dataset))


def _path_of(dataset: Any) -> str | None:
    try:
        # MindSpore's method needs an object of its class, but nothing that its constructor makes.
        path = str(_Theirs._get_dataset_path(object.__new__(_Theirs), dataset))
    except IndexError:
        # The data set reads no file.
        return None
    return str(redacted(os.path.dirname(path) if os.path.isfile(path) else path))


def _graph_of(dataset: Any) -> pb.DatasetGraph | None:
    found = DatasetGraph().package_dataset_graph(dataset)
    graph = None if found is None else lineage_message("dataset_graph", found)
    assert isinstance(graph, pb.DatasetGraph | None)
    if graph is not None:
        _redact(graph)
    return graph


def _redact(graph: pb.DatasetGraph) -> None:
    """Replace the secrets among the parameters of data sets and their transforms."""
    operations = (graph.sampler, *graph.operations)
    for one in (graph.parameter, *(operation.operationParam for operation in operations)):
        for name, text in [*one.mapStr.items()]:
            one.mapStr[name] = redacted(text, name)
        for name, texts in one.mapStrList.items():
            texts.strValue[:] = redacted([*texts.strValue], name)
    for child in graph.children:
        _redact(child)
