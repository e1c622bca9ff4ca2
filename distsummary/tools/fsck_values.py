"""What single values do to the viewers: the limits of MindInsight 2.3.1, each met in a run of it."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.format.records import Landscape, Value
from distsummary.pb import mindspore_anf_ir_pb2 as anf_ir_pb2

MAX_BUCKETS = 90  # of a histogram; beyond, it is dropped
MAX_TENSOR_ELEMENTS = 10_000_000  # beyond, the tensor is kept empty
MAX_TENSOR_TAGS = 6  # of a directory; the oldest are evicted for good
MAX_TAGS = 300
LOSS_TAG = "loss/auto"  # the scalar that the landscape page asks for
_HOSTILE = frozenset('<>"')  # in a node's name they cost the whole graph


class Problem(NamedTuple):
    """A kind of finding and what there is to say."""

    kind: str
    message: str


def value_problems(value: Value) -> Iterator[Problem]:
    """What is wrong with a value of the MindSpore dialect or of a lineage file."""
    match value.plugin:
        case "histogram" if value.data.left.size > MAX_BUCKETS:
            text = f"the histogram {short(value.tag)} has {value.data.left.size} buckets"
            yield Problem("buckets", f"{text}: MindInsight drops those of more than {MAX_BUCKETS}")
        case "tensor" if value.data.size > MAX_TENSOR_ELEMENTS:
            text = f"the tensor {short(value.tag)} has {value.data.size} elements"
            yield Problem("tensor_elements", f"{text}: MindInsight keeps none above {MAX_TENSOR_ELEMENTS}")
        case "landscape":
            yield from _landscape_problems(value.tag, value.data)
        case "graph":
            yield from _graph_problems(value.data)
        case "eval_lineage":
            yield from metric_problems(value.data.metric)


def _landscape_problems(tag: str, landscape: Landscape) -> Iterator[Problem]:
    if landscape.z.shape != landscape.y.shape + landscape.x.shape or landscape.z.ndim != 2:
        yield Problem("landscape_shape", f"z of the landscape {short(tag)} has the shape {landscape.z.shape}")
    arrays = (landscape.x, landscape.y, landscape.z, landscape.path_x, landscape.path_y, landscape.path_z)
    if not all(np.isfinite(array).all() for array in arrays):
        yield Problem("landscape_not_finite", f"the landscape {short(tag)} holds NaN or infinite numbers")


def _graph_problems(graph: bytes) -> Iterator[Problem]:
    try:
        message = anf_ir_pb2.GraphProto.FromString(graph)
    except DecodeError as error:
        yield Problem("damaged", f"the graph is none ({error})")
        return
    for node in message.node:
        for name in (node.name, node.full_name, node.scope):
            if _HOSTILE & set(name):
                yield Problem("graph_names", f"the node {short(name)} costs MindInsight the whole graph")
                return


def metric_problems(metric: str) -> Iterator[Problem]:
    """What is wrong with the metrics of an evaluation, which are JSON text; empty is none."""
    not_finite: list[str] = []
    try:
        parsed: Any = json.loads(metric or "{}", parse_constant=not_finite.append)  # Any: any JSON
    except (ValueError, RecursionError) as error:
        text = f"the metrics of the evaluation are no JSON ({type(error).__name__}: {short(str(error))})"
        yield Problem("metric", f"{text}: MindInsight loses the lineage of this run and of all behind it")
        return
    if not isinstance(parsed, dict):
        yield Problem("metric", f"the metrics of the evaluation are {short(metric)}, no JSON object")
    elif not_finite:
        yield Problem("metric_not_finite", f"the metrics of the evaluation hold {', '.join(not_finite[:3])}")


def short(text: str) -> str:
    """A name in quotes, its middle cut out when it is long."""
    return repr(text if len(text) <= 80 else f"{text[:50]}...{text[-20:]}")


def tag_key(tag: str) -> str:
    """The tag, or what stands for it in memory when a file holds one of megabytes."""
    return tag if len(tag) <= 1024 else hashlib.sha256(tag.encode(errors="replace")).hexdigest()
