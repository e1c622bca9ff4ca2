"""Replaces whole files: writes a temporary file, syncs it, then renames it over the old one."""

import hashlib
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distsummary.base.processes import is_alive, own_process
from distsummary.errors import NotADirectoryPathError, RunDirError, reason

TEMPORARY = ".tmp-"  # prefix of the names of temporary files
STALE_S = 7 * 86400.0  # a temporary file of another machine counts as abandoned after this time
_TEMPORARY = re.compile(r"\.tmp-(?P<space>[0-9a-f]{16})-(?P<pid>\d{1,10})-(?P<start>\d{1,20})-[0-9a-f]{32}")


def is_gone(path: Path) -> bool:
    """Whether there is no directory at a path; not if the disk only cannot say it now."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))


def open_own(path: Path, flags: int, rights: int | None = None) -> int:
    """Open a file of a run for writing, and make it if it is not there; never through a symbolic link.

    `rights`: None: those in its directory. Raises OSError.
    """
    rights = 0o666 & rights_in(path.parent) if rights is None else rights
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, rights)


def ensure_directory(path: Path) -> None:
    """Make a directory and its parents; raises RunDirError or NotADirectoryPathError."""
    try:
        parent = next((parent for parent in path.parents if parent.exists()), Path())
        path.mkdir(rights_in(parent), parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryPathError(
            f"{path} must be a directory, but it or a parent is a file; choose another path"
        ) from error
    except OSError as error:
        raise RunDirError(
            f"the directory {path} cannot be made: {reason(error)}, or choose another path"
        ) from error


def rights_in(directory: Path) -> int:
    """The rights of what is made in a directory: its owner's alone if the directory is, else the umask's."""
    return 0o777 if os.stat(directory).st_mode & 0o077 else 0o700


def check_writable(path: Path) -> None:
    """Make a directory and check that files can be created in it; raises the errors of `ensure_directory`."""
    ensure_directory(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise RunDirError(f"{path} cannot be written to; fix its permissions or choose another path")


def refuse_unlike_files(path: Path) -> None:
    """Raise RunDirError if `path` exists and is not a regular file, for example a directory or a FIFO."""
    # Path.exists would raise if access is denied.
    if os.path.exists(path) and not os.path.isfile(path):
        kind = "a directory" if path.is_dir() else "no regular file"
        raise RunDirError(f"{path} cannot be written: it is {kind}; choose another name, or move it away")


def temporary_name(directory: Path) -> Path:
    """A new path in a directory; its name identifies this process, and readers of event files ignore it."""
    own = own_process()
    process = f"{_mark(own['pid_space'])}-{own['pid']}-{own['pid_start'] or 0}"
    return directory / f"{TEMPORARY}{process}-{uuid.uuid4().hex}"


def is_in_use(path: Path) -> bool | None:
    """Whether the process that made a temporary file or directory still runs; None if unknown.

    The answer is known for processes on this machine (or in this container). A file of another machine gives
    None, and after `STALE_S` False: no process takes that long between creating a file and renaming it. A
    name that `temporary_name` did not make gives None.
    """
    match = _TEMPORARY.fullmatch(path.name)
    if match is None:
        return None
    space = own_process()["pid_space"]
    is_known = match["space"] == _mark(space)
    is_running = is_alive(
        {"pid": int(match["pid"]), "pid_start": match["start"], "pid_space": space if is_known else ""}
    )
    if is_running is None and time.time() - path.lstat().st_mtime > STALE_S:
        return False
    return is_running


def remove_leftovers(directory: Path) -> list[Path]:
    """Remove the temporary files of processes that ended before renaming them; returns the removed paths.

    Files that cannot be removed stay for the next call, and `distsummary fsck` reports them.
    """
    found = []
    for path in directory.iterdir():
        # Another process may have removed it first, or access is denied.
        with suppress(OSError):
            if is_in_use(path) is False:
                found.append(path)
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return found


def _mark(pid_space: str) -> str:
    return hashlib.blake2b(pid_space.encode(), digest_size=8).hexdigest()


def file_system_time(directory: Path) -> float:
    """Now, in seconds since the epoch, by the clock of the file system: one clock for all nodes of a run.

    It is the time of a temporary file. Where none can be written, it is this machine's time.
    """
    path = temporary_name(directory)
    try:
        with open(path, "xb") as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path, *, is_durable: bool = True, is_private: bool = False) -> Iterator[Path]:
    """Give the block a temporary path; on success, sync the file and rename it to `path`; else remove it.

    If not `is_durable`, it is not synced: after the machine loses power, the file may be the old one or be
    damaged. If `is_private`, or in a directory of its owner alone, only the owner may read it.

    Raises RunDirError, with the path, if the operating system cannot write or rename the file.
    """
    temporary = temporary_name(path.parent)
    try:
        yield temporary
        if is_private or rights_in(path.parent) == 0o700:
            os.chmod(temporary, 0o600)
        # The bytes before the name: a file that is there after a loss of power is whole.
        if is_durable:
            sync(temporary)
        os.replace(temporary, path)
        if is_durable:
            sync(path.parent)
    except OSError as error:
        raise RunDirError(f"{path} cannot be written: {reason(error)}") from error
    finally:
        # What cannot be removed now is removed later by `remove_leftovers`.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def publish(path: Path, data: bytes) -> None:
    """Replace the file at `path` by a small file that holds `data`."""
    with replacing(path) as temporary, open(temporary, "xb") as file:
        file.write(data)


def sync(path: Path) -> None:
    """Make a file's bytes, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
