"""The recorded graph as lists: edges are places of nodes, names are short, a large graph is cut."""

import pytest

import distsummary as ds
from distsummary.format.graph import Edge, Graph, Node, TensorType
from distsummary.format.mindspore_graph import encode
from distsummary.format.records import Value
from distsummary.view import graph_nodes
from distsummary.view.graph_nodes import graph
from tests.unit.runs.recording import record

NODES = (
    Node("x", "Input", outputs=(TensorType((8, 4), "float32"),)),
    Node("net/a", "Linear", (Edge("x"), Edge("elsewhere")), parameters=12),
    Node("net/b", "Add", (Edge("net/a"), Edge("x"), Edge("net/a", is_order=True))),
)


@pytest.fixture
def run(tmp_path):
    record(tmp_path, values=lambda step, rank: [Value("graph", "graph", encode(Graph(NODES)))])
    return ds.open_run(tmp_path)


def test_edges_lead_from_node_to_node_and_what_is_not_there_is_left_out(run):
    found = graph(run)
    assert (found["names"], found["ops"]) == (["x", "net/a", "net/b"], ["Input", "Linear", "Add"])
    assert [*zip(found["sources"].tolist(), found["targets"].tolist(), strict=True)] == [
        (0, 1),
        (1, 2),
        (0, 2),
    ]
    assert (found["outputs"][0], found["parameters"], found["left_out"]) == ("float32[8, 4]", [0, 12, 0], 0)


def test_of_a_large_graph_the_first_nodes_are_there_and_the_others_counted(run, monkeypatch):
    monkeypatch.setattr(graph_nodes, "_NODES", 2)
    found = graph(run)
    assert (found["names"], found["left_out"], found["sources"].tolist()) == (["x", "net/a"], 1, [0])


def test_a_run_without_a_graph_has_none(tmp_path):
    record(tmp_path)
    assert graph(ds.open_run(tmp_path)) is None
