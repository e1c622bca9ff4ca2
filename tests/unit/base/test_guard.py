"""What a guard holds back, and what passes: by the class of the exception alone."""

import logging
import pickle
import signal
from collections.abc import Callable

import pytest

import distsummary as ds
from distsummary.base.checks import check_int
from distsummary.base.failures import Failures
from distsummary.base.guard import APART_S, MOST, Guard, guarded, run_each
from distsummary.base.health import Health
from distsummary.errors import (
    ClosedError,
    InvalidTypeError,
    InvalidValueError,
    NonFiniteError,
    RunDirError,
    UsageError,
    WriteError,
)
from distsummary.training.callbacks import Callback, TimeMonitor
from distsummary.training.run import Run


class Loop:
    """An object with guarded methods; `inner` is what its code does."""

    def __init__(self, inner: Callable[[], object] = lambda: None, *, raises: bool = False) -> None:
        self.inner, self.mended = inner, 0
        self.failures = Failures(Health(), logging.getLogger("test"), raise_exception=raises)
        self.now_s = 0.0
        self._own_guard = Guard(lambda: self.failures, self.mend, clock=lambda: self.now_s)

    def mend(self) -> None:
        self.mended += 1

    @guarded(UsageError)
    def enter(self, value: int) -> int:
        """What the user calls with an argument."""
        check_int("value", value, low=0)
        self.work()
        return value

    @guarded()
    def work(self) -> None:
        """What no argument of the user's reaches."""
        self.inner()

    @guarded(again=True)
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
    [KeyError(""), OSError("full"), InvalidValueError("inside"), RunDirError("inside"), StopIteration()],
)
def test_what_our_code_raises_is_counted_with_its_place(error: Exception) -> None:
    loop = Loop(raising(error))
    assert loop.enter(5) == 5  # the part that failed is `work`
    [reason] = loop.failures.health.errors
    assert reason.startswith("Loop.work (test_guard.py:")
    assert type(error).__name__ in reason
    assert loop.mended == 1


def test_misuse_passes_with_its_own_traceback_where_the_arguments_of_the_user_are_taken() -> None:
    loop = Loop()
    with pytest.raises(InvalidValueError) as found:
        loop.enter(-1)
    assert found.traceback[-1].name == "check_int"
    with pytest.raises(InvalidTypeError):
        loop.enter("five")  # type: ignore[arg-type]
    assert loop.count() == 0
    for kind in (InvalidTypeError, InvalidValueError, ClosedError):
        assert issubclass(kind, UsageError)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_is_no_exception_passes(error: BaseException) -> None:
    loop = Loop(raising(error))
    with pytest.raises(type(error)):
        loop.enter(5)
    assert loop.count() == 0


@pytest.mark.parametrize("error", [NonFiniteError("the loss is NaN"), WriteError("full")])
def test_what_the_user_has_asked_for_passes_all_guards(error: Exception) -> None:
    loop = Loop(raising(error))
    with pytest.raises(type(error)):
        loop.enter(5)
    with pytest.raises(type(error)):
        loop._own_guard.call("work", loop.work)
    assert loop.count() == 0
    with pytest.raises(WriteError, match="full"):
        Loop(raising(OSError("full")), raises=True).enter(5)


def test_an_exception_of_a_signal_handler_is_counted_as_one_of_ours() -> None:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: raising(TimeoutError("the user's"))())
    loop = Loop(lambda: signal.raise_signal(signal.SIGUSR1))
    try:
        assert loop.enter(5) == 5
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "the user's" in str([*loop.failures.health.errors])


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


def test_a_part_that_fails_again_and_again_is_switched_off_and_this_is_said_once(caplog):
    called: list[int] = []

    def fail() -> None:
        called.append(1)
        raise KeyError("")

    loop = Loop(fail)
    for _ in range(2 * MOST):
        loop.work()
    assert len(called) == MOST
    assert loop.mended == 2 * MOST  # also in place of what is switched off
    assert caplog.text.count("switched off") == 1
    loop.inner = lambda: None
    assert loop.enter(5) == 5  # another part


