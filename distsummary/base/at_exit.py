"""What is still open when the interpreter ends is closed, the newest first; only weak references keep it.

What another thread closes just then is waited for: a daemon thread would end with the interpreter.
Python 3.12 starts no thread any more then: a DaemonThread does its work in the thread that joins it.
"""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType

from distsummary.base.guard import guarded_log
from distsummary.base.processes import in_ray, ipython_shell
from distsummary.errors import UsageError

logger = guarded_log(__name__)

END_S = 60.0  # how long the end of the interpreter waits for what another thread closes

_closing: list[tuple[int, int, threading.Event]] = []  # by which process and thread; set when it is closed
_open: dict[weakref.WeakMethod[Callable[[], object]], None] = {}  # the newest last
_registered: bool | None = None  # whether that was in Ray; None: not yet


def close_at_exit(close: Callable[[], object]) -> None:
    """Call a bound method when the interpreter ends, if its object still is; again: before the others.

    The end of a trial of Ray Tune counts as that of the interpreter.
    """
    global _registered
    # The newest handler runs first: registered again after Ray's handlers, this one runs before them.
    now = in_ray()
    if _registered is None or (now and not (_registered and _open)):
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        _registered = now
    if now:
        # Ray is imported only where it is used.
        from distsummary.base.actor_private import close_with_trial

        close_with_trial(_close_all)
    is_closed(close)
    _open[weakref.WeakMethod(close, lambda gone: _open.pop(gone, None))] = None


def is_closed(close: Callable[[], object]) -> None:
    """Do not call the method any more."""
    _open.pop(weakref.WeakMethod(close), None)


@contextmanager
def closing(close: Callable[[], object]) -> Iterator[None]:
    """This thread does the method's work, for whose end the end of the interpreter waits."""
    entry = os.getpid(), threading.get_ident(), threading.Event()
    _closing.append(entry)
    try:
        is_closed(close)
        yield
    finally:
        _closing.remove(entry)
        entry[-1].set()


def process_error() -> BaseException | None:
    """The exception that ends the process, if there is one: of a notebook, that of its last cell."""
    if getattr(ipython_shell(), "last_execution_succeeded", False):
        return None
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _close_all() -> None:
    failure: BaseException | None = None
    while _open:
        close = _open.popitem()[0]()
        try:
            if close is not None:
                close()
        except BaseException as error:
            # The others are closed all the same.
            failure = failure or error
    for process, thread, is_over in [*_closing]:
        # A forked child has the entries of its parent's threads, but not the threads.
        if process == os.getpid() and thread != threading.get_ident():
            is_over.wait(END_S)
    if failure is not None:
        raise failure


def refuse_greenlets() -> None:
    """Raise UsageError where gevent or eventlet has replaced threads: one that waits stops the process."""
    if not isinstance(threading.get_ident, BuiltinFunctionType):
        raise UsageError(
            "the threads of this process are greenlets, all of which stop while one waits for a file, so "
            "nothing can be recorded; leave threads as they are: gevent.monkey.patch_all(thread=False, "
            "subprocess=False), eventlet.monkey_patch(thread=False)"
        )


class DaemonThread(threading.Thread):
    """A thread that does not keep its process alive; if it cannot be started, `join` calls `run`.

    Attributes:
        is_deferred: whether `join` has still to call it.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        super().__init__(target=run, name=name, daemon=True)
        self.is_deferred = False

    def start(self) -> None:
        """Start the thread, if the system and the interpreter allow another one."""
        try:
            super().start()
        except RuntimeError as error:
            self.is_deferred = True
            if threading.main_thread().is_alive():
                logger.warning("%s: %s; its work is done when the run is closed", self.name, error)

    def is_alive(self) -> bool:
        """Whether there is still work to do."""
        return self.is_deferred or super().is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the work, no longer than `timeout` seconds; without a thread, do it now."""
        if self.is_deferred:
            self.is_deferred = False
            self.run()
        elif self.ident is not None:
            super().join(timeout)
