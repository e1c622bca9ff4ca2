"""Real MindSpore files: every record is understood, and made again from its inputs bit for bit."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from google.protobuf.json_format import MessageToDict

import distsummary as ds
from distsummary.events.reader import read_directory, read_file, read_lineage
from distsummary.events.segments import dialect_of
from distsummary.format import mindspore_format
from distsummary.format.compatibility import AS_MINDSPORE
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame, read_frames
from distsummary.format.histogram import count_histogram
from distsummary.format.lineage import encode_lineage_message
from distsummary.format.pb import mindspore_checkpoint_pb2 as checkpoint_pb2
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.pb import mindspore_summary_pb2 as summary_pb2
from distsummary.format.png import encode_image
from distsummary.format.records import LINEAGE_PLUGINS, Event, Histogram, Image, Landscape
from tests.formats.golden import EVENT_FILES, GOLDEN, decoded

SPECIAL = GOLDEN / "special_values"


@pytest.mark.parametrize("file", EVENT_FILES)
def test_every_record_decodes_to_what_mindspore_decodes(file: str):
    frames = list(read_frames(GOLDEN / file))
    expected = decoded(file)
    assert [(f.offset, len(f.payload), f.damage) for f in frames] == [
        (record["offset"], record["payload_len"], None) for record in expected
    ]
    message_class = lineage_pb2.LineageEvent if dialect_of(file) == "lineage" else summary_pb2.Event
    for found, record in zip(frames, expected, strict=True):
        event = message_class.FromString(found.payload)
        assert as_decoded(event) == record["event"]
        if "has_step" in record:
            assert event.HasField("step") == record["has_step"]


@pytest.mark.parametrize("file", EVENT_FILES)
def test_every_record_is_encoded_to_the_bytes_of_mindspore(file: str):
    frames = {f.offset: f.payload for f in read_frames(GOLDEN / file)}
    events = list(read_file(GOLDEN / file))
    assert len(events) == len(frames) - (dialect_of(file) == "mindspore")  # all but the version record
    for event in events:
        assert encoded_again(event) == frames[event.offset]


def test_frames_have_the_bytes_of_mindspore():
    for file in EVENT_FILES:
        data = (GOLDEN / file).read_bytes()
        assert b"".join(frame(f.payload) for f in read_frames(GOLDEN / file)) == data


def test_the_version_record_has_the_bytes_of_mindspore():
    for file in EVENT_FILES:
        if dialect_of(file) == "mindspore":
            first = next(read_frames(GOLDEN / file))
            wall_time = decoded(file)[0]["event"]["wall_time"]
            assert mindspore_format.encode_version(wall_time) == first.payload


def test_a_record_is_that_of_mindspore_for_every_accepted_value(tmp_path: Path):
    """Through the public door: the values that MindSpore was given, in the steps and order of its log."""
    inputs = np.load(SPECIAL / "inputs.npz")
    written = [
        (event.step, value)
        for event in read_directory(SPECIAL / "summary")
        for value in event.values
        if f"{value.plugin}__{value.tag}" in inputs
    ]
    with ds.SummaryRecord(tmp_path, formats=("mindspore",), mindspore_compat=True) as record:
        for step, value in written:
            record.add_value(value.plugin, value.tag, inputs[f"{value.plugin}__{value.tag}"])
            record.record(step)
        assert not record.health().dropped
    again = [(e.step, v) for e in read_directory(tmp_path) for v in e.values]
    assert len(again) == len(written) == 51
    for (step, ours), (their_step, theirs) in zip(again, written, strict=True):
        assert (step, ours.plugin, ours.tag) == (their_step, theirs.plugin, theirs.tag)
        if ours.plugin == "histogram":
            assert_same(ours.data, theirs.data)
        elif ours.plugin == "image":
            assert_same_picture(ours.data, theirs.data)
        else:
            pair = [Event(1, 0.0, [value]) for value in (ours, theirs)]
            assert encoded_again(pair[0]) == encoded_again(pair[1])


def test_input_images_of_a_training_are_drawn_as_mindspore_does():
    batches = np.load(GOLDEN / "lenet_images" / "data.npz")["x"].reshape(3, 10, 1, 12, 12)
    drawn = [
        (event.step, value.data)
        for event in read_directory(GOLDEN / "lenet_images" / "summary")
        for value in event.values
        if value.plugin == "image"
    ]
    assert len(drawn) >= 8
    for step, image in drawn:
        assert_same_picture(encode_image(batches[(step - 1) % 3], compatibility=AS_MINDSPORE), image)


def test_histograms_of_parameters_are_counted_as_mindspore_does():
    compared = 0
    summary = GOLDEN / "mlp_train_eval" / "summary"
    for event in read_directory(summary):
        checkpoint = summary / "ckpt_dir" / f"MLP_{event.step}_step.ckpt"
        if checkpoint.exists():
            parameters = float32_parameters(checkpoint)
            for value in event.values:
                if value.plugin == "histogram":
                    assert_same(count_histogram(parameters[value.tag.removesuffix("/auto")]), value.data)
                    compared += 1
    assert compared == 16  # four parameters at the steps 1, 2, 4 and 6


def test_landscapes_are_read_with_their_path():
    events = list(read_directory(GOLDEN / "landscape_pca_random" / "summary"))
    pca, _, random = (event.values[0].data for event in events)
    assert isinstance(pca, Landscape)
    assert isinstance(random, Landscape)
    assert (pca.x.shape, pca.y.shape, pca.z.shape) == ((7,), (7,), (7, 7))
    assert (pca.decomposition, pca.unit, pca.step_per_epoch) == ("PCA", "step", 3)
    assert pca.intervals == (1, 2, 3, 4)
    assert pca.path_x.shape == pca.path_y.shape == pca.path_z.shape == (4,)
    assert pca.convergence_point == (0, 0, pytest.approx(0.8035748))
    assert (random.decomposition, random.intervals, random.path_x.size) == ("Random", (), 0)


def test_lineage_of_training_and_evaluation_is_one():
    lineage = read_lineage(GOLDEN / "mlp_train_eval" / "summary")
    assert lineage.train.hyper_parameters.optimizer == "Momentum"
    assert json.loads(lineage.evaluation.metric)["acc"] == 0.5
    assert lineage.dataset_graph is not None
    assert [MessageToDict(entry, preserving_proto_field_name=True) for entry in lineage.custom.user_info] == [
        {"map_str": {"note": "mlp"}},
        {"map_int32": {"k": 3}},
        {"map_double": {"lr2": 0.25}},
    ]


def test_the_last_custom_information_of_a_file_counts():
    lineage = read_lineage(GOLDEN / "max_file_size" / "summary")
    assert [dict(entry.map_int32) for entry in lineage.custom.user_info] == [{"s": 12}]


def as_decoded(event: Any) -> dict[str, Any]:
    """The message in the form of decoded.json: graphs summarised, pictures with their hash."""
    reported = MessageToDict(event, preserving_proto_field_name=True)
    if reported.pop("graph_def", None):
        graph = event.graph_def
        reported["graph_def_summary"] = {
            "name": graph.name,
            "n_node": len(graph.node),
            "n_parameters": len(graph.parameters),
            "n_outputs": len(graph.outputs),
            "n_const": len(graph.const_vals),
            "op_types": sorted({node.op_type for node in graph.node}),
            "sha256": hashlib.sha256(graph.SerializeToString()).hexdigest(),
            "bytes": graph.ByteSize(),
            "has_step": event.HasField("step"),
        }
    values = event.summary.value if isinstance(event, summary_pb2.Event) else []
    for value, message in zip(reported.get("summary", {}).get("value", []), values, strict=True):
        if "image" in value:
            value["image"]["png_sha256"] = hashlib.sha256(message.image.encoded_image).hexdigest()
    return reported


def encoded_again(event: Any) -> bytes:
    """The payload of what was read."""
    if event.values and event.values[0].plugin in LINEAGE_PLUGINS:
        (value,) = event.values
        return encode_lineage_message(value.plugin, value.data, event.wall_time)
    payloads, refused = encode_event(Event(event.step, event.wall_time, event.values), None, ("mindspore",))
    assert refused == []
    payload = payloads["mindspore"]
    assert payload is not None
    if event.values and event.values[0].plugin == "landscape" and event.values[0].data.intervals:
        # MindSpore's end of a path stands at the integers (0, 0), which are floats in a Landscape.
        message = summary_pb2.Event.FromString(payload)
        end = message.summary.value[0].loss_landscape.convergence_point
        end.x.data_type = end.y.data_type = mindspore_format.DATA_TYPES["int64"]
        return message.SerializeToString()
    return payload


def float32_parameters(path: Path) -> dict[str, np.ndarray]:
    """Name to array of a MindSpore checkpoint of float32 parameters."""
    message = checkpoint_pb2.Checkpoint.FromString(path.read_bytes())
    return {
        value.tag: np.frombuffer(value.tensor.tensor_content, "<f4").reshape(value.tensor.dims)
        for value in message.value
    }


def assert_same(one: Histogram, other: Histogram) -> None:
    for name in ("left", "width", "counts"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    for name in ("count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max", "sum"):
        assert getattr(one, name) == getattr(other, name), name


def assert_same_picture(one: Image, other: Image) -> None:
    assert (one.height, one.width, one.colorspace) == (other.height, other.width, other.colorspace)
    pixels = [np.asarray(PIL.Image.open(io.BytesIO(image.encoded))) for image in (one, other)]
    assert np.array_equal(*pixels)
