"""Following event files that still grow: each poll gives what has come since the last."""

import os
from collections.abc import Iterator
from pathlib import Path

from distsummary.checks import check_choice
from distsummary.format.frames import MAX_PAYLOAD
from distsummary.format.records import DIALECTS, MINDSPORE
from distsummary.reading.deduplicate import Seen
from distsummary.reading.reader import Damage, ReadEvent, read_file
from distsummary.reading.segments import segments


class Tail:
    """A growing file, or the growing files of a directory, new ones included.

    Nothing sleeps here: who follows decides when to poll. Bytes at the end of a file that are no whole event
    yet are left for the next poll; damage counts as such once something intact stands behind it. An event
    that was written twice comes once, as in `read_directory`. A path that is not there yet has no events.

    Args:
        path: an event file, whose name tells the dialect, or a directory.
        dialect: of a directory's files.
        skipped: takes the damage that is passed over; without it, it is logged.
        max_payload: larger events (bytes) are damage.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dialect: str = MINDSPORE,
        *,
        skipped: list[Damage] | None = None,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        check_choice("dialect", dialect, DIALECTS)
        self.path, self.dialect = Path(path), dialect
        self._skipped, self._max_payload = skipped, max_payload
        self._sizes: dict[Path, int] = {}  # when last read to its end
        self._ends: dict[Path, int] = {}  # of the last event that was given
        self._seen = Seen()

    def poll(self) -> Iterator[ReadEvent]:
        """The events since the last poll; what is not taken of them comes at the next one again."""
        for file in self._files():
            size = _size(file)
            if size > self._sizes.get(file, 0):
                yield from self._new_events(file)
                self._sizes[file] = size

    def _files(self) -> list[Path]:
        if self.path.is_dir():
            return segments(self.path, self.dialect)
        return [self.path] if self.path.exists() else []

    def _new_events(self, file: Path) -> Iterator[ReadEvent]:
        start = self._ends.get(file, 0)
        for event in read_file(
            file, "tail", start=start, skipped=self._skipped, max_payload=self._max_payload
        ):
            self._ends[file] = event.end
            if self._seen.add(event.run_id, event.attempt, event.seq):
                yield event


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # removed since it was listed
        return 0
