"""Waits for threads while they get on, says where one that is stuck is, and refuses greenlets for threads."""

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType

from distsummary.base.failures import LOOK_S
from distsummary.errors import UsageError

SHOWN_CALLS = 4

_awaited: dict[int, threading.Thread] = {}  # the id of a thread -> the thread that it waits for


def refuse_greenlets() -> None:
    """Raise UsageError where gevent or eventlet has replaced threads: one that waits stops the process."""
    if not isinstance(threading.get_ident, BuiltinFunctionType):
        raise UsageError(
            "the threads of this process are greenlets, all of which stop while one waits for a file, so "
            "nothing can be recorded; leave threads as they are: gevent.monkey.patch_all(thread=False, "
            "subprocess=False), eventlet.monkey_patch(thread=False)"
        )


@contextmanager
def awaiting(thread: threading.Thread) -> Iterator[None]:
    """Wait for another thread in the block; `place_of` then names where that one is."""
    own = threading.get_ident()
    _awaited[own] = thread
    try:
        yield
    finally:
        _awaited.pop(own, None)


def joined_in_time(
    thread: threading.Thread,
    progress: Callable[[], object],
    patience_s: float,
    deadline_s: Callable[[], float] = lambda: math.inf,
) -> bool:
    """Wait for a thread as long as its progress changes within `patience_s`; returns whether it has ended.

    `deadline_s` returns when the wait has to end at the latest, as `time.monotonic` counts.
    """
    mark, since = progress(), time.monotonic()
    with awaiting(thread):
        while thread.is_alive():
            now, reached = time.monotonic(), progress()
            if reached != mark:
                mark, since = reached, now
            left_s = min(since + patience_s, deadline_s()) - now
            if left_s <= 0:
                return False
            thread.join(min(LOOK_S, left_s))
    return True


def place_of(thread: threading.Thread) -> str:
    """The innermost lines at which a thread is, such as `writer.py:7 < session.py:9`; empty if unknown.

    If it only waits for another thread, by `awaiting`, those of that one.
    """
    ident, seen = thread.ident or 0, set[int]()
    while ident in _awaited and ident not in seen:
        seen.add(ident)
        ident = _awaited[ident].ident or 0
    frame = sys._current_frames().get(ident)
    calls = traceback.walk_stack(frame) if frame is not None else ()
    lines = [f"{os.path.basename(call.f_code.co_filename)}:{line}" for call, line in calls]
    # That it waits is clear; what for is in the lines around.
    return " < ".join([line for line in lines if not line.startswith("threading.py:")][:SHOWN_CALLS])


def written_by(native_id: int | None) -> int:
    """The bytes that a thread of this process has passed to write calls; 0 if that is unknown."""
    try:
        fields = Path(f"/proc/self/task/{native_id}/io").read_bytes().split()
        return int(fields[fields.index(b"wchar:") + 1])
    except (OSError, ValueError, IndexError):
        return 0
