import contextlib
import gc
import itertools
import logging
import math
import os
import sys
import threading
import weakref
from pathlib import Path

import pytest

from distsummary.base import at_exit
from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.errors import ClosedError, InvalidTypeError, InvalidValueError, WriteError
from distsummary.format.own_tags import DATA_WAIT_MS, EPOCH, OWN_MS, STEP_MS, WAIT_MS
from distsummary.format.records import Value
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import HOOKS, Callback, parallel_mode
from distsummary.training.run import Run
from tests.refusals import refused


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Recorder(Callback):
    """Keeps the order of the hooks, and at the ends of steps, epochs and the training what was logged."""

    def __init__(self):
        self.hooks, self.logged, self.exits = [], [], []

    def __exit__(self, kind, error, trace):
        self.exits.append(kind)


def _keep(hook):
    def method(self, run_context):
        reported = run_context.original_args()
        self.hooks.append(hook)
        if hook in ("on_train_step_end", "on_train_epoch_end", "on_train_end"):
            logged = run_context.step.logged
            values = {name: value for name, value in logged.items() if not name.startswith("zz_perf/")}
            self.logged.append((hook, reported.cur_step_num, values))

    return method


for _hook in HOOKS:
    setattr(Recorder, _hook, _keep(_hook))


def counted(recorder, hook):
    return recorder.hooks.count(hook)


def test_the_shortest_loop_is_one_epoch():
    recorder = Recorder()
    run = Run(callbacks=recorder)
    for batch in run.steps([10, 20]):
        run.log(loss=batch)
    run.close()
    run.close()
    step = ["on_train_step_begin", "on_train_step_end"]
    assert recorder.hooks == [
        "on_train_begin", "on_train_epoch_begin", *step, *step, "on_train_epoch_end", "on_train_end",
    ]  # fmt: skip
    assert recorder.logged[:2] == [
        ("on_train_step_end", 1, {"loss": 10.0}),
        ("on_train_step_end", 2, {"loss": 20.0}),
    ]
    assert recorder.exits == [None]


def test_epochs_count_from_zero_and_the_callbacks_from_one():
    reported = []

    class Epochs(Callback):
        def step_end(self, run_context):
            args = run_context.original_args()
            reported.append(
                (args.cur_epoch_num, args.epoch_num, args.batch_num, args.cur_step_num, args.step_in_epoch)
            )

    with Run(callbacks=[Epochs()]) as run:
        seen = [epoch for epoch in run.epochs(2) for _ in run.steps("ab")]
    assert seen == [0, 0, 1, 1]
    assert reported == [(1, 2, 2, 1, 1), (1, 2, 2, 2, 2), (2, 2, 2, 3, 1), (2, 2, 2, 4, 2)]


def test_an_evaluation_stands_inside_its_epoch():
    recorder = Recorder()
    with Run(callbacks=recorder) as run:
        for _ in run.epochs(1):
            for _ in run.steps([1]):
                pass
            with run.eval() as evaluation:
                assert list(evaluation.steps([5, 6])) == [5, 6]
                evaluation.log(accuracy=0.5)
    inside = ["on_eval_begin", "on_eval_epoch_begin", *["on_eval_step_begin", "on_eval_step_end"] * 2]
    assert recorder.hooks[4:] == [
        *inside, "on_eval_epoch_end", "on_eval_end", "on_train_epoch_end", "on_train_end",
    ]  # fmt: skip


def test_evaluations_report_their_metrics_and_the_step_of_the_training():
    reported = {}

    class Metrics(Callback):
        def on_eval_end(self, run_context):
            reported.update(run_context.original_args())

        def on_train_epoch_end(self, run_context):
            reported["at the epoch's end"] = run_context.original_args().metrics

    network = object()
    with Run(callbacks=Metrics(), network=network) as run:
        for _ in run.steps([1, 2]):
            if run.step == 2:
                with run.eval([7]) as evaluation:
                    evaluation.log({"top/5": 1}, accuracy=0.5)
    assert reported["metrics"] == reported["at the epoch's end"] == {"top/5": 1.0, "accuracy": 0.5}
    assert (reported["mode"], reported["global_step"], reported["cur_step_num"]) == ("eval", 2, 0)
    assert (reported["valid_dataset"], reported["batch_num"], reported["network"]) == ([7], 1, network)
    with pytest.raises(ClosedError, match="evaluation is over"):
        evaluation.log(accuracy=1)


