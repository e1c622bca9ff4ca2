"""What `distsummary why` prints: the verdicts on a run's ranks, in words and as JSON."""

import textwrap
from collections.abc import Sequence
from typing import Any

from distsummary.diagnosis.verdict import Verdict
from distsummary.tools.columns import WIDTH, printable

Told = tuple[int, Verdict]  # with its attempt


def as_json(told: Sequence[Told]) -> dict[str, Any]:
    """For JSON; docs/ranks.md lists the fields."""
    return {"verdicts": [verdict.as_json() for _, verdict in told]}


def text_of(
    told: Sequence[Told], world_size: int, newest: int = 0, *, is_over: bool = False, width: int = WIDTH
) -> str:
    """One paragraph for each verdict; what was looked at if there is none.

    Args:
        newest: the number of the newest attempt.
        is_over: no rank runs any more.
        width: characters of a line, but for paths that are longer.
    """
    if told:
        return "\n".join(_paragraph(*one, newest, is_over, width) for one in told)
    if world_size < 2:
        return "the run has one rank, which has no peers to be compared with"
    return f"none of the {world_size} ranks stands out"


def _paragraph(attempt: int, verdict: Verdict, newest: int, is_over: bool, width: int) -> str:
    since, lasts = f"since step {verdict.since_step:,}", "to the end of the run" if is_over else "still"
    if attempt != newest:
        since, lasts = f"{since} of attempt {attempt}", "to its end"
    until = lasts if verdict.until_step is None else f"to step {verdict.until_step:,}"
    head = f"rank {verdict.rank}: {verdict.cause}, {since}, {until}"
    evidence = textwrap.wrap(
        printable(verdict.evidence),
        width,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join([f"{head} (told at step {verdict.first_told_step:,})", *evidence])
