"""The recorded graph of a model as lists that a browser draws."""

from typing import Any

import numpy as np

from distsummary.base.columns import without_middle
from distsummary.format.mindspore_graph import decode
from distsummary.runs.recorded_run import RecordedRun
from distsummary.view.packing import offsets

_NODES = 5000
_NAME = 300  # characters


def graph(run: RecordedRun) -> dict[str, Any] | None:
    """The newest graph; None if none was recorded.

    Returns `names` (scopes are divided by "/"), `ops`, `outputs` (texts such as float32[8, 10]) and
    `parameters` (counts), one for each node; `sources` and `targets` (E,): the places of the two nodes of
    each edge; `left_out`: how many further nodes there are.
    """
    found = run.graph
    if found is None:
        return None
    nodes = decode(found.SerializeToString()).nodes
    shown = nodes[:_NODES]
    place = {node.name: number for number, node in enumerate(shown)}
    edges = [
        (place[edge.source], number)
        for number, node in enumerate(shown)
        for edge in node.inputs
        if edge.source in place and not edge.is_order
    ]
    ends = np.array(edges, np.int64).reshape(-1, 2)
    return {
        "names": [without_middle(node.name, _NAME) for node in shown],
        "ops": [without_middle(node.op, _NAME) for node in shown],
        "outputs": [without_middle("; ".join(map(str, node.outputs)), _NAME) for node in shown],
        "parameters": [node.parameters for node in shown],
        "sources": offsets(ends[:, 0]),
        "targets": offsets(ends[:, 1]),
        "left_out": len(nodes) - len(shown),
    }
