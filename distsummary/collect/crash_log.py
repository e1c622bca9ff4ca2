"""CrashLog: has Python write where a rank was if native code ends its process."""

import faulthandler
import os
from pathlib import Path
from typing import IO

from distsummary.base.publish import open_own
from distsummary.diagnosis.crash import head_of
from distsummary.rundir.run_dir import CRASH


class CrashLog:
    """Python's faulthandler, with a file in the rank's directory; without one if the user has it on already.

    The file is removed by `close`, so that a file which is left shows a crash.

    Args:
        directory: the rank's directory. attempt: see `Topology`. thread_id: of the loop's thread.

    Raises OSError if the file cannot be written.
    """

    def __init__(self, directory: Path, attempt: int, thread_id: int) -> None:
        self._path = directory / CRASH
        self._file: IO[str] | None = None
        if faulthandler.is_enabled():
            return
        place = open_own(self._path, os.O_WRONLY | os.O_TRUNC, 0o600)
        self._file = os.fdopen(place, "w", encoding="utf-8")
        self._file.write(head_of(attempt, thread_id))
        self._file.flush()
        faulthandler.enable(self._file)
        _open.add(self)

    def close(self) -> None:
        """Remove the file, and switch the faulthandler off."""
        file, self._file = self._file, None
        if file is not None:
            _open.discard(self)
            faulthandler.disable()
            file.close()
            self._path.unlink(missing_ok=True)


_open: set[CrashLog] = set()  # at most one


def _after_fork_in_child() -> None:
    """A child, such as a loader's worker, is not the rank."""
    if _open:
        _open.clear()
        faulthandler.disable()


os.register_at_fork(after_in_child=_after_fork_in_child)
