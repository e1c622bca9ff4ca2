"""Says when SIGTERM or SIGHUP ends the process, which then dies of the signal as it would have without us."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from distsummary.base.at_exit import DaemonThread
from distsummary.base.guard import Guard, guarded_log

logger = guarded_log(__name__)

NUMBERS = (signal.SIGTERM, signal.SIGHUP)
# Launchers send SIGKILL after 30 s (torchrun, Slurm, Kubernetes) or 10 s (docker, by default).
END_S = 20.0  # after this the process dies of the signal
REPORT_S = 5.0  # how long those have of it that wait for the end of the step
STEP_S = 4.5  # how long they wait
_CALLED = 0x80  # marks a number that the handler wrote; other numbers come from Python's wakeup descriptor
_STOP = b"\0"


class Terminated(KeyboardInterrupt):
    """Internal: a signal that ends the process by its default action; passed to listeners, never raised.

    The process dies in `END_S` seconds from when it was made; `left_s` of them are left.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._begun = time.monotonic()

    @property
    def left_s(self) -> float:
        """Seconds until the process dies."""
        return self._begun + END_S - time.monotonic()


def on_termination(report: Callable[[Terminated], None], *, at_step_end: bool = False) -> Callable[[], None]:
    """Call `report` in its own thread when SIGTERM or SIGHUP ends this process; returns how to stop that.

    The training is not disturbed: nothing is raised in it, it continues until `report` has returned (or 20 s
    have passed), and then the process dies of the signal, also if its main thread hangs in a collective
    operation. Its exit status is that of the default action, -15 for SIGTERM.

    Those with `at_step_end`, which wait for the end of the step and save it, are called first: the others
    then record that step, too.

    Only signals with the default action are listened to: a handler that somebody has installed, or installs
    later, decides alone. Nothing is done outside of the main thread, where Python allows no handlers, and in
    process 1 of a container, which the default action does not end.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and os.getpid() != 1:
        _listener.add(report, at_step_end)
    return lambda: _listener.remove(report)


class _Listener:
    """The handlers, and the thread that acts for them: the main thread may hang or hold any lock."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[Callable[[Terminated], None], bool]] = []
        self._handled: list[signal.Signals] = []
        self._reader = self._writer = -1
        self._thread: DaemonThread | None = None
        self._is_ending = False
        self.guard = Guard()
        self._masks = threading.local()
        # Each access makes a new bound method; this one is kept, so that it can be recognised.
        self._handler = self._handle

    def add(self, report: Callable[[Terminated], None], at_step_end: bool) -> None:
        """In the main thread: listen, if there is a signal whose default action would end the process."""
        free = [number for number in NUMBERS if signal.getsignal(number) is signal.SIG_DFL]
        if free and self._writer < 0:
            self._reader, self._writer = os.pipe()
            # Neither the handler nor Python may block in it when the pipe is full.
            os.set_blocking(self._writer, False)
        if (free or self._handled) and self._thread is None:
            listen = self.guard.wrap("listening to signals", self._listen)
            self._thread = DaemonThread(listen, "distsummary-signals")
            self._thread.start()
        for number in free:
            signal.signal(number, self._handler)
        self._handled += free
        # With this descriptor, the thread notices a signal although the main thread runs no Python code.
        if free:
            known = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            # That of an event loop, which was there before, stays.
            if known not in (-1, self._writer):
                signal.set_wakeup_fd(known)
        self._callbacks.append((report, at_step_end))

    def remove(self, report: Callable[[Terminated], None]) -> None:
        """Stop listening if no one else listens; outside of the main thread the handlers have to stay."""
        found = [each for each in self._callbacks if each[0] == report]
        if not found:
            return
        self._callbacks.remove(found[0])
        is_main = threading.current_thread() is threading.main_thread()
        if self._callbacks or self._thread is None or (self._is_ending and not is_main):
            return
        os.write(self._writer, _STOP)
        # If a signal is ending the process, the thread does not stop, and the process dies during this wait.
        self._thread.join(END_S)
        self._thread = None
        if is_main:
            self._restore()

    def _restore(self) -> None:
        for number in self._handled:
            if signal.getsignal(number) is self._handler:
                signal.signal(number, signal.SIG_DFL)
        known = signal.set_wakeup_fd(-1)
        if known not in (-1, self._writer):
            signal.set_wakeup_fd(known)
        os.close(self._reader)
        os.close(self._writer)
        self._handled, self._reader, self._writer = [], -1, -1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """The handler; also called by a later handler of the user's that passes the signal on."""
        self.guard.call("the handler of signals", self._act_on, number)

    def _act_on(self, number: int) -> None:
        # No thread listens any more, so the signal has its default effect at once.
        if self._thread is None:
            die(number)
        # A full pipe holds enough signals already.
        with suppress(BlockingIOError):
            os.write(self._writer, bytes([number | _CALLED]))

    def _listen(self) -> None:
        while (data := os.read(self._reader, 64)) and _STOP not in data:
            for byte in data:
                # Python writes the plain number of any signal; the handler, once it is called, marks it.
                number = byte & ~_CALLED
                is_ours = number in NUMBERS and signal.getsignal(number) is self._handler
                if byte & _CALLED or is_ours:
                    self._end(number)

    def _end(self, number: int) -> None:
        self._is_ending = True
        error = Terminated(signal.Signals(number).name)
        # Those that save the step at its end come first, so that the others record that step too.
        first = [report for report, at_step_end in self._callbacks if at_step_end]
        _call_each(first, error, REPORT_S)
        last = [report for report, at_step_end in self._callbacks if not at_step_end]
        _call_each(last, error, error.left_s)
        die(number)

    def before_fork(self) -> None:
        """No signal between the fork and `after_fork_in_child`: the child shares the pipe with its parent."""
        if self._writer >= 0:
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)

    def after_fork_in_parent(self) -> None:
        """Take signals again."""
        before = getattr(self._masks, "before", None)
        if before is not None:
            self._masks.before = None
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def after_fork_in_child(self) -> None:
        """The child is not the run: it dies of a signal at once."""
        self._callbacks, self._thread = [], None
        if self._writer >= 0:
            self._restore()
        self.after_fork_in_parent()


def die(number: int) -> None:
    """End this process by the default action of a signal, from any thread (`signal.signal` refuses)."""
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)


def _call_each(callbacks: list[Callable[[Terminated], None]], error: Terminated, wait_s: float) -> None:
    """Call functions, each in a thread, and wait for them; if they hang, no longer than `wait_s`."""
    threads = [
        threading.Thread(
            target=_listener.guard.wrap(f"recording the end by {error}", report),
            args=(error,),
            name="distsummary-end",
            daemon=True,
        )
        for report in callbacks
    ]
    deadline = time.monotonic() + wait_s
    for thread in threads:
        # Where hundreds are called, starting their threads may take all the time.
        if time.monotonic() < deadline:
            thread.start()
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))


_listener = _Listener()
os.register_at_fork(
    before=_listener.guard.wrap("before a fork", _listener.before_fork),
    after_in_parent=_listener.guard.wrap("after a fork", _listener.after_fork_in_parent),
    after_in_child=_listener.guard.wrap("after a fork", _listener.after_fork_in_child),
)
