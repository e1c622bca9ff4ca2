"""The aggregator process of a run without Ray: it learns from files what the ranks do, and ends with them.

`aggregate/process.py` starts it. It imports neither Ray nor a framework: it takes 0.3 s and 40 MB.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from types import FrameType

from filelock import Timeout

from distsummary.aggregate.aggregator import Aggregator
from distsummary.base.columns import quoted
from distsummary.base.guard import guarded_log
from distsummary.errors import DistSummaryError
from distsummary.rundir.attempts import open_attempts
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import read_run

logger = guarded_log(__name__)

POLL_S = 0.5
HUNG_S = 60.0  # how long a second aggregator waits for the first after the ranks have ended
STOP_S = 10.0  # how long the ranks may still take to end after the aggregator was asked to
PR_SET_PDEATHSIG = 1  # of prctl(2)
LOCK = ".aggregator.lock"


class Follower:
    """Runs the run's Aggregator, which no one calls here.

    Only one follower of a run works; a second one waits until the first has ended, then continues from the
    files, or ends when there is nothing left to do.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._asked_at = float("inf")
        self._recorded_at = time.monotonic()  # when a rank was last seen to run

    def ask_to_end(self, number: int = 0, frame: FrameType | None = None) -> None:
        """End when the ranks have ended and are merged, or after STOP_S without that; handles signals."""
        self._asked_at = min(self._asked_at, time.monotonic())

    def follow(self) -> bool:
        """Return when the run is over and merged; False if ranks still record."""
        lock = self._run_dir.lock(LOCK)
        # Another aggregator of this run may still be at work; it holds the lock until it ends.
        while True:
            try:
                lock.acquire(timeout=0)
                break
            except Timeout:
                if self._is_left_alone():
                    logger.warning(
                        "%s: the ranks have ended, but another aggregator (see run.json) has not merged them "
                        "for %g s; end that process, then run: distsummary merge %s",
                        self._run_dir.base, HUNG_S, quoted(self._run_dir.base),
                    )  # fmt: skip
                    return True
                if time.monotonic() - self._asked_at > STOP_S:
                    return False
                time.sleep(2 * POLL_S)
        try:
            ended = threading.Event()
            Aggregator(str(self._run_dir.base), on_end=ended.set)
            while not ended.wait(POLL_S):
                if time.monotonic() - self._asked_at > STOP_S:
                    return False
            return True
        finally:
            lock.release()

    def _is_left_alone(self) -> bool:
        """Whether the ranks ended long ago, and the aggregator that works has not merged them."""
        try:
            attempts = read_run(self._run_dir).attempts
            is_running = any(rank.state == "running" for one in attempts for rank in one.ranks)
            if is_running or not open_attempts(self._run_dir, self._run_dir.read_manifest()):
                self._recorded_at = time.monotonic()
        except DistSummaryError as error:
            logger.debug("the states of the ranks cannot be read now: %s", error)
        return time.monotonic() - self._recorded_at > HUNG_S


def main() -> None:
    """Follow the run whose directory is the first argument; warnings go to stderr, with a prefix."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Prefixed("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)
    # The terminal of stderr may be gone: a line that cannot be printed must not raise.
    logging.raiseExceptions = False
    follower = Follower(RunDir(sys.argv[1]))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, follower.ask_to_end)
    # If this process is stopped (SIGSTOP), the kernel lets it continue when the rank that started it ends.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    try:
        # The training has priority for the processors.
        os.nice(5)
        is_over = follower.follow()
    except Exception as error:
        logger.warning("the aggregator failed: %s: %s", type(error).__name__, error)
        is_over = False
    sys.exit(0 if is_over else 1)


class _Prefixed(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(f"[aggregator] {line}" for line in super().format(record).splitlines())


if __name__ == "__main__":
    main()
