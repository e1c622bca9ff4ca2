"""Ship: sends what the ranks of one host write to the home of their run, and brings its news back."""

import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distsummary.base.failures import error_line
from distsummary.base.guard import guarded_log
from distsummary.base.processes import is_alive
from distsummary.base.publish import ensure_directory, publish
from distsummary.errors import RunDirError
from distsummary.rundir.rank_manifest import read_entries
from distsummary.rundir.run_dir import RANK_MANIFEST, SHIP_BYTES, RunDir
from distsummary.storage.home import Home, HostState, Seen
from distsummary.storage.spool import Spool, is_small

logger = guarded_log(__name__)
ROUND_S = 1.0
MOST_BYTES = 16 << 20  # of one exchange
LINGER_S = 3.0  # it stays so long without a rank
LONGEST_S = 10.0  # between two tries while the home does not answer


@dataclass
class _Rank:
    process: Mapping[str, Any]
    directory: str
    attempt: int
    bulk_bytes: int
    has_entered: bool = False  # at home


class Ship:
    """Serves the ranks of one host; ends when all have left or died, and what they wrote has arrived.

    It removes the spool then.

    Any thread may call the methods.

    Args:
        base: the spool of this host. home: where the run is whole.
        on_end: called once, in the ship's own thread.
        round_s: seconds between two exchanges. linger_s: see LINGER_S.
    """

    def __init__(
        self,
        base: Path,
        home: Home,
        on_end: Callable[[], object],
        *,
        round_s: float = ROUND_S,
        linger_s: float = LINGER_S,
    ) -> None:
        ensure_directory(base)
        self._run_dir, self._home, self._on_end = RunDir(base), home, on_end
        self._round_s, self._linger_s = round_s, linger_s
        self._spool = Spool(base)
        self._ranks: dict[str, _Rank] = {}  # those that run and have called, also if no call has succeeded
        self._held: dict[str, int] = {}  # the directory of a rank -> the attempt in which it is written here
        self._seen = Seen()
        self._turn = threading.RLock()  # of one exchange at a time
        self._behind_since = 0.0  # when the home did not answer for the first time; 0: it answers
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distsummary-ship", daemon=True)
        self._thread.start()

    def enter(
        self, key: str, process: Mapping[str, Any], directory: str, attempt: int, bulk_bytes: int = SHIP_BYTES
    ) -> None:
        """A rank of this host begins, or still runs; raises what the home raises.

        When it returns, the spool has the run.json of the run, and what the rank reported on other hosts. If
        it raises, the ship tries again, and stays until it has sent what the rank wrote.

        Args:
            key: names the rank's session. process: for `is_alive`. bulk_bytes: see `Spool`.
        """
        rank = self._ranks.setdefault(key, _Rank(process, directory, attempt, bulk_bytes))
        with self._turn:
            if not rank.has_entered:
                self._enter(rank)
                self._send_all()

    def _enter(self, rank: _Rank) -> None:
        directory, attempt = rank.directory, rank.attempt
        if self._is_closed.is_set():
            raise RunDirError(f"the ship of {self._run_dir.base} has ended; call the next one")
        entered = self._home.enter(directory, attempt)
        if not self._has_begun(directory, attempt):
            self._mirror(directory, entered.files)
        self._spool.hold(directory, entered.lengths, entered.files)
        self._spool.bulk_bytes = rank.bulk_bytes
        self._held[directory] = attempt
        rank.has_entered = True

    def _has_begun(self, directory: str, attempt: int) -> bool:
        """Whether the rank records in this attempt already, on this host: then its files here are newer."""
        found = read_entries(self._run_dir.base / directory)
        return found is not None and found.entry(attempt) is not None

    def _mirror(self, directory: str, files: Mapping[str, bytes]) -> None:
        """Give a rank its small files, which it may have written on another host."""
        place = self._run_dir.base / directory
        ensure_directory(place)
        for path in place.iterdir():
            if is_small(path.name):
                path.unlink()
        for name, data in files.items():
            publish(self._run_dir.base / name, data)

    def leave(
        self, key: str, process: Mapping[str, Any], directory: str, attempt: int, bulk_bytes: int = SHIP_BYTES
    ) -> None:
        """A rank, given as to `enter`, has ended; returns when all that it wrote has arrived.

        Raises what the home raises.
        """
        with self._turn:
            # The ship that it entered may have been killed.
            self.enter(key, process, directory, attempt, bulk_bytes)
            self._send_all()
            self._ranks.pop(key, None)
            self._home.leave(directory)

    def sync(self) -> int:
        """Send what ranks left in the spool whose ship was ended; returns how many these are.

        Raises what the home raises.
        """
        found = 0
        for path in sorted(self._run_dir.base.glob(f"*rank_*/{RANK_MANIFEST}")):
            directory, entries = path.parent.name, read_entries(path.parent)
            if entries is None or not entries.attempts or directory in self._held:
                continue
            attempt = entries.attempts[-1]["attempt"]
            with self._turn:
                entered = self._home.enter(directory, attempt)
                self._spool.hold(directory, entered.lengths, entered.files)
                self._held[directory] = attempt
            found += 1
        self._send_all()
        return found

    def close(self) -> None:
        """End at once; what was not sent stays in the spool."""
        self._is_closed.set()
        self._thread.join()

    def _send_all(self) -> None:
        with self._turn:
            while self._send():
                pass

    def _send(self) -> bool:
        """One exchange; returns whether there is more to send."""
        changes, sent = self._spool.changes(MOST_BYTES)
        # When the ranks have left, the home may have ended; it is not started again for nothing.
        if not (changes or self._ranks or self._spool.kept or self._behind_since):
            return False
        kept = tuple(str(self._run_dir.base / name) for name in sorted(self._spool.kept))
        news = self._home.exchange(HostState(platform.node(), kept), self._held, changes, self._seen)
        self._spool.commit(sent)
        self._spool.again([*news.again])
        if news.manifest is not None:
            publish(self._run_dir.manifest_path, news.manifest)
        if news.alerts:
            with open(self._run_dir.alerts_path, "r+b" if self._seen.alerts else "wb") as file:
                file.seek(self._seen.alerts)
                file.write(news.alerts)
        self._seen = news.seen
        return sum(len(change.data) for change in changes) >= MOST_BYTES or bool(news.again)

    def _run(self) -> None:
        used_s, pause_s = time.monotonic(), self._round_s
        while not self._is_closed.wait(pause_s):
            began_s = time.monotonic()
            try:
                with self._turn:
                    for rank in list(self._ranks.values()):
                        if not rank.has_entered:
                            self._enter(rank)
                    self._send_all()
                if self._behind_since:
                    late_s = time.time() - self._behind_since
                    logger.warning("%s: its home answers again, after %.0f s", self._run_dir.base, late_s)
                self._behind_since, pause_s = 0.0, self._round_s
            except Exception as error:
                # Mostly a link that is cut, or a home that starts again: the spool keeps all until then.
                if not self._behind_since:
                    self._behind_since = time.time()
                    reason = error_line(error)
                    logger.warning("%s: nothing reaches its home now: %s", self._run_dir.base, reason)
                pause_s = min(LONGEST_S, 2 * pause_s)
            with self._turn:
                # A rank that arrives touches its spool before it enters.
                is_touched = time.time() - self._spool.touched_s() < self._linger_s
                if self._ranks or self._behind_since or is_touched or self._spool.is_written():
                    used_s = time.monotonic()
                for key, one in list(self._ranks.items()):
                    if one.has_entered and is_alive(one.process) is False:
                        del self._ranks[key]
                # All that was written until then is at home, also if this process was stopped meanwhile.
                if began_s - used_s > self._linger_s:
                    if not self._spool.kept:
                        self._spool.remove()
                    self._is_closed.set()
                    self._on_end()
                    return