def test_an_evaluation_needs_no_training():
    recorder = Recorder()
    with Run(callbacks=recorder) as run, run.eval() as evaluation:
        evaluation.log(accuracy=1)
    assert recorder.hooks == ["on_eval_begin", "on_eval_epoch_begin", "on_eval_epoch_end", "on_eval_end"]
    assert recorder.exits == [None]


def test_steps_are_measured_without_the_time_of_callbacks_and_evaluations():
    clock = Clock()
    measured = []

    class Slow(Callback):
        def step_begin(self, run_context):
            clock.now += 100

        def step_end(self, run_context):
            clock.now += 1000
            logged = run_context.step.logged
            measured.append((logged[STEP_MS], logged[DATA_WAIT_MS]))

    def loader():
        clock.now += 3  # starting it
        for _ in range(2):
            clock.now += 2
            yield None

    with Run(callbacks=Slow(), clock=clock) as run:
        for _ in run.steps(loader()):
            clock.now += 0.5
            with run.eval():
                clock.now += 50
    assert measured == [(5500.0, 5000.0), (2500.0, 2000.0)]


@pytest.mark.parametrize("way", ["break", "return", "exception", "islice", "enumerate"])
def test_a_step_ends_when_its_iterator_is_released(way):
    seen = []
    clock = Clock()

    class Weights(Callback):
        def on_train_step_end(self, run_context):
            reported, step = run_context.original_args(), run_context.step
            seen.append((reported.cur_step_num, weight[0], step.logged[STEP_MS], step.ended_late))

    def train():
        batches = run.steps(range(9))
        batches = {"islice": itertools.islice(batches, 2), "enumerate": enumerate(batches)}.get(way, batches)
        loop = iter([batches])
        del batches
        for number, _ in enumerate(next(loop), 1):
            weight[0] = number
            clock.now += number
            run.log(loss=0.5)
            if number == 2 and way == "return":
                return
            if number == 2 and way == "exception":
                raise LookupError
            if number == 2 and way != "islice":
                break

    weight = [0]
    run = Run(callbacks=Weights(), clock=clock)
    with contextlib.suppress(LookupError):
        train()
    weight[0] = 1000
    assert seen == [(1, 1, 1000.0, False), (2, 2, 2000.0, False)]
    assert run.step == 2
    run.close()
    assert len(seen) == 2


def test_a_step_that_is_left_before_it_logged_is_not_counted_even_by_an_evaluation():
    steps = []

    class Evaluations(Callback):
        def on_eval_end(self, run_context):
            steps.append(run_context.original_args().global_step)

    run = Run(callbacks=Evaluations())
    for number in run.steps(range(9)):
        if number == 5:
            break
        run.log(loss=0.5)
    with run.eval() as evaluation:
        evaluation.log(accuracy=1)
    assert (run.step, steps) == (5, [5])
    run.close()


@pytest.mark.parametrize("call", ["steps", "next_step", "close", "epochs"])
def test_the_step_of_an_iterator_that_is_held_ends_late_at_the_next_call(call):
    reported = []

    class Late(Callback):
        def on_train_step_end(self, run_context):
            args, step = run_context.original_args(), run_context.step
            reported.append((args.cur_step_num, sorted(step.logged), step.ended_late))

    run = Run(callbacks=Late())
    batches = run.steps([1, 2])
    next(batches)
    run.log(loss=0.5)
    assert reported == []
    if call == "epochs":
        next(run.epochs(9))
    else:
        getattr(run, call)(*[[]] * (call == "steps"))
    assert reported == [(1, ["loss"], True)]
    step = run.step
    del batches  # of a step that has ended: changes nothing
    assert (run.step, len(reported)) == (step, 1)
    run.close()


