"""A run on disk: the paths of its files, its manifest (run.json, the list of its attempts) and its locks."""

import hashlib
import json
import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from filelock import FileLock, Timeout

from distsummary.base.checked_json import check_kind, read_json
from distsummary.base.checks import anchored, check_type, is_url
from distsummary.base.columns import quoted
from distsummary.base.guard import guarded_log
from distsummary.base.publish import ensure_directory, is_gone, publish, remove_leftovers, temporary_name
from distsummary.errors import (
    DamagedFileError,
    DistSummaryError,
    InvalidValueError,
    MissingRunDirError,
    RunDirError,
    reason,
)
from distsummary.rundir.run_records import MOST_RANKS, RunRecord

MANIFEST = "run.json"
STUCK = "stuck.json"  # in the directory of a rank: where it stands, while a step is late
CRASH = "crash.txt"  # in the directory of a rank: its stacks, if native code ended its process
FORMAT = 2  # of the manifest
RANK_MANIFEST = "manifest.json"  # in the directory of a rank: see rank_manifest.py
TIME = "{time}"  # placeholder in the path given to `ds.init`
LOCK_TIMEOUT_S = 60.0
_LOOK_AGAIN_S = (0.02, 0.1)  # while another process makes a change that may be the one wanted
PROBE_BYTES = 4096  # written and removed by `create`
# Bytes of large files, such as checkpoints, that a host that does not see the run dir sends by default.
SHIP_BYTES = 1 << 30
_HOST = ".host-"  # before the name of a host that does not see the run dir
LANDSCAPE_JOURNAL = re.compile(r"journal-[0-9a-f]{16}\.bin")
_RANK_DIR = re.compile(r"(?:(?P<role>[a-z]+)_)?rank_(?P<rank>\d{5,7})", re.ASCII)
_NUMBER = re.compile(r"0|[1-9]\d{0,5}", re.ASCII)
# What the documents say, too.
STORES = (
    "record to a disk that takes appends, local or shared by all nodes, and copy the run to the object store "
    "afterwards: a mounted object store takes none"
)
_RAY_COPY = re.compile(r"/session_[^/]+/runtime_resources/")  # of Ray's temporary directory
_REMEDY = (
    "rebuild it with: distsummary fsck --repair; or end the run's processes and remove the file: the run "
    "then gets a new id, and new attempts are numbered after those in the event files"
)

Manifest = dict[str, Any]

guarded_log("filelock")  # logs each lock that is taken


