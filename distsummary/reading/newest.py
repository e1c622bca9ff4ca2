"""The newest events of a directory, read from the ends of its event files without reading the rest."""

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
