"""What `distsummary why` prints: the verdicts on a run's ranks, in words and as JSON."""

import textwrap
from collections.abc import Sequence
from typing import Any

from distsummary.diagnosis.verdict import Verdict
from distsummary.tools.columns import WIDTH, printable


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """For JSON; docs/ranks.md lists the fields."""
    return {"verdicts": [verdict.as_json() for verdict in verdicts]}


def text_of(
    verdicts: Sequence[Verdict], world_size: int, *, is_over: bool = False, width: int = WIDTH
) -> str:
    """One paragraph for each verdict; what was looked at if there is none.

    Args:
        is_over: no rank runs any more.
        width: characters of a line, but for paths that are longer.
    """
    if world_size < 2:
        return "the run has one rank, which has no peers to be compared with"
    if not verdicts:
        return f"none of the {world_size} ranks stands out"
    return "\n".join(_paragraph(verdict, is_over, width) for verdict in verdicts)


def _paragraph(verdict: Verdict, is_over: bool, width: int) -> str:
    lasts = "to the end of the run" if is_over else "still"
    until = lasts if verdict.until_step is None else f"to step {verdict.until_step:,}"
    head = f"rank {verdict.rank}: {verdict.cause}, since step {verdict.since_step:,}, {until}"
    evidence = textwrap.wrap(
        printable(verdict.evidence),
        width,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join([f"{head} (told at step {verdict.first_told_step:,})", *evidence])
