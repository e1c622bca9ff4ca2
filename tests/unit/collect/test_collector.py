import json
from pathlib import Path

import numpy as np
import pytest

from distsummary.collect.summary_collector import SummaryCollector
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import CallbackParams, RunContext
from distsummary.training.run import Run
from tests.unit.collect.doubles import ListCoordinator, Model, drive, train

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tensor_ranges.json").read_text())["cases"]


def total_steps(case):
    return str(case["total_steps"])


def test_what_was_logged_is_recorded_at_every_step_under_its_name(tmp_path, writers):
    train(SummaryCollector(tmp_path, collect_freq=3), steps=4, log={"acc": 1, "loss": 0.5})
    for tag in ("acc", "loss", "zz_perf/step_ms", "zz_perf/data_wait_ms"):
        assert writers[0].steps("scalar", tag) == [1, 2, 3, 4]


def test_at_due_steps_there_are_histograms_images_and_the_learning_rate(tmp_path, writers):
    train(SummaryCollector(tmp_path, collect_freq=2), steps=5)
    for plugin, tag in (("scalar", "learning_rate/auto"), ("image", "input_data/auto"), ("histogram", None)):
        assert writers[0].steps(plugin, tag) == [1, 2, 4]
    assert list(writers[0].values("histogram")) == [f"layer{n}.weight/auto" for n in range(1, 6)]
    assert writers[0].values("image")["input_data/auto"].shape == (8, 1, 4, 4)
    assert writers[0].values("scalar")["learning_rate/auto"] == 0.25
    assert writers[0].steps("tensor") == []


def test_a_loss_and_a_rate_that_were_logged_are_not_recorded_again(tmp_path, writers):
    train(SummaryCollector(tmp_path), log={"loss": 0.5, "lr": 0.1})
    assert {tag for tag in writers[0].values("scalar") if not tag.startswith("zz_perf/")} == {"loss", "lr"}


def test_a_loop_that_logs_nothing_has_its_output_recorded_as_the_loss(tmp_path, writers):
    collector = SummaryCollector(tmp_path, collect_freq=2)
    for _ in drive(collector, steps=4, net_outputs=(np.array([1.0, 2.0]), None)):
        pass
    assert writers[0].steps("scalar", "loss/auto") == [1, 2, 4]
    assert writers[0].values("scalar")["loss/auto"] == 1.5


def record_the_steps_of(case, tmp_path, writers, compat):
    """One golden training, judged: tests/properties has the long ones."""
    collector = SummaryCollector(
        tmp_path,
        collect_freq=case["collect_freq"],
        collect_tensor_freq=case["collect_tensor_freq"],
        collect_specified_data={"tensor_regular": ".*", "collect_landscape": None},
        mindspore_compat=compat,
    )
    for _ in drive(
        collector, steps=case["batch_num"], epochs=case["epochs"], dataset_sink_mode=case["sink_mode"]
    ):
        pass
    recorded = sorted(
        event.step
        for event in writers[0].events
        if any(value.plugin in ("histogram", "tensor") for value in event.values)
    )
    assert recorded == (case["recorded_step_field"] if compat else sorted(set(case["recorded_step_field"])))
    per_unit = case["batch_num"] if case["sink_mode"] else 1
    assert sorted(set(writers[0].steps("tensor"))) == [step * per_unit for step in case["tensor_set"]]
    assert sorted(set(writers[0].steps("histogram"))) == [step * per_unit for step in case["other_set"]]


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("case", [c for c in GOLDEN if c["total_steps"] <= 21], ids=total_steps)
def test_the_recorded_steps_are_mindspores(tmp_path, writers, case, compat):
    record_the_steps_of(case, tmp_path, writers, compat)


def test_steps_that_jump_are_recorded_when_a_multiple_was_crossed(tmp_path, writers):
    collector = SummaryCollector(tmp_path, collect_freq=10)
    reported = CallbackParams(mode="train", network=Model(), cur_step_num=0, cur_epoch_num=1)
    with collector:
        collector.on_train_begin(RunContext(reported))
        for step in range(7, 60, 7):
            reported.cur_step_num = step
            collector.on_train_step_end(RunContext(reported))
    assert writers[0].steps("histogram") == [7, 14, 21, 35, 42, 56]


