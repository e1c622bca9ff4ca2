"""TensorBoard's page GRAPHS and MindInsight's computational graph read the graph of a model."""

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from google.protobuf import text_format
from tensorboard.compat.proto.graph_pb2 import GraphDef
from torch import nn

import distsummary as ds
from tests.interop.conftest import Demo
from tests.tools.mindinsight_check import check

pytestmark = pytest.mark.interop

LAYER = ["self_attn", "dropout1", "norm1", "linear1", "dropout", "linear2", "dropout2", "norm2"]
WAYS = {"tree": "modules", "ops": "ops"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer, recorded in each way."""
    base = tmp_path_factory.mktemp("graphs")
    for name, way in WAYS.items():
        net = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        with ds.init(base / name, watch=net, graph=way, quiet=True) as run:
            for _ in run.steps(range(2)):
                run.log(loss=net(torch.ones(2, 3, 16)).sum())
    return base


class Server:
    """A TensorBoard."""

    def __init__(self, logdir: Path) -> None:
        command = Path(sys.executable).with_name("tensorboard")
        self._process = subprocess.Popen(
            [str(command), "--logdir", str(logdir), "--port", "0", "--load_fast", "false"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"http://localhost:\d+/", line):
                self.url = found[0]
                return
        raise AssertionError("TensorBoard did not start")

    def graph(self, run: str) -> GraphDef:
        """What the page GRAPHS gets of a run."""
        url = f"{self.url}data/plugin/graphs/graph?run={run}&conceptual=false"
        for last_try in (*[False] * 30, True):
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    return text_format.Parse(answer.read().decode(), GraphDef())
            except urllib.error.HTTPError:  # it is still reading the files
                if last_try:
                    raise
                time.sleep(1)
        raise AssertionError

    def close(self) -> None:
        self._process.terminate()
        self._process.stderr.read()  # it says that it exits, and hangs if no one listens
        self._process.wait()
        self._process.stderr.close()


@pytest.fixture(scope="module")
def tensorboard(recorded: Path) -> Iterator[Server]:
    server = Server(recorded)
    yield server
    server.close()


def test_tensorboard_gets_the_modules_their_shapes_and_edges(tensorboard: Server) -> None:
    graph = tensorboard.graph("tree")
    nodes = {node.name: node for node in graph.node}
    assert list(nodes) == ["src", *(f"layers.{i}/{part}" for i in range(2) for part in LAYER), "output"]
    linear = nodes["layers.0/linear1"]
    assert (linear.op, list(linear.input), linear.attr["parameters"].i) == (
        "Linear", ["layers.0/norm1"], 16 * 32 + 32,
    )  # fmt: skip
    assert [dim.size for dim in linear.attr["_output_shapes"].list.shape[0].dim] == [2, 3, 32]
    residual = ["layers.0/norm2", "layers.1/dropout1"]
    assert list(nodes["layers.1/norm1"].input) == residual


def test_tensorboard_gets_the_operations(tensorboard: Server) -> None:
    graph = tensorboard.graph("ops")
    assert "layers.1/linear2/addmm" in {node.name for node in graph.node}
    assert graph.node[-1].op == "Output"


def test_mindinsight_draws_each_graph(recorded: Path, mindinsight: Path) -> None:
    verdict = check(recorded, mindinsight)
    assert verdict.complaints == []
    for way in WAYS:
        graphs = verdict.jobs[f"./{way}"]["graph"]
        assert len(graphs) == 2  # normal and optimized
        assert all(found["top_nodes"] == 4 for found in graphs.values())  # src, layers.0, layers.1, output


def test_the_merged_run_of_the_demo_has_its_model(demo: Demo) -> None:
    server = Server(demo.run_dir)
    try:
        graph = server.graph(".")
    finally:
        server.close()
    assert [(node.name, node.op) for node in graph.node] == [
        ("x", "Input"), ("conv1", "Conv2d"), ("conv2", "Conv2d"), ("fc", "Linear"), ("output", "Output"),
    ]  # fmt: skip
