"""A collector's part in its run: lineage, evaluations, failures, trajectory, files."""

import atexit
import gc
import json
import os
import threading
import time

import numpy as np
import pytest

import distsummary as ds
from distsummary.aggregate.merge import merge_run
from distsummary.cli.fsck import fsck
from distsummary.collect import file_export as export
from distsummary.collect.summary_collector import SummaryCollector
from distsummary.collect.values import operators
from distsummary.errors import InvalidValueError, StaleAttemptError, WriteError
from distsummary.events.reader import read_directory, read_lineage
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import CallbackParams, LossMonitor, RunContext
from distsummary.training.learning_rate import LearningRateScheduler
from distsummary.training.run import Run
from tests.patience import PATIENCE_S
from tests.unit.collect.doubles import IMAGES, ListCoordinator, ListWriter, Model, Momentum, drive, train
from tests.viewer_rules import lost_points


def test_lineage_is_there_from_the_first_step_and_complete_at_the_end(tmp_path, writers):
    coordinator = ListCoordinator()
    collector = SummaryCollector(tmp_path, custom_lineage_data={"note": "x"}, coordinator=coordinator)
    train(collector, log={"loss": 0.5})
    assert writers[0].steps("train_lineage") == [1, 4]
    assert writers[0].steps("dataset_graph") == writers[0].steps("custom_lineage_data") == [1]
    first, last = (writers[0].values("train_lineage", step)[""] for step in (1, 4))
    assert not first.algorithm.HasField("loss")
    assert last.algorithm.loss == 0.5
    assert writers[0].values("custom_lineage_data")[""].user_info[0].map_str["note"] == "x"


def test_a_coordinator_that_refuses_the_end_is_counted_too(tmp_path, writers):
    class Refusing(ListCoordinator):
        def finish(self, topology, attempt, health):
            raise StaleAttemptError("superseded")

    collector = SummaryCollector(tmp_path, coordinator=Refusing())
    train(collector)
    assert collector.health().errors == {"leaving the run: StaleAttemptError: superseded": 1}
    with pytest.raises(WriteError, match="superseded"):
        train(SummaryCollector(tmp_path, coordinator=Refusing(), raise_exception=True))


def test_an_evaluation_is_recorded_at_the_step_of_the_training(tmp_path, writers):
    coordinator = ListCoordinator()
    with Run(callbacks=SummaryCollector(tmp_path, coordinator=coordinator), network=Model()) as run:
        for _ in run.steps([1, 2]):
            pass
        with run.eval([1]) as evaluation:
            evaluation.log(accuracy=0.5)
    assert writers[0].steps("scalar", "eval/accuracy") == [2]
    [message] = [v.data for event in writers[0].events for v in event.values if v.plugin == "eval_lineage"]
    assert json.loads(message.metric) == {"accuracy": 0.5}
    assert len(coordinator.registered) == 1


def test_an_evaluation_alone_and_then_a_training_share_one_session(tmp_path, writers):
    coordinator = ListCoordinator()
    with Run(callbacks=SummaryCollector(tmp_path, coordinator=coordinator), network=Model()) as run:
        with run.eval() as evaluation:
            evaluation.log(accuracy=0.5)
        for _ in run.steps([1]):
            pass
    assert len(coordinator.registered) == len(coordinator.finished) == 1
    assert writers[0].steps("histogram") == [1]


def test_metrics_that_are_no_numbers_cost_themselves_alone(tmp_path, writers):
    collector = SummaryCollector(tmp_path)
    reported = CallbackParams(mode="eval", metrics={"good": 1, "bad": [1, 2]}, cur_step_num=0)
    with collector:
        collector.on_eval_begin(RunContext(reported))
        collector.on_eval_end(RunContext(reported))
    assert writers[0].values("scalar") == {"eval/good": 1.0}
    assert any("metric 'bad'" in reason for reason in collector.health().errors)


