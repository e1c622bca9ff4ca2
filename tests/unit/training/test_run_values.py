"""What a Run does with the values that it is given, of every kind."""

import logging
import math
import threading
from pathlib import Path

import numpy as np
import pytest

from distsummary.base.failures import MAX_REASONS, Failures
from distsummary.base.health import Health
from distsummary.errors import ClosedError, InvalidTypeError, InvalidValueError, NonFiniteError
from distsummary.events.overhead import Overhead
from distsummary.format.records import Value
from distsummary.training.callbacks import Callback, LossMonitor
from distsummary.training.run import Run
from tests.refusals import refused

HUGE = 1e39  # beyond float32
BEYOND = "files hold float32, in which it is infinite; log its logarithm"


class Keeper(Callback):
    """Records plain steps until `plain_before`; snapshots are copies of arrays."""

    dir = Path("runs/a")

    def __init__(self, plain_before=math.inf):
        self.plain_before, self.recorder = plain_before, self
        self.failures, self.overhead = Failures(Health(), logging.getLogger("test")), Overhead()
        self.recorded, self.seen = [], []

    def snapshot(self, plugin, name, value):
        if value is None:
            raise InvalidTypeError(f"the {plugin} {name!r} must be an array, got None")
        if isinstance(value, Broken):
            raise RuntimeError("no storage")
        return Value(plugin, name or "", np.array(value))

    def gather(self):
        pass

    def record(self, step, numbers, values=()):
        kept = {name: value for name, value in numbers.items() if not name.startswith("zz_perf/")}
        for value in values:
            kept[value.plugin, value.tag] = value.data.tolist()
        self.recorded.append((step, kept))

    def on_train_step_begin(self, run_context):
        self.seen.append("begin")

    def on_train_step_end(self, run_context):
        step = run_context.step
        self.record(run_context.original_args().cur_step_num, step.logged, step.values)

    def on_train_epoch_end(self, run_context):
        step = run_context.step
        if step.logged or step.values:
            self.record(run_context.original_args().cur_step_num, step.logged, step.values)

    on_train_end = on_train_epoch_end

    def health(self):
        return Health(events=len(self.recorded)).plus(self.failures.health)


class Broken:
    """A value whose framework fails in its own way."""


@pytest.mark.parametrize("plain_before", [math.inf, -math.inf])
def test_a_step_has_the_values_of_every_kind_that_were_given_in_it(plain_before):
    keeper = Keeper(plain_before)
    with Run(callbacks=keeper) as run:
        for number in run.steps([1, 2]):
            run.histogram("w", [number])
            run.image("i", [[number]])
            run.tensor("w", [number, number])
            run.add_value("Tensor", "t", [0])
            run.add_value("scalar", "s", number)
            run.log(loss=number)
            run.add_value("dataset_graph", None, [5])
    kinds = [
        {"s": n, "loss": n, ("histogram", "w"): [n], ("image", "i"): [[n]], ("tensor", "w"): [n, n],
         ("tensor", "t"): [0], ("dataset_graph", ""): [5]}
        for n in (1, 2)
    ]  # fmt: skip
    assert keeper.recorded == [(1, kinds[0]), (2, kinds[1])]
    assert run.dir == Path("runs/a")
    assert run.health() == Health(events=2)


def test_a_value_is_copied_when_it_is_given_and_the_last_one_of_a_name_is_kept():
    keeper, array = Keeper(), np.zeros(2)
    with Run(callbacks=keeper) as run:
        for _ in run.steps([1]):
            run.tensor("a", [1.0, 1.0])
            run.tensor("a", array)
            array += 5
    assert keeper.recorded == [(1, {("tensor", "a"): [0.0, 0.0]})]


def test_a_value_alone_makes_a_step_that_was_left_count():
    keeper = Keeper()
    with Run(callbacks=keeper) as run:
        for number in run.steps(range(5)):
            if number == 1:
                run.image("x", [[1]])
                break
        assert run.step == 2
    assert keeper.recorded[1] == (2, {("image", "x"): [[1]]})


