"""Ctrl-C that Python drops is sent again."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

RETURN_S = 0.01  # more than what dropped the interrupt takes to return


@contextmanager
def heeds_interrupts() -> Iterator[None]:
    """Around what takes long: no KeyboardInterrupt gets lost in it. Also a decorator.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In a `__del__` or in the callback
    of a weak reference, of which matplotlib makes thousands, it can only be reported as ignored, and the
    program goes on. Here it is sent again, until it is raised where it is heard. A SIGINT handler of the
    user's own is never called twice for one signal.
    """
    if threading.current_thread() is not threading.main_thread():  # the only one that is interrupted
        yield
        return
    lost: SimpleQueue[bool] = SimpleQueue()  # may be put to in a destructor
    sender = threading.Thread(target=_send_again, args=(lost,), name="distsummary-interrupts", daemon=True)
    before = sys.unraisablehook

    def note(ignored: "sys.UnraisableHookArgs") -> None:
        if _is_lost_interrupt(ignored.exc_type):
            lost.put(True)
        else:
            before(ignored)

    sender.start()
    sys.unraisablehook = note
    try:
        yield
    finally:
        if sys.unraisablehook is note:
            sys.unraisablehook = before
        lost.put(False)
        sender.join()  # one that was lost at the very end is raised here


def _is_lost_interrupt(kind: type[BaseException]) -> bool:
    return (
        issubclass(kind, KeyboardInterrupt)
        and threading.get_ident() == threading.main_thread().ident
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def _send_again(lost: "SimpleQueue[bool]") -> None:
    """From another thread: what the hook itself would raise, would be ignored too."""
    main = threading.main_thread().ident
    assert main is not None
    while lost.get():
        time.sleep(RETURN_S)
        signal.pthread_kill(main, signal.SIGINT)  # a real signal, because it ends system calls that wait