def test_one_bad_parameter_costs_itself_alone_and_is_said_once(tmp_path, writers, caplog, monkeypatch):
    from distsummary.frameworks.numpy import NumpyFramework

    copy = NumpyFramework.snapshot

    def snapshot(self, tensor):
        if tensor.size == 3:
            raise RuntimeError("out of memory")
        return copy(self, tensor)

    monkeypatch.setattr(NumpyFramework, "snapshot", snapshot)
    collector = SummaryCollector(tmp_path, collect_freq=1)
    train(collector, batch=0)
    assert list(writers[0].values("histogram")) == [f"layer{n}.weight/auto" for n in (1, 2, 4, 5)]
    [reason] = collector.health().errors
    assert "histogram of layer3.weight: RuntimeError: out of memory" in reason
    assert collector.health().errors[reason] == 4
    assert caplog.text.count("out of memory") == 1


HOOKS = ("train_epoch_begin", "train_step_end", "train_epoch_end", "train_end", "eval_end")


@pytest.mark.parametrize("sink", [{}, {"dataset_sink_mode": True}, {"dataset_sink_mode": np.ones(2)}])
@pytest.mark.parametrize(
    "reported", [{}, {"cur_step_num": "x", "cur_epoch_num": None}, {"epoch_num": "x", "batch_num": 1.5}]
)
def test_no_hook_raises_whatever_the_loop_reports(tmp_path, writers, reported, sink):
    collector = SummaryCollector(tmp_path, collect_landscape={"intervals": [[1, 2, 3]]})
    collector.on_train_begin(RunContext(CallbackParams(mode="train", network=Model())))
    for hook in HOOKS:
        getattr(collector, f"on_{hook}")(RunContext(CallbackParams(mode="train", **reported, **sink)))
    collector.close()
    assert collector.health().errors


def test_a_length_that_the_loop_does_not_know_may_be_negative(tmp_path, writers):
    collector = SummaryCollector(tmp_path, collect_specified_data={"tensor_regular": ""})
    assert list(drive(collector, steps=2, batch_num=-1)) == [1, 2]
    assert writers[0].steps("tensor") == [1]
    assert collector.health().errors == {}


def test_failures_are_raised_if_that_was_asked_for(tmp_path, writers):
    class Failing(ListWriter):
        def write(self, event):
            raise ZeroDivisionError

    writers.kind = Failing
    with pytest.raises(WriteError, match="ZeroDivisionError"):
        train(SummaryCollector(tmp_path, raise_exception=True))
    quiet = SummaryCollector(tmp_path)
    assert train(quiet).step == 4
    assert quiet.health().errors


def test_two_collectors_of_one_run_are_refused_at_its_begin(tmp_path, writers):
    both = [SummaryCollector(tmp_path), SummaryCollector(tmp_path)]
    with pytest.raises(InvalidValueError, match="one SummaryCollector"):
        train(both)


def test_another_mode_is_refused_at_the_begin(tmp_path, writers):
    with pytest.raises(InvalidValueError, match="mode"):
        SummaryCollector(tmp_path).on_train_begin(RunContext(CallbackParams(mode="predict")))


def test_leaving_reports_the_coordinator_how_it_went(tmp_path, writers):
    coordinator = ListCoordinator()
    collector = SummaryCollector(tmp_path, coordinator=coordinator)
    train(collector)
    collector.close()
    [(rank, attempt, health)] = coordinator.finished
    assert (rank, attempt, health["errors"], health["dropped"]) == (0, 3, 0, 0)
    assert health["events"] == len(writers[0].events)
    assert writers[0].closes == 1


def test_a_training_that_fails_leaves_the_run_as_failed_without_complete_lineage(tmp_path, writers):
    coordinator = ListCoordinator()

    def fail():
        with Run(callbacks=SummaryCollector(tmp_path, coordinator=coordinator), network=Model()) as run:
            for _ in run.steps([1, 2]):
                if run.step == 2:
                    raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        fail()
    health = coordinator.finished[0][2]
    assert (health["failed"], health["error"]) == (1, "OSError: lost")
    assert writers[0].steps("train_lineage") == [1]
    assert writers[0].closes == 1