def test_before_any_steps_a_value_that_is_given_again_begins_the_next_step():
    keeper = Keeper()
    with Run(callbacks=keeper) as run:
        for number in range(3):
            run.image("x", [[number]])
            run.tensor("x", [number])  # of another plugin: the same step
            run.log(x=number)
        assert run.step == 3
    assert keeper.recorded == [
        (step, {"x": step - 1, ("image", "x"): [[step - 1]], ("tensor", "x"): [step - 1]})
        for step in (1, 2, 3)
    ]


def test_values_outside_of_steps_go_to_the_step_that_is_named_and_never_back():
    keeper = Keeper()
    with Run(callbacks=keeper) as run:
        run.image("x", [[1]], step=4)
        run.image("x", [[2]], step=9)
        run.histogram("x", [3], step=8)
        assert run.step == 9
        with pytest.raises(InvalidTypeError, match="step"):
            run.image("x", [[1]], step="last")
        with pytest.raises(InvalidValueError, match="step"):
            run.image("x", [[1]], step=2**63)
    assert keeper.recorded == [(4, {("image", "x"): [[1]]}), (9, {("image", "x"): [[2]]})]
    assert run.health().dropped == {"histogram": 1}


def test_values_before_the_first_step_and_between_two_epochs_stand_at_the_step_before():
    keeper = Keeper()
    with Run(callbacks=keeper) as run:
        run.image("x", [[0]])
        for _ in range(2):
            for _ in run.steps([1]):
                pass
            run.image("x", [[run.step]])
    images = [(step, *kept.values()) for step, kept in keeper.recorded if kept]
    assert images == [(0, [[0]]), (1, [[1]]), (2, [[2]])]


def test_values_of_other_threads_go_to_the_step_under_way_and_count_after_the_end():
    keeper = Keeper()

    def elsewhere(*functions):
        thread = threading.Thread(target=lambda: [function() for function in functions])
        thread.start()
        thread.join()

    with Run(callbacks=keeper) as run:
        for number in run.steps([1, 2]):
            run.image("x", [[0]])
            elsewhere(lambda n=number: run.image("x", [[n]]), lambda: run.histogram("h", [1]))
            if number == 2:
                run.image("x", [[9]])
    assert [kept["image", "x"] for _, kept in keeper.recorded] == [[[1]], [[9]]]
    assert [kept["histogram", "h"] for _, kept in keeper.recorded] == [[1], [1]]
    elsewhere(lambda: run.image("x", [[1]]), lambda: run.log(a=1))
    assert list(run.health().errors.values()) == [2]
    with pytest.raises(ClosedError):
        run.image("x", [[1]])


def test_what_cannot_be_recorded_is_counted_and_named_once_and_the_rest_is_recorded(caplog):
    keeper, picture = Keeper(), np.zeros((3, 4, 4))
    loop = {}
    loop["self"] = loop
    bad = {"none": None, "text": "x" * 2**20, "complex": 1j, "picture": picture, "list": [1, 2], "loop": loop}
    names = {" ": 1, "x" * 2**20: 1, "\ud800": 1}
    with Run(callbacks=keeper) as run:
        for _ in run.steps(range(3)):
            run.log(bad | names, good=1, one=[0.5], nested={"a": {"b": 2, "c": np.float32(4)}})
            run.histogram("empty", None)
            run.tensor("broken", Broken())
            run.image("ragged", [[1], [1, 2]])
    assert keeper.recorded == [
        (step, {"good": 1.0, "one": 0.5, "nested/a/b": 2.0, "nested/a/c": 4.0}) for step in (1, 2, 3)
    ]
    health = run.health()
    assert health.dropped == {"scalar": 3 * 9, "histogram": 3, "tensor": 3, "image": 3}
    assert set(health.errors.values()) == {3}
    assert len(caplog.records) == len(health.errors) == 12
    assert max(map(len, health.errors)) < 400
    lines = "\n".join(health.errors)
    for words in ("'none' must be a real number", "'picture' must have one element, got shape (3, 4, 4)"):
        assert words in lines
    for words in (
        "run.image, run.histogram or run.tensor",
        "by run.text",
        "'broken': RuntimeError: no storage",
    ):
        assert words in lines


