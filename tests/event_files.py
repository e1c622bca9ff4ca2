"""Event files of ranks, for tests that read them."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import Batch, Event


def write_events(
    directory: str | PathLike[str],
    events: Sequence[Event],
    *,
    run_id: str,
    attempt: int = 0,
    rank: int = 0,
    **spec: Any,  # further fields of the WriterSpec
) -> None:
    """Write one batch into the files of a rank, which are closed then."""
    writer = RankWriter(WriterSpec(directory=directory, run_id=run_id, attempt=attempt, rank=rank, **spec))
    first_seq = writer.last_seq + 1
    writer.write(Batch(run_id=run_id, attempt=attempt, rank=rank, first_seq=first_seq, events=[*events]))
    writer.close()