@pytest.mark.parametrize("call", ["steps", "log", "close", "next_step", "epochs", "eval", "with"])
def test_what_a_callback_raises_when_the_iterator_is_released_is_raised_by_the_next_call(call):
    class Failing(Callback):
        def on_train_step_end(self, run_context):
            raise OSError("full")

    def go_on():
        if call == "epochs":
            next(epochs)
        elif call == "eval":
            with run.eval():
                pass
        elif call == "with":
            run.__exit__(None, None, None)
        else:
            getattr(run, call)(*[[]] * (call == "steps"))

    run = Run(callbacks=Failing())
    epochs = run.epochs(2)
    next(epochs)
    for _ in run.steps([1, 2]):
        run.log(loss=0.5)
        break
    with pytest.raises(OSError, match="full"):
        go_on()
    run.close()  # said once
    with pytest.raises(ClosedError):
        run.log(loss=1)


def test_what_a_callback_raises_at_the_release_is_said_if_no_call_follows(monkeypatch, caplog):
    from distsummary.training import run as module

    class Failing(Callback):
        def on_train_step_end(self, run_context):
            raise OSError("full")

    def train(run, error=None):
        for _ in run.steps([1, 2]):
            run.log(loss=0.5)
            if error:
                raise error
            break

    registered = []
    monkeypatch.setattr(module.atexit, "register", registered.append)
    train(Run(callbacks=Failing()))
    with pytest.raises(OSError, match="full"):
        registered[-1]()
    with pytest.raises(LookupError, match="mine"), Run(callbacks=Failing()) as run:
        train(run, LookupError("mine"))
    registered[-1]()  # said by then
    assert "OSError: full" in caplog.text


def test_what_only_another_thread_logged_is_recorded():
    recorder = Recorder()
    run = Run(callbacks=recorder)
    thread = threading.Thread(target=lambda: run.log(gpu=1))
    thread.start()
    thread.join()
    run.close()
    assert recorder.logged[0] == ("on_train_epoch_end", 0, {"gpu": 1})


def steps_of(recorder):
    return [(step, values) for hook, step, values in recorder.logged if hook == "on_train_step_end"]


def test_step_and_commit_are_refused_inside_steps():
    with Run(initial_step=3) as run:
        for _ in run.steps([1]):
            with pytest.raises(InvalidValueError, match=r"step must be left out .* got 5; .* initial_step="):
                run.log({"a": 1}, step=5)
            with pytest.raises(InvalidValueError, match="commit must be left out, got False"):
                run.log({"b": 1}, commit=False)
            run.log({"step": 7})  # a name like others
            assert run.step == 4
        with pytest.raises(InvalidTypeError, match="step"):
            run.log(a=1, step="last")
        with pytest.raises(InvalidValueError, match="step"):
            run.log(a=1, step=-1)


def test_outside_of_steps_log_goes_to_a_step_and_never_back(caplog):
    recorder = Recorder()
    with Run(callbacks=recorder) as run:
        for number in (0, 1, 5):
            run.log(a=number, step=number)
            run.log(b=number, step=number)
        assert run.step == 5
        run.log(a=17, step=4)
        run.log(a=18, step=3)
        assert run.step == 5
    assert steps_of(recorder) == [(0, {"a": 0, "b": 0}), (1, {"a": 1, "b": 1}), (5, {"a": 5, "b": 5})]
    assert caplog.text.count("steps before run.step are dropped") == 1


def test_after_steps_a_name_that_is_logged_again_belongs_to_the_last_step():
    callback = Plain()
    callback.plain_before = 99
    recorded = []
    callback.record = lambda step, logged, values: recorded.append(
        (step, {name: value for name, value in logged.items() if not name.startswith("zz_perf/")})
    )
    run = Run(callbacks=callback)
    for _ in range(2):
        for number in run.steps([1, 2]):
            run.log(loss=number)
        run.log(epoch=3)
        run.log(epoch=4)
    assert recorded == [
        (1, {"loss": 1.0}), (2, {"loss": 2.0}), (2, {"epoch": 4.0}), (3, {"loss": 1.0}), (4, {"loss": 2.0}),
    ]  # fmt: skip
    run.close()


