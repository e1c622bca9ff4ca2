"""Files that are replaced whole: written beside, synced, then renamed over the old one."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distsummary.errors import NotADirectoryPathError, RunDirError


def ensure_directory(path: Path) -> None:
    """Make a directory with its parents; raises with the path and the remedy."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryPathError(
            f"{path} must be a directory, but it or a parent is a file; choose another path"
        ) from error
    except OSError as error:
        raise RunDirError(
            f"the directory {path} cannot be made: {error.strerror}; choose another path"
        ) from error


def temporary_name(directory: Path) -> Path:
    """A name that no reader of event files takes for one."""
    return directory / f".tmp-{uuid.uuid4().hex}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; on success it becomes `path`, durably, on failure it is removed.

    Raises RunDirError, with the path, when the operating system refuses.
    """
    temporary = temporary_name(path.parent)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        raise RunDirError(
            f"{path} cannot be written: {error.strerror or error}; "
            "free space or mend the directory's permissions"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def publish(path: Path, data: bytes) -> None:
    """Replace a small file whole."""
    with replacing(path) as temporary, open(temporary, "xb") as file:
        file.write(data)


def sync(path: Path) -> None:
    """Make a file's bytes, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
