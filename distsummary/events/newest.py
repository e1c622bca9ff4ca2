"""What is new in a directory, read from few places of its event files without reading the rest."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from distsummary.events.reader import Damage, ReadEvent, read_file
from distsummary.events.segments import segments
from distsummary.format.own_tags import LOSS_TAG
from distsummary.format.records import DIALECTS

TAIL_BYTES = 1 << 16
LONG_TAIL_BYTES = 1 << 23  # for values that large histograms and images may lie behind
LOSSES = ("loss", "train/loss", LOSS_TAG)  # tags of the loss, the first that is there
MAX_FILES = 16  # of each dialect that are looked into


def newest_events(
    directory: Path, *, attempt: int | None = None, tail_bytes: int = TAIL_BYTES
) -> list[ReadEvent]:
    """The events in the last `tail_bytes` of the newest event file that has any; an empty list without one.

    With `attempt`, only events of that attempt are looked for.

    The file may be growing: an incomplete event at its end is left out. Raises DamagedFileError, OSError.
    """
    for file in _newest_files(directory):
        if found := [event for event in _tail(file, tail_bytes) if attempt in (None, event.attempt)]:
            return found
    return []


def newest_step(directory: Path, *, attempt: int) -> int | None:
    """The step of an attempt's newest event; -1 without one, None if its file's end does not show it.

    Raises DamagedFileError, OSError.
    """
    for file in _newest_files(directory):
        for size in (TAIL_BYTES, LONG_TAIL_BYTES):
            events = _tail(file, size)
            if found := [event.step for event in events if event.attempt == attempt]:
                return max(found)
            # Events of other attempts alone, or a whole file without any: older files may have the answer.
            if events or file.stat().st_size <= size:
                break
        else:
            return None
    return -1


def newest_scalars(directory: Path, tags: Collection[str]) -> dict[str, float]:
    """The newest scalars with any of these tags, by tag; those of the newest file that has some in its tail.

    Raises DamagedFileError, OSError.
    """
    for file in _newest_files(directory):
        for size in (TAIL_BYTES, LONG_TAIL_BYTES):
            found = scalars_of(_tail(file, size), tags)
            if found:
                return found
            if file.stat().st_size <= size:
                break
    return {}


def scalars_of(events: Iterable[ReadEvent], tags: Collection[str]) -> dict[str, float]:
    """The last scalars with any of these tags in events, by tag."""
    return {
        value.tag: float(value.data)
        for event in events
        for value in event.values
        if value.plugin == "scalar" and value.tag in tags
    }


def newest_loss(*places: Path) -> float | None:
    """The newest loss in the first of some directories that has one.

    It is that of the newest events or, if these are of an evaluation alone, of earlier ones. Raises
    DamagedFileError, OSError.
    """
    found = scalars_of(next(filter(None, map(newest_events, places)), []), LOSSES)
    for place in places:
        found = found or newest_scalars(place, LOSSES)
    return next((found[tag] for tag in LOSSES if tag in found), None)


def _newest_files(directory: Path) -> Iterator[Path]:
    for dialect in DIALECTS:
        yield from segments(directory, dialect)[: -MAX_FILES - 1 : -1]


def _tail(file: Path, size: int) -> list[ReadEvent]:
    # The tail may begin inside of an event, which is no damage to report.
    skipped: list[Damage] = []
    return list(read_file(file, "tail", start=max(0, file.stat().st_size - size), skipped=skipped))
