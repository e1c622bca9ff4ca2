"""Patience: how long a rank waits for its collector before it writes its files itself."""

import time
from collections.abc import Callable

START_S = 20.0  # until a collector is up: an idle node starts one in 0.3 s, a busy one in ten or more
ANSWER_S = 30.0  # without a sign of work, for the answer to a call, if no one waits for it
MOST_ANSWER_S = 300.0  # with signs of work
# While `flush` or `close` waits. With what comes after it (the collector is killed, the files are opened, the
# rest is written), `close` stays below ten seconds.
AWAITED_S = 5.0
MOST_AWAITED_S = 30.0
CALLER_S = 30.0  # how long a caller of `flush` waits at most


class Patience:
    """Decides until when to wait for an answer.

    Any thread may call `hurry`; the other methods are for the thread that calls the collector.

    Args:
        clock: gives the time in seconds; all other times are on the same clock.
        start_s, answer_s, awaited_s: how long a rank may be without a collector that is up, how long that
            may take for an answer, and while a caller waits for it.

    Attributes:
        is_closing: whether a caller of `close` waits: then there is no time for another start.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        start_s: float = START_S,
        answer_s: float = ANSWER_S,
        awaited_s: float = AWAITED_S,
    ) -> None:
        self._clock = clock
        self.start_s, self.answer_s, self.awaited_s = start_s, answer_s, awaited_s
        self._seen_at = float("-inf")  # at work
        self._awaited_at = float("-inf")
        self.is_closing = False

    def hurry(self, *, is_closing: bool = False) -> None:
        """A caller of `flush`, or of `close`, waits from now on."""
        self._awaited_at = self._clock()
        self.is_closing |= is_closing

    def is_at_work(self) -> None:
        """The collector has not answered yet, but was seen to compute or to write."""
        self._seen_at = self._clock()

    def answer_until(self, begun: float) -> float:
        """When an answer must have come for which the rank has waited since `begun`.

        A collector that is seen at work has more time: on a busy machine, it waits for a processor.
        """
        quiet_since = max(begun, self._seen_at)
        until = min(quiet_since + self.answer_s, begun + MOST_ANSWER_S)
        if not self.is_closing and self._clock() - self._awaited_at >= CALLER_S:
            return until
        # While a caller waits, the shorter limits hold, counted from the beginning of its wait.
        begun = max(begun, self._awaited_at)
        return min(until, max(quiet_since, begun) + self.awaited_s, begun + MOST_AWAITED_S)
