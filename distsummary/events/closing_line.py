"""Shows, while the end of a run waits for its last values, how much of them is left."""

import sys
import time
from collections.abc import Callable

from distsummary.base.guard import guarded_log
from distsummary.base.terminal import SHOWN_AFTER_S, TerminalLine, duration

logger = guarded_log(__name__)

SAID_AFTER_S = 5.0  # elsewhere than in a terminal, or on another rank than 0


class ClosingLine:
    """A line of the terminal that is written over; elsewhere one line in the log if it takes long.

    `clock` gives the time in seconds.
    """

    def __init__(self, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rank, self._clock, self._begun = rank, clock, clock()
        is_screen = rank == 0 and sys.stderr is not None and sys.stderr.isatty()
        self._line = TerminalLine(sys.stderr) if is_screen else None
        self._is_said = False

    def show(self, left_bytes: int, refusal: str) -> None:
        """Show what is left, in bytes of memory, and why the disk takes nothing now, if it does not."""
        passed_s = self._clock() - self._begun
        if self._line is not None and passed_s >= SHOWN_AFTER_S:
            what = f"the disk takes nothing ({refusal})" if refusal else f"{left_bytes / 1e6:,.1f} MB left"
            self._line(
                f"distsummary: writing the last values: {what}, {duration(passed_s)} so far, Ctrl-C ends it"
            )
        elif self._line is None and passed_s >= SAID_AFTER_S and not self._is_said:
            self._is_said = True
            logger.warning(
                "rank=%d the last values are still being written (%.1f MB are left); the process ends when "
                "they are in the files%s",
                self._rank,
                left_bytes / 1e6,
                f"; now the disk takes nothing: {refusal}" if refusal else "",
            )

    def end(self) -> None:
        """Leave the line of the terminal empty."""
        if self._line is not None:
            self._line.clear()
