"""The graph of the model in the files of a run: by ds.init, SummaryCollector and SummaryRecord."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import distsummary as ds
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.events.reader import read_directory
from distsummary.format import mindspore_graph
from distsummary.format.graph import Graph
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


NAMES = ["input", "0", "1", "2", "output"]


def graphs_in(directory: Path, dialect: str = "mindspore") -> list[Graph]:
    events = read_directory(directory, dialect=dialect)
    return [mindspore_graph.decode(v.data) for event in events for v in event.values if v.plugin == "graph"]


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def train(run_dir: Path, net: Any, steps: int = 3, **options: Any) -> Any:
    with ds.init(run_dir, watch=net, quiet=True, **{"graph": "modules"} | options) as run:
        for _ in run.steps(range(steps)):
            loss = net(torch.ones(2, 4)).sum()
            loss.backward()
            run.log(loss=loss)
    return run


@pytest.mark.parametrize("dialect", ["mindspore", "tensorboard"])
def test_the_tree_is_recorded_once_for_both_viewers(tmp_path: Path, dialect: str):
    net = make_net()
    run = train(tmp_path / "run", net)
    assert run.health().errors == {}
    [graph] = graphs_in(tmp_path / "run", dialect)
    assert (names(graph), graph.name) == (NAMES, "Sequential")
    assert [str(node.outputs[0]) for node in graph.nodes[:2]] == ["float32[2, 4]", "float32[2, 3]"]


class Tapped(nn.Module):
    """A network with an operator of each kind inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 1)
        self.histogram = ds.HistogramSummary()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        ds.summary.scalar("mean", x.mean())
        ds.summary.tensor("all", x)
        ds.summary.image("rows", x.view(1, 1, 2, 3))
        self.histogram("values", x)
        return self.last(ds.summary.gradient("gradient", x))


@pytest.mark.parametrize("way", ["modules", "ops"])
def test_operators_inside_add_nothing_of_theirs_to_the_graph_and_lose_nothing(tmp_path: Path, way: str):
    net = Tapped()
    run = train(tmp_path / "run", net, graph=way)
    assert run.health().errors == {}
    [graph] = graphs_in(tmp_path / "run")
    assert [node.op for node in graph.nodes] == {
        "modules": ["Input", "Linear", "HistogramSummary", "Linear", "Output"],
        "ops": ["Input", "addmm", "mean", "view", "addmm", "Output"],
    }[way]
    found = [(e.step, v.tag) for e in read_directory(tmp_path / "run") for v in e.values]
    assert [step for step, tag in found if tag == "mean"] == [1, 2, 3]
    assert [step for step, tag in found if tag == "gradient"] == [1, 2, 3]
    assert {"all", "rows", "values"} <= {tag for step, tag in found if step == 1}


def test_a_graph_that_no_one_named_is_not_recorded(tmp_path: Path):
    train(tmp_path / "run", make_net(), graph=False)
    assert graphs_in(tmp_path / "run") == []
    collector = ds.SummaryCollector(tmp_path / "own", collect_specified_data={"collect_graph": False})
    with ds.Run(callbacks=[collector], network=make_net()) as run:
        list(run.steps(range(2)))
    assert graphs_in(tmp_path / "own") == []


def test_how_to_draw_is_checked(tmp_path: Path):
    with pytest.raises(InvalidValueError, match=r"graph must be one of .*, got 'jit'"):
        ds.init(tmp_path / "a", graph="jit")
    with pytest.raises(InvalidTypeError, match=r"graph must be one of .* or False, got True"):
        ds.init(tmp_path / "b", graph=True)


def test_only_rank_0_records_it_and_the_merged_run_has_it(tmp_path: Path):
    run_dir = tmp_path / "run"
    for rank in range(2):
        topology = Topology(rank=rank, world_size=2)
        joined = ds.coordinator(RunDir(run_dir), topology, aggregate=False)
        collector = ds.SummaryCollector(run_dir, topology=topology, coordinator=joined)
        net = make_net()
        with ds.Run(callbacks=[collector], network=net, topology=topology) as run:
            for _ in run.steps(range(2)):
                run.log(loss=net(torch.ones(2, 4)).sum())
    assert [len(graphs_in(run_dir / f"rank_{rank:05d}")) for rank in range(2)] == [1, 0]
    ds.merge_run(run_dir)
    for dialect in ("mindspore", "tensorboard"):
        [graph] = graphs_in(run_dir, dialect)
        assert names(graph) == NAMES


