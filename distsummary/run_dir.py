"""A run on disk: every path in it, its attempts and its manifest."""

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
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
from distsummary.publish import ensure_directory, publish, temporary_name
from distsummary.topology import Topology

MANIFEST = "run.json"
LOCK_TIMEOUT_S = 60.0
_RANK_DIR = re.compile(r"(?:(?P<role>[a-z]+)_)?rank_(?P<rank>\d{5,})")

Manifest = dict[str, Any]


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
            raise DamagedFileError(
                f"{self.manifest_path} is not JSON ({error}); remove it, it is a hint only"
            ) from error
        if not _is_manifest(manifest):
            raise DamagedFileError(
                f"{self.manifest_path} is not a manifest of a run; remove it, it is a hint only"
            )
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
    """A run's coordinator without an aggregator: attempts are allocated under the lock of the run dir."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir

    def register(self, topology: Topology) -> Registration:
        """Join or start an attempt; raises WorldMismatchError when its ranks disagree on the world size."""
        answer: list[int] = []
        manifest = self.run_dir.update_manifest(
            lambda manifest: answer.append(join_attempt(manifest, topology))
        )
        return Registration(run_id=manifest["run_id"], attempt=answer[0])

    def lineage(self, topology: Topology, attempt: int, lineage: bytes) -> None:
        """Nothing to do: the rank's own file holds it."""
        refuse_stale(self.run_dir.read_manifest(), topology.role, attempt)

    def finish(self, topology: Topology, attempt: int, health: dict[str, int]) -> None:
        """Mark the rank finished in the manifest."""
        self.run_dir.update_manifest(lambda manifest: leave_attempt(manifest, topology, attempt, health))


def join_attempt(manifest: Manifest, topology: Topology) -> int:
    """Enter the rank in the attempt of its incarnation, a new one if the incarnation is unknown."""
    mine = [a for a in manifest["attempts"] if a["role"] == topology.role]
    known = next((a for a in reversed(mine) if a["incarnation"] == topology.incarnation), None)
    if known is None or _was_here(known, topology):
        known = {
            "role": topology.role,
            "attempt": max((a["attempt"] for a in mine), default=-1) + 1,
            "incarnation": topology.incarnation,
            "world_size": topology.world_size,
            "started": time.time(),
            "ranks": {},
        }
        manifest["attempts"].append(known)
        manifest["state"] = "running"
    if known["world_size"] != topology.world_size:
        others = ", ".join(sorted(known["ranks"], key=int))
        raise WorldMismatchError(
            f"rank {topology.rank} says world_size {topology.world_size} (by {topology.source}), "
            f"but rank(s) {others} said {known['world_size']}; start all ranks with one world size"
        )
    known["ranks"][str(topology.rank)] = asdict(topology) | {"state": "running"}
    return int(known["attempt"])


def _was_here(attempt: Manifest, topology: Topology) -> bool:
    # The same MASTER_ADDR:PORT serves many jobs: a rank that has left, or comes as another process, starts
    # anew, because (attempt, rank, seq) may name one event only.
    before = attempt["ranks"].get(str(topology.rank))
    if before is None:
        return False
    has_left = before["state"] in ("finished", "failed")
    return has_left or (before["host"], before["pid"]) != (topology.host, topology.pid)


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
    """Whether every rank of the attempt joined and left."""
    ranks = entry["ranks"].values()
    return len(ranks) == entry["world_size"] and all(rank["state"] != "running" for rank in ranks)


def export_dir(directory: Path, stamp: int) -> Path:
    """Where a record of `directory` that was opened at `stamp` (seconds) exports tensors."""
    return directory / f"export_{stamp}" / "tensor"


def newest_attempt(manifest: Manifest, role: str = "train") -> Manifest | None:
    """The latest attempt of a role, if there is one."""
    mine: Iterator[Manifest] = (a for a in manifest["attempts"] if a["role"] == role)
    return max(mine, key=lambda a: int(a["attempt"]), default=None)
