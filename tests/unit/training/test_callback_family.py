"""LearningRateScheduler, History and LambdaCallback, driven by a Run."""

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.training.callbacks import EVENTS, HOOKS, CallbackParams, RunContext
from distsummary.training.history import History
from distsummary.training.lambda_callback import LambdaCallback
from distsummary.training.learning_rate import LearningRateScheduler
from distsummary.training.run import Run


class Optimizer:
    """NumPy's kind of optimizer: one learning rate."""

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate


def train(callbacks, *, steps=4, epochs=1, optimizer=None, metrics=()):
    """Returns the learning rates that the steps had."""
    seen = []
    with Run(callbacks=callbacks, optimizer=optimizer) as run:
        for epoch in run.epochs(epochs):
            for _ in run.steps(range(steps)):
                if optimizer is not None:
                    seen.append(np.asarray(optimizer.learning_rate).item())
                run.log(loss=1.0 / run.step)
            if epoch in metrics:
                with run.eval() as evaluation:
                    evaluation.log(accuracy=metrics[epoch])
    return seen


def decay(lr, cur_step_num):
    return lr * 0.5 if cur_step_num % 2 == 0 else lr


@pytest.mark.parametrize("first", [1.0, 1, np.float64(1), np.array(1.0), np.array([1.0])])
def test_the_scheduler_sets_the_rate_of_the_next_step(first):
    optimizer = Optimizer(first)
    assert train(LearningRateScheduler(decay), optimizer=optimizer, steps=5) == [1.0, 1.0, 0.5, 0.5, 0.25]
    if isinstance(first, np.ndarray):
        assert optimizer.learning_rate is first


def test_the_steps_are_counted_over_all_epochs():
    seen = []
    train(LearningRateScheduler(lambda lr, step: seen.append(step) or lr), optimizer=Optimizer(1.0), epochs=2)
    assert seen == list(range(1, 9))


def test_a_rate_that_is_almost_the_same_is_left_alone():
    optimizer = Optimizer(np.float32(0.1))
    before = optimizer.learning_rate
    train(LearningRateScheduler(lambda lr, step: lr * (1 + 1e-11)), optimizer=optimizer)
    assert optimizer.learning_rate is before


@pytest.mark.parametrize("result", [np.float32(0.5), np.array([0.5]), np.float64(0.5), 0.5])
def test_the_function_may_return_any_number(result):
    assert train(LearningRateScheduler(lambda lr, step: result), optimizer=Optimizer(1.0), steps=2)[1] == 0.5


@pytest.mark.parametrize(
    ("result", "kind"),
    [(None, InvalidTypeError), (float("nan"), InvalidValueError), (-0.1, InvalidValueError)],
)
def test_what_is_no_rate_is_refused_before_it_is_set(result, kind):
    optimizer = Optimizer(1.0)
    with pytest.raises(kind, match="the result of learning_rate_function must be"):
        train(LearningRateScheduler(lambda lr, step: result), optimizer=optimizer)
    assert optimizer.learning_rate == 1.0


@pytest.mark.parametrize("optimizer", [None, object(), [], Optimizer("fast")])
def test_a_loop_without_a_learning_rate_is_refused_when_the_training_begins(optimizer):
    with pytest.raises(InvalidValueError, match=r"needs an optimizer with a learning rate.*pass optimizer="):
        train(LearningRateScheduler(decay), optimizer=optimizer)


def test_the_scheduler_takes_only_a_function():
    with pytest.raises(InvalidTypeError, match=r"must take \(learning_rate, step\), got .* \(step\)"):
        LearningRateScheduler(lambda step: 0.1)
    with pytest.raises(InvalidTypeError, match=r"learning_rate_function must be callable, got 0\.1"):
        LearningRateScheduler(0.1)


def test_an_evaluation_is_not_a_step_of_the_scheduler():
    optimizer, steps = Optimizer(1.0), []
    with Run(
        callbacks=LearningRateScheduler(lambda lr, s: steps.append(s) or lr), optimizer=optimizer
    ) as run:
        for _ in run.steps(range(1)):
            run.log(loss=1.0)
        with run.eval() as evaluation:
            list(evaluation.steps(range(3)))
    assert steps == [1]


def test_history_keeps_the_last_loss_and_the_metrics_of_every_epoch():
    history = History()
    assert (history.epoch, history.history) == (None, {})
    train(history, epochs=3, metrics={0: 0.5, 2: 0.75})
    assert history.epoch == {"epoch": [1, 2, 3]}
    assert history.history == {"net_output": [1 / 4, 1 / 8, 1 / 12], "accuracy": [0.5, 0.75]}
    train(history, epochs=1)
    assert history.epoch == {"epoch": [1]}
    assert history.history["net_output"] == [1 / 4, 1 / 8, 1 / 12, 1 / 4]


@pytest.mark.parametrize(
    ("outputs", "kept"),
    [
        (np.array([1, 2]), 1.5), ((np.array([1.0, 3.0]), "rest"), 2.0), ([4, 5], 4.0), (2, 2.0),
        (None, None), ((), None), ({"loss": 1.0}, None), (np.array([1j]), None),
    ],
)  # fmt: skip
def test_history_keeps_the_mean_of_the_first_output(outputs, kept):
    history = History()
    history.on_train_epoch_end(RunContext(CallbackParams(net_outputs=outputs, cur_epoch_num=7)))
    assert (history.epoch, history.history) == ({"epoch": [7]}, {"net_output": [kept]})


def test_an_evaluation_alone_leaves_the_history_empty():
    history = History()
    with Run(callbacks=history) as run, run.eval() as evaluation:
        evaluation.log(accuracy=1.0)
    assert (history.epoch, history.history) == (None, {})


def drive(callback):
    with Run(callbacks=callback) as run:
        for _ in run.steps(range(1)):
            run.log(loss=1.0)
        with run.eval() as evaluation:
            list(evaluation.steps(range(1)))


def test_every_function_is_called_at_its_hook():
    called = []
    drive(LambdaCallback(**{hook: lambda _, hook=hook: called.append(hook) for hook in HOOKS}))
    assert sorted(called) == sorted(HOOKS)


def test_functions_of_the_older_names_serve_training_and_evaluation():
    called = []
    drive(LambdaCallback(**{name: lambda _, name=name: called.append(name) for name in EVENTS}))
    assert sorted(called) == sorted(EVENTS * 2)


def test_the_newer_name_wins_where_both_are_given():
    called = []
    drive(
        LambdaCallback(
            on_train_step_end=lambda _: called.append("train"), step_end=lambda _: called.append("any")
        )
    )
    assert called == ["train", "any"]


def test_a_function_sees_the_loop_and_can_stop_it():
    def stop(context):
        if context.original_args().net_outputs < 0.4:
            context.request_stop()

    callback = LambdaCallback(on_train_step_end=stop)
    with Run(callbacks=callback) as run:
        for _ in run.steps(range(100)):
            run.log(loss=1.0 / run.step)
    assert run.step == 3


@pytest.mark.parametrize("name", ["on_train_begin", "on_eval_step_end", "epoch_begin"])
def test_only_functions_are_taken(name):
    with pytest.raises(InvalidTypeError, match=f"{name} must be callable or None, got 3"):
        LambdaCallback(**{name: 3})
