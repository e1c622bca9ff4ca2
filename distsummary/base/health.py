"""Health: what a writer was given, has written and dropped, and why."""

from dataclasses import dataclass, field
from typing import NamedTuple

from distsummary.base.guard import guarded_log

logger = guarded_log(__name__)

_absent: dict[str, int] = {}  # what this process is without, for want of a private name of a framework -> 1


class Removed(NamedTuple):
    """How many bulk values were removed from files, the bytes of their events, and the highest of their steps
    (-1 without any).
    """

    values: int = 0
    nbytes: int = 0
    step: int = -1

    def plus(self, other: "Removed") -> "Removed":
        """Both together."""
        return Removed(self.values + other.values, self.nbytes + other.nbytes, max(self.step, other.step))


@dataclass(slots=True)
class Health:
    """Counters of one writer, since it was opened.

    `given`, `written` and `dropped` count values per plugin. What was given is written, dropped or still
    waits: once a run is closed, `given` is the sum of `written` and `dropped`. Without a queue in front of
    it, a writer counts what it dropped, and not what it was given. `errors` counts refused values and failed
    writes per reason. `missing`: the first reason for which values are missing from the files; empty if none
    are. `waiting` counts values that were accepted and are not in the files yet: lineage that cannot be
    published. `removed`: bulk values that were written and, to keep no more than `keep_bytes`, removed; those
    of writers before this one are included.
    """

    events: int = 0
    bytes: int = 0
    last_seq: int = 0
    given: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    missing: str = ""
    waiting: dict[str, int] = field(default_factory=dict)
    removed: Removed = field(default_factory=Removed)

    def drop(self, plugin: str, times: int = 1, reason: str = "") -> None:
        """Count values that were given and dropped."""
        self.given[plugin] = self.given.get(plugin, 0) + times
        self.dropped[plugin] = self.dropped.get(plugin, 0) + times
        self.missing = self.missing or reason

    def fail(self, reason: str, times: int = 1) -> None:
        """Count failures that have this reason."""
        self.errors[reason] = self.errors.get(reason, 0) + times

    def plus(self, other: "Health") -> "Health":
        """A copy with the values and errors of `other` added, to combine a writer with its wrapper."""
        total = Health(self.events, self.bytes, self.last_seq, missing=self.missing or other.missing)
        for name in ("given", "written", "dropped", "errors", "waiting"):
            mine: dict[str, int] = dict(getattr(self, name))
            # Copied first, because another thread may be counting.
            for key, count in dict(getattr(other, name)).items():
                mine[key] = mine.get(key, 0) + count
            setattr(total, name, mine)
        total.removed = self.removed.plus(other.removed)
        return total


def note_absent(reason: str, error: Exception | None = None, *, logs: bool = True) -> None:
    """Have every `health()` of this process count what is lost without a private name, and log it once."""
    if reason in _absent:
        return
    _absent[reason] = 1
    if logs:
        cause = f" ({type(error).__name__}: {error})" if error else ""
        logger.warning("%s%s (logged once; counted in health())", reason, cause)


def absences() -> Health:
    """What this process was without so far, as `errors`."""
    return Health(errors=dict(_absent))
