"""What is still open when the interpreter ends is closed, the newest first; only weak references keep it."""

import atexit
import sys
import weakref
from collections.abc import Callable

from distsummary.base.processes import in_ray, ipython_shell

_open: list[weakref.WeakMethod[Callable[[], object]]] = []
_registered: bool | None = None  # whether that was in Ray; None: not yet


def close_at_exit(close: Callable[[], object]) -> None:
    """Call a bound method when the interpreter ends, if its object still is; again: before the others."""
    global _registered
    # The newest handler runs first: registered again after Ray's handlers, this one runs before them.
    now = in_ray()
    if _registered is None or (now and not (_registered and _open)):
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        _registered = now
    is_closed(close)
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
