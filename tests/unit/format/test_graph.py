"""The graph of a model: reduced to scopes, and written for both viewers and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.graph_pb2 import GraphDef

from distsummary.errors import DamagedFileError, InvalidValueError
from distsummary.format import mindspore_graph, tensorboard_graph
from distsummary.format.graph import Edge, Graph, Names, Node, TensorType, reduced
from distsummary.format.pb import mindspore_anf_ir_pb2 as pb

FLOAT = TensorType((4, 3), "float32")
NET = Graph(
    (
        Node("x", "Input", outputs=(FLOAT,)),
        Node("body/0", "Linear", (Edge("x"),), (FLOAT,), 12, {"module": "body.0"}),
        Node("body/1", "LSTM", (Edge("body/0"),), (FLOAT, TensorType((), "bfloat16")), 8),
        Node("output", "Output", (Edge("body/1", 1), Edge("body/0", is_order=True)), (FLOAT,)),
    ),
    "Net",
)
LETTERS = st.characters(codec="utf-8", exclude_characters='/<>"^:\0')
SCOPES = st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=3).map("/".join)
TYPES = st.builds(
    TensorType,
    st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    st.sampled_from(["float32", "int64", "bool", "bfloat16", "float8_e4m3fn", "complex64"]),
)
OWN = ("parameters", "outputs", "dtype", "_model", "_output_shapes")
ATTRIBUTES = st.dictionaries(
    st.text(LETTERS, min_size=1, max_size=6).filter(lambda key: key not in OWN),
    st.text(LETTERS, min_size=1, max_size=8),
    max_size=2,
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = draw(st.lists(SCOPES, min_size=1, max_size=6, unique=True))
    nodes = []
    for number, name in enumerate(names):
        outputs = tuple(draw(st.lists(TYPES, max_size=2)))
        edges: list[Edge] = []
        if number:
            before = st.sampled_from(names[:number])
            sources = st.builds(Edge, before, st.integers(0, 1), st.just(False))
            after = st.builds(Edge, before, st.just(0), st.just(True))
            edges = draw(st.lists(sources | after, max_size=3))
        parameters = draw(st.integers(0, 2**40))
        op = draw(st.text(LETTERS, min_size=1, max_size=5))
        nodes.append(Node(name, op, tuple(edges), outputs, parameters, draw(ATTRIBUTES)))
    return Graph(tuple(nodes), draw(st.text(LETTERS, max_size=5)))


@given(graphs())
def test_each_form_gives_back_the_graph(graph: Graph):
    assert mindspore_graph.decode(mindspore_graph.encode(graph)) == graph
    assert tensorboard_graph.decode(tensorboard_graph.encode(graph)) == graph


def test_tensorboard_gets_edges_shapes_and_counts():
    read = GraphDef.FromString(tensorboard_graph.encode(NET))
    assert [list(node.input) for node in read.node] == [[], ["x"], ["body/0"], ["body/1:1", "^body/0"]]
    linear = read.node[1]
    assert (linear.name, linear.op, linear.attr["parameters"].i) == ("body/0", "Linear", 12)
    assert [dim.size for dim in linear.attr["_output_shapes"].list.shape[0].dim] == [4, 3]
    assert linear.attr["dtype"].s == b"float32"


def test_mindinsight_gets_numbered_nodes_with_full_names_and_types():
    read = pb.GraphProto.FromString(mindspore_graph.encode(NET))
    assert [(node.name, node.scope, node.full_name) for node in read.node] == [
        ("1", "", "x"), ("2", "body", "body/0"), ("3", "body", "body/1"), ("4", "", "output"),
    ]  # fmt: skip
    assert [(used.name, used.type) for used in read.node[3].input] == [
        ("3", pb.InputProto.DATA_EDGE),
        ("2", pb.InputProto.CONTROL_EDGE),
    ]
    assert read.node[1].output_type.tensor_type.elem_type == pb.DT_FLOAT32
    assert [dim.size for dim in read.node[1].output_type.tensor_type.shape.dim] == [4, 3]
    assert read.node[2].output_type.data_type == pb.DT_TUPLE


def test_names_that_a_viewer_does_not_take_are_replaced_and_stay_different():
    graph = Graph(
        (Node('a<"', "X"), Node("a__", "X"), Node("//", "X"), Node("b:1", "X", (Edge("a__"), Edge('a<"'))))
    )
    shown = mindspore_graph.decode(mindspore_graph.encode(graph))
    assert [node.name for node in shown.nodes] == ["a__", "a__(2)", "_", "b:1"]
    assert [edge.source for edge in shown.nodes[3].inputs] == ["a__(2)", "a__"]
    assert [node.name for node in tensorboard_graph.decode(tensorboard_graph.encode(graph)).nodes][3] == "b_1"


def test_edges_from_nodes_that_are_not_there_are_left_out():
    graph = Graph((Node("a", "X", (Edge("nowhere"), Edge("a"))),))
    assert mindspore_graph.decode(mindspore_graph.encode(graph)).nodes[0].inputs == (Edge("a"),)


def test_a_graph_of_mindspore_gets_its_parameters_next_to_the_nodes_that_use_them():
    message = pb.GraphProto(name="0_train.1")
    message.parameters.add(name="conv.weight").type.CopyFrom(
        pb.TypeProto(data_type=pb.DT_TENSOR, tensor_type=pb.TypeProto.Tensor(elem_type=pb.DT_FLOAT16))
    )
    message.const_vals.add(key="cst1")
    node = message.node.add(name="7", op_type="Conv2D", scope="Default/conv")
    for source in ("conv.weight", "cst1", "9"):
        node.input.add(name=source)
    pad = {"pad": "3"}
    node.attribute.add(name="pad", value=pb.ValueProto(dtype=pb.DT_INT64, int_val=3))
    assert mindspore_graph.decode(message.SerializeToString()) == Graph(
        (
            Node("Default/conv/conv.weight", "Parameter", (), (TensorType((), "float16"),)),
            Node("Default/conv/Conv2D-op7", "Conv2D", (Edge("Default/conv/conv.weight"),), attributes=pad),
        ),
        "0_train.1",
    )  # fmt: skip


def test_bytes_of_another_kind_are_refused():
    with pytest.raises(InvalidValueError, match="a graph must be the bytes of a GraphProto"):
        mindspore_graph.decode(b"\xff\xff")
    with pytest.raises(DamagedFileError, match="not a graph of TensorBoard"):
        tensorboard_graph.decode(b"\xff\xff")


def nested(count: int) -> Graph:
    """`count` nodes, ten in a layer and ten layers in a block, each with an edge to the next."""
    names = [f"block{i // 100}/layer{i // 10}/op{i}" for i in range(count)]
    return Graph(
        tuple(
            Node(name, "Op", (Edge(names[i - 1]),) if i else (), (FLOAT,), 1) for i, name in enumerate(names)
        )
    )


def test_a_graph_that_is_small_enough_stays_as_it_is():
    assert reduced(NET, 4) is NET


@pytest.mark.parametrize(
    ("limit", "first", "second", "nodes"),
    [(999, "block0/layer0", "block0/layer1", 100), (99, "block0", "block1", 10), (5, "block0", "block1", 5)],
)
def test_a_large_graph_is_reduced_to_its_scopes(limit: int, first: str, second: str, nodes: int):
    small = reduced(nested(1000), limit)
    assert len(small.nodes) == nodes <= limit
    assert [node.name for node in small.nodes[:2]] == [first, second]
    assert small.nodes[1].inputs == (Edge(first),)
    assert sum(node.parameters for node in small.nodes) == 1000
    assert small.nodes[0].attributes["nodes"].startswith("10")
    assert small.nodes[0].outputs == (FLOAT,)


def test_a_large_graph_without_scopes_is_cut_at_the_end():
    flat = Graph(tuple(Node(str(i), "Op", parameters=2) for i in range(100)))
    small = reduced(flat, 10)
    assert [node.name for node in small.nodes] == [*map(str, range(9)), "more"]
    assert small.nodes[-1].parameters == 2 * 91


def test_names_stay_unique():
    names = Names(["a"])
    assert [names.unique(name) for name in ("a", "a", "a(2)", "b")] == ["a(2)", "a(3)", "a(2)(2)", "b"]