@pytest.mark.parametrize("initial", [0, 10])
def test_a_value_before_the_first_step_takes_no_step_and_replaces_none_of_the_attempt_before(initial):
    recorded = []
    callback = Plain()
    callback.plain_before = 99
    callback.record = lambda step, logged, values: recorded.append((step, logged.get("parameters")))
    with Run(callbacks=callback, initial_step=initial) as run:
        run.log(parameters=17)
        for _ in run.steps([1]):
            pass
    assert recorded == ([(0, 17.0), (1, None)] if initial == 0 else [(11, 17.0)])


def test_a_thread_that_logs_all_the_time_never_fails_and_loses_no_step():
    recorder = Recorder()
    run, errors, is_over = Run(callbacks=recorder), [], threading.Event()

    def measure():
        while not is_over.is_set():
            try:
                run.log(gpu=0.5, step=0)
                run.log({f"gpu{next(count) % 7}": 1.0})
            except Exception as error:
                errors.append(error)

    count = itertools.count()
    thread = threading.Thread(target=measure)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        for number in run.steps(range(500)):
            run.log(loss=number)
        run.close()
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert errors == []
    assert [values["loss"] for _, values in steps_of(recorder)] == list(range(500))


def test_next_step_ends_the_step_under_way_and_begins_the_next():
    clock, recorder, times = Clock(), Recorder(), []

    class Times(Callback):
        def step_end(self, run_context):
            step = run_context.step
            times.append((step.logged.get(STEP_MS), DATA_WAIT_MS in step.logged, step.ended_late))

    with Run(callbacks=[recorder, Times()], clock=clock) as run:
        for number in range(3):
            run.next_step()
            assert run.step == number + 1
            run.log(reward=number)
            run.log(reward=number + 1)
            clock.now += 2
        run.next_step()  # nothing follows
    assert run.step == 3
    assert steps_of(recorder) == [(1, {"reward": 1}), (2, {"reward": 2}), (3, {"reward": 3})]
    assert times == [(2000.0, False, False)] * 3
    assert recorder.hooks[:3] == ["on_train_begin", "on_train_epoch_begin", "on_train_step_begin"]
    assert recorder.hooks[-2:] == ["on_train_epoch_end", "on_train_end"]


def test_a_step_whose_begin_is_not_known_has_no_times():
    logged = []

    class Times(Callback):
        def step_end(self, run_context):
            logged.append({*run_context.step.logged})

    with Run(callbacks=Times(), topology=Topology(rank=0, world_size=2)) as run:
        for began_s in (math.nan, None):
            with run.next_step(began_s=began_s):
                run.log(reward=1)
    assert logged[0] == {"reward", EPOCH}
    assert logged[1] >= {"reward", STEP_MS, OWN_MS, WAIT_MS}


def test_next_step_as_a_context_manager_ends_its_step():
    recorder = Recorder()
    with Run(callbacks=recorder) as run:
        for number in range(2):
            with run.next_step():
                run.log(reward=number)
            assert counted(recorder, "on_train_step_end") == number + 1
        for _ in run.steps([1]):
            run.log(loss=1)
    assert steps_of(recorder) == [(1, {"reward": 0}), (2, {"reward": 1}), (3, {"loss": 1})]


def test_steps_without_a_loader_count_for_ever():
    seen = []
    with Run(initial_step=2) as run:
        for number in run.steps():
            seen.append((number, run.step))
            run.log(loss=1)
            if number == 4:
                break
        assert list(run.steps(())) == []
    assert seen == [(2, 3), (3, 4), (4, 5)]


def test_accumulated_batches_are_one_step():
    clock, recorder, reported = Clock(), Recorder(), []

    class Times(Callback):
        def step_end(self, run_context):
            args, logged = run_context.original_args(), run_context.step.logged
            reported.append((args.batch_num, logged[STEP_MS], logged[DATA_WAIT_MS]))

    class Loader:
        def __iter__(self):
            for number in range(5):
                clock.now += 1
                yield number

        def __len__(self):
            return 5

    with Run(callbacks=[recorder, Times()], clock=clock) as run:
        for number in run.steps(Loader(), accumulate=2):
            clock.now += 10
            run.log({"loss": number, f"n{number}": 1})
    assert steps_of(recorder) == [
        (1, {"loss": 1, "n0": 1, "n1": 1}), (2, {"loss": 3, "n2": 1, "n3": 1}), (3, {"loss": 4, "n4": 1}),
    ]  # fmt: skip
    assert reported == [(3, 22000.0, 2000.0), (3, 22000.0, 2000.0), (3, 11000.0, 1000.0)]


