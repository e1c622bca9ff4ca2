"""Verdict: which rank is slow, stuck or sick, why, since when, and its level; what alerts.jsonl holds."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self

from distsummary.base.checks import check_choice

LEVELS = INFO, WARNING, ERROR = "info", "warning", "error"  # in the order of their weight
SLOW = ("data", "forward", "backward", "optimizer", "python", "recording", "checkpoint", "unknown", "host")
HANG, LOST, FAILED = "hang", "lost", "failed"
AWAITED = "waiting"  # the others wait for a rank that does what may end, so far not for long
NAN, DRIFT, CONFIG, SHARD, MEMORY = "nan", "drift", "config", "shard", "memory"
STOPPED = (HANG, LOST, FAILED)  # causes for which other ranks wait until the run is ended
DROPPED, UNSAVED, UNRECORDED = "dropped", "unsaved", "unrecorded"  # values; a checkpoint; a part of it all
LOADER, GROWTH, OVERHEAD = "loader", "growth", "overhead"  # of the data; of memory; of recording
UNEVEN = "uneven"  # steps of different lengths, without a culprit
STARTED, FINISHED, INTERRUPTED = "started", "finished", "interrupted"
MESSAGE = "message"  # of the user, by `run.alert`
ENDS = (STARTED, FINISHED, INTERRUPTED, FAILED, LOST)  # what the state of the run says, too
FACTS = (DROPPED, UNSAVED, UNRECORDED, LOADER, GROWTH, OVERHEAD)
OF_THE_RUN = (*ENDS, *FACTS)  # one alert for all ranks of an attempt
NOTICES = (STARTED, FINISHED, INTERRUPTED, MESSAGE)  # causes of alerts that are no verdict on a rank
CAUSES = (*SLOW, *STOPPED, AWAITED, UNEVEN, NAN, DRIFT, CONFIG, SHARD, MEMORY, *FACTS, *NOTICES)
ERRORS = frozenset((*STOPPED, NAN, DRIFT, SHARD, DROPPED, UNSAVED))
INFOS = frozenset(
    (STARTED, FINISHED, MESSAGE, UNEVEN)
)  # unless a message has a level of its own; else a warning

Interval = tuple[int, int | None]  # the first and the last step; None while it lasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with a rank.

    Attributes:
        rank: the rank.
        cause: one of CAUSES; for a slow rank, the phase that takes it longer than its peers.
        since_step: the first step at which it was so.
        until_step: the last one; None while it lasts.
        evidence: the reason, in words and numbers, without rank, cause and steps; see `sentence`.
        reported_step: the step at which it was certain enough to be reported.
        lost_s: seconds of the run's wall clock that were lost because of it.
        ranks: all ranks that it is about, in rising order, if these are several; `rank` is one of them.
        intervals: where it was so, if it ended and came again: the first and the last step of each time.
        level: "info", "warning" or "error"; empty: that of the cause.

    Raises InvalidTypeError or InvalidValueError for a cause that is not one of CAUSES, or an unknown level.
    """

    rank: int
    cause: str
    since_step: int
    until_step: int | None
    evidence: str
    reported_step: int
    lost_s: float = 0.0
    ranks: tuple[int, ...] = ()
    intervals: tuple[Interval, ...] = ()
    level: str = ""

    def __post_init__(self) -> None:
        check_choice("cause", self.cause, CAUSES)
        if not self.level:
            object.__setattr__(self, "level", level_of(self.cause))
        check_choice("level", self.level, LEVELS)

    def as_json(self) -> dict[str, Any]:
        """For alerts.jsonl."""
        return asdict(self) | {"ranks": [*self.ranks], "intervals": [[*one] for one in self.intervals]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """What `as_json` returned, after a way through JSON; names it does not know are left out.

        Raises KeyError for a missing name, InvalidTypeError or InvalidValueError for an unknown cause.
        """
        found = {
            field.name: stored[field.name]
            for field in fields(cls)
            if field.name in stored or field.default is MISSING
        }
        if "ranks" in found:
            found["ranks"] = tuple(found["ranks"])
        if "intervals" in found:
            found["intervals"] = tuple((int(since), until) for since, until in found["intervals"])
        return cls(**found)


def level_of(cause: str) -> str:
    """The level of a cause."""
    return ERROR if cause in ERRORS else INFO if cause in INFOS else WARNING
