"""What `distsummary why` prints: the verdicts on a run's ranks, in words and as JSON."""

from collections.abc import Sequence
from typing import Any

from distsummary.diagnosis.verdict import Verdict
from distsummary.tools.columns import printable


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """For JSON; docs/ranks.md lists the fields."""
    return {"verdicts": [verdict.as_json() for verdict in verdicts]}


def text_of(verdicts: Sequence[Verdict], world_size: int, *, is_over: bool = False) -> str:
    """One paragraph for each verdict; what was looked at if there is none.

    `is_over`: no rank runs any more.
    """
    if world_size < 2:
        return "the run has one rank, which has no peers to be compared with"
    if not verdicts:
        return f"none of the {world_size} ranks stands out"
    return "\n".join(_paragraph(verdict, is_over) for verdict in verdicts)


def _paragraph(verdict: Verdict, is_over: bool) -> str:
    lasts = "to the end of the run" if is_over else "still"
    until = lasts if verdict.until_step is None else f"to step {verdict.until_step:,}"
    head = f"rank {verdict.rank}: {verdict.cause}, since step {verdict.since_step:,}, {until}"
    return f"{head} (told at step {verdict.first_told_step:,})\n  {printable(verdict.evidence)}"