def test_a_loader_without_a_length_gets_tensors_ever_more_rarely(tmp_path, writers):
    collector = SummaryCollector(
        tmp_path, collect_freq=2, collect_specified_data={"tensor_regular": "layer1"}
    )
    with Run(callbacks=collector, network=Model()) as run:
        for _ in run.steps(iter(range(20))):
            pass
    assert writers[0].steps("tensor") == [1, 2, 4, 8, 16]
    assert list(writers[0].values("tensor")) == ["layer1.weight/auto"]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_parameters_are_dealt_each_to_one_rank_at_all_due_steps(tmp_path, writers, world):
    for rank in range(world):
        topology = Topology(rank=rank, world_size=world)
        collector = SummaryCollector(
            tmp_path, collect_freq=2, topology=topology, coordinator=ListCoordinator(),
            collect_specified_data={"histogram_regular": ".*"},
        )  # fmt: skip
        train(collector, steps=4)
    tags = [tag for rank in range(world) for tag in writers[rank].values("histogram")]
    assert sorted(tags) == [f"layer{n}.weight/auto" for n in range(1, 7)]
    assert all(writers[rank].steps("histogram") == [1, 2, 4] for rank in range(world))
    assert all(writers[rank].steps("image") == [1, 2, 4] for rank in range(world))  # local values: every rank


def test_dealt_by_steps_one_rank_records_all_parameters_at_a_step(tmp_path, writers):
    for rank in range(2):
        topology = Topology(rank=rank, world_size=2)
        train(
            SummaryCollector(tmp_path, 2, topology=topology, coordinator=ListCoordinator(), deal="steps"),
            steps=6,
        )
    assert [writers[rank].steps("histogram") for rank in range(2)] == [[1, 4], [2, 6]]


def test_dealing_can_be_switched_off(tmp_path, writers):
    for rank in range(2):
        topology = Topology(rank=rank, world_size=2)
        train(SummaryCollector(tmp_path, topology=topology, coordinator=ListCoordinator(), deal="all"))
    assert len(writers[0].values("histogram")) == len(writers[1].values("histogram")) == 5


def test_a_mesh_that_does_not_fit_stops_no_training_and_deals_nothing(tmp_path, writers):
    topology = Topology(rank=1, world_size=2, mesh={"dp": (0, 3)})
    collector = SummaryCollector(tmp_path, topology=topology, coordinator=ListCoordinator())
    train(collector)
    assert len(writers[1].values("histogram")) == 5
    assert any("mesh" in reason for reason in collector.health().errors)


def test_nothing_is_collected_that_was_not_asked_for(tmp_path, writers):
    train(SummaryCollector(tmp_path, keep_default_action=False), log={"acc": 1})
    assert {value.plugin for event in writers[0].events for value in event.values} == {"scalar"}
    assert writers[0].values("scalar").keys() == {"acc"}


def test_without_collect_metric_only_the_users_own_values_are_recorded(tmp_path, writers):
    off = {"collect_metric": False}
    train(SummaryCollector(tmp_path, collect_specified_data=off, collect_freq=1), log={"loss": 0.5})
    assert writers[0].values("scalar").keys() == {"loss"}
    assert writers[0].steps("scalar") == writers[0].steps("histogram") == [1, 2, 3, 4]
    for _ in drive(SummaryCollector(tmp_path, collect_specified_data=off), steps=2, net_outputs=0.5):
        pass
    assert writers[0].steps("scalar") == []


@pytest.mark.parametrize("outputs", [None, "0.5", {"loss": 0.5}, [], ({},), object(), np.array("x")])
def test_outputs_that_are_no_loss_are_counted_and_said_once(tmp_path, writers, caplog, outputs):
    collector = SummaryCollector(tmp_path, collect_freq=1)
    for _ in drive(collector, steps=3, net_outputs=outputs):
        pass
    health = collector.health()
    assert (health.dropped, list(health.errors.values())) == ({"scalar": 3}, [3])
    assert caplog.text.count("net_outputs must be the loss") == 1
    assert writers[0].steps("scalar", "loss/auto") == []


def test_a_run_whose_user_logs_no_loss_has_nothing_to_report(tmp_path, writers):
    collector = SummaryCollector(tmp_path, collect_freq=1)
    train(collector, log={"accuracy": 0.5})
    assert collector.health().errors == {}


def test_compatibility_records_a_logged_loss_at_mindspores_steps(tmp_path, writers):
    train(SummaryCollector(tmp_path, 4, mindspore_compat=True), epochs=2, log={"loss": 0.5})
    assert writers[0].steps("scalar", "loss/auto") == [1, 4, 4, 8, 8]
    assert writers[0].steps("histogram") == [1, 4, 4, 8, 8]
    assert writers[0].steps("scalar", "loss") == list(range(1, 9))


def test_a_batch_that_is_no_images_is_looked_at_once(tmp_path, writers, monkeypatch):
    looked = []
    monkeypatch.setattr(
        "distsummary.collect.values.sources.image_values", lambda batch, **_: looked.append(batch) or []
    )
    train(SummaryCollector(tmp_path, collect_freq=1), batch="text")
    assert looked == ["text"]
