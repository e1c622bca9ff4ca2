"""Every public error of distsummary, in one tree.

DistSummaryError
├── UsageError                                      a call, or an argument of it, is wrong
│   ├── InvalidTypeError      (TypeError)           an argument has the wrong type
│   │   └── InvalidArgumentError  (InvalidValueError)  the same, where MindSpore documents ValueError
│   ├── InvalidValueError     (ValueError)          an argument is out of its range
│   │   ├── FilterError                             a filter of runs cannot be read
│   │   └── WorldMismatchError                      ranks or sources disagree on the world size
│   └── ClosedError           (RuntimeError)        a closed record, writer or run was used
├── NotADirectoryPathError    (NotADirectoryError)  the path of a run dir is a file
├── RunDirError               (OSError)             a run dir cannot be read or written
│   └── MissingRunDirError                          it was removed or renamed while the run was recorded
├── MissingExtraError         (ImportError)         an optional dependency is not installed
├── MissingFileError          (FileNotFoundError)   a file of a run does not exist
├── DamagedFileError          (ValueError)          bytes on disk do not follow their format
├── MissingParameterError     (AttributeError, KeyError)  a callback asks for what the loop does not give
├── NonFiniteError            (ArithmeticError)     a logged value is NaN or infinite, with on_nan="stop"
├── NoSamplesError            (RuntimeError)        a metric was read before it had any sample
├── WriteError                (RuntimeError)        recording failed in the background
├── StaleAttemptError         (RuntimeError)        a message came from an attempt that was superseded
├── ClusterError              (ConnectionError)     the Ray cluster does not answer
├── RanksFailedError          (RuntimeError)        ranks of a launched job raised
└── LandscapeError            (RuntimeError)        a landscape could not be computed
    └── CannotTraceError                            the loss cannot be recorded as a graph
KeyboardInterrupt
└── LandscapeCancelled                              a landscape was interrupted by Ctrl-C

A message names the field, the value, the allowed range and the remedy. Exceptions that never leave the
package are defined where they are raised; their docstrings begin with "Internal:".
"""

import errno
import os
from collections.abc import Mapping
from typing import Any

_DISK = "see what the system says of the disk (dmesg), then try again"
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: "raise the limit of the file size (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "fix the permissions",
    errno.EPERM: "fix the permissions",
    errno.ENOENT: "its directory is gone: make it again",
    errno.ENAMETOOLONG: "choose a shorter path",
} | dict.fromkeys((errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENOTCONN, errno.ETIMEDOUT), _DISK)


class DistSummaryError(Exception):
    """Root of all errors of distsummary."""


class UsageError(DistSummaryError):
    """A call, or an argument of it, is wrong: this reaches the user's code, also in a training."""


class InvalidTypeError(UsageError, TypeError):
    """An argument has the wrong type."""


class InvalidValueError(UsageError, ValueError):
    """An argument is out of its range."""


class FilterError(InvalidValueError):
    """A filter of runs cannot be read; `at`: the index of the character at which it is wrong."""

    def __init__(self, message: str, at: int = 0) -> None:
        super().__init__(message)
        self.at = at


class WorldMismatchError(InvalidValueError):
    """Ranks, or sources of the topology, disagree on the world size."""


class InvalidArgumentError(InvalidTypeError, InvalidValueError):
    """An argument has the wrong type, where MindSpore documents ValueError but raises TypeError: both."""


class NotADirectoryPathError(DistSummaryError, NotADirectoryError):
    """A path that must be a directory is a file."""


class RunDirError(DistSummaryError, OSError):
    """A run dir cannot be read or written."""


class MissingExtraError(DistSummaryError, ImportError):
    """An optional dependency is not installed; the message names the pip command that installs it."""


class MissingFileError(DistSummaryError, FileNotFoundError):
    """A file that the run should have does not exist."""


class MissingRunDirError(RunDirError):
    """The run dir was removed or renamed while the run was recorded."""


class DamagedFileError(DistSummaryError, ValueError):
    """Bytes on disk do not follow their format."""


class MissingParameterError(DistSummaryError, AttributeError, KeyError):
    """A callback asked the run context for something that the training loop does not provide."""

    # KeyError would show the message in quotes.
    __str__ = Exception.__str__


class ClosedError(UsageError, RuntimeError):
    """A record, writer or run was used after it was closed."""


class NonFiniteError(DistSummaryError, ArithmeticError):
    """A logged value is NaN or infinite; raised if a run has `on_nan="stop"`."""


class NoSamplesError(DistSummaryError, RuntimeError):
    """A metric was read before `update` gave it any sample."""


class WriteError(DistSummaryError, RuntimeError):
    """Recording failed in the background; raised on the next call when `raise_exception=True`."""


class StaleAttemptError(DistSummaryError, RuntimeError):
    """A message came from an attempt that a newer one has superseded."""


class ClusterError(DistSummaryError, ConnectionError):
    """The Ray cluster that this process was started for does not answer."""


class RanksFailedError(DistSummaryError, RuntimeError):
    """Ranks of a launched job raised; the message lists each different error once, with its ranks."""


class LandscapeError(DistSummaryError, RuntimeError):
    """A landscape could not be computed."""


class CannotTraceError(LandscapeError):
    """The loss cannot be recorded as a graph of operations; engine="row" needs no graph."""

    def __str__(self) -> str:
        return f"{super().__str__()}; leave engine= out, or use engine='row'"


class LandscapeCancelled(KeyboardInterrupt):
    """Ctrl-C interrupted a landscape; `grids` maps each direction to the LossGrid computed so far.

    It is a KeyboardInterrupt, not a DistSummaryError: `except Exception` must not swallow a Ctrl-C.
    """

    # The values are of the type LossGrid, whose module imports this one.
    def __init__(self, grids: Mapping[str, Any]) -> None:
        super().__init__(grids)
        self.grids = grids

    def __str__(self) -> str:
        parts = [f"{name}: {g.computed.sum()} of {g.computed.size} points" for name, g in self.grids.items()]
        return f"the landscape was interrupted ({', '.join(parts)})"


def remedy_of(error: BaseException) -> str:
    """What to do about an error of the operating system; empty if there is no better advice than its text."""
    # Some of our own have the number of the system, and a text that says more.
    if not isinstance(error, OSError) or not error.errno or error.strerror != os.strerror(error.errno):
        return ""
    return _REMEDIES.get(error.errno, "")


def reason(error: OSError) -> str:
    """The text of the operating system for an error, and what to do about it."""
    return f"{error.strerror or error}; {remedy_of(error) or 'mend that'}"