def test_values_between_steps_go_to_the_end_of_the_epoch_and_of_the_training():
    recorder = Recorder()
    run = Run(callbacks=recorder)
    for _ in run.epochs(1):
        for _ in run.steps([1]):
            pass
        run.log(epoch_loss=1.0)
    run.log(final=2.0)
    run.close()
    assert recorder.logged == [
        ("on_train_step_end", 1, {}),
        ("on_train_epoch_end", 1, {"epoch_loss": 1.0}),
        ("on_train_end", 1, {"final": 2.0}),
    ]


def test_an_exception_in_the_loop_leaves_the_callbacks_without_the_end():
    recorder = Recorder()

    def train():
        with Run(callbacks=recorder) as run:
            for _ in run.steps([1]):
                _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        train()
    assert recorder.exits == [ZeroDivisionError]
    assert "on_train_end" not in recorder.hooks


def test_an_exception_in_a_hook_leaves_the_callbacks_and_closes_the_run():
    class Stop(Recorder):
        def on_train_step_end(self, run_context):
            raise InvalidValueError("the loss is nan")

    stop = Stop()
    run = Run(callbacks=stop)
    with pytest.raises(InvalidValueError, match="nan"):
        for _ in run.steps([1, 2]):
            pass
    assert stop.exits == [InvalidValueError]
    run.close()
    assert "on_train_end" not in stop.hooks
    with pytest.raises(ClosedError):
        run.log(loss=1)


@pytest.mark.parametrize("hook", ["on_train_step_end", "on_train_begin"])
def test_a_requested_stop_ends_the_epochs_and_the_training(hook):
    class Stop(Recorder):
        pass

    setattr(Stop, hook, lambda self, run_context: run_context.request_stop())
    stop = Stop()
    batches = []
    with Run(callbacks=stop) as run:
        for _ in run.epochs(3):
            batches.extend(run.steps([1, 2, 3]))
    assert batches == [1]  # as in MindSpore, also if the stop was requested before the step
    assert counted(stop, "on_train_epoch_end") == counted(stop, "on_train_end") == 1


def test_a_resumed_run_continues_at_its_step_and_epoch():
    with Run(initial_step=10, initial_epoch=2) as run:
        epochs = []
        for epoch in run.epochs(4):
            epochs.append((epoch, [run.step for _ in run.steps("ab")]))
    assert epochs == [(2, [11, 12]), (3, [13, 14])]


def test_loaders_without_a_length_report_no_number_of_steps():
    seen = []

    class Length(Callback):
        def begin(self, run_context):
            seen.append(run_context.original_args().batch_num)

    with Run(callbacks=Length()) as run:
        assert list(run.steps(iter([1, 2]))) == [1, 2]
    assert seen == [0]


def test_a_progress_bar_around_the_steps_gets_the_length_of_the_loader():
    with Run() as run:
        steps = run.steps([1, 2, 3], accumulate=2)
        assert (len(steps), next(steps), [*steps], run.step) == (3, 1, [2, 3], 2)
        with run.eval() as evaluation:
            steps = evaluation.steps("ab")
            assert (len(steps), [*steps]) == (2, ["a", "b"])
        with pytest.raises(TypeError, match="no len"):
            len(run.steps(iter([1])))


def test_every_call_of_steps_outside_epochs_is_an_epoch():
    recorder = Recorder()
    with Run(callbacks=recorder) as run:
        for _ in range(3):
            for _ in run.steps([1]):
                pass
    assert (run.epoch, counted(recorder, "on_train_epoch_end"), counted(recorder, "on_train_begin")) == (
        3,
        3,
        1,
    )


