import pytest

from distsummary.errors import DamagedFileError
from distsummary.format.frames import frame
from distsummary.format.records import Lineage, lineage_values
from distsummary.pb import mindspore_lineage_pb2 as pb

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
def test_torn_lineage_is_refused_or_lacks_whole_messages_only(end):
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
