"""Patience: how long a rank waits for its collector before it writes its files itself."""

import time
from collections.abc import Callable

ANSWER_S = 30.0  # without a sign of work, for the answer to a call, if no one waits for it
MOST_ANSWER_S = 300.0  # with signs of work
SLOW_BYTES_S = 4 << 20  # bytes that even a slow disk takes in a second: a large batch gets more time
# While `flush` or `close` waits. With what comes after it (the collector is killed, the files are opened, the
# rest is written), `close` stays below ten seconds.
AWAITED_S = 5.0
MOST_AWAITED_S = 30.0
AWAITED_BYTES_S = 64 << 20
CALLER_S = 30.0  # how long a caller of `flush` waits at most
# A collector that dies is started again. An idle node starts it in 0.3 s, a busy one in ten or more.
OUTAGE_S = 20.0
STARTS = 5  # in a row, without one acknowledged batch in between
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 4.0  # before the second start; doubled before each further one


class Patience:
    """Decides how long to wait for an answer, and when to wait no more.

    Any thread may call `hurry`; the other methods are for the thread that calls the collector.

    Args:
        clock: gives the time in seconds; all other times returned are on the same clock.
        answer_s, awaited_s: how long an answer may take, and while a caller waits for it.
        outage_s: how long a collector may be away.
        starts: how often one is started in a row.

    Attributes:
        deaths: how often the collector has died since it last worked.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        answer_s: float = ANSWER_S,
        awaited_s: float = AWAITED_S,
        outage_s: float = OUTAGE_S,
        starts: int = STARTS,
    ) -> None:
        self._clock = clock
        self.answer_s, self.awaited_s, self.outage_s, self.starts = answer_s, awaited_s, outage_s, starts
        self._away_since = clock()  # when the collector was started, or stopped working
        self._is_away = True
        self._seen_at = float("-inf")  # at work
        self.deaths = 0
        self._awaited_at = float("-inf")
        self.is_closing = False

    def hurry(self, *, is_closing: bool = False) -> None:
        """A caller of `flush`, or of `close`, waits from now on."""
        self._awaited_at = self._clock()
        self.is_closing |= is_closing

    def begins(self) -> None:
        """A collector that was awaited is up, and has not answered yet."""
        self._is_away, self._away_since = True, self._clock()

    def works(self) -> None:
        """The collector has acknowledged a batch, or what it was asked for when there is none."""
        self._is_away, self.deaths = False, 0

    def is_at_work(self) -> None:
        """The collector has not answered yet, but was seen to compute or to write."""
        self._seen_at = self._clock()

    def fails(self, *, is_dead: bool) -> None:
        """The collector has died, or cannot open its directory."""
        if not self._is_away:
            self._is_away, self._away_since = True, self._clock()
        self.deaths += is_dead

    def is_worn(self) -> bool:
        """Whether a collector that has died should not be started again."""
        return self.is_closing or self.deaths >= self.starts

    def is_over(self) -> bool:
        """Whether the rank should write its files itself instead of trying again."""
        return self.is_worn() or self.is_late()

    def is_late(self) -> bool:
        """Whether the collector has been away for `outage_s`."""
        return self._is_away and self._clock() >= self._away_since + self.outage_s

    def is_awaited(self) -> bool:
        """Whether a caller waits."""
        return self.is_closing or self._clock() - self._awaited_at < CALLER_S

    def pause_s(self) -> float:
        """How long to wait before the collector is started again."""
        return min(FIRST_PAUSE_S * 2 ** (self.deaths - 2), LONGEST_PAUSE_S) if self.deaths > 1 else 0.0

    def answer_until(self, begun: float, nbytes: int = 0) -> float:
        """When an answer must have come for which the rank has waited since `begun`; `nbytes` are written.

        A collector that is seen at work has more time: on a busy machine, it waits for a processor.
        """
        quiet_since = max(begun, self._seen_at)
        writing_s = nbytes / SLOW_BYTES_S
        until = min(quiet_since + self.answer_s, begun + MOST_ANSWER_S) + writing_s
        if not self.is_awaited():
            return until
        # While a caller waits, the shorter limits hold, counted from the beginning of its wait.
        writing_s = nbytes / AWAITED_BYTES_S
        begun = max(begun, self._awaited_at)
        return min(until, min(max(quiet_since, begun) + self.awaited_s, begun + MOST_AWAITED_S) + writing_s)