def test_leaving_closes_everything_even_if_a_part_fails(tmp_path, writers):
    class Failing(ListWriter):
        def close(self):
            raise ZeroDivisionError

    writers.kind = Failing
    coordinator = ListCoordinator()
    with pytest.raises(WriteError, match="closing the event files"):
        train(SummaryCollector(tmp_path, coordinator=coordinator, raise_exception=True))
    assert len(coordinator.finished) == 1


def test_leaving_reaches_the_coordinator_even_if_what_was_written_is_unknown(tmp_path, writers):
    class Failing(ListWriter):
        def health(self):
            raise ZeroDivisionError

    writers.kind = Failing
    coordinator = ListCoordinator()
    train(SummaryCollector(tmp_path, coordinator=coordinator))
    [(_, _, health)] = coordinator.finished
    assert (health["events"], health["errors"]) == (0, 1)


def test_a_run_without_a_step_listens_to_operators_no_more_once_it_is_closed(tmp_path, writers):
    before = len(operators.listeners())
    collector = SummaryCollector(tmp_path, coordinator=ListCoordinator())
    run = Run(callbacks=collector)
    assert len(operators.listeners()) == before + 1
    run.close()
    assert len(operators.listeners()) == before
    train(collector, steps=2)
    assert writers[0].steps("histogram") == [1]


def test_a_run_that_an_exception_leaves_frees_its_threads_files_and_handlers(tmp_path):
    def fail(number):
        run = ds.init(tmp_path / str(number), watch=Model(), histograms=".*", quiet=True)
        for _ in run.steps(range(3)):
            run.log(loss=1.0)
            raise ValueError("out of memory")

    threads, left = threading.active_count(), []
    for number in range(5):
        with pytest.raises(ValueError, match="out of memory"):
            fail(number)
        gc.collect()
        deadline = time.monotonic() + PATIENCE_S
        while threading.active_count() > threads and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        left.append((threading.active_count(), len(os.listdir("/proc/self/fd")), atexit._ncallbacks()))
    assert left[1:] == left[:1] * 4
    assert left[0][0] == threads
    with ds.init(tmp_path / "last", quiet=True) as run:  # the main thread alone can put signal handlers back
        run.log(loss=1.0)


def test_a_collector_serves_one_training_after_another(tmp_path, writers):
    coordinator = ListCoordinator()
    collector = SummaryCollector(tmp_path, collect_freq=3, coordinator=coordinator)
    for _ in range(2):
        train(collector, steps=2)
        assert writers[0].steps("histogram") == [1]
    assert len(coordinator.registered) == len(coordinator.finished) == 2


def test_only_rank_zero_keeps_the_trajectory(tmp_path, writers):
    for rank in range(2):
        topology = Topology(rank=rank, world_size=2)
        train(
            SummaryCollector(
                tmp_path / str(rank), collect_landscape={"intervals": [[1, 2, 4]]}, topology=topology,
                coordinator=ListCoordinator(),
            )
        )  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "0" / "ckpt_dir").glob("*.ckpt")) == [
        f"Model_{n}_step.ckpt" for n in (1, 2, 4)
    ]
    assert not (tmp_path / "1" / "ckpt_dir").exists()


def test_checkpoints_of_epochs_are_those_of_their_ends(tmp_path, writers):
    network = Model()
    collector = SummaryCollector(tmp_path, collect_landscape={"intervals": [[1, 2, 3]], "unit": "epoch"})
    with Run(callbacks=collector, network=network) as run:
        for _ in run.epochs(2):
            for _ in run.steps([1, 2]):
                network.parameters["layer1.weight"] += 1
    from distsummary.checkpoints.trajectory import read

    trajectory = read(tmp_path / "ckpt_dir")
    assert [float(trajectory.load(n)["layer1.weight"][0]) for n in trajectory.numbers] == [3.0, 5.0]


