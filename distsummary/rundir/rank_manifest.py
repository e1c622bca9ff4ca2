"""The manifest.json of a rank: a small file in which the rank reports its own state, and no one else writes.

It lies in the rank's directory, for a run of one rank in the run dir itself:

    {"format": 1, "role": "train", "rank": 2, "attempts": [{"attempt": 0, <fields of the Topology>,
     "state": "running", "started", "ended", "exit", "error", "health": {}, "heartbeat": {}}]}

Thousands of ranks write theirs at once without waiting for each other. The file is replaced as a whole, so a
reader never sees half of it. Times are those of the file system's clock, which is one for all nodes.
"""

import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from distsummary.base.checked_json import MOST_BYTES, damaged, parse_json
from distsummary.base.many_files import read_each
from distsummary.base.publish import ensure_directory, replacing
from distsummary.errors import DistSummaryError, InvalidValueError, RunDirError, reason
from distsummary.rundir.deal import Heartbeat
from distsummary.rundir.run_dir import RANK_MANIFEST as RANK_MANIFEST
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.run_records import RankRecord
from distsummary.rundir.timeouts import CLAIM_S
from distsummary.rundir.topology import Topology

FORMAT = 1
_REMEDY = "rebuild it with: distsummary fsck --repair"
_BLOCK = 512  # bytes, the unit of st_blocks

_locks: dict[Path, threading.Lock] = {}  # a rank's threads change its file in turn
# A thread of the parent may hold a lock at the fork, which nothing would release in the child.
os.register_at_fork(after_in_child=_locks.clear)


class RankEntries(NamedTuple):
    """What a rank's file says: the entries of its attempts.

    `last_seen`: when it was last written, in seconds since the epoch by the file system's clock. `shown_ns`:
    when it got its name, and so could be seen, in nanoseconds. `error`: why it cannot be read; empty if it
    was.
    """

    last_seen: float
    attempts: list[Manifest]
    error: str = ""
    shown_ns: int = 0

    def entry(self, attempt: int) -> Manifest | None:
        """The rank's entry of an attempt; None if it has none."""
        return next((entry for entry in self.attempts if entry["attempt"] == attempt), None)


class RankManifest:
    """The manifest.json of one rank, for the process that is this rank.

    The methods raise RunDirError if the file cannot be written.

    Args:
        ahead_s: how much further the clock of the run's home is than that of this disk.
    """

    def __init__(self, run_dir: RunDir, topology: Topology, ahead_s: float = 0.0) -> None:
        self._topology, self._ahead_s = topology, ahead_s
        self._directory = run_dir.writer_dir(topology.role, topology.rank, topology.world_size)
        self.path = self._directory / RANK_MANIFEST

    def claim(self, attempt: int, check: Callable[[RankEntries], None]) -> None:
        """Enter this process as the rank of an attempt, in state running.

        `check` is called with what the file says, and raises if another living process is the rank. Of two
        processes that claim a rank at the same time, the second is checked after the first has entered.
        """
        ensure_directory(self._directory)
        # The lock file keeps other processes away, the turn other threads of this one.
        with RunDir(self._directory).locked("rank", timeout_s=CLAIM_S), self._turn():
            record = self._read()
            check(record)
            self._write(record.attempts, attempt, lambda entry, now: None)

    def beat(self, attempt: int, heartbeat: Heartbeat) -> None:
        """Write a heartbeat, unless the rank has reported its end or has begun a later attempt."""

        def report(entry: Manifest, now: float) -> None:
            entry["heartbeat"] = {"time": now, **heartbeat._asdict()}

        with self._turn():
            attempts = self._read().attempts
            # A heartbeat that comes late must not revive an attempt that the rank has left.
            if attempts and attempts[-1]["attempt"] > attempt:
                return
            if all(entry["attempt"] != attempt or entry["state"] == "running" for entry in attempts):
                self._write(attempts, attempt, report)

    def leave(self, attempt: int, state: str, *, error: str, health: Mapping[str, int | str]) -> None:
        """Report how the rank ended, and as `step` in its health the newest step, which ends the heartbeats.

        Raises InvalidValueError if the rank never claimed its place in the attempt.
        """

        def report(entry: Manifest, now: float) -> None:
            entry.update(state=state, ended=now, error=error, health=dict(health))
            if "step" in health:
                entry["heartbeat"] |= {"time": now, "step": health["step"]}

        with self._turn():
            attempts = self._read().attempts
            if all(entry["attempt"] != attempt for entry in attempts):
                raise InvalidValueError(
                    f"rank {self._topology.rank} never joined attempt {attempt} of role "
                    f"{self._topology.role}; register it first"
                )
            self._write(attempts, attempt, report, is_durable=True)

    def _turn(self) -> threading.Lock:
        return _locks.setdefault(self.path, threading.Lock())

    def _read(self) -> RankEntries:
        return read_entries(self._directory) or RankEntries(0.0, [])

    def _write(
        self,
        attempts: list[Manifest],
        attempt: int,
        change: Callable[[Manifest, float], None],
        *,
        is_durable: bool = False,
    ) -> None:
        """Change the entry of an attempt, which is made if the file has none, and replace the file."""

        def changed(now: float) -> bytes:
            known = attempts
            entry = next((entry for entry in known if entry["attempt"] == attempt), None)
            if entry is None:
                entry = new_entry(self._topology, attempt, "running", started=now)
                known = sorted([*known, entry], key=lambda entry: int(entry["attempt"]))
            change(entry, now)
            return encoded(self._topology.role, self._topology.rank, known)

        try:
            with replacing(self.path, is_durable=is_durable) as temporary, open(temporary, "xb") as file:
                file.write(changed(os.fstat(file.fileno()).st_mtime + self._ahead_s))
        except RunDirError:
            # A full disk may have room for the new text only in the place of the old one.
            if not self._overwrite(changed, is_durable=is_durable):
                raise

    def _overwrite(self, changed: Callable[[float], bytes], *, is_durable: bool) -> bool:
        """Write into the old file if its blocks have room: a full disk may have none for a second file."""
        try:
            with open(self.path, "r+b", buffering=0) as file:
                # Touching the file asks for the file system's time.
                os.utime(file.fileno())
                old = os.fstat(file.fileno())
                data = changed(old.st_mtime + self._ahead_s)
                if len(data) > old.st_blocks * _BLOCK:
                    return False
                # One call writes all of it; spaces, with which JSON may end, cover the rest of the old text.
                file.write(data.ljust(old.st_size))
                if is_durable:
                    os.fsync(file.fileno())
                return True
        except OSError:
            return False