class RunDir:
    """The directory of one run.

    A run of one rank keeps its files in the run dir itself. A run of several ranks keeps the files of each
    rank in `rank_00000/`, `rank_00001/` and so on, and the files of the merged run in the run dir. These are
    for training; processes of other roles (eval, landscape) have directories of their own.

    Args:
        path: the directory. It need not exist before `create`. `~` is expanded; a URL raises
            InvalidValueError.
        home: where the run is whole, a path on another node; None: here.
    """

    def __init__(self, path: str | os.PathLike[str], *, home: Path | None = None) -> None:
        check_type("run_dir", path, (str, os.PathLike))
        text = os.fspath(path)
        if not text.strip():
            raise InvalidValueError(f"run_dir must not be blank, got {text!r}; name a directory")
        if is_url(text):
            raise InvalidValueError(f"run_dir must be a directory of a file system, got {text!r}; {STORES}")
        self.base = Path(os.path.realpath(os.path.expanduser(text)))
        self.home, self.is_away = home or self.base, home is not None

    def __fspath__(self) -> str:
        return str(self.base)

    def __repr__(self) -> str:
        return f"RunDir({str(self.base)!r})"

    @property
    def alerts_path(self) -> Path:
        """The file of the ranks that were reported as slow, stuck or sick: one JSON object a line."""
        return self.base / "alerts.jsonl"

    @property
    def labels_path(self) -> Path:
        """The name, group, tags and notes that were changed after the run had begun."""
        return self.base / "labels.json"

    @property
    def manifest_path(self) -> Path:
        """`run.json`."""
        return self.base / MANIFEST

    def mark_sent(self, host: str, kept: Iterable[str] | None = None) -> None:
        """Note that a host that does not see the run dir sends something now.

        `kept`: the paths of files of the run that stay on that host; None: as before.
        """
        path, data = self._host_file(host), "\n".join(kept or ()).encode()
        with suppress(FileNotFoundError):
            if kept is None or path.stat().st_size == len(data):
                os.utime(path)
                return
        publish(path, data)

    def kept(self) -> dict[str, list[str]]:
        """By the name of a host that does not see the run dir: the files of the run that stay there."""
        found = {}
        names = os.listdir(self.base) if self.base.is_dir() else []
        for name in sorted(name for name in names if name.startswith(_HOST)):
            with suppress(OSError):
                text = (self.base / name).read_text(encoding="utf-8", errors="replace")
                if lines := text.splitlines():
                    found[unquote(name.removeprefix(_HOST))] = lines
        return found

    def sent_at(self, host: str) -> float | None:
        """When such a host last sent something, in seconds since the epoch; None if it never did."""
        try:
            return self._host_file(host).stat().st_mtime
        except OSError:
            return None

    def _host_file(self, host: str) -> Path:
        return self.base / f"{_HOST}{quote(host, safe='')[:200]}"

    @property
    def landscape_dir(self) -> Path:
        """The loss grids: event files, .npz files and pictures."""
        return self.base / "landscape"

    def landscape_journal(self, plan: Mapping[str, str]) -> Path:
        """The journal of the landscape that `plan` identifies; a hash of `plan` is in its file name."""
        text = json.dumps(dict(plan), sort_keys=True)
        return self.landscape_dir / f"journal-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.bin"

    def landscape_file(self, tag: str, suffix: str) -> Path:
        """The file of one loss grid: `landscape_[1, 4]` and `.npz` make `landscape_1-4.npz`."""
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", tag.replace(", ", "-")).strip("_")
        return self.landscape_dir / f"{name}{suffix}"

    @property
    def ckpt_dir(self) -> Path:
        """The checkpoints of the trajectory and train_metadata.json."""
        return self.base / "ckpt_dir"

    def writer_dir(self, role: str, rank: int, world_size: int) -> Path:
        """The directory that the writer of a rank writes to."""
        prefix = "" if role == "train" else f"{role}_"
        if world_size == 1:
            return self.base if role == "train" else self.base / role
        return self.base / f"{prefix}rank_{rank:05d}"

    def writer_name(self, role: str, rank: int, world_size: int) -> str:
        """The name of that directory in the run dir; empty if it is the run dir itself."""
        place = self.writer_dir(role, rank, world_size)
        return "" if place == self.base else place.name

    def is_rank_dir(self, path: Path) -> bool:
        """Whether a directory is that of one of several ranks, by its name."""
        return path.parent == self.base and _RANK_DIR.fullmatch(path.name) is not None

    def rank_dirs(self, role: str = "train") -> dict[int, Path]:
        """The existing directories of a role's ranks, as a dict rank -> path; empty for a run of one rank."""
        found = {}
        try:
            with os.scandir(self.base) as entries:
                for entry in entries:
                    match = _RANK_DIR.fullmatch(entry.name)
                    if match is None or (match["role"] or "train") != role:
                        continue
                    if int(match["rank"]) < MOST_RANKS and entry.is_dir(follow_symlinks=False):
                        found[int(match["rank"])] = self.base / entry.name
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return dict(sorted(found.items()))

    def numbered_dirs(self) -> dict[int, Path]:
        """Number -> the directory that a script names `path + str(number)`; empty if there is none.

        These are numbers in the run dir, as for the path `runs/`, or else next to it, as for `runs/summary`.
        """
        inside = {number: path for path in _children(self.base) if (number := _number(path.name)) is not None}
        adjacent = {
            number: path
            for path in _children(self.base.parent)
            if path.name.startswith(self.base.name)
            and (number := _number(path.name[len(self.base.name) :])) is not None
        }
        return dict(sorted((inside or adjacent).items()))

    def remedy_if_missing(self) -> str:
        """What a message advises if there is no such directory."""
        if not (apart := self.numbered_dirs()):
            return "name the directory of a run"
        first = next(iter(apart.values()))
        return (
            f"if each rank wrote to a directory such as {first}, first: distsummary adopt {quoted(self.base)}"
        )

    def create(self) -> "RunDir":
        """Make the directory and check that it can be written; raises RunDirError with the path if not."""
        ensure_directory(self.base)
        probe = temporary_name(self.base)
        try:
            remove_leftovers(self.base)
            try:
                with open(probe, "xb") as file:
                    # A full disk may still take an empty file, so that the probe needs some bytes.
                    file.write(bytes(PROBE_BYTES))
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise RunDirError(
                f"the run dir {self.base} cannot be written: {reason(error)}, or choose another directory"
            ) from error
        return self

    def make_private(self) -> None:
        """Let its owner alone read the run and what is made in it from now on; raises RunDirError."""
        try:
            os.chmod(self.base, 0o700)
        except OSError as error:
            raise RunDirError(
                f"the run dir {self.base} cannot be made private: {error.strerror}; let its owner do it"
            ) from error

    def read_manifest(self) -> Manifest:
        """The manifest, or an empty one if the directory has none.

        Raises DamagedFileError, or RunDirError if the operating system cannot read it.
        """
        path = self.manifest_path
        try:
            manifest = read_json(path, dict[str, Any], remedy=_REMEDY)
        except FileNotFoundError:
            return {"format": FORMAT, "run_id": "", "created": 0.0, "state": "unknown", "attempts": []}
        except OSError as error:
            raise RunDirError(f"{path} cannot be read: {reason(error)}") from error
        # The format comes first: a record of another version would be taken for a damaged one.
        if isinstance(manifest.get("attempts"), list) and manifest.get("format") != FORMAT:
            raise DamagedFileError(
                f"{path} has format {repr(manifest.get('format'))[:60]}, this version of distsummary "
                f"reads and writes format {FORMAT}; {_REMEDY}; a run of another version needs that version"
            )
        found: Manifest = check_kind(manifest, RunRecord, name=str(path), remedy=_REMEDY)
        return {"created": 0.0, "state": "unknown"} | found

    def update_manifest(
        self,
        change: Callable[[Manifest], None],
        *,
        is_done: Callable[[Manifest], bool] | None = None,
        timeout_s: float = LOCK_TIMEOUT_S,
    ) -> Manifest:
        """Apply `change` to the manifest under the run's lock, publish the result and return it.

        With `is_done`, nothing is changed if it returns True for the manifest. It is asked again whenever
        another process holds the lock: of a thousand ranks that would all make the same change, one makes it,
        and the others do not wait for the lock in turn.

        Raises RunDirError if the lock cannot be taken within `timeout_s` seconds or the file cannot be
        written, and whatever `change` and `is_done` raise; in all these cases the manifest stays unchanged.
        """
        lock = self.lock(".lock")
        until = time.monotonic() + timeout_s
        try:
            while True:
                if is_done is not None and is_done(manifest := self.read_manifest()):
                    return manifest
                try:
                    lock.acquire(timeout=timeout_s if is_done is None else 0)
                    break
                except Timeout:
                    if is_done is None or time.monotonic() > until:
                        raise
                # Not from the training's generator, whose sequence must stay the same.
                time.sleep(random.SystemRandom().uniform(*_LOOK_AGAIN_S))
            try:
                # Another process may have made the change before this one got the lock.
                manifest = self.read_manifest()
                if is_done is not None and is_done(manifest):
                    return manifest
                is_new = not manifest["run_id"]
                if is_new:
                    manifest |= {"run_id": secrets.token_hex(8), "created": time.time(), "state": "running"}
                manifest.setdefault("nonce", secrets.token_hex(8))
                change(manifest)
                # A new run.json without attempts would hide that the old one was removed.
                if is_new and not manifest["attempts"]:
                    self.refuse_removed_manifest()
                publish(self.manifest_path, json.dumps(manifest, indent=1).encode())
                return manifest
            finally:
                lock.release()
        except Timeout as error:
            raise RunDirError(
                f"the lock {self.base / '.lock'} was held for {timeout_s:g} s; "
                "another process of the run hangs; end it"
            ) from error
        except DistSummaryError:
            # Some of these errors are OSErrors, too, which the next clause would report in other words.
            raise
        except OSError as error:
            raise RunDirError(f"{self.manifest_path} cannot be written: {reason(error)}") from error

    def lock(self, name: str) -> FileLock:
        """A lock file in the run dir; raises MissingRunDirError if that is gone."""
        self.refuse_missing()
        return FileLock(self.base / name)

    def refuse_missing(self) -> None:
        """Raise MissingRunDirError if the run dir was removed or renamed."""
        if is_gone(self.base):
            raise MissingRunDirError(f"the run dir {self.base} was removed or renamed")

    def refuse_removed_manifest(self) -> None:
        """Raise RunDirError if ranks have registered in this run dir, and run.json is not there."""
        directories = (self.base, *self.rank_dirs().values(), *self.rank_dirs("eval").values())
        if not self.manifest_path.exists() and any((one / RANK_MANIFEST).exists() for one in directories):
            raise RunDirError(
                f"{self.manifest_path} was removed; ranks keep recording, but nothing is merged. Rebuild it "
                f"with: distsummary fsck --repair {quoted(self.base)}"
            )

    @contextmanager
    def locked(self, purpose: str, *, timeout_s: float | None = None) -> Iterator[None]:
        """Hold the run's lock named `purpose` for the block; raises RunDirError if it cannot be taken.

        `timeout_s`: None: LOCK_TIMEOUT_S.
        """
        timeout_s = LOCK_TIMEOUT_S if timeout_s is None else timeout_s
        lock = self.lock(f".{purpose}.lock")
        path = self.base / f".{purpose}.lock"
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout as error:
            raise RunDirError(
                f"the lock {path} was held for {timeout_s:g} s by another process; end it or try again later"
            ) from error
        except OSError as error:
            raise RunDirError(f"the lock {path} cannot be taken: {reason(error)}") from error
        try:
            yield
        finally:
            lock.release()


