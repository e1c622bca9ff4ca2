"""Settings for TensorBoard's page HPARAMS: the bytes are its own plugin's, and readers give them back."""

import pytest
from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from distsummary.format.encode import encode_event
from distsummary.format.hparams import END_TAG, START_TAG, session_end, session_start
from distsummary.format.records import MINDSPORE, TENSORBOARD, Event, EventIds, Value
from distsummary.format.tensorboard_format import decode_event

IDS = EventIds(run_id="00000000000000ff", attempt=1, seq=7)
VALUES = [session_start({"lr": 0.1, "layers": 3, "act": "relu"}, 12.5), session_end(13.5, is_success=True)]


def payload(values: list[Value], ids: EventIds | None = IDS) -> bytes:
    payloads, refused = encode_event(Event(2, 14.0, values), ids)
    assert not refused
    assert payloads[MINDSPORE] is None  # its seq is missing in MindSpore's dialect
    return payloads[TENSORBOARD]  # type: ignore[return-value]


def test_the_tags_are_the_plugins() -> None:
    assert (START_TAG, END_TAG) == (metadata.SESSION_START_INFO_TAG, metadata.SESSION_END_INFO_TAG)


@pytest.mark.parametrize("value", [session_start({"lr": 0.1}, 12.5), VALUES[1]], ids=["start", "end"])
def test_the_bytes_are_those_of_tensorboards_own_functions(value: Value) -> None:
    data = plugin_data_pb2.HParamsPluginData()
    if value.tag == START_TAG:
        data.session_start_info.start_time_secs = 12.5
        data.session_start_info.hparams["lr"].number_value = 0.1
    else:
        data.session_end_info.end_time_secs = 13.5
        data.session_end_info.status = 1
    golden = TensorBoardEvent(step=2, wall_time=14.0)
    golden.summary.value.add(
        tag=value.tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR
    )
    assert payload([value], None) == golden.SerializeToString()


def test_tensorboards_parser_reads_every_setting() -> None:
    event = TensorBoardEvent.FromString(payload(VALUES))
    start, end = (value.metadata.plugin_data for value in event.summary.value)
    assert start.plugin_name == end.plugin_name == metadata.PLUGIN_NAME
    found = metadata.parse_session_start_info_plugin_data(start.content)
    assert found.hparams["lr"].number_value == 0.1
    assert found.hparams["layers"].number_value == 3
    assert found.hparams["act"].string_value == "relu"
    assert metadata.parse_session_end_info_plugin_data(end.content).status == 1


def test_what_is_written_is_read() -> None:
    assert decode_event(payload(VALUES)) == (IDS, Event(2, 14.0, VALUES))