def test_bad_arguments_are_refused_where_they_are_given():
    run = Run()
    refused(
        InvalidValueError,
        (lambda: Run(epochs=0), "epochs"),
        (lambda: Run(on_nan="raise"), "on_nan"),
        (lambda: run.epochs(0), "count"),
        (lambda: run.steps([], accumulate=0), "accumulate"),
    )
    refused(
        InvalidTypeError,
        (lambda: Run(topology=3), "topology"),
        (lambda: Run(strict=1), "strict"),
        (lambda: run.steps(3), "loader"),
    )


def test_a_strict_run_raises_for_a_bad_value_and_logs_nothing_of_its_call():
    recorder = Recorder()
    with Run(callbacks=recorder, strict=True) as run:
        for _ in run.steps([1]):
            run.log(kept=1)
            with pytest.raises(InvalidTypeError):
                run.log(good=1, bad="x")
    assert recorder.logged[0] == ("on_train_step_end", 1, {"kept": 1.0})


def test_a_run_that_no_one_closed_is_closed_at_exit_and_aborted_after_a_crash(monkeypatch):
    finished, crashed = Recorder(), Recorder()
    for recorder, error in ((finished, None), (crashed, OSError("crash"))):
        run = Run(callbacks=recorder)
        for _ in run.steps([1]):
            pass
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        at_exit._close_all()
    assert (finished.hooks[-1], finished.exits) == ("on_train_end", [None])
    assert (crashed.hooks[-1], crashed.exits) == ("on_train_epoch_end", [OSError])


def test_at_the_exit_the_newest_run_is_closed_first_and_one_that_raises_stops_no_other():
    closed = []

    class Closing(Callback):
        def __init__(self, name):
            self.name = name

        def end(self, run_context):
            closed.append(self.name)
            raise ValueError(self.name)

    runs = [Run(callbacks=Closing(name)) for name in "ab"]
    for run in runs:
        list(run.steps([1]))
    with pytest.raises(ValueError, match="b"):
        at_exit._close_all()
    assert closed == ["b", "a"]


def test_a_forked_process_neither_closes_nor_leaves_the_run(monkeypatch):
    recorder = Recorder()
    run = Run(callbacks=recorder)
    for _ in run.steps([1]):
        pass
    before = list(recorder.hooks)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        run.close()
        run.__exit__(SystemExit, SystemExit(0), None)
    assert (recorder.hooks, recorder.exits) == (before, [])
    run.close()
    assert (recorder.hooks[-1], recorder.exits) == ("on_train_end", [None])


def test_the_parallel_mode_is_reported_by_the_mesh():
    assert parallel_mode(Topology()) == "stand_alone"
    assert parallel_mode(Topology(world_size=4)) == "data_parallel"
    assert parallel_mode(Topology(world_size=4, mesh={"dp": (0, 4)})) == "data_parallel"
    assert parallel_mode(Topology(world_size=4, mesh={"dp": (0, 2), "tp": (0, 2)})) == "hybrid_parallel"


