"""The newest events of a directory, read from the ends of its event files without reading the rest."""

from pathlib import Path

from distsummary.format.records import DIALECTS
from distsummary.reading.reader import Damage, ReadEvent, read_file
from distsummary.reading.segments import segments

TAIL_BYTES = 1 << 16


def newest_events(directory: Path, tail_bytes: int = TAIL_BYTES) -> list[ReadEvent]:
    """The events in the last `tail_bytes` of the newest event file that has any; an empty list without one.

    The file may be growing: an incomplete event at its end is left out. Raises DamagedFileError, OSError.
    """
    for dialect in DIALECTS:
        for file in reversed(segments(directory, dialect)):
            start = max(0, file.stat().st_size - tail_bytes)
            skipped: list[Damage] = []  # the event in which `start` lies
            if events := list(read_file(file, "tail", start=start, skipped=skipped)):
                return events
    return []
