"""A run on disk: every path in it, its attempts and its manifest."""

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from distsummary.checks import check_type
from distsummary.coordination import Registration
from distsummary.errors import (
    DamagedFileError,
    DistSummaryError,
    InvalidValueError,
    RunDirError,
    StaleAttemptError,
    WorldMismatchError,
)
from distsummary.publish import ensure_directory, publish, remove_leftovers, temporary_name
from distsummary.topology import Topology, is_alive

MANIFEST = "run.json"
LOCK_TIMEOUT_S = 60.0
JOIN_WINDOW_S = 60.0  # how much later than the first rank of a start another one may come
LANDSCAPE_JOURNAL = re.compile(r"journal-[0-9a-f]{16}\.bin")
_RANK_DIR = re.compile(r"(?:(?P<role>[a-z]+)_)?rank_(?P<rank>\d{5,})")
_REMEDY = (
    "make it anew: distsummary fsck --repair; or end the run's processes and remove it: the run then gets "
    "another id, and its attempts are counted on from the event files"
)

Manifest = dict[str, Any]
Life = Callable[[Mapping[str, Any]], bool | None]


class RunDir:
    """The directory of one run.

    A run of one rank keeps its files in the run dir itself; a run of several keeps each rank's in
    `rank_00000/ ...` and the merged run's in the run dir. Roles other than train have directories of their
    own.

    Args:
        path: the directory. It need not exist until `create`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_type("run_dir", path, (str, os.PathLike))
        text = os.fspath(path)
        if not text.strip():
            raise InvalidValueError(f"run_dir must not be blank, got {text!r}; name a directory")
        self.base = Path(os.path.realpath(text))

    def __repr__(self) -> str:
        return f"RunDir({str(self.base)!r})"

    @property
    def manifest_path(self) -> Path:
        """`run.json`."""
        return self.base / MANIFEST

    @property
    def landscape_dir(self) -> Path:
        """Loss grids: events, .npz and pictures."""
        return self.base / "landscape"

    def landscape_journal(self, plan: Mapping[str, str]) -> Path:
        """The journal of a landscape that is being drawn, by the hashes of what its losses depend on."""
        text = json.dumps(dict(plan), sort_keys=True)
        return self.landscape_dir / f"journal-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.bin"

    def landscape_file(self, tag: str, suffix: str) -> Path:
        """The file of one loss grid: `landscape_[1, 4]` and `.npz` make `landscape_1-4.npz`."""
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", tag.replace(", ", "-")).strip("_")
        return self.landscape_dir / f"{name}{suffix}"

    @property
    def ckpt_dir(self) -> Path:
        """Checkpoints of the trajectory and train_metadata.json."""
        return self.base / "ckpt_dir"

    def writer_dir(self, role: str, rank: int, world_size: int) -> Path:
        """Where the rank's one live writer writes."""
        prefix = "" if role == "train" else f"{role}_"
        if world_size == 1:
            return self.base if role == "train" else self.base / role
        return self.base / f"{prefix}rank_{rank:05d}"

    def rank_dirs(self, role: str = "train") -> dict[int, Path]:
        """The rank directories that exist, by rank; empty for a run of one rank."""
        found = {}
        for path in self.base.iterdir() if self.base.is_dir() else ():
            match = _RANK_DIR.fullmatch(path.name)
            if match and (match["role"] or "train") == role and path.is_dir() and not path.is_symlink():
                found[int(match["rank"])] = path
        return dict(sorted(found.items()))

    def create(self) -> "RunDir":
        """Make the directory and prove that it can be written; raises at once, with the path, if not."""
        ensure_directory(self.base)
        probe = temporary_name(self.base)
        try:
            remove_leftovers(self.base)
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            raise RunDirError(
                f"the run dir {self.base} cannot be written: {error.strerror}; "
                "choose another directory or mend its permissions"
            ) from error
        return self

    def read_manifest(self) -> Manifest:
        """The manifest, or an empty one for a directory without; raises DamagedFileError."""
        try:
            manifest = json.loads(self.manifest_path.read_bytes())
        except FileNotFoundError:
            return {"format": 1, "run_id": "", "created": 0.0, "state": "unknown", "attempts": []}
        except OSError as error:
            raise RunDirError(
                f"{self.manifest_path} cannot be read: {error.strerror}; mend its permissions"
            ) from error
        except ValueError as error:
            raise DamagedFileError(f"{self.manifest_path} is not JSON ({error}); {_REMEDY}") from error
        if not _is_manifest(manifest):
            raise DamagedFileError(f"{self.manifest_path} is not a manifest of a run; {_REMEDY}")
        return manifest  # type: ignore[no-any-return]  # json.loads returns Any; just checked

    def update_manifest(self, change: Callable[[Manifest], None]) -> Manifest:
        """Apply `change` to the manifest under the run's lock and publish it; returns the new one.

        Raises RunDirError when the lock or the file cannot be had, and whatever `change` raises; then nothing
        was written.
        """
        try:
            with FileLock(self.base / ".lock", timeout=LOCK_TIMEOUT_S):
                manifest = self.read_manifest()
                if not manifest["run_id"]:
                    manifest |= {"run_id": secrets.token_hex(8), "created": time.time(), "state": "running"}
                change(manifest)
                publish(self.manifest_path, json.dumps(manifest, indent=1).encode())
                return manifest
        except Timeout as error:
            raise RunDirError(
                f"the lock {self.base / '.lock'} was held for {LOCK_TIMEOUT_S:g} s; "
                "another process of the run hangs: end it"
            ) from error
        except DistSummaryError:
            raise  # some are OSErrors too
        except OSError as error:
            raise RunDirError(
                f"{self.manifest_path} cannot be written: {error.strerror}; free the path or its disk"
            ) from error

    @contextmanager
    def locked(self, purpose: str) -> Iterator[None]:
        """Hold a lock of the run, apart from the manifest's; raises RunDirError if it cannot be had."""
        path = self.base / f".{purpose}.lock"
        lock = FileLock(path)
        try:
            lock.acquire(timeout=LOCK_TIMEOUT_S)
        except Timeout as error:
            raise RunDirError(
                f"the lock {path} was held for {LOCK_TIMEOUT_S:g} s by another process; try again later"
            ) from error
        except OSError as error:
            raise RunDirError(
                f"the lock {path} cannot be taken: {error.strerror}; mend the permissions of the run dir"
            ) from error
        try:
            yield
        finally:
            lock.release()


