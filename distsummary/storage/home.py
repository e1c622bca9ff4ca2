"""Home: the directory in which a run is whole; it takes what hosts send, and gives news of the run."""

import fcntl
import os
import re
import shutil
import threading
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from distsummary.base.checked_json import parse_json
from distsummary.base.publish import ensure_directory, open_own, temporary_name
from distsummary.errors import DistSummaryError, RunDirError
from distsummary.events.segments import is_shortened
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.rank_manifest import encoded, read_entries
from distsummary.rundir.run_dir import RANK_MANIFEST, Manifest, RunDir
from distsummary.rundir.run_records import RankRecord
from distsummary.rundir.topology import Topology
from distsummary.storage.spool import GONE, GROW, OF_THE_RUN, PART, WHOLE, Change, grows, is_small

_PLACE = re.compile(r"(?:[a-z]+_)?rank_\d{5,7}|ckpt_dir|export_\d+", re.ASCII)
_FIRST = ("rank_00000", "")  # the directories of the first rank
MOST_ALERTS = 4 << 20  # bytes of alerts in one News


class Seen(NamedTuple):
    """What a host has of the run: when its run.json was written, and how much of alerts.jsonl it has."""

    manifest_ns: int = 0
    alerts: int = 0


class News(NamedTuple):
    """What is new at home: run.json, if it changed, what was appended to alerts.jsonl, and the state `seen`.

    `again`: files of which a part is not there any more; they have to be sent from their beginning.
    """

    manifest: bytes | None
    alerts: bytes
    seen: Seen
    again: tuple[str, ...] = ()


class HostState(NamedTuple):
    """A host's name, and the paths of its files that are too large to be sent."""

    name: str
    kept: tuple[str, ...] = ()


class Entered(NamedTuple):
    """What a host needs of a rank that begins on it: its small files, and how long its event files are."""

    files: dict[str, bytes]
    lengths: dict[str, int]


class Home(Protocol):
    """Where a run is whole. What is sent again does no harm."""

    def enter(self, directory: str, attempt: int) -> Entered:
        """From now on, this host writes the directory of a rank, which it records in this attempt."""

    def exchange(
        self, host: HostState, held: Mapping[str, int], changes: Sequence[Change], seen: Seen
    ) -> News:
        """Take changes. `held`: the directory of a rank -> the attempt in which the host writes it."""

    def leave(self, directory: str) -> None:
        """The rank has ended, and all that it wrote was sent."""


