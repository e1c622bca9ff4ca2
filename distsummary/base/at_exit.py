"""What is still open when the interpreter ends is closed, the newest first; only weak references keep it."""

import atexit
import sys
import weakref
from collections.abc import Callable

from distsummary.base.processes import in_ray, ipython_shell

_open: list[weakref.WeakMethod[Callable[[], object]]] = []
_is_registered = False


def close_at_exit(close: Callable[[], object]) -> None:
    """Call a bound method when the interpreter ends, if its object is still there."""
    global _is_registered
    # The newest handler runs first: registered again after Ray's handlers, this one runs before them.
    if not _is_registered or (in_ray() and not _open):
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        _is_registered = True
    _open.append(weakref.WeakMethod(close, _open.remove))


def is_closed(close: Callable[[], object]) -> None:
    """Do not call the method any more."""
    _open[:] = [reference for reference in _open if reference() != close]


def process_error() -> BaseException | None:
    """The exception that ends the process, if there is one: of a notebook, that of its last cell."""
    if getattr(ipython_shell(), "last_execution_succeeded", False):
        return None
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _close_all() -> None:
    failure: BaseException | None = None
    while _open:
        close = _open.pop()()
        try:
            if close is not None:
                close()
        except BaseException as error:
            # The others are closed all the same.
            failure = failure or error
    if failure is not None:
        raise failure
