"""The charts of TensorBoard's page CUSTOM SCALARS: the bytes are its own plugin's; readers give them back."""

import pytest
from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import layout_pb2, metadata
from tensorboard.util import tensor_util

from distsummary.aggregate.charts import LAYOUT_TAG, charts
from distsummary.errors import DamagedFileError, InvalidTypeError
from distsummary.format.encode import encode_event, finish_value
from distsummary.format.records import MINDSPORE, TENSORBOARD, Event, EventIds, Value
from distsummary.format.tensorboard_format import decode_event

IDS = EventIds(run_id="00000000000000ff", attempt=1, seq=7)
STATISTICS = {f"zz_ranks/loss/{name}" for name in ("min", "median", "max", "argmax_rank")}
# The bytes that TensorBoard 2.21's `custom_scalar.summary.pb(REPORTED)` returns with TensorFlow 2.21.
GOLDEN = bytes.fromhex(
    "0ab9010a18637573746f6d5f7363616c6172735f5f636f6e6669675f5f42880108071200428101127f0a166c6f737320616e64206c6561"
    "726e696e67207261746512360a166c6f73733a206d65616e2c206d696e20746f206d61781a1c0a1a0a046c6f737312086c6f73732f6d69"
    "6e1a086c6f73732f6d6178122d0a156c6f73733a2072616e6b206f6620746865206d617812140a125e6c6f73732f6172676d61785f7261"
    "6e6b244a120a100a0e637573746f6d5f7363616c617273"
)


def margin(title: str, value: str, lower: str, upper: str) -> layout_pb2.Chart:
    series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
    return layout_pb2.Chart(title=title, margin=layout_pb2.MarginChartContent(series=[series]))


def layout(*charts: layout_pb2.Chart) -> layout_pb2.Layout:
    return layout_pb2.Layout(category=[layout_pb2.Category(title="loss and learning rate", chart=charts)])


REPORTED = layout(
    margin("loss: mean, min to max", "loss", "loss/min", "loss/max"),
    layout_pb2.Chart(
        title="loss: rank of the max", multiline=layout_pb2.MultilineChartContent(tag=["^loss/argmax_rank$"])
    ),
)
OURS = layout(
    margin("loss: rank of the max", *["zz_ranks/loss/argmax_rank"] * 3),
    margin("loss: median, min to max", "zz_ranks/loss/median", "zz_ranks/loss/min", "zz_ranks/loss/max"),
)


def payload(value: Value | None, ids: EventIds | None = IDS) -> bytes:
    assert value is not None
    payloads, refused = encode_event(Event(2, 14.0, [value]), ids)
    assert not refused
    assert payloads[MINDSPORE] is None  # its seq is missing in MindSpore's dialect
    encoded = payloads[TENSORBOARD]
    assert encoded is not None
    return encoded


def own_summary(layout: layout_pb2.Layout) -> Summary:
    """What TensorBoard's own function returns, without TensorFlow."""
    own = Summary()
    own.value.add(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=tensor_util.make_tensor_proto(layout.SerializeToString()),
    )
    return own


def test_the_bytes_are_those_of_tensorboards_own_function() -> None:
    assert own_summary(REPORTED).SerializeToString() == GOLDEN
    event = TensorBoardEvent(step=2, wall_time=14.0, summary=own_summary(OURS))
    assert payload(charts(STATISTICS), None) == event.SerializeToString()


def test_what_is_written_is_read() -> None:
    value = charts(STATISTICS)
    assert decode_event(payload(value)) == (IDS, Event(2, 14.0, [value]))


def test_a_layout_without_its_string_is_damage() -> None:
    event = TensorBoardEvent.FromString(payload(charts(STATISTICS)))
    del event.summary.value[0].tensor.string_val[:]
    with pytest.raises(DamagedFileError, match="0 strings instead of one"):
        decode_event(event.SerializeToString())
    event.summary.value[0].tensor.string_val.append(b"\xff")
    with pytest.raises(DamagedFileError, match="not an event of TensorBoard"):
        decode_event(event.SerializeToString())


def test_data_of_another_class_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="the data of custom_scalars must be Layout"):
        finish_value(Value("custom_scalars", LAYOUT_TAG, b""))
