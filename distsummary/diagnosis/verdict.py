"""Verdict: which rank is slow, stuck or sick, why, and since when; what `alerts.jsonl` holds."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self

from distsummary.checks import check_choice

SLOW = ("data", "forward", "backward", "optimizer", "python", "host", "recording", "checkpoint", "unknown")
HANG, LOST, FAILED = "hang", "lost", "failed"
NAN, DRIFT, CONFIG, SHARD, MEMORY = "nan", "drift", "config", "shard", "memory"
STOPPED = (HANG, LOST, FAILED)  # causes for which other ranks wait until the run is ended
CAUSES = (*SLOW, *STOPPED, NAN, DRIFT, CONFIG, SHARD, MEMORY)

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
        first_told_step: the step at which it was certain enough to be reported.
        lost_s: seconds of the run's wall clock that were lost because of it.
        ranks: all ranks that it is about, in rising order, if these are several; `rank` is one of them.
        intervals: where it was so, if it ended and came again: the first and the last step of each time.

    Raises InvalidTypeError or InvalidValueError for a cause that is not one of CAUSES.
    """

    rank: int
    cause: str
    since_step: int
    until_step: int | None
    evidence: str
    first_told_step: int
    lost_s: float = 0.0
    ranks: tuple[int, ...] = ()
    intervals: tuple[Interval, ...] = ()

    def __post_init__(self) -> None:
        check_choice("cause", self.cause, CAUSES)

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
