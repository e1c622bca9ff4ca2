import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError, MissingParameterError
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import (
    HOOKS,
    Callback,
    CallbackList,
    CallbackParams,
    LossMonitor,
    RunContext,
    TimeMonitor,
)
from distsummary.training.resumed import Resumed
from distsummary.training.run import Run
from distsummary.training.step_context import StepContext
from tests.refusals import refused


class Recorder(Callback):
    def __init__(self):
        self.seen = []

    def __enter__(self):
        self.seen.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.seen.append(("exit", kind))


class OldNames(Recorder):
    def step_end(self, run_context):
        self.seen.append("step_end")


class NewNames(Recorder):
    def on_train_step_end(self, run_context):
        self.seen.append("on_train_step_end")


def context(step=None, **params):
    found = RunContext(CallbackParams(params))
    found.step = step or StepContext()
    return found


def call(callbacks: CallbackList, hook: str) -> None:
    for method in callbacks.methods[hook]:
        method(context())


def test_missing_parameters_raise_both_attribute_and_key_errors():
    reported = CallbackParams(batch_num=3)
    reported.cur_step_num = 2
    assert (reported.batch_num, reported["cur_step_num"]) == (3, 2)
    with pytest.raises(MissingParameterError, match="'loss_fn'"):
        _ = reported.loss_fn
    with pytest.raises(KeyError):
        _ = reported.loss_fn
    assert getattr(reported, "loss_fn", None) is None


def test_every_on_hook_calls_the_older_name():
    for hook in HOOKS:
        called = []
        old = hook.split("_", 2)[2]
        callback = type("One", (Callback,), {old: lambda self, _, called=called: called.append(1)})()
        getattr(callback, hook)(context())
        call(CallbackList(callback), hook)
        assert called == [1, 1], hook


def test_the_newer_name_wins_and_hooks_that_are_not_overridden_are_not_dispatched():
    both = type("Both", (NewNames, OldNames), {})()
    callbacks = CallbackList([both])
    for hook in ("on_train_step_end", "on_eval_step_end", "on_train_begin"):
        call(callbacks, hook)
    assert both.seen == ["on_train_step_end", "step_end"]


def test_a_hook_put_on_the_instance_is_dispatched():
    callback, seen = Callback(), []
    callback.step_end = seen.append
    call(CallbackList(callback), "on_train_step_end")
    assert len(seen) == 1


def test_callbacks_are_left_in_reverse_order_even_if_one_fails():
    class Failing(Recorder):
        def __exit__(self, kind, error, trace):
            raise OSError("full")

    first, last = Recorder(), Recorder()
    with pytest.raises(OSError, match="full"), CallbackList([first, Failing(), last]):
        pass
    assert first.seen == ["enter", ("exit", OSError)]
    assert last.seen == ["enter", ("exit", None)]


def test_entering_keeps_the_original_when_enter_returns_no_callback(caplog):
    class Forgetful(OldNames):
        def __enter__(self):
            return None

    callback = Forgetful()
    with CallbackList([callback]) as callbacks:
        call(callbacks, "on_train_step_end")
    assert callback.seen[0] == "step_end"
    assert "Forgetful.__enter__ did not return a callback" in caplog.text


def test_what_is_no_callback_is_refused():
    refused(
        InvalidTypeError,
        (lambda: CallbackList([LossMonitor]), r"class LossMonitor; write LossMonitor\(\)"),
        (lambda: CallbackList(3), "got 3"),
        (lambda: CallbackList([LossMonitor(), 3]), "got 3"),
    )


