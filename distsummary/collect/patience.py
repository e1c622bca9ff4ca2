"""Patience: how long a rank waits for its collector before it writes its files itself."""

import time
from collections.abc import Callable

ANSWER_S = 30.0  # for the answer to a call, if nobody waits for it
SLOW_BYTES_S = 4 << 20  # bytes that even a slow disk takes in a second: a large batch gets more time
# While `flush` or `close` waits. With what comes after it (the collector is killed, the files are opened, the
# rest is written), `close` stays below ten seconds.
AWAITED_S = 5.0
AWAITED_START_S = 8.0  # for a collector that is starting
AWAITED_BYTES_S = 64 << 20
CALLER_S = 30.0  # how long a caller of `flush` waits at most
# A collector that dies is started again. An idle node starts it in 0.3 s, a busy one in ten. Meanwhile events
# wait in memory: at 10 MB/s the queue's 256 MiB are full after 25 s, so the rank may not wait longer.
OUTAGE_S = 20.0
STARTS = 5  # in a row, without one acknowledged batch in between
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 4.0  # before the second start; doubled before each further one


class Patience:
    """Tells how long to wait for an answer, and when to wait no more.

    `clock` gives the time in seconds; all other times returned are on the same clock. Any thread may call
    `hurry`; the other methods are for the thread that calls the collector. `deaths`: how often the collector
    has died since it last worked.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._away_since = clock()  # when the collector was started, or stopped working
        self._is_away = True
        self.deaths = 0
        self._awaited_at = float("-inf")
        self.is_closing = False

    def hurry(self, *, is_closing: bool = False) -> None:
        """A caller of `flush`, or of `close`, waits from now on."""
        self._awaited_at = self._clock()
        self.is_closing |= is_closing

    def begins(self) -> None:
        """A collector has been started."""
        self._is_away, self._away_since, self.deaths = True, self._clock(), 0

    def works(self) -> None:
        """The collector has acknowledged a batch, or what it was asked for when there is none."""
        self._is_away, self.deaths = False, 0

    def fails(self, *, is_dead: bool) -> None:
        """The collector has died, or cannot open its directory."""
        if not self._is_away:
            self._is_away, self._away_since = True, self._clock()
        self.deaths += is_dead

    def is_over(self) -> bool:
        """Whether the rank should write its files itself instead of trying again."""
        return self.is_closing or self.deaths >= STARTS or self._clock() >= self.start_until()

    def pause_s(self) -> float:
        """How long to wait before the collector is started again."""
        return min(FIRST_PAUSE_S * 2 ** (self.deaths - 2), LONGEST_PAUSE_S) if self.deaths > 1 else 0.0

    def start_until(self) -> float:
        """When the collector must have said hello, after it was started."""
        since = self._away_since
        return self._sooner(since, since + OUTAGE_S, AWAITED_START_S)

    def answer_until(self, begun: float, nbytes: int = 0) -> float:
        """When an answer must have come for which the rank has waited since `begun`; `nbytes` are written."""
        until = begun + ANSWER_S + nbytes / SLOW_BYTES_S
        return self._sooner(begun, until, AWAITED_S + nbytes / AWAITED_BYTES_S)

    def _sooner(self, begun: float, until: float, awaited_s: float) -> float:
        """`until`, or earlier if a caller waits."""
        if not self.is_closing and self._clock() - self._awaited_at >= CALLER_S:
            return until
        return min(until, max(begun, self._awaited_at) + awaited_s)
