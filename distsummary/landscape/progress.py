"""The progress of a landscape, as a terminal, a notebook or a log shows it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a landscape is, in points."""

    done: int
    total: int
    seconds: float
    fresh: int
    by_worker: Mapping[str, float]


def open_teller(progress: object) -> Callable[[Progress], None] | None:
    return progress if callable(progress) else None


def line(p: Progress) -> str:
    return f"{p.done}/{p.total} points"