def new_entry(topology: Topology, attempt: int, state: str, *, started: float) -> Manifest:
    """A rank's entry of an attempt that it has just joined."""
    place = asdict(topology)
    del place["after"]
    own = {"state": state, "started": started, "ended": None, "exit": None, "error": ""}
    return {"attempt": attempt, **place, **own, "health": {}, "heartbeat": {}}


def encoded(role: str, rank: int, attempts: Iterable[Manifest]) -> bytes:
    """The bytes of a rank's file."""
    return json.dumps({"format": FORMAT, "role": role, "rank": rank, "attempts": [*attempts]}).encode()


def read_entries(directory: Path) -> RankEntries | None:
    """What the file of the rank in a directory says; None if there is none.

    Raises DamagedFileError, or RunDirError if the operating system cannot read it.
    """
    path = directory / RANK_MANIFEST
    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            data = file.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {reason(error)}") from error
    found = parse_json(data, RankRecord, name=str(path), remedy=_REMEDY)
    if found["format"] != FORMAT:
        raise damaged(str(path), f"is not the manifest of a rank in format {FORMAT}", _REMEDY)
    # A rename changes the ctime, which so says when the file got its name.
    return RankEntries(stat.st_mtime, found["attempts"], shown_ns=stat.st_ctime_ns)


def read_ranks(
    run_dir: RunDir, role: str, world_size: int, ranks: Collection[int] | None = None
) -> dict[int, RankEntries]:
    """Rank -> what its file says, for those that have one.

    Args:
        world_size: of an attempt: one rank alone has its file in another place than several.
        ranks: those to look at; None: all that have a directory.
    """
    if world_size == 1:
        places = {0: run_dir.writer_dir(role, 0, 1)}
    elif ranks is None:
        places = run_dir.rank_dirs(role)
    else:
        places = {rank: run_dir.writer_dir(role, rank, world_size) for rank in ranks}
    found = zip(places, read_each(_read_one, [*places.values()]), strict=True)
    return {rank: record for rank, record in found if record is not None}


def ranks_of(run_dir: RunDir, attempt: Manifest, ranks: Collection[int] | None = None) -> dict[str, Manifest]:
    """Rank -> its entry of an attempt, with `last_seen` and `shown_ns` (see RankEntries), if it entered it.

    A file that cannot be read gives an entry in state unknown. `ranks`: see `read_ranks`.
    """
    return entries_of(attempt, read_ranks(run_dir, attempt["role"], attempt["world_size"], ranks))


def entries_of(attempt: Manifest, record: Mapping[int, RankEntries]) -> dict[str, Manifest]:
    """See `ranks_of`; `record` is what `read_ranks` returned for the attempt's role and world size."""
    found: dict[str, Manifest] = {}
    for rank, one in record.items():
        entry = one.entry(attempt["attempt"])
        if rank >= attempt["world_size"]:
            continue
        if entry is not None:
            found[str(rank)] = entry | {"last_seen": one.last_seen, "shown_ns": one.shown_ns}
        elif one.error:
            found[str(rank)] = {"state": "unknown", "error": one.error, "last_seen": 0.0, "shown_ns": 0}
    return found


def _read_one(directory: Path) -> RankEntries | None:
    try:
        return read_entries(directory)
    except DistSummaryError as error:
        return RankEntries(0.0, [], str(error))
