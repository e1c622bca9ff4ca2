"""A rank's heartbeat: a thread that reports every few seconds how far the rank is, and receives new deals."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from distsummary.base.at_exit import DaemonThread
from distsummary.base.failures import Failures
from distsummary.rundir.deal import FIRST, Deal, Heartbeat
from distsummary.rundir.timeouts import BEAT_S

# The first heartbeat comes early: it has the number of steps, which the first deal needs.
FIRST_S = 1.0
WINDOW_S = 30.0  # the seconds per step are reported as the mean over this time
STOP_S = 1.0  # `stop` waits this long for a heartbeat that is being sent
# The ranks of a process send one after the other: each thread that computes takes the interpreter lock from
# the one that trains. One whose disk hangs holds the others up no longer than this.
TURN_S = 1.0

_turn = threading.Lock()


class Pulse:
    """Sends heartbeats until it is stopped; one that cannot be sent is counted, and the next one is tried.

    It is a thread of the training process, so that its end is the end of that process. It continues while the
    training hangs: the step that it reports then stays the same.

    Args:
        place: returns a heartbeat without the time of a step; `own_ms` and `wait_ms` are sums of all steps.
        report: sends a heartbeat; returns the deals of the run so far.
        follow: called with each deal that is new.
        failures: counts what raises.
        step: the newest step when the training begins; a resumed one has some behind it.
        deals: those before the training began.
        first_s, beat_s: seconds until the first heartbeat, and between two; None: FIRST_S, BEAT_S.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        place: Callable[[], Heartbeat],
        report: Callable[[Heartbeat], Sequence[Deal]],
        follow: Callable[[Deal], None],
        failures: Failures,
        step: int = 0,
        deals: Sequence[Deal] = (),
        *,
        first_s: float | None = None,
        beat_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._report, self._follow, self._failures = place, report, follow, failures
        self._first_s = FIRST_S if first_s is None else first_s
        self._beat_s = BEAT_S if beat_s is None else beat_s
        self._clock = clock
        self._version = FIRST  # of the newest deal
        self._follow_new(deals)
        # The steps of the newest heartbeats, and when they were sent: as many as WINDOW_S has.
        self._beats = deque([Beat(step, clock())], maxlen=1 + round(WINDOW_S / BEAT_S))
        self._is_stopped = threading.Event()
        self._thread = DaemonThread(self._run, "distsummary-heartbeat")
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for it at most a second."""
        self._is_stopped.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        wait_s = self._first_s
        while not self._is_stopped.wait(wait_s):
            wait_s = self._beat_s
            try:
                with _in_turn():
                    self._beat()
            # raised by the disk, the aggregator, or Ray that is just shut down, and perhaps not the next time
            except (Exception, SystemExit) as error:
                self._failures.count(f"heartbeat: {type(error).__name__}: {error}")

    def _beat(self) -> None:
        place = self._place()
        # The time before the first step does not count as time of steps.
        if place.step == self._beats[-1].step and len(self._beats) == 1:
            self._beats.clear()
        self._beats.append(Beat(place.step, self._clock(), place.own_ms, place.wait_ms))
        self._follow_new(self._report(with_means(place, self._beats)))

    def _follow_new(self, deals: Sequence[Deal]) -> None:
        for deal in deals:
            if deal.version > self._version:
                self._version = deal.version
                self._follow(deal)


@contextmanager
def _in_turn() -> Iterator[None]:
    """Let the block run alone, or after TURN_S all the same."""
    is_alone = _turn.acquire(timeout=TURN_S)
    try:
        yield
    finally:
        if is_alone:
            _turn.release()


def _after_fork_in_child() -> None:
    global _turn
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Beat(NamedTuple):
    """What was sent with a heartbeat; the milliseconds are sums of all steps so far."""

    step: int
    at_s: float
    own_ms: float | None = None
    wait_ms: float | None = None


def with_means(place: Heartbeat, beats: Sequence[Beat]) -> Heartbeat:
    """A heartbeat with the means of the steps from the first to the last that were sent; 0 s without any.

    What a rank waited is the difference of two clocks, and may come out as a little less than 0: 0, then.
    """
    first, last = beats[0], beats[-1]
    steps = last.step - first.step
    if steps <= 0:
        return place._replace(step_s=0.0, own_ms=None, wait_ms=None)
    own, waited = (
        None if now is None else max(0.0, now - (then or 0.0)) / steps
        for now, then in ((last.own_ms, first.own_ms), (last.wait_ms, first.wait_ms))
    )
    return place._replace(step_s=(last.at_s - first.at_s) / steps, own_ms=own, wait_ms=waited)
