"""open_run while another process writes, whose writes the reader meets half done."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

import distsummary as ds
from distsummary.events.files import Files
from distsummary.events.segments import all_event_files
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.frames import Part
from distsummary.format.records import DIALECTS, Batch, Event, Value

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


def write(directory: str, dialect: str) -> None:
    """A segment for each line of stdin, in batches of any size."""
    random = Random(7)
    for number, _ in enumerate(sys.stdin):
        writer = RankWriter(
            WriterSpec(directory=directory, run_id=RUN, formats=(dialect,)), ShortWrites(random)
        )
        seq, last = number * EVENTS + 1, (number + 1) * EVENTS
        while seq <= last:
            stop = min(seq + random.choice((1, 10, 300)), last + 1)
            events = [an_event(one) for one in range(seq, stop)]
            writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=seq, events=events))
            seq = stop
        writer.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_run_that_another_process_writes_is_followed(nasty_tmp_path: Path, dialect: str):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.formats.test_following", str(nasty_tmp_path), dialect],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    run, found, looks = None, 0, 0
    with process:
        for number in range(1, ROUNDS + 1):
            process.stdin.write(b"go\n")
            process.stdin.flush()
            while found < number * EVENTS and process.poll() is None:
                looks += 1
                if run is None and not all_event_files(nasty_tmp_path):
                    continue
                run = run or ds.open_run(nasty_tmp_path)
                if "loss" not in run.tags.get("scalar", {}):
                    continue
                table = run.scalars("loss")
                assert len(table) >= found
                found = len(table)
                assert table["step"].tolist() == [3 * seq for seq in range(1, found + 1)]
        process.stdin.close()
    assert process.returncode == 0
    assert looks >= ROUNDS
    expected = [an_event(seq) for seq in range(1, ROUNDS * EVENTS + 1)]
    table = run.scalars("loss")
    assert table["wall_time"].tolist() == [event.wall_time for event in expected]
    assert table["value"].tolist() == [event.values[0].data for event in expected]
    weights = [(event.step, event.values[1].data.size) for event in expected if len(event.values) > 1]
    assert [(row.step, row.value.count) for row in run.histograms("weights")] == weights
    assert run.problems == []


if __name__ == "__main__":
    write(*sys.argv[1:])