def test_a_model_of_numpy_has_no_graph(tmp_path: Path):
    import numpy as np

    class Model:
        parameters = {"w": np.ones(3)}  # noqa: RUF012

    with ds.init(tmp_path / "run", watch=Model(), graph="modules", quiet=True) as run:
        for _ in run.steps(range(2)):
            run.log(loss=1.0)
    assert run.health().errors == {}
    assert graphs_in(tmp_path / "run") == []


def test_hooks_are_gone_after_the_first_step_and_after_a_failed_one(tmp_path: Path):
    def hooks(net: nn.Module) -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())

    net = make_net()
    counts = []
    with ds.init(tmp_path / "a", watch=net, graph="modules", quiet=True) as run:
        for _ in run.steps(range(3)):
            counts.append(hooks(net))
            run.log(loss=net(torch.ones(2, 4)).sum())
    assert counts == [8, 0, 0]

    def fail() -> None:
        with ds.init(tmp_path / "b", watch=net, graph="modules", quiet=True) as run:
            for _ in run.steps(range(3)):
                raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert hooks(net) == 0


def test_a_model_that_is_first_called_in_a_later_step_is_drawn_too(tmp_path: Path):
    net = make_net()
    with ds.init(tmp_path / "run", watch=net, graph="modules", quiet=True, collect_freq=2) as run:
        for step in run.steps():
            if step == 2:
                net(torch.ones(2, 4))
            run.log(loss=0.0)
            if step == 5:
                break
    [graph] = graphs_in(tmp_path / "run")
    assert names(graph) == NAMES


def test_a_graph_with_too_many_nodes_is_reduced_and_that_is_said(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("distsummary.collect.values.graph_source.MAX_NODES", 8)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(5)))
    train(tmp_path / "run", net)
    [graph] = graphs_in(tmp_path / "run")
    assert names(graph) == ["input", "0", "1", "2", "3", "4", "output"]
    assert "the graph of Sequential has 12 nodes, and the viewers draw 8 at most" in caplog.text


def test_a_failure_to_draw_is_counted_and_the_training_continues(tmp_path, monkeypatch):
    class Strange(nn.Linear):
        def extra_repr(self) -> str:
            raise OSError("of the user")

    def broken(value: object) -> Any:
        raise RuntimeError("of ours")

    train(tmp_path / "fine", nn.Sequential(Strange(4, 1)))
    assert names(graphs_in(tmp_path / "fine")[0])[1] == "0"
    monkeypatch.setattr("distsummary.collect.values.torch_graph.types_of", broken)
    run = train(tmp_path / "run", make_net())
    assert run.health().errors == {"graph: RuntimeError: of ours": 1}
    assert [event.step for event in read_directory(tmp_path / "run", dialect="mindspore") if event.step] != []


def test_a_record_draws_the_network_that_it_is_given(tmp_path: Path):
    net = make_net()
    with ds.SummaryRecord(tmp_path, network=net) as record:
        record.add_value("scalar", "loss", 1.0)
        record.record(0)
        for step in range(1, 4):
            net(torch.ones(2, 4))
            record.record(step)
    [graph] = graphs_in(tmp_path)
    assert names(graph) == NAMES


def test_a_record_draws_the_network_of_record(tmp_path: Path):
    net, other = make_net(), nn.Sequential(nn.Linear(4, 1))
    with ds.SummaryRecord(tmp_path, network=other) as record:
        for step in range(1, 4):
            net(torch.ones(2, 4))
            assert record.record(step, train_network=net) is True
    [graph] = graphs_in(tmp_path)  # the first network was never called
    assert names(graph) == NAMES


def test_a_record_draws_a_network_that_was_not_called_when_it_is_closed(tmp_path: Path):
    with ds.SummaryRecord(tmp_path) as record:
        record.record(7, train_network=make_net())
    [graph] = graphs_in(tmp_path)
    assert names(graph) == ["0", "1", "2"]


@pytest.mark.parametrize("wrong", [1, "net", [nn.Linear(1, 1)]])
def test_what_is_no_network_is_refused(tmp_path: Path, wrong: object):
    with pytest.raises(InvalidTypeError, match="network must be a network or None"):
        ds.SummaryRecord(tmp_path, network=wrong)
    with ds.SummaryRecord(tmp_path) as record, pytest.raises(InvalidTypeError, match="train_network must be"):
        record.record(1, train_network=wrong)
