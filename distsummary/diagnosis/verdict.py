"""Verdict: which rank is slow, stuck or sick, why, and since when; what `alerts.jsonl` holds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from distsummary.checks import check_choice

SLOW = ("data", "forward", "backward", "optimizer", "python", "host", "recording", "checkpoint", "unknown")
HANG, NAN, DRIFT, CONFIG, SHARD, MEMORY = "hang", "nan", "drift", "config", "shard", "memory"
CAUSES = (*SLOW, HANG, NAN, DRIFT, CONFIG, SHARD, MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with a rank.

    Attributes:
        rank: the rank.
        cause: one of CAUSES; for a slow rank, the phase that takes it longer than its peers.
        since_step: the first step at which it was so.
        until_step: the last one; None while it lasts.
        evidence: the reason, in words and numbers.
        first_told_step: the step at which it was certain enough to be told.

    Raises InvalidTypeError or InvalidValueError for a cause that is not one of CAUSES.
    """

    rank: int
    cause: str
    since_step: int
    until_step: int | None
    evidence: str
    first_told_step: int

    def __post_init__(self) -> None:
        check_choice("cause", self.cause, CAUSES)

    def as_json(self) -> dict[str, Any]:
        """For alerts.jsonl."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """What `as_json` returned, after a way through JSON; names it does not know are left out.

        Raises KeyError for a missing name, InvalidTypeError or InvalidValueError for an unknown cause.
        """
        return cls(**{field.name: stored[field.name] for field in fields(cls)})
