"""The recorded graph as a file for Model Explorer."""

import json

import pytest

from distsummary.cli.main import main
from distsummary.cli.model_graph import model_graph
from distsummary.collect.record import SummaryRecord
from distsummary.errors import MissingFileError
from distsummary.format import mindspore_graph
from distsummary.format.graph import Edge, Graph, Node, TensorType

KIND = TensorType((2, 3), "float32")


def write(directory, name, **options):
    graph = Graph((Node("x", "Input", (), (KIND,)), Node(f"net/{name}", "Linear", (Edge("x"),))), "Net")
    with SummaryRecord(directory, **options) as record:
        record.add_value("graph", None, mindspore_graph.encode(graph))
        record.record(1)


@pytest.mark.parametrize("formats", [("mindspore",), ("tensorboard",), ("mindspore", "tensorboard")])
def test_the_newest_graph_of_a_run_is_printed(tmp_path, capsys, formats):
    write(tmp_path, "old", formats=formats)
    write(tmp_path, "new", formats=formats)
    assert main(["dump", str(tmp_path), "--graph"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["label"], document["graphs"][0]["id"]) == (tmp_path.name, "Net")
    assert [node["id"] for node in document["graphs"][0]["nodes"]] == ["x", "net/new"]
    assert document["graphs"][0]["nodes"][1]["incomingEdges"][0]["sourceNodeId"] == "x"


def test_of_a_run_that_is_not_merged_it_is_that_of_the_first_rank_that_has_one(tmp_path):
    with SummaryRecord(tmp_path / "rank_00000") as record:
        record.scalars(1, {"loss": 1.0})
    write(tmp_path / "rank_00001", "second")
    assert model_graph(tmp_path)["graphs"][0]["nodes"][1]["label"] == "second"


def test_a_run_without_a_graph_says_how_to_get_one(tmp_path):
    with SummaryRecord(tmp_path) as record:
        record.scalars(1, {"loss": 1.0})
    with pytest.raises(MissingFileError, match=r"there is no graph in .*; rank 0 records it .* watch=model"):
        model_graph(tmp_path)