def test_a_trajectory_of_a_model_in_parts_is_refused_where_it_was_asked_for(tmp_path, writers):
    topology = Topology(world_size=2, mesh={"tp": (0, 2)})
    collector = SummaryCollector(
        tmp_path,
        collect_landscape={"intervals": [[1, 2, 3]]},
        topology=topology,
        coordinator=ListCoordinator(),
    )
    with pytest.raises(InvalidValueError, match="rank 0 may hold only a part of the model"):
        train(collector)
    by_default = SummaryCollector(
        tmp_path, topology=topology, coordinator=ListCoordinator(), mindspore_compat=True
    )
    train(by_default)
    assert any("no trajectory is kept" in reason for reason in by_default.health().errors)
    assert not (tmp_path / "ckpt_dir").exists()


def test_the_lineage_of_one_of_several_ranks_is_for_merges_and_not_for_mindinsight(nasty_tmp_path):
    """It would show each rank as a training of its own."""
    for rank in range(2):
        with ds.init(nasty_tmp_path, rank=rank, world_size=2, aggregate=False) as run:
            run.log(loss=0.5)
    for rank in range(2):
        [path] = (nasty_tmp_path / f"rank_0000{rank}").glob("*_lineage")
        assert "summary." not in path.name
    assert (fsck(nasty_tmp_path).findings, lost_points(nasty_tmp_path)) == ((), [])
    merge_run(nasty_tmp_path)
    [path] = nasty_tmp_path.glob("*_lineage")
    assert "summary." in path.name
    assert read_lineage(nasty_tmp_path).train.hyper_parameters.device_num == 2
    old = path.rename(nasty_tmp_path / "rank_00000" / path.name)  # of a version that did not hide it
    with ds.init(nasty_tmp_path, rank=0, world_size=2, aggregate=False, on_existing="attempt") as run:
        run.log(loss=0.5)
    assert not old.exists()


def test_real_files_hold_the_run(nasty_tmp_path):
    collector = SummaryCollector(nasty_tmp_path, collect_freq=2, export_options={"tensor_format": "npy"},
                                 collect_specified_data={"tensor_regular": "layer2"})  # fmt: skip
    train(collector, steps=3, log={"loss": 0.5})
    steps = {}
    for event in read_directory(nasty_tmp_path):
        steps.setdefault(event.step, {}).update({v.tag: v for v in event.values})
    assert sorted(steps) == [1, 2, 3]
    assert f"| numpy | {np.__version__} |" in steps[1]["zz_run"].data
    assert steps[3].keys() == {"loss", "zz_perf/step_ms", "zz_perf/data_wait_ms"}
    assert steps[2]["layer1.weight/auto"].data.count == 1
    assert steps[2]["input_data/auto"].plugin == "image"
    assert len(list(nasty_tmp_path.glob("*_lineage"))) == 1
    assert {path.name for path in nasty_tmp_path.glob("export_*/tensor/*")} == {
        f"layer2.weight%2Fauto_{n}.npy" for n in (1, 2)
    }
    manifest = RunDir(nasty_tmp_path).read_manifest()
    assert manifest["state"] == "finished"
    assert manifest["attempts"][0]["provenance"]["versions"]["numpy"] == np.__version__
    assert collector.health().errors == {}
    assert collector.health().dropped == {}


def test_all_tensors_of_a_step_are_exported_however_slow_the_disk_is(tmp_path, writers, monkeypatch):
    write = export.export_npy
    monkeypatch.setattr(export, "export_npy", lambda *args: go.wait(PATIENCE_S) and write(*args))
    go = threading.Event()
    collector = SummaryCollector(tmp_path, export_options={"tensor_format": "npy"},
                                 collect_specified_data={"tensor_regular": ".*"})  # fmt: skip
    with Run(callbacks=collector, network=Model()) as run:
        for _ in run.steps([1]):
            pass
        go.set()
    assert len(list(tmp_path.glob("export_*/tensor/*"))) == 6
    assert collector.health().errors == {}


