"""Checks single values against the limits of MindInsight 2.3.1; each limit was observed by running it."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.format.mindspore_format import MAX_BUCKETS
from distsummary.format.records import Landscape, Value
from distsummary.pb import mindspore_anf_ir_pb2 as anf_ir_pb2

MAX_TENSOR_ELEMENTS = 10_000_000  # a larger tensor is shown empty
MAX_TENSOR_TAGS = 6  # in a directory; with more, MindInsight forgets the oldest tags for good
MAX_TAGS = 300  # tags that MindInsight shows per directory
LOSS_TAG = "loss/auto"  # the scalar that the landscape page requires
_HOSTILE = frozenset('<>"')  # one of these characters in a node's name makes the whole graph disappear


class Problem(NamedTuple):
    """The kind (a key of KINDS) and the message of a finding."""

    kind: str
    message: str


def value_problems(value: Value) -> Iterator[Problem]:
    """Yields what is wrong with a value of the MindSpore dialect or of a lineage file."""
    match value.plugin:
        case "histogram" if value.data.first_fixed is None and value.data.left.size > MAX_BUCKETS:
            text = f"the histogram {short(value.tag)} has {value.data.left.size} buckets"
            yield Problem("buckets", f"{text}: MindInsight drops histograms of more than {MAX_BUCKETS}")
        case "tensor" if value.data.size > MAX_TENSOR_ELEMENTS:
            text = f"the tensor {short(value.tag)} has {value.data.size} elements"
            yield Problem("tensor_elements", f"{text}: MindInsight keeps at most {MAX_TENSOR_ELEMENTS}")
        case "landscape":
            grid: Landscape = value.data
            if grid.z.shape != grid.y.shape + grid.x.shape or grid.z.ndim != 2:
                text = f"z of the landscape {short(value.tag)} has the shape {grid.z.shape}"
                yield Problem("landscape_shape", text)
            arrays = (grid.x, grid.y, grid.z, grid.path_x, grid.path_y, grid.path_z)
            if not all(np.isfinite(array).all() for array in arrays):
                text = f"the landscape {short(value.tag)} holds NaN or infinite numbers"
                yield Problem("landscape_not_finite", text)
        case "graph":
            try:
                message = anf_ir_pb2.GraphProto.FromString(value.data)
            except DecodeError as error:
                yield Problem("damaged", f"the graph cannot be decoded ({error})")
                return
            for node in message.node:
                for name in (node.name, node.full_name, node.scope):
                    if _HOSTILE & set(name):
                        text = f"because of the node {short(name)} MindInsight shows nothing of the graph"
                        yield Problem("graph_names", text)
                        return
        case "eval_lineage":
            yield from metric_problems(value.data.metric)


def metric_problems(metric: str) -> Iterator[Problem]:
    """Yields what is wrong with the metrics of an evaluation, as JSON text; empty text means no metrics."""
    not_finite: list[str] = []
    try:
        parsed: Any = json.loads(metric or "{}", parse_constant=not_finite.append)  # Any: any JSON
    except (ValueError, RecursionError) as error:
        text = f"the metrics of the evaluation are not JSON ({type(error).__name__}: {short(str(error))})"
        yield Problem("metric", f"{text}: MindInsight loses the lineage of this run and of all that follow")
        return
    if not isinstance(parsed, dict):
        yield Problem("metric", f"the metrics of the evaluation are {short(metric)}, not a JSON object")
    elif not_finite:
        yield Problem("metric_not_finite", f"the metrics of the evaluation hold {', '.join(not_finite[:3])}")


def short(text: str) -> str:
    """The text in quotes, shortened in the middle if it is long."""
    return repr(text if len(text) <= 80 else f"{text[:50]}...{text[-20:]}")


def tag_key(tag: str) -> str:
    """The tag, or its hash if the tag is very long, to save memory."""
    return tag if len(tag) <= 1024 else hashlib.sha256(tag.encode(errors="replace")).hexdigest()
