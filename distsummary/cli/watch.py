"""Shows the states of a run until it is over, for the command `distsummary watch`."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from distsummary.base.columns import clock, named, printable, width_of
from distsummary.base.terminal import painted
from distsummary.errors import MissingFileError
from distsummary.rundir.states import is_over
from distsummary.runs.status import Status, read_status
from distsummary.runs.status_text import as_json as json_of
from distsummary.runs.status_text import findings_of, progress, stuck_in_short, text_of

PROGRESS_S = 60.0  # at most so often a line reports new steps
_CLEAR = "\x1b[H\x1b[2J"  # the cursor goes to the corner of an empty screen


def watch(
    path: str | os.PathLike[str],
    out: TextIO,
    *,
    every_s: float,
    as_json: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    look: Callable[[str | os.PathLike[str]], Status] = read_status,
) -> Status:
    """Show the run every `every_s` seconds; returns its last state when none of its ranks runs any more.

    A run that does not exist yet, or whose directory is still empty, is awaited.

    On a terminal, the screen is drawn again each time. Otherwise a line is written when a state changes and,
    if the steps continue, once in PROGRESS_S; the whole text comes at the end, also if KeyboardInterrupt or
    SystemExit ends it. With `as_json`, each line is an object, and nothing else is written.

    Raises the errors of `look`.
    """
    is_screen = out.isatty() and not as_json
    is_awaited = False
    while True:
        try:
            status = look(path)
            break
        except MissingFileError:
            if not _may_begin(Path(path)):
                raise
            if not is_awaited and not as_json:
                said = f"waiting for {printable(os.fspath(path))}, which does not exist yet; Ctrl-C ends this"
                print(said, file=out, flush=True)
            is_awaited = True
            sleep(every_s)
    before, reported_s = "", 0.0
    try:
        while True:
            newest = status.run.newest
            if is_screen:
                end = f"every {every_s:g} s; Ctrl-C ends the view, not the run"
                text = painted(text_of(status, width=width_of(out)), out)
                print(f"{_CLEAR}{text}\n{end}", file=out, flush=True)
            else:
                # A changed state is reported at once, new steps only now and then.
                is_due = status.now - reported_s >= PROGRESS_S and summary(status) != before
                if is_due or not before.startswith(f"{_states(status)};"):
                    before, reported_s = summary(status), status.now
                    text = f"{clock(status.now, status.now)} {before}"
                    print(json.dumps(json_of(status)) if as_json else text, file=out, flush=True)
            if newest is not None and is_over(newest):
                return status
            sleep(every_s)
            status = look(path)
    finally:
        if not is_screen and not as_json:
            print(text_of(status), file=out, flush=True)


def _may_begin(path: Path) -> bool:
    """Whether a run may still begin there: nothing is, or a directory with hidden files alone."""
    return not path.exists() or (path.is_dir() and all(one.name.startswith(".") for one in path.iterdir()))


def summary(status: Status) -> str:
    """The run in a line: the ranks' states, who is stuck, findings, how far it is, who is behind."""
    slow = f", {named(status.behind, 'rank')} behind" if status.behind else ""
    return f"{_states(status)}; {', '.join(progress(status)) or 'step -'}{slow}"


def _states(status: Status) -> str:
    newest = status.run.newest
    if newest is None:
        return f"{status.run.state}, no rank has registered"
    ranks = defaultdict(list)
    for rank in newest.ranks:
        ranks[rank.state].append(rank.rank)
    if newest.missing:
        ranks["missing"] = [*newest.missing]
    reported = [f"{named(numbers, 'rank')} {state}" for state, numbers in sorted(ranks.items())]
    if stuck := stuck_in_short(status):
        reported.append(stuck)
    if findings := findings_of(status):
        reported.append(findings.replace(";", ","))
    return f"{status.run.state}, attempt {newest.attempt}: {', '.join(reported) or 'no rank'}"