def _children(directory: Path) -> list[Path]:
    """The directories in a directory, without symbolic links; none if there is no such directory."""
    try:
        with os.scandir(directory) as entries:
            return [directory / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _number(text: str) -> int | None:
    """The number that a text is, None for any other text."""
    return int(text) if _NUMBER.fullmatch(text) else None


def refuse_temporary(field: str, path: str | os.PathLike[str]) -> None:
    """Raise InvalidValueError for a path within Ray's copy of a job's files.

    Ray unpacks the `working_dir` of a job again on each node, and removes it when the job has ended.
    """
    if not _RAY_COPY.search(anchored(path)):
        return
    here = os.getcwd()
    raise InvalidValueError(
        f"{field} must be outside of {here} here, got {os.fspath(path)!r}: that is Ray's copy of the job's "
        "working_dir, one on each node, which Ray removes after the job; name a directory on a disk that all "
        f"nodes share, such as /shared/{os.path.relpath(anchored(path), here)}"
    )


def dated_run_dir(
    path: str | os.PathLike[str],
    job: str,
    *,
    is_over: Callable[["RunDir"], bool] | None = None,
    now: str | None = None,
) -> RunDir:
    """The new directory of a path such as `runs/{time}`, where {time} becomes 20260131-235959 (local time).

    Args:
        job: a name that all ranks of the job share. The first rank that calls this decides the time and
            writes it to a hidden file, where the other ranks read it. Empty for a job of one rank, which gets
            a directory that did not exist before, if necessary with -2, -3 and so on after the time.
        is_over: for a name that another job may have had: whether that one's run is over, so that this job
            gets a time of its own.
        now: what {time} becomes; None: the local time.

    Raises the errors of `RunDir` and `RunDir.create`.
    """
    text, now = os.fspath(path), now or time.strftime("%Y%m%d-%H%M%S")
    if not job:
        return _new_run_dir(text, now)[0].create()
    # The decision lies next to the new directories, where all ranks of the job look for it.
    parent = RunDir(RunDir(text[: text.index(TIME)] + "time").base.parent).create()
    kept = parent.base / f".time-{hashlib.blake2b(job.encode(), digest_size=8).hexdigest()}"
    with parent.locked("time"):
        found = RunDir(text.replace(TIME, kept.read_text(encoding="utf-8"))) if kept.exists() else None
        if found is not None and is_over is not None and is_over(found):
            found, now = _new_run_dir(text, now)
            publish(kept, now.encode())
        elif found is None:
            found = RunDir(text.replace(TIME, now))
            publish(kept, now.encode())
        return found.create()


def _new_run_dir(text: str, now: str) -> tuple[RunDir, str]:
    """A directory that was not there before, and what {time} became in it."""
    number, stamp = 1, now
    while True:
        run_dir = RunDir(text.replace(TIME, stamp))
        ensure_directory(run_dir.base.parent)
        # `mkdir` decides between jobs that start in the same second.
        with suppress(FileExistsError):
            os.mkdir(run_dir.base)
            return run_dir, stamp
        number += 1
        stamp = f"{now}-{number}"


def export_dir(directory: Path, stamp: int) -> Path:
    """The directory for the tensors exported by a record opened at `stamp` (seconds since the epoch)."""
    return directory / f"export_{stamp}" / "tensor"
