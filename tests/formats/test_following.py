"""A tail beside a writer that is another process, whose writes the reader meets half done."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from distsummary.format.frames import Part
from distsummary.format.records import DIALECTS, Batch, Event, Value
from distsummary.reading.reader import Damage, ReadEvent, read_directory
from distsummary.reading.tail import Tail
from distsummary.writing.files import Files
from distsummary.writing.spec import WriterSpec
from distsummary.writing.writer import RankWriter

RUN = "0123456789abcdef"
ROUNDS, EVENTS = 6, 1500  # a round is a segment


class ShortWrites(Files):
    """Takes some of the bytes at a time, as a busy disk may."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        return os.write(descriptor, b"".join(parts)[: self._random.randint(1, 5000)])


def an_event(seq: int) -> Event:
    values = [Value("scalar", "loss", seq / 4)]
    if seq % 400 == 0:
        values.append(Value("histogram", "weights", np.arange(seq % 7 + 2.0)))
    return Event(3 * seq, 100.0 + seq, values)


def write(directory: str) -> None:
    """A segment for each line of stdin, in batches of any size."""
    random = Random(7)
    for number, _ in enumerate(sys.stdin):
        writer = RankWriter(WriterSpec(directory=directory, run_id=RUN), ShortWrites(random))
        seq, last = number * EVENTS + 1, (number + 1) * EVENTS
        while seq <= last:
            stop = min(seq + random.choice((1, 10, 300)), last + 1)
            events = [an_event(one) for one in range(seq, stop)]
            writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=seq, events=events))
            seq = stop
        writer.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_tail_sees_every_event_of_a_living_writer_once(nasty_tmp_path: Path, dialect: str):
    skipped: list[Damage] = []
    tail = Tail(nasty_tmp_path, dialect, skipped=skipped)
    found: list[ReadEvent] = []
    polls = 0
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.formats.test_following", str(nasty_tmp_path)],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        assert process.stdin is not None
        for number in range(1, ROUNDS + 1):
            process.stdin.write(b"go\n")
            process.stdin.flush()
            while len(found) < number * EVENTS and process.poll() is None:
                found += tail.poll()
                polls += 1
        process.stdin.close()
    found += tail.poll()
    assert process.returncode == 0
    assert polls >= ROUNDS
    assert skipped == []
    assert [event.seq for event in found] == list(range(1, ROUNDS * EVENTS + 1))
    expected = [an_event(seq) for seq in range(1, ROUNDS * EVENTS + 1)]
    assert [event[3:5] for event in found] == [event[:2] for event in expected]
    assert [event.values[0] for event in found] == [event.values[0] for event in expected]
    assert [(e.file, e.offset, e.end) for e in found] == [
        (e.file, e.offset, e.end) for e in read_directory(nasty_tmp_path, dialect)
    ]


if __name__ == "__main__":
    write(sys.argv[1])
