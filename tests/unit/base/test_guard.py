"""What a guard holds back, and what passes: by the traceback of the exception."""

import functools
import logging
import pickle
import signal
from collections.abc import Callable
from types import FrameType

import pytest

from distsummary.base.checks import check_int
from distsummary.base.failures import Failures
from distsummary.base.guard import APART_S, MOST, Guard, call_user, check, deliberate, door
from distsummary.base.health import Health
from distsummary.errors import ClosedError, InvalidTypeError, InvalidValueError, RunDirError, WriteError
from distsummary.training.callbacks import Callback, CallbackList, TimeMonitor
from distsummary.training.run import Run


class Loop:
    """An object with doors; `inner` is what its code does."""

    def __init__(self, inner: Callable[[], object] = lambda: None, *, raises: bool = False) -> None:
        self.inner, self.mended = inner, 0
        self.failures = Failures(Health(), logging.getLogger("test"), raise_exception=raises)
        self.now_s = 0.0
        self._own_guard = Guard(lambda: self.failures, self.mend, clock=lambda: self.now_s)

    def mend(self) -> None:
        self.mended += 1

    def _otherwise(self, value: int) -> int:
        return -value

    @door(_otherwise)
    def enter(self, value: int) -> int:
        """A door."""
        check_int("value", value, low=0)
        self.require_open()
        if value == 13:
            raise InvalidValueError("13 is refused by the door itself")
        self.work()
        return value

    @check()
    def require_open(self) -> None:
        if self.inner is None:
            raise ClosedError("closed")

    def work(self) -> None:
        self.inner()

    @door(again=True)
    def close(self) -> None:
        self.inner()

    def count(self) -> int:
        return sum(self.failures.health.errors.values())


def raising(error: BaseException) -> Callable[[], object]:
    def raise_it() -> None:
        raise error

    return raise_it


@pytest.mark.parametrize(
    "error",
    [KeyError(""), OSError("full"), InvalidValueError("deep inside"), RunDirError("deep"), StopIteration()],
)
def test_what_our_code_raises_is_counted_with_its_place_and_the_door_does_something_else(
    error: Exception,
) -> None:
    loop = Loop(raising(error))
    assert loop.enter(5) == -5
    [reason] = loop.failures.health.errors
    assert reason.startswith("Loop.enter (test_guard.py:")
    assert type(error).__name__ in reason
    assert loop.mended == 1


@pytest.mark.parametrize("value", [-1, 13])
def test_errors_that_a_door_or_its_check_raises_on_purpose_pass(value: int) -> None:
    loop = Loop()
    with pytest.raises(InvalidValueError):
        loop.enter(value)
    with pytest.raises(InvalidTypeError):
        loop.enter("five")  # type: ignore[arg-type]
    loop.inner = None  # type: ignore[assignment]
    with pytest.raises(ClosedError):
        loop.enter(1)
    assert loop.count() == 0


def test_a_check_that_fails_deeper_inside_is_held_back() -> None:
    loop = Loop(lambda: check_int("tag", "x"))
    assert loop.enter(2) == -2
    assert Loop(Loop(lambda: check_int("tag", "x")).require_open).enter(2) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_is_no_exception_passes(error: BaseException) -> None:
    loop = Loop(raising(error))
    with pytest.raises(type(error)):
        loop.enter(5)
    assert loop.count() == 0


def test_what_the_users_code_raises_passes_also_if_it_is_written_in_c() -> None:
    for function, args in ((raising(KeyError("theirs")), ()), (int, ("x",)), (dict().pop, ("x",))):
        loop = Loop(functools.partial(call_user, function, *args))
        with pytest.raises((KeyError, ValueError)):
            loop.enter(5)
        assert loop.count() == 0


def test_an_error_that_is_raised_on_purpose_passes_from_any_depth() -> None:
    @deliberate
    def stop() -> None:
        raise InvalidValueError("the loss is NaN")

    with pytest.raises(InvalidValueError, match="NaN"):
        Loop(stop).enter(5)
    with pytest.raises(WriteError, match="full"):
        Loop(raising(OSError("full")), raises=True).enter(5)


def test_a_door_inside_of_a_door_passes_on_what_passes() -> None:
    inner = Loop()
    with pytest.raises(KeyError):
        Loop(lambda: Loop(lambda: call_user(raising(KeyError("theirs")))).enter(1)).enter(1)
    outer = Loop(lambda: inner.enter(-1))  # our code calls it with a bad argument
    assert outer.enter(1) == -1
    assert outer.count() == 1


