"""Every error that distsummary raises, in one tree.

DistSummaryError
├── InvalidTypeError          (TypeError)           an argument of the wrong type
├── InvalidValueError         (ValueError)          an argument out of its range
│   └── WorldMismatchError                          ranks or sources disagree on the world size
├── NotADirectoryPathError    (NotADirectoryError)  a run dir that is a file
├── RunDirError               (OSError)             a run dir that cannot be read or written
├── MissingExtraError         (ImportError)         an optional dependency is not installed
├── MissingFileError          (FileNotFoundError)   a file of a run that is not there
├── DamagedFileError          (ValueError)          bytes that are not what their format says
├── MissingParameterError     (AttributeError, KeyError)  a callback asked for what the loop does not tell
├── ClosedError               (RuntimeError)        a closed record or run was used
├── WriteError                (RuntimeError)        recording failed in the background
├── StaleAttemptError         (RuntimeError)        a message of an attempt that was superseded
├── RanksFailedError          (RuntimeError)        ranks of a launched job raised
└── LandscapeError            (RuntimeError)        a landscape could not be computed

A message names the field, the value, the range and the remedy.
"""


class DistSummaryError(Exception):
    """Root of all errors of distsummary."""


class InvalidTypeError(DistSummaryError, TypeError):
    """An argument has the wrong type."""


class InvalidValueError(DistSummaryError, ValueError):
    """An argument is out of its range."""


class WorldMismatchError(InvalidValueError):
    """Ranks, or sources of the topology, disagree on the world size."""


class NotADirectoryPathError(DistSummaryError, NotADirectoryError):
    """A path that must be a directory is a file."""


class RunDirError(DistSummaryError, OSError):
    """A run dir cannot be read or written."""


class MissingExtraError(DistSummaryError, ImportError):
    """An optional dependency is not installed; the message holds the pip line."""


class MissingFileError(DistSummaryError, FileNotFoundError):
    """A file that a run should have is not there."""


class DamagedFileError(DistSummaryError, ValueError):
    """Bytes on disk are not what their format says."""


class MissingParameterError(DistSummaryError, AttributeError, KeyError):
    """A callback asked the run context for something that this loop does not tell."""

    __str__ = Exception.__str__  # KeyError would show the message as a quoted literal


class ClosedError(DistSummaryError, RuntimeError):
    """A record, writer or run was used after it was closed."""


class WriteError(DistSummaryError, RuntimeError):
    """Recording failed in the background; raised on the next call when `raise_exception=True`."""


class StaleAttemptError(DistSummaryError, RuntimeError):
    """A message came from an attempt that a newer one has superseded."""


class RanksFailedError(DistSummaryError, RuntimeError):
    """Ranks of a launched job raised; equal errors are one line that names the ranks."""


class LandscapeError(DistSummaryError, RuntimeError):
    """A landscape could not be computed."""
