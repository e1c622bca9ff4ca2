"""What comes back from workers that raised or died: Ray's wrappings -> the errors themselves."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import ActorDiedError, RayError, RayTaskError, UnserializableException

MAX_DEATHS = 8  # one after the other without a result between: twice what one bad chunk can do
IN_CREATION = "error raised in its creation task"  # Ray's words
NOT_BEGUN = "it could not begin: "
SHOWN = 120  # characters of what Ray says
LOOK = (
    "look into the memory they need and whether they can import what the model is made of "
    "(runtime_env of ray.init), or use workers=0"
)

_log = logging.getLogger(__name__)


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise what a worker raised; Ray's error, with the worker's traceback, is its cause.

    What cannot be unpickled is a RuntimeError that quotes it. A RayError means that the worker itself failed.
    """
    try:
        yield
    except UnserializableException as error:
        line, *notes = _last_lines(str(error))
        quoted = RuntimeError(line)
        for note in notes:
            quoted.add_note(note)
        raise quoted from error
    except RayTaskError as error:
        if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
            raise error.cause from error
        raise RuntimeError(str(error.cause)) from error


def _last_lines(text: str) -> list[str]:
    """An error's own line and its notes: they stand behind the traceback, whose lines are indented."""
    lines = text.strip().splitlines()
    behind = 1 + max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1)
    return lines[behind:] or lines[-1:]


def how_it_died(error: RayError) -> str:
    """How a worker died, in a few words; all that Ray says goes to the log at level DEBUG."""
    _log.debug("a landscape worker died: %s", error)
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    if lines and IN_CREATION in lines[0]:  # as by an import that fails there; the last line is the error's
        return f"{NOT_BEGUN}{lines[-1].strip()}"[:SHOWN]
    told = next((line for line in lines if line != ActorDiedError.BASE_ERROR_MSG), type(error).__name__)
    return told.rpartition("exit detail: ")[2].partition(". ")[0].rstrip(".")[:SHOWN]


class Deaths:
    """How workers died, of a crew of so many, one after the other without a result between."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._ways: list[str] = []

    def __len__(self) -> int:
        return len(self._ways)

    def add(self, how: str) -> None:
        """Take in what `how_it_died` says."""
        self._ways.append(how)

    def forget(self) -> None:
        """Begin anew, after a result."""
        self._ways.clear()

    @property
    def are_too_many(self) -> bool:
        """Whether another worker would die, too: soon where each, and two at least, cannot begin alike."""
        end_alike = len(set(self._ways)) == 1 and self._ways[0].startswith(NOT_BEGUN)
        return len(self) >= (min(max(2, self._workers), MAX_DEATHS) if end_alike else MAX_DEATHS)
