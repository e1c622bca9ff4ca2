"""The aggregator process of a run without Ray: it learns from files what the ranks do, and ends with them.

`aggregate/process.py` starts it. It imports neither Ray nor a framework: it takes 0.3 s and 40 MB.
"""

import logging
import os
import signal
import sys
import threading
import time
from types import FrameType

from filelock import FileLock, Timeout

from distsummary.aggregate.aggregator import Aggregator
from distsummary.coordination import find_attempt, open_attempts
from distsummary.errors import DistSummaryError
from distsummary.run_dir import Manifest, RunDir
from distsummary.topology import is_alive

logger = logging.getLogger(__name__)

POLL_S = 0.5
MISSING_S = 30.0  # a rank that has not registered this long after the start is named
EVALUATION_S = 30.0  # how long the other ranks may evaluate after the last one that has
HUNG_S = 60.0  # how long a second aggregator waits for the first after the ranks have ended
STOP_S = 10.0  # how long the ranks may still take to end after the aggregator was asked to
LOCK = ".aggregator.lock"


class Follower:
    """Runs the run's Aggregator and tells it, in the place of the ranks, that they live or have ended.

    Only one follower of a run works; a second one waits until the first has ended, then goes on from the
    files, or ends when there is nothing left to do.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._asked_at = float("inf")
        self._manifest: Manifest = {}
        self._changed_at = self._recorded_at = time.monotonic()  # run.json, a rank
        self._since: dict[tuple[str, int], float] = {}  # role and attempt -> when it was seen first
        self._named: set[tuple[str, int]] = set()  # the attempts whose missing ranks were named

    def ask_to_end(self, number: int = 0, frame: FrameType | None = None) -> None:
        """End when the ranks have ended and are merged, or after STOP_S without that; handles signals."""
        self._asked_at = min(self._asked_at, time.monotonic())

    def follow(self) -> bool:
        """Return when the run is over and merged; False if ranks still record."""
        lock = FileLock(self._run_dir.base / LOCK)
        while True:
            try:
                lock.acquire(timeout=0)
                break
            except Timeout:
                now = time.monotonic()
                if self._is_over() and now - self._recorded_at > HUNG_S:
                    logger.warning(
                        "%s: the ranks have ended, but another aggregator (see run.json) has not merged them "
                        "for %g s; end that process, then run: distsummary merge %s",
                        self._run_dir.base, HUNG_S, self._run_dir.base,
                    )  # fmt: skip
                    return True
                if now - self._asked_at > STOP_S:
                    return False
                time.sleep(2 * POLL_S)
        try:
            return self._work()
        finally:
            lock.release()

    def _work(self) -> bool:
        ended = threading.Event()
        aggregator = Aggregator(str(self._run_dir.base), on_end=ended.set)
        pause_s = POLL_S
        while not ended.wait(pause_s):
            began = time.monotonic()
            if self._is_over():
                try:
                    aggregator.settle("")
                except Exception as error:  # a full disk, for example: the files of the ranks stay
                    logger.warning(
                        "%s could not be merged: %s; then run: distsummary merge %s",
                        self._run_dir.base, error, self._run_dir.base,
                    )  # fmt: skip
                    return True
            elif began - self._asked_at > STOP_S:
                return False
            else:
                aggregator.renew()
            pause_s = max(POLL_S, 20 * (time.monotonic() - began))  # a slow disk is not asked all the time
        return True

    def _is_over(self) -> bool:
        """Whether no rank records any more; names the ranks that never began."""
        now = time.monotonic()
        try:
            manifest = self._run_dir.read_manifest()
        except DistSummaryError as error:
            logger.debug("run.json cannot be read now: %s", error)
            return now - self._recorded_at > HUNG_S
        if manifest != self._manifest:
            self._manifest, self._changed_at = manifest, now
        is_over = all(
            [self._is_ended(entry, now) for entry in open_attempts(self._run_dir, manifest)]
        )  # looks at each
        if not is_over:
            self._recorded_at = now
        return is_over

    def _is_ended(self, entry: Manifest, now: float) -> bool:
        attempt = entry["role"], entry["attempt"]
        age_s = now - self._since.setdefault(attempt, now)
        missing = sorted(set(range(entry["world_size"])) - {int(rank) for rank in entry["ranks"]})
        if missing and age_s > MISSING_S and attempt not in self._named:
            self._named.add(attempt)
            self._name_missing(entry, missing)
        states = entry["ranks"].values()
        if any(known["state"] == "running" and is_alive(known) is not False for known in states):
            return False
        evaluated = entry.get("evaluated", [])
        if evaluated and len(evaluated) < len(states):
            return now - self._changed_at > EVALUATION_S
        return not missing or age_s > MISSING_S

    def _name_missing(self, entry: Manifest, missing: list[int]) -> None:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        logger.warning(
            "%s: of %d ranks, rank(s) %s%s have not begun to record here within %g s. Either only some ranks "
            "record, or they are still starting, or the directory is not on a disk that all nodes share "
            "(look for it on the other nodes)",
            self._run_dir.base, entry["world_size"], ", ".join(map(str, missing[:8])), more, MISSING_S,
        )  # fmt: skip

        def note(manifest: Manifest) -> None:
            found = find_attempt(manifest, entry["role"], entry["attempt"])
            found["missing"] = {"ranks": missing, "after_s": MISSING_S}

        try:
            self._run_dir.update_manifest(note)
        except DistSummaryError as error:
            logger.warning("run.json does not name them: %s", error)


def main() -> None:
    """Follow the run whose directory is the first argument; warnings go to stderr, with a prefix."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Prefixed("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # the terminal may be gone
    follower = Follower(RunDir(sys.argv[1]))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, follower.ask_to_end)
    try:
        os.nice(5)  # the training goes first
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
