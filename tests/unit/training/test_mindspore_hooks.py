"""The hooks of a Run come in MindSpore's order and with its parameters: both executed by MindSpore 2.10."""

import json
from pathlib import Path

import pytest

from distsummary.training.callbacks import HOOKS, Callback, LossMonitor
from distsummary.training.run import Run

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/ms/callbacks/hooks.json").read_text())
LAST_BATCH = {"eval_dataset_element"}  # of an evaluation: a training does not keep it in memory


def watcher(seen, *, name="", stop=None):
    """A callback that keeps [hook, epoch, step], and requests a stop when `stop` is first called."""

    def method(hook):
        def called(self, run_context):
            params = run_context.original_args()
            seen.append([name + hook, params.get("cur_epoch_num"), params.get("cur_step_num")])
            if hook == stop:
                run_context.request_stop()

        return called

    def enter(self):
        seen.append([f"{name}enter", None, None])
        return self

    def leave(self, kind, error, trace):
        seen.append([f"{name}exit", kind.__name__ if kind else None, None])

    body = {hook: method(hook) for hook in HOOKS}
    return type("Watcher", (Callback,), body | {"__enter__": enter, "__exit__": leave})()


def train(callbacks, *, epochs=1, steps=1, evaluated=0):
    with Run(callbacks=callbacks, network=object(), optimizer=object()) as run:
        for _ in run.epochs(epochs):
            for _ in run.steps(range(steps)):
                run.log(loss=1.0)
            if evaluated:
                with run.eval() as evaluation:
                    list(evaluation.steps(range(evaluated)))
                    evaluation.log(acc=1.0, Loss=0.5)


def evaluate(callbacks, *, steps=3):
    with Run(callbacks=callbacks) as run, run.eval() as evaluation:
        list(evaluation.steps(range(steps)))


def check(seen, golden):
    """Compares the hooks, and the epochs and steps where MindSpore has them."""
    assert [one[0] for one in seen] == [one[0] for one in golden]
    assert [one for one in golden if one[0].endswith("exit")] == [o for o in seen if o[0].endswith("exit")]
    for (hook, epoch, step), (_, their_epoch, their_step) in zip(seen, golden, strict=True):
        assert their_epoch in (None, epoch), hook
        assert their_step in (None, step), hook


def test_training():
    seen = []
    train(watcher(seen), epochs=2, steps=3)
    check(seen, GOLDEN["train"])


def test_evaluation():
    seen = []
    evaluate(watcher(seen))
    check(seen, GOLDEN["eval"])


def test_evaluations_within_a_training():
    seen = []
    train(watcher(seen), epochs=2, steps=3, evaluated=2)
    # a Run enters its callbacks once
    check(seen[1:-1], [one for one in GOLDEN["fit"] if one[0] not in ("enter", "exit")])


@pytest.mark.parametrize("case", [case for case in GOLDEN if case.startswith("stop")])
def test_a_requested_stop(case):
    seen = []
    stop = case.split()[1]
    if "train" in stop:
        train(watcher(seen, stop=stop), epochs=2, steps=3)
    else:
        evaluate(watcher(seen, stop=stop))
    check(seen, GOLDEN[case])


def test_no_epoch_has_a_step_once_a_stop_was_requested_before_it():
    seen = []
    with Run(callbacks=watcher(seen, stop="on_train_step_end")) as run:
        for _ in range(3):  # epochs without run.epochs
            for _ in run.steps(range(5)):
                pass
    assert run.step == 1


def test_callbacks_are_called_in_their_order_and_left_in_reverse():
    seen = []
    train([watcher(seen, name="a "), watcher(seen, name="b ")])
    check(seen, GOLDEN["two"])


def test_a_callback_serves_several_trainings_and_may_be_listed_twice():
    seen = []
    callback = watcher(seen)
    train(callback)
    train(callback)
    check(seen, GOLDEN["again"])
    seen.clear()
    callback = watcher(seen, name="a ")
    train([callback, callback])
    check(seen, GOLDEN["same twice"])


def test_an_evaluation_in_a_hook_with_the_same_callback():
    seen = []
    callback = watcher(seen, name="a ")

    class Evaluator(Callback):
        def on_train_epoch_end(self, run_context):
            seen.append(["ev begin", None, None])
            evaluate(callback, steps=1)
            seen.append(["ev end", None, None])

    train([Evaluator(), callback])
    check(seen, GOLDEN["eval in a hook"])


def test_an_evaluation_of_the_run_itself_in_a_hook_shows_its_metrics_to_later_callbacks(capsys):
    class Evaluator(Callback):
        def on_train_epoch_end(self, run_context):
            with self.run.eval() as evaluation:
                evaluation.log(accuracy=0.5)

    evaluator = Evaluator()
    evaluator.run = Run(callbacks=[evaluator, LossMonitor(0)])
    with evaluator.run as run:
        for _ in run.epochs(2):
            for _ in run.steps(range(1)):
                run.log(loss=1.0)
    assert capsys.readouterr().out.splitlines() == [
        f"Eval result: epoch {epoch}, metrics: {{'accuracy': 0.5}}" for epoch in (1, 2)
    ]


def test_an_error_in_a_hook_ends_the_training_and_leaves_all_callbacks():
    seen = []

    class Bad(Callback):
        def on_train_step_end(self, run_context):
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        train([watcher(seen, name="a "), Bad(), watcher(seen, name="b ")])
    check(seen, GOLDEN["error"])


def parameters_found(case, run):
    """What each hook found in a training or evaluation, which is at least what MindSpore gives it."""
    found = {}

    def keep(hook):
        return lambda self, run_context: found.__setitem__(hook, set(run_context.original_args()))

    run(type("Keys", (Callback,), {hook: keep(hook) for hook in HOOKS})())
    assert found.keys() == GOLDEN[case].keys()
    for hook, names in GOLDEN[case].items():
        assert set(names) - (LAST_BATCH if "train" in hook else set()) <= found[hook], hook
    return found


@pytest.mark.parametrize(
    ("case", "run"),
    [
        ("keys of train", lambda callback: train(callback, steps=3)),
        ("keys of fit", lambda callback: train(callback, steps=3, evaluated=2)),
        ("keys of eval", evaluate),
    ],
)
def test_a_hook_finds_every_parameter_that_mindspore_gives_it(case, run):
    found = parameters_found(case, run)
    if case != "keys of eval":
        assert not {"metrics", "eval_results"} & found["on_train_end"]


def test_the_parameters_of_an_evaluation_are_those_of_its_training_and_its_own():
    kept = {}

    class Keep(Callback):
        def on_train_end(self, run_context):
            kept["train"] = run_context.original_args()

        def on_eval_end(self, run_context):
            kept["eval"] = run_context.original_args()

        def on_train_epoch_end(self, run_context):
            kept["results"] = run_context.original_args().eval_results

    callback = Keep()
    train([callback], evaluated=2)
    assert kept["train"].list_callback == [callback]
    assert kept["eval"].optimizer is kept["train"].optimizer
    assert kept["eval"].cur_step_num == kept["eval"].batch_num == 2
    assert kept["eval"].metrics == {"acc": 1.0, "Loss": 0.5}
    assert kept["results"] == {"acc": 1.0, "Loss": 0.5, "eval_loss": 0.5}