class Handlers:
    """Signal handlers of every kind, which raise the exception that a test gives them."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise self.error

    def method(self, number: int, frame: FrameType | None) -> None:
        raise self.error

    def restoring(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        raise self.error

    def more(self, extra: int, number: int, frame: FrameType | None) -> None:
        raise self.error

    def any_way(self, *args: object) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        raise self.error


@pytest.mark.parametrize("kind", ["function", "method", "object", "restoring", "partial", "any_way"])
def test_what_a_signal_handler_raises_passes(kind: str) -> None:
    handlers = Handlers(TimeoutError("the user's"))
    handler = {
        "function": lambda number, frame: handlers.method(number, frame),
        "object": handlers,
        "partial": functools.partial(handlers.more, 1),
    }.get(kind) or getattr(handlers, kind)
    before = signal.signal(signal.SIGUSR1, handler)
    loop = Loop(lambda: signal.raise_signal(signal.SIGUSR1))
    try:
        with pytest.raises(TimeoutError):
            loop.enter(5)
        assert loop.count() == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_method_that_continues_where_it_stopped_is_called_again_once() -> None:
    times: list[int] = []

    def once() -> None:
        times.append(1)
        if len(times) == 1:
            raise KeyError("")

    loop = Loop(once)
    loop.close()
    assert len(times) == 2
    assert loop.count() == 1
    loop = Loop(raising(KeyError("")))
    loop.close()
    assert loop.count() == 2


def test_a_part_that_fails_again_and_again_is_switched_off_and_this_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called: list[int] = []

    def fail() -> None:
        called.append(1)
        raise KeyError("")

    loop = Loop(fail)
    for _ in range(2 * MOST):
        assert loop.enter(5) == -5
    assert len(called) == MOST
    assert caplog.text.count("switched off") == 1
    loop.inner = lambda: None
    loop.close()  # another part
    assert loop.enter(5) == -5


def test_failures_that_are_far_apart_switch_nothing_off() -> None:
    loop = Loop(raising(KeyError("")))
    for _ in range(3 * MOST):
        loop.enter(5)
        loop.now_s += APART_S + 1
    assert loop.count() == 3 * MOST


def test_a_failure_that_cannot_be_counted_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(raising(KeyError("first")))
    loop._own_guard = Guard(raising(OSError("second")))  # type: ignore[arg-type]
    assert loop.enter(5) == -5
    assert "first" in caplog.text
    assert "second" in caplog.text


def test_a_guard_calls_functions_as_parts_of_their_own() -> None:
    failures = Failures(Health(), logging.getLogger("test"))
    assert failures.guard.call("the sum", sum, [1, 2]) == 3
    assert failures.guard.call("the sum", sum, ["a"]) is None
    assert failures.guard.wrap("the sum", sum, -1)(["a"]) == -1
    assert [reason.split(":")[0] for reason in failures.health.errors] == ["the sum"]


def test_a_copy_of_a_guard_counts_nothing_of_the_run() -> None:
    loop = Loop()
    copy = pickle.loads(pickle.dumps(loop._own_guard))
    copy.call("the sum", sum, ["a"])
    assert loop.count() == 0


class Broken(TimeMonitor):
    """A callback of a user, derived from one of ours."""

    def step_end(self, run_context: object) -> None:
        raise KeyError("theirs")


def test_hooks_of_our_callbacks_are_doors_and_those_that_a_user_overrides_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Theirs(Callback):
        def on_train_step_end(self, run_context: object) -> None:
            raise OSError("theirs")

    with pytest.raises(OSError, match="theirs"), Run(callbacks=Theirs()) as run:
        list(run.steps([1]))
    with pytest.raises(KeyError, match="theirs"), Run(callbacks=Broken()) as run:
        list(run.steps([1]))
    monkeypatch.setattr("distsummary.training.callbacks._is_rank_0", raising(KeyError("ours")))
    with Run(callbacks=TimeMonitor()) as run:
        assert list(run.steps([1, 2])) == [1, 2]
    assert any("TimeMonitor.epoch_end" in reason for reason in run.health().errors)
    callbacks = CallbackList(TimeMonitor())  # of another loop: it is logged
    assert callbacks.methods["on_train_epoch_end"]
