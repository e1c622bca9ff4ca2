import pytest

from distsummary.errors import DamagedFileError, InvalidTypeError
from distsummary.format.frames import frame
from distsummary.format.lineage import (
    Lineage,
    decode_lineage_event,
    encode_lineage,
    encode_lineage_message,
    lineage_values,
    merge_custom,
    updated_lineage,
)
from distsummary.format.pb import mindspore_lineage_pb2 as pb
from distsummary.format.records import Value
from tests.unit.format import samples

FULL = Lineage(
    train=pb.TrainLineage(algorithm=pb.TrainLineage.Algorithm(network="Net", loss=0.5)),
    evaluation=pb.EvaluationLineage(metric="{}"),
    dataset_graph=pb.DatasetGraph(),
    custom=pb.UserDefinedInfo(),
)


@pytest.mark.parametrize("lineage", [FULL, Lineage(), Lineage(train=pb.TrainLineage())])
def test_lineage_survives_the_way_to_bytes_and_back(lineage):
    assert Lineage.from_bytes(lineage.to_bytes()) == lineage


@pytest.mark.parametrize("end", range(1, len(FULL.to_bytes()), 7))
def test_torn_lineage_is_refused_or_misses_whole_messages_only(end):
    data = FULL.to_bytes()[:end]
    try:
        lineage = Lineage.from_bytes(data)
    except DamagedFileError:
        return
    assert FULL.to_bytes().startswith(lineage.to_bytes())


@pytest.mark.parametrize(
    "data",
    [b"x", b"\0" * 40, frame(b"\xff"), frame(pb.LineageEvent(wall_time=0, version="1").SerializeToString())],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(DamagedFileError, match="send it again"):
        Lineage.from_bytes(data)


def test_a_lineage_is_recorded_by_one_value_of_each_kind():
    plugins = {value.plugin for value in lineage_values(FULL)}
    assert plugins == {"train_lineage", "eval_lineage", "dataset_graph", "custom_lineage_data"}
    assert lineage_values(Lineage()) == []


def test_lineage_is_one_event_for_each_kind_in_the_order_of_the_file():
    lineage = Lineage(
        train=samples.TRAIN,
        evaluation=samples.EVALUATION,
        dataset_graph=samples.DATASET,
        custom=samples.custom(lr=0.5, note="x"),
    )
    payloads = encode_lineage(lineage, 3.5, samples.IDS._replace(seq=0))
    events = [pb.LineageEvent.FromString(payload) for payload in payloads]
    kinds = [event.WhichOneof("what") for event in events]
    assert kinds == ["dataset_graph", "user_defined_info", "train_lineage", "evaluation_lineage"]
    assert {(event.wall_time, event.run_id, event.attempt) for event in events} == {
        (3.5, int(samples.IDS.run_id, 16), samples.IDS.attempt)
    }
    assert [event.SerializeToString(deterministic=True) for event in events] == payloads
    read = Lineage()
    for payload in payloads:
        decoded = decode_lineage_event(payload)
        read = updated_lineage(read, decoded[1].values[0])
    assert read == lineage


def test_an_empty_lineage_message_is_still_there():
    payloads = encode_lineage(Lineage(evaluation=pb.EvaluationLineage()), 1.0)
    event = pb.LineageEvent.FromString(payloads[0])
    assert event.WhichOneof("what") == "evaluation_lineage"


def test_the_wrong_message_for_a_plugin_is_refused():
    with pytest.raises(InvalidTypeError, match="train_lineage must be a TrainLineage, got EvaluationLineage"):
        encode_lineage_message("train_lineage", samples.EVALUATION, 1.0)


def test_the_last_of_each_kind_counts_and_custom_information_is_merged():
    lineage = Lineage(train=samples.TRAIN)
    newer = pb.TrainLineage(algorithm=pb.TrainLineage.Algorithm(network="CNN"))
    lineage = updated_lineage(lineage, Value("train_lineage", "", newer))
    lineage = updated_lineage(lineage, Value("custom_lineage_data", "", samples.custom(a=1, b="old")))
    lineage = updated_lineage(lineage, Value("custom_lineage_data", "", samples.custom(b=2.5, c="new")))
    assert lineage.train == newer
    assert lineage.custom == samples.custom(a=1, b=2.5, c="new")


def test_custom_information_in_one_message_is_merged_by_key():
    older = pb.UserDefinedInfo(map_int32={"k": 1}, map_str={"s": "x"})
    older.map_dict["group"].map_int32["inner"] = 3
    merged = merge_custom(older, pb.UserDefinedInfo(map_int32={"k": 2}))
    assert [entry.map_int32["k"] for entry in merged.user_info if "k" in entry.map_int32] == [2]
    assert len(merged.user_info) == 3
    assert any(entry.map_dict["group"].map_int32["inner"] == 3 for entry in merged.user_info)
