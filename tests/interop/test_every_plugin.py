"""One directory with every plugin that there is, written through the public API, in all viewers."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distsummary as ds
from distsummary.events.reader import read_directory
from distsummary.events.segments import segments
from distsummary.events.spec import Limits, WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.records import (
    MINDSPORE,
    NORMS,
    PLUGINS,
    TENSORBOARD,
    Batch,
    Event,
    Landscape,
    Shard,
    Value,
)
from tests.interop.views import differences, own_view, python_view, server_view
from tests.tools.mindinsight_check import Verdict, check
from tests.unit.format import samples

pytestmark = pytest.mark.interop

SHARD_SIZE = 20_000
STEPS = range(1, 6)
TEXT = "Step {}: **bold**, 大 and <b>"
LOSSES = {step: 1.0 / step for step in STEPS}


def graph() -> bytes:
    """Two operators, the second fed by the first."""
    nodes = [
        anf_ir_pb2.NodeProto(
            name="1", op_type="Conv2D", scope="Default/net", full_name="Default/net/Conv2D-op1"
        ),
        anf_ir_pb2.NodeProto(
            name="2", op_type="ReLU", scope="Default/net", full_name="Default/net/ReLU-op2",
            input=[anf_ir_pb2.InputProto(name="1", type=anf_ir_pb2.InputProto.DATA_EDGE)],
        ),
    ]  # fmt: skip
    return anf_ir_pb2.GraphProto(name="net", node=nodes).SerializeToString()


def landscape(**more: Any) -> Landscape:
    """A bowl of 5 x 4 points."""
    x, y = np.linspace(-1, 1, 5), np.linspace(-2, 2, 4)
    return Landscape(
        x=x, y=y, z=x**2 + y[:, None] ** 2, decomposition="PCA", unit="step", step_per_epoch=5,
        convergence_point=(0.0, 0.0, 0.0), **more,
    )  # fmt: skip


def lineage() -> dict[str, Any]:
    """One message of each lineage plugin."""
    kinds = lineage_pb2.TrainLineage
    custom = lineage_pb2.UserDefinedInfo()
    custom.user_info.add().map_str["note"] = "every plugin"
    batch = lineage_pb2.DatasetGraph(parameter=lineage_pb2.OperationParameter(mapInt={"batch_size": 8}))
    batch.parameter.mapStr["op_type"] = "BatchDataset"
    source = lineage_pb2.DatasetGraph()
    source.parameter.mapStr["op_type"] = "GeneratorDataset"
    batch.children.append(source)
    return {
        "train_lineage": kinds(
            algorithm=kinds.Algorithm(network="Net", loss=0.2),
            hyper_parameters=kinds.HyperParameters(optimizer="Adam", epoch=1, batch_size=8),
        ),
        "eval_lineage": lineage_pb2.EvaluationLineage(metric='{"accuracy": 0.75}'),
        "dataset_graph": batch,
        "custom_lineage_data": custom,
    }


def write_norms(directory: Path, formats: tuple[str, ...]) -> None:
    """Scalars with norms, norms alone and scalars alone, in several segments."""
    spec = WriterSpec(directory=directory, run_id="e" * 16, formats=formats, limits=Limits(rotate_bytes=700))
    writer = RankWriter(spec)
    for step in STEPS:
        loss, norms = Value("scalar", "loss", LOSSES[step]), samples.norms(step=step)
        events = [Event(step, float(step), [loss, norms] if step % 2 else [loss]), Event(step, 9.0, [norms])]
        writer.write(Batch(run_id="e" * 16, attempt=0, rank=0, first_seq=2 * step - 1, events=events))
    writer.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base directory with the jobs `everything`, `norms`, `shard` and `tensorboard`."""
    base = tmp_path_factory.mktemp("plugins") / "my runs"
    random = np.random.default_rng(3)
    recorded = set()
    with ds.SummaryRecord(base / "everything") as record:

        def add(plugin: str, tag: str, value: Any) -> None:
            record.add_value(plugin, tag, value)
            recorded.add(plugin)

        for step in STEPS:
            add("scalar", "loss", LOSSES[step])
            add("tensor", "hidden", random.normal(size=(4, 3)).astype(np.float32))
            add("histogram", "weight", random.normal(size=2000).astype(np.float32))
            add("image", "input", random.integers(0, 256, (3, 3, 16, 12), dtype=np.uint8))
            add("text", "remark", TEXT.format(step))
            add("audio", "voice", (random.normal(size=(2, 300)), 8000))
            add("pr_curve", "cats", (random.random(50) < 0.5, random.random(50)))
            if step == 1:
                add("graph", "net", graph())
                for plugin, message in lineage().items():
                    add(plugin, "", message)
            record.record(step)
        path = {name: np.array([0.5, 0.2, 0.0]) for name in ("path_x", "path_y", "path_z")}
        add("landscape", "landscape_[1, 5]", landscape(intervals=(1, 3, 5), **path))
        add("landscape", "landscape_[5]", landscape())
        record.record(0)
        assert record.health().errors == {}
    assert recorded == set(PLUGINS) - {NORMS}
    for name, formats in (("norms", (MINDSPORE, TENSORBOARD)), ("tensorboard", (TENSORBOARD,))):
        write_norms(base / name, formats)
    half = np.random.default_rng(3).normal(size=SHARD_SIZE).astype(np.float32)
    shard = Value("histogram", "weight", half, Shard(global_shape=(2 * SHARD_SIZE,), offset=(0,)))
    writer = RankWriter(WriterSpec(directory=base / "shard", run_id="f" * 16, attempt=0, rank=0))
    writer.write(Batch(run_id="f" * 16, attempt=0, rank=0, first_seq=1, events=[Event(1, 1.0, [shard])]))
    writer.close()
    return base