def test_a_name_for_values_of_two_kinds_is_said_once(caplog):
    with Run(callbacks=Keeper()) as run:
        for _ in run.steps([1, 2]):
            run.log(x=1, alone=1, loss=np.float32(1))
            run.image("x", [[1]])
            run.image("alone/image", [[1]])
            run.tensor("alone", [1])  # TensorBoard has no place for it anyway
            run.text("loss", "low")
            with run.eval() as evaluation:
                evaluation.log({"alone/image": 1})  # recorded as eval/alone/image
    health = run.health()
    assert [reason.split(";")[0] for reason in health.errors] == [
        "'x' names values of the kinds scalar and image: both are recorded, but TensorBoard shows neither",
        "'loss' names values of the kinds scalar and text: both are recorded, but TensorBoard shows neither",
    ]
    assert (health.dropped, len(caplog.records)) == ({}, 2)


def test_a_strict_run_raises_instead():
    with Run(callbacks=Keeper(), strict=True) as run:
        for _ in run.steps([1]):
            for bad in (None, "x", 1j, 10**400, [1, 2]):
                with pytest.raises((InvalidTypeError, InvalidValueError), match="'bad'"):
                    run.log(bad=bad)
            with pytest.raises(InvalidTypeError, match=r"record text by run\.text"):
                run.log(bad="x")
            with pytest.raises(InvalidTypeError, match="'h' must be an array"):
                run.histogram("h", None)
    assert run.health().dropped == {}


def test_a_strict_run_refuses_a_step_before_the_last_one_naming_both():
    keeper = Keeper()
    with Run(callbacks=keeper, strict=True) as run:
        run.log(a=1, step=5)
        for give in (lambda: run.log(a=2, step=3), lambda: run.image("x", [[1]], step=3)):
            with pytest.raises(InvalidValueError, match="the last step, which is 5, got 3"):
                give()
        run.log(b=3, step=5)
    assert keeper.recorded == [(5, {"a": 1, "b": 3})]
    assert run.health().dropped == {}


def test_a_strict_run_without_a_recorder_refuses_every_value():
    with Run(strict=True) as run:
        for _ in run.steps([1]):
            for give in (lambda: run.log(a=1.0), lambda: run.image("x", [[1]])):
                for _ in range(2):
                    with pytest.raises(InvalidValueError, match=r"no callback records values.* use ds\.init"):
                        give()
    assert run.health().dropped == {}


def test_the_misuse_of_an_argument_raises_in_any_run():
    with Run(callbacks=Keeper()) as run:
        for _ in run.steps([1]):
            refused(
                InvalidTypeError,
                (lambda: run.log({3: 0.5}), "name"),
                (lambda: run.log({"a": {"b": {1: 2}}}), "inside of 'a/b' must be str, got 1"),
                (lambda: run.log(3.0), r"got 3\.0 of type float; write run\.log\(loss=\.\.\.\) or"),
                (lambda: run.image(3, [[1]]), "the name of the image must be str"),
                (lambda: run.add_value(None, "x", [[1]]), "plugin"),
            )
            refused(
                InvalidValueError,
                (lambda: run.add_value("picture", "x", [[1]]), "plugin must be one of"),
                (lambda: run.image("x", [[1]], step=3), "step must be left out"),
            )
            with run.eval() as evaluation, pytest.raises(InvalidTypeError, match=r"write evaluation\.log"):
                evaluation.log(0)
    assert run.health() == Health(events=1)


