"""A graph as TensorFlow's GraphDef, which TensorBoard draws, and back."""

from google.protobuf.message import DecodeError

from distsummary.errors import DamagedFileError
from distsummary.format.graph import Edge, Graph, Node, TensorType, renamed
from distsummary.format.pb import tensorboard_graph_pb2 as pb

FORBIDDEN = frozenset("^:")  # they have a meaning in the names of inputs
_PARAMETERS, _SHAPES, _DTYPES, _NAME = "parameters", "_output_shapes", "dtype", "_model"
_MAX_TEXT = 900  # bytes; TensorBoard leaves out attributes of more than 1024


def encode(graph: Graph) -> bytes:
    """The bytes of a GraphDef; TensorBoard shows the attributes, and the shapes also on the edges."""
    graph = renamed(graph, FORBIDDEN)
    message = pb.GraphDef()
    for number, node in enumerate(graph.nodes):
        one = message.node.add(name=node.name, op=node.op)
        for edge in node.inputs:
            output = f":{edge.output}" if edge.output and not edge.is_order else ""
            one.input.append(f"{'^' if edge.is_order else ''}{edge.source}{output}")
        if node.outputs:
            shapes = one.attr[_SHAPES].list.shape
            for kind in node.outputs:
                shape = shapes.add()
                for size in kind.shape:
                    shape.dim.add(size=size)
            one.attr[_DTYPES].s = ", ".join(kind.dtype for kind in node.outputs).encode()
        if node.parameters:
            one.attr[_PARAMETERS].i = node.parameters
        for key, text in node.attributes.items():
            one.attr[key].s = text.encode(errors="replace")[:_MAX_TEXT]
        # A GraphDef has no name of its own: the first node carries it.
        if not number and graph.name:
            one.attr[_NAME].s = graph.name.encode(errors="replace")
    return message.SerializeToString(deterministic=True)


def decode(data: bytes) -> Graph:
    """The graph in the bytes of a GraphDef, whether `encode`, torch or TensorFlow made it.

    Raises DamagedFileError for bytes of another kind.
    """
    try:
        message = pb.GraphDef.FromString(data)
    except DecodeError as error:
        raise DamagedFileError(f"not a graph of TensorBoard ({error})") from error
    name = ""
    nodes = []
    for one in message.node:
        attributes, dtypes, shapes, parameters = {}, [], [], 0
        for key in sorted(one.attr):
            value = one.attr[key]
            text = value.s.decode(errors="replace") if value.HasField("s") else ""
            if key == _SHAPES:
                shapes = [tuple(dim.size for dim in shape.dim) for shape in value.list.shape]
            elif key == _DTYPES and text:
                dtypes = text.split(", ")
            elif key == _PARAMETERS and value.HasField("i"):
                parameters = value.i
            elif key == _NAME:
                name = text
            else:
                attributes[key] = (text or " ".join(str(value).split()))[:_MAX_TEXT]
        dtypes += ["?"] * (len(shapes) - len(dtypes))
        outputs = tuple(TensorType(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False))
        nodes.append(Node(one.name, one.op, tuple(map(_edge, one.input)), outputs, parameters, attributes))
    return Graph(tuple(nodes), name)


def _edge(text: str) -> Edge:
    if text.startswith("^"):
        return Edge(text[1:], is_order=True)
    source, _, output = text.rpartition(":")
    return Edge(source, int(output)) if source and output.isdecimal() else Edge(text)
