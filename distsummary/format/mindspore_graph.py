"""A graph as MindSpore's GraphProto, which MindInsight draws, and back."""

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from distsummary.errors import InvalidValueError
from distsummary.format.graph import PARAMETER, Edge, Graph, Names, Node, TensorType, renamed
from distsummary.format.pb import mindspore_anf_ir_pb2 as pb

FORBIDDEN = frozenset('<>"')  # one of them in a name makes MindInsight drop the whole graph
_PARAMETERS, _OUTPUTS = "parameters", "outputs"
_DTYPES = {
    "bool": pb.DT_BOOL, "int8": pb.DT_INT8, "int16": pb.DT_INT16, "int32": pb.DT_INT32, "int64": pb.DT_INT64,
    "uint8": pb.DT_UINT8, "uint16": pb.DT_UINT16, "uint32": pb.DT_UINT32, "uint64": pb.DT_UINT64,
    "float16": pb.DT_FLOAT16, "float32": pb.DT_FLOAT32, "float64": pb.DT_FLOAT64,
}  # fmt: skip
_NAMES = {number: name for name, number in _DTYPES.items()} | {
    pb.DT_BFLOAT16: "bfloat16",  # MindSpore writes it, but MindInsight 2.3 does not know it
    pb.DT_COMPLEX64: "complex64",
    pb.DT_COMPLEX128: "complex128",
}
_VALUES = {
    pb.DT_INT64: "int_val", pb.DT_FLOAT32: "float_val", pb.DT_FLOAT64: "double_val",
    pb.DT_STRING: "str_val", pb.DT_BOOL: "bool_val", pb.DT_INT32: "int_val",
}  # fmt: skip
_MAX_TEXT = 900  # characters; MindInsight leaves out attributes of more than 1024 bytes


def encode(graph: Graph) -> bytes:
    """The bytes of a GraphProto."""
    graph = renamed(graph, FORBIDDEN)
    ids = {node.name: str(number) for number, node in enumerate(graph.nodes, 1)}
    message = pb.GraphProto(name=graph.name)
    for node in graph.nodes:
        one = message.node.add(name=ids[node.name], op_type=node.op, scope=node.scope, full_name=node.name)
        for edge in node.inputs:
            kind = pb.InputProto.CONTROL_EDGE if edge.is_order else pb.InputProto.DATA_EDGE
            one.input.add(name=ids[edge.source], type=kind, output=edge.output or None)
        _put_types(one, node.outputs)
        shown = dict(node.attributes)
        # Dtypes that the message cannot name are kept in a text, which `decode` reads.
        if any(kind.dtype not in _DTYPES for kind in node.outputs):
            shown[_OUTPUTS] = "; ".join(map(str, node.outputs))
        if node.parameters:
            number = pb.ValueProto(dtype=pb.DT_INT64, int_val=node.parameters)
            one.attribute.add(name=_PARAMETERS, value=number)
        for key, text in shown.items():
            one.attribute.add(name=key, value=pb.ValueProto(dtype=pb.DT_STRING, str_val=text[:_MAX_TEXT]))
    return message.SerializeToString(deterministic=True)


def _put_types(node: pb.NodeProto, types: tuple[TensorType, ...]) -> None:
    if len(types) == 1:
        node.output_type.CopyFrom(_type_proto(types[0]))
    elif types:
        node.output_type.data_type = pb.DT_TUPLE
        node.output_type.sequence_type.elem_types.extend(map(_type_proto, types))


def _type_proto(kind: TensorType) -> pb.TypeProto:
    message = pb.TypeProto(data_type=pb.DT_TENSOR)
    message.tensor_type.elem_type = _DTYPES.get(kind.dtype, pb.DT_UNDEFINED)
    for size in kind.shape:
        message.tensor_type.shape.dim.add(size=size)
    message.tensor_type.shape.SetInParent()
    return message


def decode(data: bytes) -> Graph:
    """The graph in the bytes of a GraphProto, whether `encode` or MindSpore made it.

    MindSpore's constants are left out; a parameter becomes a node next to the first node that uses it.
    Raises InvalidValueError for bytes of another kind.
    """
    try:
        message = pb.GraphProto.FromString(data)
    except DecodeError as error:
        raise InvalidValueError(f"a graph must be the bytes of a GraphProto ({error})") from error
    names = Names()
    known = {
        node.name: names.unique(
            node.full_name or "/".join(filter(None, (node.scope, f"{node.op_type}-op{node.name}")))
        )
        for node in message.node
    }
    kinds = {one.name: tuple(_types(one.type)) for one in message.parameters}
    nodes: list[Node] = []
    for one in message.node:
        name = known[one.name]
        for used in one.input:
            if used.name in kinds and used.name not in known:
                place = "/".join(filter(None, (name.rpartition("/")[0], used.name.replace("/", "."))))
                known[used.name] = names.unique(place)
                nodes.append(Node(known[used.name], PARAMETER, outputs=kinds[used.name]))
        nodes.append(_node(one, known))
    return Graph(tuple(nodes), message.name)


def _node(one: pb.NodeProto, known: dict[str, str]) -> Node:
    attributes, parameters = {}, 0
    for attribute in one.attribute:
        if attribute.name == _PARAMETERS and attribute.value.dtype == pb.DT_INT64:
            parameters = attribute.value.int_val
        else:
            attributes[attribute.name] = _text(attribute.value)
    outputs = tuple(_types(one.output_type))
    if _OUTPUTS in attributes and len(words := attributes[_OUTPUTS].split("; ")) == len(outputs):
        exact = [word.partition("[")[0] for word in words]
        outputs = tuple(kind._replace(dtype=name) for kind, name in zip(outputs, exact, strict=True))
        del attributes[_OUTPUTS]
    inputs = tuple(
        Edge(known[used.name], used.output, used.type == pb.InputProto.CONTROL_EDGE)
        for used in one.input
        if used.name in known
    )
    return Node(known[one.name], one.op_type, inputs, outputs, parameters, attributes)


def _types(message: pb.TypeProto) -> Iterator[TensorType]:
    """The types of the tensors in a type, those of nested tuples one after the other."""
    if message.HasField("tensor_type"):
        shape = tuple(dim.size for dim in message.tensor_type.shape.dim)
        yield TensorType(shape, _NAMES.get(message.tensor_type.elem_type, "?"))
    for inner in message.sequence_type.elem_types:
        yield from _types(inner)


def _text(value: pb.ValueProto) -> str:
    """A value of an attribute as a viewer should show it; long ones are cut."""
    name = _VALUES.get(value.dtype)
    plain = str(getattr(value, name)) if name else " ".join(str(value).split())
    return plain[:_MAX_TEXT]
