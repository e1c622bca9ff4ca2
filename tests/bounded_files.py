"""Event files whose oldest bulk values are removed, for tests that write, follow or read them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from distsummary.events.files import Files
from distsummary.events.reader import ReadEvent, read_directory
from distsummary.events.spec import Limits, WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import DIALECTS, MINDSPORE, Audio, Batch, Event, Histogram, Value

RUN = "00000000000000ab"
KEEP = 24 << 10
STEPS = 24


def histogram(step: int) -> Histogram:
    counts = np.arange(90) + step
    return Histogram(left=np.arange(90.0), width=np.ones(90), counts=counts, count=int(counts.sum()), min=0.0)


def event(step: int) -> Event:
    """A step with one of each kind that may be removed, and what must stay."""
    values = [
        Value("scalar", "loss", step / 3),
        Value("histogram", "weight", histogram(step)),
        Value("image", "picture", np.full((8, 8, 3), step, np.uint8)),
        Value("tensor", "taken", np.full(100, step, np.float32)),
        Value("text", "answer", f"said {step}" * 40),
        Value("text", "zz_run", f"ours {step}"),
        Value("audio", "sound", Audio(rate=8e3, channels=1, frames=4, encoded=b"RIFF" * 50)),
    ]
    return Event(step, 1000.0 + step / 7, values)


def events() -> list[Event]:
    """Steps with bulk values, and between them scalars alone; a graph first."""
    found = [Event(0, 999.0, [Value("graph", "", b"\n\x00")])]
    for step in range(1, STEPS + 1):
        found += [
            event(step),
            *(Event(100 * step + n, 1.5, [Value("scalar", "n", n / 7)]) for n in range(3)),
        ]
    return found


def writer(directory: Path, files: Files | None = None, keep: int | None = KEEP, **spec) -> RankWriter:
    limits = Limits(keep_bytes=keep)
    return RankWriter(WriterSpec(directory=directory, run_id=RUN, limits=limits, **spec), files)


def write(target: RankWriter, found: Sequence[Event]) -> None:
    """Four events a batch; the last batch that a file has is sent again, as by an AsyncWriter."""
    for seq in range(1, len(found) + 1, 4):
        batch = Batch(run_id=RUN, attempt=0, rank=0, first_seq=seq, events=found[seq - 1 : seq + 3])
        if batch.last_seq >= target.last_seq:
            target.write(batch)


def kept(found: Iterable[ReadEvent]) -> list[tuple[object, ...]]:
    """All that must stay: whatever is removed, it is the same."""
    return [
        (one.seq, one.step, one.wall_time, value.plugin, value.tag, value.data)
        for one in found
        for value in one.values
        if value.plugin in ("scalar", "graph") or value.tag == "zz_run"
    ]


def bulk_bytes(directory: Path) -> int:
    found = [one for dialect in DIALECTS for one in read_directory(directory, dialect)]
    return sum(one.end - one.offset for one in found if any(v.tag == "weight" for v in one.values))


def bulk_steps(directory: Path, dialect: str = MINDSPORE) -> list[int]:
    return [
        one.step for one in read_directory(directory, dialect) if any(v.tag == "weight" for v in one.values)
    ]