def test_what_the_step_that_failed_had_logged_is_recorded_once(tmp_path):
    def train(*callbacks):
        with Run(callbacks=[*callbacks, SummaryCollector(tmp_path)]) as run:
            for number in run.steps([1, 2, 3]):
                run.log(loss=float("nan") if number == 2 else 1.0)

    with pytest.raises(InvalidValueError, match="loss"):
        train(LossMonitor())
    losses = [(e.step, v.data) for e in read_directory(tmp_path) for v in e.values if v.tag == "loss"]
    assert losses[0] == (1, 1.0)
    assert losses[1][0] == 2
    assert np.isnan(losses[1][1])
    assert len(losses) == 2


def test_a_scheduled_rate_is_recorded_at_the_steps_that_had_it(tmp_path):
    class Sgd:
        learning_rate = 1.0

    callbacks = [
        LearningRateScheduler(lambda rate, step: rate / 2),
        SummaryCollector(tmp_path, collect_freq=2),
    ]
    with Run(callbacks=callbacks, optimizer=Sgd()) as run:
        for _ in run.steps(range(6)):
            run.log(loss=1.0)
    found = {
        e.step: v.data for e in read_directory(tmp_path) for v in e.values if v.tag == "learning_rate/auto"
    }
    assert found == {1: 1.0, 2: 0.5, 4: 0.125, 6: 0.03125}


@pytest.mark.parametrize("ranks", [1, 2])
def test_compatibility_adds_no_value_of_ours(tmp_path, ranks):
    topology = Topology(world_size=ranks)
    collector = SummaryCollector(
        tmp_path, 3, mindspore_compat=True, collect_landscape={}, topology=topology,
        coordinator=ListCoordinator(),
    )  # fmt: skip
    with Run(callbacks=collector, network=Model(), optimizer=Momentum(), topology=topology) as run:
        for _ in run.epochs(2):
            for _ in run.steps([IMAGES] * 4):
                run.log(loss=1.0)
            with run.eval() as evaluation:
                evaluation.log(accuracy=0.5)
    events = read_directory(collector.run_dir.writer_dir("train", 0, ranks))
    tags = {value.tag for event in events for value in event.values if "lineage" not in value.plugin}
    assert {tag for tag in tags if not tag.endswith("/auto")} == {"loss"}
    assert "learning_rate/auto" not in tags


@pytest.mark.parametrize("compat", [False, True])
def test_another_callback_changes_nothing_that_is_recorded(tmp_path, compat):
    recorded = []
    for others in ([], [LossMonitor(0)]):
        collector = SummaryCollector(
            tmp_path / f"{len(others)}", 3, None, {"tensor_regular": "layer1"}, mindspore_compat=compat
        )
        with Run(callbacks=[*others, collector], network=Model(), optimizer=Momentum()) as run:
            for _ in run.epochs(2):
                for image in run.steps([IMAGES] * 7):
                    run.log(loss=1.0 / run.step)
                    if run.step % 2:
                        run.histogram("image", image)
        events = read_directory(tmp_path / f"{len(others)}")
        recorded.append(
            sorted((e.step, v.plugin, v.tag) for e in events for v in e.values if "lineage" not in v.plugin)
        )
    assert recorded[0] == recorded[1]
    assert len(recorded[0]) > 60


def test_a_subclass_with_a_hook_of_its_own_sees_every_step(tmp_path, writers):
    class Counting(SummaryCollector):
        steps = 0

        def on_train_step_end(self, run_context):
            self.steps += 1
            super().on_train_step_end(run_context)

    collector = Counting(tmp_path)
    train(collector, steps=4, log={"loss": 0.5})
    assert collector.steps == 4
    assert writers[0].steps("scalar", "loss") == [1, 2, 3, 4]


