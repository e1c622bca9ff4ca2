"""Follows event files while they grow, poll by poll. Not used yet: the public read API will use it."""

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
    """Reads a growing file, or the growing files of a directory, including files that appear later.

    It never waits: the caller decides when to poll. An incomplete event at the end of a file is left for the
    next poll; damage is reported when an intact event follows it. An event that was written twice is
    returned only once, as in `read_directory`. A path that does not exist yet has no events.

    Args:
        path: an event file, whose name says the dialect, or a directory.
        dialect: the dialect of a directory's files.
        skipped: receives the damage that is skipped; without it, damage is logged.
        max_payload: events larger than this (bytes) count as damage.
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
        self._sizes: dict[Path, int] = {}  # file -> its size when it was last read to its end
        self._ends: dict[Path, int] = {}  # file -> the end of the last event that was returned
        self._seen = Seen()

    def poll(self) -> Iterator[ReadEvent]:
        """The events since the last poll; the next poll returns those that the caller has not taken."""
        if self.path.is_dir():
            files = segments(self.path, self.dialect)
        else:
            files = [self.path] if self.path.exists() else []
        for file in files:
            try:
                size = file.stat().st_size
            except FileNotFoundError:  # removed since it was listed
                continue
            if size <= self._sizes.get(file, 0):
                continue
            start = self._ends.get(file, 0)
            for event in read_file(
                file, "tail", start=start, skipped=self._skipped, max_payload=self._max_payload
            ):
                self._ends[file] = event.end
                if self._seen.add(event.run_id, event.attempt, event.seq):
                    yield event
            self._sizes[file] = size
