"""What `distsummary why` prints: the verdicts on a run's ranks, in words and as JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distsummary.base.columns import WIDTH, cut, paragraph, printable
from distsummary.diagnosis.sentence import sentence, weight
from distsummary.diagnosis.verdict import NOTICES, Verdict
from distsummary.rundir.states import AttemptState

Found = tuple[int, Verdict]  # with its attempt
FOLDED = 8  # verdicts after the first that have a line each


def by_weight(found: Sequence[Found]) -> list[Found]:
    """The heaviest first, see `sentence.weight`; equal ones in the order in which they are given."""
    return sorted(found, key=lambda one: weight(one[1]))


def as_json(found: Sequence[Found], steps: int, abstained: int) -> dict[str, Any]:
    """For JSON; docs/ranks.md lists the fields."""
    verdicts = [verdict.as_json() for _, verdict in by_weight(found)]
    return {"verdicts": verdicts, "steps": steps, "abstained": abstained}


def abstaining(steps: int, abstained: int) -> list[str]:
    """A line about the steps at which the processors were too busy to say that a rank is slow, if any."""
    line = f"At {abstained:,} of {steps:,} measured steps, processors were too busy to judge who is slow."
    return [line] if abstained else []


def text_of(
    found: Sequence[Found],
    world_size: int,
    newest: int = 0,
    *,
    is_over: bool = False,
    lasted_s: Mapping[int, float] | None = None,
    width: int = WIDTH,
) -> str:
    """The heaviest verdict with the page about its cause, then a line for each other one.

    What was looked at if there is none.

    Args:
        newest: the number of the newest attempt.
        is_over: no rank runs any more.
        lasted_s: attempt -> the seconds that it took so far.
        width: characters of a line, but for paths that are longer.
    """
    if not found:
        if world_size < 2:
            return "nothing was found; the run has one rank, which has no peers to be compared with"
        return f"none of the {world_size} ranks stands out"

    def said(attempt: int, verdict: Verdict) -> str:
        text = sentence(verdict, is_over=is_over or attempt != newest, of_s=(lasted_s or {}).get(attempt))
        return printable(text if attempt == newest else f"In attempt {attempt}: {text}")

    first, *others = by_weight(found)
    lines = paragraph(said(*first), width)
    if first[1].cause not in NOTICES:
        lines.append(f"  What it means, and what to do: {page_of(first[1].cause)}")
    if others:
        lines.append("")
    lines += [cut(f"- {said(*one)}", width) for one in others[:FOLDED]]
    if len(others) > FOLDED:
        lines.append(f"- and {len(others) - FOLDED} more")
    if others:
        lines.append("All of them, in full: --json")
    return "\n".join(lines)


def page_of(cause: str) -> str:
    """The path of the page about a cause: a wheel has them next to this package, a checkout in docs."""
    package = Path(__file__).parents[1]
    installed = package / "verdicts" / f"{cause}.md"
    return str(installed if installed.exists() else package.parent / "docs/verdicts" / installed.name)


def lasted_s(attempt: AttemptState, now: float) -> float:
    """How many seconds an attempt took until its ranks reported last; `now`: seconds since the epoch."""
    return max((now - rank.last_seen_s for rank in attempt.ranks), default=now) - attempt.started