def test_a_subclass_may_override_mindspores_older_hooks(tmp_path, writers):
    called = []

    class Mine(SummaryCollector):
        def begin(self, run_context):
            super().begin(run_context)
            called.append("begin")

        def step_end(self, run_context):
            super().step_end(run_context)
            called.append(run_context.original_args().cur_step_num)

        def epoch_end(self, run_context):
            super().epoch_end(run_context)
            called.append("epoch_end")

        def end(self, run_context):
            super().end(run_context)
            called.append("end")

    train(Mine(tmp_path, collect_freq=10), steps=4, log={"loss": 0.5})
    assert called == ["begin", 1, 2, 3, 4, "epoch_end", "end"]
    assert writers[0].steps("scalar", "loss") == [1, 2, 3, 4]


def test_hooks_that_are_called_by_hand_record(tmp_path, writers):
    collector = SummaryCollector(tmp_path, collect_freq=2, coordinator=ListCoordinator())
    params = CallbackParams(
        mode="train", epoch_num=1, batch_num=4, network=Model(), list_callback=[collector]
    )
    context = RunContext(params)
    collector.begin(context)
    for step in range(1, 5):
        params.update(cur_step_num=step, cur_epoch_num=1, net_outputs=float(step))
        collector.step_end(context)
    collector.epoch_end(context)
    collector.end(context)
    collector.close()
    assert writers[0].steps("scalar", "loss/auto") == [1, 2, 4]
    assert writers[0].steps("train_lineage") == [1, 4]


@pytest.mark.parametrize("is_held", [False, True])
def test_a_step_left_by_break_holds_the_weights_of_that_moment_or_none(tmp_path, writers, is_held):
    collector = SummaryCollector(
        tmp_path,
        collect_freq=5,
        collect_specified_data={"tensor_regular": "layer1"},
        collect_tensor_freq=5,
        collect_landscape={"unit": "step", "intervals": [[1, 5, 9]]},
        keep_default_action=True,
    )
    model = Model()
    run = Run(callbacks=collector, network=model)
    weight, batches = model.parameters["layer1.weight"], run.steps(range(100))
    held = batches if is_held else None
    for number, _ in enumerate(batches, 1):
        weight.fill(number)
        run.log(loss=number)
        if number == 5:
            break
    del batches
    weight.fill(1000)
    with run.eval() as evaluation:
        evaluation.log(accuracy=1)
    run.close()
    health = collector.health()
    assert writers[0].values("scalar", 5)["loss"] == 5
    assert writers[0].steps("histogram") == ([1] if is_held else [1, 5])
    assert writers[0].values("tensor")["layer1.weight/auto"] == (1 if is_held else 5)
    assert ("zz_perf/step_ms" in writers[0].values("scalar", 5)) != is_held
    checkpoints = {path.name for path in tmp_path.rglob("*.ckpt")}
    assert len(checkpoints) == (1 if is_held else 2), checkpoints
    assert health.dropped == ({"histogram": 5, "tensor": 1, "checkpoint": 1} if is_held else {})
    assert bool(health.errors) == is_held
    assert held is None or next(held, None) is None


def test_what_a_loop_without_steps_logs_is_recorded_and_its_weights_are_not(tmp_path, writers):
    collector = SummaryCollector(tmp_path, collect_freq=2)
    with Run(callbacks=collector, network=Model()) as run:
        for number in range(4):
            run.log(reward=number)
        run.log(reward=17, step=2)
    assert writers[0].steps("scalar", "reward") == [1, 2, 3, 4]
    assert [writers[0].values("scalar", step)["reward"] for step in (1, 2, 3, 4)] == [0, 1, 2, 3]
    assert writers[0].steps("histogram") == []
    assert collector.health().dropped == {"histogram": 15, "scalar": 1}