def test_without_a_recorder_values_are_counted_and_that_is_said_once(caplog):
    with Run() as run:
        for _ in run.steps([1, 2]):
            run.log(loss=1)
            run.image("x", [[1]])
    assert run.health().dropped == {"scalar": 2, "image": 2}
    assert len(caplog.records) == 1
    assert "use ds.init or callbacks=[ds.SummaryCollector(...)]" in caplog.text
    with pytest.raises(InvalidValueError, match="no directory"):
        _ = run.dir
    seen = Run(callbacks=LossMonitor(0))
    for _ in seen.steps([1]):
        seen.log(loss=1)  # LossMonitor looks at it
    seen.close()
    assert seen.health().dropped == {}


def test_a_number_that_is_not_finite_is_named_once_with_its_step_and_counted(caplog):
    keeper = Keeper()
    with Run(callbacks=keeper) as run:
        for number in run.steps(range(5)):
            run.log(loss=math.nan if number > 1 else 0.5, lr=-math.inf if number == 3 else 0.1)
            run.log(big=HUGE if number else -HUGE)
        with run.eval() as evaluation:
            evaluation.log(accuracy=math.nan)
        run.log(after=math.nan)
    assert run.health().errors == {
        "'loss' is nan at step 3 on rank 0": 3,
        "'lr' is -inf at step 4 on rank 0": 1,
        f"'big' is -1e+39 at step 1 on rank 0; {BEYOND}": 5,
        "'accuracy' is nan at step 5 on rank 0": 1,
        "'after' is nan at step 5 on rank 0": 1,
    }
    assert len(caplog.records) == 3  # of the NaN, the first one
    assert len(keeper.recorded) == 6
    assert run.health().dropped == {}


def test_nan_can_be_ignored_but_a_number_beyond_float32_is_counted():
    with Run(callbacks=Keeper(), on_nan="ignore") as run:
        for _ in run.steps([1]):
            run.log(loss=math.nan, big=HUGE, most=3.4e38)
    assert [reason[:5] for reason in run.health().errors] == ["'big'"]


@pytest.mark.parametrize("plain_before", [math.inf, -math.inf])
def test_nan_can_stop_the_training_at_the_end_of_its_step(plain_before):
    keeper = Keeper(plain_before)
    run = Run(callbacks=keeper, on_nan="stop")

    def train():
        for number in run.steps(range(5)):
            run.log(loss=math.nan if number else 0.5, big=HUGE)

    with pytest.raises(NonFiniteError, match="'loss' is nan at step 2 on rank 0; the training stops"):
        train()
    assert [step for step, _ in keeper.recorded] == [1, 2]
    with pytest.raises(ClosedError):
        run.log(loss=1)


def test_nan_in_a_step_that_was_left_stops_at_the_next_call():
    run = Run(callbacks=Keeper(), on_nan="stop")
    for _ in run.steps(range(5)):
        run.log(loss=math.nan)
        break
    with pytest.raises(NonFiniteError, match="step 1"):
        run.steps([1])


@pytest.mark.parametrize("on_nan", ["warn", "stop"])
def test_a_loss_monitor_names_the_loss_and_no_one_else_does(on_nan, caplog):
    run = Run(callbacks=[LossMonitor(0), Keeper()], on_nan=on_nan)
    batches = run.steps([1])
    next(batches)
    run.log(loss=math.nan)
    with pytest.raises(InvalidValueError, match="the loss is nan"):
        next(batches)
    assert not caplog.records
    assert run.health().errors == {}


class Later:
    """A number on a device."""

    nbytes = 4

    def __init__(self, number):
        self.number = number

    def result(self):
        return self.number


@pytest.fixture
def takes_later(monkeypatch):
    """A Run that takes numbers of the class Later, as it takes those on a device."""
    monkeypatch.setattr("distsummary.training.recording.scalar", lambda name, value, **rest: value)