def test_a_run_finds_its_rank_as_init_does(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    run = Run()
    assert (run.rank, run.topology.world_size) == (1, 3)


def test_the_callbacks_see_what_the_step_that_failed_had_logged():
    class Last(Callback):
        def on_train_begin(self, run_context):
            self.step = run_context.step

        def __exit__(self, kind, error, trace):
            self.logged = self.step.logged

    def train(callback):
        with Run(callbacks=callback) as run:
            for _ in run.steps([1, 2]):
                run.log(loss=float("nan"))
                raise RuntimeError("nan")

    last = Last()
    with pytest.raises(RuntimeError, match="nan"):
        train(last)
    assert last.logged.keys() == {"loss", STEP_MS, DATA_WAIT_MS}


# While Python ends, the names of a module may be None before an object that needs them is freed.
def test_a_closed_run_is_freed_while_the_interpreter_ends(monkeypatch):
    run = Run()
    run.close()
    monkeypatch.setattr("distsummary.training.run.os", None)
    run.__del__()


def test_a_run_that_no_one_refers_to_is_closed_as_at_the_exit():
    recorder = Recorder()

    def main():
        run = Run(callbacks=recorder)
        for number in run.steps([1, 2, 3]):
            run.log(loss=number)
            if number == 2:
                break
        return weakref.ref(run)

    reference = main()
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "distsummary-end":
            thread.join()
    assert len(recorder.exits) == 1
    gc.collect()
    assert reference() is None
    assert recorder.logged[1] == ("on_train_step_end", 2, {"loss": 2})


def test_epochs_that_are_done_already_are_said(caplog):
    run = Run()
    for _ in range(2):
        for _ in run.epochs(1):
            list(run.steps([1]))
    assert "epoch 1 is done already" in caplog.text
    run.close()


class Plain(Callback):
    """A callback whose hooks are only needed from step 3 on; it records the steps before itself."""

    plain_before = 3
    dir = Path("runs")

    def __init__(self):
        self.calls = []
        self.failures = Failures(Health(), logging.getLogger("test"))
        self.recorder = self

    def snapshot(self, plugin, name, value):
        return Value(plugin, name, value)

    def health(self):
        return self.failures.health

    def gather(self):
        pass

    def record(self, step, logged, values=()):
        self.calls.append((step, sorted(logged)))

    def on_train_step_begin(self, run_context):
        self.calls.append("begin")

    def on_train_step_end(self, run_context):
        self.calls.append(("end", sorted(run_context.step.logged)))


def test_a_recorder_takes_plain_steps_in_the_place_of_the_hooks():
    callback = Plain()
    with Run(callbacks=[callback, Callback()]) as run:
        for number in run.steps([1, 2, 3]):
            if number != 2:
                run.log(loss=0.5)
    times = [DATA_WAIT_MS, STEP_MS]
    assert callback.calls == [(1, ["loss", *times]), (2, times), "begin", ("end", ["loss", *times])]


def test_with_another_callback_of_steps_every_step_has_its_hooks():
    callback, other = Plain(), Recorder()
    with Run(callbacks=[callback, other]) as run:
        for _ in run.steps([1, 2]):
            pass
    assert callback.calls == ["begin", ("end", [DATA_WAIT_MS, STEP_MS])] * 2
    assert counted(other, "on_train_step_end") == 2


class Full(Plain):
    """Its recorder fails at every step."""

    def record(self, step, logged, values=()):
        try:
            raise OSError("full")
        except OSError as error:
            self.failures.fail("step", error)
            raise

    def __exit__(self, kind, error, trace):
        self.calls.append(kind)


def test_a_recorder_that_fails_ends_the_run_only_if_failures_are_to_raise():
    callback = Full()
    with Run(callbacks=callback) as run:
        assert list(run.steps([1, 2])) == [1, 2]
        run.log(loss=1.0)
    assert callback.calls == [None]
    assert sum(run.health().errors.values()) == 4
    callback = Full()
    callback.failures = Failures(Health(), logging.getLogger("test"), raise_exception=True)
    run = Run(callbacks=callback)
    batches = run.steps([1, 2])
    next(batches)
    with pytest.raises(WriteError, match="full"):
        next(batches)
    assert callback.calls == [WriteError]
    with pytest.raises(ClosedError):
        run.log(loss=1.0)


def test_values_that_a_recorder_fails_to_record_count_as_dropped():
    with Run(callbacks=Full()) as run:
        for step in run.steps([1, 2]):
            run.log(loss=float(step))
    assert run.health().dropped == {"scalar": 2}


def test_what_is_logged_is_never_shared_between_steps_even_if_a_callback_changes_it():
    class Changing(Callback):
        def on_train_epoch_end(self, run_context):
            run_context.step.logged["more"] = 1.0

    recorder = Recorder()
    with Run(callbacks=[Changing(), recorder]) as run:
        for _ in run.epochs(2):
            for _ in run.steps([1]):
                pass
    assert recorder.logged == [
        ("on_train_step_end", 1, {}), ("on_train_epoch_end", 1, {"more": 1.0}),
        ("on_train_step_end", 2, {}), ("on_train_epoch_end", 2, {"more": 1.0}), ("on_train_end", 2, {}),
    ]  # fmt: skip