def test_numbers_and_copies_of_a_step_between_due_ones_are_recorded_in_their_order(tmp_path, writers):
    class Copy:
        nbytes = 8

        def result(self):
            return 2.0

    collector = SummaryCollector(tmp_path)
    with Run(callbacks=collector) as run:
        for number in run.steps([1, 2, 3]):
            run.log(b=1, a=float("inf"))
            if number == 2:
                run._given.numbers["late"] = Copy()
            run.log(b=number / 2)
    tags = [[value.tag for value in event.values if value.plugin == "scalar"] for event in writers[0].events]
    perf = ["zz_perf/step_ms", "zz_perf/data_wait_ms"]
    assert [found for found in tags if found] == [
        ["b", "a", *perf], ["b", "a", "late", *perf], ["b", "a", *perf],
    ]  # fmt: skip
    assert writers[0].values("scalar", 2)["late"] == 2.0
    assert [writers[0].values("scalar", step)["b"] for step in (1, 2, 3)] == [0.5, 1.0, 1.5]
    assert writers[0].values("scalar", 3)["a"] == float("inf")
    assert collector.health().errors == {"'a' is inf at step 1 on rank 0": 3}


def test_a_second_training_in_a_run_dir_is_reported_on_the_console_and_has_its_own_lineage(
    nasty_tmp_path, capsys
):
    for name in ("first", "second"):
        collector = SummaryCollector(nasty_tmp_path, custom_lineage_data={name: name})
        with ds.Run(callbacks=[collector]) as run:
            for step in run.steps(range(2)):
                run.log(loss=float(step))
        reported = capsys.readouterr().err
        assert ("holds a training already; this one is attempt 1, which" in reported) == (name == "second")
    assert str(nasty_tmp_path) in reported
    assert [[*entry.map_str] for entry in read_lineage(nasty_tmp_path).custom.user_info] == [["second"]]


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda run: run.log({"eval/loss": 1.0}), ["run.log and an evaluation"]),
        (lambda run: evaluate(run, loss=2.0), ["two evaluations"]),
        (lambda run: run.log({"eval/top5": 1.0}), []),
        (lambda run: evaluate(run, top5=1.0), []),
    ],
)
@pytest.mark.parametrize("is_before", [True, False])
def test_two_numbers_of_a_tag_at_a_step_are_in_the_files_and_named_once(tmp_path, give, said, is_before):
    with ds.init(tmp_path, quiet=True, system_metrics=False) as run:
        for _ in run.steps(range(3)):
            if is_before:
                give(run)
            evaluate(run, loss=7.0)
            if not is_before:
                give(run)
    found = run.health()
    assert [text.split(", of ")[1].split(":")[0] for text in found.errors] == said
    assert found.dropped == {}
    values = [value for event in read_directory(tmp_path) for value in event.values]
    assert sum(value.tag.startswith("eval/") for value in values) == 6


def evaluate(run, **metrics):
    with run.eval() as evaluation:
        evaluation.log(**metrics)


def test_what_is_given_under_a_name_of_distsummary_counts(tmp_path):
    names = ("learning_rate/auto", "zz_perf/step_ms", "zz_perf/data_wait_ms", "zz_system/process/memory_gib")
    with ds.init(tmp_path, optimizer=Momentum(), watch=Model(), histograms=".*", collect_freq=1) as run:
        for step in run.steps(range(3)):
            run.log(dict.fromkeys(names, 100.0 + step))
            run.histogram("layer1.weight/auto", np.full(5, 77.0))
    recorded = ds.open_run(tmp_path)
    for name in names:
        assert [row.value for row in recorded.scalars(name)] == [100.0, 101.0, 102.0]
    values = [value for event in read_directory(tmp_path) for value in event.values]
    assert [value.tag for value in values].count("layer1.weight/auto") == 3