class DirectoryHome:
    """A Home that is a run dir. Any thread may call the methods.

    Of two hosts that write the directory of one rank, the one with the later attempt is right: an older ship
    that wakes up replaces nothing. Event files have names of their own, and are taken from both; in a rank's
    manifest, each host is right about the attempt that it writes.

    Raises RunDirError for names outside of the run dir and of what no rank writes, OSError for a full disk.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir, self._base = run_dir, run_dir.base
        # By directory: of two messages of one host, the first may still be written when the second arrives.
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._attempts: dict[str, int] = {}  # the directory of a rank -> its newest attempt
        # Directory -> attempts of its rank that the host that writes it now does not know, or not to the end;
        # the directories, with the attempt of that host, of which these were looked for.
        self._others: defaultdict[str, dict[int, Manifest]] = defaultdict(dict)
        self._compared: set[tuple[str, int]] = set()
        self._open: dict[str, int] = {}  # event files, locked as by their writers on the other hosts
        self._paths: dict[str, Path] = {}  # those of names that were checked
        # Where files are until they have arrived whole. A merge removes no directory with another one in it.
        self._staging = temporary_name(self._base) / "parts"
        self._parts: dict[tuple[str, int, bool], Path] = {}  # by name, rights, and whether it comes at once

    def claim(self, topology: Topology, attempt: int) -> None:
        """Enter a rank of another host, whose ship may start later, in an attempt; see LocalCoordinator."""
        directory = self._run_dir.writer_name(topology.role, topology.rank, topology.world_size)
        with self._locks[directory]:
            LocalCoordinator(self._run_dir).claim(topology, attempt)
            known = read_entries(self._base / directory)
            entry = known.entry(attempt) if known else None
            if entry is not None:
                self._others[directory][attempt] = entry
        self._run_dir.mark_sent(topology.host)

    def enter(self, directory: str, attempt: int) -> Entered:
        """See Home."""
        place = self._path(f"{directory}/{RANK_MANIFEST}" if directory else RANK_MANIFEST).parent
        with self._locks[directory]:
            self._attempts[directory] = max(attempt, self._newest(directory))
        files, lengths = {}, {}
        # The first rank alone lists the checkpoints.
        places = [place, self._run_dir.ckpt_dir] if directory in _FIRST else [place]
        for path in (path for place in places if place.is_dir() for path in place.iterdir()):
            name = str(path.relative_to(self._base))
            if grows(name):
                lengths[name] = path.stat().st_size
            elif is_small(name):
                files[name] = path.read_bytes()
        return Entered(files, lengths)

    def exchange(
        self, host: HostState, held: Mapping[str, int], changes: Sequence[Change], seen: Seen
    ) -> News:
        """See Home."""
        again = []
        self._run_dir.mark_sent(host.name, host.kept)
        for change in changes:
            directory = change.name.partition("/")[0] if "/" in change.name else ""
            with self._locks[directory]:
                right = self._right(change, directory, held)
                if right is not None and not self._take(right):
                    again.append(change.name)
        return self._news(seen, tuple(dict.fromkeys(again)))

    def leave(self, directory: str) -> None:
        """See Home."""
        with self._locks[directory]:
            for name in [name for name in self._open if os.path.dirname(name) == directory]:
                self._release(name)

    def close(self) -> None:
        """Remove what did not arrive whole."""
        shutil.rmtree(self._staging.parent, ignore_errors=True)

    def _right(self, change: Change, directory: str, held: Mapping[str, int]) -> Change | None:
        """What to take of a change; None if another host writes the file now."""
        is_late, attempt = self._is_late(change.name, directory, held), held.get(directory, -1)
        is_manifest = os.path.basename(change.name) == RANK_MANIFEST and change[1:3] == (WHOLE, 0)
        is_compared = (directory, attempt) in self._compared and not self._others[directory]
        if not is_manifest or (is_compared and not is_late):
            return None if is_late else change
        try:
            sent = parse_json(change.data, RankRecord, name=change.name, remedy="")
            known = read_entries(self._path(change.name).parent)
        except DistSummaryError:
            return None if is_late else change
        own = {entry["attempt"]: entry for entry in sent["attempts"]}
        here = {entry["attempt"]: entry for entry in known.attempts} if known else {}
        others = self._others[directory]
        if is_late:
            if attempt not in own:
                return None
            others[attempt] = own[attempt]
            found = here | {attempt: own[attempt]}
        else:
            if (directory, attempt) not in self._compared:
                others |= {number: entry for number, entry in here.items() if number not in own}
                self._compared.add((directory, attempt))
            others.pop(attempt, None)
            found = own | others
        entries = [found[number] for number in sorted(found)]
        return change._replace(data=encoded(sent["role"], sent["rank"], entries))

    def _is_late(self, name: str, directory: str, held: Mapping[str, int]) -> bool:
        """Whether another host writes a file now."""
        if name in self._open or grows(name):
            return False
        if directory == "ckpt_dir":
            if not is_small(name):
                return False
            # The first rank lists the checkpoints.
            directory = next((first for first in _FIRST if first in held), _FIRST[0])
        return held.get(directory, -1) < self._newest(directory)

    def _newest(self, directory: str) -> int:
        """The newest attempt of the rank that a directory belongs to; -1 if it has none."""
        if directory not in self._attempts:
            found = None
            with suppress(DistSummaryError):
                found = read_entries(self._base / directory)
            self._attempts[directory] = found.attempts[-1]["attempt"] if found and found.attempts else -1
        return self._attempts[directory]

    def _take(self, change: Change) -> bool:
        """Write a change; False if what comes before it is not there."""
        if change.kind == GROW and change.name in self._open:
            return self._put(self._open[change.name], change)
        path = self._paths.get(change.name) or self._path(change.name)
        if change.kind == GONE:
            self._release(change.name)
            # Who clears the disk of a host, as a cleaner of /tmp does, takes no event from the run.
            if not grows(change.name) or not path.exists() or not path.stat().st_size:
                path.unlink(missing_ok=True)
            return True
        if change.name not in self._paths:
            ensure_directory(path.parent)
            self._paths[change.name] = path
        if change.kind == GROW:
            with suppress(FileNotFoundError):
                if is_shortened(path):
                    # The message was under way when the file was replaced.
                    return True
            self._open[change.name] = self._locked(path, change.mode)
            return self._put(self._open[change.name], change)
        is_whole = change.kind == WHOLE and change.at == 0
        key = change.name, change.mode, is_whole
        if key not in self._parts:
            ensure_directory(self._staging)
            self._parts[key] = self._staging / uuid.uuid4().hex
        part = self._parts[key]
        is_first = change.kind == PART and change.at == 0
        place = open_own(part, os.O_RDWR | (os.O_TRUNC if is_first else 0), change.mode)
        try:
            if not self._put(place, change):
                return False
            if is_whole:
                os.ftruncate(place, len(change.data))
        finally:
            os.close(place)
        if change.kind == WHOLE:
            # An event file may be replaced as well, see `events.retention`.
            self._release(change.name)
            self._show(part, path, is_kept=is_whole and is_small(change.name))
        return True

    def _show(self, part: Path, path: Path, *, is_kept: bool) -> None:
        """Give a file that is whole its name; `is_kept`: the file that had it is the next part.

        So the blocks of a small file that is replaced every few seconds are used again: on ext4, a file with
        new blocks takes ten times the CPU.
        """
        old = part.with_suffix(".old")
        try:
            if is_kept:
                os.link(path, old)
        except OSError:
            # There was no such file, or the file system has no links.
            is_kept = False
        os.replace(part, path)
        if is_kept:
            os.replace(old, part)

    def _put(self, place: int, change: Change) -> bool:
        # What lies beyond the end would leave a hole.
        if change.at > os.fstat(place).st_size:
            return False
        data, at = memoryview(change.data), change.at
        while data:
            count = os.pwrite(place, data, at)
            data, at = data[count:], at + count
        return True

    def _locked(self, path: Path, mode: int) -> int:
        place = open_own(path, os.O_RDWR, mode)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(place)
            raise RunDirError(f"{path} is written by another process of this host; end it") from error
        return place

    def _release(self, name: str) -> None:
        if name in self._open:
            os.close(self._open.pop(name))

    def _path(self, name: str) -> Path:
        """The path of a file by its name, which another host gave."""
        parts = name.split("/")
        is_plain = all(part and not part.startswith(".") and "\0" not in part for part in parts)
        if not is_plain or (name in OF_THE_RUN if len(parts) == 1 else not _PLACE.fullmatch(parts[0])):
            raise RunDirError(f"a host sent a file that no rank writes, {name[:200]!r}; it is not taken")
        path = self._base.joinpath(*parts)
        if Path(os.path.realpath(path.parent)) != path.parent:
            raise RunDirError(f"{path.parent} leads out of the run dir by a symbolic link; remove it")
        return path

    def _news(self, seen: Seen, again: tuple[str, ...]) -> News:
        manifest, alerts, (manifest_ns, known) = None, b"", seen
        with suppress(FileNotFoundError):
            if (now := os.stat(self._run_dir.manifest_path).st_mtime_ns) != manifest_ns:
                manifest, manifest_ns = self._run_dir.manifest_path.read_bytes(), now
        with suppress(FileNotFoundError):
            if os.stat(self._run_dir.alerts_path).st_size > known:
                with open(self._run_dir.alerts_path, "rb") as file:
                    file.seek(known)
                    alerts = file.read(MOST_ALERTS)
        return News(manifest, alerts, Seen(manifest_ns, known + len(alerts)), again)