def drive_monitor(monitor, losses, batch_num=5):
    reported = CallbackParams(batch_num=batch_num, cur_step_num=0)
    monitor.on_train_begin(RunContext(reported))
    for step, loss in enumerate(losses, 1):
        reported |= {"cur_step_num": step, "cur_epoch_num": (step - 1) // batch_num + 1, "net_outputs": loss}
        monitor.on_train_step_end(RunContext(reported))


def test_loss_monitor_prints_every_nth_step_with_the_step_in_its_epoch(capsys):
    drive_monitor(LossMonitor(3), [0.5, 0.25, np.array([1.0, 2.0]), 1, 1, (7.0, None), 1])
    assert capsys.readouterr().out.splitlines() == [
        "epoch: 1 step: 3, loss is 1.5",
        "epoch: 2 step: 1, loss is 7.0",
    ]


def test_monitors_of_a_resumed_training_count_as_if_it_had_not_been_interrupted(capsys):
    resumed = Resumed(epoch=0, step=4, step_in_epoch=4)
    with Run(callbacks=[LossMonitor(3), TimeMonitor()], initial_step=4) as run:
        for epoch in run.epochs(2):
            for _ in run.steps(resumed.rest_of(range(4)) if epoch == 0 else range(4)):
                run.log(loss=1.0)
    monitored, timed = capsys.readouterr().out.splitlines()  # nothing of the epoch without steps
    assert monitored == "epoch: 2 step: 2, loss is 1.0"
    assert timed.startswith("Train epoch time")


@pytest.mark.parametrize("times", [0, 1, 3])
@pytest.mark.parametrize("bad", [np.array([np.inf, 1.0]), np.float32("nan"), [float("-inf"), None]])
def test_loss_monitor_stops_at_the_step_whose_loss_is_not_finite_printed_or_not(times, bad):
    with pytest.raises(InvalidValueError, match="epoch: 1 step: 2, the loss is "):
        drive_monitor(LossMonitor(times), [np.ones(1), bad, np.ones(1)])


def test_loss_monitor_prints_again_after_a_loop_went_back(capsys):
    reported, monitor = CallbackParams(batch_num=100, cur_step_num=0), LossMonitor(2)
    monitor.on_train_begin(RunContext(reported))
    for step in (1, 2, 3, 4, 1, 2, 3):
        reported |= {"cur_step_num": step, "net_outputs": 1.0}
        monitor.on_train_step_end(RunContext(reported))
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()] == ["2,", "4,", "2,"]


def test_monitors_print_on_rank_0_only_and_stop_every_rank(capsys):
    step = StepContext(topology=Topology(rank=3, world_size=4))
    reported = {"mode": "train", "batch_num": 1, "cur_step_num": 1}
    reported |= {"cur_epoch_num": 1, "net_outputs": 1.0, "metrics": {"accuracy": 1.0}}
    for monitor in (LossMonitor(), TimeMonitor()):
        for hook in HOOKS[:6]:
            getattr(monitor, hook)(context(step, **reported))
    assert capsys.readouterr().out == ""
    with pytest.raises(InvalidValueError, match="the loss is nan on rank 3"):
        LossMonitor().on_train_step_end(context(step, **reported | {"net_outputs": float("nan")}))


def test_loss_monitor_says_that_it_saw_no_loss(caplog):
    with Run(callbacks=LossMonitor()) as run:
        for _ in run.steps(range(2)):
            run.log(other=1.0)
    assert "LossMonitor saw no loss; log it" in caplog.text


def test_loss_monitor_is_silent_in_an_evaluation_and_about_outputs_without_a_number(capsys):
    monitor = LossMonitor()
    monitor.on_eval_step_end(context(mode="eval", cur_step_num=1, net_outputs=float("nan")))
    drive_monitor(monitor, ["a", {}, None, (), np.array(["a"]), 10**400, 1 + 2j])
    assert capsys.readouterr().out == ""


def test_a_subclass_of_a_monitor_may_override_the_older_name(capsys):
    class Twice(LossMonitor):
        def step_end(self, run_context):
            super().step_end(run_context)
            super().step_end(run_context)

    with Run(callbacks=Twice()) as run:
        for _ in run.steps(range(2)):
            run.log(loss=1.0)
    assert capsys.readouterr().out.splitlines() == [f"epoch: 1 step: {step}, loss is 1.0" for step in (1, 2)]


def test_time_monitor_uses_its_data_size_when_the_loader_has_no_length(capsys):
    of_epoch = context(StepContext(logged={"zz_perf/data_wait_ms": 500.0}), batch_num=0, mode="train")
    monitor = TimeMonitor(data_size=2, data_time=True)
    monitor.on_train_epoch_begin(of_epoch)
    monitor.on_train_step_end(of_epoch)
    monitor.on_train_epoch_end(of_epoch)
    out = capsys.readouterr().out
    assert out.startswith("Train epoch time: ")
    assert "(data time: 250.000 ms)" in out


def test_time_monitor_is_silent_where_no_one_knows_the_steps(capsys):
    monitor = TimeMonitor()
    monitor.epoch_begin(context(batch_num=0))
    monitor.epoch_end(context(batch_num=0))
    assert capsys.readouterr().out == ""


def test_an_evaluation_within_an_epoch_does_not_reset_the_trainings_watch(capsys, monkeypatch):
    now = iter((0.0, 10.0, 11.0, 20.0))
    monkeypatch.setattr("distsummary.training.callbacks.time.perf_counter", lambda: next(now))
    monitor = TimeMonitor()
    monitor.epoch_begin(context(batch_num=10, mode="train"))
    monitor.epoch_begin(context(batch_num=1, mode="eval"))
    monitor.epoch_end(context(batch_num=1, mode="eval"))
    monitor.epoch_end(context(batch_num=10, mode="train"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Eval epoch time: 1000.000 ms")
    assert lines[1].startswith("Train epoch time: 20000.000 ms, per step time: 2000.000 ms")