class LocalCoordinator:
    """A run's coordinator without an aggregator: attempts are allocated under the lock of the run dir.

    Args:
        run_dir: the run.
        first_attempt: where to count from for a role that the manifest does not know; the event files may
            hold attempts of a manifest that was removed.
    """

    def __init__(self, run_dir: RunDir, first_attempt: Callable[[str], int] = lambda role: 0) -> None:
        self.run_dir = run_dir
        self._first_attempt = first_attempt

    def register(self, topology: Topology) -> Registration:
        """Join or start an attempt; raises WorldMismatchError when its ranks disagree on the world size."""
        answer: list[int] = []
        manifest = self.run_dir.update_manifest(
            lambda manifest: answer.append(join_attempt(manifest, topology, self._first_attempt))
        )
        return Registration(run_id=manifest["run_id"], attempt=answer[0])

    def lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        """Nothing to do: the rank's own file holds it."""
        refuse_stale(self.run_dir.read_manifest(), topology.role, attempt)

    def finish(self, topology: Topology, attempt: int, health: dict[str, int]) -> None:
        """Mark the rank finished in the manifest."""
        self.run_dir.update_manifest(lambda manifest: leave_attempt(manifest, topology, attempt, health))


def join_attempt(
    manifest: Manifest, topology: Topology, first_attempt: Callable[[str], int] = lambda role: 0
) -> int:
    """Enter the rank in an attempt, a new one if none is its own; returns its number."""
    mine = [entry for entry in manifest["attempts"] if entry["role"] == topology.role]
    entry = choose_attempt(mine, topology, now=time.time())
    if entry is None:
        entry = {
            "role": topology.role,
            "attempt": 1 + max(a["attempt"] for a in mine) if mine else first_attempt(topology.role),
            "incarnation": topology.incarnation,
            "world_size": topology.world_size,
            "started": time.time(),
            "ranks": {},
        }
        manifest["attempts"].append(entry)
        manifest["state"] = "running"
    if entry["world_size"] != topology.world_size:
        others = ", ".join(sorted(entry["ranks"], key=int))
        raise WorldMismatchError(
            f"rank {topology.rank} says world_size {topology.world_size} (by {topology.source}), "
            f"but rank(s) {others} said {entry['world_size']}; start all ranks with one world size"
        )
    entry["ranks"][str(topology.rank)] = asdict(topology) | {"state": "running"}
    return int(entry["attempt"])


def choose_attempt(
    attempts: list[Manifest], topology: Topology, *, now: float, alive: Life = is_alive
) -> Manifest | None:
    """The attempt that a rank is of, None for a new one; one of another world size if the ranks disagree.

    Several starts may have one name (an address and port), or none. Then only the newest such attempt comes
    into question, and only while it can be that of the same start: see `_may_be_joined`.

    Args:
        attempts: those of the rank's role, in the order of their numbers.
        now: seconds since the epoch. alive: whether a rank's process runs, None where nobody can tell.
    """
    rank = str(topology.rank)
    joined = [entry for entry in attempts if _is_session_of(entry["ranks"].get(rank), topology)]
    if joined:  # it asks again
        return joined[-1]
    named = [entry for entry in attempts if entry["incarnation"] == topology.incarnation]
    if topology.is_incarnation_unique:
        # The oldest that lacks the rank: a faster rank may have started its next training already.
        return next((entry for entry in named if rank not in entry["ranks"]), None)
    if not topology.incarnation:
        named = [entry for entry in named if entry["world_size"] == topology.world_size]
    newest = named[-1] if named else None
    return newest if newest and _may_be_joined(newest, topology, now, alive) else None


