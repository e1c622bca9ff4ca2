"""What is new in a directory, read from few places of its event files without reading the rest."""

from collections.abc import Callable
from pathlib import Path

from distsummary.format.records import DIALECTS
from distsummary.reading.reader import Damage, ReadEvent, read_file
from distsummary.reading.segments import segments

TAIL_BYTES = 1 << 16
MAX_FILES = 16  # of each dialect that are looked into


def newest_events(
    directory: Path, *, attempt: int | None = None, tail_bytes: int = TAIL_BYTES
) -> list[ReadEvent]:
    """The events in the last `tail_bytes` of the newest event file that has any; an empty list without one.

    With `attempt`, only events of that attempt are looked for.

    The file may be growing: an incomplete event at its end is left out. Raises DamagedFileError, OSError.
    """
    for dialect in DIALECTS:
        for file in segments(directory, dialect)[: -MAX_FILES - 1 : -1]:
            start = max(0, file.stat().st_size - tail_bytes)
            skipped: list[Damage] = []  # the event in which `start` lies
            events = read_file(file, "tail", start=start, skipped=skipped)
            if found := [event for event in events if attempt in (None, event.attempt)]:
                return found
    return []


def step_since(directory: Path, holds: Callable[[ReadEvent], bool | None]) -> int | None:
    """About the step from which on `holds` is True of the newest event file; None if it has no such event.

    The file is halved again and again, as if `holds` changed once, from False to True.

    Args:
        holds: what is asked of an event; None if the event says nothing about it.

    Raises DamagedFileError, OSError.
    """

    def first(start: int, wanted: tuple[bool, ...]) -> tuple[int, bool] | None:
        skipped: list[Damage] = []  # the event in which `start` lies
        events = (
            (event.step, holds(event)) for event in read_file(file, "tail", start=start, skipped=skipped)
        )
        return next(((step, answer) for step, answer in events if answer in wanted), None)

    for dialect in DIALECTS:
        for file in segments(directory, dialect)[-1:]:
            low, high = 0, file.stat().st_size
            while high - low > TAIL_BYTES:
                middle = (low + high) // 2
                found = first(middle, (True, False))
                low, high = (middle, high) if found and not found[1] else (low, middle)
            found = first(low, (True,))
            return found and found[0]
    return None
