"""Readers stream: a large file takes no more memory than a small one."""

import sys
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary.cli.dump import dump, to_line
from distsummary.events.reader import read_file, read_values
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame
from distsummary.format.records import Event, Value
from tests.programs import run_python
from tests.unit.events.test_reader import TENSORBOARD


def foreign(count: int, tag: str) -> list[bytes]:
    """Frames of scalars as another writer makes them: without an identity, steps from 0 on."""
    events = [Event(step, 2.0 + step, [Value("scalar", tag, step / 4)]) for step in range(count)]
    return [frame(encode_event(event, None, ("tensorboard",))[0]["tensorboard"] or b"") for event in events]


READERS: dict[str, Callable[[str], Iterable[Any]]] = {
    "values": read_values,
    "events": read_file,
    "dump": lambda path: map(to_line, dump(path)),
}
ALLOWED_KIB = 8 << 10  # a block, its columns and what the allocator keeps


def peak_kib() -> int:
    """The most memory that this program ever had (resident); getrusage also counts what started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def report(reader: str, *paths: str) -> None:
    """Read the files, and print the peak after each."""
    for path in paths:
        deque(READERS[reader](path), maxlen=0)
        print(peak_kib())


@pytest.mark.parametrize(("reader", "megabytes"), [("values", 32), ("events", 32), ("dump", 16)])
def test_a_large_file_is_streamed(nasty_tmp_path: Path, reader: str, megabytes: int):
    histogram = encode_event(Event(1, 1.0, [Value("histogram", "h", np.ones(9))]), None, ("tensorboard",))
    piece = b"".join([*foreign(15_000, "loss"), frame(histogram[0]["tensorboard"] or b"")])
    small, large = (nasty_tmp_path / TENSORBOARD.format(stamp) for stamp in (1, 2))
    small.write_bytes(piece * 2)
    with open(large, "wb") as file:
        for _ in range(megabytes * 10**6 // len(piece) + 1):
            file.write(piece)
    child = run_python("-m", "tests.formats.test_memory", reader, str(small), str(large))
    before, after = map(int, child.stdout.split())
    assert after - before < ALLOWED_KIB


if __name__ == "__main__":
    report(*sys.argv[1:])