def _may_be_joined(entry: Manifest, topology: Topology, now: float, alive: Life) -> bool:
    """Whether an attempt of the same name, or also of none, may be of the same start as the rank.

    It may not when the rank was there, or one of its processes died or failed, or all have left long ago.
    """
    if str(topology.rank) in entry["ranks"]:
        return False
    ranks = entry["ranks"].values()
    lives = [alive(rank) for rank in ranks if rank["state"] == "running"]
    if entry["world_size"] != topology.world_size:
        return True in lives and False not in lives  # two jobs unless it is certain that the ranks disagree
    if lives:
        return False not in lives
    have_finished = all(rank["state"] == "finished" for rank in ranks)
    return have_finished and now - entry.get("started", 0.0) < JOIN_WINDOW_S


def _is_session_of(rank: Mapping[str, Any] | None, topology: Topology) -> bool:
    # Two trainings of one process must not both write as (attempt, rank), which with a seq names one event.
    return rank is not None and rank["state"] == "running" and rank.get("session") == topology.session


def leave_attempt(manifest: Manifest, topology: Topology, attempt: int, health: dict[str, int]) -> None:
    """Mark the rank finished, and the run when it was the last one."""
    refuse_stale(manifest, topology.role, attempt)
    entry = find_attempt(manifest, topology.role, attempt)
    if str(topology.rank) not in entry["ranks"]:
        raise InvalidValueError(
            f"rank {topology.rank} never joined attempt {attempt} of role {topology.role}; register it first"
        )
    state = "failed" if health.get("failed") else "finished"
    entry["ranks"][str(topology.rank)] |= {"state": state, "health": health}
    if is_complete(entry):
        manifest["state"] = "finished"


def find_attempt(manifest: Manifest, role: str, attempt: int) -> Manifest:
    """The manifest's entry of one attempt; raises StaleAttemptError for one that it does not know."""
    attempts: list[Manifest] = manifest["attempts"]
    for entry in attempts:
        if entry["role"] == role and entry["attempt"] == attempt:
            return entry
    raise StaleAttemptError(
        f"attempt {attempt} of role {role} is not in the manifest; the run dir was replaced meanwhile"
    )


def refuse_stale(manifest: Manifest, role: str, attempt: int) -> None:
    """Raise StaleAttemptError when a newer incarnation of the role exists.

    A newer attempt of the same incarnation is only a faster rank that started its next training already.
    """
    newest = newest_attempt(manifest, role)
    if newest is None or attempt >= newest["attempt"]:
        return
    entry = find_attempt(manifest, role, attempt)
    if entry["incarnation"] != newest["incarnation"]:
        raise StaleAttemptError(
            f"attempt {attempt} of role {role} was superseded by attempt {newest['attempt']}; "
            "its messages are refused: end its processes"
        )


def _is_manifest(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("run_id"), str):
        return False
    attempts = value.get("attempts")
    return isinstance(attempts, list) and all(_is_attempt(entry) for entry in attempts)


def _is_attempt(value: object) -> bool:
    fields = {"role": str, "attempt": int, "incarnation": str, "world_size": int, "ranks": dict}
    return isinstance(value, dict) and all(isinstance(value.get(key), kind) for key, kind in fields.items())


def is_complete(entry: Manifest) -> bool:
    """Whether every rank of the attempt joined and left by itself."""
    states = rank_states(entry).values()
    return len(states) == entry["world_size"] and all(state in ("finished", "failed") for state in states)


def rank_states(entry: Manifest) -> dict[str, str]:
    """Each rank's state: running, finished, failed, or lost: it was given up."""
    return {rank: told["state"] for rank, told in entry["ranks"].items()}


def open_attempts(manifest: Manifest) -> list[Manifest]:
    """The newest attempt of each role, unless all has been done for it: its ranks are gone, and were so when
    their files were merged (those of one rank need no merge).
    """
    roles = sorted({entry["role"] for entry in manifest["attempts"]})
    newest = [entry for role in roles if (entry := newest_attempt(manifest, role))]
    return [entry for entry in newest if not _is_settled(entry)]


def _is_settled(entry: Manifest) -> bool:
    states = rank_states(entry)
    is_merged = entry["world_size"] == 1 or entry.get("merged") == states
    return is_merged and "running" not in states.values()


def export_dir(directory: Path, stamp: int) -> Path:
    """Where a record of `directory` that was opened at `stamp` (seconds) exports tensors."""
    return directory / f"export_{stamp}" / "tensor"


def newest_attempt(manifest: Manifest, role: str = "train") -> Manifest | None:
    """The latest attempt of a role, if there is one."""
    mine: Iterator[Manifest] = (a for a in manifest["attempts"] if a["role"] == role)
    return max(mine, key=lambda a: int(a["attempt"]), default=None)
