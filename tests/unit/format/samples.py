"""Values of every plugin, as Hypothesis strategies and as single examples."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distsummary.format.histogram import count_histogram
from distsummary.format.mindspore_format import DATA_TYPES
from distsummary.format.norms import ParameterNorms, ParameterTable
from distsummary.format.own_tags import NORMS_TAG
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.png import encode_image
from distsummary.format.records import NORMS, Audio, EventIds, Landscape, Shard, Value

IDS = EventIds("00ff00ff00ff00ff", 2, 41)
TAGS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
WALL_TIMES = st.floats(allow_nan=False)
STEPS = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.floats() | st.sampled_from([0.0, -0.0, 1e300, -1e300, 1e-320])
ARRAYS = st.sampled_from(sorted(DATA_TYPES)).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
SHARDS = st.none() | st.just(Shard(global_shape=(8, 4), offset=(0, 2)))

PICTURE = encode_image(np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5))
HISTOGRAM = count_histogram(np.array([1, 2, np.nan, 4, np.inf], np.float32))
LANDSCAPE = Landscape(
    x=np.linspace(-1, 1, 3), y=np.arange(4.0), z=np.arange(12.0).reshape(4, 3), decomposition="PCA",
    unit="epoch", step_per_epoch=7, convergence_point=(0.0, 0.5, 2.0), intervals=(1, 2, 3),
    path_x=np.array([0.5, 0.25, 0.0], np.float32), path_y=np.array([1.0, 0.5, 0.0], np.float32),
    path_z=np.array([3.0, 2.5, 2.0]),
)  # fmt: skip
SOUND = Audio(rate=8000, channels=2, frames=3, encoded=b"RIFF and the rest")
CURVE = np.arange(12, dtype=np.float32).reshape(6, 2) / 12
GRAPH = anf_ir_pb2.GraphProto(name="net", node=[anf_ir_pb2.NodeProto(name="1", op_type="Add")])
TEXT = "# Größe 大\nwith a line, **bold** and a \0"
TRAIN = lineage_pb2.TrainLineage(algorithm=lineage_pb2.TrainLineage.Algorithm(network="MLP", loss=0.5))
EVALUATION = lineage_pb2.EvaluationLineage(metric='{"acc": 0.5}')
DATASET = lineage_pb2.DatasetGraph(parameter=lineage_pb2.OperationParameter(mapInt={"batch_size": 8}))

SUMMARY_VALUES = [
    Value("scalar", "loss", 0.25),
    Value("tensor", "hidden", np.arange(6, dtype=np.float16).reshape(2, 3)),
    Value("histogram", "weight", HISTOGRAM),
    Value("image", "input", PICTURE),
    Value("landscape", "landscape_[1, 3]", LANDSCAPE),
    Value("text", "note", TEXT),
    Value("audio", "voice", SOUND),
    Value("pr_curve", "cats", CURVE),
]


def custom(**entries: object) -> lineage_pb2.UserDefinedInfo:
    """Custom information as MindSpore's collector writes it: one entry for each key."""
    info = lineage_pb2.UserDefinedInfo()
    for key, entry in entries.items():
        kind = {int: "map_int32", float: "map_double", str: "map_str"}[type(entry)]
        getattr(info.user_info.add(), kind)[key] = entry
    return info


def norms(names: tuple[str, ...] = ("a.weight", "b.größe", "c"), *, step: int = 1) -> Value:
    """The norms of whole small parameters; the last has no gradient, that of the second has NaNs."""
    n = len(names)
    table = ParameterTable(names, ((4,),) * n, (4,) * n, (0,) * n)
    number = np.arange(1.0, n + 1)
    has_gradient = np.arange(n) < n - 1
    return Value(
        NORMS,
        NORMS_TAG,
        ParameterNorms(
            table,
            weight_sums=number**2,
            gradient_sums=np.where(has_gradient, np.where(number == 2, np.nan, step**2 * number), 0.0),
            has_gradient=has_gradient,
            weight_nonfinite=np.zeros(n, np.int64),
            gradient_nonfinite=(number == 2).astype(np.int64) * 3,
            update_sums=np.where(number == 1, 0.25, np.nan),
            update_max=np.where(number == 1, np.float32(0.5), np.float32(np.nan)),
        ),
    )


def with_ids(event: Any, ids: EventIds | None) -> Any:
    """The protobuf event with the identity set the slow way."""
    if ids is not None:
        event.run_id, event.attempt = int(ids.run_id, 16), ids.attempt
        if ids.seq:
            event.seq = ids.seq
    return event


def encoded_value(dialect: Any, value: Value) -> bytes | None:
    """The bytes of a value in a dialect, one of the modules; None if the dialect has no such values."""
    parts = dialect.value_parts(value)
    return None if parts is None else b"".join(parts)


def encoded_summary(
    dialect: Any, step: int, wall_time: float, values: Iterable[Value], ids: EventIds | None = None
) -> bytes:
    """The payload of an event of values in a dialect, without those that it does not have."""
    parts = [found for value in values if (found := dialect.value_parts(value)) is not None]
    return b"".join(dialect.summary_parts(step, wall_time, parts, ids))
