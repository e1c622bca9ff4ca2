"""Handles Ctrl-C: repeats a lost KeyboardInterrupt, delays one while work must finish, and recognises it."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

from distsummary.base.guard import Guard, guarded_log

logger = guarded_log(__name__)

# A second Ctrl-C before that is the same: torchrun sends one to ranks that the terminal sent one.
AGAIN_S = 1.0
RETURN_S = 0.01  # seconds; the destructor or callback that lost the interrupt has returned by then

_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def is_interruption(error: BaseException) -> bool:
    """Whether a training that raised `error` was asked to end, rather than failed.

    True for Ctrl-C, a task of asyncio that is cancelled, a generator that is closed, and for `sys.exit` with
    any status in a handler of a signal that asks a job to end, such as SIGTERM.
    """
    cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", GeneratorExit)
    return isinstance(error, (GeneratorExit, cancelled)) or is_of_signal(error)


def is_good_exit(error: BaseException | None) -> bool:
    """Whether `error` is a `sys.exit` with the status of success, which no signal has asked for."""
    if not isinstance(error, SystemExit) or is_of_signal(error):
        return False
    return error.code is None or (isinstance(error.code, int) and error.code == 0)


def is_of_signal(error: BaseException) -> bool:
    """Whether an exception comes from Ctrl-C, or is a `sys.exit` in a handler of a signal that ends jobs."""
    if not isinstance(error, SystemExit):
        return isinstance(error, KeyboardInterrupt)
    handlers = [signal.getsignal(number) for number in _END_SIGNALS]
    codes = [getattr(handler, "__code__", None) for handler in handlers]
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the block has finished, for example while a user's values are restored."""
    handler = signal.getsignal(signal.SIGINT)
    # Python runs handlers in the main thread, and only that one may install them.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[-1])


@contextmanager
def interrupts_after(call: Callable[[], None], *, ignores_s: float = 0.0) -> Iterator[None]:
    """Ctrl-C in the block calls `call`, and is raised after the block; a second one, later, at once.

    One within the first `ignores_s` seconds is ignored: it is the same that led here.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    begun, caught_s = time.monotonic(), 0.0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal caught_s
        now = time.monotonic()
        if not caught_s and now - begun >= ignores_s:
            caught_s = now
            call()
        elif caught_s and now - caught_s >= AGAIN_S:
            handler(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        # A handler that the block has installed stays.
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, handler)
        if caught_s:
            handler(signal.SIGINT, None)


class StepInterrupts:
    """Holds Ctrl-C back to the end of a training step; a second one, a second later, interrupts at once.

    Only in the main thread, if Python's own handler is installed, and not in a forked child. The user calls
    `listen`, `hold` when a step begins, `let_go` when it has ended, and `stop`.
    """

    def __init__(self) -> None:
        self._is_listening = self._is_held = False
        self._first_s: float | None = None  # when the interrupt came that is held back
        self._guard = Guard()
        # Each access makes a new bound method; this one is kept, so that it can be recognised.
        self._handler = self._handle
        self._pid = os.getpid()

    def listen(self) -> None:
        """Take Python's place for Ctrl-C."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handler)
            self._is_listening, self._pid = True, os.getpid()

    def hold(self) -> None:
        """From now on, keep an interrupt."""
        self._is_held = self._is_listening

    def let_go(self) -> None:
        """From now on, interrupt at once; raises KeyboardInterrupt for one that was held back."""
        self._is_held = False
        if self._first_s is not None:
            self._first_s = None
            raise KeyboardInterrupt

    def stop(self) -> None:
        """Put Python's handler back, if ours is still there; raises KeyboardInterrupt as `let_go` does."""
        if self._is_listening and signal.getsignal(signal.SIGINT) is self._handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._is_listening = False
        self.let_go()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._guard.call("Ctrl-C", self._act_on, number, frame)

    def _act_on(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        is_held = self._is_held and os.getpid() == self._pid
        if not is_held or (self._first_s is not None and now_s - self._first_s >= AGAIN_S):
            self._first_s = None
            # This raises KeyboardInterrupt.
            signal.default_int_handler(number, frame)
        if self._first_s is None:
            self._first_s = now_s
            logger.warning(
                "Ctrl-C: the step that runs is ended first, so that its checkpoint is whole; again: at once"
            )


@contextmanager
def handles_interrupts() -> Iterator[None]:
    """Context manager or decorator for long work: no KeyboardInterrupt gets lost in the block.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In a `__del__` or in the callback
    of a weak reference (matplotlib makes thousands), the exception is only printed as ignored and the program
    continues. Here such an interrupt is sent again until it is raised in code that can handle it. A user's
    own SIGINT handler is never called twice for one signal.
    """
    main = threading.main_thread()
    # Only the main thread is interrupted.
    if threading.current_thread() is not main or main.ident is None:
        yield
        return
    main_ident = main.ident
    # Its `put` is safe in a destructor; that of a Queue is not.
    lost: SimpleQueue[bool] = SimpleQueue()
    before = sys.unraisablehook

    def note(ignored: "sys.UnraisableHookArgs") -> None:
        if (
            issubclass(ignored.exc_type, KeyboardInterrupt)
            and threading.get_ident() == main_ident
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            lost.put(True)
        else:
            before(ignored)

    def send_again() -> None:
        # Runs in another thread, because exceptions raised in the hook are ignored as well. Sends a real
        # signal, because this also interrupts blocking system calls.
        while lost.get():
            time.sleep(RETURN_S)
            signal.pthread_kill(main_ident, signal.SIGINT)

    sender = threading.Thread(target=send_again, name="distsummary-interrupts", daemon=True)
    sender.start()
    sys.unraisablehook = note
    try:
        yield
    finally:
        if sys.unraisablehook is note:
            sys.unraisablehook = before
        lost.put(False)
        # An interrupt that was lost at the very end is raised here.
        sender.join()
