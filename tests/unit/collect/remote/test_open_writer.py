"""Who writes the files of a rank."""

import pytest

from distsummary.collect.remote.open_writer import (
    check_collectors,
    chosen_collectors,
    open_writer,
    refuse_unconnected,
)
from distsummary.errors import InvalidValueError
from distsummary.events.spec import WriterSpec
from distsummary.rundir.topology import COLLECTORS


def test_a_choice_of_the_environment_is_checked_as_one_of_the_argument(monkeypatch):
    assert check_collectors(None) is None
    monkeypatch.setenv(COLLECTORS, "threads")
    with pytest.raises(InvalidValueError, match=r"DISTSUMMARY_COLLECTORS must be one of .*'threads'"):
        check_collectors("process")
    with pytest.raises(InvalidValueError, match="collectors must be one of"):
        check_collectors("auto")


def test_under_ray_a_rank_has_an_actor_and_from_eight_on_a_node_has_one(monkeypatch):
    monkeypatch.delenv(COLLECTORS, raising=False)
    assert [chosen_collectors(None, ranks) for ranks in (1, 7, 8, 64)] == ["rank", "rank", "node", "node"]
    monkeypatch.setenv(COLLECTORS, "process")
    assert chosen_collectors(None, 8) == "process"
    assert chosen_collectors("rank", 8) == "rank"


@pytest.mark.parametrize("collectors", ["rank", "node"])
def test_a_collector_is_refused_without_ray_unless_only_the_environment_asks_for_it(
    tmp_path, monkeypatch, collectors
):
    with pytest.raises(InvalidValueError, match=r"needs Ray, .* call ray.init\(\) first"):
        refuse_unconnected(collectors)
    monkeypatch.setenv(COLLECTORS, collectors)
    writer, path = open_writer(WriterSpec(directory=tmp_path), None)
    writer.close()
    assert path("mindspore").parent == tmp_path
