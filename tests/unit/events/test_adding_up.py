"""Whatever happens to values: what was given is what is in the files and what was dropped."""

import errno
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from distsummary.events.async_writer import AsyncWriter
from distsummary.events.files import Files
from distsummary.events.reader import read_directory
from distsummary.events.spec import Limits, WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.frames import Part
from distsummary.format.records import DIALECTS, MINDSPORE, Event, Value
from distsummary.format.scalar_rows import row_struct
from tests.unit.format import samples


class Unreliable(Files):
    """Some writes fail, some take a part, and at times there is no room for bulk values."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        draw = self.random.random()
        if draw < 0.2:
            raise OSError(errno.ENOSPC, "No space left on device")
        if draw < 0.3:
            return super().write(descriptor, [memoryview(parts[0])[: len(parts[0]) // 2 + 1]])
        return super().write(descriptor, parts)

    def free_space(self, directory: Path) -> tuple[int, int]:
        return (0 if self.random.random() < 0.2 else 1 << 40), 1 << 40


def some_event(draw: Random, step: int) -> Event:
    values = [
        Value("scalar", "loss", draw.choice((0.5, "no number", 1e300))),
        Value("scalar", draw.choice(("a", "b" * 2000)), 1.0),
        Value("tensor", "t", np.zeros(draw.randrange(200), draw.choice((np.float32, np.complex64)))),
        Value("histogram", "h", np.arange(9.0)),
        Value("text", "note", "x" * draw.randrange(100)),
        Value("graph", "", draw.choice((b"", b"no graph"))),
        samples.norms(("p0", "p1")),
    ]
    return Event(step, 1.5 + step, draw.sample(values, draw.randint(1, len(values))))


@pytest.mark.parametrize("seed", range(8))
def test_what_was_given_is_what_was_written_and_what_was_dropped(tmp_path: Path, seed: int):
    draw, given = Random(seed), Counter[str]()
    spec = WriterSpec(
        directory=tmp_path,
        formats=draw.choice((DIALECTS, (MINDSPORE,))),
        budget_bytes=draw.choice((3_000, 1 << 20)),
        interval_s=0.0,
        retry_s=0.0001,
        batch_bytes=draw.choice((1, 4096)),
        shows_norms=draw.random() < 0.5,
        limits=Limits(max_file_size=draw.choice((None, None, 20_000))),
        delivery=draw.choice(("written", "queued")),
    )
    writer = AsyncWriter(RankWriter(spec, Unreliable(seed)), spec, clock=lambda: 1e4 * time.monotonic())
    names = tuple(f"metric{n}" for n in range(20))
    for step in range(1, 150):
        if draw.random() < 0.5:
            writer.write_row(names, row_struct(20).pack(1.5, step, *map(float, range(20))))
            given["scalar"] += 20
        else:
            event = some_event(draw, step)
            writer.write(event)
            given.update(value.plugin for value in event.values)
    writer.close()
    found = writer.health()
    assert found.given == given
    assert Counter(found.written) + Counter(found.dropped) == given
    is_whole = spec.limits.max_file_size is None and spec.delivery == "written"
    if is_whole and not spec.shows_norms and spec.formats == (MINDSPORE,):  # else a file may have it
        assert found.written == Counter(
            value.plugin for event in read_directory(tmp_path, MINDSPORE, "strict") for value in event.values
        )