def test_failures_that_are_far_apart_switch_nothing_off() -> None:
    loop = Loop(raising(KeyError("")))
    for _ in range(3 * MOST):
        loop.work()
        loop.now_s += APART_S + 1
    assert loop.count() == 3 * MOST


def test_a_failure_that_cannot_be_counted_or_mended_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(raising(KeyError("first")))
    loop._own_guard = Guard(raising(OSError("second")), raising(OSError("third")))  # type: ignore[arg-type]
    assert loop.work() is None
    for text in ("first", "second", "third"):
        assert text in caplog.text


def test_a_guard_calls_functions_as_parts_of_their_own() -> None:
    failures = Failures(Health(), logging.getLogger("test"))
    assert failures.guard.call("the sum", sum, [1, 2]) == 3
    assert failures.guard.call("the sum", sum, ["a"]) is None
    assert failures.guard.done("the sum", sum, [1, 2])
    assert not failures.guard.done("the sum", sum, ["a"])
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


class Theirs(Callback):
    """A callback of a user."""

    def on_train_step_end(self, run_context: object) -> None:
        raise InvalidValueError("theirs")


@pytest.mark.parametrize("callback", [Broken(), Theirs()])
def test_hooks_of_users_are_called_outside_of_the_guard(callback: Callback) -> None:
    run = Run(callbacks=callback)
    with pytest.raises((KeyError, InvalidValueError), match="theirs") as found, run:
        list(run.steps([1]))
    assert all(frame.path.name != "guard.py" for frame in found.traceback)
    assert run.health().errors == {}


@pytest.mark.parametrize("callback", [Broken(), Theirs()])
def test_what_hooks_of_users_raise_passes_the_guard_of_what_drives_the_run(callback: Callback) -> None:
    failures = Failures(Health(), logging.getLogger("test"))
    run = Run(callbacks=callback)
    failures.guard.call("the first step", run.next_step)
    with pytest.raises((KeyError, InvalidValueError), match="theirs"):
        failures.guard.call("the second step", run.next_step)
    assert failures.health.errors == {}


def test_hooks_of_our_callbacks_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distsummary.training.callbacks._is_rank_0", raising(KeyError("ours")))
    with Run(callbacks=TimeMonitor()) as run:
        assert list(run.steps([1, 2])) == [1, 2]
    assert any("TimeMonitor.epoch_end" in reason for reason in run.health().errors)


class RaisingHandler(logging.Handler):
    """As handlers of users that have a bare `emit`."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.getMessage())


@pytest.mark.parametrize("calls", [1, MOST])
def test_a_handler_of_logging_that_raises_ends_no_guarded_call(calls, capsys):
    handler = RaisingHandler()
    loop = Loop(raising(KeyError("inside")))
    logging.getLogger("test").addHandler(handler)
    try:
        for _ in range(calls):
            assert loop.enter(5) == 5
    finally:
        logging.getLogger("test").removeHandler(handler)
    assert loop.count() >= calls
    # What the handler did not take is printed.
    assert "Loop.work (test_guard.py" in capsys.readouterr().err


def test_an_end_runs_all_its_parts() -> None:
    done: list[str] = []
    failed: list[str] = []
    parts = [("a", raising(OSError("a"))), ("b", lambda: done.append("b")), ("c", raising(SystemError("c")))]
    run_each([*parts, ("d", lambda: done.append("d"))], lambda what, error: failed.append(f"{what} {error}"))
    assert done == ["b", "d"]
    assert failed == ["a a", "c c"]


def test_ctrl_c_in_an_end_is_raised_when_all_its_parts_have_run() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_each([("a", raising(KeyboardInterrupt())), ("b", lambda: done.append("b"))], print)
    assert done == ["b"]


@pytest.mark.parametrize("name", ["distsummary.events.async_writer", "filelock"])
def test_a_handler_of_logging_that_raises_costs_no_value(tmp_path, name, capsys):
    log, handler = logging.getLogger(name), RaisingHandler()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        with ds.init(tmp_path, quiet=True, system_metrics=False) as run:
            for step in run.steps(range(3)):
                run.log(loss=float(step))
        log.debug("of %d", 7)
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert run.health().errors == run.health().dropped == {}
    assert "of 7 (a handler of logging raised RuntimeError('of 7'))" in capsys.readouterr().err
