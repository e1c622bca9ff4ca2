"""Replace a large file whole: written beside, synced, then renamed over the old one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distsummary.errors import RunDirError
from distsummary.run_dir import sync_directory, temporary_name


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; on success it becomes `path`, durably, on failure it is removed.

    Raises RunDirError, with the path, when the operating system refuses.
    """
    temporary = temporary_name(path.parent)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise RunDirError(
            f"{path} cannot be written: {error.strerror or error}; "
            "free space or mend the directory's permissions"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