@pytest.fixture(scope="module")
def verdict(base: Path, mindinsight: Path) -> Verdict:
    return check(base, mindinsight)


@pytest.fixture(scope="module")
def read(verdict: Verdict) -> dict[str, Any]:
    return verdict.jobs["./everything"]


def test_mindinsight_reads_everything_without_a_complaint(verdict: Verdict) -> None:
    assert verdict.complaints == []


def test_mindinsight_shows_the_values_of_every_step(read: dict[str, Any]) -> None:
    scalar = read["scalar"]["loss/scalar"]
    assert (scalar["points"], scalar["last"]) == (len(STEPS), [STEPS[-1]])
    assert scalar["last_value"] == pytest.approx([LOSSES[STEPS[-1]]], rel=1e-6)
    tensor = read["tensor"]["hidden/tensor"]
    assert (tensor["steps"], tensor["dims"], tensor["table"]) == ([*STEPS], [(4, 3)], [4, 3])
    assert read["histogram"]["weight/histogram"]["points"] == len(STEPS)
    assert read["image"]["input/image"]["steps"] == [*STEPS]
    assert read["image"]["input/image"]["width_height"] == (3 * 12, 16)


def test_both_viewers_show_the_fixed_buckets_of_a_shard(verdict: Verdict, base: Path) -> None:
    found = verdict.jobs["./shard"]["histogram"]["weight/histogram"]
    assert found["points"] == 1  # it would drop one of more than 90 buckets
    # It divides them into equal ones itself, and rounds the counts.
    assert found["last_count"] == pytest.approx(SHARD_SIZE, rel=2e-3)
    own = own_view(base / "shard")
    assert [step for step, _ in own.histograms[".", "weight"]] == [1]
    assert differences(python_view(base / "shard"), own) == []
    assert differences(server_view(base / "shard"), own) == []


def test_mindinsight_shows_the_graph_with_its_edge(read: dict[str, Any]) -> None:
    assert {name.rsplit("(")[-1] for name in read["graph"]} == {"normal)", "optimize)"}
    assert all(found["top_nodes"] and found["searchable"] for found in read["graph"].values())


def test_mindinsight_shows_the_lineage_of_every_kind(read: dict[str, Any]) -> None:
    lineage = read["lineage"]
    reported = {name: lineage[name] for name in ("network", "optimizer", "epoch", "batch_size")}
    assert reported == {"network": "Net", "optimizer": "Adam", "epoch": 1, "batch_size": 8}
    assert lineage["loss"] == pytest.approx(0.2)
    assert lineage["metric"] == {"accuracy": 0.75}
    assert lineage["user_defined"] == {"note": "every plugin"}
    assert read["dataset_graph"] == ["BatchDataset", "GeneratorDataset"]


def test_mindinsight_shows_both_landscapes(read: dict[str, Any]) -> None:
    [(span, found)] = read["landscape"]["intervals"].items()
    assert (span, found["grid"], found["path_points"]) == ("[1, 5]", [4, 5], 3)
    assert read["landscape"]["final"]["grid"] == [4, 5]
    assert read["landscape"]["final"]["metadata"]["decomposition"] == "PCA"


def test_mindinsight_knows_nothing_of_texts_sounds_and_pr_curves(read: dict[str, Any]) -> None:
    assert not {"remark", "voice", "cats"} & set(re.findall(r"\w+", str(read)))


def test_both_readers_of_tensorboard_show_what_its_pages_show(base: Path) -> None:
    own = own_view(base / "everything")
    assert own.scalars[".", "loss"] == [(step, np.float32(loss)) for step, loss in LOSSES.items()]
    assert [step for step, _ in own.histograms[".", "weight"]] == [*STEPS]
    assert [step for step, _ in own.images[".", "input"]] == [*STEPS]
    assert own.texts[".", "remark"] == [(step, TEXT.format(step)) for step in STEPS]
    assert [step for step, _ in own.sounds[".", "voice"]] == [*STEPS]
    assert [np.shape(curve) for _, curve in own.curves[".", "cats"]] == [(6, 127)] * len(STEPS)
    assert differences(python_view(base / "everything"), own) == []
    assert differences(server_view(base / "everything"), own) == []


@pytest.mark.parametrize(("name", "carrier"), [("norms", MINDSPORE), ("tensorboard", TENSORBOARD)])
def test_norms_disturb_no_viewer(verdict: Verdict, base: Path, name: str, carrier: str) -> None:
    found = [value for event in read_directory(base / name, carrier) for value in event.values]
    assert sum(value.plugin == NORMS for value in found) == 8
    assert len(segments(base / name, carrier)) > 1
    own = own_view(base / name)
    assert [step for step, _ in own.scalars[".", "loss"]] == [*STEPS]
    assert differences(python_view(base / name), own) == []
    assert differences(server_view(base / name), own) == []
    if carrier == MINDSPORE:
        scalar = verdict.jobs["./norms"]["scalar"]["loss/scalar"]
        assert (scalar["points"], scalar["last"]) == (len(STEPS), [STEPS[-1]])
        assert [*verdict.jobs["./norms"]["scalar"]] == ["loss/scalar"]
