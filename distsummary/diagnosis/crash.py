"""Crash: what Python wrote into crash.txt when native code ended a rank's process."""

import re
from pathlib import Path
from typing import NamedTuple

from distsummary.diagnosis.source_lines import SourceLine, user_place
from distsummary.rundir.run_dir import CRASH

MAX_BYTES = 1 << 20
_COLLECTIVES = ("torch", "distributed", "distributed_c10d.py")
_HEAD = re.compile(r"attempt (\d+), thread 0x([0-9a-f]+)")
_ERROR = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+) .*$", re.MULTILINE)
_LINE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


class Crash(NamedTuple):
    """`error`: what ended the process, such as Aborted. `line`: where the loop's thread was, of the user's
    code, as `SourceLine.text` gives it. `collective`: which function of torch.distributed it had called, such
    as all_reduce. Both are empty if unknown.
    """

    error: str
    line: str = ""
    collective: str = ""


def head_of(attempt: int, thread_id: int) -> str:
    """The first line of crash.txt: of which attempt it is, and which thread runs the loop."""
    return f"attempt {attempt}, thread 0x{thread_id:x}\n"


def read_crash(directory: Path, attempt: int) -> Crash | None:
    """The crash of a rank, from its directory; None if there was none, or the file cannot be read."""
    try:
        with open(directory / CRASH, "rb") as file:
            text = file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return None
    head, error = _HEAD.match(text), _ERROR.search(text)
    if head is None or error is None or int(head[1]) != attempt:
        return None
    # `split` gives the text before the first thread, then in turn the number of a thread and its lines.
    _, *parts = _THREAD.split(text)
    stacks = {int(number, 16): lines for number, lines in zip(parts[::2], parts[1::2], strict=True)}
    stack = [
        SourceLine(file, int(number), function)
        for file, number, function in _LINE.findall(stacks.get(int(head[2], 16), ""))
    ]
    place = user_place(stack)
    called = (one.function for one in stack if Path(one.file).parts[-3:] == _COLLECTIVES)
    return Crash(error[1], "" if place is None else place.text(), next(called, ""))