@pytest.mark.parametrize("on_nan", ["warn", "stop"])
def test_nan_on_a_device_is_named_with_its_step_when_it_has_arrived(on_nan, takes_later):
    keeper = Keeper()
    run = Run(callbacks=keeper, on_nan=on_nan)
    batches = run.steps(range(9))
    for number in (0.5, math.nan, math.nan, 0.5):
        next(batches)
        run.log(loss=Later(number))
    assert run.health().errors == {}  # the training waits for none of them

    def arrive():
        for _, kept in keeper.recorded:
            kept["loss"].result()
            kept["loss"].result()  # looked at twice

    writer = threading.Thread(target=arrive)
    writer.start()
    writer.join()
    assert run.health().errors == {"'loss' is nan at step 2 on rank 0": 2}
    if on_nan == "stop":
        with pytest.raises(NonFiniteError, match="'loss' is nan at step 2"):
            next(batches)
    else:
        next(batches)
        run.close()


def test_a_number_on_a_device_is_named_with_the_step_that_log_begins(takes_later):
    keeper = Keeper()
    with Run(callbacks=keeper) as run:
        for number in (0.5, 0.5, math.nan):
            run.log(loss=Later(number))
        run.log(lr=Later(math.inf), step=9)
    for _, kept in keeper.recorded:
        for later in kept.values():
            later.result()
    assert list(run.health().errors) == [
        "'loss' is nan at step 3 on rank 0",
        "'lr' is inf at step 9 on rank 0",
    ]


def test_an_evaluation_takes_its_metrics_as_log_does():
    with Run(callbacks=Keeper()) as run, run.eval() as evaluation:
        evaluation.log({"a": {"b": 1}}, bad=None, good=2)
    assert evaluation.metrics == {"a/b": 1.0, "good": 2.0}
    assert run.health().dropped == {"scalar": 1}


def test_in_an_evaluation_no_value_begins_a_step_and_a_run_that_only_evaluates_has_none():
    keeper = Keeper()
    with Run(callbacks=keeper) as run, run.eval():
        for number in range(3):
            run.image("x", [[number]])
            run.log(n=number)
    assert (run.step, keeper.seen) == (0, [])
    assert keeper.recorded == [(0, {"n": 2.0, ("image", "x"): [[2]]})]


@pytest.mark.parametrize(
    ("method", "begin"),
    [
        ("steps", lambda run: run.steps([1, 2])),
        ("next_step", lambda run: run.next_step()),
        ("epochs", lambda run: run.epochs(2)),
    ],
)
def test_in_an_evaluation_no_step_of_the_training_begins(method, begin):
    keeper = Keeper()
    with Run(callbacks=keeper) as run:
        for number in run.steps(range(2)):
            run.log(loss=number)
            with run.eval() as evaluation:
                with run.eval():
                    pass
                with pytest.raises(
                    InvalidValueError, match=rf"run\.{method} must .* evaluation\.steps\(loader\)"
                ):
                    begin(run)
                assert list(evaluation.steps([1, 2])) == [1, 2]
            run.log(after=number)
    assert keeper.recorded == [(step, {"loss": step - 1, "after": step - 1}) for step in (1, 2)]


def test_the_step_in_which_an_evaluation_was_misused_is_recorded():
    keeper = Keeper()

    def train():
        with Run(callbacks=keeper) as run:
            for _ in run.steps(range(3)):
                run.log(loss=1)
                with run.eval():
                    run.steps(range(2))

    with pytest.raises(InvalidValueError, match=r"evaluation\.steps"):
        train()
    assert keeper.recorded == [(1, {"loss": 1.0})]


def test_the_reasons_that_are_kept_are_bounded(caplog):
    caplog.set_level(logging.ERROR)
    with Run(callbacks=Keeper()) as run:
        for _ in run.steps([1]):
            run.log({str(number): None for number in range(2 * MAX_REASONS)})
    health = run.health()
    assert len(health.errors) == MAX_REASONS + 1
    assert sum(health.errors.values()) == health.dropped["scalar"] == 2 * MAX_REASONS
