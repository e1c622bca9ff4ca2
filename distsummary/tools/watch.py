"""Shows the states of a run until it is over, for the command `distsummary watch`."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from distsummary.states import is_over
from distsummary.tools.columns import width_of
from distsummary.tools.status import Status, read_status
from distsummary.tools.status_text import as_json as json_of
from distsummary.tools.status_text import text_of

_CLEAR = "\x1b[H\x1b[2J"  # the cursor goes to the corner of an empty screen


def watch(
    path: str | os.PathLike[str],
    out: TextIO,
    *,
    every_s: float,
    as_json: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Status:
    """Show the run every `every_s` seconds; returns its last state when none of its ranks runs any more.

    On a terminal, the screen is drawn again each time. Otherwise each change is one line, and the whole text
    comes at the end; with `as_json`, each change is one object in a line, and nothing else is written.

    Raises the errors of `read_status`.
    """
    is_screen = out.isatty() and not as_json
    before = ""
    while True:
        status = read_status(path)
        newest = status.run.newest
        is_last = newest is not None and is_over(newest)
        if is_screen:
            print(f"{_CLEAR}{text_of(status, width=width_of(out))}", file=out, flush=True)
        else:
            now = summary(status)
            if now != before:
                clock = time.strftime("%H:%M:%S", time.localtime(status.now))
                print(json.dumps(json_of(status)) if as_json else f"{clock} {now}", file=out, flush=True)
            before = now
        if is_last:
            break
        sleep(every_s)
    if not is_screen and not as_json:
        print(text_of(status), file=out, flush=True)
    return status


def summary(status: Status) -> str:
    """The run in a few words: its state, its newest step, and how many ranks are in which state."""
    newest = status.run.newest
    if newest is None:
        return f"{status.run.state}, no rank has registered"
    states = Counter(rank.state for rank in newest.ranks) + Counter(missing=len(newest.missing))
    ranks = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"{status.run.state}, attempt {newest.attempt}, step {status.step or '-'}, ranks: {ranks}"
